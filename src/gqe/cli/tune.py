"""`gqe tune`: settings chosen on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gqe.cli.common import Device, Json, Recall, Seed, print_json, print_table, progress_bar
from gqe.errors import InputError

if TYPE_CHECKING:
    from gqe.evaluation.benchmark import Bench
    from gqe.methods import Method


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(
        "tune",
        epilog="Examples: gqe tune alpha-g --val town-val\n\ngqe tune dba-aqe --val val.npz --json\n\n"
        "gqe tune universal+reciprocal --val val.npz\n\ngqe tune MODEL_FOLDER --val val.npz",
    )(tune)


def tune(
    method: Annotated[
        str,
        typer.Argument(
            help="A hand-crafted method (its K, α... are chosen), an expansion with a re-ranker (the settings"
            " of the re-ranker are), or the folder of a trained model (K and the temperatures of its database"
            " side are chosen and stored with it)."
        ),
    ],
    val: Annotated[
        str, typer.Option("--val", help="Validation benchmark: a built-in data set or an .npz file.")
    ],
    top: Annotated[int, typer.Option(min=1, help="How many of the best settings to show.")] = 5,
    recall: Recall = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Choose settings on validation data alone."""
    from gqe import datasets
    from gqe.evaluation import tuning
    from gqe.evaluation.benchmark import Bench
    from gqe.methods import METHODS, parse_method

    chosen = parse_method(method)
    bench = Bench(datasets.load(val), device=device, recall=recall, seed=seed)
    if chosen.name not in METHODS and chosen.then is None:
        _tune_model(bench, chosen, val, top, as_json)
        return
    with progress_bar(str(chosen)) as progress:
        outcomes = tuning.tune(bench, chosen, progress=progress)
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
    return method.given if method.then is None else method.then.settings


def _tune_model(bench: Bench, chosen: Method, val: str, top: int, as_json: bool) -> None:
    from gqe.evaluation.tuning import tune_database_side
    from gqe.methods import PRETRAINED, model_folder
    from gqe.model_files import load_model, save_model

    folder = model_folder(chosen.name)
    if folder is None or PRETRAINED in folder.parents:
        raise InputError(
            f"method: {chosen.name!r} ships with the package; save it to a folder of your own first"
        )
    with progress_bar(chosen.name) as progress:
        side = tune_database_side(bench, chosen, progress=progress)
    model = load_model(folder)
    settings = {"k": side.k, "temperatures": side.temperatures, "validation": Path(val).name, "map": side.map}
    save_model(folder, model._replace(about=model.about | {"dba": settings}))
    if as_json:
        print_json({"model": str(folder), "dba": settings, "tried": side.tried})
        return
    rows = sorted(side.tried, key=lambda row: -row["map"])[:top]
    print_table(
        ["K_DBA", "temperatures", "mAP"],
        [[str(r["k"]), str(r["temperatures"]), f"{r['map']:.2f}"] for r in rows],
        left=2,
    )
    typer.echo(f"stored the best in {folder}")
