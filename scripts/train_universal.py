r"""Train the universal affinity model, or one for a single space.

    python scripts/train_universal.py --set image=image/train.npz --set text=text/train.npz \
        --val image=image/val.npz --val text=text/val.npz --out universal

A set is an .npz with `embeddings` and `labels`; a validation file has `queries`, `query_labels`, `database`
and `database_labels`. `town` as a set is the built-in one. The best weights by validation are written to
`model.safetensors` and `config.json` in the folder, which also keeps a checkpoint: the same command continues
a killed run.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from gqe.aggregators.affinity import Affinity
from gqe.aggregators.base import Aggregator
from gqe.errors import InputError
from gqe.neighbors.search import resolve_device
from gqe.training.episodes import EpisodeSettings
from gqe.training.loop import Training, TrainSettings, train
from gqe.training.spaces import LabelledSet
from gqe.training.validation import Benchmark


def main() -> None:
    """Read the command line, train, write the model."""
    options = _options()
    device = str(resolve_device(options.device))
    torch.manual_seed(options.seed)
    sets = [load_set(text, device) for text in options.set]
    settings = TrainSettings(
        steps=options.steps,
        episodes=options.episodes,
        learning_rate=options.learning_rate,
        precision=options.precision,
        pairs=options.pairs,
        relevance=options.relevance,
        caution=options.caution,
        average=options.average,
        validate_every=options.validate_every,
        checkpoint_every=options.validate_every,
        seed=options.seed,
        seconds=options.seconds,
        mixed_precision=options.mixed_precision or None,
    )
    shares = None if options.shares is None else tuple(float(s) for s in options.shares.split(","))
    episodes = EpisodeSettings(
        shares=shares,
        both_sides=options.both_sides,
        undistorted=options.undistorted,
        tiny=options.tiny,
        queries=options.queries,
        items=tuple(options.items),
        items_both_sides=tuple(options.items_both_sides),
        k=tuple(options.train_k),
    )
    stack: list[Aggregator] = [
        Affinity(options.k, options.width, options.layers, options.heads, base=level > 0)
        for level in range(options.depth)
    ]
    if options.init is not None:
        start_from(stack, options.init)
    options.out.mkdir(parents=True, exist_ok=True)
    history = options.out / "history.jsonl"

    def report(line: dict[str, Any]) -> None:
        with history.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(
            f"step {line['step']}: loss {line['loss']:.4f} score {line.get('score', float('nan')):.2f}",
            flush=True,
        )

    outcome = train(
        stack,
        sets,
        validation_suite(options.val, device),
        settings,
        episodes,
        device=device,
        checkpoint=options.out / "checkpoint.pt",
        report=report,
    )
    write_model(options.out, outcome, settings, episodes, [s.name for s in sets])


def start_from(stack: list[Aggregator], folder: Path) -> None:
    """Take the weights of a trained model of the same shape."""
    try:
        tensors = load_file(folder / "model.safetensors")
        for level, aggregator in enumerate(stack):
            mine = {name: tensors.pop(f"{level}.{name}").float() for name in aggregator.state_dict()}
            aggregator.load_state_dict(mine)
    except (OSError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(f"--init {folder}: not a model of this shape ({error})") from None
    if tensors:
        raise InputError(f"--init {folder}: the model has more levels than --depth {len(stack)}")


def load_set(text: str, device: str) -> LabelledSet:
    """A labelled set given as name=path, or `town`."""
    if text == "town":
        from gqe.datasets.town import load_train

        town = load_train()
        return LabelledSet.of("town", town.embeddings, town.labels, device)
    name, _, path = text.partition("=")
    try:
        with np.load(path) as file:
            embeddings, labels = file["embeddings"], file["labels"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"--set {text}: give name=path of an .npz with embeddings and labels ({error})"
        ) from None
    return LabelledSet.of(name, embeddings, labels, device)


def validation_suite(files: list[str], device: str) -> list[Benchmark]:
    """Every benchmark as it is, with one or two relevant items, and in two other spaces."""
    suite: list[Benchmark] = []
    for text in files:
        name, _, path = text.partition("=")
        plain = Benchmark.load(name, path, device)
        suite += [
            plain,
            plain.few_relevant(1),
            plain.few_relevant(2),
            plain.few_relevant(8),
            plain.changed(64, 0.0, 0.5),
            plain.changed(512, 0.5, 0.0),
        ]
    return suite


def write_model(
    folder: Path, outcome: Training, settings: TrainSettings, episodes: EpisodeSettings, sets: list[str]
) -> None:
    """model.safetensors (float16) and config.json."""
    tensors = {
        f"{level}.{name}": value.half().cpu().contiguous()
        for level, aggregator in enumerate(outcome.stack)
        for name, value in aggregator.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "format": "gqe-model",
        "version": 1,
        "name": folder.name,
        "levels": [{"aggregator": type(a).__name__.lower(), **a.settings()} for a in outcome.stack],
        "trained_on": [*sets, "invented spaces"],
        "training": asdict(settings),
        "episodes": asdict(episodes),
        "best_step": outcome.best_step,
        "best_score": outcome.best,
        "history": outcome.history,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--set", action="append", default=[], metavar="NAME=PATH", help="a labelled training set, or town")
    add("--val", action="append", default=[], metavar="NAME=PATH", help="a benchmark to choose by")
    add("--out", type=Path, required=True, help="folder for the model")
    add("--init", type=Path, default=None, help="folder of a trained model to continue from")
    add("--device", default="auto")
    add("--mixed-precision", action="store_true", help="bfloat16 on a CPU too")
    add("--seed", type=int, default=0)
    add("--depth", type=int, default=2, help="levels (hops)")
    add("--k", type=int, default=32, help="neighbours by default, and in validation")
    add("--width", type=int, default=128)
    add("--layers", type=int, default=3)
    add("--heads", type=int, default=4)
    add("--steps", type=int, default=TrainSettings.steps)
    add("--seconds", type=float, default=None, help="end the cycle early after this time")
    add("--episodes", type=int, default=TrainSettings.episodes)
    add("--learning-rate", type=float, default=TrainSettings.learning_rate)
    add("--precision", type=float, default=TrainSettings.precision)
    add("--pairs", type=float, default=TrainSettings.pairs)
    add("--relevance", type=float, default=TrainSettings.relevance)
    add("--caution", type=float, default=TrainSettings.caution)
    add("--average", type=float, default=TrainSettings.average)
    add("--both-sides", type=float, default=EpisodeSettings.both_sides)
    add("--undistorted", type=float, default=EpisodeSettings.undistorted)
    add("--queries", type=int, default=EpisodeSettings.queries)
    add("--items", type=int, nargs=2, default=EpisodeSettings.items, help="smallest and largest database")
    add("--items-both-sides", type=int, nargs=2, default=EpisodeSettings.items_both_sides)
    add("--train-k", type=int, nargs="+", default=EpisodeSettings.k)
    add("--tiny", type=float, default=EpisodeSettings.tiny)
    add("--shares", default=None, help="how often each set, then made-up spaces, are drawn: 2,1,1")
    add("--validate-every", type=int, default=TrainSettings.validate_every)
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"train_universal: {error}")
