"""Suites read the layouts people have, and say in one line what is missing."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from gqe import InputError
from gqe.formats import write_vectors
from gqe.index import approximate
from gqe.reproduce import Sources, StreamingOptions, make_suite, reproduce, synthetic
from gqe.reproduce.suite import TrainedModels
from gqe.training.presets import PresetOptions
from reproduce.worlds import DIM, planted, save_models, unit

NAMES = {"roxford5k": 1, "rparis6k": 2}


def official(root: Path) -> Path:
    """Ground truth and descriptors of every data set, as the owners and their users lay them out."""
    for name, seed in NAMES.items():
        data = planted(name, seed)
        folder = root / name / "descriptors"
        folder.mkdir(parents=True)
        truth = {**data.ground_truth, "qimlist": [f"q{i}" for i in range(len(data.queries))]}
        (root / name / f"gnd_{name}.pkl").write_bytes(pickle.dumps(truth, protocol=2))
        np.save(folder / "queries.npy", data.queries)
        np.save(folder / "database.npy", data.database)
    rng = np.random.default_rng(5)
    (root / "r1m" / "descriptors").mkdir(parents=True)
    np.save(root / "r1m" / "descriptors" / "part1.npy", unit(rng.normal(size=(30, DIM))).astype(np.float16))
    splits = {}
    (root / "rsfm120k" / "descriptors").mkdir(parents=True)
    for split, n in (("train", 60), ("val", 40)):
        splits[split] = {
            "cids": [f"{split}{i:027d}" for i in range(n)],
            "cluster": [i // 10 for i in range(n)],
            "qidxs": list(range(0, n, 5)),
            "pidxs": list(range(1, n, 5)),
        }
        centres = rng.normal(size=(n // 10, DIM))
        vectors = unit(np.repeat(centres, 10, axis=0) + 0.8 * rng.normal(size=(n, DIM)))
        np.save(root / "rsfm120k" / "descriptors" / f"{split}.npy", vectors)
    (root / "rsfm120k" / "retrieval-SfM-120k.pkl").write_bytes(pickle.dumps(splits, protocol=2))
    return root


def test_the_papers_columns_from_official_files(tmp_path: Path) -> None:
    sources = Sources(
        tmp_path / "out", official(tmp_path / "data"), save_models(tmp_path / "models"), device="cpu"
    )
    suite = make_suite("paper", sources)
    assert [(p.title, p.large) for p in suite.tests] == [
        ("ROxf", False),
        ("ROxf+R1M", True),
        ("RPar", False),
        ("RPar+R1M", True),
    ]
    assert suite.validation["rsfm120k"].name == "rsfm120k-val"
    assert len(suite.tests[1].load().database) == 60 + 30
    report = reproduce(suite, tmp_path / "out", ["table2"], device="cpu")
    (table,) = report.artefacts[0].tables
    assert table.columns == ["ROxf M", "ROxf H", "RPar M", "RPar H", "Mean"]
    assert table.sections["QE"][1].paper[:4] == [72.0, 49.3, 86.3, 70.5]


@pytest.mark.parametrize("name", [*NAMES, "rsfm120k"])
def test_missing_official_data_is_named_with_the_remedy(tmp_path: Path, name: str) -> None:
    root = official(tmp_path / "data")
    (root / name).rename(tmp_path / "away")
    with pytest.raises(InputError, match=f"gqe data get {name}") as refused:
        make_suite("paper", Sources(tmp_path / "out", root))
    assert str(root / name) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_missing_distractors_can_be_left_out(tmp_path: Path) -> None:
    root = official(tmp_path / "data")
    (root / "r1m").rename(tmp_path / "away")
    with pytest.raises(InputError, match=r"gqe data get r1m .* --without-r1m"):
        make_suite("paper", Sources(tmp_path / "out", root))
    suite = make_suite("paper", Sources(tmp_path / "out", root, without_r1m=True))
    assert [place.name for place in suite.tests] == list(NAMES)


def real(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, DIM))
    for kind, files in {
        "image": ("val", "test-signs", "test-fruits"),
        "text": ("val", "test-intents"),
    }.items():
        (folder / kind).mkdir(parents=True)
        for name in files:
            labels = np.arange(48) % 6
            np.savez(
                folder / kind / f"{name}.npz",
                queries=unit(centres + rng.normal(size=(6, DIM))),
                query_labels=np.arange(6),
                database=unit(centres[labels] + rng.normal(size=(48, DIM))),
                database_labels=labels,
            )
    data = planted("roxford5k", 1)
    (folder / "roxford5k").mkdir()
    names = [f"oxford_{i:03d}" for i in range(60)]
    queries = [f"all_souls_{i}" for i in range(6)]
    truth = {**data.ground_truth, "imlist": names, "qimlist": queries}
    (folder / "roxford5k" / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(truth, protocol=2))
    # All souls come before Oxford in the order of names.
    write_vectors(
        folder / "roxford5k" / "oxford_features.fvecs", np.concatenate([data.queries, data.database])
    )
    return folder


def test_real_columns_and_the_order_of_oxford(tmp_path: Path) -> None:
    suite = make_suite("real", Sources(tmp_path / "out", real(tmp_path / "data")))
    assert [place.title for place in suite.tests] == ["signs", "fruits", "intents", "ROxf"]
    oxford, expected = suite.tests[-1].load(), planted("roxford5k", 1)
    np.testing.assert_array_equal(oxford.queries, expected.queries)
    np.testing.assert_array_equal(oxford.database, expected.database)
    assert suite.paper == "reference"
    # Settings for Oxford come from the pictures' validation file; no model was trained in its space.
    assert suite.validation["roxford5k"].name == "image/val"
    assert suite.model("roxford5k", "gqe") is None
    assert suite.model("image", "gqe") is None


def test_missing_real_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--data"):
        make_suite("real", Sources(tmp_path))
    folder = real(tmp_path / "data")
    (folder / "text" / "val.npz").unlink()
    with pytest.raises(InputError, match=r"text/val\.npz: is not here"):
        make_suite("real", Sources(tmp_path, folder))


def test_a_model_of_another_depth_is_refused(tmp_path: Path) -> None:
    models = save_models(tmp_path / "models" / "image")
    (models / "gqe").rename(models / "old")
    (models / "gqe3").rename(models / "gqe")
    suite = make_suite("real", Sources(tmp_path / "out", real(tmp_path / "data"), tmp_path / "models"))
    with pytest.raises(InputError, match="3 levels; gqe needs 2"):
        suite.model("image", "gqe")


def test_a_missing_model_is_trained_once(tmp_path: Path) -> None:
    from gqe.datasets import town

    sources = Sources(tmp_path, device="cpu")
    models = TrainedModels(
        [],
        tmp_path / "m",
        town.load_train,
        lambda: town.load("val"),
        PresetOptions("small", k=4, steps=1),
        sources,
    )
    folder = models("lattqe")
    assert folder == tmp_path / "m" / "lattqe"
    assert not (folder / "checkpoint.pt").exists()
    before = (folder / "config.json").stat().st_mtime_ns
    assert models("lattqe") == folder
    assert (folder / "config.json").stat().st_mtime_ns == before


def test_a_dry_run_streams_and_reports_time_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic, "PICTURES", 120)
    monkeypatch.setattr(synthetic, "QUERIES", 5)
    monkeypatch.setattr(synthetic, "CLUSTERS", 8)
    monkeypatch.setattr(synthetic, "K", 6)
    monkeypatch.setattr(approximate, "SMALLEST", 100)
    monkeypatch.setattr(
        synthetic, "GRIDS", synthetic.GRIDS | {"DBA + DQE": "dba-aqe:k=2"}
    )  # an SVM for each of them takes long
    sources = Sources(tmp_path, dry_run=100, dim=16, device="cpu")
    suite = make_suite("town", sources)
    assert suite.name == "synthetic"
    first, large = suite.tests[0].load(), suite.tests[1].load()
    assert large.database.shape == (220, 16)
    assert large.database.dtype == np.float16
    assert isinstance(large.database, np.memmap)
    np.testing.assert_array_equal(large.database[:120], first.database)
    told: list[str] = []
    options = StreamingOptions(graph_recall=0.9, bfloat16=True, leave_out=("DBA + GQE, untrained",))
    reproduce(suite, tmp_path, ["table1"], device="cpu", options=options, print_line=told.append)
    for costly in ("neighbours of all items", "DBA + GQE"):
        assert any(line.startswith(f"planted+distractors, {costly}: about ") for line in told)
    assert not any("untrained" in line for line in told)
    assert "220 items: about" in told[-2]
    assert told[-1].endswith("(1 of 1 parts)")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "at least 0.9 of the true neighbours" in page
    assert "in bfloat16" in page
    stages = (tmp_path / "stages.csv").read_text().splitlines()
    assert stages[0] == "place,method,seconds,peak_bytes"
    assert any(line.startswith("planted+distractors,dba-gqe,") for line in stages)
    assert all(int(line.rsplit(",", 1)[1]) > 0 for line in stages[1:])
    assert "peak GiB" in (tmp_path / "index.html").read_text(encoding="utf-8")
