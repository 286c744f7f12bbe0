"""`gqe tune`: settings chosen on validation data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gqe.cli.common import Cluster, Device, Json, Recall, Seed, app, print_json, print_table
from gqe.errors import InputError
from gqe.progress import progress_bar

if TYPE_CHECKING:
    from gqe.datasets.base import Benchmark
    from gqe.methods import Method


@app.command(
    epilog="Examples: gqe tune alpha-g --val town-val\n\ngqe tune dba-aqe --val val.npz --json\n\n"
    "gqe tune universal+reciprocal --val val.npz\n\ngqe tune MODEL_FOLDER --val val.npz"
)
def tune(
    method: Annotated[
        str,
        Argument(
            help="A hand-crafted method (its K, α... are chosen), an expansion with a re-ranker (the settings"
            " of the re-ranker are), or the folder of a trained model (the contrast of its queries, then"
            " K and the temperatures of its database side are chosen and stored with it)."
        ),
    ],
    val: Annotated[
        str, Option("--val", help="Validation benchmark: .npz file, data set, or rsfm120k-val@FILE.")
    ],
    top: Annotated[int, Option(min=1, help="How many of the best settings to show.")] = 5,
    recall: Recall = None,
    cluster: Cluster = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Choose settings on validation data alone."""
    from gqe import datasets
    from gqe.evaluation import tuning
    from gqe.evaluation.benchmark import Bench
    from gqe.methods import METHODS, parse_method

    if cluster is not None:
        from gqe.cluster.session import ray_module

        ray_module()  # says at once if it is not there
    chosen = parse_method(method)
    benchmark = datasets.load(val)
    arguments: dict[str, Any] = {"device": device, "recall": recall, "seed": seed}
    if chosen.name not in METHODS and chosen.reranking is None:
        _tune_model(benchmark, chosen, val, top, as_json, cluster, arguments)
        return
    with progress_bar(str(chosen)) as progress:
        if cluster is None:
            outcomes = tuning.tune(Bench(benchmark, **arguments), chosen, progress=progress)
        else:
            from gqe.cluster.tuning import tune_on_cluster

            outcomes = tune_on_cluster(benchmark, chosen, cluster=cluster, **arguments, progress=progress)
    best = outcomes[0]
    if as_json:
        tried = [{"settings": _settings(o.method), "map": o.evaluation.main} for o in outcomes]
        print_json(
            {"method": best.method.title, "settings": _settings(best.method), "validation": val}
            | {"tried": tried}
        )
        return
    print_table(["method", "mAP"], [[str(o.method), f"{o.evaluation.main:.2f}"] for o in outcomes[:top]])


def _settings(method: Method) -> dict[str, Any]:
    """What was chosen: the settings of the re-ranker if there is one, of the expansion otherwise."""
    return method.active_settings if method.reranking is None else method.reranking.settings


def _tune_model(
    benchmark: Benchmark,
    chosen: Method,
    val: str,
    top: int,
    as_json: bool,
    cluster: str | None,
    arguments: dict[str, Any],
) -> None:
    from gqe.evaluation.benchmark import Bench
    from gqe.evaluation.tuning import best_contrast, tune_database_side
    from gqe.methods import PRETRAINED, model_folder
    from gqe.model_files import load_model, save_model

    folder = model_folder(chosen.name)
    if folder is None or PRETRAINED in folder.parents:
        raise InputError(
            f"method: {chosen.name!r} ships with the package and stays as it is; save a copy by gqe.Expander"
            f".from_pretrained({chosen.name!r}).save_pretrained('my-{chosen.name}') in Python and tune"
            f" my-{chosen.name}, or tune a re-ranker behind it, as in {chosen.name}+reciprocal"
        )
    bench = Bench(benchmark, **arguments)
    contrast, tried = best_contrast([bench], chosen.stack())
    chosen = chosen.with_settings(contrast=contrast)
    with progress_bar(chosen.name) as progress:
        if cluster is None:
            side = tune_database_side(bench, chosen, progress=progress)
        else:
            from gqe.cluster.tuning import tune_database_side_on_cluster

            side = tune_database_side_on_cluster(
                benchmark, chosen, cluster=cluster, **arguments, progress=progress
            )
    model = load_model(folder)
    settings = {"k": side.k, "temperatures": side.temperatures, "validation": Path(val).name, "map": side.map}
    options = replace(model.query_options, contrast=contrast)
    save_model(folder, model._replace(about=model.about | {"dba": settings}, query_options=options))
    if as_json:
        print_json({"model": str(folder), "contrast": contrast, "dba": settings, "tried": side.tried})
        return
    print_table(["contrast", "mAP"], [[f"{c:g}", f"{reached:.2f}"] for c, reached in tried.items()])
    rows = sorted(side.tried, key=lambda row: -row["map"])[:top]
    print_table(
        ["K_DBA", "temperatures", "mAP"],
        [[str(r["k"]), str(r["temperatures"]), f"{r['map']:.2f}"] for r in rows],
        left=2,
    )
    typer.echo(f"stored the best in {folder}")
