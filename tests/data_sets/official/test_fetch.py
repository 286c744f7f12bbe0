from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from gqe import InputError
from gqe.datasets import official
from gqe.datasets.official import Collection, File, RetryPolicy
from official_layouts import mat_bytes, sfm_bytes, tar_bytes, truth_bytes
from web_server import Site, serving

HASTY = RetryPolicy(timeout=2.0, tries=2, wait=0.01)
FIRST = {"paris/a/1.jpg": b"one", "paris/b/2.jpg": b"two"}
SECOND = {"paris/c/3.jpg": b"three"}


@pytest.fixture
def site() -> Iterator[Site]:
    files = {
        "/gnd_small.pkl": truth_bytes(),
        "/small.mat": mat_bytes(),
        "/a.tgz": tar_bytes(FIRST),
        "/b.tgz": tar_bytes(SECOND),
    }
    with serving(files=files) as running:
        yield running


def small(site: Site, **changes: object) -> Collection:
    files = [
        File("gnd_small.pkl", f"{site.address}/gnd_small.pkl", "truth"),
        File("descriptors/small.mat", f"{site.address}/small.mat", "descriptors"),
        File("a.tgz", f"{site.address}/a.tgz", "pictures", folder="jpg", flat=True),
        File("b.tgz", f"{site.address}/b.tgz", "pictures", folder="jpg", flat=True),
    ]
    files[0] = dataclasses.replace(files[0], **changes)  # type: ignore[arg-type]
    return Collection("small", "", "", tuple(files))


def get(site: Site, root: Path, *, pictures: bool = True, **changes: object) -> list[str]:
    plan = official.plan(small(site, **changes), root, pictures=pictures, timeout=2.0)
    return [path.relative_to(root).as_posix() for path in official.get(plan, retry=HASTY)]


def refused(site: Site, root: Path, **options: object) -> str:
    with pytest.raises(InputError) as raised:
        get(site, root, **options)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
    return str(raised.value)


def visible(root: Path) -> set[str]:
    """All files that are not hidden, nor in a hidden folder."""
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts)}


def test_all_files_arrive_and_are_recorded(site: Site, tmp_path: Path) -> None:
    assert get(site, tmp_path) == ["small/descriptors/small.mat", "small/gnd_small.pkl", "small/jpg"]
    names = {
        "checksums.json",
        "gnd_small.pkl",
        "descriptors/small.mat",
        "jpg/1.jpg",
        "jpg/2.jpg",
        "jpg/3.jpg",
    }
    assert visible(tmp_path / "small") == names
    entries = json.loads((tmp_path / "small" / "checksums.json").read_text())["files"]
    assert entries["gnd_small.pkl"]["sha256"] == hashlib.sha256(truth_bytes()).hexdigest()
    assert not entries["gnd_small.pkl"]["published"]
    assert not list((tmp_path / "small").rglob("*.tgz"))  # archives go when they are unpacked


def test_pictures_only_when_asked_for(site: Site, tmp_path: Path) -> None:
    get(site, tmp_path, pictures=False)
    assert {path for path, _ in site.gets()} == {"/gnd_small.pkl", "/small.mat"}


def test_the_plan_knows_sizes_and_what_is_here(site: Site, tmp_path: Path) -> None:
    plan = official.plan(small(site), tmp_path, pictures=True)
    assert plan.to_fetch == sum(len(content) for content in site.files.values())
    assert plan.disk_bytes >= plan.to_fetch + max(len(site.files["/a.tgz"]), len(site.files["/b.tgz"]))
    assert site.gets() == []
    official.get(plan, retry=HASTY)
    again = official.plan(small(site), tmp_path, pictures=True)
    assert (again.missing_steps, again.to_fetch) == ([], 0)
    before = len(site.gets())
    official.get(again)
    assert len(site.gets()) == before


def test_a_plan_says_what_is_not_to_be_had(site: Site, tmp_path: Path) -> None:
    del site.files["/b.tgz"]
    assert "/b.tgz: the server answers 404" in refused(site, tmp_path)
    assert site.gets() == []
    assert not (tmp_path / "small").exists()


def test_too_little_space_is_said_before_anything_is_fetched(site: Site, tmp_path: Path) -> None:
    plan = dataclasses.replace(official.plan(small(site), tmp_path, pictures=True), free=1000)
    with pytest.raises(InputError, match=r"small needs .* 1\.0 kB are free"):
        official.get(plan)
    assert site.gets() == []


def test_pictures_appear_when_all_archives_are_unpacked(site: Site, tmp_path: Path) -> None:
    plan = official.plan(small(site), tmp_path, pictures=True)
    second = site.files.pop("/b.tgz")
    with pytest.raises(InputError, match="404"):
        official.get(plan, retry=HASTY)
    assert not (tmp_path / "small" / "jpg").exists()
    site.files["/b.tgz"] = second
    site.seen.clear()
    get(site, tmp_path)
    assert site.gets() == [("/b.tgz", None)]  # the first archive was not fetched again
    assert {path.name for path in (tmp_path / "small" / "jpg").iterdir()} == {"1.jpg", "2.jpg", "3.jpg"}


def test_a_removed_folder_of_pictures_is_fetched_again(site: Site, tmp_path: Path) -> None:
    get(site, tmp_path)
    for path in (tmp_path / "small" / "jpg").iterdir():
        path.unlink()
    (tmp_path / "small" / "jpg").rmdir()
    get(site, tmp_path)
    assert len(list((tmp_path / "small" / "jpg").iterdir())) == 3


def test_a_published_checksum_must_hold(site: Site, tmp_path: Path) -> None:
    good = hashlib.sha256(truth_bytes()).hexdigest()[:7]
    assert "SHA-256" in refused(site, tmp_path, sha256="1234567")
    assert visible(tmp_path) == set()
    get(site, tmp_path, sha256=good)
    assert json.loads((tmp_path / "small/checksums.json").read_text())["files"]["gnd_small.pkl"]["published"]


def test_a_second_download_must_equal_the_first(site: Site, tmp_path: Path) -> None:
    get(site, tmp_path)
    (tmp_path / "small" / "gnd_small.pkl").unlink()
    site.files["/gnd_small.pkl"] = pickle.dumps({"imlist": ["a"], "qimlist": [], "gnd": []})
    message = refused(site, tmp_path)
    assert "recorded at the first download" in message
    assert "checksums.json" in message
    assert not (tmp_path / "small" / "gnd_small.pkl").exists()


def test_a_damaged_archive_is_not_kept(site: Site, tmp_path: Path) -> None:
    whole = site.files["/a.tgz"]
    site.files["/a.tgz"] = whole[:-9]
    assert "damaged archive" in refused(site, tmp_path)
    assert not (tmp_path / "small" / "jpg").exists()
    site.files["/a.tgz"] = whole
    get(site, tmp_path)
    assert (tmp_path / "small" / "jpg" / "1.jpg").read_bytes() == b"one"


def test_an_archive_that_reaches_outside(site: Site, tmp_path: Path) -> None:
    site.files["/a.tgz"] = tar_bytes({"../../../evil.jpg": b"x"})
    assert "outside its folder" in refused(site, tmp_path / "root")
    assert not list(tmp_path.rglob("evil.jpg"))


class Foreign:
    """Runs a command when a careless reader loads it."""

    def __reduce__(self) -> tuple[object, ...]:
        import os

        return os.system, ("touch /tmp/gqe-was-here",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<!DOCTYPE html><html>moved</html>", "pickle"),
        (truth_bytes()[:-40], "not a readable pickle"),
        (pickle.dumps({"gnd": Foreign()}), "asks to run"),
        (pickle.dumps([1, 2]), "'gnd'"),
        (pickle.dumps({"imlist": ["a"], "qimlist": ["q"], "gnd": [{"ok": [0]}]}), "original Oxford5k"),
    ],
)
def test_a_ground_truth_that_is_none(site: Site, tmp_path: Path, content: bytes, said: str) -> None:
    site.files["/gnd_small.pkl"] = content
    message = refused(site, tmp_path)
    assert said in message
    assert message.startswith(f"{site.address}/gnd_small.pkl")
    assert not Path("/tmp/gqe-was-here").exists()
    assert visible(tmp_path) == set()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("retrieval-SfM-120k.pkl", pickle.dumps({"train": {"cids": []}})),
        ("retrieval-SfM-120k-whiten.pkl", pickle.dumps({"cids": ["0123456789"], "qidxs": [0], "pidxs": [7]})),
        ("x.mat", b"<html>moved</html>"),
        ("x.pth", b"<html>moved</html>"),
        ("x.tar.gz", b"<html>moved</html>"),
        ("x.txt", b"\n<html>moved</html>"),
    ],
)
def test_pages_and_broken_files_of_every_kind_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    with serving(files={f"/{name}": content}) as site:
        other = Collection("small", "", "", (File(name, f"{site.address}/{name}", "truth"),))
        with pytest.raises(InputError, match="what came is not the file"):
            official.get(official.plan(other, tmp_path), retry=HASTY)
    assert visible(tmp_path) == set()


def test_good_files_of_every_kind_are_taken(tmp_path: Path) -> None:
    whiten = pickle.dumps({"cids": ["0123456789"], "qidxs": [0], "pidxs": [0]})
    content = {
        "retrieval-SfM-120k.pkl": sfm_bytes(),
        "retrieval-SfM-120k-whiten.pkl": whiten,
        "x.pth": b"PK\x03\x04rest",
        "x.txt": b"0a/1b/picture.jpg\n",
    }
    with serving(files={f"/{name}": data for name, data in content.items()}) as site:
        files = tuple(File(name, f"{site.address}/{name}", "truth") for name in content)
        official.get(official.plan(Collection("small", "", "", files), tmp_path), retry=HASTY)
    assert visible(tmp_path / "small") == {*content, "checksums.json"}


def test_files_put_there_by_hand_are_left(site: Site, tmp_path: Path) -> None:
    (tmp_path / "small" / "jpg").mkdir(parents=True)
    (tmp_path / "small" / "gnd_small.pkl").write_bytes(b"mine")
    get(site, tmp_path)
    assert (tmp_path / "small" / "gnd_small.pkl").read_bytes() == b"mine"
    assert {path for path, _ in site.gets()} == {"/small.mat"}


def test_a_file_changed_after_its_download_is_noticed(site: Site, tmp_path: Path) -> None:
    get(site, tmp_path)
    path = tmp_path / "small" / "gnd_small.pkl"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    assert official.verify(small(site), tmp_path) == [str(path)]
    path.write_bytes(content[:-1])
    assert "remove it to get it again" in refused(site, tmp_path)


def test_two_commands_at_once(site: Site, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    with (tmp_path / "small" / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert "another command" in refused(site, tmp_path)
    get(site, tmp_path)


def test_a_broken_record_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "checksums.json").write_text("{")
    assert "checksums.json" in refused(site, tmp_path)


def test_the_catalogue_holds_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, collection in official.COLLECTIONS.items():
        assert collection.name == name
        assert len({file.name for file in collection.files}) == len(collection.files)
        for file in collection.files:
            assert file.address.startswith(("https://", "http://"))
            assert file.address.endswith(file.name.rpartition("/")[2])
            assert (file.part == "pictures") == (file.folder is not None)
    assert official.collection("gl18-tl-resnet101-gem-w").files[0].sha256 == "a4d43db"
    assert len(official.collection("r1m").files) == 101
    with pytest.raises(InputError, match="did you mean rsfm120k"):
        official.collection("rsfm120k-val")


def test_where_data_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GQE_DATA", str(tmp_path / "mine"))
    assert official.data_root() == tmp_path / "mine"
    assert official.data_root(tmp_path) == tmp_path
    monkeypatch.delenv("GQE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert official.data_root() == tmp_path / "gqe" / "data"
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="not a folder"):
        official.data_root(tmp_path / "file")


@pytest.mark.parametrize("mirror", ["file:///etc", "ftp://host", "nonsense"])
def test_only_http_is_spoken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mirror: str) -> None:
    monkeypatch.setenv("GQE_DATA_MIRROR", mirror)
    with pytest.raises(InputError, match="GQE_DATA_MIRROR"):
        official.plan(official.collection("roxford5k"), tmp_path)
