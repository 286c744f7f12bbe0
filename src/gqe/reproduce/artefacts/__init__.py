"""The tables and figures of the paper, by the names users type."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gqe.reproduce.artefact import Artefact
from gqe.reproduce.artefacts import agreement_diversity, depth, k_sweep, repaired, table1, table2
from gqe.reproduce.measuring import Measurer


class Recipe(NamedTuple):
    """How many rows an artefact measures, and how it is made."""

    rows: Callable[[Measurer], int]
    make: Callable[[Measurer], Artefact]


# In the order of the page. The pictures come only with a suite that has some.
PICTURES = "repaired"
ARTEFACTS: dict[str, Recipe] = {
    "table1": Recipe(table1.rows, table1.make),
    PICTURES: Recipe(repaired.rows, repaired.make),
    "table2": Recipe(table2.rows, table2.make),
    "k-sweep": Recipe(k_sweep.rows, k_sweep.make),
    "agreement-diversity": Recipe(agreement_diversity.rows, agreement_diversity.make),
    "depth": Recipe(depth.rows, depth.make),
}

__all__ = ["ARTEFACTS", "PICTURES", "Artefact", "Recipe"]
