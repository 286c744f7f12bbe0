"""`gqe evaluate`: methods side by side on a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    progress_bar,
    write_csv,
)
from gqe.errors import InputError

if TYPE_CHECKING:
    from gqe.evaluation.benchmark import MethodResult

METHODS = "none,aqe:k=6,aqewd:k=8,alpha:k=8:alpha=3,dqe,aqe-g:k=4,alpha-g:k=6"


@app.command(
    epilog="Examples: gqe evaluate town --methods none,aqe:k=4/6/8 --quality\n\n"
    "gqe evaluate val.npz --methods none,dba-alpha:k=8 --json\n\n"
    "gqe evaluate rparis6k@queries.npy,database.npy+r1m@parts --methods none,universal\n\n"
    "gqe evaluate --database D.fvecs --queries Q.npy --ground-truth gnd_roxford5k.pkl"
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
    ground_truth: Annotated[Path | None, Option(help="Own files: gnd_*.pkl or JSON.")] = None,
    database_key: DatabaseKey = None,
    queries_key: QueriesKey = None,
    methods: Annotated[str, Option(help="Methods, such as none,aqe:k=4/8,dba-alpha:k=8.")] = METHODS,
    k: Annotated[str | None, Option(help="K values for every method, such as 2,4,8,16.")] = None,
    quality: Annotated[bool, Option("--quality", help="Also measure Agreement and Diversity.")] = False,
    csv: Annotated[Path | None, Option(help="Also write the table to this CSV file.")] = None,
    recall: Recall = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Compare methods on a benchmark: mAP (in percent), mP@k, Agreement and Diversity."""
    from gqe import datasets
    from gqe.evaluation.benchmark import Bench
    from gqe.formats import read_ground_truth, read_vectors
    from gqe.methods import parse_methods

    if csv is not None:
        output_file(csv)
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
        if any((database, queries, ground_truth, database_key, queries_key)):
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
            ground_truth=read_ground_truth(ground_truth),
            description=f"{database} with {ground_truth}",
        )
    bench = Bench(data, device=device, recall=recall, seed=seed)
    with progress_bar(data.name) as progress:
        outcomes = bench.compare(chosen, quality=quality, progress=progress)
    if csv is not None:
        write_csv(csv, [_flat(outcome.to_dict()) | {"settings": _settings(outcome)} for outcome in outcomes])
    if as_json:
        print_json({"benchmark": data.name, "results": [outcome.to_dict() for outcome in outcomes]})
    else:
        columns, rows = table(outcomes)
        print_table(columns, rows, left=2)


def table(outcomes: list[MethodResult]) -> tuple[list[str], list[list[str]]]:
    """Column names and rows of text: the numbers one looks at first; --csv and --json hold all."""
    flat = [_flat(outcome.to_dict()) for outcome in outcomes]
    columns = {
        "map": "mAP",
        "map easy": "Easy",
        "map medium": "Medium",
        "map hard": "Hard",
        "mp@1": "mP@1",
        "mp@1 medium": "mP@1",
        "mp@10": "mP@10",
        "mp@10 medium": "mP@10",
        "agreement": "agreement",
        "diversity": "diversity",
        "seconds": "seconds",
    }
    shown = {name: title for name, title in columns.items() if name in flat[0]}
    rows = [
        [outcome.method.title, _settings(outcome), *(_format(name, numbers[name]) for name in shown)]
        for outcome, numbers in zip(outcomes, flat, strict=True)
    ]
    return ["method", "settings", *shown.values()], rows


def _settings(outcome: MethodResult) -> str:
    method = outcome.method
    changed = {} if method.reranking is None else method.reranking.changed_settings
    reranking = ["+", *(f"{key}={value}" for key, value in changed.items())] if changed else []
    return " ".join([*(f"{key}={value}" for key, value in method.active_settings.items()), *reranking])


def _format(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if name.startswith(("map", "mp")) else f"{value:.3f}"


def _flat(result: dict[str, Any]) -> dict[str, Any]:
    """{"map": {"easy": 1}} becomes {"map easy": 1}."""
    flat: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, dict) and name != "settings":
            flat |= {f"{name} {part}": number for part, number in value.items()}
        else:
            flat[name] = value
    return flat
