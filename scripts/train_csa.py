r"""Train the encoder of contextual similarity aggregation (`gqe.rerank.csa`): what ships as `csa`.

    python scripts/train_csa.py --set image=image/train.npz --set text=text/train.npz \
        --val image/val.npz --val text/val.npz --out csa.safetensors

Sets and validation files are those of `train_universal.py`. The validation files are judged at the end,
without and with the encoder; nothing is chosen by them. A checkpoint beside the file lets the same command
continue a stopped run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from train_universal import labelled_set

from gqe.datasets import load_npz
from gqe.evaluation.benchmark import Bench
from gqe.methods import method
from gqe.neighbors.search import resolve_device
from gqe.rerank.csa import CsaEncoder
from gqe.training.csa import CsaSettings, train_csa
from gqe.training.episodes import EpisodeSettings
from gqe.training.loop import TrainSettings


def main() -> None:
    """Read the command line, train, write the encoder, judge it."""
    options = _options()
    device = str(resolve_device(options.device))
    torch.manual_seed(options.seed)
    encoder = CsaEncoder(
        anchors=options.anchors, width=options.width, depth=options.depth, heads=options.heads
    )
    shares = None if options.shares is None else tuple(float(s) for s in options.shares.split(","))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    outcome = train_csa(
        encoder,
        [labelled_set(text, device) for text in options.set],
        TrainSettings(
            steps=options.steps,
            learning_rate=options.learning_rate,
            average=options.average,
            seed=options.seed,
            seconds=options.seconds,
            keep="last",
            validate_every=max(1, options.steps // 10),
            checkpoint_every=max(1, options.steps // 10),
        ),
        csa=CsaSettings(options.m, options.temperature, options.faithful),
        episodes=EpisodeSettings(
            queries=options.queries,
            both_sides=0.0,
            shares=shares,
            undistorted=options.undistorted,
            tiny=options.tiny,
        ),
        device=device,
        checkpoint=options.out.with_suffix(".checkpoint.pt"),
        report=lambda line: print(f"step {line['step']}: loss {line['loss']:.4f}", flush=True),
    )
    trained = outcome.stack[0]
    assert isinstance(trained, CsaEncoder)
    trained.save(options.out, half=True)
    for path in options.val:
        bench = Bench(load_npz(path), device=device)
        for name in (method("none"), method("csa", model=str(options.out), m=options.m)):
            print(f"{path}: {bench.run(name).evaluation.main:.1f} {name.title}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--set", action="append", default=[], metavar="NAME=PATH", help="a labelled training set, or town")
    add("--val", action="append", default=[], type=Path, metavar="PATH", help="a benchmark to judge by")
    add("--out", type=Path, required=True, help="file for the encoder")
    add("--device", default="auto")
    add("--seed", type=int, default=0)
    add("--anchors", type=int, default=128)
    add("--width", type=int, default=256)
    add("--depth", type=int, default=2)
    add("--heads", type=int, default=8)
    add("--m", type=int, default=128, help="first results that are ranked")
    add("--steps", type=int, default=7400)
    add("--seconds", type=float, default=None, help="end the schedule early after this time")
    add("--learning-rate", type=float, default=3e-4)
    add("--average", type=float, default=0.995)
    add("--temperature", type=float, default=0.1)
    add("--faithful", type=float, default=1.0)
    add("--queries", type=int, default=64)
    add("--undistorted", type=float, default=0.8)
    add("--tiny", type=float, default=0.1)
    add("--shares", default=None, help="how often each set, then made-up spaces, are drawn: 2,1,1")
    return parser.parse_args()


if __name__ == "__main__":
    main()
