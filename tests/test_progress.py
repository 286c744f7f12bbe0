"""Long calls tell a function, a terminal or a log how far they are, and are silent unless asked."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch

import gqe
from gqe.aggregators import Affinity
from gqe.progress import Progress
from gqe.training import (
    EpisodeSettings,
    LabelledSet,
    RankingLosses,
    RankingSettings,
    TrainSettings,
    train,
)

TABLE = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
TABLE /= np.linalg.norm(TABLE, axis=1, keepdims=True)

EPISODES = EpisodeSettings(queries=8, items=(60, 90), items_both_sides=(60, 80), k=(4,))


def call_knn(progress: Progress, folder: Path) -> None:
    gqe.knn(TABLE, 3, progress=progress)


def call_fit(progress: Progress, folder: Path) -> None:
    gqe.expander("aqe-g:k=3").fit(TABLE, progress=progress).search(TABLE[0], 3)


def call_augment(progress: Progress, folder: Path) -> None:
    gqe.expander("aqe-g:k=3").fit(TABLE).augment(progress=progress)


def call_build(progress: Progress, folder: Path) -> None:
    gqe.Index.build(TABLE, "aqe-g:k=3", folder, progress=progress)


def call_add(progress: Progress, folder: Path) -> None:
    gqe.Index.build(TABLE[:30], "aqe-g:k=3", folder).add(TABLE[30:], progress=progress)


def call_compact(progress: Progress, folder: Path) -> None:
    index = gqe.Index.build(TABLE[:30], "aqe-g:k=3", folder)
    index.add(TABLE[30:])
    index.compact(progress=progress)


def call_wrap(progress: Progress, folder: Path) -> None:
    index = faiss.IndexFlatIP(8)
    index.add(TABLE)
    gqe.wrap(index, method="aqe-g:k=3").augment(progress=progress)


def call_sync(progress: Progress, folder: Path) -> None:
    index = gqe.Index.build(TABLE[:30], "aqe-g:k=3", folder)
    index.add(TABLE[30:])
    with gqe.connect(folder) as items:
        items.sync(progress=progress)


def call_train(progress: Progress, folder: Path) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(24), 8)
    data = LabelledSet.of("set", rng.normal(size=(24, 12))[labels] + rng.normal(size=(192, 12)), labels)
    losses = RankingLosses([data], RankingSettings(episodes=1), EPISODES)
    train(
        [Affinity(4, width=8, layers=1, heads=1)], losses, settings=TrainSettings(steps=1), progress=progress
    )


CALLS = [
    (call_knn, "knn"),
    (call_fit, "knn"),
    (call_augment, "augment"),
    (call_build, "index"),
    (call_add, "index"),
    (call_compact, "index"),
    (call_wrap, "augment"),
    (call_sync, "index"),
    (call_train, "training"),
]


@pytest.mark.parametrize(("call", "title"), CALLS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_long_call_tells_how_far_it_is(
    call: Callable[[Progress, Path], None],
    title: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    call(lambda *now: told.append(now), tmp_path / "told")
    assert told
    done, total, what = told[-1]
    assert done == total
    assert all(0 < done <= total for done, total, _ in told)
    assert what

    call(False, tmp_path / "silent")
    call(True, tmp_path / "short")  # done before ten seconds are over
    assert capsys.readouterr() == ("", "")

    monkeypatch.setattr("gqe.progress._SECONDS_BETWEEN_LINES", 0.0)
    call(True, tmp_path / "lines")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[-1] == f"{title}: {done} of {total} {what}"


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    gqe.knn(TABLE, 3, progress=True)
    assert "knn" in sys.stderr.getvalue()
    assert "40/40" in sys.stderr.getvalue()


def test_what_is_no_progress_is_refused() -> None:
    with pytest.raises(gqe.InputError, match="progress: expected True, False or a function"):
        gqe.knn(TABLE, 3, progress=3)  # type: ignore[arg-type]
