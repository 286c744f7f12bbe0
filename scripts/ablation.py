r"""Measure what each hand-set rule of the `universal` model gives: mAP with the rule off, or set otherwise.

    python scripts/ablation.py BENCHMARKS --cache ablation

BENCHMARKS is the folder of `scripts/space_zoo.py`; beside its spaces there are text/val.npz,
thinned and noisy copies. Prints the tables of docs/constants.md: differences from the model as it ships. Each
measured cell is kept in --cache, so that a stopped run continues.

A rule is switched off by replacing constants of the library's modules while a cell is measured. The weights
stay as they were trained.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from space_zoo import load, spaces
from torch import Tensor

from gqe.aggregators import Affinity, Aggregator
from gqe.datasets import Benchmark
from gqe.errors import InputError
from gqe.evaluation import evaluate
from gqe.evaluation.benchmark import Bench, all_scores
from gqe.expansion import expand
from gqe.formats.atomic import atomic_path
from gqe.methods import parse_method
from gqe.negatives import subtract_negatives
from gqe.neighbors import knn
from gqe.source import MemorySource
from gqe.statistics import sample_lists
from gqe.training.validation import change_space, limit_relevant

JUDGED = (
    "signs",
    "fruits",
    "intents",
    "titles-gte",
    "titles-minilm",
    "categories-lite0",
    "persons-lite0",
    "faces-arcface",
    "holidays-lite0",
    "groceries-lite0",
)
"""Spaces of the mean: none of them is validation data."""
COPIES: dict[str, tuple[str, Callable[[Benchmark], Benchmark]]] = {
    "intents, 1 relevant": ("intents", lambda space: limit_relevant(space, 1)),
    "fruits, 1 relevant": ("fruits", lambda space: limit_relevant(space, 1)),
    "text-val, noise 0.8": ("text-val", lambda space: change_space(space, 256, 0.8, 0.0)),
    "text-val, noise 1.5": ("text-val", lambda space: change_space(space, 256, 1.5, 0.0)),
}
"""Spaces derived from others: where expansion easily harms, and where descriptors are noisy."""
SPACES = (*JUDGED, "holidays-resnet50", "persons-resnet50", "text-val", *COPIES)
CONTRAST = 0.4
MAX_NEIGHBORS = 512
"""Neighbours of a query that any rule reads."""


@dataclass(frozen=True)
class Rule:
    """A change of the model as it ships.

    Attributes:
        constants: other values of module constants, by their path below `gqe`.
        method: what is measured.
        parameters: other values of the parameters of all levels.
        contrast: weight of the negatives.
    """

    constants: dict[str, Any] = field(default_factory=dict)
    method: str = "universal"
    parameters: dict[str, Sequence[float]] = field(default_factory=dict)
    contrast: float = CONTRAST

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the constants for a while."""
        with ExitStack() as stack:
            for path, value in self.constants.items():
                stack.enter_context(patch(f"gqe.{path}", value))
            yield

    def stack(self) -> list[Aggregator]:
        """The aggregators with the changed parameters."""
        torch.manual_seed(0)  # of the untrained model
        levels = parse_method(self.method).stack()
        with torch.no_grad():
            for level in levels:
                for name, value in self.parameters.items():
                    level.get_parameter(name).copy_(torch.tensor(value))
        return levels


SHIPPED = "universal as it ships"
JACCARD = "jaccard as it is"
PLAIN = {"no expansion": Rule(method="none", contrast=0), "untrained": Rule(method="universal:untrained=1")}
STATISTICS = {
    "no outlier rule (`_SEPARATED`)": Rule({"statistics._SEPARATED": math.inf}),
    "outlier rule, any size of group (`_MIN_ITEMS` 1)": Rule({"statistics._MIN_ITEMS": 1}),
    "background of 4096 items (`_MAX_ITEMS`)": Rule({"statistics._MAX_ITEMS": 4096}),
    "all lists measured (`MAX_LISTS`)": Rule({"statistics.MAX_LISTS": 10**9}),
    "1024 lists measured (`MAX_LISTS`)": Rule({"statistics.MAX_LISTS": 1024}),
    "no noise adjustment (`_NEAR_DUPLICATE`)": Rule({"statistics._NEAR_DUPLICATE": 1e-6}),
    "noise adjusted without pairs (`_UNPAIRED`, `_PAIRED`)": Rule(
        {"statistics._UNPAIRED": -2.0, "statistics._PAIRED": -1.0}
    ),
    "noise adjusted by chance, too (`_BY_CHANCE`, `_NOT_BY_CHANCE`)": Rule(
        {"statistics._BY_CHANCE": -2.0, "statistics._NOT_BY_CHANCE": -1.0}
    ),
    "129 quantiles (`QUANTILES`)": Rule(
        {"statistics.QUANTILES": 129, "statistics._TENTH": 115, "aggregators.context.QUANTILES": 129}
    ),
}
WEIGHTS = {
    "no caution in rare density (`_RARE`)": Rule({"aggregators.affinity._RARE": math.inf}),
    "no exception for near eighth neighbours (`_APART`, `_TOGETHER`)": Rule(
        {"aggregators.affinity._APART": 2.0, "aggregators.affinity._TOGETHER": 3.0}
    ),
    "no caution in flat lists (`_NEAR`)": Rule({"aggregators.affinity._NEAR": -math.inf}),
    "caution in all far lists, flat or not (`_FALL`)": Rule({"aggregators.affinity._FALL": math.inf}),
    "caution abrupt below `_NEAR` (`_NEARER` 0.001)": Rule({"aggregators.affinity._NEARER": 1e-3}),
    "no caution at all": Rule(parameters={"caution": [0.0, 0.0]}),
    "the fourth neighbour for the eighth (`_EIGHTH`)": Rule({"aggregators.affinity._EIGHTH": 4}),
    "`caution` 12, 4 as before training": Rule(parameters={"caution": [12.0, 4.0]}),
    "`prior` as before training": Rule(parameters={"prior": Affinity().prior.tolist()}),
}
NEGATIVES = {
    "contrast 0": Rule(contrast=0.0),
    "contrast 0.2": Rule(contrast=0.2),
    "contrast 0.6": Rule(contrast=0.6),
    "contrast without the scatter gate (`_TOGETHER`, `_APART`)": Rule(
        {"negatives._TOGETHER": -1001.0, "negatives._APART": -1000.0}
    ),
    "4 nearest items (`NEAREST`)": Rule({"negatives.NEAREST": 4}),
    "16 nearest items (`NEAREST`)": Rule({"negatives.NEAREST": 16}),
    "ranks 32 to 192 (`NEGATIVE_RANKS`)": Rule({"negatives._FIRST": 32}),
    "ranks 64 to 128 (`NEGATIVE_RANKS`)": Rule({"negatives._LAST": 128}),
    "ranks 128 to 512 (`NEGATIVE_RANKS`)": Rule({"negatives._FIRST": 128, "negatives._LAST": MAX_NEIGHBORS}),
}
JACCARDS = {
    "`weight` 0.1": Rule(method="jaccard:weight=0.1", contrast=0),
    "`weight` 1": Rule(method="jaccard:weight=1", contrast=0),
    **{
        f"`SIZES` {size} alone": Rule({"aggregators.jaccard.SIZES": (size,)}, "jaccard", contrast=0)
        for size in (8, 16, 32)
    },
}
BASES = {SHIPPED: Rule(), JACCARD: Rule(method="jaccard", contrast=0)}
CHANGES = {SHIPPED: STATISTICS | WEIGHTS | NEGATIVES, JACCARD: JACCARDS}
RULES = PLAIN | BASES | CHANGES[SHIPPED] | CHANGES[JACCARD]

Outcomes = dict[str, dict[str, list[float]]]
"""MAP of expanded queries on the plain and on the augmented database, by space and rule."""


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmarks", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("ablation"), help="folder for measured cells")
    parser.add_argument("--space", action="append", choices=SPACES, help="measure this one; all by default")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    outcomes = {
        name: measure(name, options.benchmarks, options.cache / f"{name}.json")
        for name in options.space or SPACES
    }
    print("\n".join(report(outcomes)))


def open_space(name: str, folder: Path) -> Benchmark:
    """The benchmark of a space of SPACES."""
    if name in COPIES:
        original, copy = COPIES[name]
        return copy(open_space(original, folder))
    found = spaces(folder) | {"text-val": folder / "text/val.npz"}
    if name not in found:
        raise InputError(f"{folder}: has no file of the space {name}")
    return load(name, found[name])


def measure(name: str, folder: Path, file: Path) -> dict[str, list[float]]:
    """MAP of all rules in a space; known cells are read from a file, new ones added to it."""
    known: dict[str, list[float]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if all(title in known for title in RULES):
        return known
    space = _Space(open_space(name, folder))
    for title, rule in RULES.items():
        if title not in known:
            known[title] = [round(value, 2) for value in space.judge(rule)]
            with atomic_path(file) as beside:
                beside.write_text(json.dumps(known, indent=1), encoding="utf-8")
            print(name, title, known[title], file=sys.stderr, flush=True)
    return known


class _Space:
    """A benchmark with what its rules share: neighbours, and expansions that a rule does not change."""

    def __init__(self, benchmark: Benchmark) -> None:
        self._bench = Bench(benchmark, device="cpu")
        database, size = self._bench.database, len(self._bench.database)
        self._graph = knn(database, min(32, size - 1), device="cpu")
        self._near = knn(database, min(MAX_NEIGHBORS, size), queries=self._bench.queries, device="cpu")
        self._expanded: dict[tuple[str, ...], tuple[MemorySource, Tensor, Tensor]] = {}

    def judge(self, rule: Rule) -> list[float]:
        """MAP in percent on the plain and on the augmented database."""
        with rule.applied():
            source, expanded, augmented = self._expand(rule)
            queries = subtract_negatives(expanded, source, self._near, rule.contrast)
        bench = self._bench
        return [
            evaluate(all_scores(queries, database, bench.device), bench.truth).main
            for database in (bench.database, augmented)
        ]

    def _expand(self, rule: Rule) -> tuple[MemorySource, Tensor, Tensor]:
        """Expanded queries and augmented database, computed once for rules that change neither."""
        source = MemorySource(rule.stack(), self._bench.database, self._graph, device=self._bench.device)
        weights = {path: value for path, value in rule.constants.items() if path.startswith("aggregators.")}
        key = (rule.method, str(rule.parameters), str(weights), _statistics(source))
        if key not in self._expanded:
            queries = expand(source, self._bench.queries, self._near)
            self._expanded[key] = source, queries, source.augment()
        return self._expanded[key]


def _statistics(source: MemorySource) -> str:
    """What the aggregators read of the whole database, to be compared."""
    if not source.needs_context:
        return ""
    background, quantiles = source.statistics.read(0, source)
    return str([sample_lists(source).items.tolist(), background.tolist(), quantiles.tolist()])


def report(outcomes: Outcomes) -> list[str]:
    """Tables of mAP and of differences, and the rules that change nothing or harm."""
    lines = ["mAP, queries expanded / the database augmented, too:", ""]
    lines += table(outcomes, {title: _both_sides(_values(outcomes, title)) for title in PLAIN | BASES})
    for base, changes in CHANGES.items():
        differences = {title: _values(outcomes, title) - _values(outcomes, base) for title in changes}
        for side, what in enumerate(("queries expanded", "the database augmented, too")):
            rows = {title: _signed(values[:, side]) for title, values in differences.items()}
            lines += ["", f"Differences from {base}, {what}:", "", *table(outcomes, rows)]
        idle = [title for title, values in differences.items() if np.abs(values).max() < 0.055]
        harmful = [
            title for title, values in differences.items() if values[0].mean() > 0 and values.min() > -0.305
        ]
        lines += ["", f"Within 0.05 everywhere: {'; '.join(idle) or 'none'}."]
        lines += ["", f"Better on the mean, nowhere worse by more than 0.3: {'; '.join(harmful) or 'none'}."]
    return lines


def table(outcomes: Outcomes, rows: dict[str, list[str]]) -> list[str]:
    """One row per rule: the mean, and each space."""
    head = [["", "mean", *outcomes], ["---"] * (len(outcomes) + 2)]
    return ["| " + " | ".join(row) + " |" for row in [*head, *([title, *rows[title]] for title in rows)]]


def _values(outcomes: Outcomes, title: str) -> np.ndarray[Any, Any]:
    """(1 + spaces, 2) mAP of a rule on both sides: the mean over those of JUDGED, if any, and each space."""
    values = np.array([known[title] for known in outcomes.values()])
    judged = [name in JUDGED or outcomes.keys().isdisjoint(JUDGED) for name in outcomes]
    return np.concatenate([values[judged].mean(axis=0, keepdims=True), values])


def _both_sides(values: np.ndarray[Any, Any]) -> list[str]:
    return [f"{queries:.1f} / {both:.1f}" for queries, both in values]


def _signed(values: np.ndarray[Any, Any]) -> list[str]:
    return [f"{value:+.2f}" if abs(value) >= 0.005 else "0" for value in values]


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"ablation: {error}")
