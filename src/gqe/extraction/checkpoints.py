"""Published checkpoints of image retrieval: read as data, nothing in them is run.

The layout is that of cnnimageretrieval-pytorch: a dictionary with `meta` (architecture, pooling, mean, std,
whitening, ...) and `state_dict` (`features.*`, `pool.p`, `whiten.weight`, `whiten.bias`). Some keep
whitenings learned afterwards in `meta["Lw"][data set]["ss" or "ms"]`, for one scale or several.
"""

from __future__ import annotations

import math
import os
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gqe.errors import InputError
from gqe.extraction.resnet import DEPTHS, FEATURES, RetrievalNet
from gqe.extraction.whitening import Whitening
from gqe.formats.checks import check_growth, existing_file, one_line, wrap_parse_errors

# Numbers in one tensor of a published network, with room to spare.
_LARGEST_TENSOR = 1 << 26
_POOLS = ("gem", "mac", "spoc")
_AGAIN = "download it again or give another file"


class Checkpoint(NamedTuple):
    """A network as it was published.

    Attributes:
        net: With its weights, ready to be run.
        mean: Of the three colours, between 0 and 1, as in training.
        std: Their deviations.
        pooling: gem, mac or spoc.
        dimension: Of its descriptors.
    """

    net: RetrievalNet
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    pooling: str
    dimension: int


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a network.

    Raises:
        InputError: The file is missing, is no such checkpoint, or would run code to be read.
    """
    found = existing_file(path)
    content = _load(found)
    meta, weights = content.get("meta"), content.get("state_dict")
    if not isinstance(meta, Mapping) or not isinstance(weights, Mapping):
        raise InputError(f"{path}: holds no 'meta' and 'state_dict'; {_AGAIN}")
    architecture, pooling = meta.get("architecture"), meta.get("pooling", "gem")
    if not isinstance(architecture, str) or architecture not in DEPTHS:
        raise InputError(f"{path}: architecture {architecture!r:.40} is unknown; use {', '.join(DEPTHS)}")
    if pooling not in _POOLS:
        raise InputError(f"{path}: pooling {pooling!r:.40} is unknown; use {', '.join(_POOLS)}")
    if meta.get("regional"):
        raise InputError(f"{path}: regional pooling is not supported; use a network without it")
    tensors = _check_tensors(path, weights)
    power = tensors.pop("pool.p", None) if pooling == "gem" else None
    if pooling == "gem" and (power is None or power.numel() != 1 or not float(power) > 0):
        raise InputError(f"{path}: 'pool.p' is missing or no positive number; {_AGAIN}")
    whiten = tensors.get("whiten.weight")
    if meta.get("whitening") and (whiten is None or whiten.ndim != 2):
        raise InputError(f"{path}: 'whiten.weight' is missing or no matrix; {_AGAIN}")
    dimension = FEATURES if whiten is None else len(whiten)
    with torch.device("meta"):  # without memory: every weight comes from the file
        net = RetrievalNet(
            architecture,
            pool=pooling,
            power=3.0 if power is None else float(power),
            local=bool(meta.get("local_whitening")),
            whitened=None if whiten is None else dimension,
        )
    _fill(path, net, tensors)
    mean, std = (_check_colours(path, name, meta.get(name)) for name in ("mean", "std"))
    if min(std) <= 0:
        raise InputError(f"{path}: meta 'std' is not positive; {_AGAIN}")
    return Checkpoint(net.eval().requires_grad_(False), mean, std, pooling, dimension)


def read_learned_whitening(
    path: str | os.PathLike[str], dataset: str | None, *, several_scales: bool
) -> Whitening:
    """Read a whitening from `meta["Lw"]` of a checkpoint, or from a file that holds nothing else.

    Args:
        path: The checkpoint, or a file of {"m", "P"}.
        dataset: What the whitening was learned from, such as "retrieval-SfM-120k"; None for the only one.
        several_scales: Whether descriptors come from several scales.
    """
    found = existing_file(path)
    content = _load(found)
    if not {"m", "P"} <= content.keys():
        meta = content.get("meta")
        learned = meta.get("Lw") if isinstance(meta, Mapping) else None
        if not isinstance(learned, Mapping) or not learned:
            raise InputError(f"{path}: holds no learned whitening ('m' and 'P'); {_AGAIN}")
        names = ", ".join(map(str, learned))
        if dataset is None and len(learned) > 1:
            raise InputError(f"{path}: holds whitenings of {names}; write {path}:NAME")
        chosen = learned.get(dataset if dataset is not None else next(iter(learned)))
        if not isinstance(chosen, Mapping):
            raise InputError(f"{path}: holds no whitening {dataset!r}; there is {names}")
        content = chosen.get("ms" if several_scales else "ss", chosen)
    if not isinstance(content, Mapping):
        content = {}
    for part in (content[name] for name in ("m", "P") if name in content):
        if isinstance(part, Tensor | np.ndarray):  # may repeat one number as often as it likes
            check_growth(found, 8 * math.prod(part.shape), found.stat().st_size)
    try:
        mean = np.asarray(content["m"], dtype=np.float64).reshape(-1)
        projection = np.asarray(content["P"], dtype=np.float64).T
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path}: its whitening has no arrays 'm' and 'P'; {_AGAIN}") from None
    return Whitening(mean, projection).check(path)


def _load(path: Path) -> dict[Any, Any]:
    _refuse_compressed(path)
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(_harmless_globals()):
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path}: not a checkpoint that can be read without running code from it: {_first_words(error)}; "
            "give one of tensors and plain values"
        ) from error
    except MemoryError as error:
        raise InputError(f"{path}: does not fit into memory") from error
    except Exception as error:  # torch raises many types for files that are none of its own
        raise InputError(f"{path}: not a checkpoint: {one_line(error)}; {_AGAIN}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}, no dictionary; {_AGAIN}")
    return content


def _refuse_compressed(path: Path) -> None:
    """torch.save compresses nothing; what is compressed could unpack to any size."""
    with wrap_parse_errors(path, "checkpoint"):
        if not zipfile.is_zipfile(path):  # raises for some that are none
            return
        with zipfile.ZipFile(path) as archive:
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise InputError(f"{path}: is a compressed archive, not a file of torch.save; {_AGAIN}")


def _first_words(error: BaseException) -> str:
    # torch explains at length how to run the file all the same, which is not what to do.
    text = one_line(error)
    for beginning in ("Unsupported global: ", "Unsupported class ", "WeightsUnpickler error: "):
        if beginning in text:
            text = beginning + text.split(beginning, 1)[1]
    return text.split(" was not an allowed global")[0].split(". ")[0][:120]


def _harmless_globals() -> list[Any]:
    """What NumPy arrays are pickled with, under its old and new names; none of it acts on anything else."""
    from numpy._core.multiarray import _reconstruct, scalar

    types = [
        getattr(np.dtypes, f"{kind}DType") for kind in ("Float16", "Float32", "Float64", "Int32", "Int64")
    ]
    named = [
        (function, f"numpy.{core}.multiarray.{function.__name__}")
        for function in (_reconstruct, scalar)
        for core in ("core", "_core")
    ]
    return [np.ndarray, np.dtype, *types, *named]


def _check_tensors(path: Any, weights: Mapping[Any, Any]) -> dict[str, Tensor]:
    for name, value in weights.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InputError(f"{path}: {name!r:.60} of its 'state_dict' is no tensor; {_AGAIN}")
        if value.numel() > _LARGEST_TENSOR:  # one number may be repeated as often as it likes
            raise InputError(f"{path}: {name!r:.60} has {value.numel()} numbers; {_AGAIN}")
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InputError(f"{path}: {name!r} holds a number that is not finite; {_AGAIN}")
    # How many batches were seen in training changes nothing, and older files do not tell.
    return {name: value for name, value in weights.items() if not name.endswith("num_batches_tracked")}


def _fill(path: Any, net: RetrievalNet, tensors: dict[str, Tensor]) -> None:
    expected = {k: v for k, v in net.state_dict().items() if not k.endswith("num_batches_tracked")}
    for missing in sorted(expected.keys() - tensors.keys()):
        raise InputError(f"{path}: {missing!r} is missing from its weights; {_AGAIN}")
    for extra in sorted(tensors.keys() - expected.keys()):
        raise InputError(f"{path}: {extra!r} belongs to no part of this network; {_AGAIN}")
    for name, value in expected.items():
        if tensors[name].shape != value.shape:
            shapes = f"{tuple(tensors[name].shape)} instead of {tuple(value.shape)}"
            raise InputError(f"{path}: {name!r} has the shape {shapes}; {_AGAIN}")
    net.load_state_dict({k: v.float() for k, v in tensors.items()}, strict=False, assign=True)
    for name, buffer in net.named_buffers():
        if buffer.is_meta:
            owner, _, own = name.rpartition(".")
            setattr(net.get_submodule(owner), own, torch.zeros((), dtype=buffer.dtype))


def _check_colours(path: Any, name: str, values: object) -> tuple[float, float, float]:
    try:
        red, green, blue = (float(value) for value in values)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise InputError(f"{path}: meta {name!r} is not three numbers; {_AGAIN}") from None
    if not all(np.isfinite((red, green, blue))):
        raise InputError(f"{path}: meta {name!r} is not finite; {_AGAIN}")
    return red, green, blue
