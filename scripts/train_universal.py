r"""Train an affinity model for every space: what ships as `universal`.

    python scripts/train_universal.py --set image=image/train.npz --set text=text/train.npz \
        --set cars-lite0=spaces/cars-lite0.npz --set cars-resnet50=spaces/cars-resnet50.npz --set town \
        --out universal

A set is an .npz with `embeddings` and `labels`, a benchmark file (its queries and database are trained on),
or `town`, the built-in one. What stands before the first hyphen of its name is its kind: all kinds, and
synthetic spaces, are drawn equally often unless --share says otherwise, and `--without KIND` leaves a kind
out, to judge the model on it (see space_zoo.py). The weights are written as a model folder; a checkpoint
beside them lets the same command continue a stopped run. `torchrun --nproc-per-node 5` in place of `python`
shares the episodes of an update among five processes, on one GPU or several.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from labelled_sets import read_set

from gqe.aggregators import Affinity, Aggregator
from gqe.datasets import load_npz
from gqe.errors import InputError
from gqe.evaluation.benchmark import Bench
from gqe.model_files import Model, load_model, save_model
from gqe.neighbors.search import resolve_device
from gqe.query_options import QueryOptions
from gqe.training.episodes import EpisodeSettings
from gqe.training.loop import ProcessGroup, TrainSettings, train
from gqe.training.ranking import RankingLosses, RankingSettings
from gqe.training.spaces import LabelledSet, fingerprint
from gqe.training.validation import change_space, limit_classes, limit_relevant

SYNTHETIC = "synthetic"


def main() -> None:
    """Read the command line, train, write the model."""
    options = _options()
    process_group = ProcessGroup.from_environment()
    first = process_group.rank == 0
    device = str(resolve_device(options.device))
    torch.manual_seed(options.seed)
    names = [text for text in options.set if kind(text) not in options.without]
    sets = [labelled_set(text, device) for text in names]
    settings = TrainSettings(
        steps=options.steps,
        learning_rate=options.learning_rate,
        average=options.average,
        keep=options.keep,
        validate_every=options.validate_every,
        checkpoint_every=options.validate_every,
        seed=options.seed,
        seconds=options.seconds,
    )
    ranking = RankingSettings(
        episodes=options.episodes,
        pairs=options.pairs,
        precision=options.precision,
        relevance=options.relevance,
        caution=options.caution,
        mixed_precision=True if options.mixed_precision else None,
    )
    episodes = EpisodeSettings(
        queries=options.queries,
        items=tuple(options.items),
        items_both_sides=tuple(options.items_both_sides),
        shares=shares(names, options.share),
        both_sides=options.both_sides,
        undistorted=options.undistorted,
        tiny=options.tiny,
        whole=options.whole,
        foreign=options.foreign,
        regions=options.regions,
        weak=options.weak,
        singles=options.singles,
        k=tuple(options.train_k),
    )
    stack = starting_stack(options)
    losses = RankingLosses(
        sets, ranking, episodes, seed=options.seed, device=device, process_group=process_group
    )
    options.out.mkdir(parents=True, exist_ok=True)

    def report(line: dict[str, Any]) -> None:
        print(f"step {line['step']}: loss {line['loss']:.4f} score {line.get('score', 0):.2f}", flush=True)

    outcome = train(
        stack,
        losses,
        validation_suite(options.val, device) if first else [],
        settings,
        device=device,
        checkpoint=options.out / "checkpoint.pt",
        data=fingerprint(sets, ranking, episodes),
        report=report if first else None,
        process_group=process_group,
    )
    if not first:
        return
    about = {
        "training_data": {"sets": [*(s.name for s in sets), "made-up spaces"]},
        "settings": asdict(settings) | asdict(ranking),
        "episodes": asdict(episodes),
        "best_step": outcome.best_step,
        "validation_history": [
            {"step": line["step"], "loss": round(line["loss"], 4), "score": round(line.get("score", 0), 2)}
            for line in outcome.history
        ],
    }
    if options.hold_back is not None:
        hold_back(outcome.stack, options.hold_back)
        about["settings"]["hold_back"] = options.hold_back
    save_model(
        options.out, Model(outcome.stack, options.out.name, about, QueryOptions(options.contrast)), half=True
    )


@torch.no_grad()
def hold_back(stack: list[Aggregator], strengths: list[float]) -> None:
    """Set how strongly all levels hold weights back where it is rarely dense, and in flat lists."""
    for level in stack:
        level.caution.copy_(torch.tensor(strengths))


def kind(text: str) -> str:
    """The kind of data of a set given as name=path, or `town`."""
    return text.partition("=")[0].partition("-")[0]


def shares(names: list[str], wanted: list[str]) -> tuple[float, ...]:
    """How often each set, then synthetic spaces, are drawn, from KIND=NUMBER; 1 for any other kind."""
    given = {name: float(number) for name, _, number in (text.partition("=") for text in wanted)}
    kinds = [kind(text) for text in names]
    sizes = Counter(kinds)
    return (*(given.get(each, 1.0) / sizes[each] for each in kinds), given.get(SYNTHETIC, 1.0))


def labelled_set(text: str, device: str) -> LabelledSet:
    """A labelled set given as name=path, or `town`."""
    name, equals, path = text.partition("=")
    return LabelledSet.of(name, *read_set(path if equals else text), device)


def starting_stack(options: argparse.Namespace) -> list[Aggregator]:
    """A fresh stack, or that of a saved model."""
    if options.init is not None:
        stack = load_model(options.init).stack
        parts = {name.split(".")[1] for name, _ in torch.nn.ModuleList(stack).named_parameters()}
        if unknown := set(options.only) - parts:
            raise InputError(f"--only: no part {min(unknown)!r}; parts are {', '.join(sorted(parts))}")
        for name, parameter in torch.nn.ModuleList(stack).named_parameters():
            parameter.requires_grad_(not options.only or name.split(".")[1] in options.only)
        return stack
    if options.only:
        raise InputError("--only: trains a part of a saved model; name it by --init")
    return [
        Affinity(
            options.k,
            options.width,
            options.layers,
            options.heads,
            base=level > 0,
        )
        for level in range(options.depth)
    ]


def validation_suite(files: list[Path], device: str) -> list[Bench]:
    """Every benchmark as it is, with few relevant items, and in two other spaces."""
    suite = []
    for path in files:
        plain = load_npz(path)
        variants = [plain, *(limit_relevant(plain, most) for most in (1, 2, 8)), limit_classes(plain, 0)]
        variants += [change_space(plain, 64, 0.0, 0.5), change_space(plain, 512, 0.5, 0.0)]
        suite += [Bench(variant, device=device) for variant in variants]
    return suite


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--set", action="append", default=[], metavar="NAME=PATH", help="a labelled training set, or town")
    add("--val", action="append", default=[], type=Path, metavar="PATH", help="a benchmark to choose by")
    add("--out", type=Path, required=True, help="folder for the model")
    add("--init", type=Path, default=None, help="a saved model to start from")
    add("--only", action="append", default=[], metavar="PART", help="train this part of --init only")
    add("--device", default="auto")
    add("--seed", type=int, default=0)
    add("--depth", type=int, default=2, help="levels (hops)")
    add("--k", type=int, default=32, help="neighbours by default, and in validation")
    add("--width", type=int, default=128)
    add("--layers", type=int, default=3)
    add("--heads", type=int, default=4)
    add("--steps", type=int, default=TrainSettings.steps)
    add("--seconds", type=float, default=None, help="end the cycle early after this time")
    add("--learning-rate", type=float, default=TrainSettings.learning_rate)
    add("--average", type=float, default=TrainSettings.average)
    add("--keep", choices=("best", "last"), default="last")
    add("--validate-every", type=int, default=TrainSettings.validate_every)
    add("--mixed-precision", action="store_true", help="bfloat16 on a CPU too")
    for name in ("episodes", "pairs", "precision", "relevance", "caution"):
        default = getattr(RankingSettings, name)
        add(f"--{name}", type=type(default), default=default)
    for name in (
        "queries",
        "both_sides",
        "undistorted",
        "tiny",
        "whole",
        "foreign",
        "weak",
        "singles",
        "regions",
    ):
        default = getattr(EpisodeSettings, name)
        add(f"--{name.replace('_', '-')}", type=type(default), default=default)
    for name in ("items", "items_both_sides"):
        add(f"--{name.replace('_', '-')}", type=int, nargs=2, default=getattr(EpisodeSettings, name))
    add(
        "--train-k",
        type=int,
        nargs="+",
        default=EpisodeSettings.k,
        help="numbers of neighbours to train with",
    )
    add(
        "--hold-back",
        type=float,
        nargs=2,
        default=None,
        metavar=("DENSE", "FLAT"),
        help="set `Affinity.caution` so after training, chosen on validation files with few relevant items",
    )
    add("--contrast", type=float, default=0.0, help="of expanded queries, see gqe.negatives; stored with it")
    add("--share", action="append", default=[], metavar="KIND=NUMBER", help="how often a kind is drawn")
    add("--without", action="append", default=[], metavar="KIND", help="leave out the sets of a kind")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"train_universal: {error}")
