"""Stored levels against Algorithm 2 written literally."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

import gqe
import literal
from gqe import Expander, expansion
from gqe.aggregators import Affinity, Alpha, Attention, Decay, Identity, Mean, Svm
from gqe.neighbors.candidates import Candidates
from gqe.source import MemorySource

LEVELS = [
    Identity(),
    Identity(k=2, temperature=0.4),
    Mean(1),
    Mean(3),
    Mean(9),
    Mean(2, temperature=1.0),
    Decay(1),
    Decay(4),
    Decay(3, temperature=0.5),
    Alpha(3),
    Alpha(4, alpha=0),
    Alpha(2, alpha=0.5),
    Alpha(5, alpha=3, temperature=0.2),
    Svm(5, positives=2, negatives=2),
    Svm(4, positives=1, negatives=3, c=10),
    Svm(4, positives=2, negatives=2, c=0.5),
]
STACKS = [
    [Mean(3)],
    [Decay(4)],
    [Alpha(3)],
    [Svm(6, positives=2, negatives=2)],
    [Mean(2), Mean(2)],
    [Alpha(3), Alpha(3)],
    [Decay(3), Decay(2)],
    [Svm(6, positives=2, negatives=2), Svm(6, positives=2, negatives=2)],
    [Identity(), Mean(4)],
    [Mean(4), Identity()],
    [Mean(2), Alpha(4), Decay(3)],
    [Alpha(1, temperature=0.1), Svm(5, positives=2, negatives=1), Mean(5)],
    [Alpha(3, temperature=0.3), Alpha(4, temperature=2.0)],
]


@st.composite
def worlds(draw):
    """Random queries and database, some rows twice or more, some queries equal to database items."""
    n, m, d = draw(st.integers(0, 9)), draw(st.integers(0, 3)), draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    database = rng.normal(size=(n, d))
    queries = rng.normal(size=(m, d))
    for _ in range(draw(st.integers(0, 3)) if n else 0):
        database[rng.integers(n)] = database[rng.integers(n)]
    exclude = np.full(m, -1)
    if n and m and draw(st.booleans()):
        exclude[0] = rng.integers(n)
        queries[0] = database[exclude[0]]
    return as_unit(queries), as_unit(database), exclude


def as_unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def world(n=20, m=4, d=8, seed=0):
    rng = np.random.default_rng(seed)
    database = as_unit(rng.normal(size=(n, d)) + 0.5)
    return as_unit(rng.normal(size=(m, d)) + 0.5), database


@given(worlds(), st.lists(st.sampled_from(LEVELS), min_size=1, max_size=3))
def test_expand_augment_and_weights_equal_the_literal_algorithm(world, stack):
    queries, database, exclude = world
    assume(literal.clearly_ranked(queries, database))
    expander = Expander(stack).fit(database)

    expected = literal.expanded(queries, database, stack, exclude)
    expanded = expander.expand(queries, exclude=exclude)
    np.testing.assert_allclose(expanded, expected, atol=1e-5)
    np.testing.assert_allclose(expander.augment(), literal.augmented(database, stack), atol=1e-5)

    items, own = expander.weights_and_own(queries, exclude=exclude)
    assert items.shape == (len(queries), len(database))
    assert own.shape == (len(queries),)
    assert set(own.tolist()) <= {0.0, 1.0}
    assert (items.data != 0).all()
    assert items.has_canonical_format
    rebuilt = own[:, None] * queries + items @ database
    rebuilt = rebuilt / np.linalg.norm(rebuilt, axis=1, keepdims=True)
    np.testing.assert_allclose(rebuilt, expanded, atol=1e-5)


@pytest.mark.parametrize("stack", STACKS, ids=repr)
def test_every_stack_equals_the_literal_algorithm(stack):
    queries, database = world()
    database[7] = database[3]
    queries[1] = database[5]
    expander = Expander(stack).fit(database)
    for exclude in (None, np.array([-1, 5, 0, 19])):
        expected = literal.expanded(queries, database, stack, exclude)
        np.testing.assert_allclose(expander.expand(queries, exclude=exclude), expected, atol=1e-5)
    np.testing.assert_allclose(expander.augment(), literal.augmented(database, stack), atol=1e-5)


@pytest.mark.parametrize("stack", STACKS, ids=repr)
def test_an_empty_database_leaves_the_query_as_it_is(stack):
    queries, database = world()
    expander = Expander(stack).fit(database[:0])
    np.testing.assert_allclose(expander.expand(queries), queries, atol=1e-6)
    items, own = expander.weights_and_own(queries)
    assert items.shape == (4, 0)
    assert own.tolist() == [1, 1, 1, 1]
    assert expander.augment().shape == (0, 8)


@pytest.mark.parametrize("stack", STACKS, ids=repr)
def test_a_database_of_one_item(stack):
    queries, database = world(n=1)
    expander = Expander(stack).fit(database)
    np.testing.assert_allclose(
        expander.expand(queries), literal.expanded(queries, database, stack), atol=1e-5
    )
    np.testing.assert_allclose(expander.augment(), database, atol=1e-6)  # it has no neighbours
    without_any = expander.expand(queries, exclude=[0, 0, 0, 0])
    np.testing.assert_allclose(without_any, queries, atol=1e-6)


@pytest.mark.parametrize("stack", STACKS, ids=repr)
def test_no_queries(stack):
    queries, database = world()
    expander = Expander(stack).fit(database)
    assert expander.expand(queries[:0]).shape == (0, 8)
    items, own = expander.weights_and_own(queries[:0], exclude=[])
    assert items.shape == (0, 20)
    assert own.shape == (0,)


@pytest.mark.parametrize("stack", STACKS, ids=repr)
def test_more_neighbours_asked_for_than_there_are(stack):
    queries, database = world(n=4)
    expander = Expander(stack).fit(database)
    np.testing.assert_allclose(
        expander.expand(queries), literal.expanded(queries, database, stack), atol=1e-5
    )
    np.testing.assert_allclose(expander.augment(), literal.augmented(database, stack), atol=1e-5)


def test_the_oracle_itself_on_a_case_worked_out_by_hand():
    # On a circle, in degrees: query 0, items 10, 30, 90. K = 1, two levels of the mean.
    angles = np.deg2rad([0, 10, 30, 90])
    query, *items = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    # Level 1: query -> 5, item 10 -> between 10 and 30 = 20. Level 2: between 5 and 20 = 12.5.
    result = literal.algorithm_2(query, np.array(items), [Mean(1), Mean(1)])
    assert np.rad2deg(np.arctan2(result[1], result[0])) == pytest.approx(12.5)
    # Only the nearest item's first level matters; the one at 90 degrees plays no part.
    weights = gqe.expander("aqe-g", k=1).fit(np.array(items)).weights(query[None]).toarray()[0]
    assert weights[2] == 0
    assert (weights[:2] > 0).all()


@pytest.mark.parametrize("k", range(1, 20))
def test_the_weights_of_aqe_are_exactly_one(k):
    queries, database = world(m=9, seed=k)
    items, own = gqe.expander("aqe", k=k).fit(database).weights_and_own(queries)
    assert own.tolist() == [1.0] * 9
    assert set(items.data.tolist()) == {1.0}
    assert np.diff(items.indptr).tolist() == [k] * 9


def test_weights_of_the_other_plain_methods():
    queries, database = world()
    first = np.argsort(-(queries @ database.T), axis=1)[:, :4]
    cosines = np.take_along_axis(queries @ database.T, first, axis=1)
    decay = gqe.expander("aqewd", k=4).fit(database).weights(queries).toarray()
    alpha = gqe.expander("alpha", k=4, alpha=2).fit(database).weights(queries).toarray()
    np.testing.assert_allclose(
        np.take_along_axis(decay, first, axis=1), [[0.75, 0.5, 0.25, 0]] * 4, atol=1e-6
    )
    np.testing.assert_allclose(np.take_along_axis(alpha, first, axis=1), cosines**2, atol=1e-6)
    assert (np.count_nonzero(decay, axis=1) == 3).all()  # the K-th has weight 0 and is not stored
    assert gqe.expander("none").fit(database).weights(queries).nnz == 0


def test_weights_stay_finite_when_the_query_hardly_counts():
    # The tempered weight of the query is around exp(-100), too small to be divided by in float32.
    queries, database = world(m=30, seed=3)
    expander = gqe.expander("dqe", k=12, positives=4, negatives=4, temperature=0.01).fit(database)
    items, own = expander.weights_and_own(queries)
    assert (own == 0).any()
    assert np.isfinite(items.data).all()
    rebuilt = own[:, None] * queries + items @ database
    rebuilt = rebuilt / np.linalg.norm(rebuilt, axis=1, keepdims=True)
    np.testing.assert_allclose(rebuilt, expander.expand(queries), atol=1e-5)


@pytest.mark.parametrize("stack", STACKS, ids=repr)
def test_results_do_not_depend_on_the_batch(stack, monkeypatch):
    queries, database = world(n=60, m=17, d=16)
    queries[3] = database[8]
    expander = Expander(stack).fit(database)
    together, augmented = expander.expand(queries), expander.augment()
    singly = np.concatenate([expander.expand(queries[i : i + 1]) for i in range(len(queries))])
    np.testing.assert_allclose(singly, together, atol=1e-6)
    monkeypatch.setitem(expansion._TOKEN_BYTES, "cpu", 1)
    in_blocks = Expander(stack).fit(database)
    np.testing.assert_allclose(in_blocks.expand(queries), together, atol=1e-6)
    np.testing.assert_allclose(in_blocks.augment(), augmented, atol=1e-6)
    assert abs(in_blocks.weights(queries) - expander.weights(queries)).max() < 1e-4


@pytest.mark.parametrize("stack", STACKS, ids=repr)
def test_a_run_repeats_bit_for_bit(stack):
    queries, database = world(n=60, m=17, d=16)
    first, second = (Expander(stack).fit(database) for _ in range(2))
    np.testing.assert_array_equal(first.expand(queries), second.expand(queries))
    np.testing.assert_array_equal(first.augment(), second.augment())
    np.testing.assert_array_equal(first.weights(queries).toarray(), second.weights(queries).toarray())


@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
@example(0, 1)
def test_augmenting_is_expanding_each_item_without_itself(seed, levels):
    _, database = world(n=12, seed=seed)
    expander = Expander([Alpha(3)] * levels).fit(database)
    expanded = expander.expand(database, exclude=np.arange(12))
    np.testing.assert_allclose(expander.augment(), expanded, atol=1e-5)


def test_a_graph_given_is_used_and_a_larger_k_serves_a_smaller_one():
    queries, database = world()
    stack = [Mean(3), Alpha(2)]
    expected = Expander(stack).fit(database).expand(queries)
    for k in (3, 7, 19):
        given = Expander(stack).fit(database, gqe.knn(database, k)).expand(queries)
        np.testing.assert_array_equal(given, expected)
    turned = gqe.NeighborGraph(*(np.roll(part, 1, axis=0) for part in graph_arrays(database)))
    turned.ids[turned.ids == np.arange(20)[:, None]] = -1
    assert np.abs(Expander(stack).fit(database, turned).expand(queries) - expected).max() > 1e-3


def graph_arrays(database):
    graph = gqe.knn(database, 3)
    return graph.ids, graph.similarities


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (lambda db: gqe.knn(db, 2), "holds 2 neighbours an item, 3 were asked for"),
        (lambda db: gqe.knn(db[:-1], 3), "19 rows, the database 20"),
        (lambda db: gqe.knn(db, 3, queries=db), "item 0 is its own neighbour"),
        (lambda db: gqe.knn(db, 3).ids, "expected a NeighborGraph"),
    ],
)
def test_a_graph_that_does_not_fit_is_refused(graph, message):
    _, database = world()
    with pytest.raises(gqe.InputError, match=message):
        gqe.expander("aqe-g", k=3).fit(database, graph(database))


def test_a_small_database_may_have_a_graph_of_fewer_than_k():
    queries, database = world(n=4)
    expected = gqe.expander("aqe-g", k=10).fit(database).expand(queries)
    given = gqe.expander("aqe-g", k=10).fit(database, gqe.knn(database, 3)).expand(queries)
    np.testing.assert_array_equal(given, expected)


def test_each_row_of_a_level_is_computed_once(monkeypatch):
    queries, database = world()
    queries = np.concatenate([queries] * 6)  # more than there are items, to tell their calls apart
    calls = []
    forward = Mean.forward
    monkeypatch.setattr(Mean, "forward", lambda self, n: calls.append(len(n.tokens)) or forward(self, n))

    def rows():
        return sum(count for count in calls if count != 24)

    expander = gqe.expander("aqe-g", k=3, levels=3).fit(database)
    expanded = expander.expand(queries)
    assert calls.count(24) == 3  # one call a level for the queries: L, not K^(L-1)
    assert 0 < rows() < 2 * 20  # of levels 1 and 2 of the database, only what is read
    expander.target.source.level(2)
    assert rows() == 2 * 20
    calls.clear()
    whole = gqe.expander("aqe-g", k=3, levels=3).fit(database)
    whole.target.source.level(2)
    assert calls == [20, 20]
    np.testing.assert_allclose(expanded, whole.expand(queries), atol=1e-6)
    calls.clear()
    expander.expand(queries)
    assert calls == [24, 24, 24]


def test_half_precision_storage_is_read_as_float32():
    queries, database = world(n=50)
    half = database.astype(np.float16)
    expected = gqe.expander("alpha-g", k=4).fit(half.astype(np.float32)).expand(queries)
    for stored in (half, torch.from_numpy(half)):
        result = gqe.expander("alpha-g", k=4).fit(stored).expand(queries)
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, expected, atol=2e-3)


@pytest.mark.parametrize("ks", [(6, 6, 6), (6, 4, 6), (4, 6, 9)], ids=repr)
def test_levels_that_share_what_they_know_say_the_same_alone(ks):
    queries, database = (torch.from_numpy(part).float() for part in world(n=60, m=5))
    torch.manual_seed(0)
    stack = [Affinity(k, width=16, layers=1, heads=2, base=level > 0) for level, k in enumerate(ks)]
    source = MemorySource(stack, database, device=torch.device("cpu"))
    asked = gqe.knn(database, source.graph_k, queries=queries)
    lists = Candidates(torch.from_numpy(asked.ids), torch.from_numpy(asked.similarities))
    current = queries
    for i in range(3):
        with torch.no_grad():
            current = expansion._aggregate(source, i, expansion._Nodes(current, queries, lists)).embeddings
    np.testing.assert_allclose(expansion.expand(source, queries, asked), current, atol=1e-6)


def test_an_aggregator_left_in_training_is_run_without_its_dropout():
    queries, database = world()
    stack = [Attention(8, 3, layers=1, heads=2, feedforward=16, dropout=0.5)]
    expander = Expander(stack).fit(database)
    expected = expander.expand(queries)
    stack[0].train()
    np.testing.assert_array_equal(expander.expand(queries), expected)
