"""Write docs/graph-methods.md: expansion, re-ranking and both together, with what each costs.

    python scripts/graph_methods.py BENCHMARKS -o docs/graph-methods.md --trained image=FOLDER

BENCHMARKS is the folder that scripts/results.py reads; --trained adds a model that was trained on one kind of
data. All settings are chosen on the val file of each kind: those of a re-ranker anew behind every expansion.
Offline, spectral and hybrid diffusion are faster ways to what diffusion computes and take its settings.
Quality comes first, then the costs, for which the machine should have nothing else to do (--stage). A run
that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from gqe.datasets import Benchmark, load_npz
from gqe.errors import InputError
from gqe.evaluation import evaluate, tuning
from gqe.evaluation.benchmark import Bench
from gqe.evaluation.figures import quality_and_cost
from gqe.formats.atomic import atomic_path
from gqe.methods import Method, parse_method
from gqe.models import Expander, from_method

FILES = {"image": ("val", "test-signs", "test-fruits"), "text": ("val", "test-intents")}
TUNED_EXPANSIONS = ("aqe", "aqe-g", "dba-alpha")
DATABASE_ONLY = "dba-only-universal"
BEFORE_RERANKERS = ("none", "universal", "dba-universal")
# Diffusion stands before those that take its settings.
RERANKERS = (
    *("diffusion", "offline-diffusion", "spectral", "hybrid-diffusion"),
    *("egt", "gss", "reciprocal", "superglobal", "csa"),
)
FASTER = ("offline-diffusion", "spectral", "hybrid-diffusion")
COSTS = ("build s", "ms a query", "bytes an item")
RESULTS = 100
REPEATS = 3


def main() -> None:
    """Read the command line, measure what is not measured yet, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmarks", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/graph-methods.md"))
    parser.add_argument("--measured", type=Path, default=Path("graph-methods.json"), help="to go on from")
    parser.add_argument("--trained", action="append", default=[], metavar="KIND=FOLDER")
    parser.add_argument("--stage", choices=("quality", "costs", "page"), help="only this one")
    options = parser.parse_args()
    known = json.loads(options.measured.read_text()) if options.measured.exists() else {}
    data = {
        kind: {name: load_npz(options.benchmarks / kind / f"{name}.npz") for name in files}
        for kind, files in FILES.items()
    }
    rows = {
        kind: names([t.partition("=")[2] for t in options.trained if t.startswith(kind)]) for kind in FILES
    }
    for kind, files in data.items() if options.stage in (None, "quality") else ():
        bench = Bench(files["val"])
        for name in rows[kind]:
            entry = known.setdefault(kind, {}).setdefault(name, {})
            if "chosen" not in entry:
                entry["chosen"] = str(chosen(bench, name, known[kind]))
                save(options.measured, known)
    for stage, measure, last in (("quality", quality, "map"), ("costs", costs, "query_ms")):
        for kind, files in data.items() if options.stage in (None, stage) else ():
            for file, benchmark in files.items():
                ready = Ready(benchmark)
                for name in rows[kind]:
                    entry = known[kind][name].setdefault(file, {})
                    if last in entry:
                        continue
                    entry |= measure(ready, parse_method(known[kind][name]["chosen"]))
                    print(f"{kind}/{file} {name}: {entry}", flush=True)
                    save(options.measured, known)
    if options.stage in (None, "page"):
        shown = {kind: {Path(name).name: known[kind][name] for name in rows[kind]} for kind in FILES}
        with atomic_path(options.output) as path:
            path.write_text(page(shown, options.output.parent / "figures"), encoding="utf-8")


def names(trained: list[str]) -> list[str]:
    """All rows of the table for one kind of data."""
    before = (*BEFORE_RERANKERS, *trained)
    grouped = [[first, *(f"{first}+{then}" for then in RERANKERS)] for first in before]
    return [*TUNED_EXPANSIONS, DATABASE_ONLY, *(name for group in grouped for name in group)]


def chosen(bench: Bench, name: str, known: dict[str, Any]) -> Method:
    """A method with its settings chosen on validation data."""
    first, _, reranker = name.partition("+")
    if reranker in FASTER:
        exact = parse_method(known[f"{first}+diffusion"]["chosen"]).reranking
        assert exact is not None
        same = {key: exact.settings[key] for key in ("k", "kq", "alpha")}
        return parse_method(name + "".join(f":{key}={value}" for key, value in same.items()))
    method = parse_method(name)
    if method.reranking is None and name not in TUNED_EXPANSIONS:
        return method
    return tuning.tune(bench, method)[0].method


class Ready:
    """Expanders bound to one benchmark, each made ready once for all re-rankers behind it."""

    def __init__(self, data: Benchmark) -> None:
        self.data = data
        self._made: dict[str, tuple[Expander, float]] = {}

    def expander(self, method: Method) -> tuple[Expander, float]:
        """The expander of a method, and the seconds it took to work out what its expansion needs."""
        expansion = method.replace(reranking=None)
        if str(expansion) not in self._made:
            made = from_method(expansion).fit(self.data.database)
            started = time.perf_counter()
            made.search(self.data.queries[:1], RESULTS, dba=method.dba)
            self._made = {str(expansion): (made, time.perf_counter() - started)}
        made, seconds = self._made[str(expansion)]
        return made.with_reranker(method.reranking), seconds


def quality(ready: Ready, method: Method) -> dict[str, float]:
    """MAP in percent."""
    data = ready.data
    found = ready.expander(method)[0].search(data.queries, len(data.database), dba=method.dba)
    return {"map": round(evaluate(found.ids, data.ground_truth).main, 2)}


def costs(ready: Ready, method: Method) -> dict[str, float]:
    """Seconds to build, milliseconds a query in one batch (the best of a few runs), bytes an item."""
    queries = ready.data.queries
    expander, built = ready.expander(method)
    if method.reranking is not None:
        started = time.perf_counter()
        expander.search(queries[:1], RESULTS, dba=method.dba)
        built += time.perf_counter() - started
    asked = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        expander.search(queries, RESULTS, dba=method.dba)
        asked.append(time.perf_counter() - started)
    return {
        "build_s": round(built, 2),
        "query_ms": round(1000 * min(asked) / len(queries), 3),
        "bytes": round(kept(expander, method)),
    }


def kept(expander: Expander, method: Method) -> float:
    """Bytes an item: float32 embeddings of all levels that are read, neighbour lists, the re-ranker's own."""
    n, dim = expander.hierarchy.database.shape
    stack = expander.stack
    tables = len(stack) + method.dba
    graph_k = max([level.graph_k for level in stack] if len(stack) > 1 or method.dba else [0])
    own = 0.0
    if method.reranking is not None:
        reranker = expander.reranker(method.dba)
        graph_k, own = max(graph_k, reranker.graph_k), reranker.size() / n
    return 4 * dim * tables + 8 * graph_k + own


def page(known: dict[str, Any], figures: Path) -> str:
    """The document."""
    columns = [(kind, file) for kind, files in FILES.items() for file in files]
    lines = [
        "# Expansion, re-ranking, and both",
        "",
        "Written by `scripts/graph_methods.py`. mAP in percent; settings are chosen on the val file of each",
        "kind. Times are those of image/test-signs (14,400 × 256, 600 queries in one batch) on two cores;",
        "bytes an item count float32 embeddings, neighbour lists and what the method keeps. `gqe` is the",
        "paper's encoder with two levels, trained on image/train; `dba-only-` leaves queries as they are.",
        "",
        "| | " + " | ".join([*(f"{kind}/{file}" for kind, file in columns), *COSTS]) + " |",
        "|" + " --- |" * (len(columns) + 4),
    ]
    every = list(dict.fromkeys([*known["image"], *known["text"]]))
    best = {(k, f): max(entry[f]["map"] for entry in known[k].values()) for k, f in columns}
    for name in every:
        cells = [_cell(known[kind].get(name, {}).get(file), best[kind, file]) for kind, file in columns]
        signs = known["image"][name]["test-signs"]
        cells += [f"{signs['build_s']:.1f}", f"{signs['query_ms']:.2f}", f"{signs['bytes']:,}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", *summary(known, columns)]
    lines += ["", "Settings that were chosen:", ""]
    for kind in FILES:
        told = [f"`{Path(entry['chosen']).name}`" for entry in known[kind].values() if ":" in entry["chosen"]]
        lines += [f"- {kind}: " + ", ".join(told), ""]
    for kind, file in columns:
        cost = {name: (entry[file]["query_ms"], entry[file]["map"]) for name, entry in known[kind].items()}
        figure = f"frontier-{kind}-{file}.svg"
        edge = frontier(cost)
        (figures / figure).write_text(quality_and_cost(cost, edge), encoding="utf-8")
        told = [f"{name} ({cost[name][1]:.1f} at {cost[name][0]:.2g} ms)" for name in edge]
        lines += [f"## Quality and cost: {kind}/{file}", ""]
        lines += [f"None is both faster and better than: {', '.join(told)}.", ""]
        lines += [f"![mAP against time a query]({figures.name}/{figure})", ""]
    return "\n".join(lines)


def summary(known: dict[str, Any], columns: list[tuple[str, str]]) -> list[str]:
    """Who is best, with and without the models of this package, and where those alone are on the frontier."""
    lines = [
        "## In short",
        "",
        "| | best | best without our models | our models without a re-ranker | of those, on the frontier |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind, file in columns:
        found = {name: entry[file]["map"] for name, entry in known[kind].items()}
        edge = frontier(
            {n: (entry[file]["query_ms"], entry[file]["map"]) for n, entry in known[kind].items()}
        )
        own = [name for name in found if is_ours(name)]
        alone = [name for name in own if "+" not in name]
        peers = [name for name in found if name not in own]
        tops = [max(group, key=lambda name: found[name]) for group in (found, peers, alone)]
        cells = [f"{name} {found[name]:.1f}" for name in tops]
        cells.append(", ".join(name for name in edge if name in alone) or "none")
        lines.append(f"| {kind}/{file} | " + " | ".join(cells) + " |")
    for kind in FILES:
        best = max(known[kind].values(), key=lambda entry: entry["val"]["map"])
        lines += ["", f"Best on {kind}/val, and so our advice for such data: `{Path(best['chosen']).name}`."]
    return lines


def is_ours(name: str) -> bool:
    """Whether a model of this package takes part; csa is a peer's."""
    expansion = name.partition("+")[0]
    return expansion not in ("none", *TUNED_EXPANSIONS)


def _cell(value: dict[str, float] | None, best: float) -> str:
    if value is None:
        return ""
    return f"**{value['map']:.1f}**" if value["map"] == best else f"{value['map']:.1f}"


def frontier(costs: dict[str, tuple[float, float]]) -> list[str]:
    """Methods that no other one beats in both time and mAP, fastest first."""
    result: list[str] = []
    for name in sorted(costs, key=lambda each: (costs[each][0], -costs[each][1])):
        if not result or costs[name][1] > costs[result[-1]][1]:
            result.append(name)
    return result


def save(path: Path, known: dict[str, Any]) -> None:
    """Keep what was measured."""
    with atomic_path(path) as draft:
        draft.write_text(json.dumps(known, indent=1), encoding="utf-8")


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    try:
        main()
    except InputError as error:
        sys.exit(f"graph_methods: {error}")
