"""Algorithm 2 of the paper: a stack of aggregators over the neighbour graph.

Level i of a database item depends only on the database, never on the query. So each level of the database is
computed once and kept, and a query costs one aggregator call a level instead of K^(L-1) (the paper's
"efficient inference"). The same levels give database-side augmentation (the last one), and keeping the
coefficients instead of the sums gives the exact weight of every database item in an expanded query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gqe.aggregators.base import Aggregation, Aggregator, Neighborhood
from gqe.aggregators.context import background, landscape, lists_sample, profiles, resolved, with_company
from gqe.aggregators.views import BaseView, Described, base_view
from gqe.contrast import Neighbors, checked_contrast, read_of_query, shares_taken, told_apart
from gqe.embeddings import blocks, rows
from gqe.errors import InputError
from gqe.neighbors import NeighborGraph, knn
from gqe.neighbors.candidates import Candidates
from gqe.transfer import to_device

# Tokens of one aggregator call; small enough that a block stays in a CPU's cache.
_TOKEN_BYTES = {"cpu": 8 << 20, "cuda": 2 << 30}
# An aggregator that reads similarities holds much beside its tokens and takes many small steps: whatever the
# dimension, about 2000 tokens a call stay in a CPU's cache and outweigh the price of a step.
_CONTEXT_WIDTH = 1024
# Of a unit vector, less than this is lost in float32.
_NO_PART = 1e-8


class Weights(NamedTuple):
    """An expanded query is the unit vector along `own * query + items @ database`.

    Attributes:
        items: (m, n) sparse weights of the database items.
        own: (m,) weight of the query itself: 1, or 0 where the query plays no part.
    """

    items: sparse.csr_array
    own: np.ndarray[tuple[int], np.dtype[np.float32]]


class Asked(NamedTuple):
    """Queries, and the levels that they listen to.

    Attributes:
        hierarchy: the levels.
        queries: (m, d) checked.
        neighbors: (m, K) of the queries, as rows of the database.
        ids: gives the ids of rows (p,).
    """

    hierarchy: Hierarchy
    queries: Tensor
    neighbors: NeighborGraph
    ids: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


@dataclass
class _Block:
    """Some nodes on their way up the levels.

    Attributes:
        nodes: (b, d) at the level they have reached.
        originals: (b, d) at level 0.
        neighbors: of these nodes.
        view: what the similarities of the originals say, as soon as an aggregator has asked for it.
    """

    nodes: Tensor
    originals: Tensor
    neighbors: Neighbors
    view: BaseView | None = None


class Hierarchy:
    """A stack of aggregators bound to one database.

    Args:
        stack: the aggregators, first level first.
        database: (n, d) checked embeddings (`gqe.embeddings.as_table`).
        graph: neighbours of the database items; built when first needed if None.
        device: where aggregators run.
        recall: for building the graph, see `gqe.knn`.
        seed: for building an approximate graph.
        contrast: how much of its surroundings is taken away from an expanded query, see `gqe.contrast`.
    """

    _wider: NeighborGraph | None = None

    def __init__(
        self,
        stack: Sequence[Aggregator],
        database: Tensor,
        graph: NeighborGraph | None = None,
        *,
        device: torch.device,
        recall: float | None = None,
        seed: int = 0,
        contrast: float = 0.0,
    ) -> None:
        if not stack:
            raise InputError("stack: a hierarchy needs at least one aggregator")
        if graph is not None:
            if not isinstance(graph, NeighborGraph):
                raise InputError(f"graph: expected a NeighborGraph of gqe.knn, got {type(graph).__name__}")
            graph.check(len(database))
            needed = max(aggregator.graph_k for aggregator in stack)
            if graph.k < min(needed, len(database) - 1):
                graph.truncated(needed)  # says what is wrong
        self.stack = list(stack)
        self.database = database
        self.device = device
        self.contrast = checked_contrast(contrast)
        self._graph = graph
        self._recall = recall
        self._seed = seed
        self._levels: list[Tensor] = [database]
        self._backgrounds: list[Tensor] = []
        self._landscape: Tensor | None = None
        self._read_grounds: dict[int, Tensor] = {}

    @property
    def depth(self) -> int:
        """L, the number of hops."""
        return len(self.stack)

    @property
    def k(self) -> int:
        """The largest K of the stack: how many neighbours of each item must be known."""
        return max(aggregator.graph_k for aggregator in self.stack)

    @property
    def query_k(self) -> int:
        """How many neighbours a query has to bring: K, and its surroundings if they are taken away."""
        return read_of_query(self.k, self.contrast)

    @property
    def graph(self) -> NeighborGraph:
        """The neighbours of the database items."""
        return self.graph_of(self.k) if self._graph is None else self._graph

    def graph_of(self, k: int) -> NeighborGraph:
        """The neighbours of the database items, at least k of each where there are so many.

        The graph that the levels are computed on stays as it is; a wider one is kept beside it.
        """
        for known in (self._graph, self._wider):
            if known is not None and known.k >= min(k, len(self.database) - 1):
                return known
        k = max(1, min(max(k, self.k), len(self.database) - 1))
        made = knn(self.database, k, recall=self._recall, device=self.device, seed=self._seed)
        if self._graph is None:
            self._graph = made
        else:
            self._wider = made
        return made

    def level(self, i: int) -> Tensor:
        """(n, d) embeddings of the database after the first i aggregators, computed once."""
        while len(self._levels) <= i:
            below, last = self._levels[-1], len(self._levels) - 1
            parts = self._aggregate(last, below, self.database, self.graph)
            self._levels.append(_concatenated([part.embeddings for part in parts], below))
        return self._levels[i]

    def expand(self, queries: Tensor, neighbors: Neighbors) -> Tensor:
        """(m, d) expanded queries, given the (m, query_k) neighbours of each."""
        expanded = self.climbed(queries, neighbors)
        return told_apart(expanded, self.database, neighbors, self.contrast)

    def climbed(self, queries: Tensor, neighbors: Neighbors) -> Tensor:
        """(m, d) queries after all aggregators, with nothing taken away."""
        parts = self._climb(range(self.depth), queries, queries, neighbors)
        return _concatenated([part[-1].embeddings for part in parts], queries)

    def augment(self, stack: Sequence[Aggregator] | None = None) -> Tensor:
        """(n, d) database-side augmentation: the whole stack, or another one, run on every database item."""
        if stack is None or list(stack) == self.stack:
            return self.level(self.depth)
        graph = self.graph_of(max(aggregator.graph_k for aggregator in stack))
        other = Hierarchy(
            stack, self.database, graph, device=self.device, recall=self._recall, seed=self._seed
        )
        return other.augment()

    def weights(self, queries: Tensor, neighbors: NeighborGraph, *, contrast: float | None = None) -> Weights:
        """The weight of every database item in each expanded query, with the own contrast or another one.

        With q^i = a_i q^(i-1) + B_i D^(i-1) and D^i = A_i D^(i-1), where B_i and A_i are sparse, the last
        level is unrolled downwards. Only rows of A_i that carry weight are ever computed.
        """
        own, towards = [], []
        for coefficients in self.coefficients(queries, neighbors):
            own.append(coefficients[:, 0])
            towards.append(_sparse(coefficients[:, 1:], neighbors.ids, len(self.database)))

        through_query = own[-1]
        items = towards[-1]
        for i in range(self.depth - 2, -1, -1):
            step = self.database_coefficients(i, np.unique(items.indices))
            items = sparse.csr_array(row_scaled(towards[i], through_query) + items @ step)
            through_query = through_query * own[i]

        contrast = self.contrast if contrast is None else contrast
        if contrast:
            around, shares = shares_taken(self.database, neighbors, contrast, self.device)
            items = sparse.csr_array(items - _sparse(shares, around, len(self.database)))

        # The query's own part is given weight 1 wherever it has one: AQE's weights then read 1, 1, 1...
        takes_part = np.abs(through_query) > _NO_PART
        items = row_scaled(items, 1 / np.where(takes_part, through_query, 1).astype(np.float64))
        items.eliminate_zeros()
        items.sort_indices()
        return Weights(items, takes_part.astype(np.float32))

    def coefficients(self, queries: Tensor, neighbors: NeighborGraph) -> list[np.ndarray[Any, Any]]:
        """For each level (m, 1 + K) coefficients: of the query below it, and of its neighbours there."""
        parts = list(self._climb(range(self.depth), queries, queries, neighbors))
        levels = ([part[i].coefficients for part in parts] for i in range(self.depth))
        return [_concatenated(level, queries, 1).cpu().numpy() for level in levels]

    def database_coefficients(self, i: int, nodes: np.ndarray[Any, Any]) -> sparse.csr_array:
        """(n, n) sparse A_(i+1) of `weights`, with the rows of the given nodes (p,) filled in."""
        n = len(self.database)
        below, aggregator = self.level(i), self.stack[i]
        graph = NeighborGraph(self.graph.ids[nodes], self.graph.similarities[nodes])
        chosen = torch.from_numpy(nodes).to(below.device, torch.int64)
        parts = self._aggregate(
            i, below.index_select(0, chosen), self.database.index_select(0, chosen), graph
        )
        coefficients = _concatenated([part.coefficients for part in parts], below, 1).cpu().numpy()
        with_self = np.concatenate([nodes[:, None], graph.ids[:, : aggregator.k]], axis=1)
        compact = _sparse(coefficients, with_self, n).tocoo()
        return sparse.csr_array((compact.data, (nodes[compact.row], compact.col)), shape=(n, n))

    def _aggregate(
        self, i: int, nodes: Tensor, originals: Tensor, neighbors: NeighborGraph
    ) -> Iterator[Aggregation]:
        """Run aggregator i over nodes (m, d), in blocks; originals (m, d) are the same nodes at level 0."""
        return (part[0] for part in self._climb(range(i, i + 1), nodes, originals, neighbors))

    def _climb(
        self, levels: range, nodes: Tensor, originals: Tensor, neighbors: Neighbors
    ) -> Iterator[list[Aggregation]]:
        """Run several aggregators, one after the other, and give what each of them says, block by block."""
        tables = {i: self.level(i) for i in levels}
        stack = [self._ready(i) for i in levels]
        dim = nodes.shape[1]
        widths = (max(dim // 2, _CONTEXT_WIDTH) if a.needs_context else dim for a in stack)
        tokens = (min(a.k, neighbors.ids.shape[1]) + 1 for a in stack)
        per_node = max(width * count * 4 for width, count in zip(widths, tokens, strict=True))
        for part in blocks(len(nodes), per_node, _token_bytes(self.device)):
            block = _Block(nodes[part], originals[part], _part_of(neighbors, part))
            results: list[Aggregation] = []
            for i, aggregator in zip(levels, stack, strict=True):
                with torch.no_grad():
                    results.append(self._step(i, aggregator, tables[i], block))
                block.nodes = results[-1].embeddings
            yield results

    def _ready(self, i: int) -> Aggregator:
        """Aggregator i on the device and not in training; it is asked first, which is far cheaper."""
        aggregator = self.stack[i]
        if any(parameter.device != self.device for parameter in aggregator.parameters()):
            aggregator.to(self.device)
        return aggregator.eval() if aggregator.training else aggregator

    def _step(self, i: int, aggregator: Aggregator, table: Tensor, block: _Block) -> Aggregation:
        """Aggregator i over one block; its tokens are gone before those of the next level are gathered."""
        around = neighborhood(block.nodes, table, block.neighbors.ids[:, : aggregator.k], self.device)
        if aggregator.needs_context:
            around = self._with_context(around, i, block)
        result: Aggregation = aggregator(around)
        return result

    def _with_context(self, around: Neighborhood, i: int, block: _Block) -> Described:
        """Add what the original tokens say, and what is usual in this space."""
        grounds = self._grounds(i)
        count = around.tokens.shape[1]
        if block.view is None or block.view.both.shape[1] != count:  # not known yet, or for another K
            neighbors = _as_graph(block.neighbors)  # their own lists lie in the host's memory
            ids = neighbors.ids[:, : count - 1]
            base = around if i == 0 else neighborhood(block.originals, self.database, ids, self.device)
            own = profiles(torch.from_numpy(neighbors.similarities))
            listed = torch.from_numpy(self.graph.similarities[ids.clip(min=0)]).flatten(0, 1)
            theirs = profiles(listed).reshape(*ids.shape, own.shape[1])
            lists = torch.cat([own[:, None], theirs], dim=1).to(self.device)
            usual = self._usual().to(self.device)
            block.view = base_view(base.tokens, around.mask, lists, grounds[0], usual)
        return Described.of(around._replace(background=grounds), block.view)

    def _grounds(self, i: int) -> Tensor:
        """(2, 2) the backgrounds of the original embeddings and of level i as aggregators read them."""
        if i not in self._read_grounds:
            known = torch.stack([self._background(0), self._background(i)]).to(self.device)
            self._read_grounds[i] = resolved(known, self._usual().to(self.device))
        return self._read_grounds[i]

    def _usual(self) -> Tensor:
        """How near the neighbours of the database's items usually are, computed once."""
        if self._landscape is None:
            self._landscape = landscape(self._sampled_lists()[1])
        return self._landscape

    def _background(self, i: int) -> Tensor:
        """Median and deviation of the similarities of unrelated items at level i, computed once."""
        while len(self._backgrounds) <= i:
            level = self.level(len(self._backgrounds))
            self._backgrounds.append(background(level.index_select(0, self._company().to(level.device))))
        return self._backgrounds[i]

    def _items(self) -> np.ndarray[Any, Any]:
        """The numbers of the items that tell what is usual in this database."""
        return np.arange(len(self.database))

    def _sampled_lists(self) -> tuple[np.ndarray[Any, Any], Tensor]:
        """A sample (always the same one) of the items, and the profiles of their lists."""
        items = self._items()
        chosen = items[lists_sample(len(items))]
        return chosen, profiles(torch.from_numpy(self.graph.similarities[chosen]))

    def _company(self) -> Tensor:
        """Those of the sample among whom the background is measured."""
        chosen, lists = self._sampled_lists()
        return torch.from_numpy(chosen)[with_company(lists)]


def _token_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return _TOKEN_BYTES["cpu"]
    # An encoder makes several times as much of them.
    return min(_TOKEN_BYTES["cuda"], torch.cuda.get_device_properties(device).total_memory // 32)


def neighborhood(
    nodes: Tensor, table: Tensor, ids: np.ndarray[Any, Any] | Tensor, device: torch.device
) -> Neighborhood:
    """Tokens and mask of nodes (b, d) whose neighbours are rows `ids` (b, K) of a table, -1 = missing."""
    if not isinstance(ids, Tensor):
        ids = torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64))
    wanted = to_device(ids, table.device).to(torch.int64)
    present = wanted >= 0
    if len(table) == 0:
        present = present[:, :0]
        tokens = nodes.to(device, torch.float32, copy=True)[:, None]
    else:
        # Any row is gathered for the node's own place, too, and written over: tokens are copied only once.
        tokens = rows(table, torch.nn.functional.pad(wanted.clamp(min=0), (1, 0)), device)
        tokens[:, 0] = nodes
    mask = torch.nn.functional.pad(present, (1, 0), value=True).to(device)
    return Neighborhood(tokens, mask)


def _part_of(neighbors: Neighbors, part: slice) -> Neighbors:
    if isinstance(neighbors, NeighborGraph):
        return NeighborGraph(neighbors.ids[part], neighbors.similarities[part])
    return Candidates(neighbors.ids[part], neighbors.similarities[part])


def _as_graph(neighbors: Neighbors) -> NeighborGraph:
    if isinstance(neighbors, NeighborGraph):
        return neighbors
    return NeighborGraph(neighbors.ids.cpu().numpy(), neighbors.similarities.cpu().numpy())


def _concatenated(parts: list[Tensor], template: Tensor, width: int | None = None) -> Tensor:
    """Blocks as one tensor on the template's device; no blocks give an empty one, as wide as the template."""
    if not parts:
        return torch.empty((0, width or template.shape[1]), dtype=torch.float32, device=template.device)
    return joined(parts).to(template.device)


def joined(parts: list[Tensor]) -> Tensor:
    """Blocks as one tensor; a single one as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _sparse(coefficients: np.ndarray[Any, Any], ids: np.ndarray[Any, Any], n: int) -> sparse.csr_array:
    """(m, n) sparse coefficients (m, K) at columns `ids` (m, >= K), without missing neighbours and zeros."""
    ids = ids[:, : coefficients.shape[1]]
    present = (ids >= 0) & (coefficients != 0)
    ends = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    return sparse.csr_array((coefficients[present], ids[present].astype(np.int64), ends), shape=(len(ids), n))


def row_scaled(matrix: sparse.csr_array, factors: np.ndarray[Any, Any]) -> sparse.csr_array:
    """A copy with each row multiplied by its factor (m,)."""
    data = (matrix.data * np.repeat(factors, np.diff(matrix.indptr))).astype(np.float32)
    return sparse.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
