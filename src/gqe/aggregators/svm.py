"""Discriminative query expansion, DQE (Arandjelović and Zisserman, CVPR 2012).

Every node has a small SVM of its own, and libraries solve them one by one. Here a whole batch is solved at
once, by the method of LIBSVM: sequential minimal optimisation, each step with the pair that gains most
(Fan, Chen, Lin, "Working set selection using second order information for training support vector machines",
JMLR 6, 2005).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from gqe.aggregators.base import Aggregator, Neighborhood, positive, positive_int

# Steps of the solver at most, and how often solved problems are left out.
_STEPS = 100_000
_SOLVED_EVERY = 16
# Positive or negative examples of a node at most: the table of their products has the square of it.
_MOST_EXAMPLES = 1000


class Svm(Aggregator):
    """The node and its top neighbours against the lowest of its list; the separator is the new embedding.

    A linear SVM's separator is a weighted sum of its support vectors, so it fits the contract: a positive
    example has weight alpha_i, a negative one -alpha_i, everything else 0. The bias plays no part in ranking.
    Where there are more examples than dimensions, other weights may give the same separator.

    Args:
        k: length of the truncated list; its last items are the negative examples.
        positives: how many of the top neighbours are positive examples, beside the node.
        negatives: how many of the last neighbours are negative examples.
        c: the SVM's cost of a violated margin.
        temperature: see `Aggregator`.

    A list too short for any negative example falls back to the mean of the node and its neighbours.
    """

    methods: ClassVar = {"dqe": {}}
    # The list is cut far down, where its negative examples are.
    tuning_grid: ClassVar = {"k": (200, 500, 1000), "positives": (2, 3, 5, 10, 20)}

    def __init__(
        self,
        k: int = 1000,
        positives: int = 20,
        negatives: int = 20,
        c: float = 1.0,
        temperature: float | None = None,
    ) -> None:
        super().__init__(k, temperature)
        self.positives = positive_int("positives", positives, most=_MOST_EXAMPLES)
        self.negatives = positive_int("negatives", negatives, most=_MOST_EXAMPLES)
        self.c = positive("c", c)

    def score(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1), negative for negative examples."""
        tokens, present = neighborhood.tokens, neighborhood.mask.sum(dim=1)
        rows, count = torch.arange(len(tokens), device=tokens.device)[:, None], tokens.shape[1]
        places = torch.arange(1 + self.positives + self.negatives, device=tokens.device)
        negative = places > self.positives
        # Negative examples end where the list ends; those that would lie among the positive ones are none.
        used = torch.where(negative, places - len(places) + present[:, None], places)
        real = torch.where(negative, used > self.positives, used < present[:, None])
        used = used.clamp(0, count - 1)
        examples = tokens[rows, used].double()
        labels = torch.where(negative, -1.0, 1.0).to(examples)
        coefficients = separators(examples @ examples.transpose(1, 2), labels * real, self.c)
        weights = torch.zeros_like(tokens[:, :, 0])
        weights.scatter_add_(1, used, coefficients.to(weights))
        short = present <= 1 + self.positives
        return torch.where(short[:, None], neighborhood.mask.to(weights), weights)


def separators(kernels: Tensor, labels: Tensor, c: float, *, tolerance: float = 1e-8) -> Tensor:
    """Signed dual coefficients of the SVMs of a batch.

    Args:
        kernels: (batch, n, n) float64, products of all examples.
        labels: (batch, n) 1, -1, or 0 for an example that is none.
        c: the cost of a violated margin.
        tolerance: how far the optimality conditions may be violated.

    Returns:
        (batch, n): between 0 and c times the label, each row adding up to 0.

    Example:
        >>> points = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
        >>> separators(points @ points.transpose(1, 2), torch.tensor([[1.0, -1.0]]).double(), c=10.0).tolist()
        [[1.0, -1.0]]
    """
    result = torch.zeros_like(labels)
    # Rows of problems that are not solved yet; solved ones are left out now and then.
    at = torch.arange(len(labels), device=labels.device)
    low, high = c * labels.clamp(max=0), c * labels.clamp(min=0)
    beta, slope, diagonal = result.clone(), labels.clone(), kernels.diagonal(dim1=1, dim2=2)
    for step in range(_STEPS):
        rises = slope.where(beta < high, -torch.inf)
        top, i = rises.max(dim=1, keepdim=True)
        falls = slope.where(beta > low, torch.inf)
        if step % _SOLVED_EVERY == 0:
            result[at] = beta
            left = (top - falls.amin(dim=1, keepdim=True))[:, 0] > tolerance
            if not bool(left.any()):
                break
            at, i, top, falls = at[left], i[left], top[left], falls[left]
            kernels, diagonal, low, high = kernels[left], diagonal[left], low[left], high[left]
            beta, slope = beta[left], slope[left]
        rows = torch.arange(len(at), device=at.device)[:, None]
        own = kernels[rows, i][:, 0]
        curve = (diagonal.gather(1, i) + diagonal - 2 * own).clamp(min=1e-12)
        gain = top - falls
        j = (gain.clamp(min=0) ** 2 / curve).argmax(dim=1, keepdim=True)
        room = torch.minimum((high - beta).gather(1, i), (beta - low).gather(1, j))
        by = torch.minimum((gain / curve).gather(1, j).clamp(min=0), room)
        beta.scatter_add_(1, i, by)
        beta.scatter_add_(1, j, -by)
        slope -= by * (own - kernels[rows, j][:, 0])
    return result
