from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gqe import InputError, datasets
from gqe.datasets import official
from gqe.datasets.official.rsfm import SPLITS_FILE, picture_path, read_pairs, read_split
from gqe.evaluation.benchmark import Bench
from gqe.methods import parse_method
from official_layouts import sfm, sfm_bytes, unit

TRAIN, VAL = unit(20, seed=7), unit(12, seed=8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GQE_DATA", str(tmp_path))
    (tmp_path / "rsfm120k" / "descriptors").mkdir(parents=True)
    (tmp_path / "rsfm120k" / "retrieval-SfM-120k.pkl").write_bytes(sfm_bytes())
    return tmp_path / "rsfm120k"


def one_pickle(folder: Path) -> None:
    (folder / "gem.pkl").write_bytes(pickle.dumps({"train": TRAIN, "val": VAL}))


def two_files(folder: Path) -> None:
    np.save(folder / "gem-train.npy", np.ascontiguousarray(TRAIN.T))
    np.save(folder / "gem-val.npy", VAL)


def with_names(folder: Path) -> None:
    for part, vectors in {"train": TRAIN, "val": VAL}.items():
        order = np.random.default_rng(0).permutation(len(vectors))
        np.save(folder / f"{part}.npy", vectors[order])
        names = [str(picture_path(sfm()[part]["cids"][row])) for row in order]
        (folder / f"{part}.names.txt").write_text("\n".join(names))


@pytest.mark.parametrize("layout", [one_pickle, two_files, with_names])
def test_training_set_and_validation_benchmark(folder: Path, layout: Any) -> None:
    layout(folder / "descriptors")
    training = datasets.load_training("rsfm120k-train")
    np.testing.assert_array_equal(training.embeddings, TRAIN)
    assert training.labels.tolist() == sfm()["train"]["cluster"]
    data = datasets.load("rsfm120k-val")
    np.testing.assert_array_equal(data.database, VAL)
    np.testing.assert_array_equal(data.queries, VAL[[1, 5, 9]])  # each query once
    assert data.ground_truth["exclude"].tolist() == [1, 5, 9]
    assert data.ground_truth["query_labels"].tolist() == [100, 101, 102]


def test_a_query_does_not_find_itself(folder: Path) -> None:
    one_pickle(folder / "descriptors")
    score = Bench(datasets.load("rsfm120k-val")).run(parse_method("none")).evaluation.main
    clusters = np.array(sfm()["val"]["cluster"])
    precisions = []
    for query in (1, 5, 9):
        order = [item for item in np.argsort(-(VAL @ VAL[query]), kind="stable") if item != query]
        places = [rank for rank, item in enumerate(order) if clusters[item] == clusters[query]]
        terms = [
            ((found / rank if rank else 1) + (found + 1) / (rank + 1)) / 2
            for found, rank in enumerate(places)
        ]
        precisions.append(sum(terms) / len(places))
    assert score == pytest.approx(100 * np.mean(precisions), abs=1e-3)


def test_pictures_lie_by_the_end_of_their_names(folder: Path) -> None:
    (folder / "ims").mkdir()
    (first, *_) = official.pictures("rsfm120k-val", folder.parent)
    cid = sfm()["val"]["cids"][0]
    assert first.path == folder / "ims" / cid[-2:] / cid[-4:-2] / cid[-6:-4] / cid
    assert len(official.pictures("rsfm120k-train", folder.parent)) == 20


def broken(**changes: Any) -> bytes:
    content = sfm()
    content["val"] |= changes
    return pickle.dumps({key: value for key, value in content.items() if value is not None})


class Foreign:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("run",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (sfm_bytes()[:-30], "not a readable pickle"),
        (pickle.dumps({"train": {}}), "no 'val'"),
        (pickle.dumps({"val": 3}), "no dictionary"),
        (pickle.dumps({"val": {"cids": ["0123456789"]}}), "no 'qidxs'"),
        (broken(qidxs=[99]), "names picture 99"),
        (broken(qidxs=[-1]), "qidxs"),
        (broken(qidxs=[0.5]), "whole numbers"),
        (broken(pidxs=[1]), "4 qidxs and 1 pidxs"),
        (broken(cluster=[1]), "1 clusters for 12 cids"),
        (broken(cids=["../../../../etc/passwd"]), "no name of a picture"),
        (broken(cids=5), "not a readable list"),
        (pickle.dumps({"val": Foreign()}), "asks to run"),
    ],
)
def test_broken_lists_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "retrieval-SfM-120k.pkl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as raised:
        read_split(path, "val")
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_pairs_for_whitening(tmp_path: Path) -> None:
    path = tmp_path / "retrieval-SfM-120k-whiten.pkl"
    path.write_bytes(pickle.dumps({"cids": sfm()["val"]["cids"], "qidxs": [0, 3], "pidxs": [1, 2]}))
    pairs = read_pairs(path)
    assert (pairs.queries.tolist(), pairs.positives.tolist(), pairs.clusters) == ([0, 3], [1, 2], None)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rsfm120k-train", "no descriptors in"),
        ("rsfm120k-train@short.npy", "has 20 pictures"),
        ("rsfm120k-train@other.npz", "a table called 'train'"),
        ("rsfm120k-train@absent", "no such file"),
    ],
)
def test_what_does_not_fit_is_named(
    folder: Path, tmp_path: Path, monkeypatch: Any, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("short.npy", unit(7))
    np.savez("other.npz", a=TRAIN, b=VAL)
    with pytest.raises(InputError, match=said):
        datasets.load_training(name)


def test_without_the_list_the_remedy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GQE_DATA", str(tmp_path))
    with pytest.raises(InputError, match="gqe data get rsfm120k"):
        datasets.load("rsfm120k-val")


def test_a_name_that_leads_out_of_its_folders_is_refused(tmp_path: Path) -> None:
    split = {"cids": ["aaaaaa.."], "cluster": [0], "qidxs": [], "pidxs": []}
    (tmp_path / SPLITS_FILE).write_bytes(pickle.dumps({"train": split, "val": split}))
    with pytest.raises(InputError, match="no name of a picture"):
        read_split(tmp_path / SPLITS_FILE, "train")
