"""Guided similarity separation: a graph network, fitted to one database without labels, gives new embeddings.

Liu, Yu, Volkovs, Chang, Rai, Ma, Gorti: "Guided Similarity Separation for Image Retrieval", NeurIPS 2019.

- The graph: A has max(cosine, 0) where one of two items is among the k nearest of the other, and 1 between an
  item and itself. With its row sums D it becomes S = D^-1/2 A D^-1/2.
- A layer: P_l = S H_(l-1) W_l + b_l, where H_0 are the embeddings as they were; H_1 = elu(P_1), and further
  H_l = P_(l-1) + decay * elu(P_l). W starts as the identity with a little noise, so that before any training
  the network averages over the graph.
- The new embeddings z are the last H, brought to unit length.
- The loss of a pair is -(s - beta)^2 / 2 with s = max(z_i z_j, 0): similarities above beta grow, those below
  shrink. beta is the 98th percentile of the similarities before training. (The paper's factor alpha only
  scales the loss, which Adam does not notice.)

A query is one more row of S that no item refers to: its kq first results and itself. So its embedding comes
from the stored layers of these results, no item's embedding changes, and queries may be new.

Each epoch is one update, as in the paper, on the mean loss of all pairs among `batch` items drawn anew; with
at most that many items in the database these are all pairs, as in the paper. The pairs of items drawn at
random are a fair sample of all pairs, of which beta is a percentile. Pairs of items and their own neighbours
would lie above beta nearly always, and there would be nothing to separate them from. The memory is
batch^2 + batch * k * d beside a few tables as large as the database.

Where the paper leaves a choice:

- The number of epochs is fixed beforehand. Nothing is chosen by looking at results.
- k does not count the item itself. (In the authors' program it does.)
- An item and itself are no pair.
- Nothing keeps the weights small. (The authors' program has such a term, of an effect too small to notice.)
- Only the first m results are ranked anew; the others follow in their old order.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array
from torch import Tensor
from torch.nn.functional import elu, normalize

from gqe.aggregators.base import MOST, MOST_LAYERS, positive, positive_int
from gqe.embeddings import blocks, rows
from gqe.errors import InputError
from gqe.neighbors import NeighborGraph
from gqe.rerank.affinity_graph import neighbor_matrix
from gqe.rerank.base import MOST_ITERATIONS, Reranker, check_width, order_results
from gqe.results import SearchResult

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]


class Layer(NamedTuple):
    """W (d, d) and b (d,) of one layer."""

    weight: Tensor
    bias: Tensor

    def __call__(self, average: Tensor, before: Tensor | None, decay: float) -> tuple[Tensor, Tensor]:
        """H_l and P_l (b, d) from S H_(l-1) and P_(l-1), which the first layer does not have."""
        linear = average @ self.weight + self.bias
        bent = elu(linear)
        return (bent if before is None else before + decay * bent), linear


class SampledItems(NamedTuple):
    """Some items with all that their last layer depends on.

    Attributes:
        lowest: (b_1,) the items needed from the first layer, ascending.
        matrices: (b_l, b_(l-1)) the part of S that each later layer needs, sparse.
        own: (b_l,) where the items of each later layer stand among those of the layer before.
    """

    lowest: Tensor
    matrices: list[Tensor]
    own: list[Tensor]


class _GssModel(NamedTuple):
    """What `fit` works out.

    Attributes:
        inputs: (n, d) what each layer reads: the database itself, then H_1 ... H_(L-1).
        embeddings: (n, d) the new embeddings.
        scale: (n,) D^-1/2.
        layers: the trained weights.
    """

    inputs: list[Tensor]
    embeddings: Tensor
    scale: Tensor
    layers: list[Layer]


class Gss(Reranker):
    """Guided similarity separation (Liu et al., 2019).

    Args:
        k: how many neighbours of an item count; a link counts in both directions.
        kq: how many first results a query is linked to (15 for Revisited Paris in the paper).
        layers: of the network.
        decay: how much of a later layer is added to the one before.
        percentile: of the similarities before training, which are then separated at this value.
        epochs: updates of the weights; 0 leaves the average over the graph.
        learning_rate: of Adam.
        noise: deviation of the initial weights off the diagonal.
        batch: how many items are compared with each other in an update.
        m: how many first results are ranked anew.
        seed: of the initial weights and the items drawn.

    Attributes:
        beta: where similarities are separated, once `fit` has chosen it; None with fewer than two items.

    Example:
        >>> from gqe import knn
        >>> database = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.3], [0.6, 0.7]]))
        >>> first = knn(database, 3, queries=database[:1])
        >>> method = Gss(k=1, kq=1).fit(database, knn(database, 1), device=torch.device("cpu"))
        >>> method.rerank(database[:1], first).ids.tolist()
        [[0, 1, 2]]
    """

    name = "gss"
    tuning_grid: ClassVar = {"k": (5, 10), "kq": (5, 15), "epochs": (0, 200)}

    def __init__(
        self,
        *,
        k: int = 5,
        kq: int = 5,
        layers: int = 2,
        decay: float = 0.3,
        percentile: float = 98.0,
        epochs: int = 200,
        learning_rate: float = 1e-4,
        noise: float = 1e-5,
        batch: int = 1024,
        m: int = 1000,
        seed: int = 0,
    ) -> None:
        self.k = positive_int("k", k, most=MOST)
        self.kq = positive_int("kq", kq, most=MOST)
        self.layers = positive_int("layers", layers, most=MOST_LAYERS)
        self.decay = positive("decay", decay, or_zero=True)
        self.percentile = positive("percentile", percentile, or_zero=True)
        if self.percentile > 100:
            raise InputError(f"percentile: expected a number from 0 to 100, got {percentile!r}")
        self.epochs = positive_int("epochs", epochs, least=0, most=MOST_ITERATIONS)
        self.learning_rate = positive("learning_rate", learning_rate)
        self.noise = positive("noise", noise, or_zero=True)
        self.batch = positive_int("batch", batch, least=2, most=MOST)
        self.m = positive_int("m", m, most=MOST)
        self.seed = positive_int("seed", seed, least=0, most=2**31 - 1)
        self.beta: float | None = None
        self._device = torch.device("cpu")
        self._fitted: _GssModel | None = None

    @property
    def graph_k(self) -> int:
        """How many neighbours of every database item the graph must hold."""
        return self.k

    @property
    def num_candidates(self) -> int:
        """How many first results of a query are looked at."""
        return max(self.kq, self.m)

    @property
    def embeddings(self) -> Tensor:
        """The new embeddings (n, d) of the database."""
        return self._known().embeddings

    def size(self) -> int:
        """Bytes kept beside the database and its graph: H_1 ... H_(L-1), z, the degrees, the weights."""
        if self._fitted is None:
            return 0
        kept = [*self._fitted.inputs[1:], self._fitted.embeddings, self._fitted.scale]
        kept += [tensor for layer in self._fitted.layers for tensor in layer]
        return sum(tensor.nbytes for tensor in kept)

    def fit(self, database: Tensor, graph: NeighborGraph, *, device: torch.device) -> Self:
        """Train the network on the database and embed it (see `Reranker.fit`)."""
        n = len(database)
        graph.check(n)
        check_width(graph, self.k)
        matrix, scale = adjacency(graph, self.k)
        # What the first layer reads does not depend on any weights: it is worked out once.
        first = average_rows(matrix, database, device)
        layers = self._train(matrix, first)
        made = all_outputs(matrix, first, layers, self.decay)
        self._device = device
        self._fitted = _GssModel([database, *made[:-1]], made[-1], torch.from_numpy(scale), layers)
        return self

    def rerank(self, queries: Tensor, first: NeighborGraph) -> SearchResult:
        """Rank the first m results by the cosine of their new embeddings and the query's."""
        known, asked = self._known(), self.embed(queries, first)
        ids = first.ids[:, : self.m]
        scores = np.zeros(ids.shape, dtype=np.float32)
        if len(known.embeddings):
            for part in blocks(len(ids), 4 * ids.shape[1] * asked.shape[1]):
                near = torch.from_numpy(ids[part]).clamp(min=0)
                items = rows(known.embeddings, near, self._device)
                scores[part] = torch.bmm(items, asked[part, :, None])[:, :, 0].cpu().numpy()
        return order_results(ids, scores, first)

    @torch.no_grad()
    def embed(self, queries: Tensor, first: NeighborGraph) -> Tensor:
        """New embeddings of queries.

        Args:
            queries: (m, d) their embeddings as they were.
            first: (m, R) their results in the database given to `fit`, of which kq count.

        Returns:
            (m, d) unit vectors, to be compared with `embeddings`.
        """
        known = self._known()
        n = len(known.scale)
        self._check(queries, first, n)
        links = min(self.kq, first.k) if n else 0
        ids = torch.from_numpy(first.ids[:, :links]).long().clamp(min=0)
        weights = torch.from_numpy(np.maximum(first.similarities[:, :links], 0))  # 0 where one is missing
        scale = torch.rsqrt(1 + weights.sum(dim=1, keepdim=True))
        weights = (weights * scale * known.scale[ids]).to(self._device)
        itself = (scale * scale).to(self._device)
        result = torch.empty(queries.shape, device=self._device)
        for part in blocks(len(queries), 4 * (links + 4) * queries.shape[1]):
            output, before = queries[part].to(self._device, torch.float32), None
            for layer, table in zip(known.layers, known.inputs, strict=True):
                average = itself[part] * output
                if links:
                    near = rows(table, ids[part], self._device)
                    average = average + torch.bmm(weights[part, None], near)[:, 0]
                output, before = layer(average, before, self.decay)
            result[part] = normalize(output, dim=1)
        return result

    def _known(self) -> _GssModel:
        if self._fitted is None:
            raise InputError("gss: it knows no database yet; call fit first")
        return self._fitted

    def _train(self, matrix: Any, first: Tensor) -> list[Layer]:
        """The weights after all updates, from S (n, n) and S times the database (n, d)."""
        (n, dim), device = first.shape, first.device
        noise = torch.Generator().manual_seed(self.seed)
        layers = []
        for _ in range(self.layers):
            weight = (self.noise * torch.randn((dim, dim), generator=noise)).fill_diagonal_(1.0)
            layers.append(Layer(weight.to(device), torch.zeros(dim, device=device)))
        self.beta = None
        if n < 2:  # no pair to separate
            return layers
        rng = np.random.default_rng(self.seed)
        drawn = sample_items(matrix, self._items(n, rng), self.layers, device)
        self.beta = similarity_percentile(outputs(drawn, first, layers, self.decay), self.percentile)
        adam = torch.optim.Adam(
            [tensor.requires_grad_() for layer in layers for tensor in layer], lr=self.learning_rate
        )
        for epoch in range(self.epochs):
            if n > self.batch:
                drawn = sample_items(matrix, self._items(n, rng), self.layers, device)
            with torch.enable_grad():
                loss = separation_loss(outputs(drawn, first, layers, self.decay), self.beta)
                adam.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            log.debug("gss: epoch %d of %d: loss %.6f", epoch + 1, self.epochs, loss.item())
        return [Layer(*(tensor.detach() for tensor in layer)) for layer in layers]

    def _items(self, n: int, rng: np.random.Generator) -> Array:
        """The items of an update, ascending: all of them where they are not too many."""
        return np.arange(n) if n <= self.batch else np.sort(rng.choice(n, self.batch, replace=False))


def adjacency(graph: NeighborGraph, k: int) -> tuple[Any, Array]:
    """S = D^-1/2 A D^-1/2 (n, n), sparse, and D^-1/2 (n,), both float32.

    Args:
        graph: (n, K) neighbours of the items, without themselves.
        k: how many of them count.

    Example:
        >>> graph = NeighborGraph(np.array([[1], [-1]]), np.array([[1.0], [-np.inf]], np.float32))
        >>> adjacency(graph, 1)[0].toarray().round(3).tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """
    n = len(graph)
    one_way = neighbor_matrix(graph, n, k=k)
    whole = csr_array(one_way.maximum(one_way.T.tocsr()) + eye_array(n, format="csr"))
    whole.sort_indices()
    scale = 1 / np.sqrt(np.asarray(whole.sum(axis=1), dtype=np.float64).ravel())
    data = whole.data * np.repeat(scale, np.diff(whole.indptr)) * scale[whole.indices]
    matrix = csr_array((data.astype(np.float32), whole.indices, whole.indptr), shape=(n, n))
    return matrix, scale.astype(np.float32)


def average_rows(matrix: Any, table: Tensor, device: torch.device) -> Tensor:
    """The product (b, d) of sparse rows (b, n) and a table (n, d), of which only what is needed is read."""
    result = torch.empty((matrix.shape[0], table.shape[1]), device=device)
    for part in blocks(len(result), 64 * table.shape[1]):
        cut, members = _cut(matrix[part])
        needed = rows(table, torch.from_numpy(members), torch.device("cpu")).numpy()
        result[part] = torch.from_numpy(cut @ needed).to(device)
    return result


def sample_items(matrix: Any, items: Array, layers: int, device: torch.device) -> SampledItems:
    """Find what the last of some layers needs to know of the items (b,), ascending, of the graph S (n, n)."""
    matrices: list[Tensor] = []
    own: list[Tensor] = []
    for _ in range(layers - 1):
        cut, below = _cut(matrix[items])
        entries = cut.tocoo()
        places = torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64))
        values = torch.from_numpy(entries.data)
        sparse = torch.sparse_coo_tensor(places, values, cut.shape, is_coalesced=True, check_invariants=False)
        matrices.insert(0, sparse.to(device))
        own.insert(0, torch.from_numpy(np.searchsorted(below, items)).to(device))
        items = below
    return SampledItems(torch.from_numpy(items).to(device), matrices, own)


def outputs(drawn: SampledItems, first: Tensor, layers: list[Layer], decay: float) -> Tensor:
    """H_L (b, d) of the drawn items, with gradients, from S times the database, `first` (n, d)."""
    output, before = layers[0](first[drawn.lowest], None, decay)
    for layer, matrix, own in zip(layers[1:], drawn.matrices, drawn.own, strict=True):
        output, before = layer(torch.sparse.mm(matrix, output), before[own], decay)
    return output


@torch.no_grad()
def all_outputs(matrix: Any, first: Tensor, layers: list[Layer], decay: float) -> list[Tensor]:
    """H_1 ... H_(L-1), and H_L of unit length, of all items: (n, d) each, on the CPU.

    Args:
        matrix: S (n, n).
        first: (n, d) S times the database. It is overwritten.
        layers: the weights.
        decay: how much of a later layer is added to the one before.
    """
    made: list[Tensor] = []
    for number, layer in enumerate(layers):
        table = torch.empty(first.shape)
        for part in blocks(len(first), 64 * first.shape[1]):
            if number == 0:
                output, linear = layer(first[part], None, decay)
            else:
                output, linear = layer(average_rows(matrix[part], made[-1], first.device), first[part], decay)
            first[part] = linear
            table[part] = (normalize(output, dim=1) if number == len(layers) - 1 else output).cpu()
        made.append(table)
    return made


def separation_loss(embeddings: Tensor, beta: float) -> Tensor:
    """The mean of -(s - beta)^2 / 2 over all pairs of embeddings (b, d) of any length, b at least 2.

    Example:
        >>> separation_loss(torch.eye(2), 0.5)
        tensor(-0.1250)
    """
    unit = normalize(embeddings, dim=1)
    losses = -0.5 * ((unit @ unit.T).clamp(min=0) - beta) ** 2
    return (losses.sum() - losses.diagonal().sum()) / (len(unit) * (len(unit) - 1))


def similarity_percentile(embeddings: Tensor, percentile: float) -> float:
    """A percentile of the similarities of all pairs of embeddings (b, d) of any length, b at least 2."""
    unit = normalize(embeddings, dim=1)
    similarities = (unit @ unit.T).cpu().numpy()
    return float(np.percentile(similarities[np.triu_indices(len(unit), 1)], percentile))


def _cut(matrix: Any) -> tuple[Any, Array]:
    """Sparse rows (b, n) without their empty columns, (b, c), and which columns are left, ascending (c,)."""
    members, places = np.unique(matrix.indices, return_inverse=True)
    shape = (matrix.shape[0], len(members))
    return csr_array((matrix.data, places.ravel(), matrix.indptr), shape=shape), members.astype(np.int64)
