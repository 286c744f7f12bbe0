"""Discriminative query expansion, DQE (Arandjelović and Zisserman, CVPR 2012)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gqe.aggregators.base import Aggregator, Neighborhood, positive, positive_int


class Svm(Aggregator):
    """The node and its top neighbours against the lowest of its list; the separator is the new embedding.

    A linear SVM's separator is a weighted sum of its support vectors, so it fits the contract: a positive
    example has weight alpha_i, a negative one -alpha_i, everything else 0. The bias plays no part in ranking.

    Args:
        k: length of the truncated list; its last items are the negative examples.
        positives: how many of the top neighbours are positive examples, beside the node.
        negatives: how many of the last neighbours are negative examples.
        c: the SVM's cost of a violated margin.
        temperature: see `Aggregator`.

    A list too short for any negative example falls back to the mean of the node and its neighbours.
    """

    def __init__(
        self,
        k: int = 1000,
        positives: int = 20,
        negatives: int = 20,
        c: float = 1.0,
        temperature: float | None = None,
    ) -> None:
        super().__init__(k, temperature)
        self.positives = positive_int("positives", positives)
        self.negatives = positive_int("negatives", negatives)
        self.c = positive("c", c)

    def score(self, neighborhood: Neighborhood) -> Tensor:
        """Weights (batch, K+1), negative for negative examples."""
        tokens = neighborhood.tokens
        present = neighborhood.mask.sum(dim=1).tolist()
        weights = [self._separator(row[:count]) for row, count in zip(tokens, present, strict=True)]
        padded = np.zeros(tokens.shape[:2], dtype=np.float32)
        for row, weight in zip(padded, weights, strict=True):
            row[: len(weight)] = weight
        return torch.from_numpy(padded).to(tokens)

    def _separator(self, tokens: Tensor) -> np.ndarray[Any, Any]:
        """Signed dual coefficients of the node and its present neighbours: (count,)."""
        from sklearn.svm import SVC

        count = len(tokens)
        n_negatives = min(self.negatives, count - 1 - self.positives)
        if n_negatives < 1:
            return np.ones(count, dtype=np.float32)
        used = np.r_[0 : 1 + self.positives, count - n_negatives : count]
        labels = np.where(np.arange(len(used)) <= self.positives, 1, -1)
        examples = tokens[torch.from_numpy(used)].double().cpu().numpy()
        svm = SVC(C=self.c, kernel="precomputed", tol=1e-8).fit(examples @ examples.T, labels)
        weights = np.zeros(count, dtype=np.float32)
        weights[used[svm.support_]] = svm.dual_coef_[0]
        return weights

    def settings(self) -> dict[str, Any]:
        """The keyword arguments that make this aggregator again."""
        return {
            "k": self.k,
            "positives": self.positives,
            "negatives": self.negatives,
            "c": self.c,
            "temperature": self.temperature,
        }
