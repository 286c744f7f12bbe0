"""The network of guided similarity separation: its graph, its layers, its loss (see `gqe.rerank.gss`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn.functional import elu, normalize

from gqe.embeddings import blocks, rows
from gqe.neighbors import NeighborGraph

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


class Drawn(NamedTuple):
    """Some items with all that their last layer depends on.

    Attributes:
        lowest: (b_1,) the items needed from the first layer, ascending.
        matrices: (b_l, b_(l-1)) the part of S that each later layer needs, sparse.
        own: (b_l,) where the items of each later layer stand among those of the layer before.
    """

    lowest: Tensor
    matrices: list[Tensor]
    own: list[Tensor]


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
    ids, cosines = graph.ids[:, :k], graph.similarities[:, :k]
    linked = (ids >= 0) & (cosines > 0)
    one_way = csr_array((cosines[linked], (np.nonzero(linked)[0], ids[linked])), shape=(n, n))
    itself = csr_array((np.ones(n, dtype=np.float32), np.arange(n), np.arange(n + 1)), shape=(n, n))
    whole = csr_array(one_way.maximum(one_way.T.tocsr()) + itself)
    whole.sort_indices()
    scale = 1 / np.sqrt(np.asarray(whole.sum(axis=1), dtype=np.float64).ravel())
    data = whole.data * np.repeat(scale, np.diff(whole.indptr)) * scale[whole.indices]
    matrix = csr_array((data.astype(np.float32), whole.indices, whole.indptr), shape=(n, n))
    return matrix, scale.astype(np.float32)


def averaged(matrix: Any, table: Tensor, device: torch.device) -> Tensor:
    """The product (b, d) of sparse rows (b, n) and a table (n, d), of which only what is needed is read."""
    result = torch.empty((matrix.shape[0], table.shape[1]), device=device)
    for part in blocks(len(result), 64 * table.shape[1]):
        cut, members = _cut(matrix[part])
        needed = rows(table, torch.from_numpy(members), torch.device("cpu")).numpy()
        result[part] = torch.from_numpy(cut @ needed).to(device)
    return result


def drawn_items(matrix: Any, items: Array, layers: int, device: torch.device) -> Drawn:
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
    return Drawn(torch.from_numpy(items).to(device), matrices, own)


def outputs(drawn: Drawn, first: Tensor, layers: list[Layer], decay: float) -> Tensor:
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
                output, linear = layer(averaged(matrix[part], made[-1], first.device), first[part], decay)
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
