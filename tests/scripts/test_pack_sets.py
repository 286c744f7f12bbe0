"""Sets are packed into 8 bits and few dimensions, and keep their cosines and labels."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pack_sets
import pytest


def unit_rows(rng: np.random.Generator, rows: int, dim: int) -> np.ndarray:
    low = rng.normal(size=(rows, 6)) @ rng.normal(size=(6, dim))  # a few axes hold nearly all
    x = low + 0.01 * rng.normal(size=(rows, dim))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float16)


def test_sets_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for folder in ("image", "text", "spaces"):
        (tmp_path / folder).mkdir()
    pictures, labels = unit_rows(rng, 40, 32), np.repeat([0, 899, 900, 986], 10)
    np.savez(tmp_path / "image/train.npz", embeddings=pictures, labels=labels)
    np.savez(tmp_path / "text/train.npz", embeddings=pictures, labels=labels)
    cars = {"queries": pictures[:5], "query_labels": labels[:5]}
    cars |= {"database": pictures[5:], "database_labels": labels[5:]}
    np.savez(tmp_path / "spaces/cars-lite0.npz", **cars)
    out = tmp_path / "packed"
    arguments = [tmp_path, "--set", f"more={tmp_path / 'text/train.npz'}", "--set", "town=town"]
    arguments += ["--dimensions", 12, "-o", out]
    monkeypatch.setattr(sys, "argv", ["pack_sets", *map(str, arguments)])
    pack_sets.main()

    packed = {path.stem: np.load(path) for path in out.glob("*.npz")}
    assert packed.keys() == {"signs", "fruits", "intents", "cars-lite0", "more", "town"}
    assert packed["signs"]["labels"].tolist() == labels[:20].tolist()
    assert packed["fruits"]["labels"].tolist() == labels[20:].tolist()
    space = packed["cars-lite0"]
    assert space["labels"].tolist() == labels.tolist()
    assert space["embeddings"].dtype == np.int8
    assert space["embeddings"].shape == (40, 12)
    rows = space["embeddings"].astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    before = pictures.astype(np.float32)
    assert np.abs(rows @ rows.T - before @ before.T).max() < 0.03
