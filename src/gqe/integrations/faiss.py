"""`gqe.wrap`: expanded search through a FAISS index."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.embeddings import as_table, like
from gqe.errors import InputError
from gqe.formats import read_vectors
from gqe.formats.faiss_files import FaissRows, load_faiss_index, sample_rows
from gqe.integrations.faiss_target import FaissTable, FaissTarget
from gqe.models import Expander
from gqe.models import expander as expander_by_name
from gqe.neighbors import NeighborGraph
from gqe.neighbors.search import resolve_device
from gqe.progress import Progress, reporting
from gqe.retrieval import Searchable
from gqe.source import MemorySource, checked_graph
from gqe.targets import Array

# Vectors beside an index of codes are at least so similar to what it holds, in the middle.
_SAME = 0.5


class FaissIndex(Searchable):
    """Expanded search through a FAISS index, made by `gqe.wrap`.

    It is searched as an `Expander` is: see `search` there. Scores are cosines, also of an index with
    METRIC_L2 (its own distance is 2 - 2 * cosine); `filter` is a list of the ids that may be found;
    `dba=True` is refused, see `augment`.
    """

    def __init__(self, target: FaissTarget) -> None:
        self._target = target

    def __len__(self) -> int:
        return self.ntotal

    def __repr__(self) -> str:
        kind = type(self._target.rows.index).__name__
        return f"<FaissIndex {kind}: {self.ntotal} vectors of dimension {self.d}, {self.expander.name}>"

    @property
    def target(self) -> FaissTarget:
        """See `Searchable`."""
        return self._target

    @property
    def ntotal(self) -> int:
        """How many vectors the index holds."""
        return len(self._target.rows)

    @property
    def d(self) -> int:
        """Dimension of the vectors."""
        return self._target.dim

    @property
    def expander(self) -> Expander:
        """What expands queries."""
        return self._target.expander

    def augment(self, *, progress: Progress = False) -> Array:
        """(n, d) database-side augmentation, in the order of the rows, for another FAISS index.

        Reads all vectors into memory and finds the neighbours of each.

        Args:
            progress: see `Expander.fit`; of everything that is computed.
        """
        target = self._target
        stack = self.expander.database_stack
        with reporting(progress, "augment") as report:
            whole = target.whole_database(max(level.graph_k for level in stack), dba=False, progress=report)
            source = MemorySource(stack, whole.database, whole.graph, device=target.device)
            return np.asarray(like(source.augment(progress=report), np.empty(0)))


def wrap(
    index: Any,
    vectors: Any = None,
    method: Expander | str = "universal",
    *,
    graph: NeighborGraph | tuple[Any, Any] | None = None,
    device: str | torch.device = "auto",
) -> FaissIndex:
    """Expanded search through a FAISS index: `D, I = gqe.wrap(index).search(queries, k)`.

    Args:
        index: any FAISS index of unit vectors (Flat, IVF, HNSW, PQ, IDMap...), by inner product or L2, or a
            .faiss file. It is searched with its own settings (`nprobe`, `efSearch`) and never changed.
        vectors: (n, d) the vectors it holds, in the order in which they were added (of rising id where an
            inverted file has ids of its own): an array, also memory-mapped, or a file of vectors. Needed
            where the index cannot reconstruct; where it keeps codes only, they make the results better.
        method: an Expander or its name, such as "universal" or "alpha:k=8+reciprocal".
        graph: the neighbours of the vectors: what FAISS gave, (D, I), or a NeighborGraph of row numbers. None
            finds those of the items around the queries when they are needed.
        device: where aggregators run.

    Example:
        >>> import faiss
        >>> index = faiss.IndexFlatIP(8)
        >>> index.add(np.eye(8, dtype=np.float32))
        >>> D, I = wrap(index, method="aqe:k=2").search(np.eye(8)[:2], 1)
        >>> I.tolist()
        [[0], [1]]
    """
    name = "index"
    if isinstance(index, str | os.PathLike):
        name = str(index)
        index = load_faiss_index(index)
    rows = FaissRows(index, name)
    chosen = expander_by_name(method) if isinstance(method, str) else method
    if not isinstance(chosen, Expander):
        raise InputError(f"method: expected a name or an Expander, got {type(method).__name__}")
    if vectors is None:
        rows.check()
    else:
        vectors = _checked_vectors(vectors, rows)
    if graph is not None:
        graph = _checked_lists(graph, rows, max(level.graph_k for level in chosen.stack))
    kept = vectors is not None or rows.float_codes
    target = FaissTarget(rows, FaissTable(rows, vectors), kept, chosen, graph, resolve_device(device))
    return FaissIndex(target)


def _checked_vectors(vectors: Any, rows: FaissRows) -> Any:
    """Vectors beside an index; a sample of them is compared with what it holds, where it can reconstruct."""
    if isinstance(vectors, str | os.PathLike):
        vectors = read_vectors(vectors)
    elif not isinstance(vectors, Tensor):
        vectors = np.asanyarray(vectors)
    if tuple(vectors.shape) != (len(rows), rows.dim):
        raise InputError(
            f"vectors: shape {tuple(vectors.shape)}, the index has {(len(rows), rows.dim)}; give those in it"
        )
    chosen = sample_rows(len(rows))
    try:
        held = rows.read(chosen)
    except InputError:  # the vectors are there because it cannot
        return vectors
    beside = as_table(vectors[chosen], "vectors").to("cpu", torch.float32).numpy()
    cosines = (beside * held).sum(axis=1) / np.linalg.norm(held, axis=1).clip(min=1e-12)
    if len(chosen) and np.median(cosines) < _SAME:
        raise InputError("vectors: not those in the index; give them in the order of its rows")
    return vectors


def _checked_lists(graph: Any, rows: FaissRows, k: int) -> NeighborGraph:
    """A graph of the rows of an index, from one or from (D, I) with the index's ids."""
    if not isinstance(graph, NeighborGraph) and isinstance(graph, tuple | list) and len(graph) == 2:
        ids = np.asarray(graph[1])
        known = rows.find(ids) if ids.dtype.kind == "i" else ids
        if ((known < 0) & (ids >= 0)).any():
            raise InputError("graph: I names items that are not in the index; search with its own vectors")
        graph = NeighborGraph.from_faiss(graph[0], known, inner_product=rows.inner_product)
    return checked_graph(graph, len(rows), k)
