"""Tiny ONNX models, and folders of pictures to run them on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="pip install 'gqe[extract]'")
pytest.importorskip("onnxruntime", reason="pip install 'gqe[extract]'")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from PIL import Image  # noqa: E402

WEIGHTS = np.random.default_rng(5).normal(size=(8, 3, 3, 3)).astype(np.float32)


def write_model(
    path: Path,
    *,
    pooled: bool = True,
    batch: int | str = "n",
    kind: int = TensorProto.FLOAT,
    nhwc: bool = False,
) -> Path:
    """A convolution to 8 channels, then the mean of each: (n, 8, 1, 1), or (n, 8, h, w) without it."""
    shape: list[int | str] = [batch, "h", "w", 3] if nhwc else [batch, 3, "h", "w"]
    nodes, now = [], "pictures"
    if nhwc:
        nodes.append(helper.make_node("Transpose", [now], ["turned"], perm=[0, 3, 1, 2]))
        now = "turned"
    if kind != TensorProto.FLOAT:
        nodes.append(helper.make_node("Cast", [now], ["real"], to=TensorProto.FLOAT))
        now = "real"
    nodes.append(helper.make_node("Conv", [now, "weights"], ["features"], kernel_shape=[3, 3]))
    nodes.append(helper.make_node("GlobalAveragePool", ["features"], ["pooled"]))
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in (("pooled", "features") if pooled else ("features",))
    ]
    given = [helper.make_tensor_value_info("pictures", kind, shape)]
    graph = helper.make_graph(
        nodes if pooled else nodes[:-1], "tiny", given, outputs, [numpy_helper.from_array(WEIGHTS, "weights")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))
    return path


def expected(pixels: np.ndarray) -> np.ndarray:
    """What the convolution gives, by loops: (h, w, 3) real numbers to maps (8, h - 2, w - 2)."""
    height, width, _ = pixels.shape
    maps = np.zeros((8, height - 2, width - 2))
    for y in range(height - 2):
        for x in range(width - 2):
            window = pixels[y : y + 3, x : x + 3].transpose(2, 0, 1)
            maps[:, y, x] = (WEIGHTS * window).sum(axis=(1, 2, 3))
    return maps


def noise(seed: int, width: int = 24, height: int = 24) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height))


def fill(folder: Path, count: int) -> Path:
    """A folder of pictures in two sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        noise(number, 24, 24 if number % 3 else 18).save(folder / f"{number:04d}.png")
    return folder
