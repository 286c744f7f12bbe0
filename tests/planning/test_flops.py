"""Counted operations are those that plain loops, and torch itself, count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gqe.aggregators import Affinity, Aggregator, Alpha, Attention, Mean
from gqe.aggregators.base import Neighborhood
from gqe.aggregators.context import PLACES
from gqe.index.approximate import build_approximate
from gqe.planning import flops

BATCH = 3


def counted(aggregator: Aggregator, k: int, dim: int) -> float:
    """Operations a node, as torch counts them (on a CPU it leaves out the attention between tokens)."""
    torch.manual_seed(0)
    tokens = torch.nn.functional.normalize(torch.randn(BATCH, k + 1, dim), dim=-1)
    around = Neighborhood(
        tokens,
        torch.ones(BATCH, k + 1, dtype=torch.bool),
        base=tokens.clone(),
        profiles=torch.rand(BATCH, k + 1, len(PLACES)),
        background=torch.tensor([[0.0, 0.1], [0.0, 0.1]]),
        quantiles=torch.rand(33, len(PLACES)).sort(dim=0).values,
    )
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        aggregator.eval()(around)
    return counter.get_total_flops() / BATCH


@pytest.mark.parametrize(("k", "dim"), [(5, 16), (9, 8), (40, 24)])
def test_aggregators(k: int, dim: int) -> None:
    assert counted(Mean(k), k, dim) == flops.sum_flops(k, dim)
    assert counted(Alpha(k), k, dim) == flops.alpha_flops(k, dim)
    assert counted(Affinity(k), k, dim) == flops.affinity_flops(k, dim, first=True)
    assert counted(Affinity(k, base=True), k, dim) == flops.affinity_flops(k, dim, first=False)


@pytest.mark.parametrize(("k", "dim", "layers", "feedforward"), [(5, 16, 2, 12), (9, 8, 3, 40)])
def test_the_papers_encoder(k: int, dim: int, layers: int, feedforward: int) -> None:
    encoder = Attention(dim, k, layers=layers, heads=4, feedforward=feedforward)
    between_tokens = 0
    for _ in range(layers):
        for _query in range(k + 1):
            for _key in range(k + 1):
                between_tokens += 2 * dim  # their product, in all heads together
                between_tokens += 2 * dim  # the value, weighted and added
    expected = counted(encoder, k, dim) + between_tokens
    assert flops.attention_flops(k, dim, layers, feedforward) == expected


def test_the_papers_size_as_the_benchmark_counts_it() -> None:
    per_token = 3 * 2 * (4 * 2048 * 2048 + 2 * 2048 * 2048) + 3 * 4 * 45 * 2048
    ours = flops.attention_flops(44, 2048) - flops.sum_flops(44, 2048) - 2 * 44 * 2048
    assert ours == 45 * per_token


def test_searches_by_loops() -> None:
    queries, items, dim, candidates = 3, 5, 4, 2
    operations = sum(2 for _ in range(queries) for _ in range(items) for _ in range(dim))
    assert flops.exact_search_flops(queries, items, dim) == operations
    again = sum(2 for _ in range(queries) for _ in range(candidates) for _ in range(dim))
    assert flops.rescoring_flops(queries, candidates, dim) == again


def test_an_inverted_file_is_the_one_that_is_made() -> None:
    n, dim = flops.SMALLEST_APPROXIMATE, 8
    table = torch.nn.functional.normalize(
        torch.from_numpy(np.random.default_rng(0).normal(size=(n, dim))).float(), dim=1
    )
    index = build_approximate(table, 8, 0.5, "ivf", 0)
    assert index is not None
    lists = flops.inverted_lists(n)
    assert index.index.nlist / 2**0.5 <= lists <= index.index.nlist * 2**0.5
    assert index.breadth == flops.LEAST_PROBES
    assert build_approximate(table[:-1], 8, 0.5, "ivf", 0) is None
    _, scanned = flops.inverted_scan_flops(7, n, dim, share=0.25)
    assert scanned == 2 * 7 * dim * 0.25 * n
    assert flops.inverted_scan_flops(7, n, dim, share=0.0)[1] == pytest.approx(2 * 7 * dim * n * 4 / lists)
