from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest


def test_list_names_the_town(gqe) -> None:
    assert "town" in gqe("data", "list").out
    assert "town" in {entry["name"] for entry in json.loads(gqe("data", "list", "--json").out)["datasets"]}


def test_describe(gqe, files: Path) -> None:
    assert json.loads(gqe("data", "describe", files / "labels.npz", "--json").out)["database"] == 40
    about = json.loads(gqe("data", "describe", files / "database.npy", "--json").out)
    assert (about["vectors"], about["dimension"], about["type"]) == (40, 8, "float32")
    assert "town" in gqe("data", "describe", "town").out


@pytest.mark.parametrize("ending", ["fvecs", "fbin", "npz", "hdf5", "parquet"])
def test_convert_there_and_back(gqe, files: Path, ending: str) -> None:
    assert gqe("data", "convert", files / "database.npy", files / f"there.{ending}").status == 0
    assert gqe("data", "convert", files / f"there.{ending}", files / "back.npy").status == 0
    np.testing.assert_array_equal(np.load(files / "back.npy"), np.load(files / "database.npy"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["describe", "absent.npy"], "absent.npy"),
        (["convert", "database.npy", "out.xyz"], "out.xyz"),
        (["make", "city"], "city"),
    ],
)
def test_mistakes(gqe, files: Path, monkeypatch, arguments, named) -> None:
    monkeypatch.chdir(files)
    ran = gqe("data", *arguments)
    assert ran.status == 2
    assert named in ran.err
    assert len(ran.err.strip().splitlines()) == 1
