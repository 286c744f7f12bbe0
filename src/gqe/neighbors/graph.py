"""NeighborGraph: the K nearest neighbours of every item, in memory and on disk."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gqe.errors import InputError, short_repr

_FORMAT = "gqe-neighbor-graph"
_VERSION = 1
# Cosines between codes of a few bytes may exceed 1.
_MOST_SIMILAR = 1.3


@dataclass(frozen=True, eq=False, repr=False)
class NeighborGraph:
    """Neighbours by falling similarity, ties by rising id.

    Attributes:
        ids: (n, K) int32 or int64 ids into the database; -1 where there are fewer than K items.
        similarities: (n, K) float32 cosines; -inf where the id is -1.
        recall: for an approximate graph the share of true neighbours it found on a sample; None if exact.

    Example:
        >>> graph = NeighborGraph(np.array([[1], [0]]), np.array([[0.5], [0.5]], dtype=np.float32))
        >>> graph.k, len(graph)
        (1, 2)
    """

    ids: np.ndarray[Any, Any]
    similarities: np.ndarray[Any, Any]
    recall: float | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.ids, np.ndarray) and isinstance(self.similarities, np.ndarray)):
            raise InputError("graph: ids and similarities must be NumPy arrays")
        if self.ids.ndim != 2 or self.ids.dtype not in (np.int32, np.int64):
            raise InputError(
                f"graph: ids must be (n, K) int32 or int64, got {self.ids.shape} {self.ids.dtype}"
            )
        if self.similarities.shape != self.ids.shape or self.similarities.dtype != np.float32:
            raise InputError(
                f"graph: similarities must be {self.ids.shape} float32 like the ids,"
                f" got {self.similarities.shape} {self.similarities.dtype}"
            )

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        recall = "exact" if self.recall is None else f"recall={self.recall:.3f}"
        return f"<NeighborGraph n={len(self)} k={self.k} {recall}>"

    @property
    def k(self) -> int:
        """How many neighbours each item has room for."""
        return int(self.ids.shape[1])

    def truncate(self, k: int) -> NeighborGraph:
        """The graph of a smaller K: the first k columns, without a copy."""
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise InputError(f"k: expected a whole number of at least 1, got {short_repr(k)}")
        if k > self.k:
            raise InputError(f"graph: it holds {self.k} neighbours an item, {k} were asked for; rebuild it")
        return NeighborGraph(self.ids[:, :k], self.similarities[:, :k], self.recall)

    def widen(self, k: int) -> NeighborGraph:
        """The graph with k columns where it has fewer, filled up with missing neighbours."""
        if k <= self.k:
            return self  # at once: padding takes as long as a small search
        short = ((0, 0), (0, k - self.k))
        return NeighborGraph(
            np.pad(self.ids, short, constant_values=-1),
            np.pad(self.similarities, short, constant_values=-np.inf),
            self.recall,
        )

    def check(self, n: int, *, of_database: bool = True) -> None:
        """Refuse a graph that does not belong to a database of n items.

        Args:
            n: the number of database items.
            of_database: the rows are the database items themselves, none its own neighbour.
        """
        if of_database and len(self) != n:
            raise InputError(f"graph: it has {len(self)} rows, the database {n}; build it from this database")
        if self.ids.size and (self.ids.min() < -1 or self.ids.max() >= n):
            raise InputError(
                f"graph: it points outside the database's {n} items; build it from this database"
            )
        if of_database and bool((self.ids == np.arange(len(self))[:, None]).any()):
            row = int((self.ids == np.arange(len(self))[:, None]).any(axis=1).argmax())
            raise InputError(f"graph: item {row} is its own neighbour; build the graph with gqe.knn")

    @classmethod
    def from_faiss(cls, distances: Any, ids: Any, *, inner_product: bool | None = None) -> NeighborGraph:
        """The lists (D, I) of a FAISS index that was searched with the vectors it holds, each without itself.

        Args:
            distances: (n, K + 1) as FAISS gives them: inner products, or squared L2 of unit vectors.
            ids: (n, K + 1) row numbers; -1 where FAISS found fewer.
            inner_product: which of both; None tells them apart by their order, best first.

        Example:
            >>> graph = NeighborGraph.from_faiss([[0.0, 0.5], [0.0, 0.5]], [[0, 1], [1, 0]])
            >>> graph.ids.tolist(), graph.similarities.tolist()
            ([[1], [0]], [[0.75], [0.75]])
        """
        try:
            scores, names = np.array(distances, dtype=np.float32), np.array(ids)
        except (TypeError, ValueError):
            raise InputError("graph: expected the arrays (D, I) that a FAISS search gives") from None
        if scores.ndim != 2 or scores.shape != names.shape or names.dtype.kind != "i" or not scores.shape[1]:
            raise InputError(
                f"graph: expected D and I of one shape (n, K), I of whole numbers; got {scores.shape} and"
                f" {names.dtype} {names.shape}"
            )
        there = names >= 0
        if inner_product is None:
            steps = np.diff(scores, axis=1)[there[:, 1:]]
            if (steps > 0).any() and (steps < 0).any():
                raise InputError("graph: D neither rises nor falls along its rows; give it as FAISS did")
            inner_product = not (steps > 0).any() and bool(
                (steps < 0).any() or np.median(scores[there]) > 0.5
            )
        similarities = scores if inner_product else 1 - scores / 2
        if (np.abs(similarities[there]) > _MOST_SIMILAR).any():
            raise InputError(
                "graph: D is of vectors that are not of unit length; normalise them, search again"
            )
        gone = ~there | (names == np.arange(len(names))[:, None])
        similarities = np.where(gone, -np.inf, similarities).astype(np.float32)
        order = np.lexsort((np.where(gone, np.iinfo(np.int64).max, names), -similarities))
        # Without itself a list is one shorter; one that lacks itself loses its last neighbour.
        order = order[:, : max(1, names.shape[1] - 1)]
        kept = np.where(gone, -1, names.astype(np.int64))
        return cls(
            np.take_along_axis(kept, order, axis=1),
            np.take_along_axis(similarities, order, axis=1),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph to one .safetensors file, beside the target first and then renamed."""
        from safetensors.numpy import save_file

        from gqe.formats.atomic import atomic_path

        arrays = {
            "ids": np.ascontiguousarray(self.ids),
            "similarities": np.ascontiguousarray(self.similarities),
        }
        recall = "" if self.recall is None else repr(float(self.recall))
        about = {
            "format": _FORMAT,
            "version": str(_VERSION),
            "checksum": _checksum(arrays, recall),
            "recall": recall,
        }
        with atomic_path(path) as beside:
            save_file(arrays, beside, metadata=about)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> NeighborGraph:
        """Read a saved graph; a broken or foreign file is refused."""
        from safetensors import SafetensorError, safe_open

        path = Path(path)
        if not path.is_file():
            raise InputError(f"{path}: no such graph file")
        try:
            with safe_open(path, framework="np") as file:
                about = file.metadata() or {}
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}: not a readable graph file ({error}); build it again") from None
        if about.get("format") != _FORMAT or set(arrays) != {"ids", "similarities"}:
            raise InputError(f"{path}: not a neighbour graph of this package")
        if about.get("version") != str(_VERSION):
            raise InputError(
                f"{path}: graph format version {about.get('version')}, this package reads {_VERSION};"
                " build it again"
            )
        recall = about.get("recall", "")
        if about.get("checksum") != _checksum(arrays, recall):
            raise InputError(f"{path}: the checksum does not match, the file is damaged; build it again")
        try:
            return cls(arrays["ids"], arrays["similarities"], float(recall) if recall else None)
        except ValueError as error:
            raise InputError(f"{path}: {error}") from None


def _checksum(arrays: dict[str, np.ndarray[Any, Any]], recall: str) -> str:
    digest = hashlib.blake2b(recall.encode(), digest_size=16)
    for key in sorted(arrays):
        digest.update(f"{key} {arrays[key].dtype} {arrays[key].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[key]).data)
    return digest.hexdigest()
