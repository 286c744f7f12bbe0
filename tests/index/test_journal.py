"""A table is computed, written and noted by three threads; whatever fails, what is noted is right."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import numpy as np
import pytest

from gqe.errors import InputError
from gqe.index import journal
from gqe.index.files import ArrayWriter, record_of
from gqe.index.journal import Journal
from gqe.index.manifest import BUILDING

NAME = "table.00000001.npy"
ROWS = 100
TABLE = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_BLOCK", 10)
    monkeypatch.setattr(journal, "_CHECKPOINT", 0.0)


def write(folder: Path, encode=np.asarray, work=lambda start, stop: TABLE[start:stop], progress=None) -> None:
    with Journal(folder, "fingerprint", progress, [NAME]) as writing:
        writing.table(NAME, TABLE.dtype, TABLE.shape, work, "table", encode)
        writing.wait_for_disk()


def noted(folder: Path) -> dict:
    return json.loads((folder / BUILDING).read_text())


class Failed(Exception):
    pass


def test_a_whole_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gqe.index.journal"):
        write(tmp_path)
    path = tmp_path / NAME
    np.testing.assert_array_equal(np.load(path), TABLE)
    assert noted(tmp_path)["done"] == {path.name: list(record_of(path))}
    assert noted(tmp_path)["partial"] == {}
    what, seconds, writing = caplog.records[-1].args
    assert what == "table"
    assert 0 <= writing <= seconds


@pytest.mark.parametrize("failing", [0, 30, 40, 90])
@pytest.mark.parametrize("where", ["compute", "encode"])
def test_a_block_that_fails(tmp_path: Path, failing: int, where: str) -> None:
    """Blocks behind it may have been computed, but they are not written in its place."""

    def work(start: int, stop: int) -> tuple[int, np.ndarray]:
        if where == "compute" and start == failing:
            raise Failed
        return start, TABLE[start:stop]

    def encode(block: tuple[int, np.ndarray]) -> np.ndarray:
        if where == "encode" and block[0] == failing:
            time.sleep(0.02)  # the next ones are there already
            raise Failed
        return block[1]

    with pytest.raises(Failed):
        write(tmp_path, encode, work)
    assert noted(tmp_path)["done"] == {}
    assert noted(tmp_path)["partial"].get(NAME, [0])[0] == failing
    begun: list[int] = []

    def again(start: int, stop: int) -> np.ndarray:
        begun.append(start)
        return TABLE[start:stop]

    write(tmp_path, work=again)
    assert begun == list(range(failing, ROWS, 10))
    np.testing.assert_array_equal(np.load(tmp_path / NAME), TABLE)


def test_a_disk_that_fails_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: ArrayWriter) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ArrayWriter, "flush", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path)


def test_computing_is_not_more_than_a_few_blocks_ahead(tmp_path: Path) -> None:
    computed, most = 0, 0

    def work(start: int, stop: int) -> np.ndarray:
        nonlocal computed
        computed += 1
        return TABLE[start:stop]

    def encode(block: np.ndarray) -> np.ndarray:
        nonlocal most
        time.sleep(0.01)
        most = max(most, computed - encoded_blocks[0])
        encoded_blocks[0] += 1
        return block

    encoded_blocks = [0]
    write(tmp_path, encode, work)
    assert 2 <= most <= journal._AHEAD + 1


class Stopped(Exception):
    pass


def stopped_in_the_middle(folder: Path) -> None:
    def work(start: int, stop: int) -> np.ndarray:
        if start == 60:
            raise Stopped
        return TABLE[start:stop]

    with pytest.raises(Stopped):
        write(folder, work=work)


@pytest.mark.parametrize("finished", [True, False])
def test_what_was_damaged_meanwhile_is_written_anew(tmp_path: Path, finished: bool) -> None:
    if finished:
        write(tmp_path)
    else:
        stopped_in_the_middle(tmp_path)
    content = bytearray((tmp_path / NAME).read_bytes())
    content[200] ^= 1
    (tmp_path / NAME).write_bytes(content)
    begun: list[int] = []

    def work(start: int, stop: int) -> np.ndarray:
        begun.append(start)
        return TABLE[start:stop]

    write(tmp_path, work=work)
    assert begun[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / NAME), TABLE)


def test_a_file_of_somebody_else_is_neither_overwritten_nor_removed(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("mine")
    (tmp_path / "embeddings.20240101.npy").write_text("mine, too")
    with pytest.raises(InputError, match="is not of this build; move it"):
        write(tmp_path)
    assert (tmp_path / NAME).read_text() == "mine"
    (tmp_path / NAME).unlink()
    stopped_in_the_middle(tmp_path)
    write(tmp_path)
    assert (tmp_path / "embeddings.20240101.npy").read_text() == "mine, too"


@pytest.mark.parametrize("name", ["../victim.npy", "/etc/victim", "manifest.json", "a\\b", "a\0b"])
def test_a_journal_names_files_of_its_folder_only(tmp_path: Path, name: str) -> None:
    folder, victim = tmp_path / "index", tmp_path / "victim.npy"
    folder.mkdir()
    victim.write_text("mine")
    stopped_in_the_middle(folder)
    journal = noted(folder)
    journal["names"].append(name)
    journal["partial"][name] = [0, ""]
    (folder / BUILDING).write_text(json.dumps(journal))
    with pytest.raises(InputError, match="names a file"):
        write(folder)
    assert victim.read_text() == "mine"
