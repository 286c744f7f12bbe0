from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from gqe.model_files import load_model

QUICK = ("--steps", "2", "--k", "4", "--levels", "2")


@pytest.fixture
def labelled(files: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 8)
    x = rng.normal(size=(20, 8))[labels] + 0.5 * rng.normal(size=(160, 8))
    np.savez(files / "train.npz", embeddings=x.astype(np.float32), labels=labels)
    return files / "train.npz"


@pytest.mark.parametrize("preset", ["default", "affinity", "small", "paper"])
def test_a_trained_model_is_a_method(gqe, files: Path, labelled: Path, preset: str) -> None:
    out = files / "model"
    ran = gqe(
        "train", labelled, "-o", out, "--val", files / "labels.npz", "--preset", preset, *QUICK, "--json"
    )
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["best_step"] == 2
    assert json.loads(ran.out)["contrast"] == load_model(out).query_options.contrast
    assert sorted(p.name for p in out.iterdir()) == [
        "README.md",
        "config.json",
        "history.csv",
        "model.safetensors",
    ]
    with (out / "history.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["2"]
    assert load_model(out).about["settings"]["preset"] == preset
    methods = f"none,{out},{out}:untrained=1,{out}:collapsed=1,dba-{out},{out}:k=2"
    ran = gqe("evaluate", files / "labels.npz", "--methods", methods, "--json")
    assert ran.status == 0, ran.err
    assert len(json.loads(ran.out)["results"]) == 6


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_dropout_is_in_the_encoder(gqe, files: Path, labelled: Path, preset: str) -> None:
    ran = gqe("train", labelled, "-o", files / "model", "--preset", preset, *QUICK, "--dropout", "0.3")
    assert ran.status == 0, ran.err
    assert [level.settings()["dropout"] for level in load_model(files / "model").stack] == [0.3, 0.3]


def test_classes_are_held_out_without_a_validation_file(gqe, files: Path, labelled: Path) -> None:
    ran = gqe("train", labelled, "-o", files / "model", "--preset", "affinity", *QUICK)
    assert ran.status == 0, ran.err
    assert "held out" in (files / "model" / "history.csv").read_text()


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"embeddings": np.ones((4, 8))}, "no labels"),
        ({"labels": np.arange(4)}, "no embeddings"),
        ({"embeddings": np.eye(8), "labels": np.arange(7)}, "one for each embedding"),
        ({"embeddings": np.eye(8), "labels": np.arange(8)}, "two or more items"),
        ({"embeddings": np.eye(8), "labels": np.arange(8) * 0.5}, "whole numbers"),
    ],
)
def test_unusable_training_data_is_one_line(gqe, files: Path, arrays, named: str) -> None:
    np.savez(files / "bad.npz", **arrays)
    ran = gqe("train", files / "bad.npz", "-o", files / "model", "--val", files / "labels.npz", *QUICK)
    assert ran.status == 2
    assert named in ran.err
    assert len(ran.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--preset", "magic"], "magic"),
        (["--preset", "small", "--dropout", "0.1"], "dropout: the preset small has none"),
        (["--val", "absent.npz"], "absent.npz"),
        (["--learning-rate", "1e30"], "loss"),
    ],
)
def test_wrong_settings_are_one_line(gqe, files: Path, labelled: Path, arguments, named: str) -> None:
    ran = gqe("train", labelled, "-o", files / "model", *QUICK, "--steps", "30", *arguments)
    assert ran.status == 2
    assert named in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_a_stopped_training_goes_on_only_with_its_own_data(
    gqe, files: Path, labelled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("train", labelled, "-o", files / "model", "--preset", "affinity", *QUICK)
    with monkeypatch.context() as stopped:
        stopped.setattr("gqe.cli.train._write", lambda *_: None)
        assert gqe(*command).status == 0
    assert (files / "model" / "checkpoint.pt").is_file()
    with np.load(labelled) as given:
        arrays = dict(given)
    np.savez(labelled, embeddings=arrays["embeddings"][::-1], labels=arrays["labels"])
    ran = gqe(*command)
    assert ran.status == 2
    assert "a checkpoint of other data; remove it or train with the same" in ran.err
    np.savez(labelled, **arrays)
    assert gqe(*command).status == 0
    assert not (files / "model" / "checkpoint.pt").exists()
