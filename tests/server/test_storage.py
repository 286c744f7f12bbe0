"""Disks that are full, files that are gone: told as what they are, without a path, and over when mended."""

from __future__ import annotations

import logging
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest

from gqe.errors import DamagedError, StorageError
from gqe.server import Settings
from server.worlds import build, describer, jpeg, serving, vectors, wait_until

NEW = {"vectors": vectors(1, seed=5).tolist()}


@pytest.fixture
def served(tmp_path):
    with serving(build(tmp_path / "index"), Settings(poll_seconds=0.05), describe=describer()) as running:
        yield running


@contextmanager
def files_up_to(size: int):
    """No file may grow larger: as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def assert_told(answer, status: int, path: Path) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) > 0
    assert str(path) not in answer.text
    assert len(answer.json()["detail"].splitlines()) == 1


def test_a_full_disk(served, tmp_path, caplog) -> None:
    with files_up_to(512):
        assert_told(served.post("/v1/items", NEW), 507, tmp_path)
    assert str(tmp_path) in caplog.text  # the log has what the client must not know
    assert served.post("/v1/items", NEW).status_code == 200


def test_an_upload_that_finds_no_room(served, tmp_path) -> None:
    large = {"picture": ("a.jpg", jpeg() + bytes(3 << 20))}  # kept on the disk while it is read
    small = {"picture": ("a.jpg", jpeg(side=512))}
    with files_up_to(4096):
        assert_told(served.client.post("/v1/describe", files=large), 507, tmp_path)
        assert_told(served.client.post("/v1/describe", files=small), 507, tmp_path)
    assert served.client.post("/v1/describe", files=small).status_code == 200


def test_a_place_for_uploads_that_is_gone(served, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert_told(served.client.post("/v1/describe", files={"picture": jpeg()}), 503, tmp_path)


def test_no_file_can_be_opened(served, tmp_path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        answer = served.post("/v1/items", NEW)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert_told(answer, 503, tmp_path)
    assert served.post("/v1/items", NEW).status_code == 200


@pytest.mark.parametrize("content", [b"{}", b"", b"no JSON", None])
def test_a_damaged_manifest(served, tmp_path, content) -> None:
    manifest = tmp_path / "index" / "manifest.json"
    whole = manifest.read_bytes()
    manifest.unlink() if content is None else manifest.write_bytes(content)
    assert_told(served.post("/v1/items", NEW), 503, tmp_path)
    wait_until(lambda: served.get("/ready").status_code == 503)
    assert served.post("/v1/search", {"ids": [1]}).status_code == 200  # from what is open
    manifest.write_bytes(whole)
    wait_until(lambda: served.get("/ready").status_code == 200)
    assert served.post("/v1/items", NEW).status_code == 200


@pytest.mark.parametrize("name", ["manifest.json", "vectors.00000001.npy"])
def test_ready_tells_that_a_file_is_gone(served, tmp_path, name) -> None:
    path = tmp_path / "index" / name
    path.rename(tmp_path / "away")
    wait_until(lambda: served.get("/ready").status_code == 503)
    assert served.get("/health").status_code == 200
    (tmp_path / "away").rename(path)
    wait_until(lambda: served.get("/ready").status_code == 200)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StorageError("/secret/a: cannot be written", full=True), 507),
        (StorageError("/secret/a: cannot be read"), 503),
        (DamagedError("/secret/a: damaged"), 503),
        (OSError(24, "Too many open files", "/secret/a"), 503),
        (OSError(28, "No space left on device", "/secret/a"), 507),
        (MemoryError(), 503),
    ],
)
def test_errors_of_the_system(served, caplog, error, status) -> None:
    caplog.set_level(logging.ERROR)

    def search(*_):
        raise error

    served.app.state.service.engine.search = search
    assert_told(served.post("/v1/search", {"ids": [1]}), status, Path("/secret"))
    assert caplog.text


def test_a_removed_item_has_no_picture(tmp_path) -> None:
    index = build(tmp_path / "index", n=9)
    with serving(index, Settings(poll_seconds=0.05), pictures=lambda item, side: b"picture") as served:
        assert served.get("/v1/picture", params={"id": 3}).status_code == 200
        assert served.get("/v1/picture", params={"id": 4}).status_code == 200
        served.post("/v1/items/remove", {"ids": [3]})
        assert served.get("/v1/picture", params={"id": 3}).status_code == 404
        assert served.get("/v1/picture", params={"id": 4}).status_code == 200
