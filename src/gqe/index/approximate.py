"""Approximate candidates through a faiss index, searched as widely as the wanted recall needs.

What faiss finds is scored again from the stored embeddings, so its own codes may be coarse. Items added
after it was built are compared one by one until `compact` builds it again.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from gqe.errors import DamagedError, InputError
from gqe.index.files import Checksum, FileRecord
from gqe.index.manifest import KINDS, FaissRecord
from gqe.index.tables import Table
from gqe.neighbors.candidates import Candidates, Engine, exact_candidates
from gqe.neighbors.inverted_file import (
    FIRST_PROBES,
    SMALLEST,
    add_rows,
    build_inverted_file,
    find_breadth,
    load_faiss,
)

log = logging.getLogger(__name__)

_SAMPLE = 1024
# Above this size codes of a few bytes are stored instead of 16-bit vectors.
_LARGE_BYTES = 4 << 30
# Codes of a few bytes confuse near neighbours, so more of them are fetched and scored again.
_OVERSAMPLE = {"ivf": 1, "hnsw": 1, "ivf-pq": 4}


class Approximate(NamedTuple):
    """A faiss index over the first rows of a table.

    Attributes:
        index: the faiss index.
        kind: "ivf", "ivf-pq" or "hnsw".
        rows: how many rows it covers.
        breadth: lists probed, or efSearch.
        recall: what that reached on a sample.
    """

    index: Any
    kind: str
    rows: int
    breadth: int
    recall: float

    def engine(self, table: Table, allowed: np.ndarray[Any, Any] | None) -> Engine:
        """An engine over the table the index was built from, or a longer one, for allowed rows (n,) only."""
        if (self.index.d, self.index.ntotal) != (table.shape[1], self.rows):
            raise _damaged_error()
        parameters, selector = self._parameters(allowed)
        oversample = _OVERSAMPLE[self.kind]
        late = table[self.rows : len(table)]
        late_allowed = None if allowed is None else torch.from_numpy(allowed[self.rows :])

        def candidates(queries: Tensor, wanted: int) -> Candidates:
            contiguous = np.ascontiguousarray(queries.cpu().numpy())
            count = min(wanted * oversample, self.rows)
            scores, ids = self.index.search(contiguous, count, params=parameters)
            if ids.max(initial=-1) >= self.rows:
                raise _damaged_error()
            found = [Candidates(torch.from_numpy(ids), torch.from_numpy(scores))]
            if len(late):
                rest = exact_candidates(queries.cpu(), late, min(wanted, len(late)), late_allowed)
                here = torch.where(torch.isinf(rest.similarities), -1, rest.ids + self.rows)
                found.append(Candidates(here, rest.similarities))
            joined = Candidates(
                *(torch.cat(parts, dim=1).to(queries.device) for parts in zip(*found, strict=True))
            )
            assert selector is None or allowed is not None  # faiss keeps only a pointer to it
            return joined

        return candidates

    def _parameters(self, allowed: np.ndarray[Any, Any] | None) -> tuple[Any, Any]:
        faiss = load_faiss()
        selector = None
        if allowed is not None:
            selector = faiss.IDSelectorBitmap(np.packbits(allowed[: self.rows], bitorder="little"))
        if self.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=self.breadth, sel=selector), selector
        return faiss.SearchParametersIVF(nprobe=self.breadth, sel=selector), selector


def check_kind(kind: object) -> str:
    """Refuse an unknown kind of faiss index."""
    if kind not in KINDS:
        raise InputError(f"approximate: expected {', '.join(KINDS)}, got {kind!r}")
    return str(kind)


def build_approximate(table: Table, count: int, recall: float, kind: str, seed: int) -> Approximate | None:
    """A faiss index that finds at least this share of the nearest `count` rows, tried on a sample of rows.

    Returns None where exact search serves as well: few rows, or a recall of 1.
    """
    if len(table) < SMALLEST or recall >= 1:
        return None
    if kind == "auto":
        kind = "ivf" if table.shape.numel() * 4 <= _LARGE_BYTES else "ivf-pq"
    index, first, most = _build(table, kind, seed)
    chosen = np.random.default_rng(seed).choice(len(table), min(_SAMPLE, len(table)), replace=False)
    chosen.sort()
    queries = table[torch.from_numpy(chosen)].to(torch.float32)
    nearest = exact_candidates(queries, cast(Tensor, table), min(count + 1, len(table))).ids.numpy()
    # Each finds itself, which says nothing.
    truth = [row[row != own][:count] for row, own in zip(nearest, chosen, strict=True)]
    approximate = Approximate(index, kind, len(table), first, 0.0)

    def search(breadth: int) -> np.ndarray[Any, Any]:
        engine = approximate._replace(breadth=breadth).engine(table, None)
        return engine(queries, nearest.shape[1]).ids.numpy()

    breadth, reached = find_breadth(search, truth, recall, first, most)
    if reached < recall:
        log.warning("%s: recall %.3f is the best it reaches, %.3f was asked for", kind, reached, recall)
    log.info("%s: breadth %d of %d, recall %.3f", kind, breadth, most, reached)
    return approximate._replace(breadth=breadth, recall=reached)


def write_faiss(path: Path, index: Any) -> None:
    """Write a faiss index to a file."""
    try:
        load_faiss().write_index(index, str(path))
    except RuntimeError as error:  # so faiss says that the disk is full
        raise OSError(errno.ENOSPC, "No space left on device", str(path)) from error


def read_faiss(content: np.ndarray[Any, Any]) -> Any:
    """A faiss index from the bytes of its file."""
    faiss = load_faiss()
    try:
        return faiss.deserialize_index(content)
    except RuntimeError as error:
        raise _damaged_error() from error


def read_approximate(search: FaissRecord, content: np.ndarray[Any, Any], record: FileRecord) -> Approximate:
    """The faiss index that a manifest names, from the bytes of its file, which must be those of the record.

    All of it is read in any case, and faiss may run without end over what is damaged.
    """
    copy, digest = np.array(content), Checksum()
    digest.update(copy.data)
    if digest.hexdigest() != record.checksum:
        raise _damaged_error()
    return Approximate(read_faiss(copy), search.kind, search.rows, search.breadth, search.recall)


def _damaged_error() -> DamagedError:
    return DamagedError("search index: damaged; run `gqe index verify`, then `gqe index compact`")


def _build(table: Table, kind: str, seed: int) -> tuple[Any, int, int]:
    """A faiss index of all rows, the breadth to start with, and the largest that makes sense."""
    d = table.shape[1]
    if kind == "hnsw":
        faiss = load_faiss()
        index = faiss.IndexHNSWSQ(d, faiss.ScalarQuantizer.QT_fp16, 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 80
        index.is_trained = True
        add_rows(index, table)
        return index, 32, 2048
    parts = next(parts for parts in range(max(1, d // 4), 0, -1) if d % parts == 0)
    index = build_inverted_file(table, "SQfp16" if kind == "ivf" else f"PQ{parts}np", seed)
    return index, FIRST_PROBES, index.nlist
