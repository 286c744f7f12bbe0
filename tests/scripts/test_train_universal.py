from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import train_universal

from gqe.errors import InputError
from gqe.model_files import Model, load_model

SMALL = ["--width", 8, "--heads", 2, "--layers", 1, "--k", 4, "--train-k", 4, "--steps", 2, "--device", "cpu"]
FEW = ["--queries", 8, "--items", 60, 80, "--items-both-sides", 60, 80]


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 6)
    vectors = rng.normal(size=(30, 16))[labels] + rng.normal(size=(len(labels), 16))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.savez(tmp_path / "train.npz", embeddings=vectors.astype(np.float32), labels=labels)
    return tmp_path / "train.npz"


def trained(monkeypatch: pytest.MonkeyPatch, labelled: Path, out: Path, *more: Any) -> Model:
    arguments = ["--set", f"points={labelled}", "--out", out, *SMALL, *FEW, *more]
    monkeypatch.setattr(sys, "argv", ["train_universal", *map(str, arguments)])
    train_universal.main()
    return load_model(out)


def test_a_model_is_trained_then_trained_on_and_held_back_as_asked(
    monkeypatch: pytest.MonkeyPatch, labelled: Path, tmp_path: Path
) -> None:
    first = trained(monkeypatch, labelled, tmp_path / "first")
    assert first.about["training_data"]["sets"] == ["points", "made-up spaces"]
    assert "hold_back" not in first.about["settings"]

    # With no step to speak of, what it began with is what it ends with.
    still = ["--init", tmp_path / "first", "--learning-rate", 1e-12, "--hold-back", 24, 5]
    second = trained(monkeypatch, labelled, tmp_path / "second", *still)
    assert second.about["settings"]["hold_back"] == [24, 5]
    for before, after in zip(first.stack, second.stack, strict=True):
        torch.testing.assert_close(after.caution, torch.tensor([24.0, 5.0]))
        for name, tensor in before.state_dict().items():
            if name != "caution":
                torch.testing.assert_close(after.state_dict()[name], tensor, atol=1e-3, rtol=0)


def test_kinds_are_drawn_equally_often_and_one_can_be_left_out(
    monkeypatch: pytest.MonkeyPatch, labelled: Path, tmp_path: Path
) -> None:
    more = ["--set", f"cars-a={labelled}", "--set", f"cars-b={labelled}", "--share", "cars=3"]
    model = trained(monkeypatch, labelled, tmp_path / "all", *more)
    assert model.about["episodes"]["shares"] == [1.0, 1.5, 1.5, 1.0]
    model = trained(monkeypatch, labelled, tmp_path / "left-out", *more, "--without", "cars")
    assert model.about["training_data"]["sets"] == ["points", "made-up spaces"]


def test_a_part_is_trained_alone(monkeypatch: pytest.MonkeyPatch, labelled: Path, tmp_path: Path) -> None:
    first = trained(monkeypatch, labelled, tmp_path / "first")
    head = ["--init", tmp_path / "first", "--only", "head", "--learning-rate", 0.01]
    second = trained(monkeypatch, labelled, tmp_path / "second", *head)
    for before, after in zip(first.stack, second.stack, strict=True):
        old, new = before.state_dict(), after.state_dict()
        assert {name.split(".")[0] for name in old if not torch.equal(old[name], new[name])} == {"head"}


def test_a_part_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, labelled: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="--only: trains a part of a saved model; name it by --init"):
        trained(monkeypatch, labelled, tmp_path / "first", "--only", "head")
    trained(monkeypatch, labelled, tmp_path / "first")
    with pytest.raises(InputError, match="--only: no part 'heads'; parts are blocks, "):
        trained(monkeypatch, labelled, tmp_path / "second", "--init", tmp_path / "first", "--only", "heads")
