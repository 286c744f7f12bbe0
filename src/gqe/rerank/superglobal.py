"""Re-ranking by refined descriptors: the first results sharpen each other, and then the query.

Shao, Chen, Karpur, Cui, Araujo, Cao: "Global Features are All You Need for Image Retrieval and Reranking",
ICCV 2023. Only its re-ranking is here, for any embeddings; its pooling of pictures is not.

- The descriptor x of each of the first M results is refined by its K nearest among those M:
  x' = (x + beta * sum(s_j x_j)) / (1 + beta * sum(s_j)), s_j the cosine of x and its neighbour x_j.
- S1 of a result is the product of the query and x'.
- The query becomes the maximum, in each dimension, of the K + 1 refined descriptors with the highest S1.
- S2 of a result is the product of that new query and x'. The final score is (S1 + S2) / 2.

Results beyond M keep their order. The method asks nothing of the database's graph: all it needs are the
vectors of the first results, so nothing is computed or kept beforehand.

Where the paper leaves a choice:

- A result is no neighbour of itself, by id, so that exact duplicates of it are. It enters with weight 1.
- A neighbour with a negative cosine has weight 0; otherwise the divisor could vanish.
- Among equal similarities the result that was ranked higher before comes first.
- Neither x' nor the new query are brought to unit length, as in the authors' program.
- The new query is made of database items alone: K + 1 of them, as in that program, where the place of "the
  item itself" among its K + 1 nearest falls to one more result.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from gqe.aggregators.base import MOST, positive, positive_int
from gqe.rerank.base import CandidateReranker


class SuperGlobal(CandidateReranker):
    """Re-ranking of SuperGlobal (Shao et al., 2023).

    Args:
        m: how many first results are re-ranked.
        k: how many neighbours refine a result; the new query is made of k + 1 results.
        beta: how much they weigh; 0 refines nothing.

    Example:
        >>> from gqe import knn
        >>> database = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.3], [0.6, 0.7]]))
        >>> first = knn(database, 3, queries=database[:1])
        >>> method = SuperGlobal(k=1).fit(database, knn(database, 1), device=torch.device("cpu"))
        >>> method.rerank(database[:1], first).ids.tolist()
        [[0, 1, 2]]
    """

    tuning_grid: ClassVar = {"k": (3, 5, 9, 15), "beta": (0.15, 0.5, 1.0)}

    def __init__(self, *, m: int = 400, k: int = 9, beta: float = 0.15) -> None:
        self.m = positive_int("m", m, most=MOST)
        self.k = positive_int("k", k, most=MOST)
        self.beta = positive("beta", beta, or_zero=True)

    def _numbers(self, width: int, dim: int) -> int:
        return width * (dim + 3 * width)

    def _scores(self, queries: Tensor, vectors: Tensor, present: Tensor) -> Tensor:
        """The mean of S1 and S2.

        Refining is linear, so a product with refined descriptors is the refined product with the descriptors
        as they are: only those that make up the new query are ever written out.
        """
        weights = self._weights(vectors, present)
        own = self._refine(weights, torch.bmm(vectors, queries[:, :, None]))[:, :, 0]
        ranked = torch.sort(own.masked_fill(~present, -torch.inf), dim=1, descending=True, stable=True)
        order = ranked.indices[:, : self.k + 1]
        few = weights.gather(1, order[:, :, None].expand(-1, -1, weights.shape[2]))
        base = vectors.gather(1, order[:, :, None].expand(-1, -1, vectors.shape[2]))
        refined = (base + torch.bmm(few, vectors)) / (1 + few.sum(dim=2, keepdim=True))
        refined = refined.masked_fill(~present.gather(1, order)[:, :, None], -torch.inf)
        expanded = refined.amax(dim=1)
        expanded = expanded.masked_fill(expanded.isinf(), 0.0)  # a query without any result
        again = self._refine(weights, torch.bmm(vectors, expanded[:, :, None]))[:, :, 0]
        return (own + again) / 2

    def _weights(self, vectors: Tensor, present: Tensor) -> Tensor:
        """The beta * s_j of each result's neighbours (b, M, M), 0 for all others."""
        cosines = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = present[:, :, None] & present[:, None, :]
        pairs &= ~torch.eye(cosines.shape[1], dtype=torch.bool, device=cosines.device)
        neighbors = _first_largest(cosines.masked_fill(~pairs, -torch.inf), self.k)
        return self.beta * cosines.clamp(min=0).masked_fill(~neighbors, 0.0)

    @staticmethod
    def _refine(weights: Tensor, values: Tensor) -> Tensor:
        """What values (b, M, c) of the descriptors become when these are refined."""
        return (values + torch.bmm(weights, values)) / (1 + weights.sum(dim=2, keepdim=True))


def _first_largest(values: Tensor, count: int) -> Tensor:
    """Mark the `count` largest of the last dimension, the earlier of equals; never one that is -inf."""
    count = min(count, values.shape[-1])
    last = torch.topk(values, count, dim=-1).values[..., -1:]
    above = values > last
    equal = (values == last) & (values > -torch.inf)
    room = count - above.sum(dim=-1, keepdim=True)
    return above | (equal & (equal.cumsum(dim=-1) <= room))
