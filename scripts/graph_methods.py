"""Write docs/graph-methods.md: expansion, re-ranking and both together, with what each costs.

    python scripts/graph_methods.py BENCHMARKS -o docs/graph-methods.md

BENCHMARKS is the folder that scripts/results.py reads. All settings are chosen on the val file of each kind:
those of a re-ranker anew behind every expansion. Offline, spectral and hybrid diffusion are faster ways to
what diffusion computes and take its settings. A run that was stopped goes on where it was.
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
from gqe.formats.atomic import replacing
from gqe.methods import Method, parse_method
from gqe.models import Expander, from_method

FILES = {"image": ("val", "test-signs", "test-fruits"), "text": ("val", "test-intents")}
EXPANSIONS = ("none", "aqe", "aqe-g", "universal", "dba-universal")
BEFORE_RERANKERS = ("none", "universal", "dba-universal")
RERANKERS = ("diffusion", "egt", "reciprocal", "superglobal")
FASTER = ("offline-diffusion", "spectral", "hybrid-diffusion")
COSTS = ("build s", "ms a query", "bytes an item")
RESULTS = 100


def main() -> None:
    """Read the command line, measure what is not measured yet, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmarks", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/graph-methods.md"))
    parser.add_argument("--measured", type=Path, default=Path("graph-methods.json"), help="to go on from")
    options = parser.parse_args()
    known = json.loads(options.measured.read_text()) if options.measured.exists() else {}
    for kind, files in FILES.items():
        data = {name: load_npz(options.benchmarks / kind / f"{name}.npz") for name in files}
        bench = Bench(data["val"])
        for name in names():
            entry = known.setdefault(kind, {}).setdefault(name, {})
            if "chosen" not in entry:
                entry["chosen"] = str(chosen(bench, name, known[kind]))
                save(options.measured, known)
            for file in files:
                if file not in entry:
                    entry[file] = measured(data[file], parse_method(entry["chosen"]))
                    save(options.measured, known)
                    print(f"{kind}/{file} {entry['chosen']}: {entry[file]}", flush=True)
    with replacing(options.output) as path:
        path.write_text(page(known, options.output.parent / "figures"), encoding="utf-8")


def names() -> list[str]:
    """All rows of the table."""
    combined = [f"{first}+{then}" for then in RERANKERS for first in BEFORE_RERANKERS]
    return [*EXPANSIONS, *combined, *(f"{first}+{then}" for then in FASTER for first in BEFORE_RERANKERS[:2])]


def chosen(bench: Bench, name: str, known: dict[str, Any]) -> Method:
    """A method with its settings chosen on validation data."""
    first, _, then = name.partition("+")
    if then in FASTER:
        exact = parse_method(known[f"{first}+diffusion"]["chosen"]).then
        assert exact is not None
        same = {key: exact.settings[key] for key in ("k", "kq", "alpha")}
        return parse_method(name + "".join(f":{key}={value}" for key, value in same.items()))
    method = parse_method(name)
    if method.then is None and first in ("none", "universal", "dba-universal"):
        return method
    return tuning.tune(bench, method)[0].method


def measured(data: Benchmark, method: Method) -> dict[str, float]:
    """mAP, seconds to build, milliseconds a query in one batch, bytes an item."""
    expander = from_method(method).fit(data.database)
    started = time.perf_counter()
    expander.search(data.queries[:1], RESULTS, dba=method.dba)
    built = time.perf_counter()
    expander.search(data.queries, RESULTS, dba=method.dba)
    asked = time.perf_counter() - built
    found = expander.search(data.queries, len(data.database), dba=method.dba)
    return {
        "map": round(evaluate(found.ids, data.ground_truth).main, 2),
        "build_s": round(built - started, 2),
        "query_ms": round(1000 * asked / len(data.queries), 3),
        "bytes": round(kept(expander, method)),
    }


def kept(expander: Expander, method: Method) -> float:
    """Bytes an item: float32 embeddings of all levels that are read, neighbour lists, the re-ranker's own."""
    n, dim = expander.hierarchy.database.shape
    stack = expander.stack
    tables = len(stack) + method.dba
    reach = max([level.reach for level in stack] if len(stack) > 1 or method.dba else [0])
    own = 0.0
    if method.then is not None:
        reranker = expander.reranker(method.dba)
        reach, own = max(reach, reranker.reach), reranker.size() / n
    return 4 * dim * tables + 8 * reach + own


def page(known: dict[str, Any], figures: Path) -> str:
    """The document."""
    columns = [(kind, file) for kind, files in FILES.items() for file in files]
    lines = [
        "# Expansion, re-ranking, and both",
        "",
        "Written by `scripts/graph_methods.py`. mAP in percent; settings are chosen on the val file of each",
        "kind. Times are those of image/test-signs (14,400 × 256, 600 queries in one batch) on two cores;",
        "bytes an item count float32 embeddings, neighbour lists and what the method keeps.",
        "",
        "| | " + " | ".join([*(f"{kind}/{file}" for kind, file in columns), *COSTS]) + " |",
        "|" + " --- |" * (len(columns) + 4),
    ]
    for name in names():
        values = [known[kind][name][file] for kind, file in columns]
        signs = known["image"][name]["test-signs"]
        cells = [f"{value['map']:.1f}" for value in values]
        cells += [f"{signs['build_s']:.1f}", f"{signs['query_ms']:.2f}", f"{signs['bytes']:,}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "Settings that were chosen:", ""]
    for kind in FILES:
        lines += [f"- {kind}: " + ", ".join(f"`{known[kind][name]['chosen']}`" for name in names()), ""]
    for kind, file in columns:
        points = {name: known[kind][name][file] for name in names()}
        costs = {name: (value["query_ms"], value["map"]) for name, value in points.items()}
        figure = f"frontier-{kind}-{file}.svg"
        best = frontier(costs)
        (figures / figure).write_text(quality_and_cost(costs, best), encoding="utf-8")
        told = ", ".join(f"{name} ({costs[name][1]:.1f})" for name in best)
        lines += [f"## Quality and cost: {kind}/{file}", "", f"None is both faster and better: {told}.", ""]
        lines += [f"![mAP against time a query]({figures.name}/{figure})", ""]
    return "\n".join(lines)


def frontier(costs: dict[str, tuple[float, float]]) -> list[str]:
    """Methods that no other one beats in both time and mAP, fastest first."""
    result: list[str] = []
    for name in sorted(costs, key=lambda each: (costs[each][0], -costs[each][1])):
        if not result or costs[name][1] > costs[result[-1]][1]:
            result.append(name)
    return result


def save(path: Path, known: dict[str, Any]) -> None:
    """Keep what was measured."""
    with replacing(path) as draft:
        draft.write_text(json.dumps(known, indent=1), encoding="utf-8")


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    try:
        main()
    except InputError as error:
        sys.exit(f"graph_methods: {error}")
