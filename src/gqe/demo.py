"""The main job on the built-in town: every method side by side, in one page.

Settings are chosen on the town's validation landmarks alone; the page shows its test landmarks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gqe.datasets import town
from gqe.datasets.base import Benchmark
from gqe.evaluation import figures
from gqe.evaluation.benchmark import Bench, Outcome
from gqe.evaluation.report import (
    Example,
    Section,
    Table,
    examples_html,
    figure_html,
    table_html,
    write_report,
)
from gqe.methods import METHODS, Method, parse_method, parse_methods
from gqe.model_files import Model, save_model
from gqe.training.presets import Options, train_preset

KS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_K_GRID = "/".join(str(k) for k in KS[:10])
# What is chosen from, for each row of the table.
GRIDS = {
    "AQE": f"aqe:k={_K_GRID}",
    "AQEwD": f"aqewd:k={_K_GRID}",
    "αQE": f"alpha:k={_K_GRID}:alpha=1/2/3",
    "DQE": "dqe:k=300/1000:positives=3/6/12",
    "AQE-G": f"aqe-g:k={_K_GRID}",
    "αQE-G": f"alpha-g:k={_K_GRID}:alpha=1/3",
    "DBA + AQE": f"dba-aqe:k={_K_GRID}",
    "DBA + αQE": f"dba-alpha:k={_K_GRID}:alpha=1/3",
}
# A small model is trained on the town's training landmarks; the one that ships was trained elsewhere.
TRAINING = Options(preset="small", k=16, steps=400)
READY = {
    "GQE, untrained": "{model}:untrained=1",
    "GQE, collapsed": "{model}:collapsed=1",
    "GQE, trained here": "{model}",
    "universal": "universal",
    "DBA + GQE": "dba-{model}",
    "DBA + universal": "dba-universal",
}
SWEPT = {
    "AQE": ("aqe", KS),
    "AQEwD": ("aqewd", KS),
    "αQE (α 3)": ("alpha:alpha=3", KS),
    "AQE-G": ("aqe-g", KS),
    "αQE-G (α 3)": ("alpha-g:alpha=3", KS),
    "GQE": ("{model}", (4, 8, 16, 32, 64)),
}
Progress = Callable[[int, int, str], None]


class Demo(NamedTuple):
    """What the demo found: the page it wrote, and {row: outcome on the test landmarks}."""

    page: Path
    outcomes: dict[str, Outcome]


def run(
    folder: Path, *, seed: int = 0, device: str | torch.device = "auto", progress: Progress | None = None
) -> Demo:
    """Evaluate every method on the town, train a small model, and write `folder/index.html`."""
    validation = Bench(town.load("val"), device=device, seed=seed)
    data = town.load("test")
    test = Bench(data, device=device, seed=seed)
    grids = {row: parse_methods(text) for row, text in GRIDS.items()}
    runs = sum(map(len, grids.values())) + sum(len(ks) for _, ks in SWEPT.values())
    steps = _Steps(progress, runs + len(grids) + len(READY) + 1)

    model = _trained(folder / "model", validation, replace(TRAINING, seed=seed), steps)
    chosen = {"no expansion": parse_method("none")}
    for row, methods in grids.items():
        found = [steps.run(validation, method) for method in methods]
        chosen[row] = max(found, key=lambda outcome: outcome.evaluation.main).method
    chosen |= {row: parse_method(text.format(model=model)) for row, text in READY.items()}
    outcomes = {row: steps.run(test, method, quality=True) for row, method in chosen.items()}
    curves: dict[str, dict[int, float]] = {}
    for row, (text, ks) in SWEPT.items():
        method = parse_method(text.format(model=model))
        curves[row] = {k: steps.run(test, method.with_settings(k=k)).evaluation.main for k in ks}

    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "index.html"
    write_report(page, "GQE on the built-in town", _lead(data), _sections(data, test, outcomes, curves))
    return Demo(page, outcomes)


def _trained(folder: Path, validation: Bench, options: Options, steps: _Steps) -> Path:
    """Train on the town's training landmarks; the best weights by validation are written to the folder."""
    outcome = train_preset(
        town.load_train(), [validation], options, device=str(validation.device), progress=steps.training
    )
    about = {"training_data": {"name": "the built-in town"}, "validation_history": outcome.history}
    save_model(folder, Model(outcome.stack, "gqe", about))
    return folder


class _Steps:
    """Counts runs for a progress bar."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def run(self, bench: Bench, method: Method, **options: Any) -> Outcome:
        if self.progress is not None:
            self.progress(self.done, self.total, str(method))
        self.done += 1
        return bench.run(method, **options)

    def training(self, done: int, total: int, now: str) -> None:
        if self.progress is not None:
            self.progress(self.done, self.total, f"training {done}/{total}, {now}")


def _lead(data: Benchmark) -> str:
    return (
        f"{len(data.queries)} pictures of landmarks are searched among {len(data.database)} others. An"
        " expansion replaces the query by a weighted sum of itself and its neighbours and searches again."
        " Settings were chosen on other landmarks (validation); nothing here was tuned on what is shown."
    )


def _sections(
    data: Benchmark, bench: Bench, outcomes: dict[str, Outcome], curves: dict[str, dict[int, float]]
) -> list[Section]:
    baseline = outcomes["no expansion"].evaluation.main
    listened = {
        row: (outcome.quality.mean_agreement, outcome.quality.mean_diversity)
        for row, outcome in outcomes.items()
        if outcome.quality is not None and outcome.quality.queries and not outcome.method.dba
    }
    best = max(outcomes, key=lambda row: outcomes[row].evaluation.main)
    return [
        Section(
            "All methods",
            "mAP in percent by the revisited protocol (Easy, Medium, Hard), mean precision of the first ten"
            " (Medium), and the paper's Agreement and Diversity of the weights.",
            table_html(_table(outcomes)),
        ),
        Section(
            "How many neighbours",
            "Medium mAP over K. A hand-crafted expansion gains up to the right K and loses beyond it, and the"
            " right K differs from query to query. A trained model depends less on it.",
            figure_html(figures.k_sweep(curves, baseline, metric="Medium mAP"), "mAP over K for each method"),
        ),
        Section(
            "Whom they listen to",
            "Agreement is the share of weight on pictures of the query's own landmark; Diversity is how"
            " widely that weight is spread. A good expansion has both.",
            figure_html(figures.agreement_and_diversity(listened), "Agreement against Diversity"),
        ),
        Section(
            f"What {best} changed",
            "Queries it helped most, and the one it hurt most. Green frames show the same landmark; dotted"
            " ones show so little of it that the protocol does not count them.",
            examples_html(data, bench.truth, _examples(bench, outcomes["no expansion"], outcomes[best])),
        ),
    ]


def _table(outcomes: dict[str, Outcome]) -> Table:
    rows = []
    for row, outcome in outcomes.items():
        scores, precision = outcome.evaluation.map, outcome.evaluation.mp[10]
        assert isinstance(scores, dict)
        assert isinstance(precision, dict)
        assert outcome.quality is not None
        defined = outcome.quality.queries > 0
        rows.append(
            [
                row,
                outcome.method.summary if outcome.method.name in METHODS else "",
                *(f"{scores[name]:.1f}" for name in ("easy", "medium", "hard")),
                f"{precision['medium']:.1f}",
                f"{outcome.quality.mean_agreement:.2f}" if defined else "",
                f"{outcome.quality.mean_diversity:.2f}" if defined else "",
            ]
        )
    columns = ("method", "settings", "Easy", "Medium", "Hard", "mP@10", "Agreement", "Diversity")
    return Table(columns, rows, numbers=(2, 3, 4, 5))


def _examples(
    bench: Bench, before: Outcome, after: Outcome, *, helped: int = 4, shown: int = 8
) -> list[Example]:
    """The queries of the largest gains and of the largest loss, with their first results."""
    old, new = _medium(before), _medium(after)
    gain = np.nan_to_num(new - old)
    order = np.argsort(-gain, kind="stable")
    picked = [*order[:helped].tolist(), int(order[-1])]
    first_before, first_after = bench.first(before.method, shown), bench.first(after.method, shown)
    return [
        Example(
            f"Query {query}: average precision {old[query]:.0f} → {new[query]:.0f}",
            query,
            first_before[query].tolist(),
            first_after[query].tolist(),
        )
        for query in picked
    ]


def _medium(outcome: Outcome) -> np.ndarray[Any, Any]:
    per_query = outcome.evaluation.per_query
    return per_query["medium"] if isinstance(per_query, dict) else per_query
