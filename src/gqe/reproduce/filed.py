"""Tables of many rows computed in chunks into a file: a stopped run goes on where it was."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.formats.atomic import flush, replacing

Array = np.ndarray[Any, Any]
CHUNK = 8192


def filled(
    path: Path,
    shapes: dict[str, tuple[tuple[int, ...], Any]],
    compute: Callable[[Any], dict[str, Array]],
    progress: Callable[[int, int, str], None] | None = None,
    parts: Sequence[Array] | None = None,
) -> dict[str, Array]:
    """Arrays of n rows each, mapped from files `path`-NAME.npy; missing rows are computed first.

    Args:
        path: beginning of the names; it must tell apart whatever the rows depend on.
        shapes: {name: ((n, ...), dtype)}, all of the same n.
        compute: gives the rows of one part, {name: (b, ...)}.
        progress: called with rows done, all rows, and the name.
        parts: numbers of rows that are computed together, always the same ones; slices if None.
    """
    n = next(iter(shapes.values()))[0][0]
    files = {name: path.with_name(f"{path.name}-{name}.npy") for name in shapes}
    done = int(_told(path, "rows")) if all(file.is_file() for file in files.values()) else 0
    began = time.perf_counter() - (spent(path) if done else 0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, np.memmap[Any, Any]] = {}
        for name, (shape, dtype) in shapes.items():
            mode: Any = "r+" if done else "w+"
            arrays[name] = np.lib.format.open_memmap(files[name], mode=mode, dtype=dtype, shape=shape)
        stop = 0
        slices = [slice(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK)]
        for part in slices if parts is None else parts:
            start, stop = stop, part.stop if isinstance(part, slice) else stop + len(part)
            if stop <= done:
                continue
            if progress is not None:
                progress(start, n, path.name)
            for name, rows in compute(part).items():
                arrays[name][part] = rows
            for name in shapes:
                arrays[name].flush()
                flush(files[name])
            with replacing(_state(path)) as beside:
                beside.write_text(json.dumps({"rows": stop, "seconds": time.perf_counter() - began}))
    except OSError as error:
        raise InputError(f"{path.parent}: {error.strerror}; free space or choose another --output") from error
    return {name: np.load(files[name], mmap_mode="r") for name in shapes}


def finished(path: Path, n: int) -> bool:
    """Whether a table of n rows is there whole."""
    return _told(path, "rows") >= n


def spent(path: Path) -> float:
    """Seconds that the rows there took, over all runs; 0 if there are none."""
    return _told(path, "seconds")


def removed(path: Path) -> None:
    """Remove the files of a table again."""
    for file in path.parent.glob(f"{path.name}-*"):
        file.unlink(missing_ok=True)


def _state(path: Path) -> Path:
    return path.with_name(f"{path.name}-done.json")


def _told(path: Path, name: str) -> float:
    """A number of the state of a table; 0 if it is not there."""
    try:
        return float(json.loads(_state(path).read_text())[name])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0.0
