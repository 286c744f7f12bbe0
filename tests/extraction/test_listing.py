from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from gqe import InputError
from gqe.extraction import pictures_of_folder, pictures_of_list


def touched(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_a_folder_with_all_in_it_in_order(tmp_path: Path) -> None:
    touched(tmp_path, "b.JPG", "a.png", "deep/er/c.webp", "notes.txt", "deep/.hidden.gif")
    os.mkfifo(tmp_path / "pipe.jpg")  # reading it would wait for ever
    (tmp_path / "link.tif").symlink_to(tmp_path / "a.png")
    (tmp_path / "deep/around").symlink_to(tmp_path)
    (tmp_path / "folder.jpg").mkdir()
    found = pictures_of_folder(tmp_path)
    assert [p.name for p in found] == ["a.png", "b.JPG", "deep/.hidden.gif", "deep/er/c.webp", "link.tif"]
    assert found[3].path == str(tmp_path / "deep/er/c.webp")


def test_folders_without_pictures(tmp_path: Path) -> None:
    touched(tmp_path, "notes.txt")
    for name, words in ((".", "holds no pictures"), ("absent", "no such folder"), ("notes.txt", "is a file")):
        with pytest.raises(InputError, match=words):
            pictures_of_folder(tmp_path / name)


def test_a_list_gives_order_and_boxes(tmp_path: Path) -> None:
    touched(tmp_path, "a.png", "b.jpg")
    (tmp_path / "list.txt").write_text("b\t1\t2\t30.5\t40\r\na.png\n\nabsent.jpg\n")
    found = pictures_of_list(tmp_path, tmp_path / "list.txt")
    assert [(p.name, p.box) for p in found] == [
        ("b", (1, 2, 30.5, 40)),
        ("a.png", None),
        ("absent.jpg", None),
    ]
    assert [Path(p.path).name for p in found] == ["b.jpg", "a.png", "absent.jpg"]


def test_a_benchmark_gives_its_database_and_its_queries(tmp_path: Path) -> None:
    entry = {"easy": [0], "hard": [], "junk": []}
    truth = {
        "imlist": ["x", "y"],
        "qimlist": ["p", "q"],
        "gnd": [entry | {"bbx": [1.0, 2.0, 3.0, 4.0]}, entry],
    }
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(truth))
    touched(tmp_path, "x.jpg", "p.jpg")
    assert [p.name for p in pictures_of_list(tmp_path, tmp_path / "gnd.pkl")] == ["x", "y"]
    queries = pictures_of_list(tmp_path, f"{tmp_path}/gnd.pkl:queries")
    assert [(p.name, p.box) for p in queries] == [("p", (1, 2, 3, 4)), ("q", None)]
    assert queries[0].path == str(tmp_path / "p.jpg")
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps({"gnd": []}))
    with pytest.raises(InputError, match="does not name its pictures"):
        pictures_of_list(tmp_path, tmp_path / "gnd.pkl")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\t1\t2\t3\n", "line 1 is"),
        ("a\nb\t1\t2\t3\tx\n", "line 2 is"),
        ("\t1\t2\t3\t4\n", "line 1 is"),
        ("a\nb\na\n", "'a' twice"),
        ("\n\n", "names no pictures"),
    ],
)
def test_lists_that_do_not_fit(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(InputError, match=words):
        pictures_of_list(tmp_path, tmp_path / "list.txt")


@pytest.mark.parametrize("name", ["../a.jpg", "/etc/a.jpg", "b/../../a.jpg"])
def test_a_list_names_pictures_of_the_folder_only(tmp_path, name):
    (tmp_path / "list.txt").write_text(f"{name}\n")
    with pytest.raises(InputError, match="does not lie in"):
        pictures_of_list(tmp_path, tmp_path / "list.txt")
