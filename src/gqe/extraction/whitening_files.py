"""Whitenings on disk: .npz or .safetensors with `mean` (d,) and `projection` (d, k)."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.extraction.whitening import Whitening
from gqe.formats.atomic import replacing
from gqe.formats.checks import existing_file, explaining
from gqe.formats.numpy_files import read_arrays

_ENDINGS = (".npz", ".safetensors")
_CHECKPOINTS = (".pth", ".pt", ".tar")


def save_whitening(path: str | os.PathLike[str], whitening: Whitening) -> None:
    """Write a whitening in float32.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "white.npz"
        >>> save_whitening(path, Whitening(np.zeros(3), np.eye(3)[:, :2]))
        >>> load_whitening(path).projection.shape
        (3, 2)
    """
    whitening.checked("whitening")
    arrays = {
        "mean": np.ascontiguousarray(whitening.mean, dtype=np.float32),
        "projection": np.ascontiguousarray(whitening.projection, dtype=np.float32),
    }
    ending = Path(path).suffix.lower()
    if ending not in _ENDINGS:
        raise InputError(f"{path}: a whitening is written to {' or '.join(_ENDINGS)}; choose another name")
    with replacing(path) as temporary:
        if ending == ".npz":
            np.savez(temporary, **arrays)  # type: ignore[arg-type]
        else:
            from safetensors.numpy import save_file

            save_file(arrays, temporary, metadata={"format": "gqe whitening"})


def load_whitening(path: str | os.PathLike[str], *, several_scales: bool = False) -> Whitening:
    """Read a whitening.

    Args:
        path: A .npz or .safetensors file of `mean` and `projection`, or a published checkpoint, with
            ":NAME" behind it where it holds several.
        several_scales: Which of a checkpoint's whitenings to take.

    Raises:
        InputError: The file is missing, broken, or holds no whitening.
    """
    text = os.fspath(path)
    ending = Path(text).suffix.lower()
    if ending in _ENDINGS:
        found = existing_file(text)
        arrays = read_arrays(found) if ending == ".npz" else _read_safetensors(found)
        for name in ("mean", "projection"):
            if name not in arrays:
                raise InputError(f"{text}: holds no {name!r}; make it with gqe whiten")
            if arrays[name].dtype.kind != "f":
                raise InputError(f"{text}: {name!r} holds {arrays[name].dtype}, not real numbers")
        return Whitening(np.array(arrays["mean"]), np.array(arrays["projection"])).checked(text)
    file, dataset = text, None
    if ending not in _CHECKPOINTS and ":" in text:
        file, _, dataset = text.rpartition(":")
    if Path(file).suffix.lower() not in _CHECKPOINTS:
        raise InputError(f"{text}: a whitening is read from {', '.join((*_ENDINGS, *_CHECKPOINTS))} files")
    from gqe.extraction.checkpoints import read_learned_whitening

    return read_learned_whitening(file, dataset, several_scales=several_scales)


def whitening_digest(whitening: Whitening) -> str:
    """Twelve letters that differ if the whitening, in float32, does."""
    digest = hashlib.sha256(repr(whitening.projection.shape).encode())
    for array in (whitening.mean, whitening.projection):
        digest.update(np.ascontiguousarray(array, dtype="<f4").tobytes())
    return digest.hexdigest()[:12]


def _read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    with explaining(path, "safetensors file"):
        return dict(load_file(path))
