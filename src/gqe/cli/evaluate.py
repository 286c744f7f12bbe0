"""`gqe evaluate`: methods side by side on a benchmark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gqe.cli.common import (
    DatabaseKey,
    Device,
    Json,
    QueriesKey,
    Recall,
    Seed,
    app,
    output_file,
    parse_numbers,
    print_json,
    print_table,
    write_csv,
)
from gqe.errors import InputError
from gqe.progress import progress_bar

if TYPE_CHECKING:
    from gqe.evaluation import Evaluation
    from gqe.evaluation.benchmark import MethodResult

METHODS = "none,aqe:k=6,aqewd:k=8,alpha:k=8:alpha=3,dqe,aqe-g:k=4,alpha-g:k=6"


@app.command(
    epilog="Examples: gqe evaluate town --methods none,aqe:k=4/6/8 --quality\n\n"
    "gqe evaluate val.npz --methods none,dba-alpha:k=8 --json\n\n"
    "gqe evaluate rparis6k@queries.npy,database.npy+r1m@parts --methods none,universal\n\n"
    "gqe evaluate --database D.fvecs --queries Q.npy --ground-truth gnd_roxford5k.pkl\n\n"
    "gqe evaluate --database D.npy --queries Q.npy --ground-truth beir/scifact --compare ndcg@10\n\n"
    "gqe evaluate --run bm25.run --run mine.run --ground-truth test.qrels --compare ndcg@10"
)
def evaluate(
    benchmark: Annotated[
        str | None,
        Argument(
            help="A data set (see `gqe data list`), an official one with your own descriptors as NAME@FILE,"
            " such as roxford5k@gem.mat, or an .npz file with queries, query_labels, database and"
            " database_labels (label -1 is a distractor)."
        ),
    ] = None,
    database: Annotated[Path | None, Option(help="Own files: the database vectors.")] = None,
    queries: Annotated[Path | None, Option(help="Own files: the query vectors.")] = None,
    ground_truth: Annotated[
        Path | None, Option(help="Own files: gnd_*.pkl, JSON, TREC qrels or the folder of a BEIR data set.")
    ] = None,
    database_ids: Annotated[
        Path | None,
        Option(help="With qrels: the id of each database vector, one per line; of BEIR in corpus.jsonl."),
    ] = None,
    query_ids: Annotated[
        Path | None, Option(help="With qrels: the id of each query; of BEIR in queries.jsonl.")
    ] = None,
    run: Annotated[
        list[Path] | None,
        Option(help="Instead of vectors: a TREC run, evaluated by --ground-truth; may be repeated."),
    ] = None,
    database_key: DatabaseKey = None,
    queries_key: QueriesKey = None,
    methods: Annotated[str, Option(help="Methods, such as none,aqe:k=4/8,dba-alpha:k=8.")] = METHODS,
    k: Annotated[str | None, Option(help="K values for every method, such as 2,4,8,16.")] = None,
    ks: Annotated[str, Option(help="List lengths of nDCG@k, mP@k and so on.")] = "1,5,10",
    compare: Annotated[
        str | None,
        Option(
            metavar="METRIC",
            help="Test each method against the first, by resampling the queries: map, ndcg@10...",
        ),
    ] = None,
    quality: Annotated[bool, Option("--quality", help="Also measure Agreement and Diversity.")] = False,
    csv: Annotated[Path | None, Option(help="Also write the table to this CSV file.")] = None,
    recall: Recall = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Compare methods on a benchmark: mAP (in percent), nDCG@k, MRR, mP@k, Agreement and Diversity."""
    from gqe import datasets
    from gqe.evaluation.benchmark import Bench
    from gqe.formats import read_vectors
    from gqe.methods import parse_methods

    if csv is not None:
        output_file(csv)
    cutoffs = parse_numbers("--ks", ks, int)
    if run:
        others = (benchmark, database, queries, k, database_key, queries_key, database_ids, query_ids, recall)
        if any(other is not None for other in others) or methods != METHODS or quality:
            raise InputError("--run: a run is a finished search; give --ground-truth and --compare only")
        if ground_truth is None:
            raise InputError("--run: give --ground-truth, TREC qrels or the folder of a BEIR data set")
        _evaluate_runs(run, ground_truth, cutoffs, compare, csv, as_json)
        return
    chosen = parse_methods(methods)
    if k is not None:
        swept = {
            str(swept): swept
            for each in chosen
            for value in parse_numbers("--k", k, int)
            if (swept := each.with_settings(k=value))
        }
        chosen = list(swept.values())  # a method without K stands there once
    if benchmark is not None:
        if any((database, queries, ground_truth, database_key, queries_key, database_ids, query_ids)):
            raise InputError("benchmark: give either a benchmark or --database, --queries and --ground-truth")
        data = datasets.load(benchmark)
    else:
        if database is None or queries is None or ground_truth is None:
            raise InputError(
                "benchmark: name one (see `gqe data list`), or give --database, --queries and --ground-truth"
            )
        data = datasets.Benchmark(
            name=database.stem,
            queries=read_vectors(queries, key=queries_key),
            database=read_vectors(database, key=database_key),
            ground_truth=None,
            description=f"{database} with {ground_truth}",
        )
        sizes = len(data.database), len(data.queries)
        data = replace(data, ground_truth=_read_truth(ground_truth, (database_ids, query_ids), sizes))
    bench = Bench(data, device=device, recall=recall, seed=seed, ks=cutoffs)
    with progress_bar(data.name) as progress:
        outcomes = bench.compare(chosen, quality=quality, progress=progress)
    named = [(str(outcome.method), outcome.evaluation) for outcome in outcomes]
    comparisons = _compare(named, compare, seed)
    if csv is not None:
        write_csv(csv, [_flat(outcome.to_dict()) | {"settings": _settings(outcome)} for outcome in outcomes])
    if as_json:
        print_json(
            {"benchmark": data.name, "results": [outcome.to_dict() for outcome in outcomes]} | comparisons
        )
    else:
        columns, rows = table(outcomes)
        print_table(columns, rows, left=2)
        _print_comparisons(comparisons)


def _read_truth(path: Path, files: tuple[Path | None, Path | None], sizes: tuple[int, int]) -> Any:
    """The ground truth of a file, with the ids that its database and query vectors have there."""
    from gqe.evaluation import JudgedGroundTruth
    from gqe.formats import read_ground_truth, read_qrels
    from gqe.formats.trec import beir_names, read_names

    if path.suffix.lower() in (".pkl", ".pickle", ".json", ".mat"):
        if files != (None, None):
            raise InputError("--database-ids, --query-ids: are for qrels; leave them out")
        return read_ground_truth(path)
    qrels = read_qrels(path)
    used = {item for items in qrels.values() for item in items}, set(qrels)
    beir = beir_names(path) or (None, None)
    options = ("--database-ids", "--query-ids")
    names = []
    for option, file, known, size, there in zip(options, files, beir, sizes, used, strict=True):
        ids = known if file is None else read_names(file)
        if ids is None:
            ids = [str(row) for row in range(size)]
            unknown = sorted(there - set(ids))
            if unknown:
                raise InputError(
                    f"{option}: {path} has {unknown[0]!r}, which is no row number; give the id of each vector"
                )
        if len(ids) != size:
            raise InputError(f"{option}: {len(ids)} ids for {size} vectors; give one for each, in order")
        names.append(ids)
    return JudgedGroundTruth(qrels, database_ids=names[0], query_ids=names[1])


def _evaluate_runs(
    paths: list[Path], ground_truth: Path, ks: list[int], metric: str | None, csv: Path | None, as_json: bool
) -> None:
    from gqe.evaluation import as_ground_truth
    from gqe.evaluation import evaluate as evaluate_run

    truth = as_ground_truth(ground_truth)
    named = [(str(path), evaluate_run(path, truth, ks=ks)) for path in paths]
    results = [{"run": name} | evaluation.to_dict() for name, evaluation in named]
    comparisons = _compare(named, metric, 0)
    if csv is not None:
        write_csv(csv, [_flat(result) for result in results])
    if as_json:
        print_json({"ground_truth": str(ground_truth), "results": results} | comparisons)
        return
    shown = _columns(_flat(results[0]))
    rows = [
        [str(result["run"]), *(_format(name, _flat(result)[name]) for name in shown)] for result in results
    ]
    print_table(["run", *shown.values()], rows)
    _print_comparisons(comparisons)


def _compare(named: list[tuple[str, Evaluation]], metric: str | None, seed: int) -> dict[str, Any]:
    """Each method tested against the first; nothing if no metric is named."""
    from gqe.evaluation.comparison import compare

    if metric is None:
        return {}
    if len(named) < 2:
        raise InputError("--compare: there is one method only; give two or more")
    (first, before), *others = named
    return {
        "comparisons": [
            {"first": first, "second": name, **_renamed(compare(before, after, metric, seed=seed).to_dict())}
            for name, after in others
        ]
    }


def _renamed(comparison: dict[str, Any]) -> dict[str, Any]:
    return {{"first": "first_mean", "second": "second_mean"}.get(k, k): v for k, v in comparison.items()}


def _print_comparisons(found: dict[str, Any]) -> None:
    comparisons = found.get("comparisons", [])
    if not comparisons:
        return
    rows = [
        [
            each["second"],
            f"{each['second_mean']:.1f}",
            f"{each['difference']:+.1f}",
            f"{each['low']:+.1f} to {each['high']:+.1f}",
            f"{each['p']:.4f}",
            "yes" if each["significant"] else "no",
        ]
        for each in comparisons
    ]
    one = comparisons[0]
    typer.echo(
        f"\n{one['metric']} against {one['first']} ({one['first_mean']:.1f}), {one['queries']} queries:"
    )
    print_table(["method", "mean", "difference", "95% interval", "p", "p < 0.05"], rows)


def table(outcomes: list[MethodResult]) -> tuple[list[str], list[list[str]]]:
    """Column names and rows of text: the numbers one looks at first; --csv and --json hold all."""
    flat = [_flat(outcome.to_dict()) for outcome in outcomes]
    shown = _columns(flat[0])
    rows = [
        [outcome.method.title, _settings(outcome), *(_format(name, numbers[name]) for name in shown)]
        for outcome, numbers in zip(outcomes, flat, strict=True)
    ]
    return ["method", "settings", *shown.values()], rows


def _columns(flat: dict[str, Any]) -> dict[str, str]:
    """Names and titles of the numbers that are shown."""
    last = max((int(name.partition("@")[2].split()[0]) for name in flat if "@" in name), default=10)
    judged = not any(name.startswith("mp@") for name in flat)
    columns = {
        "map": "mAP",
        "map easy": "Easy",
        "map medium": "Medium",
        "map hard": "Hard",
        "mp@1": "mP@1",
        "mp@1 medium": "mP@1",
        f"mp@{last}": f"mP@{last}",
        f"mp@{last} medium": f"mP@{last}",
    }
    if judged:
        columns |= {"ndcg@10": "nDCG@10", f"ndcg@{last}": f"nDCG@{last}", "mrr": "MRR"}
        columns |= {f"p@{last}": f"P@{last}", f"recall@{last}": f"recall@{last}"}
    columns |= {name: name for name in ("agreement", "diversity", "seconds")}
    return {name: title for name, title in columns.items() if name in flat}


def _settings(outcome: MethodResult) -> str:
    method = outcome.method
    changed = {} if method.reranking is None else method.reranking.changed_settings
    reranking = ["+", *(f"{key}={value}" for key, value in changed.items())] if changed else []
    return " ".join([*(f"{key}={value}" for key, value in method.active_settings.items()), *reranking])


def _format(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if name in ("agreement", "diversity", "seconds") else f"{value:.1f}"


def _flat(result: dict[str, Any]) -> dict[str, Any]:
    """{"map": {"easy": 1}} becomes {"map easy": 1}."""
    flat: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, dict) and name != "settings":
            flat |= {f"{name} {part}": number for part, number in value.items()}
        else:
            flat[name] = value
    return flat
