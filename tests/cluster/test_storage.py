"""Fetching from somebody who may be hostile, into a folder that may hold something."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem

from gqe.cluster.storage import fetch_index
from gqe.errors import DamagedError, InputError, StorageError
from gqe.index import Index, verify
from gqe.index.files import record_of
from gqe.models import expander
from index.faults import Disk, failing
from index.test_hostile import body_of, rename, signed
from index.worlds import vectors


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "remote"
    Index.build(vectors(20), expander("aqe-g", k=2), path, device="cpu")
    return path


def fetch(remote: Path, target: Path) -> None:
    fetch_index(f"file://{remote}", target)


@pytest.mark.parametrize(
    "name",
    ["../../home/.bashrc", "../victim.npy", "/tmp/gqe-victim.npy", "lock", "..\\victim", "x/../../victim"],
)
def test_no_name_leads_out_of_the_folder(remote: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "a" / "b" / "copy"
    body = body_of(remote)
    rename(body, "vectors.00000001.npy", name)
    (remote / "manifest.json").write_bytes(signed(body))
    before = {path for path in tmp_path.rglob("*") if remote not in path.parents}
    with pytest.raises(InputError, match="names a file"):
        fetch(remote, target)
    assert {path for path in tmp_path.rglob("*") if remote not in path.parents} == before


def test_no_record_of_an_extraction_comes_along(remote: Path, tmp_path: Path) -> None:
    """It would name a folder of this machine whose pictures a service then shows."""
    content = json.dumps({"format": "gqe extraction", "version": 1, "folder": "/"}).encode()
    (remote / "extraction.json").write_bytes(content)
    body = body_of(remote)
    body["files"]["extraction.json"] = list(record_of(remote / "extraction.json"))
    (remote / "manifest.json").write_bytes(signed(body))
    with pytest.raises(InputError, match=r"names a file 'extraction\.json' that it cannot have"):
        fetch(remote, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_links_in_the_folder_are_not_followed(remote: Path, tmp_path: Path) -> None:
    target, victim = tmp_path / "copy", tmp_path / "victim"
    target.mkdir()
    victim.mkdir()
    (victim / "file").write_text("mine")
    (target / "expander").symlink_to(victim)
    with pytest.raises(InputError, match="is a link"):
        fetch(remote, target)
    (target / "expander").unlink()
    (target / "vectors.00000001.npy").symlink_to(victim / "file")
    with pytest.raises(InputError, match="is not of this index; move it"):
        fetch(remote, target)
    assert [path.name for path in victim.iterdir()] == ["file"]
    assert (victim / "file").read_text() == "mine"


def test_a_file_of_somebody_else_is_not_overwritten(remote: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    target.mkdir()
    (target / "vectors.00000001.npy").write_text("mine")
    with pytest.raises(InputError, match=r"vectors.00000001.npy: is not of this index; move it"):
        fetch(remote, target)
    assert (target / "vectors.00000001.npy").read_text() == "mine"


def test_another_index_is_not_mixed_with_this_one(remote: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    Index.build(vectors(9, seed=5), expander("aqe-g", k=2), target, device="cpu")
    with pytest.raises(InputError, match="holds another index; fetch into a new folder"):
        fetch(remote, target)
    assert len(Index.open(target)) == 9
    assert verify(target) == []


def test_a_newer_version_replaces_the_older_one(remote: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    fetch(remote, target)
    Index.open(remote).add(vectors(3, seed=1))
    reader = Index.open(target)
    fetch(remote, target)
    assert len(reader) == 20
    assert len(reader.search(vectors(1), 5).ids[0]) == 5
    Index.open(remote).compact()
    fetch(remote, target)
    assert len(Index.open(target)) == 23
    assert verify(target) == []
    assert {path.name for path in target.iterdir()} == {path.name for path in remote.iterdir()}


def test_an_interrupted_fetch_goes_on(remote: Path, tmp_path: Path) -> None:
    target, fetched = tmp_path / "copy", []

    def stop(done: int, total: int, name: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_index(f"file://{remote}", target, progress=stop)
    with pytest.raises(InputError, match="its fetch was interrupted; run `gqe index fetch` again"):
        Index.open(target)
    fetch_index(f"file://{remote}", target, progress=lambda done, total, name: fetched.append((done, name)))
    assert fetched[0][0] == 3
    assert verify(target) == []
    assert {path.name for path in target.iterdir()} == {path.name for path in remote.iterdir()}


def test_a_damaged_copy_is_repaired(remote: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    fetch(remote, target)
    (target / "vectors.00000001.npy").write_bytes(b"damaged")
    fetch(remote, target)
    assert verify(target) == []


def test_damage_and_a_full_disk_are_told_apart(remote: Path, tmp_path: Path) -> None:
    target = remote.parent / "copy"
    target.mkdir()
    disk = Disk(target, 12, errno.ENOSPC)
    with failing(disk), pytest.raises(StorageError) as caught:
        fetch(remote, target)
    disk.close()
    assert caught.value.full
    (remote / "ids.00000001.npy").write_bytes(b"x" * (remote / "ids.00000001.npy").stat().st_size)
    with pytest.raises(DamagedError, match="arrived damaged"):
        fetch(remote, target)
    with (remote / "manifest.json").open("r+b") as file:
        file.truncate(1 << 30)  # sparse: a manifest that nobody should read into memory
    with pytest.raises(DamagedError, match="it does not end"):
        fetch(remote, target)


class Endless(AbstractFileSystem):
    """A server that tells the size of a file and then sends more; `taken` counts the bytes."""

    protocol = "endless"
    cachable = False
    which = ""
    taken = 0

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": Path("/", path).stat().st_size, "type": "file"}

    def _open(self, path: str, *_: Any, **__: Any) -> Any:
        return io.BytesIO(Path("/", path).read_bytes()) if self.which not in path else self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def read(self, size: int) -> bytes:
        Endless.taken += size
        assert Endless.taken < 64 << 20
        return b" " * size


@pytest.mark.parametrize("which", ["manifest.json", "vectors.00000001.npy"])
def test_a_file_that_does_not_end(
    remote: Path, tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.register_implementation("endless", Endless, clobber=True)
    monkeypatch.setattr(Endless, "which", which)
    monkeypatch.setattr(Endless, "taken", 0)
    monkeypatch.setattr("gqe.cluster.storage._MAX_MANIFEST_BYTES", 1 << 20)
    with pytest.raises(DamagedError, match=f"{which}: arrived damaged, it does not end"):
        fetch_index(f"endless://{remote}", tmp_path / "copy")
    assert not (tmp_path / "copy" / which).exists()
