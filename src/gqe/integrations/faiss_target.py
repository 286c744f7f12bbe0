"""A FAISS index as a search sees it: FAISS does both searches.

What expansion reads of the database (neighbour lists, levels) is computed for the items around the queries
when a search first reads it, and kept while there is room.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators import Aggregator
from gqe.aggregators.context import list_profiles
from gqe.embeddings import as_table, as_unit_rows, blocks
from gqe.errors import InputError
from gqe.expansion import compute_level
from gqe.formats.faiss_files import FaissRows, faiss_reason
from gqe.models import Expander
from gqe.neighbors import NeighborGraph
from gqe.neighbors.candidates import Candidates
from gqe.neighbors.rescoring import ROUNDING, SPARE, Rescorer
from gqe.neighbors.search import nearest
from gqe.progress import Report
from gqe.query_options import QueryOptions
from gqe.results import SearchResult, remove_results
from gqe.row_cache import RowCache
from gqe.source import LevelSource
from gqe.targets import Array, SearchTarget, WholeDatabase

# Bytes of kept rows of one level, and of the neighbour lists.
_CACHE_BYTES = 1 << 30
_QUERY_BLOCK = 1024
# Codes confuse near neighbours: so many times more are fetched where vectors beside them score them again.
_OVERSAMPLE = 4


class FaissTable:
    """The vectors of a FAISS index as a tensor of unit rows (n, d), read when they are needed.

    Args:
        rows: the index.
        vectors: (n, d) the same vectors beside it, in the order of its rows; None to reconstruct them.
    """

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self, rows: FaissRows, vectors: Any = None) -> None:
        self._rows = rows
        self._vectors = vectors
        self.shape = (len(rows), rows.dim)

    def __len__(self) -> int:
        return self.shape[0]

    def element_size(self) -> int:
        """Bytes of a number."""
        return 4

    def index_select(self, axis: int, ids: Tensor) -> Tensor:
        """(p, d) rows by number."""
        numbers = ids.numpy()
        if self._vectors is None:
            return as_unit_rows(torch.from_numpy(self._rows.read(numbers)), self._rows.name)
        chosen = torch.from_numpy(numbers) if isinstance(self._vectors, Tensor) else numbers
        return as_table(self._vectors[chosen], "vectors").to("cpu", torch.float32)

    def __getitem__(self, rows: Any) -> Tensor:
        chosen = torch.arange(len(self))[rows]
        return self.index_select(0, chosen)


class FaissSource(LevelSource):
    """Lists from searches of a FAISS index, and levels computed of the items that are read.

    Args:
        target: what searches.
        stack: the aggregators.
        graph: neighbours of all items, if they are known.
    """

    def __init__(self, target: FaissTarget, stack: list[Aggregator], graph: NeighborGraph | None) -> None:
        super().__init__(stack, target.dim, target.device)
        self._target = target
        self._graph = graph
        self._lists, self._profiles, *self._levels = (
            RowCache(len(target.table), _CACHE_BYTES) for _ in range(2 + len(stack))
        )

    def __len__(self) -> int:
        return len(self._target.table)

    def rows(self, level: int, ids: Tensor) -> Tensor:
        """See `LevelSource`."""
        if level == 0:
            return self._target.table.index_select(0, ids.cpu())
        return self._levels[level - 1].rows(
            ids.cpu(), lambda missing: (compute_level(self, level, missing).cpu(),)
        )[0]

    def lists(self, ids: Tensor) -> Candidates:
        """See `LevelSource`."""
        if self._graph is not None:
            chosen = ids.cpu().numpy()
            return Candidates(
                torch.from_numpy(self._graph.ids[chosen].astype(np.int64)),
                torch.from_numpy(self._graph.similarities[chosen]),
            )
        return Candidates(*self._lists.rows(ids.cpu(), self._find_lists))

    def profiles(self, ids: Tensor) -> Tensor:
        """See `LevelSource`."""
        (profiles,) = self._profiles.rows(
            ids.reshape(-1).cpu(), lambda missing: (list_profiles(self.lists(missing).similarities),)
        )
        return profiles.reshape(*ids.shape, profiles.shape[1])

    def _find_lists(self, ids: Tensor) -> tuple[Tensor, ...]:
        return self._target.find_lists(ids, self.graph_k)


class FaissTarget(SearchTarget):
    """A FAISS index. Keys are its row numbers.

    Args:
        rows: the index.
        table: its vectors.
        kept: whether they are kept exactly, and not only in codes of the index.
        expander: what expands queries.
        graph: neighbours of all items, if they are known.
        device: where aggregators run.
    """

    def __init__(
        self,
        rows: FaissRows,
        table: FaissTable,
        kept: bool,
        expander: Expander,
        graph: NeighborGraph | None,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.rows, self.table = rows, table
        self.dim, self.device = rows.dim, device
        self.expander = expander
        self.reranking = expander.reranking
        self._kept = kept
        self._oversample = _OVERSAMPLE if kept and not rows.float_codes else 1
        self._source = FaissSource(self, expander.stack, graph)

    @property
    def stack(self) -> list[Aggregator]:
        """See `SearchTarget`."""
        return self.expander.stack

    @property
    def options(self) -> QueryOptions:
        """See `SearchTarget`."""
        return self.expander.query_options

    @property
    def size(self) -> int:
        """See `SearchTarget`."""
        if self.rows.index.ntotal != len(self.rows):
            raise InputError(
                f"index: it holds {self.rows.index.ntotal:,} items now, {len(self.rows):,} when it was"
                " wrapped; wrap it again"
            )
        return len(self.rows)

    def resolve_exclude(self, ids: Any, count: int) -> Array:
        """See `SearchTarget`."""
        values = ids.tolist() if isinstance(ids, Tensor | np.ndarray) else list(ids)
        names = [-1 if value is None else value for value in values]
        if len(names) != count or not all(isinstance(name, int | np.integer) for name in names):
            raise InputError(f"exclude: expected {count} whole numbers, one a query; -1 or None for nothing")
        wanted = np.array(names, dtype=np.int64).reshape(-1)
        return self._known(wanted, "exclude")

    def resolve_filter(self, filter: Any) -> Array:
        """(n,) bool: which rows may be found, from their ids."""
        wanted = np.asarray(filter if isinstance(filter, np.ndarray | list | range) else None)
        if wanted.ndim != 1 or (len(wanted) and wanted.dtype.kind not in "iu"):
            raise InputError(
                "filter: a FAISS index has no metadata; give a list of the ids that may be found, or build"
                " an Index with metadata"
            )
        allowed = np.zeros(len(self.rows), dtype=bool)
        allowed[self._known(wanted.astype(np.int64), "filter")] = True
        return allowed

    def resolve_dba(self, dba: bool | None) -> bool:
        """See `SearchTarget`."""
        if dba:
            raise InputError(
                "dba: this FAISS index holds the vectors as they are; make another one of augment(), and"
                " search it with the queries of expand()"
            )
        return False

    def neighbors(
        self, queries: Tensor, k: int, exclude: Array | None, exact: bool | None, *, lists: bool = False
    ) -> tuple[LevelSource, Candidates]:
        """See `SearchTarget`."""
        width = max(1, min(k, len(self.table)))
        return self._source, self._ranked(queries, width, exclude, None, exact)

    def nearest(
        self, queries: Tensor, k: int, exclude: Array | None, allowed: Any, exact: bool | None, dba: bool
    ) -> SearchResult:
        """See `SearchTarget`."""
        if self._kept or exact:
            found = self._ranked(queries, k, exclude, allowed, exact)
            return SearchResult(found.similarities.cpu().numpy(), found.ids.cpu().numpy())
        count = min(k + int(exclude is not None), len(self.table))
        scores, ids = self._searched(queries.cpu().float().numpy(), count, allowed)
        return _without(SearchResult(scores, ids), exclude, k)

    def ids_of(self, keys: Array) -> Array:
        """See `SearchTarget`."""
        if self.rows.ids is None or not len(self.rows.ids):
            return keys
        return np.where(keys >= 0, self.rows.ids[keys.clip(min=0)], -1)

    def whole_database(self, k: int, dba: bool, progress: Report | None = None) -> WholeDatabase:
        """See `SearchTarget`; reads all vectors into memory."""
        everything = torch.arange(len(self.table))
        lists = self.find_lists(everything, max(1, min(k, len(self.table) - 1)), progress)
        graph = NeighborGraph(lists[0].numpy(), lists[1].numpy())
        return WholeDatabase(self.table[:], graph, everything.numpy())

    def is_allowed(self, keys: Array, allowed: Any, found: Array) -> Array:
        """See `SearchTarget`."""
        there = keys >= 0
        return there if allowed is None else there & allowed[keys.clip(min=0)]

    def find_lists(self, ids: Tensor, k: int, progress: Report | None = None) -> tuple[Tensor, Tensor]:
        """The k nearest neighbours (p, k) of items by row, none its own, and their similarities."""
        found = []
        for part in blocks(len(ids), 1, _QUERY_BLOCK):
            own = ids[part]
            found.append(self._ranked(self.table.index_select(0, own), k, own.numpy(), None, None))
            if progress is not None:
                progress(part.stop, len(ids), "neighbours")
        if not found:
            return torch.empty((0, k), dtype=torch.int64), torch.empty((0, k))
        return torch.cat([part.ids for part in found]), torch.cat([part.similarities for part in found])

    def _ranked(
        self, queries: Tensor, k: int, exclude: Array | None, allowed: Array | None, exact: bool | None
    ) -> Candidates:
        """The nearest k rows by cosine; ties by rising row unless FAISS alone has scored them."""
        omit = None if exclude is None else torch.from_numpy(exclude)
        queries = queries.to("cpu", torch.float32)
        if exact and not self.rows.exact:
            return self._compared(queries, k, omit, allowed)
        fetch = min(len(self.table), k * self._oversample + SPARE + int(exclude is not None))
        scores, ids = self._searched(queries.numpy(), fetch, allowed)
        if self.rows.float_codes and (not self.rows.exact or _is_ordered(scores)):
            found = _without(SearchResult(scores, ids), exclude, k)
            return Candidates(torch.from_numpy(found.ids), torch.from_numpy(found.scores))
        # What a filter leaves out would come back where ties are settled.
        rescorer = Rescorer(self.table, k, exact=self.rows.exact and allowed is None)  # type: ignore[arg-type]
        return rescorer.rank(queries, Candidates(torch.from_numpy(ids), torch.from_numpy(scores)), omit)

    def _compared(self, queries: Tensor, k: int, omit: Tensor | None, allowed: Array | None) -> Candidates:
        """The same without FAISS: every vector is compared."""
        rows = np.arange(len(self.table)) if allowed is None else np.flatnonzero(allowed)
        if omit is not None:
            places = np.full(len(self.table) + 1, -1, dtype=np.int64)  # the last one serves -1
            places[rows] = np.arange(len(rows))
            omit = torch.from_numpy(places[omit.numpy()])
        table = self.table.index_select(0, torch.from_numpy(rows))
        found = nearest(table, queries, k, omit, device=torch.device("cpu"))
        ids = np.where(found.ids >= 0, rows[found.ids.clip(min=0)] if len(rows) else -1, -1)
        return Candidates(torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(found.similarities))

    def _searched(self, queries: Array, k: int, allowed: Array | None) -> tuple[Array, Array]:
        """Similarities and rows (m, k) that FAISS finds, best first; row -1 where it finds fewer."""
        index = self.rows.index
        try:
            if allowed is None:
                scores, labels = index.search(np.ascontiguousarray(queries), k)
            else:
                parameters = _Parameters(index, self.rows.labels_of(np.flatnonzero(allowed)))
                scores, labels = index.search(np.ascontiguousarray(queries), k, params=parameters.value)
        except RuntimeError as error:
            kind = type(index).__name__
            if allowed is not None:
                raise InputError(
                    f"filter: FAISS cannot search some items of an {kind} only; filter the results"
                ) from None
            raise InputError(f"index: {kind} could not search ({faiss_reason(error)})") from None
        rows = self.rows.rows_of(labels)
        return scores if self.rows.inner_product else 1 - scores / 2, rows

    def _known(self, ids: Array, name: str) -> Array:
        """Rows of ids (p,), all there but -1."""
        rows = self.rows.find(ids)
        absent = np.flatnonzero((rows < 0) & (ids != -1))
        if len(absent):
            raise InputError(f"{name}: id {ids[absent[0]]} is not in the index")
        return rows


def _without(found: SearchResult, exclude: Array | None, k: int) -> SearchResult:
    """The first k that are there, without the row that each query must not find."""
    gone = found.ids < 0
    return remove_results(found, gone if exclude is None else gone | (found.ids == exclude[:, None]), k)


def _is_ordered(scores: Array) -> bool:
    """Whether scores of FAISS leave no doubt which vectors are nearer: none are of equal ones.

    For many queries FAISS computes products by matrices, which round those of equal vectors differently.
    """
    alone = len(scores) < import_module("faiss").cvar.distance_compute_blas_threshold
    return bool((scores[:, :-1] - scores[:, 1:] > (0 if alone else ROUNDING)).all())


class _Parameters:
    """Search parameters that let some labels through, with the settings of an index.

    FAISS keeps only pointers to what they are made of, so that is kept here.
    """

    def __init__(self, index: Any, labels: Array) -> None:
        faiss = import_module("faiss")
        self._selector = faiss.IDSelectorBatch(np.ascontiguousarray(labels, np.int64))
        self._inner: list[Any] = []
        self.value = self._of(faiss, index)

    def _of(self, faiss: Any, index: Any) -> Any:
        index = faiss.downcast_index(index)
        if isinstance(index, faiss.IndexPreTransform):
            self._inner.append(self._of(faiss, index.index))
            return faiss.SearchParametersPreTransform(index_params=self._inner[-1])
        if isinstance(index, faiss.IndexRefine):
            self._inner.append(self._of(faiss, index.base_index))
            return faiss.IndexRefineSearchParameters(
                k_factor=index.k_factor, base_index_params=self._inner[-1]
            )
        if isinstance(index, faiss.IndexIVF):
            return faiss.SearchParametersIVF(
                sel=self._selector, nprobe=index.nprobe, max_codes=index.max_codes
            )
        if isinstance(index, faiss.IndexHNSW):
            return faiss.SearchParametersHNSW(sel=self._selector, efSearch=index.hnsw.efSearch)
        return faiss.SearchParameters(sel=self._selector)
