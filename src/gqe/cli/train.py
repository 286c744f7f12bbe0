"""`gqe train`: a model from labelled embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from gqe.cli.common import Device, Json, Seed, app, output_folder, print_result, write_csv
from gqe.errors import InputError

if TYPE_CHECKING:
    from gqe.datasets.base import TrainingSet
    from gqe.training.loop import TrainingResult
    from gqe.training.presets import PresetOptions


@app.command(
    epilog="Examples: gqe train town -o model --preset affinity --steps 200\n\n"
    "gqe train train.npz --val val.npz -o model; gqe evaluate val.npz --methods none,model,dba-model"
)
def train(
    data: Annotated[
        str,
        Argument(
            help="An .npz file with embeddings (n, d) and labels (n,), town, or rsfm120k-train with"
            " descriptors of your own as NAME@FILE: rsfm120k-train@sfm.pkl."
        ),
    ],
    output: Annotated[Path, Option("--output", "-o", help="Folder for the model.")],
    val: Annotated[
        list[str] | None,
        Option(
            "--val",
            help="Validation benchmark: an .npz file, a data set, or NAME@FILE such as rsfm120k-val@sfm.pkl"
            " (several may be given); else classes are held out.",
        ),
    ] = None,
    preset: Annotated[str, Option(help="default, affinity, small or paper.")] = "default",
    levels: Annotated[int, Option(min=1, help="L, the number of hops.")] = 2,
    k: Annotated[int, Option(min=1, help="Neighbours that each level reads.")] = 32,
    steps: Annotated[
        int | None, Option(min=1, help="Updates of the weights; by default the preset's.")
    ] = None,
    learning_rate: Annotated[float | None, Option(help="Peak learning rate.")] = None,
    dropout: Annotated[
        float, Option(min=0, max=0.9, help="Of the paper's encoder; for few classes 0.3.")
    ] = 0.0,
    validate_every: Annotated[int | None, Option(min=1, help="Updates between validations.")] = None,
    patience: Annotated[
        int | None, Option(min=1, help="Stop after so many validations without gain.")
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Train a model; the same command continues a stopped one. The best weights by validation are kept."""
    from gqe import datasets
    from gqe.evaluation.benchmark import Bench
    from gqe.evaluation.tuning import best_contrast
    from gqe.neighbors.search import resolve_device
    from gqe.training.presets import PresetOptions, train_preset
    from gqe.training.validation import hold_out

    output_folder(output)
    place = str(resolve_device(device))
    options = PresetOptions(preset, levels, k, steps, learning_rate, validate_every, patience, seed, dropout)
    options.check()
    training = datasets.load_training(data)
    benchmarks = [datasets.load(name) for name in val or ()]
    if not benchmarks:
        training, benchmark = hold_out(training, seed=seed)
        benchmarks = [benchmark]
    benches = [Bench(benchmark, device=place) for benchmark in benchmarks]
    output.mkdir(parents=True, exist_ok=True)
    checkpoint = output / "checkpoint.pt"
    outcome = train_preset(training, benches, options, device=place, checkpoint=checkpoint, progress=True)
    # The paper's preset stays with the paper.
    contrast = 0.0 if preset == "paper" else best_contrast(benches, outcome.stack)[0]
    _write(output, outcome, training, options, contrast)
    step, reached = outcome.best_step, outcome.best
    about = {"model": str(output), "best_step": step, "map": reached, "contrast": contrast}
    text = f"best at step {step}: mAP {reached:.2f}; contrast {contrast:g}; wrote {output}"
    print_result(about, text, as_json)


def _write(
    output: Path, outcome: TrainingResult, training: TrainingSet, options: PresetOptions, contrast: float
) -> None:
    """The model, the history as CSV, and no checkpoint any more."""
    from dataclasses import asdict

    from gqe.model_files import Model, save_model
    from gqe.query_options import QueryOptions

    rows = [_flat(line) for line in outcome.history]
    if not rows:
        raise InputError(f"{output}: training made no step; give more --steps")
    data = {"name": training.name, "items": len(training.labels), "about": training.description}
    about = {
        "training_data": data,
        "settings": asdict(options),
        "best_step": outcome.best_step,
        "validation_history": rows,
    }
    save_model(output, Model(outcome.stack, output.name, about, QueryOptions(contrast)))
    write_csv(output / "history.csv", rows)
    (output / "checkpoint.pt").unlink(missing_ok=True)


def _flat(line: dict[str, Any]) -> dict[str, Any]:
    """One row of numbers: step, loss, seconds, score, and two mAPs for each benchmark."""
    row = {key: round(value, 4) for key, value in line.items() if key != "benchmarks"}
    for name, numbers in line.get("benchmarks", {}).items():
        row |= {f"{name} {side}": round(value, 3) for side, value in numbers.items()}
    return row
