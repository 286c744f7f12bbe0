"""Guided similarity separation against a dense network, written out item by item from its formulas."""

from __future__ import annotations

import doctest
import resource

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gqe
from gqe.errors import InputError
from gqe.neighbors import NeighborGraph
from gqe.rerank import gss
from gqe.rerank.gss import Gss

CPU = torch.device("cpu")
LITTLE = {"epochs": 3, "learning_rate": 0.05, "noise": 0.1}  # weights that are far from the identity


def dense_adjacency(graph: NeighborGraph, k: int) -> np.ndarray:
    """A with its diagonal: the larger of the two directions, where an item lists another."""
    a = np.eye(len(graph))
    for i in range(len(graph)):
        for j, cosine in zip(graph.ids[i, :k], graph.similarities[i, :k], strict=True):
            if j >= 0:
                a[i, j] = a[j, i] = max(a[i, j], float(cosine), 0.0)
    return a


def with_query(a: np.ndarray, first_ids: np.ndarray, cosines: np.ndarray, kq: int) -> np.ndarray:
    """A with one more row and column, the query's: it looks at items, no item looks at it."""
    whole = np.eye(len(a) + 1)
    whole[:-1, :-1] = a
    for j, cosine in zip(first_ids[:kq], cosines[:kq], strict=True):
        if j >= 0:
            whole[-1, j] = max(float(cosine), 0.0)
    return whole


def dense_network(a: np.ndarray, x: torch.Tensor, layers: list, decay: float) -> torch.Tensor:
    """The unit outputs of all nodes."""
    degrees = torch.from_numpy(a.sum(axis=1))
    s = torch.from_numpy(a) / torch.sqrt(degrees[:, None] * degrees)
    h, before = x, None
    for weight, bias in layers:
        p = s @ h @ weight + bias
        bent = torch.where(p > 0, p, torch.exp(p) - 1)
        h, before = (bent if before is None else before + decay * bent), p
    return torch.stack([row / row.norm().clamp(min=1e-12) for row in h]) if len(h) else h


def dense_loss(z: torch.Tensor, beta: float) -> torch.Tensor:
    pairs = [(i, j) for i in range(len(z)) for j in range(len(z)) if i != j]
    return sum(-((torch.relu(z[i] @ z[j]) - beta) ** 2) / 2 for i, j in pairs) / len(pairs)


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(torch.float64)


def weights_of(method: Gss) -> list:
    return [(double(layer.weight), double(layer.bias)) for layer in method._known().layers]


def random_lists(rng: np.random.Generator, m: int, n: int, k: int, *, own: bool) -> NeighborGraph:
    """Random neighbours with few different similarities, so that many tie; some lists are short or empty."""
    ids = np.full((m, k), -1, dtype=np.int64)
    similarities = np.full((m, k), -np.inf, dtype=np.float32)
    for row in range(m):
        others = [i for i in range(n) if not (own and i == row)]
        count = int(rng.integers(0, min(k, len(others)) + 1))
        chosen = rng.permutation(others)[:count].astype(np.int64)
        values = (rng.integers(-2, 9, size=count) / 8).astype(np.float32)
        order = np.lexsort((chosen, -values))
        ids[row, :count], similarities[row, :count] = chosen[order], values[order]
    return NeighborGraph(ids, similarities)


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def check(method: Gss, database: np.ndarray, graph: NeighborGraph, queries, first: NeighborGraph) -> None:
    """Embeddings and ranking of a fitted method are those of the dense network with its weights."""
    layers, decay, x = weights_of(method), method.decay, torch.from_numpy(database).double()
    a = dense_adjacency(graph, method.k)
    z = dense_network(a, x, layers, decay)
    assert method.embeddings.numpy() == pytest.approx(z.numpy(), abs=1e-5)
    result = method.rerank(torch.from_numpy(queries), first)
    for row, query in enumerate(queries):
        whole = with_query(a, first.ids[row], first.similarities[row], method.kq)
        nodes = dense_network(whole, torch.cat([x, torch.from_numpy(query[None]).double()]), layers, decay)
        assert nodes[:-1].numpy() == pytest.approx(z.numpy(), abs=1e-9)  # a query changes no item
        listed = [int(i) for i in first.ids[row, : method.m] if i >= 0]
        behind = [int(i) for i in first.ids[row, method.m :] if i >= 0]
        ranked = [int(i) for i in result.ids[row] if i >= 0]
        assert sorted(ranked[: len(listed)]) == sorted(listed)
        assert ranked[len(listed) :] == behind
        wanted = [float(nodes[-1] @ z[i]) for i in ranked[: len(listed)]]
        assert result.scores[row, : len(listed)] == pytest.approx(wanted, abs=1e-5)
        assert (np.diff(result.scores[row, : len(ranked)]) <= 0).all()


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 14),
    columns=st.integers(1, 16),
    width=st.integers(1, 16),
    k=st.integers(1, 20),
    kq=st.integers(1, 20),
    layers=st.integers(1, 3),
    m=st.integers(1, 20),
    batch=st.sampled_from([2, 5, 50]),
)
def test_equals_the_dense_network(seed, n, columns, width, k, kq, layers, m, batch):
    rng = np.random.default_rng(seed)
    database, queries = unit(rng.normal(size=(n, 5))), unit(rng.normal(size=(3, 5)))
    # As wide as the method may ask for: what is missing are neighbours, not columns.
    graph = random_lists(rng, n, n, max(columns, min(k, n - 1)), own=True)
    method = Gss(k=k, kq=kq, layers=layers, m=m, batch=batch, seed=seed, **LITTLE)
    method.fit(torch.from_numpy(database), graph, device=CPU)
    check(method, database, graph, queries, random_lists(rng, 3, n, width, own=False))


def test_equals_the_dense_network_on_vectors(random_unit):
    database, queries = random_unit(60, 8), random_unit(5, 8, seed=1)
    graph, first = gqe.knn(database, 5), gqe.knn(database, 60, queries=queries)
    method = Gss(learning_rate=0.01).fit(torch.from_numpy(database), graph, device=CPU)
    check(method, database, graph, queries, first)


def test_training_equals_dense_training_on_all_pairs(random_unit):
    database = random_unit(12, 4)
    graph = gqe.knn(database, 3)
    settings = {"k": 3, "learning_rate": 0.01, "noise": 0.1, "seed": 7}
    start = Gss(epochs=0, **settings).fit(torch.from_numpy(database), graph, device=CPU)
    a, x = dense_adjacency(graph, 3), torch.from_numpy(database).double()

    layers = weights_of(start)
    before = dense_network(a, x, layers, 0.3)
    beta = np.percentile([float(before[i] @ before[j]) for i in range(12) for j in range(i)], 98)
    assert start.beta == pytest.approx(beta, abs=1e-5)
    outputs = gss.outputs(
        gss.sample_items(gss.adjacency(graph, 3)[0], np.arange(12), 2, CPU),
        gss.average_rows(gss.adjacency(graph, 3)[0], torch.from_numpy(database), CPU),
        start._known().layers,
        0.3,
    )
    loss = gss.separation_loss(outputs, start.beta)
    assert float(loss) == pytest.approx(float(dense_loss(before, beta)), abs=1e-5)

    parameters = [tensor.requires_grad_() for layer in layers for tensor in layer]
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
    for epoch in range(1, 6):
        gradients = torch.autograd.grad(dense_loss(dense_network(a, x, layers, 0.3), beta), parameters)
        with torch.no_grad():
            for p, g, (mean, square) in zip(parameters, gradients, moments, strict=True):
                mean.mul_(0.9).add_(0.1 * g)
                square.mul_(0.999).add_(0.001 * g * g)
                scale = (square / (1 - 0.999**epoch)).sqrt() + 1e-8
                p -= 0.01 * mean / (1 - 0.9**epoch) / scale
    trained = Gss(epochs=5, **settings).fit(torch.from_numpy(database), graph, device=CPU)
    for (weight, bias), (own_weight, own_bias) in zip(layers, weights_of(trained), strict=True):
        assert own_weight.numpy() == pytest.approx(weight.detach().numpy(), abs=1e-5)
        assert own_bias.numpy() == pytest.approx(bias.detach().numpy(), abs=1e-5)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_drawn_items_are_as_in_the_whole_network(random_unit, layers):
    database = torch.from_numpy(random_unit(50, 6))
    matrix, _ = gss.adjacency(gqe.knn(database, 3), 3)
    generator = torch.Generator().manual_seed(0)
    weights = [
        gss.Layer(torch.randn((6, 6), generator=generator), torch.randn(6, generator=generator))
        for _ in range(layers)
    ]
    first = gss.average_rows(matrix, database, CPU)
    items = np.array([1, 4, 17, 49])
    some = gss.outputs(gss.sample_items(matrix, items, layers, CPU), first, weights, 0.3)
    everything = gss.all_outputs(matrix, first.clone(), weights, 0.3)[-1]
    some = torch.nn.functional.normalize(some, dim=1)
    assert some.numpy() == pytest.approx(everything[items].numpy(), abs=1e-5)


def clusters(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Eight overlapping clusters of 40 items in 16 dimensions, and their labels."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(8), 40)
    return unit(np.eye(16)[labels] + 0.3 * rng.normal(size=(320, 16))), labels


def test_training_separates_similarities_and_ranks_better():
    database, labels = clusters(0)
    queries, asked = clusters(1)
    graph, first = gqe.knn(database, 5), gqe.knn(database, 320, queries=queries)
    same = labels[:, None] == labels

    def fitted(epochs: int, batch: int) -> tuple[float, float]:
        method = Gss(epochs=epochs, batch=batch, percentile=88.0, learning_rate=1e-3)
        method.fit(torch.from_numpy(database), graph, device=CPU)
        cosines = (method.embeddings @ method.embeddings.T).numpy()
        ids = method.rerank(torch.from_numpy(queries), first).ids[:, :40]
        return cosines[same].mean() - cosines[~same].mean(), (labels[ids] == asked[:, None]).mean()

    plain = (labels[first.ids[:, :40]] == asked[:, None]).mean()
    untrained_gap, untrained = fitted(0, 1000)
    assert untrained > plain + 0.1
    for batch in (1000, 100):
        gap, share = fitted(100, batch)
        assert gap > untrained_gap + 0.05
        assert share > untrained


def test_a_seed_repeats_bit_for_bit_and_another_does_not(random_unit):
    database = torch.from_numpy(random_unit(80, 8))
    graph = gqe.knn(database, 5)

    def embedded(seed: int) -> torch.Tensor:
        return Gss(batch=20, epochs=10, seed=seed).fit(database, graph, device=CPU).embeddings

    assert torch.equal(embedded(1), embedded(1))
    assert not torch.equal(embedded(1), embedded(2))


def test_queries_do_not_depend_on_each_other(random_unit, monkeypatch):
    database, queries = torch.from_numpy(random_unit(80, 8)), torch.from_numpy(random_unit(6, 8, seed=1))
    first = gqe.knn(database, 40, queries=queries)
    method = Gss(epochs=2).fit(database, gqe.knn(database, 5), device=CPU)
    together = method.rerank(queries, first)
    monkeypatch.setattr(gss, "blocks", lambda n, size: (slice(i, i + 1) for i in range(n)))
    alone = method.rerank(queries, first)
    assert (together.ids == alone.ids).all()
    assert together.scores == pytest.approx(alone.scores, abs=1e-6)


def test_half_precision_is_computed_in_single(random_unit):
    database, queries = (
        torch.from_numpy(random_unit(60, 8)).half(),
        torch.from_numpy(random_unit(5, 8, seed=1)),
    )
    graph, first = gqe.knn(database, 5), gqe.knn(database, 60, queries=queries)
    stored = Gss(epochs=3).fit(database, graph, device=CPU).rerank(queries, first)
    single = Gss(epochs=3).fit(database.float(), graph, device=CPU).rerank(queries, first)
    assert (stored.ids == single.ids).all()
    assert (stored.scores == single.scores).all()


def test_memory_does_not_grow_with_the_square_of_the_database():
    n = 40_000  # all pairs in float32: 6.4 GB
    rng = np.random.default_rng(0)
    database = torch.from_numpy(unit(rng.normal(size=(n, 8))))
    others = (np.arange(n)[:, None] + rng.integers(1, n, size=(n, 5))) % n
    graph = NeighborGraph(others, -np.sort(-rng.random((n, 5), dtype=np.float32), axis=1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    method = Gss(epochs=2).fit(database, graph, device=CPU)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB
    # H_1 and z, the degrees, two layers of 8 x 8 weights with biases.
    assert method.size() == 4 * (2 * 8 * n + n + 2 * (64 + 8))


def test_nothing_and_one_item(random_unit):
    queries = torch.from_numpy(random_unit(2, 4))
    none = NeighborGraph(np.empty((0, 5), np.int64), np.empty((0, 5), np.float32))
    empty = Gss().fit(torch.empty(0, 4), none, device=CPU)
    missing = NeighborGraph(np.full((2, 3), -1), np.full((2, 3), -np.inf, np.float32))
    assert empty.rerank(queries, missing).ids.tolist() == [[-1] * 3] * 2
    assert empty.beta is None
    one = NeighborGraph(np.full((1, 5), -1), np.full((1, 5), -np.inf, np.float32))
    first = NeighborGraph(
        np.array([[0, -1], [-1, -1]]), np.array([[0.3, -np.inf], [-np.inf] * 2], np.float32)
    )
    single = Gss().fit(queries[:1], one, device=CPU)
    assert single.rerank(queries, first).ids.tolist() == [[0, -1], [-1, -1]]
    assert single.rerank(queries[:0], none).ids.shape == (0, 5)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"k": 0}, "k"),
        ({"kq": 1.5}, "kq"),
        ({"layers": 0}, "layers"),
        ({"decay": -0.1}, "decay"),
        ({"percentile": 101}, "percentile"),
        ({"epochs": -1}, "epochs"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"noise": float("nan")}, "noise"),
        ({"batch": 1}, "batch"),
        ({"m": True}, "m"),
        ({"seed": -1}, "seed"),
    ],
)
def test_refuses_bad_settings(settings, named):
    with pytest.raises(InputError, match=f"^{named}: "):
        Gss(**settings)


def test_refuses_foreign_graphs_and_results():
    graph = NeighborGraph(np.array([[1], [0]]), np.ones((2, 1), np.float32))
    with pytest.raises(InputError, match="fit"):
        Gss().rerank(torch.ones(2, 1), graph)
    with pytest.raises(InputError, match=r"^graph: "):
        Gss().fit(torch.ones(3, 1), graph, device=CPU)
    narrow = NeighborGraph(np.array([[1], [2], [0]]), np.ones((3, 1), np.float32))
    with pytest.raises(InputError, match="rebuild"):
        Gss().fit(torch.ones(3, 1), narrow, device=CPU)
    outside = NeighborGraph(np.array([[5]]), np.ones((1, 1), np.float32))
    with pytest.raises(InputError, match="outside"):
        Gss(k=1).fit(torch.ones(2, 1), graph, device=CPU).rerank(torch.ones(1, 1), outside)
    with pytest.raises(InputError, match=r"^first: "):
        Gss(k=1).fit(torch.ones(2, 1), graph, device=CPU).rerank(torch.ones(3, 1), graph)


def test_settings_and_example():
    made = Gss(k=7, kq=9, m=3, seed=4)
    assert Gss(**made.settings()).settings() == made.settings()
    assert (made.graph_k, made.num_candidates, made.size()) == (7, 9, 0)
    assert repr(Gss(k=7)).startswith("Gss(k=7, kq=5, layers=2, decay=0.3, percentile=98.0, epochs=200, ")
    assert doctest.testmod(gss).failed == 0
