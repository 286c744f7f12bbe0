"""The deduplicated, chunked, recomputing path against the recursion written literally."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gqe import expansion
from gqe.aggregators import Affinity, Alpha, Identity, Mean
from gqe.aggregators.attention import Attention
from gqe.aggregators.base import Neighborhood
from gqe.errors import InputError
from gqe.training import forward

DIM, N, M = 8, 14, 3


def attention_stack(depth, k=3, dtype=torch.float64, **settings):
    torch.manual_seed(depth)
    stack = [Attention(DIM, k, layers=1, heads=2, feedforward=12, **settings) for _ in range(depth)]
    return [aggregator.to(dtype) for aggregator in stack]


def world(k=3, dtype=torch.float64, missing=False):
    """Queries, their neighbours, the database and its graph; item 1 is a duplicate of item 0."""
    generator = torch.Generator().manual_seed(0)
    table = F.normalize(torch.randn(N, DIM, dtype=dtype, generator=generator), dim=1)
    table[1] = table[0]
    queries = F.normalize(torch.randn(M, DIM, dtype=dtype, generator=generator), dim=1)
    queries[1] = table[4]
    graph = (table @ table.T - 3 * torch.eye(N, dtype=dtype)).topk(k).indices
    neighbors = (queries @ table.T).topk(k).indices
    if missing:
        graph[2, 1:] = -1
        graph[neighbors[0, 0]] = -1  # an item without any neighbour
        neighbors[1, -1] = -1
        neighbors[2] = -1  # a query without any neighbour
    return queries, neighbors, table, graph


def literal(stack, queries, neighbors, table, graph):
    """Algorithm 2 as a recursion: every node is computed again for every use."""

    def one(aggregator, tokens):
        neighborhood = Neighborhood(torch.stack(tokens)[None], torch.ones(1, len(tokens), dtype=torch.bool))
        return aggregator(neighborhood).embeddings[0]

    def at_level(vector, ids, level):
        if level == 0:
            return vector
        aggregator = stack[level - 1]
        listened = [i for i in ids[: aggregator.k].tolist() if i >= 0]
        tokens = [at_level(vector, ids, level - 1)]
        tokens += [at_level(table[i], graph[i], level - 1) for i in listened]
        return one(aggregator, tokens)

    return torch.stack([at_level(q, ids, len(stack)) for q, ids in zip(queries, neighbors, strict=True)])


def gradients(stack, function, given):
    """The result of a function, and the gradients of a fixed loss of it in parameters, queries and table."""
    queries, neighbors, table, graph = given
    queries, table = queries.clone().requires_grad_(), table.clone().requires_grad_()
    result = function(stack, queries, neighbors, table, graph)
    loss = (result * torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view_as(result)).sum()
    parameters = [p for aggregator in stack for p in aggregator.parameters()]
    return [result, *torch.autograd.grad(loss, [*parameters, queries, table])]


def fast(**options):
    return lambda *given: forward.expand(*given, **options).embeddings


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_equals_the_literal_recursion_in_outputs_and_gradients(depth, missing):
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        stack = attention_stack(depth, dtype=dtype)
        given = world(dtype=dtype, missing=missing)
        expected = gradients(stack, literal, given)
        for options in ({}, {"memory": 0}, {"memory": 0, "chunk": 4}):
            for ours, theirs in zip(gradients(stack, fast(**options), given), expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


def test_every_chunk_size_and_budget_gives_the_same():
    stack = attention_stack(2)
    given = world(missing=True)
    expected = gradients(stack, fast(), given)
    for chunk in (1, 2, 3, 5, 8, N + M - 1, N + M):
        for memory in (0, 40_000, None):
            ours = gradients(stack, fast(chunk=chunk, memory=memory), given)
            for a, b in zip(ours, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_budget_keeps_some_chunks_and_recomputes_the_others(monkeypatch):
    gather = expansion.gather
    stack = attention_stack(2)
    count = {}
    for memory in (0, 40_000, 1 << 30):
        calls = []

        def counted(*given, calls=calls):
            calls.append(given)
            return gather(*given)

        monkeypatch.setattr(expansion, "gather", counted)
        gradients(stack, fast(chunk=4, memory=memory), world())
        count[memory] = len(calls)
    assert count[1 << 30] < count[40_000] < count[0] == 2 * count[1 << 30]


def test_dropout_is_the_same_when_recomputed():
    stack = [a.train() for a in attention_stack(2, dropout=0.3)]
    given = world()
    torch.manual_seed(7)
    kept = gradients(stack, fast(), given)
    torch.manual_seed(7)
    recomputed = gradients(stack, fast(memory=0), given)
    for a, b in zip(kept, recomputed, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_gradients_reach_every_parameter_of_every_level(depth):
    stack = attention_stack(depth)
    expanded = forward.expand(stack, *world(), memory=0)
    (expanded.embeddings * torch.randn(M, DIM, dtype=torch.float64)).sum().backward()
    for level, aggregator in enumerate(stack):
        for name, parameter in aggregator.named_parameters():
            assert parameter.grad is not None, (level, name)
            assert parameter.grad.abs().sum() > 0, (level, name)


def test_levels_may_differ_in_kind_and_k():
    torch.manual_seed(0)
    stack = [Mean(2), Alpha(4, alpha=1.0), Attention(DIM, 3, layers=1, heads=2, feedforward=12).double()]
    given = world(k=4)
    torch.testing.assert_close(fast()(stack, *given), literal(stack, *given), rtol=0, atol=1e-12)
    collapsed = [Identity(), stack[2]]
    torch.testing.assert_close(fast()(collapsed, *given), literal(stack[2:], *given), rtol=0, atol=1e-12)


def test_each_distinct_item_is_computed_once_a_level():
    stack = [Mean(3), Mean(3), Mean(3)]
    queries, neighbors, table, graph = world(missing=True)
    levels = forward.expand(stack, queries, neighbors, table, graph).levels
    wanted = set()
    for level in reversed(levels):
        nodes = level.nodes.tolist()
        assert nodes[:M] == [-1, -2, -3]
        assert nodes[M:] == sorted(wanted)
        wanted |= {i for row in level.ids.tolist() for i in row if i >= 0}


def test_the_weights_are_those_of_each_neighbourhood():
    stack = attention_stack(2)
    given = world(missing=True)
    levels = forward.expand(stack, *given, chunk=2, memory=0).levels
    plain = given[2]
    for node, ids, weights in zip(*levels[0], strict=True):
        vector = plain[node] if node >= 0 else given[0][-1 - node]
        present = ids >= 0
        tokens = torch.cat([vector[None], plain[ids[present]]])[None]
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool)
        expected = stack[0].score(Neighborhood(tokens, mask))[0]
        torch.testing.assert_close(weights[F.pad(present, (1, 0), value=True)], expected, rtol=0, atol=1e-12)
        assert (weights[1:][~present] == 0).all()
    for level, aggregator in zip(levels, stack, strict=True):
        grads = torch.autograd.grad(level.weights.sum(), aggregator.parameters(), retain_graph=True)
        assert all(grad.abs().sum() > 0 for grad in grads)


def test_numpy_ids_16_bit_tables_and_no_gradient():
    stack = attention_stack(2, dtype=torch.float32)
    queries, neighbors, table, graph = world(dtype=torch.float32)
    with torch.no_grad():
        ids = neighbors.numpy().astype(np.int32), graph.numpy().astype(np.int32)
        result = forward.expand(stack, queries, ids[0], table.half(), ids[1]).embeddings
        expected = forward.expand(stack, queries, neighbors, table.half().float(), graph).embeddings
    assert torch.equal(result, expected)
    assert not result.requires_grad


def test_autocast_stays_close_and_keeps_unit_length():
    stack = attention_stack(2, dtype=torch.float32)
    given = world(dtype=torch.float32)
    expected = forward.expand(stack, *given).embeddings
    with torch.autocast("cpu", torch.bfloat16):
        result = forward.expand(stack, *given, memory=0, chunk=5).embeddings
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected, rtol=0, atol=0.02)
    torch.testing.assert_close(result.norm(dim=1), torch.ones(M))
    (result**3).sum().backward()
    assert all(p.grad.abs().sum() > 0 for aggregator in stack for p in aggregator.parameters())


def test_a_stack_that_reads_similarities_is_refused():
    with pytest.raises(InputError, match="reads similarities, which plain ids do not hold; use expand_epi"):
        forward.expand([Affinity(3, width=8, layers=1, heads=1)], *world(dtype=torch.float32))


def test_nothing_to_do_and_nobody_there():
    stack = attention_stack(2)
    queries, neighbors, table, graph = world()
    assert forward.expand(stack, queries[:0], neighbors[:0], table, graph).embeddings.shape == (0, DIM)
    alone = forward.expand(stack, queries, neighbors[:, :0], table[:0], graph[:0, :0]).embeddings
    torch.testing.assert_close(alone, queries)
    two = forward.expand([Mean(3)] * 2, queries, neighbors[:, :2] % 2, table[:2], torch.tensor([[1], [0]]))
    torch.testing.assert_close(
        two.embeddings, literal([Mean(3)] * 2, queries, neighbors[:, :2] % 2, table, torch.tensor([[1], [0]]))
    )


def test_mistakes_are_named():
    queries, neighbors, table, graph = world()
    with pytest.raises(InputError, match="stack"):
        forward.expand([], queries, neighbors, table, graph)
    with pytest.raises(InputError, match="neighbors: 3 neighbours a row, the stack listens to 5"):
        forward.expand([Mean(5)], queries, neighbors, table, graph)
    with pytest.raises(InputError, match=r"graph: expected \(14, K\) ids"):
        forward.expand([Mean(3)], queries, neighbors, table, graph[:5])
    with pytest.raises(InputError, match="outside"):
        forward.expand([Mean(3)], queries, neighbors + N, table, graph)
    with pytest.raises(InputError, match="chunk"):
        forward.expand([Mean(3)], queries, neighbors, table, graph, chunk=0)
