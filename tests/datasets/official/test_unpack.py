from __future__ import annotations

import io
import resource
import tarfile
from pathlib import Path

import numpy as np
import pytest

from gqe import InputError
from gqe.datasets.official.unpack import unpack


def archive(path: Path, files: dict[str, bytes], odd: tarfile.TarInfo | None = None) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        if odd is not None:
            tar.addfile(odd)
    return path


def everything(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_files_with_and_without_their_folders(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "a.tgz", {"paris/a/1.jpg": b"one", "paris/b/2.jpg": b"two", "paris/._x": b"mac"}
    )
    assert unpack(path, tmp_path / "deep") == 2
    assert everything(tmp_path / "deep") == {"paris/a/1.jpg": b"one", "paris/b/2.jpg": b"two"}
    unpack(path, tmp_path / "flat", flat=True)
    assert everything(tmp_path / "flat") == {"1.jpg": b"one", "2.jpg": b"two"}


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tgz", {"1.jpg": b"first", "2.jpg": b"second", "3.jpg": b"third"})
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "1.jpg").write_bytes(b"first")
    (folder / "2.jpg").write_bytes(b"sec")  # cut when the command was killed
    before = (folder / "1.jpg").stat().st_mtime_ns
    unpack(path, folder)
    assert everything(folder) == {"1.jpg": b"first", "2.jpg": b"second", "3.jpg": b"third"}
    assert (folder / "1.jpg").stat().st_mtime_ns == before


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize(
    "name", ["../evil.jpg", "a/../../evil.jpg", "/tmp/evil.jpg", "..\\evil.jpg", "c:evil"]
)
def test_nothing_is_written_outside(tmp_path: Path, name: str, flat: bool) -> None:
    (tmp_path / "in").mkdir()
    path = archive(tmp_path / "in" / "a.tgz", {name: b"x"})
    with pytest.raises(InputError, match="outside its folder"):
        unpack(path, tmp_path / "in" / "out", flat=flat)
    assert [found.name for found in tmp_path.rglob("*evil*")] == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    odd = tarfile.TarInfo("odd.jpg")
    odd.type, odd.linkname = kind, "/etc/passwd"
    with pytest.raises(InputError, match="link or a device"):
        unpack(archive(tmp_path / "a.tgz", {}, odd), tmp_path / "out")
    assert everything(tmp_path / "out") == {}


@pytest.mark.parametrize("damage", ["cut", "changed", "text", "empty"])
def test_a_damaged_archive(tmp_path: Path, damage: str) -> None:
    path = archive(tmp_path / "a.tgz", {"1.jpg": np.random.default_rng(0).bytes(50_000)})
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[:30_000]
    elif damage == "changed":
        content[20_000:20_010] = b"0123456789"
    elif damage == "text":
        content = bytearray(b"<html>moved</html>")
    else:
        content = bytearray(archive(tmp_path / "none.tgz", {}).read_bytes())
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.tgz: (is a damaged archive|holds no files)"):
        unpack(path, tmp_path / "out")
    assert everything(tmp_path / "out") == {}  # nothing that a second try would take for complete


def test_a_full_disk(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tgz", {"1.jpg": bytes(200_000)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(InputError, match="cannot be written"):
            unpack(path, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    unpack(path, tmp_path / "out")
    assert everything(tmp_path / "out") == {"1.jpg": bytes(200_000)}


def test_nothing_is_written_through_a_link_that_lies_there(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").symlink_to(tmp_path / "elsewhere")
    path = archive(tmp_path / "a.tgz", {"a/1.jpg": b"x"})
    with pytest.raises(InputError, match="outside its folder"):
        unpack(path, tmp_path / "in")
    assert not any((tmp_path / "elsewhere").iterdir())
