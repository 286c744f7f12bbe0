"""Small files of the exact official layouts."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

NAMES = [f"oxford_{number:06d}" for number in (3, 1, 4, 15, 9, 2, 6, 5, 35, 8, 97, 93)]
QUERIES = ["all_souls_000013", "keble_000055", "oriel_000007"]
DIM = 5


def unit(n: int, d: int = DIM, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


DATABASE = unit(len(NAMES), seed=1)
QUERY = unit(len(QUERIES), seed=2)


def truth() -> dict[str, Any]:
    """As gnd_roxford5k.pkl: lists of names, and for every query lists of ids and a box."""
    gnd = [
        {"bbx": [136.5, 34.1, 648.5, 955.7], "easy": [0, 4], "hard": [7], "junk": [2]},
        {"bbx": [1.0, 2.0, 30.0, 40.0], "easy": [], "hard": [1, 5], "junk": []},
        {"bbx": [0.0, 0.0, 10.0, 10.0], "easy": [11], "hard": [], "junk": [3, 6]},
    ]
    return {"imlist": list(NAMES), "qimlist": list(QUERIES), "gnd": gnd}


def truth_bytes() -> bytes:
    return pickle.dumps(truth(), protocol=2)


def mat_bytes() -> bytes:
    """As the published descriptors: X (d, n) and Q (d, m)."""
    stream = io.BytesIO()
    scipy.io.savemat(stream, {"X": DATABASE.T, "Q": QUERY.T})
    return stream.getvalue()


def cids(n: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list("0123456789abcdef"), 32)) for _ in range(n)]


def sfm() -> dict[str, Any]:
    """As retrieval-SfM-120k.pkl."""
    return {
        "train": {
            "cids": cids(20, 0),
            "cluster": [number // 5 for number in range(20)],
            "qidxs": [0, 0, 7, 12],
            "pidxs": [1, 2, 8, 13],
        },
        "val": {
            "cids": cids(12, 1),
            "cluster": [100 + number // 4 for number in range(12)],
            "qidxs": [5, 1, 5, 9],
            "pidxs": [6, 2, 4, 10],
        },
    }


def sfm_bytes() -> bytes:
    return pickle.dumps(sfm(), protocol=2)


def tar_bytes(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def place_truth(root: Path, name: str = "roxford5k") -> Path:
    """The folder of a data set with its ground truth; gives its folder for descriptors."""
    folder = root / name / "descriptors"
    folder.mkdir(parents=True)
    (root / name / f"gnd_{name}.pkl").write_bytes(truth_bytes())
    return folder
