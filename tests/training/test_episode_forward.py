from dataclasses import replace

import numpy as np
import pytest
import torch

import gqe
from gqe.aggregators import Mean
from gqe.aggregators.affinity import Affinity
from gqe.expansion import expand
from gqe.neighbors import knn
from gqe.source import MemorySource
from gqe.training.episodes import Episode
from gqe.training.forward import expand_episode


def unit_rows(n, d, seed):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(x, dim=1)


def episode(n=90, k=5, *, both_sides=False):
    labels = torch.arange(n) % 9
    return Episode(unit_rows(n, 8, 0), labels, unit_rows(6, 8, 1), torch.arange(6), k, both_sides, "test")


def affinity_stack(depth):
    torch.manual_seed(0)
    return [Affinity(5, width=16, layers=1, heads=2, base=level > 0) for level in range(depth)]


@pytest.mark.parametrize("both_sides", [False, True])
@pytest.mark.parametrize(
    "stack", [[Mean(5)] * 3, affinity_stack(1), affinity_stack(3)], ids=["mean", "1", "3"]
)
def test_equals_what_users_get(stack, both_sides):
    given = episode(both_sides=both_sides)
    expanded = expand_episode(stack, given)
    source = MemorySource(stack, given.database, device=torch.device("cpu"))
    asked = knn(given.database, source.graph_k, queries=given.queries)
    assert torch.allclose(expanded.queries, expand(source, given.queries, asked), atol=1e-5)
    if both_sides:
        assert torch.allclose(expanded.database, source.augment(), atol=1e-5)
    else:
        assert expanded.database is None


@pytest.mark.parametrize("both_sides", [False, True])
@pytest.mark.parametrize("k", [16, 32])
def test_the_shipped_model_is_trained_as_it_is_used(k, both_sides):
    rng = np.random.default_rng(0)
    labels = rng.integers(12, size=220)
    points = rng.normal(size=(12, 24))[labels] + 0.6 * rng.normal(size=(220, 24))
    points = torch.nn.functional.normalize(torch.from_numpy(points).float(), dim=1)
    classes = torch.from_numpy(labels)
    given = Episode(points[20:], classes[20:], points[:20], classes[:20], k, both_sides, "test")
    expander = gqe.expander("universal", k=k, contrast=0).fit(given.database, device="cpu")
    with torch.no_grad():
        trained = expand_episode(expander.stack, given)
    np.testing.assert_allclose(trained.queries, expander.expand(given.queries), atol=1e-5)
    if both_sides:
        np.testing.assert_allclose(trained.database, expander.augment(), atol=1e-5)


def test_level_relevance_compares_labels():
    given = episode()
    expanded = expand_episode([Mean(5), Mean(5)], given)
    first, last = expanded.level_relevance
    assert len(first.relevant) > len(last.relevant) == 6
    nearest = knn(given.database, 5, queries=given.queries).ids
    assert np.array_equal(last.relevant, given.query_labels.numpy()[:, None] == given.labels.numpy()[nearest])


def test_gradients_reach_every_level():
    stack = affinity_stack(3)
    expand_episode(stack, episode()).queries.sum().backward()
    for aggregator in stack:
        assert aggregator.head.weight.grad.abs().max() > 0
        assert aggregator.read[0].weight.grad.abs().max() > 0


def test_lost_neighbours_are_replaced_by_the_next():
    given = replace(episode(), keep=0.6)
    expanded = expand_episode([Mean(5)], given)
    assert expanded.level_relevance[0].present.float().mean() > 0.95
    assert not torch.allclose(expanded.queries, expand_episode([Mean(5)], episode()).queries)


def test_a_database_smaller_than_k():
    expanded = expand_episode(affinity_stack(2), episode(n=3, both_sides=True))
    assert torch.isfinite(expanded.queries).all()
    assert expanded.level_relevance[0].present.sum(dim=1).tolist() == [3] * 6 + [2] * 3
