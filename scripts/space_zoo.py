r"""Write docs/spaces.md: every method in many embedding spaces, none tuned on the space it is judged in.

    python scripts/space_zoo.py BENCHMARKS -o docs/spaces.md --jobs 2

BENCHMARKS is a folder with image/test-{signs,fruits}.npz, text/test-intents.npz, spaces/NAME-NETWORK.npz
(files of `gqe.datasets.load_npz`; NAME is the kind of data) and roxford5k/{resnet50.npz,gnd_roxford5k.pkl};
what is absent is left out. Gaussian clusters are added. Outcomes are kept in --cache: a stopped run goes on.

A hand-crafted method stands twice in the tables: "fixed" with the one setting that has the best mean over all
spaces of *other* kinds, "best" with the setting that is best on the space itself,
an advantage that no user has.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gqe.datasets import Benchmark, load_npz
from gqe.errors import InputError
from gqe.evaluation import evaluate
from gqe.evaluation.benchmark import Bench
from gqe.formats import read_ground_truth
from gqe.formats.atomic import atomic_path
from gqe.methods import parse_method, parse_methods
from gqe.neighbors import knn
from gqe.training.validation import limit_relevant

QE = (
    "aqe:k=2/4/8/16/32,aqewd:k=4/8/16/32,alpha:k=4/8/16/32:alpha=1/3,"
    "aqe-g:k=2/4/8/16/32,alpha-g:k=4/8/16/32:alpha=1/3"
)
DBA = (
    "dba-aqe:k=2/4/8/16/32,dba-alpha:k=4/8/16/32:alpha=1/3,"
    "dba-aqe-g:k=2/4/8/16,dba-alpha-g:k=4/8/16/32:alpha=1/3"
)
AS_THEY_ARE = {
    "none": "none",
    "jaccard": "jaccard",
    "untrained": "universal:untrained=1",
    "universal": "universal",
    "DBA jaccard": "dba-jaccard",
    "DBA untrained": "dba-universal:untrained=1",
    "DBA universal": "dba-universal",
    "k-reciprocal": "reciprocal",
}
# Relevant items left of each class, for the tables of queries that have few.
FEW = (1, 2)
ORACLE_K = 32
NOISES = (1.0, 1.5, 2.0, 2.5)

Outcomes = dict[str, dict[str, Any]]


def main() -> None:
    """Read the command line, measure, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmarks", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/spaces.md"))
    parser.add_argument("--cache", type=Path, default=Path("space-zoo"), help="folder for outcomes")
    parser.add_argument("--jobs", type=int, default=1, help="spaces measured at a time")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    names = list(spaces(options.benchmarks))
    if not names:
        raise InputError(f"{options.benchmarks}: has no benchmark files")
    work = partial(measured, options.benchmarks, cache=options.cache, device=options.device)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        outcomes = dict(zip(names, pool.map(work, names), strict=True))
    with atomic_path(options.output) as beside:
        beside.write_text("\n".join(report(outcomes)) + "\n", encoding="utf-8")


def spaces(folder: Path) -> dict[str, Path | float]:
    """The spaces by name: a file, a folder, or the noise of Gaussian clusters."""
    found: dict[str, Path | float] = {}
    for file in ("image/test-signs", "image/test-fruits", "text/test-intents"):
        if (folder / f"{file}.npz").is_file():
            found[file.partition("test-")[2]] = folder / f"{file}.npz"
    found |= {path.stem: path for path in sorted((folder / "spaces").glob("*.npz"))}
    if (folder / "roxford5k/resnet50.npz").is_file():
        found["roxford-resnet50"] = folder / "roxford5k"
    return found | {f"clusters-{noise}": noise for noise in NOISES} if found else {}


def load(name: str, place: Path | float) -> Benchmark:
    """The benchmark of a space."""
    if isinstance(place, float):
        return clusters(place)
    if place.is_dir():
        with np.load(place / "resnet50.npz") as file:
            queries, database = (_unit(file[key].astype(np.float32)) for key in ("queries", "database"))
        return Benchmark(name, queries, database, read_ground_truth(place / "gnd_roxford5k.pkl"))
    return load_npz(place)


def clusters(noise: float, *, classes: int = 1000, size: int = 15, dim: int = 256) -> Benchmark:
    """Gaussian clusters on a sphere, 5,000 strangers among them."""
    rng = np.random.default_rng(0)
    centres = _unit(rng.normal(size=(classes, dim)))

    def drawn(labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return _unit(centres[labels] + noise * rng.normal(size=(len(labels), dim)) / dim**0.5)

    labels, asked = np.repeat(np.arange(classes), size), rng.integers(0, classes, 400)
    queries, items, strangers = drawn(asked), drawn(labels), _unit(rng.normal(size=(5000, dim)))
    truth = {"query_labels": asked, "database_labels": np.concatenate([labels, np.full(5000, -1)])}
    return Benchmark(f"clusters-{noise}", queries, np.concatenate([items, strangers]), truth)


def measured(folder: Path, name: str, *, cache: Path, device: str) -> dict[str, Any]:
    """MAP of every method in a space (Medium and Hard of ROxford), read from the cache where it is known."""
    torch.set_num_threads(1)
    file = cache / f"{name}.json"
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    benchmark = load(name, spaces(folder)[name])
    bench = Bench(benchmark, device=device)
    wanted = [str(each) for each in parse_methods(f"{QE},{DBA}")] + list(AS_THEY_ARE.values())
    for text in wanted:
        if text not in known:
            judged = bench.run(parse_method(text)).evaluation
            known[text] = [round(value, 2) for value in _maps(judged)]
    if isinstance(benchmark.ground_truth, dict) and "database_labels" in benchmark.ground_truth:
        if "oracle" not in known:
            known["oracle"] = oracle(bench, benchmark.ground_truth)
        for few in FEW:
            thin = Bench(limit_relevant(benchmark, few), device=device)
            for text in ("none", "jaccard", "universal", "dba-universal"):
                if f"{text}@{few}" not in known:
                    known[f"{text}@{few}"] = [round(thin.run(parse_method(text)).evaluation.main, 2)]
    with atomic_path(file) as beside:
        beside.write_text(json.dumps(known, indent=1), encoding="utf-8")
    print(name, {title: known[text] for title, text in AS_THEY_ARE.items()}, flush=True)
    return known


def oracle(bench: Bench, truth: dict[str, Any]) -> list[float]:
    """MAP with weight 1 for relevant neighbours and 0 for others, on two levels: queries, both sides."""
    labels, asked = (np.asarray(truth[key]) for key in ("database_labels", "query_labels"))
    table, queries = (_unit(x.float().cpu().numpy()) for x in (bench.database, bench.queries))
    graph = knn(bench.database, ORACLE_K, device=bench.device).ids
    near = knn(bench.database, ORACLE_K, queries=bench.queries, device=bench.device).ids

    def summed(nodes: Any, below: Any, ids: Any, own: Any) -> Any:
        weights = ((labels[ids] == own[:, None]) & (labels[ids] >= 0)).astype(np.float32)
        blocks = np.array_split(np.arange(len(nodes)), max(1, len(nodes) // 500))
        parts = [nodes[b] + np.einsum("nk,nkd->nd", weights[b], below[ids[b]]) for b in blocks]
        return _unit(np.concatenate(parts))

    first = summed(table, table, graph, labels)
    expanded = summed(summed(queries, table, near, asked), first, near, asked)
    augmented = summed(first, first, graph, labels)
    return [round(evaluate(expanded @ side.T, bench.truth).main, 2) for side in (table, augmented)]


def report(outcomes: Outcomes) -> list[str]:
    """The page."""
    return [
        "# Every method in many spaces",
        "",
        "Written by `scripts/space_zoo.py`. mAP in percent; Medium / Hard for ROxford. No method was tuned",
        'on the space it is judged in, except in the columns "best": there the setting is the best of the',
        'grid on that very space. "fixed" is one hand-crafted setting, the best on average over all spaces',
        f'of other kinds. "oracle" gives weight 1 to the relevant ones of {ORACLE_K} neighbours and 0 to the',
        "others, on two levels: what perfect weights would reach. What `universal` was trained on stands in",
        "its card; of the spaces here those are signs, fruits and intents (other classes of them).",
        "",
        "## Queries expanded",
        "",
        *table(outcomes, QE, "", ("jaccard", "untrained", "universal", "k-reciprocal"), 0),
        "",
        "## Queries expanded and the database augmented",
        "",
        *table(outcomes, DBA, "DBA ", ("DBA jaccard", "DBA untrained", "DBA universal"), 1),
        "",
        "## One or two relevant items",
        "",
        "Every class thinned out to one or two items: there is little to gain, and expansion may do harm.",
        "",
        *few_table(outcomes),
    ]


def table(outcomes: Outcomes, grid: str, title: str, shown: tuple[str, ...], side: int) -> list[str]:
    """One row per space: none, the hand-crafted methods fixed and best, and others as they are."""
    settings = [str(each) for each in parse_methods(grid)]
    head = ["space", "none", f"{title}fixed", f"{title}best", *shown, "oracle"]
    rows, columns = [], list[list[float]]()
    for name, known in outcomes.items():
        others = [each for other, each in outcomes.items() if _kind(other) != _kind(name)]
        fixed = max(settings, key=lambda text: float(np.mean([each[text][0] for each in others])))
        best = max(settings, key=lambda text: known[text][0])
        values = [known["none"], known[fixed], known[best], *(known[AS_THEY_ARE[each]] for each in shown)]
        perfect = [known["oracle"][side]] if "oracle" in known else []
        cells = [" / ".join(f"{value:.1f}" for value in each) for each in [*values, perfect]]
        rows.append([name, *cells[:2], f"{cells[2]} (`{best.removeprefix('dba-')}`)", *cells[3:]])
        columns.append([each[0] for each in values])
    means = [f"**{value:.1f}**" for value in np.mean(columns, axis=0)]
    rows.append(["**mean**", *means, ""])
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def few_table(outcomes: Outcomes) -> list[str]:
    """MAP where classes are thinned out."""
    methods = ("none", "jaccard", "universal", "dba-universal")
    head = ["space", *(f"{text}, {few} relevant" for few in FEW for text in methods)]
    rows = [
        [name, *(f"{known[f'{text}@{few}'][0]:.1f}" for few in FEW for text in methods)]
        for name, known in outcomes.items()
        if f"none@{FEW[0]}" in known
    ]
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _maps(judged: Any) -> list[float]:
    """The mAP, or those of the Medium and the Hard protocol."""
    return [judged.map["medium"], judged.map["hard"]] if isinstance(judged.map, dict) else [judged.map]


def _kind(name: str) -> str:
    return name.partition("-")[0]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _unit(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result: np.ndarray[Any, Any] = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    return result


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"space_zoo: {error}")
