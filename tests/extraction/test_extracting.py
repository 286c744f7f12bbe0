"""Pictures to files of vectors: what is written, what is skipped, and runs that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from extraction.models import fill, noise, write_model
from gqe import InputError
from gqe.extraction import (
    Describer,
    Network,
    Whitening,
    extract,
    open_network,
    pictures_of_folder,
    read_record,
    save_whitening,
)
from gqe.extraction.pictures import DecodingOptions
from gqe.extraction.record import IN_INDEX, copy_record


@pytest.fixture
def network(tmp_path: Path) -> Network:
    write_model(tmp_path / "net.onnx")
    (tmp_path / "net.toml").write_text('size = 16\nresize = "fit"\nstep = 4\n')
    return open_network(tmp_path / "net.onnx", batch_size=8, threads=1)


def contents(folder: Path, stem: str) -> dict[str, bytes]:
    return {p.name.removeprefix(stem): p.read_bytes() for p in folder.glob(f"{stem}.*") if p.is_file()}


def test_vectors_names_and_record(tmp_path: Path, network: Network) -> None:
    folder = fill(tmp_path / "pictures", 30)
    written = extract(pictures_of_folder(folder), tmp_path / "out.npy", network, folder=folder)
    vectors = np.load(written.vectors)
    names = written.names.read_text().splitlines()
    assert names == [f"{i:04d}.png" for i in range(30)]
    assert written.skipped.read_text() == ""
    expected = network([noise(i, 24, 24 if i % 3 else 18) for i in range(30)])
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert vectors.dtype == np.float32
    about = read_record(written.vectors)
    assert about == read_record(written.record) == written.about
    assert (about.pictures, about.skipped, about.dimension, about.folder) == (30, 0, 8, str(folder))
    assert {p.name for p in tmp_path.glob("out*")} == {
        "out.npy",
        "out.names.txt",
        "out.skipped.tsv",
        "out.extraction.json",
    }


def test_odd_pictures_are_skipped_and_listed(tmp_path: Path, network: Network) -> None:
    folder = fill(tmp_path / "pictures", 5)
    (folder / "empty.jpg").touch()
    (folder / "text.gif").write_text("a letter")
    noise(0, 80, 80).save(folder / "large.png")
    noise(0).save(folder / "line\nbreak.png")
    noise(0).save(folder / " blank.png")
    noise(0).save(folder / os.fsdecode(b"x\xff.png"))
    written = extract(
        pictures_of_folder(folder), tmp_path / "out.npy", network, opening=DecodingOptions(most_pixels=5000)
    )
    skipped = dict(line.split("\t") for line in written.skipped.read_text().splitlines())
    assert {name: reason.split(";")[0] for name, reason in skipped.items()} == {
        "empty.jpg": "empty file",
        "text.gif": "not a picture of a known format",
        "large.png": "larger than 5000 pixels",
        "line\\nbreak.png": "its name has a line break, or blanks around it",
        " blank.png": "its name has a line break, or blanks around it",
        "x\\udcff.png": "its name is not UTF-8",
    }
    assert written.names.read_text().splitlines() == [f"{i:04d}.png" for i in range(5)]
    assert len(np.load(written.vectors)) == written.about.pictures == 5
    assert written.about.skipped == 6


def test_vectors_without_length_are_skipped(tmp_path: Path, network: Network) -> None:
    from PIL import Image

    folder = fill(tmp_path / "pictures", 3)
    Image.new("RGB", (24, 24)).save(folder / "black.png")  # this model sees nothing in black
    written = extract(pictures_of_folder(folder), tmp_path / "out.npy", network)
    assert "no length" in written.skipped.read_text()
    assert "black" not in written.names.read_text()


def test_whitening_is_applied_and_recorded(tmp_path: Path, network: Network) -> None:
    folder = fill(tmp_path / "pictures", 12)
    white = Whitening(np.full(8, 0.1), np.random.default_rng(0).normal(size=(8, 3)))
    save_whitening(tmp_path / "white.npz", white)
    pictures = pictures_of_folder(folder)
    plain = np.load(extract(pictures, tmp_path / "plain.npy", network).vectors)
    written = extract(
        *(pictures, tmp_path / "white.npy", network),
        whitening=white,
        whitening_file=str(tmp_path / "white.npz"),
    )
    np.testing.assert_allclose(np.load(written.vectors), white.apply(plain), atol=1e-6)
    describer = Describer(read_record(written.record))
    found = describer([folder / "0003.png", folder / "0007.png"])
    np.testing.assert_allclose(found, np.load(written.vectors)[[3, 7]], atol=1e-5)
    save_whitening(tmp_path / "white.npz", Whitening(np.zeros(8), white.projection))
    with pytest.raises(InputError, match=r"white\.npz: not the whitening"):
        Describer(read_record(written.record))
    with pytest.raises(InputError, match="learned from 5 dimensions, the network gives 8"):
        extract(pictures, tmp_path / "x.npy", network, whitening=Whitening(np.zeros(5), np.eye(5)))


def test_another_network_is_noticed(tmp_path: Path, network: Network) -> None:
    folder = fill(tmp_path / "pictures", 3)
    written = extract(pictures_of_folder(folder), tmp_path / "out.npy", network)
    (tmp_path / "net.toml").write_text("size = 16\n")
    with pytest.raises(InputError, match=r"net\.onnx: not the network the vectors were made with"):
        Describer(written.about)


def test_a_finished_run_is_not_repeated_and_a_changed_one_is(tmp_path: Path, network: Network) -> None:
    folder = fill(tmp_path / "pictures", 6)
    out = tmp_path / "out.npy"
    extract(pictures_of_folder(folder), out, network)
    before = out.stat().st_mtime_ns
    extract(pictures_of_folder(folder), out, network)
    assert out.stat().st_mtime_ns == before
    noise(99).save(folder / "0002.png")
    extract(pictures_of_folder(folder), out, network)
    assert out.stat().st_mtime_ns != before
    np.testing.assert_allclose(np.load(out)[2], network([noise(99)])[0], atol=1e-5)
    (folder / "0002.png").unlink()
    assert extract(pictures_of_folder(folder), out, network).about.pictures == 5


SLOW = """
import sys, time
from pathlib import Path
from gqe.extraction import extract, open_network, pictures_of_folder
network = open_network(sys.argv[1], batch_size=8, threads=1)
run = network.run
network.run = lambda pixels: (time.sleep(0.02), run(pixels))[1]
extract(pictures_of_folder(sys.argv[2]), sys.argv[3], network, workers=1)
"""


def children(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux")
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(tmp_path: Path, network: Network) -> None:
    folder = fill(tmp_path / "pictures", 700)
    (folder / "0300.png").write_text("a letter")
    pictures = pictures_of_folder(folder)
    extract(pictures, tmp_path / "unbroken.npy", network)
    command = [
        sys.executable,
        "-c",
        SLOW,
        str(tmp_path / "net.onnx"),
        str(folder),
        str(tmp_path / "killed.npy"),
    ]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    process = subprocess.Popen(command, env=env)
    parts = tmp_path / "killed.parts"
    deadline = time.time() + 60
    while not list(parts.glob("part-*")) and time.time() < deadline:
        time.sleep(0.01)
    workers = children(process.pid)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed.npy").exists()
    assert 1 <= len(list(parts.glob("part-*"))) < 3
    assert workers
    deadline = time.time() + 20
    while (
        any(Path(f"/proc/{pid}").exists() and not zombie(pid) for pid in workers) and time.time() < deadline
    ):
        time.sleep(0.05)
    assert all(zombie(pid) for pid in workers if Path(f"/proc/{pid}").exists())
    half = f".part-{'0' * 16}-000001.{'0' * 16}.tmp.npz"
    (parts / half).write_bytes(b"half of a part")
    (parts / "part-of-my-own.npz").write_text("mine")
    calls: list[int] = []
    extract(pictures, tmp_path / "killed.npy", network, progress=lambda done, total, name: calls.append(done))
    assert calls[0] > 256  # what was done is not done again
    assert calls[-1] == 700
    assert contents(tmp_path, "killed") == contents(tmp_path, "unbroken")
    assert [path.name for path in parts.iterdir()] == ["part-of-my-own.npz"]


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_damaged_part_is_made_again(tmp_path: Path, network: Network) -> None:
    folder = fill(tmp_path / "pictures", 300)
    pictures = pictures_of_folder(folder)

    class Stop(Exception):
        pass

    def stop(done: int, total: int, name: str) -> None:
        if done == 280:
            raise Stop

    with pytest.raises(Stop):
        extract(pictures, tmp_path / "out.npy", network, progress=stop)
    (part,) = (tmp_path / "out.parts").iterdir()
    part.write_bytes(part.read_bytes()[:-100])
    calls: list[int] = []
    extract(pictures, tmp_path / "out.npy", network, progress=lambda done, total, name: calls.append(done))
    assert calls[0] == 1
    assert len(np.load(tmp_path / "out.npy")) == 300


def test_workers_change_nothing(tmp_path: Path, network: Network) -> None:
    pictures = pictures_of_folder(fill(tmp_path / "pictures", 70))
    for workers in (0, 2):
        extract(pictures, tmp_path / f"by{workers}.npy", network, workers=workers)
    assert contents(tmp_path, "by0") == contents(tmp_path, "by2")


def test_bad_input(tmp_path: Path, network: Network) -> None:
    folder = fill(tmp_path / "pictures", 2)
    pictures = pictures_of_folder(folder)
    with pytest.raises(InputError, match=r"out\.txt: vectors are written to \.npy"):
        extract(pictures, tmp_path / "out.txt", network)
    with pytest.raises(InputError, match="cannot be written"):
        extract(pictures, tmp_path / "absent" / "out.npy", network)
    with pytest.raises(InputError, match="workers: -1"):
        extract(pictures, tmp_path / "out.npy", network, workers=-1)
    for path in folder.iterdir():
        path.write_text("a letter")
    with pytest.raises(InputError, match=r"0000\.png: not a picture .* no other of 2 pictures"):
        extract(pictures, tmp_path / "out.npy", network)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "not a record of gqe extract"),
        ({"version": 2}, "version 2 is unknown"),
        ({"extra": 1}, "not a readable record"),
        ({"network": 3}, "'network' is not a str"),
    ],
)
def test_records_that_do_not_fit(
    tmp_path: Path, network: Network, change: dict[str, object], words: str
) -> None:
    written = extract(pictures_of_folder(fill(tmp_path / "pictures", 2)), tmp_path / "out.npy", network)
    content = json.loads(written.record.read_text()) | change
    written.record.write_text(json.dumps(content))
    with pytest.raises(InputError, match=words):
        read_record(written.vectors)


def test_an_index_is_told_how_its_vectors_were_made(tmp_path: Path, network: Network) -> None:
    (tmp_path / "index").mkdir()
    assert not copy_record(tmp_path / "out.npy", tmp_path / "index")
    written = extract(pictures_of_folder(fill(tmp_path / "pictures", 2)), tmp_path / "out.npy", network)
    assert copy_record(written.vectors, tmp_path / "index")
    assert read_record(tmp_path / "index" / IN_INDEX) == written.about
