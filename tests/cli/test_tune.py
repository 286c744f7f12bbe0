from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest
import torch

from gqe.aggregators import Attention
from gqe.evaluation import tuning
from gqe.model_files import Model, load_model, save_model


def test_hand_crafted_settings(gqe, files: Path) -> None:
    ran = gqe("tune", "aqe", "--val", files / "labels.npz", "--json")
    assert ran.status == 0, ran.err
    told = json.loads(ran.out)
    assert told["settings"] == told["tried"][0]["settings"]
    assert "aqe:k=" in gqe("tune", "aqe", "--val", files / "labels.npz", "--top", "2").out


def test_a_model_keeps_its_tuned_database_side(gqe, files: Path, monkeypatch) -> None:
    monkeypatch.setattr(tuning, "TEMPERATURES", (None, 0.2))
    monkeypatch.setattr(tuning, "DATABASE_KS", (2, 4))
    torch.manual_seed(0)
    stack = [Attention(dim=8, k=4, layers=1, heads=2, feedforward=8)]
    save_model(files / "model", Model(list(stack), "little", {"note": "kept"}))
    ran = gqe("tune", files / "model", "--val", files / "labels.npz")
    assert ran.status == 0, ran.err
    about = load_model(files / "model").about
    assert about["note"] == "kept"
    assert about["dba"]["k"] in (2, 4)
    assert "contrast" in ran.out
    assert load_model(files / "model").query_options.contrast in tuning.CONTRASTS
    ran = gqe(
        "evaluate",
        files / "labels.npz",
        "--methods",
        f"none,{files / 'model'},dba-{files / 'model'}",
        "--json",
    )
    assert json.loads(ran.out)["results"][2]["map"] == pytest.approx(about["dba"]["map"])


def test_a_shipped_model_is_copied_first(gqe, files: Path, monkeypatch) -> None:
    monkeypatch.chdir(files)
    monkeypatch.setattr(tuning, "TEMPERATURES", (None,))
    monkeypatch.setattr(tuning, "DATABASE_KS", (2,))
    ran = gqe("tune", "universal", "--val", "labels.npz")
    assert ran.status == 2
    assert len(ran.err.strip().splitlines()) == 1
    remedy = re.search(r"save a copy by (.*\)) in Python and tune (\S+), ", ran.err)
    assert remedy is not None
    eval(remedy[1], {"gqe": importlib.import_module("gqe")})
    assert gqe("tune", remedy[2], "--val", "labels.npz").status == 0
    assert gqe("evaluate", "labels.npz", "--methods", f"dba-{remedy[2]}").status == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["aqee", "--val", "labels.npz"], "aqe"), (["aqe", "--val", "absent.npz"], "absent.npz")],
)
def test_mistakes(gqe, files: Path, monkeypatch, arguments, named) -> None:
    monkeypatch.chdir(files)
    ran = gqe("tune", *arguments)
    assert ran.status == 2
    assert named in ran.err
    assert len(ran.err.strip().splitlines()) == 1
