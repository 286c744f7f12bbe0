"""FAISS indexes as tables of vectors: which row has which id, and what the index holds of it."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError
from gqe.formats.checks import Array, existing_file, one_line, wrap_parse_errors

_SAMPLE = 256
# Codes of a few bytes shorten vectors, some very much; an index without codes holds them exactly.
_SHORTEST, _LONGEST = 0.4, 1.15
_EXACT_TOLERANCE = 1e-3
_BLOCK = 65536


class FaissRows:
    """The items of a FAISS index as rows 0..n-1: in the order in which they were added, or of rising id.

    Args:
        index: any index of float vectors, with METRIC_INNER_PRODUCT or METRIC_L2.
        name: what to call it in error messages.

    Attributes:
        index: what is searched: the index, or what is inside an IndexIDMap.
        ids: (n,) int64 ids as the user knows them, or None if they are the row numbers.
        inner_product: whether larger scores of the index are better.
        exact: whether a search compares with every vector.
        float_codes: whether vectors are kept as they were added.
    """

    def __init__(self, index: Any, name: str = "index") -> None:
        faiss = import_module("faiss")
        self.name = name
        if isinstance(index, faiss.IndexBinary) or not isinstance(index, faiss.Index):
            raise InputError(f"{name}: expected a FAISS index of float vectors, got {type(index).__name__}")
        if index.metric_type not in (faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2):
            raise InputError(
                f"{name}: metric {index.metric_type}; only METRIC_INNER_PRODUCT and METRIC_L2 rank unit"
                " vectors by cosine"
            )
        self._owner = index  # what is inside it lives as long as it does
        index, names = faiss.downcast_index(index), None
        if isinstance(index, faiss.IndexIDMap):
            names, index = index, faiss.downcast_index(index.index)
        self.index = index
        self.inner_product = index.metric_type == faiss.METRIC_INNER_PRODUCT
        self._inverted, self._transform = _inverted_file(faiss, index)
        self._labels: Array | None = None  # of each row in the inverted file, rising
        self._places: Array | None = None  # (n, 2) list and offset of each row there
        self._reader = index  # gives many vectors in one call, by label
        if self._inverted is not None:
            self._read_lists(faiss)
            self._reader = _direct_reader(faiss, self._inverted, self._labels)
        self._count = int(index.ntotal)
        self.ids: Array | None = self._labels
        if names is not None:
            table = faiss.vector_to_array(names.id_map).astype(np.int64)
            self.ids = table if self._labels is None else table[self._labels]
        if self.ids is not None and len(self.ids):
            if self.ids.min() < 0:
                raise InputError(f"{name}: id {self.ids.min()} is negative; use ids of at least 0")
            self._order = np.argsort(self.ids, kind="stable")
            ordered = self.ids[self._order]
            twice = np.flatnonzero(ordered[1:] == ordered[:-1])
            if len(twice):
                raise InputError(f"{name}: id {ordered[twice[0]]} is there twice; give each item its own id")
        self.exact = isinstance(index, faiss.IndexFlat)
        self.float_codes = isinstance(
            self._inverted or index, faiss.IndexFlat | faiss.IndexIVFFlat | faiss.IndexHNSWFlat
        )

    def __len__(self) -> int:
        return self._count

    @property
    def dim(self) -> int:
        """Of the vectors."""
        return int(self.index.d)

    def read(self, rows: Array) -> Array:
        """(p, d) float32 vectors of rows (p,), as far as the index keeps them."""
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        try:
            if self._reader is None:
                inside = self._decode(rows)
            else:
                inside = np.asarray(self._reader.reconstruct_batch(self.labels_of(rows)))
            if self._transform is None:
                return inside
            faiss = import_module("faiss")
            result = np.empty((len(rows), self.dim), np.float32)
            self._transform.reverse_chain(len(rows), faiss.swig_ptr(inside), faiss.swig_ptr(result))
            return result
        except RuntimeError as error:
            raise InputError(
                f"{self.name}: {type(self.index).__name__} cannot reconstruct its vectors"
                f" ({faiss_reason(error)}); give them beside it: vectors=..."
            ) from None

    def _decode(self, rows: Array) -> Array:
        """Vectors of codes in an inverted file, one by one."""
        faiss = import_module("faiss")
        assert self._places is not None
        found = np.empty((len(rows), self._inverted.d), np.float32)
        for place, (cell, offset) in enumerate(self._places[rows].tolist()):
            self._inverted.reconstruct_from_offset(cell, offset, faiss.swig_ptr(found[place]))
        return found

    def check(self) -> None:
        """Refuse an index that keeps no vectors, or not of unit length, from a sample."""
        if not len(self):
            return
        lengths = np.linalg.norm(self.read(sample_rows(len(self))), axis=1)
        low, high = (_SHORTEST, _LONGEST)
        if self.float_codes:
            low, high = 1 - _EXACT_TOLERANCE, 1 + _EXACT_TOLERANCE
        middle = float(np.median(lengths))
        if not low <= middle <= high or (self.float_codes and not (lengths <= high).all()):
            raise InputError(
                f"{self.name}: its vectors are not of unit length (median {middle:.3g}), so it does not rank"
                " by cosine; add them after faiss.normalize_L2"
            )

    def rows_of(self, labels: Array) -> Array:
        """Rows of what a search of `index` has found, of any shape; -1 for none."""
        if self._labels is None:
            return labels
        rows = np.searchsorted(self._labels, labels)
        return np.where(labels < 0, -1, rows)

    def labels_of(self, rows: Array) -> Array:
        """What a search of `index` calls rows (p,)."""
        return rows if self._labels is None else self._labels[rows]

    def find(self, ids: Array) -> Array:
        """Rows of users' ids, of any shape; -1 for those that are not there."""
        if self.ids is None or not len(self.ids):
            return np.where((ids >= 0) & (ids < len(self)), ids, -1)
        places = np.searchsorted(self.ids, ids, sorter=self._order).clip(max=len(self.ids) - 1)
        rows = self._order[places]
        return np.where(self.ids[rows] == ids, rows, -1)

    def _read_lists(self, faiss: Any) -> None:
        """Where each item is in the lists of an inverted file, which need not have a direct map."""
        lists, labels, places = self._inverted.invlists, [], []
        for cell in range(self._inverted.nlist):
            size = lists.list_size(cell)
            if size:
                labels.append(faiss.rev_swig_ptr(lists.get_ids(cell), size).copy())
                places.append(np.stack([np.full(size, cell, np.int32), np.arange(size, dtype=np.int32)], 1))
        found = np.concatenate(labels) if labels else np.empty(0, np.int64)
        order = np.argsort(found, kind="stable")
        self._places = np.concatenate(places)[order] if places else np.empty((0, 2), np.int32)
        found = found[order]
        if not np.array_equal(found, np.arange(len(found))):
            self._labels = found


def load_faiss_index(path: str | os.PathLike[str]) -> Any:
    """The FAISS index in a file of `faiss.write_index`."""
    try:
        faiss = import_module("faiss")
    except ImportError as error:
        raise InputError(f"{path}: .faiss files need faiss: pip install faiss-cpu") from error
    found = existing_file(path)
    with wrap_parse_errors(found, "FAISS index"):
        return faiss.read_index(str(found))


def read_faiss(path: Path) -> Array:
    """(n, d) float32 vectors that the index in a file keeps, in the order of its rows."""
    rows = FaissRows(load_faiss_index(path), str(path))
    rows.check()
    parts = [rows.read(np.arange(i, min(i + _BLOCK, len(rows)))) for i in range(0, len(rows), _BLOCK)]
    return np.concatenate(parts) if parts else np.empty((0, rows.dim), np.float32)


def sample_rows(n: int) -> Array:
    """Some of n rows, spread evenly, always the same."""
    size = min(n, _SAMPLE)
    return np.arange(size) * n // max(size, 1)


def _inverted_file(faiss: Any, index: Any) -> tuple[Any, Any]:
    """The inverted file whose search gives the labels, and the transform before it; None for neither."""
    transform = None
    if isinstance(index, faiss.IndexPreTransform):
        transform, index = index, faiss.downcast_index(index.index)
    return (index, transform) if isinstance(index, faiss.IndexIVF) else (None, None)


def _direct_reader(faiss: Any, inverted: Any, labels: Array | None) -> Any:
    """An inverted file of the same lists that knows where each label is; None for lists of codes."""
    if type(inverted) is not faiss.IndexIVFFlat:
        return None
    reader = faiss.IndexIVFFlat(inverted.quantizer, inverted.d, inverted.nlist, inverted.metric_type)
    reader.replace_invlists(inverted.invlists, False)
    reader.ntotal = inverted.ntotal
    reader.set_direct_map_type(faiss.DirectMap.Array if labels is None else faiss.DirectMap.Hashtable)
    return reader


def faiss_reason(error: RuntimeError) -> str:
    """What FAISS says, without the place in its source."""
    return one_line(error).rpartition(": ")[2]
