"""Draw every picture of the town, describe it, and write the descriptors to one file."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from gqe.datasets.town import files
from gqe.datasets.town.drawing import View, draw
from gqe.datasets.town.plan import SPLITS, plan
from gqe.datasets.town.sharing import ground_truth
from gqe.errors import InputError
from gqe.extraction.lite0 import Lite0
from gqe.extraction.whitening import Whitening, fit
from gqe.formats.atomic import atomic_path

logger = logging.getLogger(__name__)

DRAWING_VERSION = 1  # raise it when pictures change
SHARD = 128
DIMENSION = 256
SIZE = 224
Progress = Callable[[int, int], None]


def make(
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    *,
    scale: float = 1.0,
    refit: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Draw and describe a town anew.

    Pictures are described in shards that are kept beside the output until it is written, so a run that was
    killed goes on where it stopped.

    Args:
        seed: Seed of the town; 0 is the town that comes with the package.
        out: File to write, "town.npz" by default.
        scale: Share of the town to make, in (0, 1].
        refit: Learn the whitening again on this town's training pictures instead of using the shipped one.
        progress: Called with the number of pictures done and of all pictures.

    Returns:
        The file written; read it with `load(split, path=...)`.

    Raises:
        InputError: a setting is out of range, a package is missing, or the file cannot be written.
    """
    target = Path(out) if out is not None else Path("town.npz")
    if not target.parent.is_dir():
        raise InputError(f"{target}: the folder {target.parent} does not exist; create it first")
    plans = {split: plan(split, seed, scale) for split in SPLITS}
    jobs: list[tuple[str, Sequence[View]]] = [(split, plans[split].database) for split in SPLITS]
    jobs += [(f"{split}_queries", plans[split].queries) for split in SPLITS if plans[split].queries]
    network = Lite0(SIZE)
    settings = {"seed": seed, "scale": scale, "drawing": DRAWING_VERSION, "network": network.fingerprint}
    work = _work_folder(target, settings)
    total, done = sum(len(views) for _, views in jobs), 0
    described: dict[str, np.ndarray] = {}
    for name, views in jobs:
        before = done

        def tell(count: int, before: int = before) -> None:
            if progress is not None:
                progress(before + count, total)

        described[name] = describe(views, network, work / name, tell)
        done += len(views)
    if refit or not files.SHIPPED.is_file():
        learned = fit(described["train"], min(DIMENSION, len(described["train"]) - 1))
        # Stored with half precision, and used as stored.
        whitening = Whitening(learned.mean.astype(np.float16), learned.projection.astype(np.float16))
    else:
        whitening = files.whitening_of(files.read(None))
    arrays: dict[str, np.ndarray] = {
        "town_format": np.array(files.FORMAT),
        "settings": np.array(json.dumps(settings)),
        "whitening_mean": whitening.mean.astype(np.float16),
        "whitening_projection": whitening.projection.astype(np.float16),
        "train": files.packed(whitening.apply(described["train"])),
        "train_labels": plans["train"].database_landmark.astype(np.int32),
    }
    for split in ("val", "test"):
        arrays[f"{split}_database"] = files.packed(whitening.apply(described[split]))
        arrays[f"{split}_queries"] = files.packed(whitening.apply(described[f"{split}_queries"]))
        arrays[f"{split}_database_landmarks"] = plans[split].database_landmark.astype(np.int32)
        arrays[f"{split}_query_landmarks"] = plans[split].query_landmark.astype(np.int32)
        for name, values in files.packed_truth(ground_truth(plans[split])).items():
            arrays[f"{split}_{name}"] = values
    files.write(target, arrays)
    shutil.rmtree(work, ignore_errors=True)
    return target


def _work_folder(target: Path, settings: dict[str, object]) -> Path:
    """A folder beside the output for finished shards; shards made with other settings are dropped."""
    work = target.with_name(f"{target.name}.work")
    note = work / "settings.json"
    text = json.dumps(settings)
    if work.is_dir() and (not note.is_file() or note.read_text(encoding="utf-8") != text):
        logger.info("%s holds shards of another town; starting anew", work)
        shutil.rmtree(work)
    work.mkdir(exist_ok=True)
    with atomic_path(note) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return work


def describe(views: Sequence[View], network: Lite0, stem: Path, tell: Callable[[int], None]) -> np.ndarray:
    """Draw and describe views.

    Args:
        views: What to draw.
        network: What describes the pictures.
        stem: Where shards are kept: `stem`-0000.npy and so on.
        tell: Called with the number of pictures done.

    Returns:
        (n, 1280) float32 in the order of the views.
    """
    # Views of one landmark are drawn one after the other: its scene is built once.
    order = sorted(range(len(views)), key=lambda index: views[index].landmark.own)
    result = np.zeros((len(views), network.dimension), dtype=np.float32)
    with ThreadPoolExecutor(1) as background:  # the network runs while the next pictures are drawn
        for shard, first in enumerate(range(0, len(order), SHARD)):
            rows = order[first : first + SHARD]
            path = stem.with_name(f"{stem.name}-{shard:04d}.npy")
            known = _finished(path, len(rows))
            if known is None:
                waiting: list[Future[np.ndarray]] = []
                for start in range(0, len(rows), network.batch_size):
                    pictures = [draw(views[row], SIZE) for row in rows[start : start + network.batch_size]]
                    waiting.append(background.submit(network, pictures))
                known = np.concatenate([future.result() for future in waiting])
                with atomic_path(path) as temporary:
                    np.save(temporary, known)
            result[rows] = known
            tell(first + len(rows))
    return result


def _finished(path: Path, rows: int) -> np.ndarray | None:
    if not path.is_file():
        return None
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return values if values.shape[0] == rows and values.ndim == 2 else None
