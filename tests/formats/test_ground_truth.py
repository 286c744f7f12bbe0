"""Ground truth of the revisited benchmarks."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io

from gqe.errors import InputError
from gqe.formats import read_ground_truth

OFFICIAL = Path(__file__).parents[3] / "shared/benchmarks/roxford5k"


def small() -> dict[str, object]:
    return {
        "imlist": ["a", "b", "c", "d"],
        "qimlist": ["q", "r"],
        "gnd": [
            {"easy": [0, 3], "hard": [1], "junk": [2], "bbx": [1, 2.5, 30, 40]},
            {"easy": [], "hard": [2], "junk": [], "bbx": [0, 0, 9, 9]},
        ],
    }


def assert_is_small(found: dict[str, object]) -> None:
    assert found["imlist"] == ["a", "b", "c", "d"]
    assert found["qimlist"] == ["q", "r"]
    assert all(type(name) is str for name in found["imlist"] + found["qimlist"])
    assert len(found["gnd"]) == 2
    for entry, expected in zip(found["gnd"], small()["gnd"], strict=True):
        assert entry["bbx"] == expected["bbx"]
        for name in ("easy", "hard", "junk"):
            assert entry[name].dtype == np.int64
            assert entry[name].tolist() == expected[name]


def write(folder: Path, content: object, ending: str) -> Path:
    path = folder / f"gnd{ending}"
    if ending == ".json":
        path.write_text(json.dumps(content))
    else:
        path.write_bytes(pickle.dumps(content, 3))
    return path


@pytest.mark.parametrize("ending", [".pkl", ".pickle", ".json"])
def test_the_official_layout(tmp_path, ending):
    assert_is_small(read_ground_truth(write(tmp_path, small(), ending)))


def test_ids_as_arrays_and_boxes_missing(tmp_path):
    content = small()
    for entry in content["gnd"]:
        for name in ("easy", "hard", "junk"):
            entry[name] = np.array(entry[name], np.int32)
    content["gnd"][1].pop("bbx")
    content["gnd"][0]["bbx"] = None
    found = read_ground_truth(write(tmp_path, content, ".pkl"))
    assert [entry["bbx"] for entry in found["gnd"]] == [None, None]
    assert found["gnd"][0]["easy"].tolist() == [0, 3]


def matlab(path: Path, queries: int = 2, shift: int = 1) -> Path:
    """The layout of the official .mat files: cells of names and an array of structs; ids count from 1."""
    content = small()
    gnd = np.empty((1, queries), [(name, object) for name in ("bbx", "easy", "hard", "junk")])
    for number in range(queries):
        entry = content["gnd"][number]
        gnd[0, number]["bbx"] = np.array([entry["bbx"]], float)
        for name in ("easy", "hard", "junk"):
            gnd[0, number][name] = np.array([entry[name]], float) + shift
    cells = {name: np.array(content[name], object).reshape(-1, 1) for name in ("imlist", "qimlist")}
    scipy.io.savemat(path, {"imlist": cells["imlist"], "qimlist": cells["qimlist"][:queries], "gnd": gnd})
    return path


def test_matlab_ids_count_from_one(tmp_path):
    assert_is_small(read_ground_truth(matlab(tmp_path / "gnd.mat")))
    with pytest.raises(InputError, match=r"query 0 .*'easy' names picture 0\.0; the numbers begin at 1"):
        read_ground_truth(matlab(tmp_path / "zero.mat", shift=0))


def test_matlab_73_is_refused(tmp_path):
    with h5py.File(tmp_path / "gnd.mat", "w", userblock_size=512) as file:
        file["imlist"] = np.zeros((1, 1))
    with pytest.raises(InputError, match="save it with -v7"):
        read_ground_truth(tmp_path / "gnd.mat")


def test_matlab_with_a_single_query(tmp_path):
    found = read_ground_truth(matlab(tmp_path / "gnd.mat", queries=1))
    assert found["qimlist"] == ["q"]
    assert found["gnd"][0]["easy"].tolist() == [0, 3]


def change(path: tuple[object, ...], value: object) -> dict[str, object]:
    content = small()
    place = content
    for step in path[:-1]:
        place = place[step]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "has no 'gnd'"),
        ({}, "has no 'gnd'"),
        ("text", "has no 'gnd'"),
        (change(("gnd",), KeyError), "has no 'gnd'"),
        (change(("imlist",), "abcd"), "'imlist' must be a list of names"),
        (change(("imlist",), [1, 2, 3, 4]), "'imlist' entry 0 is 1"),
        (change(("qimlist",), ["q"]), "2 entries for the 1 names of qimlist"),
        (change(("gnd",), {"0": 1, "1": 2}), "'gnd' must be a list"),
        (change(("gnd", 1), [1]), r"query 1 \(gnd\[1\]\) is not a dictionary"),
        (change(("gnd", 1, "easy"), KeyError), "query 1 .* has no 'easy'"),
        (change(("gnd", 0, "junk"), KeyError), "query 0 .* has no 'junk'"),
        (change(("gnd", 0, "easy"), [0, 4]), "'easy' names picture 4; imlist has the numbers 0 to 3"),
        (change(("gnd", 0, "easy"), [-1]), "'easy' names picture -1"),
        (change(("gnd", 0, "hard"), [0.5]), "'hard' must be a list of picture numbers"),
        (change(("gnd", 0, "hard"), ["a"]), "'hard' must be a list of picture numbers"),
        (change(("gnd", 0, "hard"), [True]), "'hard' must be a list of picture numbers"),
        (change(("gnd", 0, "hard"), [[1], [2]]), "'hard' must be a list of picture numbers"),
        (change(("gnd", 0, "hard"), {"a": 1}), "'hard' must be a list of picture numbers"),
        (change(("gnd", 0, "hard"), None), "'hard' must be a list of picture numbers"),
        (change(("gnd", 0, "hard"), [[1], [2, 3]]), "not a readable ground truth file"),
        (change(("gnd", 0, "hard"), [10**30]), "'hard' must be a list of picture numbers|names picture"),
        (change(("gnd", 0, "bbx"), [1, 2, 3]), "'bbx' must be four numbers"),
        (change(("gnd", 0, "bbx"), "abcd"), "'bbx' must be four numbers"),
    ],
)
@pytest.mark.parametrize("ending", [".pkl", ".json"])
def test_other_layouts_are_refused(tmp_path, content, reason, ending):
    path = write(tmp_path, content, ending)
    with pytest.raises(InputError, match=reason) as caught:
        read_ground_truth(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_the_original_layout_is_explained(tmp_path):
    old = {"imlist": ["a", "b"], "qidx": [0], "gnd": [{"ok": [1], "junk": [], "bbx": [0, 0, 1, 1]}]}
    with pytest.raises(InputError, match=r"original Oxford5k and Paris6k.*revisited"):
        read_ground_truth(write(tmp_path, old, ".pkl"))
    with pytest.raises(InputError, match=r"query 0 .* has 'ok'.*original"):
        read_ground_truth(write(tmp_path, {"qimlist": ["q"], "gnd": old["gnd"]}, ".json"))


def test_broken_files(tmp_path):
    path = tmp_path / "gnd.json"
    for content in (b"{", b"\xff\xfe", b"[" * 100_000, b"NaN"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"gnd\.json"):
            read_ground_truth(path)
    (tmp_path / "gnd.txt").write_text("x")
    with pytest.raises(InputError, match=r"read from \.pkl, \.pickle, \.json, \.mat"):
        read_ground_truth(tmp_path / "gnd.txt")
    with pytest.raises(InputError, match="no such file"):
        read_ground_truth(tmp_path / "absent.pkl")
    matlab(tmp_path / "gnd.mat")
    whole = (tmp_path / "gnd.mat").read_bytes()
    for length in range(1, len(whole), 7):
        (tmp_path / "cut.mat").write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"cut\.mat"):
            read_ground_truth(tmp_path / "cut.mat")


@pytest.mark.parametrize(
    ("name", "pictures", "easy_queries"), [("roxford5k", 4993, 68), ("rparis6k", 6322, 70)]
)
def test_the_official_files(name, pictures, easy_queries):
    path = OFFICIAL / f"gnd_{name}.pkl"
    if not path.exists():
        pytest.skip("the folder ../shared/benchmarks with the official ground truth is absent")
    found = read_ground_truth(path)
    assert len(found["imlist"]) == pictures
    assert len(found["qimlist"]) == len(found["gnd"]) == 70
    assert sum(len(entry["easy"]) > 0 for entry in found["gnd"]) == easy_queries
    for entry in found["gnd"]:
        every = np.concatenate([entry["easy"], entry["hard"], entry["junk"]])
        assert len(np.unique(every)) == len(every)
        assert len(entry["bbx"]) == 4
    with path.open("rb") as stream:
        plain = pickle.load(stream)  # a known file
    assert found["imlist"] == plain["imlist"]
    assert all(
        mine[part].tolist() == theirs[part]
        for mine, theirs in zip(found["gnd"], plain["gnd"], strict=True)
        for part in ("easy", "hard", "junk")
    )


def test_names_may_be_missing(tmp_path):
    truth = read_ground_truth(write(tmp_path, {"gnd": [{"easy": [7], "hard": [], "junk": []}]}, ".json"))
    assert truth["gnd"][0]["easy"].tolist() == [7]
    assert "imlist" not in truth


@pytest.mark.parametrize("name", ["../a", "/etc/a", "a/../../b", "..\\a", "c:a", "a\0b", ""])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, name):
    path = tmp_path / "gnd.json"
    path.write_text(json.dumps({"imlist": [name], "gnd": []}))
    with pytest.raises(InputError, match="no plain name of a picture"):
        read_ground_truth(path)


@pytest.mark.parametrize("ids", ["[1e400]", "[9223372036854775808]", "[1e18]"])
def test_numbers_that_no_picture_has_are_refused(tmp_path, ids):
    path = tmp_path / "gnd.json"
    path.write_text(f'{{"gnd": [{{"easy": {ids}, "hard": [], "junk": []}}]}}')
    with pytest.raises(InputError, match="names picture"):
        read_ground_truth(path)
