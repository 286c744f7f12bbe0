"""How much of what one picture shows another one shows as well, and the ground truth that follows."""

from __future__ import annotations

from typing import Any

import numpy as np

from gqe.datasets.town.drawing import View, visible_patches
from gqe.datasets.town.plan import SplitPlan

EASY = 0.5
HARD = 0.15
SMALLEST = 0.12  # a landmark that fills less of the picture than this counts as partly out of sight
GRID = 64


def footprint(view: View) -> np.ndarray:
    """What a picture shows of its landmark: the share of every surface patch, (q,) float64, sum at most 1."""
    counts = visible_patches(view, GRID).astype(float)
    return counts / max(float(counts.sum()), SMALLEST * GRID * GRID)


def shared(a: np.ndarray, b: np.ndarray) -> float:
    """Share of the view that two pictures of one landmark have in common.

    Args:
        a: Footprint of one picture, (q,).
        b: Footprint of the other, (q,).

    Returns:
        0 (nothing in common) to 1 (the same parts, equally large); the same when a and b are exchanged.
    """
    return float(np.minimum(a, b).sum())


def ground_truth(split: SplitPlan) -> dict[str, Any]:
    """Ground truth in the layout of Revisited Oxford and Paris.

    Args:
        split: The plan of the split.

    Returns:
        {"gnd": one dict for every query, with the database ids "easy", "hard" and "junk" (lists of int) and
        "bbx", the whole picture}.
    """
    rows_of = {
        int(number): np.flatnonzero(split.database_landmark == number)
        for number in set(split.query_landmark.tolist())
    }
    prints: dict[int, np.ndarray] = {}
    truth = []
    for view, number in zip(split.queries, split.query_landmark.tolist(), strict=True):
        mine = footprint(view)
        lists: dict[str, list[int]] = {"easy": [], "hard": [], "junk": []}
        for row in rows_of[number].tolist():
            if row not in prints:
                prints[row] = footprint(split.database[row])
            share = shared(mine, prints[row])
            lists["easy" if share >= EASY else "hard" if share >= HARD else "junk"].append(row)
        truth.append({**lists, "bbx": [0.0, 0.0, 224.0, 224.0]})
    return {"gnd": truth}
