from __future__ import annotations

import gzip
import io
import resource
import tarfile
import tracemalloc
from contextlib import suppress
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


def pax(path: Path, record: bytes, size: int | None = None) -> Path:
    """An archive whose only file has this record of particulars before it."""
    particulars = tarfile.TarInfo("particulars")
    particulars.type, particulars.size = tarfile.XHDTYPE, len(record) if size is None else size
    file = tarfile.TarInfo("a.jpg")
    file.size = 3
    blocks = [particulars.tobuf(), record.ljust(-(-len(record) // 512) * 512, b"\0")]
    path.write_bytes(b"".join([*blocks, file.tobuf(), b"abc".ljust(512, b"\0"), bytes(1024)]))
    return path


@pytest.mark.parametrize(
    "record",
    [
        b"99 path=a\n",
        b"x path=a\n",
        b"12 mtime=x\n",
        b"13 size=abc\n",
        b"15 path=a\0b.jpg\n",
        b"30 GNU.sparse.size=99999999999\n",
        b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n24 GNU.sparse.realsize=9\n",
        b"28 GNU.sparse.map=0,1,2,x,y\n",
        b"18 path=\xff\xfe\xff.jpg\n",
        b"\xb2 path=a\n",
        b"9" * 5000 + b" path=a\n",
    ],
)
def test_broken_particulars_are_refused_in_one_line_or_read(tmp_path: Path, record: bytes) -> None:
    path = pax(tmp_path / "a.tar", record)
    with suppress(InputError):  # and nothing else
        assert unpack(path, tmp_path / "out") == 1
        return
    assert not everything(tmp_path / "out")


def test_particulars_of_any_length_are_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    header = tarfile.TarInfo("particulars")
    header.type, header.size = tarfile.XHDTYPE, 200 << 20
    with gzip.open(path, "wb") as stream:
        stream.write(header.tobuf())
        for _ in range(200):
            stream.write(bytes(1 << 20))
    tracemalloc.start()
    with pytest.raises(InputError, match="a header of 209715200 bytes"):
        unpack(path, tmp_path / "out")
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()


def test_a_sparse_file_is_refused(tmp_path: Path) -> None:
    sparse = tarfile.TarInfo("a.jpg")
    sparse.type, sparse.size = tarfile.GNUTYPE_SPARSE, 0
    header = bytearray(sparse.tobuf())
    header[386:398] = b"%011o\0" % 0
    header[483:495] = b"%011o\0" % (1 << 20)  # its size when unpacked
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(bytes(header) + bytes(1024))
    with pytest.raises(InputError, match="not a file"):
        unpack(tmp_path / "a.tar", tmp_path / "out")
    assert not everything(tmp_path / "out")


def test_an_archive_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tgz", {"1.jpg": b"one", "2.jpg": bytes(70 << 20)})
    with pytest.raises(InputError, match="more than 20 times its own size"):
        unpack(path, tmp_path / "out")
    assert not everything(tmp_path / "out")


def test_what_a_refused_archive_left_is_removed(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tgz", {"1.jpg": b"one", "../2.jpg": b"two"})
    with pytest.raises(InputError, match="outside its folder"):
        unpack(path, tmp_path / "out")
    assert not everything(tmp_path / "out")


def test_a_link_in_the_folder_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "1.jpg").symlink_to(tmp_path / "other.jpg")
    path = archive(tmp_path / "a.tgz", {"some/1.jpg": b"one"})
    with pytest.raises(InputError, match="outside its folder"):
        unpack(path, tmp_path / "out", flat=True)
    assert not (tmp_path / "other.jpg").exists()


def test_a_tar_that_ends_at_a_broken_header_is_damaged(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("1.jpg", "2.jpg"):
            info = tarfile.TarInfo(name)
            info.size = 600
            tar.addfile(info, io.BytesIO(b"x" * 600))
    content = bytearray((tmp_path / "a.tar").read_bytes())
    content[1536] ^= 0xFF  # the second file's name no longer fits its checksum
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        unpack(tmp_path / "a.tar", tmp_path / "out")
