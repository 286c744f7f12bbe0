"""What a job takes over from an earlier one, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gqe.cluster.job import JobState
from gqe.cluster.storage import RemoteFolder, SharedFolder
from gqe.errors import DamagedError, InputError
from gqe.index import verify
from gqe.index.files import FileRecord, record_of, write_array
from gqe.index.manifest import BUILDING
from gqe.models import expander
from index.in_shards import Stopped, build_in_shards
from index.worlds import vectors

NAMES = ["ids.00000001.npy", "vectors-shard-00000.00000001.npy"]


def job(folder: Path, fingerprint: str = "first") -> JobState:
    return JobState(SharedFolder(folder), fingerprint, [(0, 3)], names=lambda _: NAMES)


def finished(folder: Path) -> JobState:
    made = job(folder)
    made.put(NAMES[0], lambda path: write_array(path, np.arange(3)))
    return made


def test_a_file_of_somebody_else_is_neither_overwritten_nor_removed(tmp_path: Path) -> None:
    (tmp_path / NAMES[1]).write_text("mine")
    (tmp_path / "embeddings.20240101.npy").write_text("mine, too")
    with pytest.raises(InputError, match="is not of this job; move it elsewhere"):
        job(tmp_path)
    assert (tmp_path / NAMES[1]).read_text() == "mine"
    (tmp_path / NAMES[1]).unlink()
    finished(tmp_path)
    job(tmp_path, "another")
    assert (tmp_path / "embeddings.20240101.npy").read_text() == "mine, too"


def test_what_another_job_left_is_removed(tmp_path: Path) -> None:
    finished(tmp_path)
    (tmp_path / NAMES[1]).write_text("made by a worker, and not noted any more")
    (tmp_path / f".building.{'0' * 16}.npy").write_text("half made by a worker")
    made = job(tmp_path, "another")
    assert [path.name for path in tmp_path.iterdir()] == [BUILDING]
    assert made.done == {}


def test_what_was_damaged_meanwhile_is_not_taken_over(tmp_path: Path) -> None:
    finished(tmp_path)
    assert list(job(tmp_path).done) == [NAMES[0]]
    content = bytearray((tmp_path / NAMES[0]).read_bytes())
    content[-1] ^= 1
    (tmp_path / NAMES[0]).write_bytes(content)
    assert job(tmp_path).done == {}


def test_a_shard_that_was_damaged_meanwhile_is_made_again(tmp_path: Path) -> None:
    table, path = vectors(60), tmp_path / "index"
    with pytest.raises(Stopped):
        build_in_shards(table, expander("aqe-g", k=2), path, 3, stop=("neighbours", 5))
    shard = path / "vectors-shard-00001.00000001.npy"
    content = bytearray(shard.read_bytes())
    content[-4:] = bytes(4)
    shard.write_bytes(content)
    index = build_in_shards(table, expander("aqe-g", k=2), path, 3)
    np.testing.assert_allclose(index.vectors(list(range(60))), table, atol=1e-6)
    assert verify(path) == []


@pytest.mark.parametrize("name", ["../victim", "/victim", "lock", "a\\b"])
def test_a_record_names_files_of_its_folder_only(tmp_path: Path, name: str) -> None:
    folder, victim = tmp_path / "index", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("mine")
    finished(folder)
    record = json.loads((folder / BUILDING).read_text())
    record["done"][name] = [4, ""]
    (folder / BUILDING).write_text(json.dumps(record))
    for fingerprint in ("first", "another"):
        with pytest.raises(InputError, match="names a file"):
            job(folder, fingerprint)
    assert victim.read_text() == "mine"


def test_copies_of_a_node_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a.npy").write_bytes(b"content")
    far, record = RemoteFolder(f"file://{tmp_path}/far"), record_of(tmp_path / "far" / "a.npy")
    with pytest.raises(DamagedError, match=r"a\.npy: arrived damaged"):
        far.fetch({"a.npy": FileRecord(7, "another")})
    assert (far.fetch({"a.npy": record}) / "a.npy").read_bytes() == b"content"
    copies = far._copies()
    assert copies.stat().st_mode & 0o077 == 0
    far.clean()
    copies.symlink_to(tmp_path / "far")
    with pytest.raises(InputError, match="belongs to another user"):
        far.fetch({"a.npy": record})
