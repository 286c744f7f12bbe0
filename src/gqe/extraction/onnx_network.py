"""Any ONNX model, described by a small TOML file beside it. See docs/pictures.md for its fields."""

from __future__ import annotations

import hashlib
import os
import tomllib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gqe.errors import InputError
from gqe.extraction.lite0 import open_session
from gqe.extraction.network import Network, file_digest
from gqe.extraction.preprocessing import (
    RESAMPLES,
    CenterCrop,
    FitLongerSide,
    Preprocessing,
    Stretch,
    Thumbnail,
)
from gqe.formats.checks import Array, existing_file, one_line, wrap_parse_errors

_RESIZE = ("stretch", "crop", "fit", "thumbnail")
_POOLS = ("none", "mean", "max", "gem", "first")
_NUMBERS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}


class Description(NamedTuple):
    """The fields of the TOML file.

    Attributes:
        size: (width, height) for "stretch" and "crop"; (longer side, unused) for "fit" and "thumbnail".
        resize: How a picture gets that size.
        resample: Filter for "stretch" and "crop".
        crop_share: For "crop": the share of the shorter side that is kept.
        step: For "fit": sides are multiples of it.
        layout: "NCHW" or "NHWC".
        colors: "RGB" or "BGR".
        divide: Pixels are divided by this first, ...
        mean: ... then this is subtracted ...
        std: ... and the rest divided by this.
        pool: What becomes of an output with places (n, c, h, w) or tokens (n, t, c).
        output: Name of the output, None for the first.
    """

    size: tuple[int, int]
    resize: str = "stretch"
    resample: str = "bilinear"
    crop_share: float = 1.0
    step: int = 32
    layout: str = "NCHW"
    colors: str = "RGB"
    divide: float = 255.0
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    pool: str = "none"
    output: str | None = None


class OnnxNetwork(Network):
    """An ONNX model run by onnxruntime on the CPU.

    Args:
        path: The .onnx file; its description is the .toml file of the same name.
        batch_size: Pictures in a call, unless the model fixes it.
        threads: Of the model, None for all cores.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, batch_size: int = 16, threads: int | None = None
    ) -> None:
        found = existing_file(path)
        beside = found.with_suffix(".toml")
        if not beside.is_file():
            raise InputError(f"{beside}: no such file; it must say how {found.name} wants its pictures")
        self.about = about = read_description(beside)
        self.prepare = _make_preprocessing(about)
        self._path = found
        self._session = open_session(found, threads, "export or download it again")
        with wrap_parse_errors(found, "network"):  # names that are no text
            inputs = [(item.name, item.type, list(item.shape)) for item in self._session.get_inputs()]
            outputs = [output.name for output in self._session.get_outputs()]
        name, kind, shape = inputs[0] if len(inputs) == 1 else ("", "", [])
        if kind not in _NUMBERS or len(shape) != 4:
            shown = ", ".join(f"{name} {kind} {shape}" for name, kind, shape in inputs)
            raise InputError(f"{found}: its inputs are {shown}; one of pictures (n, 3, h, w) is needed")
        if about.output is not None and about.output not in outputs:
            raise InputError(f"{beside}: output {about.output!r} is unknown; there is {', '.join(outputs)}")
        self._input, self._type = name, _NUMBERS[kind]
        self._output = about.output or outputs[0]
        self._fixed = shape[0] if isinstance(shape[0], int) and shape[0] > 0 else None
        self.batch_size = self._fixed or batch_size
        self.name = str(found.resolve())
        self.settings = {}
        description = hashlib.sha256(beside.read_bytes()).hexdigest()[:8]
        self.fingerprint = f"onnx-{file_digest(found)}-{description}"
        # Only a run shows the dimension of a model with open axes.
        from PIL import Image

        blank = Image.new("RGB", (max(about.size), max(about.size)))
        self.dimension = self.run(self.prepare(blank, max(about.size))[None]).shape[1]

    def run(self, pixels: Array) -> Array:
        """See `Network`."""
        about, count = self.about, len(pixels)
        if self._fixed is not None and count < self._fixed:
            pixels = np.concatenate([pixels, np.zeros((self._fixed - count, *pixels.shape[1:]), np.uint8)])
        if about.colors == "BGR":
            pixels = pixels[..., ::-1]
        if self._type != np.uint8:
            mean, std = (np.array(values, dtype=np.float32) for values in (about.mean, about.std))
            pixels = ((pixels.astype(np.float32) / np.float32(about.divide) - mean) / std).astype(self._type)
        if about.layout == "NCHW":
            pixels = pixels.transpose(0, 3, 1, 2)
        try:
            output = self._session.run([self._output], {self._input: np.ascontiguousarray(pixels)})[0]
        except Exception as error:  # onnxruntime's own types
            reason = f"cannot run on {pixels.shape}: {one_line(error)}"
            raise InputError(f"{self._path}: {reason}; check its .toml") from error
        return _pool(np.asarray(output, dtype=np.float32), about, self._path)[:count]


def read_description(path: Path) -> Description:
    """Read and check the TOML file beside a model."""
    with wrap_parse_errors(path, "TOML file"):
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    for name in values.keys() - set(Description._fields):
        raise InputError(f"{path}: {name!r} is unknown; there are {', '.join(Description._fields)}")
    if "size" not in values:
        raise InputError(f"{path}: 'size' is missing; give a number of pixels, or [width, height]")
    size = values["size"]
    sides = [size, size] if isinstance(size, int) else size
    if not _are_numbers(sides, 2, int) or not all(1 <= side <= 16384 for side in sides):
        raise InputError(f"{path}: size {size!r:.60} is neither a number of pixels nor [width, height]")
    values["size"] = tuple(sides)
    choices = {"resize": _RESIZE, "layout": ("NCHW", "NHWC"), "colors": ("RGB", "BGR"), "pool": _POOLS}
    for name, allowed in (choices | {"resample": RESAMPLES}).items():
        if name in values and values[name] not in allowed:
            raise InputError(f"{path}: {name} {values[name]!r:.40} is unknown; use {', '.join(allowed)}")
    for name in ("mean", "std"):
        if name in values:
            if not _are_numbers(values[name], 3, float) or (name == "std" and min(values[name]) <= 0):
                raise InputError(f"{path}: {name} {values[name]!r:.60} is not three numbers, one per colour")
            values[name] = tuple(float(value) for value in values[name])
    for name, least, most in (("divide", 1e-6, 1e9), ("crop_share", 0.01, 1.0), ("step", 1, 1024)):
        kind = int if name == "step" else float
        if name in values and not (_are_numbers([values[name]], 1, kind) and least <= values[name] <= most):
            raise InputError(f"{path}: {name} {values[name]!r:.40} is not a number from {least} to {most}")
    if not isinstance(values.get("output", ""), str):
        raise InputError(f"{path}: output {values['output']!r:.40} is not a name")
    return Description(**values)


def _are_numbers(values: object, count: int, kind: type) -> bool:
    kinds = (int,) if kind is int else (int, float)
    return (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(v, kinds) and not isinstance(v, bool) and np.isfinite(v) for v in values)
    )


def _make_preprocessing(about: Description) -> Preprocessing:
    width, height = about.size
    if about.resize == "stretch":
        return Stretch(width, height, about.resample)
    if about.resize == "crop":
        return CenterCrop(width, height, about.crop_share, about.resample)
    return FitLongerSide(width, about.step) if about.resize == "fit" else Thumbnail(width)


def _pool(output: Array, about: Description, path: Path) -> Array:
    """Descriptors (n, d) from whatever a model gives."""
    shape = output.shape
    if output.ndim == 4 and about.layout == "NHWC" and about.pool != "none":
        output = output.transpose(0, 3, 1, 2)
    if output.ndim == 3:  # tokens, the first of which stands for all
        output = output.transpose(0, 2, 1)
    if output.ndim >= 2 and (output.ndim == 2 or about.pool == "none"):
        flat = output.reshape(len(output), -1)
        if flat.shape[1] == max(shape[1:]):  # all other axes have length 1
            return flat
    can_pool = output.ndim in (3, 4) and about.pool != "none"
    if not can_pool or (about.pool == "first" and output.ndim == 4):
        raise InputError(
            f"{path}: its output has the shape {shape}; set pool in its .toml to mean, max or gem, "
            "or to first for tokens"
        )
    places = output.reshape(*output.shape[:2], -1)
    if about.pool == "first":
        return places[:, :, 0]
    if about.pool == "gem":
        return np.asarray(np.cbrt((places.clip(min=1e-6) ** 3).mean(axis=2)))
    return np.asarray(places.max(axis=2) if about.pool == "max" else places.mean(axis=2))
