"""retrieval-SfM-120k (Radenović et al., TPAMI 2018): training pictures and a validation benchmark.

`retrieval-SfM-120k.pkl` is a dictionary of the splits `train` and `val`, each with `cids` (names of the
pictures), `cluster` (the 3D model each belongs to), and matching pairs `qidxs` and `pidxs`, places in `cids`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gqe.datasets.base import Benchmark, TrainingSet
from gqe.datasets.official.descriptors import read_single
from gqe.errors import InputError
from gqe.formats import safe_pickle
from gqe.formats.checks import wrap_parse_errors

SPLITS_FILE = "retrieval-SfM-120k.pkl"
# Its letters become names of folders, too: two dots in a row would lead out of them.
_CID = re.compile(r"(?!.*\.\.)[A-Za-z0-9_-][A-Za-z0-9_.-]{5,250}")


@dataclass(frozen=True, eq=False)
class Split:
    """Pictures of one split.

    Attributes:
        names: (n,) their names.
        clusters: (n,) int64, the 3D model each belongs to; None in the files for whitening.
        queries: (p,) int64 places in `names`, first of each matching pair.
        positives: (p,) int64, second of each.
    """

    names: list[str]
    clusters: NDArray[np.int64] | None
    queries: NDArray[np.int64]
    positives: NDArray[np.int64]


def read_split(path: Path, split: str) -> Split:
    """Read one split, "train" or "val", of retrieval-SfM-120k.pkl; nothing in the pickle is run."""
    content = safe_pickle.load(path)
    if not isinstance(content, dict) or split not in content:
        raise InputError(f"{path}: has no {split!r}; it needs the splits train and val")
    return _check(path, content[split], f"{split!r}", clusters=True)


def read_pairs(path: Path) -> Split:
    """Read retrieval-SfM-120k-whiten.pkl: pictures and matching pairs to learn whitening from."""
    return _check(path, safe_pickle.load(path), "file", clusters=False)


def picture_path(name: str) -> PurePosixPath:
    """Where the picture of a name lies within the data set.

    Example:
        >>> str(picture_path("aabbccddeeff"))
        'ims/ff/ee/dd/aabbccddeeff'
    """
    return PurePosixPath("ims", name[-2:], name[-4:-2], name[-6:-4], name)


def load_train(folder: Path, source: str | None = None) -> TrainingSet:
    """Descriptors of the training pictures, labelled by their 3D model."""
    split, vectors = _load(folder, "train", source)
    assert split.clusters is not None
    models = len(np.unique(split.clusters))
    about = f"retrieval-SfM-120k, training: {len(split.names)} pictures of {models} 3D models"
    return TrainingSet("rsfm120k-train", vectors, split.clusters, about)


def load_val(folder: Path, source: str | None = None) -> Benchmark:
    """The validation pictures as a benchmark.

    Queries are the distinct pictures of `qidxs`, the database is all validation pictures. Relevant is the
    query's own 3D model; the query itself is left out of its ranking and of its neighbours.
    """
    split, vectors = _load(folder, "val", source)
    assert split.clusters is not None
    queries = np.unique(split.queries)
    truth = {
        "query_labels": split.clusters[queries],
        "database_labels": split.clusters,
        "exclude": queries,
    }
    about = f"retrieval-SfM-120k, validation: {len(queries)} queries among {len(split.names)} pictures"
    return Benchmark("rsfm120k-val", np.asarray(vectors[queries]), vectors, truth, about)


def _load(folder: Path, name: str, source: str | None) -> tuple[Split, NDArray[Any]]:
    path = folder / SPLITS_FILE
    if not path.is_file():
        raise InputError(f"{path}: is not here; get it with `gqe data get rsfm120k`")
    split = read_split(path, name)
    return split, read_single(source, folder, names=split.names, part=name, label=f"rsfm120k-{name}")


def _check(path: Path, content: object, where: str, *, clusters: bool) -> Split:
    with wrap_parse_errors(path, "list of retrieval-SfM pictures"):
        if not isinstance(content, dict):
            raise InputError(f"{path}: {where} is no dictionary; it needs cids, qidxs and pidxs")
        needed = ("cids", "qidxs", "pidxs", *(("cluster",) if clusters else ()))
        for key in needed:
            if key not in content:
                raise InputError(f"{path}: {where} has no {key!r}; it needs {', '.join(needed)}")
        names = [str(name) for name in content["cids"]]
        for place, name in enumerate(names):
            if not _CID.fullmatch(name):
                raise InputError(
                    f"{path}: {where} 'cids' entry {place} is {name!r:.60}, no name of a picture"
                )
        queries = _numbers(path, content["qidxs"], f"{where} 'qidxs'", len(names))
        positives = _numbers(path, content["pidxs"], f"{where} 'pidxs'", len(names))
        if len(queries) != len(positives):
            raise InputError(f"{path}: {where} has {len(queries)} qidxs and {len(positives)} pidxs")
        models = _numbers(path, content["cluster"], f"{where} 'cluster'", None) if clusters else None
        if models is not None and len(models) != len(names):
            raise InputError(f"{path}: {where} has {len(models)} clusters for {len(names)} cids")
        return Split(names, models, queries, positives)


def _numbers(path: Path, values: object, where: str, limit: int | None) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.size == 0:
        return np.empty(0, np.int64)
    whole = array.dtype.kind in "iu" or (array.dtype.kind == "f" and bool(np.all(array == np.floor(array))))
    if array.ndim != 1 or not whole:
        raise InputError(f"{path}: {where} must be a list of whole numbers")
    if array.min() < 0 or (limit is not None and array.max() >= limit):
        raise InputError(f"{path}: {where} names picture {array.max()}, there are {limit}; download it again")
    return array.astype(np.int64)
