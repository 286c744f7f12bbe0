"""Ground truth of the revisited Oxford and Paris benchmarks (Radenović et al., CVPR 2018)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from gqe.errors import InputError
from gqe.formats import safe_pickle
from gqe.formats.checks import existing_file, wrap_parse_errors
from gqe.formats.matlab import is_version_73, open_level_5
from gqe.formats.names import stays_inside

_ENDINGS = (".pkl", ".pickle", ".json", ".mat")
_ORIGINAL_LAYOUT = (
    "this is the layout of the original Oxford5k and Paris6k, without easy and hard; "
    "download the revisited ground truth"
)


class QueryTruth(TypedDict):
    """What counts as found for one query: ids are places in `imlist`, from 0."""

    easy: NDArray[np.int64]
    hard: NDArray[np.int64]
    junk: NDArray[np.int64]
    bbx: list[float] | None


class OfficialGroundTruth(TypedDict):
    """The truth of every query, and the names of the database and query pictures where the file has them."""

    gnd: list[QueryTruth]
    imlist: NotRequired[list[str]]
    qimlist: NotRequired[list[str]]


def read_ground_truth(path: str | os.PathLike[str]) -> OfficialGroundTruth:
    """Read the ground truth of a revisited benchmark.

    The official files gnd_roxford5k.pkl and gnd_rparis6k.pkl, JSON of the same layout, or the official MATLAB
    files, whose ids count from 1 and are shifted to count from 0. Pickles are read without running anything.

    Args:
        path: a .pkl, .pickle, .json or .mat file holding `gnd`, and in the official files `imlist` and
            `qimlist`; `gnd` has for every query the ids `easy`, `hard` and `junk` and, if known, the box
            `bbx` of the query picture.

    Returns:
        The same as plain lists, ids as int64 arrays, `bbx` None where missing.

    Raises:
        InputError: the file is missing, broken, or of another layout, such as that of the original Oxford5k.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "truth.json"
        >>> query = {"easy": [1], "hard": [], "junk": [0]}
        >>> _ = path.write_text(json.dumps({"imlist": ["a", "b"], "qimlist": ["q"], "gnd": [query]}))
        >>> read_ground_truth(path)["gnd"][0]["easy"]
        array([1])
    """
    found = existing_file(path)
    ending = found.suffix.lower()
    if ending not in _ENDINGS:
        raise InputError(
            f"{path}: ground truth is read from {', '.join(_ENDINGS)} files; rename or convert it"
        )
    if ending == ".json":
        with wrap_parse_errors(found, ".json file"):
            content: Any = json.loads(found.read_text(encoding="utf-8"))
    elif ending == ".mat":
        content = _read_matlab(found)
    else:
        content = safe_pickle.load(found)
    with wrap_parse_errors(found, "ground truth file"):
        return _check(found, content, first_id=1 if ending == ".mat" else 0)


def _read_matlab(path: Path) -> dict[str, Any]:
    if is_version_73(path):
        raise InputError(f"{path}: ground truth is not read from MATLAB 7.3 files; save it with -v7")
    with open_level_5(path) as file:
        known = ("imlist", "qimlist", "gnd", "qidx")
        content = {name: file.value(name) for name in known if name in file.variables}
    # One structure is not a list of one.
    return {name: [value] if isinstance(value, dict | str) else value for name, value in content.items()}


def _check(path: Path, content: object, first_id: int) -> OfficialGroundTruth:
    if not isinstance(content, dict) or "gnd" not in content:
        raise InputError(f"{path}: has no 'gnd'; ground truth needs gnd and, where known, imlist and qimlist")
    if "qidx" in content:
        raise InputError(f"{path}: {_ORIGINAL_LAYOUT}")
    names = {key: _check_names(path, content[key], key) for key in ("imlist", "qimlist") if key in content}
    size = len(names["imlist"]) if "imlist" in names else None
    gnd = content["gnd"]
    if not isinstance(gnd, list | tuple | np.ndarray):
        raise InputError(f"{path}: 'gnd' must be a list with one entry per query")
    if "qimlist" in names and len(gnd) != len(names["qimlist"]):
        raise InputError(
            f"{path}: 'gnd' has {len(gnd)} entries for the {len(names['qimlist'])} names of qimlist"
        )
    truth: OfficialGroundTruth = {
        "gnd": [_check_query(path, entry, i, size, first_id) for i, entry in enumerate(gnd)]
    }
    if "imlist" in names:
        truth["imlist"] = names["imlist"]
    if "qimlist" in names:
        truth["qimlist"] = names["qimlist"]
    return truth


def _check_names(path: Path, names: object, label: str) -> list[str]:
    if not isinstance(names, list | tuple | np.ndarray):
        raise InputError(f"{path}: {label!r} must be a list of names")
    for place, name in enumerate(names):
        if not isinstance(name, str):
            raise InputError(f"{path}: {label!r} entry {place} is {name!r:.60}; it must be a list of names")
        if not stays_inside(name):
            raise InputError(f"{path}: {label!r} entry {place} is {name[:60]!r}, no plain name of a picture")
    return [str(name) for name in names]


def _check_query(path: Path, entry: object, number: int, size: int | None, first_id: int) -> QueryTruth:
    where = f"{path}: query {number} (gnd[{number}])"
    kinds = ("easy", "hard", "junk")
    if not isinstance(entry, dict):
        raise InputError(f"{where} is not a dictionary; it needs easy, hard and junk")
    if "ok" in entry and not ("easy" in entry and "hard" in entry):
        raise InputError(f"{where} has 'ok': {_ORIGINAL_LAYOUT}")
    for name in kinds:
        if name not in entry:
            raise InputError(f"{where} has no {name!r}; it needs easy, hard and junk")
    easy, hard, junk = (_check_ids(f"{where} {name!r}", entry[name], size, first_id) for name in kinds)
    return {"easy": easy, "hard": hard, "junk": junk, "bbx": _check_box(where, entry.get("bbx"))}


def _check_ids(where: str, ids: object, size: int | None, first_id: int) -> NDArray[np.int64]:
    values = np.atleast_1d(np.asarray(ids))
    if values.size == 0:
        return np.empty(0, np.int64)
    # MATLAB keeps whole numbers as double.
    whole = values.dtype.kind in "iu" or (
        values.dtype.kind == "f" and bool(np.all(values == np.floor(values)))
    )
    if values.ndim != 1 or not whole:
        raise InputError(f"{where} must be a list of picture numbers (integers)")
    if values.max() >= 2**53:
        raise InputError(f"{where} names picture {values.max()}; write or download it again")
    if values.min() < first_id:
        raise InputError(f"{where} names picture {values.min()}; the numbers begin at {first_id}")
    if size is not None and values.max() >= first_id + size:
        raise InputError(
            f"{where} names picture {values.max()}; imlist has the numbers {first_id} to "
            f"{first_id + size - 1}: the file does not fit together, download it again"
        )
    return values.astype(np.int64) - first_id


def _check_box(where: str, box: object) -> list[float] | None:
    if box is None or np.size(np.asarray(box)) == 0:
        return None
    values = np.asarray(box)
    if values.shape != (4,) or values.dtype.kind not in "iuf":
        raise InputError(f"{where} 'bbx' must be four numbers: left, top, right, bottom")
    return [float(value) for value in values]
