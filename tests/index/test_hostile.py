"""A manifest written by somebody who knows how its checksum is made."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gqe.errors import DamagedError, InputError, StorageError
from gqe.index import Index, manifest, verify
from gqe.models import expander
from index.faults import copied
from index.worlds import vectors


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "index"
    names = [f"n{i}" for i in range(20)]
    index = Index.build(vectors(20), expander("aqe-g", k=2), path, ids=names, device="cpu")
    index.remove(["n3"])
    return path


def signed(body: dict[str, Any]) -> bytes:
    """The file of a manifest with a checksum that fits."""
    about = {"format": manifest.FORMAT, "version": manifest._version_of(body)}
    return manifest._to_bytes(about | {"checksum": manifest._checksum(body), "index": body})


def body_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "manifest.json").read_bytes())["index"]


def rename(body: dict[str, Any], old: str, new: str) -> None:
    body["files"][new] = body["files"].pop(old)
    for parts in body["tables"].values():
        for part in parts:
            part["file"] = new if part["file"] == old else part["file"]


HUGE = 2**70
CHANGES = {
    **{
        f"name {name!r}": lambda body, name=name: rename(body, "vectors.00000001.npy", name)
        for name in ["../../victim", "/tmp/victim", "a\\b", "a\0b", "C:a", "lock", "LOCK", "changing.json"]
    },
    "a second of the same name": lambda body: body["files"].update({"Ids.00000001.npy": [0, ""]}),
    "in the expander": lambda body: body["files"].update({"expander/../../x": [0, ""]}),
    **{
        f"{key} {value}": lambda body, key=key, value=value: body.update({key: value})
        for key in ("state", "rows", "items", "dimension", "width", "next_id", "background_items")
        for value in (-1, HUGE, 1.5, float("nan"), True, None, "1", [1])
    },
    "no dimension": lambda body: body.update(dimension=0),
    "wide": lambda body: body.update(width=2**25),
    "more items than rows": lambda body: body.update(items=21),
    "storage": lambda body: body.update(storage=["float8"]),
    "no storage": lambda body: body.update(storage=[]),
    "storage of numbers": lambda body: body.update(storage=[1]),
    "ids": lambda body: body.update(id_kind="float"),
    "recall": lambda body: body.update(recall=float("nan")),
    "wanted recall": lambda body: body.update(wanted_recall=-0.5),
    "search kind": lambda body: body.update(search_kind="tree"),
    "backgrounds": lambda body: body.update(backgrounds={"level": [[float("inf"), 1.0]]}),
    "landscape": lambda body: body.update(landscape=[[float("nan")]]),
    "landscape of texts": lambda body: body.update(landscape="abc"),
    "search": lambda body: body.update(
        search={"file": "ids.00000001.npy", "kind": "ivf", "rows": -1, "breadth": 4, "recall": 0.9}
    ),
    "nothing removed": lambda body: body.update(removed=None),
    "removed twice": lambda body: body.update(removed=["a"]),
    "unknown file": lambda body: body["metadata"].append("unknown.parquet"),
    "metadata of numbers": lambda body: body.update(metadata=[3]),
    "metadata of lists": lambda body: body.update(metadata=[["a"]]),
    "no table": lambda body: body["tables"].pop("graph"),
    "no texts": lambda body: body["tables"].pop("id-text"),
    "unknown table": lambda body: body["tables"].update({"level-x": []}),
    "level of many digits": lambda body: body["tables"].update({f"level-{'9' * 5000}": []}),
    "tables": lambda body: body.update(tables=[]),
    "segment": lambda body: body["tables"].update(vectors=[{"file": "ids.00000001.npy"}]),
    "negative count": lambda body: body["tables"]["vectors"][0].update(count=-1),
    "large count": lambda body: body["tables"]["graph"][0].update(count=HUGE),
    "a gap": lambda body: body["tables"]["graph"][0].update(start=5),
    "fewer vectors": lambda body: body["tables"]["vectors"][0].update(count=3),
    "stale": lambda body: body.update(stale={"vectors": "ids.00000001.npy"}),
    "negative bytes": lambda body: body["files"].update({"ids.00000001.npy": [-1, ""]}),
    "record": lambda body: body["files"].update({"ids.00000001.npy": [1]}),
    "no files": lambda body: body.update(files={}),
    "files": lambda body: body.update(files=None),
    "unknown key": lambda body: body.update(more=1),
    "missing key": lambda body: body.pop("seed"),
    "shards": lambda body: body.update(shard_searches=[{"file": 1}]),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_manifest_that_cannot_be_is_refused_in_one_line(original: Path, tmp_path: Path, what: str) -> None:
    body = body_of(original)
    CHANGES[what](body)
    with pytest.raises(InputError, match="manifest") as caught:
        manifest.parse_manifest(signed(body), "manifest.json")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_sound_one_passes(original: Path) -> None:
    assert manifest.parse_manifest(signed(body_of(original)), "manifest.json").items == 19


def test_sizes_that_the_files_do_not_have_take_no_memory(original: Path, tmp_path: Path) -> None:
    path, body, rows = copied(original, tmp_path / "index"), body_of(original), 2**31 - 1
    for name in ("vectors", "ids"):
        body["tables"][name] = [{**body["tables"][name][0], "count": rows}]
    body.update(rows=rows, items=rows - 1)
    (path / "manifest.json").write_bytes(signed(body))
    with pytest.raises(InputError, match="bytes instead of"):
        Index.open(path)
    assert len(verify(path)) == 1


def test_a_note_leads_nowhere_either(original: Path, tmp_path: Path) -> None:
    path, victim = copied(original, tmp_path / "index"), tmp_path / "victim"
    victim.write_text("mine")
    note = {"format": "gqe-change", "token": "0" * 16, "new": False, "names": ["../victim"]}
    (path / "changing.json").write_text(json.dumps(note))
    with pytest.raises(InputError, match="not a plain name"):
        Index.open(path).remove(["n1"])
    for content in ("", "notes of my own", "[]", '{"format": 3}', json.dumps(note | {"token": ""})):
        (path / "changing.json").write_text(content)
        with pytest.raises(InputError, match="not a note of this package"):
            Index.open(path).remove(["n1"])
        assert (path / "changing.json").read_text() == content
    assert victim.read_text() == "mine"
    (path / "changing.json").unlink()
    Index.open(path).remove(["n1"])


def test_files_of_others_stay(original: Path, tmp_path: Path) -> None:
    path = copied(original, tmp_path / "index")
    mine = ["embeddings.20240101.npy", "vectors.00000009.npy", ".manifest.backup", ".building.old", "notes"]
    mine += ["building.json"]  # which no build has written
    for name in mine:
        (path / name).write_text("mine")
    index = Index.open(path)
    for number in range(4):
        index.add(vectors(1, seed=number), ids=[f"more-{number}"])
    index.compact()
    assert all((path / name).read_text() == "mine" for name in mine)
    assert verify(path) == []


def test_a_link_is_replaced_and_not_followed(original: Path, tmp_path: Path) -> None:
    path, victim = copied(original, tmp_path / "index"), tmp_path / "victim"
    victim.write_bytes((path / "manifest.json").read_bytes())
    (path / "manifest.json").unlink()
    (path / "manifest.json").symlink_to(victim)
    before = victim.read_bytes()
    Index.open(path).remove(["n1"])
    assert victim.read_bytes() == before
    assert len(Index.open(path)) == 18


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
def test_what_is_not_a_file_is_not_read(original: Path, tmp_path: Path, kind: str) -> None:
    path = copied(original, tmp_path / "index")
    file = path / "vectors.00000001.npy"
    file.unlink()
    {
        "pipe": lambda: os.mkfifo(file),
        "device": lambda: file.symlink_to("/dev/zero"),
        "folder": file.mkdir,
        "loop": lambda: file.symlink_to(file),
    }[kind]()
    with pytest.raises(StorageError, match=file.name):
        Index.open(path)
    assert file.name in verify(path)[0]


def test_a_damaged_model_is_damage_of_the_index(original: Path, tmp_path: Path) -> None:
    path = copied(original, tmp_path / "index")
    (path / "expander" / "config.json").unlink()
    with pytest.raises(DamagedError, match=r"config\.json"):
        Index.open(path).search(vectors(1), 3)


def test_lists_that_name_items_that_are_not_there(original: Path, tmp_path: Path) -> None:
    path = copied(original, tmp_path / "index")
    for file in path.glob("graph.*.npy"):
        if "rows" not in file.name:
            content = bytearray(file.read_bytes())
            content[128:] = b"\x7f" * (len(content) - 128)
            file.write_bytes(content)
    index = Index.open(path, device="cpu")
    with pytest.raises(DamagedError, match="a list names an item that is not there"):
        index.neighbors(["n1"])
    with pytest.raises(InputError, match="places: the index has 19 items"):
        index.ids_at([19])


@pytest.mark.parametrize("name", ["changing.json", "building.json"])
def test_a_note_that_is_nested_without_end(original: Path, tmp_path: Path, name: str) -> None:
    path = copied(original, tmp_path / "index")
    (path / name).write_text("[" * 100_000)
    index = Index.open(path, device="cpu")
    if name == "changing.json":
        with pytest.raises(InputError, match="move it elsewhere"):
            index.add(vectors(1, seed=9), ids=["later"])
    else:  # of somebody else
        index.add(vectors(1, seed=9), ids=["later"])
    assert (path / name).read_text() == "[" * 100_000
