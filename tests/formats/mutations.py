"""Small valid files of every kind that is read, changed at random, and read by a process with limits.

As a program it reads files: standard input has a line "READER PATH" for each, standard output one with the
outcome. A file that takes too long or crashes the process ends it, and the one who asked sees at which file.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

SECONDS = 10
"""That a file may take; whole ones take milliseconds."""
MEMORY = 128 << 20
"""Bytes that a file of a few kilobytes may take."""
TABLE = (np.arange(15).reshape(5, 3) + 100).astype("f4")
TRUTH = {
    "imlist": ["a", "b", "c"],
    "qimlist": ["q", "r"],
    "gnd": [
        {"easy": [0], "hard": [1], "junk": [], "bbx": [1.0, 2.0, 3.0, 4.0]},
        {"easy": [], "hard": [0, 2], "junk": [1], "bbx": [1.0, 2.0, 3.0, 4.0]},
    ],
}


def _vectors(path: Path, dtype: str = "f4") -> None:
    from gqe.formats import write_vectors

    write_vectors(path, TABLE.astype(dtype))


def _hdf5(path: Path, **options: object) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("train", data=TABLE, **options)
        file.create_dataset("group/test", data=TABLE[:2])


def _matlab(path: Path, content: dict[str, object] | None = None, **options: object) -> None:
    import scipy.io

    scipy.io.savemat(path, content or {"X": TABLE, "word": "text"}, **options)


def _matlab_73(path: Path) -> None:
    import h5py

    with h5py.File(path, "w", userblock_size=512) as file:
        file["X"] = TABLE.T
        file["X"].attrs["MATLAB_class"] = np.bytes_("single")
    with path.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")


def _matlab_truth() -> dict[str, object]:
    entries = [
        {name: np.array(ids, "f8") + 1 for name, ids in entry.items()}
        for entry in TRUTH["gnd"]  # type: ignore[attr-defined]
    ]
    names = {key: np.array(TRUTH[key], object) for key in ("imlist", "qimlist")}
    return {"gnd": np.array(entries, object), **names}


def _parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"v": TABLE.tolist(), "n": [1, 2, 3, 4, 5]}), path)


def _safetensors(path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a": TABLE, "b": TABLE[:, 0].copy()}, path)


def _pickle(path: Path, content: object, protocol: int = 2) -> None:
    path.write_bytes(pickle.dumps(content, protocol))


def _tar(path: Path, **options: object) -> None:
    folder = path.parent / f"{path.name}.content"
    (folder / "in").mkdir(parents=True, exist_ok=True)
    (folder / "a.jpg").write_bytes(b"one" * 50)
    (folder / "in" / ("long" * 40 + ".jpg")).write_bytes(b"two" * 50)
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w", **options) as tar:
        tar.add(folder, arcname=".")


def _picture(path: Path) -> None:
    from PIL import Image

    image = Image.fromarray(np.arange(20 * 24 * 3, dtype=np.uint8).reshape(20, 24, 3))
    image.save(path, exif=Image.Exif())


def _onnx(path: Path) -> None:
    from extraction.models import write_model

    write_model(path)
    path.with_suffix(".toml").write_text("size = 8\n")


def _checkpoint(path: Path, *, as_zip: bool = True) -> None:
    import torch

    content = {"m": torch.zeros(3, 1), "P": torch.eye(3), "meta": {"mean": [0.0]}}
    torch.save(content, path, _use_new_zipfile_serialization=as_zip)


def _model(path: Path) -> None:
    config = {"format": "gqe-model", "version": 1, "name": "m", "checksum": "0" * 32}
    levels = [{"aggregator": "attention", "dim": 16, "k": 4, "heads": 2, "feedforward": 32}]
    path.write_text(json.dumps(config | {"levels": levels, "contrast": 0.5, "about": {}}))


MAKERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a.npy": ("vectors", _vectors),
    "a.npz": ("arrays", _vectors),
    "compressed.npz": ("arrays", lambda path: np.savez_compressed(path, a=TABLE, b=np.arange(3))),
    "a.fvecs": ("vectors", _vectors),
    "a.bvecs": ("vectors", lambda path: _vectors(path, "u1")),
    "a.ivecs": ("vectors", lambda path: _vectors(path, "i4")),
    "a.fbin": ("vectors", _vectors),
    "a.u8bin": ("vectors", lambda path: _vectors(path, "u1")),
    "a.i8bin": ("vectors", lambda path: _vectors(path, "i1")),
    "a.hdf5": ("vectors", _hdf5),
    "chunked.h5": ("vectors", lambda path: _hdf5(path, chunks=(2, 3), compression="gzip", fletcher32=True)),
    "a.parquet": ("vectors", _vectors),
    "lists.parquet": ("vectors", _parquet),
    "a.safetensors": ("vectors", _safetensors),
    "a.mat": ("vectors", _matlab),
    "compressed.mat": ("vectors", lambda path: _matlab(path, do_compression=True)),
    "four.mat": ("vectors", lambda path: _matlab(path, format="4")),
    "seven.mat": ("vectors", _matlab_73),
    "a.pkl": ("vectors", lambda path: _pickle(path, {"vecs": TABLE, "names": ["a", "b"]})),
    "a.pickle": ("vectors", lambda path: _pickle(path, TABLE, 5)),
    "gnd.json": ("truth", lambda path: path.write_text(json.dumps(TRUTH)) and None),
    "gnd.pkl": ("truth", lambda path: _pickle(path, TRUTH)),
    "gnd_text.pkl": ("truth", lambda path: _pickle(path, TRUTH, 0)),
    "gnd.mat": ("truth", lambda path: _matlab(path, _matlab_truth())),
    "gnd_compressed.mat": ("truth", lambda path: _matlab(path, _matlab_truth(), do_compression=True)),
    "a.tar": ("archive", _tar),
    "pax.tar": ("archive", lambda path: _tar(path, format=tarfile.PAX_FORMAT)),
    "a.tgz": ("archive", _tar),
    "a.jpg": ("picture", _picture),
    "a.png": ("picture", _picture),
    "a.webp": ("picture", _picture),
    "a.tiff": ("picture", _picture),
    "a.onnx": ("network", _onnx),
    "a.pth": ("whitening", _checkpoint),
    "old.pth": ("whitening", lambda path: _checkpoint(path, as_zip=False)),
    "config.json": ("model", _model),
}


def mutated(content: bytes, chance: random.Random) -> bytes:
    """The content with one to four changes of the kinds that break readers."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(changed)) if changed else 0
        kind = chance.randrange(8)
        if kind == 0:
            changed[place : place + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            changed[place : place + 1] = bytes([chance.choice((0, 1, 0x7F, 0x80, 0xFF))])
        elif kind == 2:
            changed[place : place + 1] = bytes(
                [(changed[place] ^ (1 << chance.randrange(8))) if changed else 0]
            )
        elif kind == 3:
            number = chance.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**24, 65536))
            changed[place : place + 4] = number.to_bytes(4, chance.choice(("little", "big")))
        elif kind == 4:
            number = chance.choice((2**63 - 1, 2**64 - 1, 2**40, 2**33))
            changed[place : place + 8] = number.to_bytes(8, chance.choice(("little", "big")))
        elif kind == 5:
            del changed[place : place + chance.randint(1, 16)]
        elif kind == 6:
            part = changed[place : place + chance.randint(1, 64)]
            changed[place:place] = part * chance.choice((1, 2, 50))
        else:
            del changed[place:]
    return bytes(changed)


def outcomes(files: Iterable[tuple[str, Path]]) -> dict[Path, str]:
    """What came of reading each file by its reader: "read", "refused", or how it should not have ended."""
    left = list(files)
    whole = left[0]
    found: dict[Path, str] = {}
    while left:
        child = subprocess.run(
            [sys.executable, __file__],
            input="".join(f"{reader} {path}\n" for reader, path in left),
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
        )
        lines = child.stdout.splitlines()
        for (_, path), line in zip(left, lines, strict=False):
            found[path] = line
        left = left[len(lines) :]
        if left:
            last = child.stderr.strip().splitlines()[-1:] or [""]
            found[left[0][1]] = f"ended by {-child.returncode} {last[0][:200]}"
            left = [whole, *left[1:]] if len(left) > 1 else []
    return found


def _read(reader: str, path: Path) -> None:
    if reader == "vectors":
        from gqe.formats import read_vectors

        np.array(read_vectors(path)).sum()
    elif reader == "arrays":
        from gqe.formats import read_arrays

        read_arrays(path)
    elif reader == "truth":
        from gqe.formats import read_ground_truth

        read_ground_truth(path)
    elif reader == "archive":
        from gqe.datasets.official.unpack import unpack

        unpack(path, path.parent / f"{path.name}.out")
    elif reader == "picture":
        from gqe.extraction.pictures import open_picture

        open_picture(path)
    elif reader == "network":
        from gqe.extraction.onnx_network import OnnxNetwork

        OnnxNetwork(path, threads=1)
    elif reader == "whitening":
        from gqe.extraction.checkpoints import read_learned_whitening

        read_learned_whitening(path, None, several_scales=False)
    elif reader == "model":
        from gqe.model_files import load_model

        load_model(path.parent)


def main() -> None:
    """Read the files named by standard input."""
    from gqe.errors import InputError

    given = [line.rstrip("\n").split(" ", 1) for line in sys.stdin]
    for number, (reader, name) in enumerate(given):
        if number == 1:  # of the first the libraries are loaded
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), -1))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            _read(reader, Path(name))
            outcome = "read"
        except InputError as error:
            text = str(error)
            outcome = "refused" if len(text.splitlines()) == 1 else f"several lines: {text!r}"
        except BaseException as error:
            outcome = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        signal.setitimer(signal.ITIMER_REAL, 0)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if grown > MEMORY >> 10 and Path(name).parent.name != "whole":
            outcome = f"memory: {grown >> 10} MiB ({outcome})"
        print(outcome, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
