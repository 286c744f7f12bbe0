"""`knn` against a naive search: ties, duplicates, blocks, batches, kinds of input, refusals."""

from __future__ import annotations

import faiss
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import gqe
import literal
from gqe.neighbors import candidates, rescoring, search
from neighbors.awkward import awkward


def by_loops(queries, database, k, exclude=None):
    """Ids (m, k), -1 where there are none, and their cosines, ties by rising id."""
    ids = np.full((len(queries), k), -1)
    similarities = np.full((len(queries), k), -np.inf)
    for row, query in enumerate(queries):
        found = literal.nearest(query, database, k, omit=-1 if exclude is None else int(exclude[row]))
        ids[row, : len(found)] = found
        similarities[row, : len(found)] = [sum(query * database[i]) for i in found]
    return ids, similarities


def hypercube(rng, n, kinds=1 << 16):
    """Corners (+-1/4)^16 of a cube: unit vectors whose products are exact in float32, so ties are exact."""
    return np.where(rng.random((kinds, 16)) < 0.5, -0.25, 0.25).astype(np.float32)[
        rng.integers(kinds, size=n)
    ]


@pytest.fixture(params=["one block", "many blocks"])
def block_sizes(request, monkeypatch):
    if request.param == "many blocks":
        force_many_blocks(monkeypatch)


def force_many_blocks(monkeypatch, pile=2):
    monkeypatch.setitem(candidates._SCORE_BYTES, "cpu", 1200)
    monkeypatch.setattr(candidates, "_PILE", pile)
    monkeypatch.setitem(search._QUERY_BLOCK, "cpu", 3)
    monkeypatch.setitem(rescoring._GATHER_BYTES, "cpu", 200)
    monkeypatch.setattr(rescoring, "_TIED_GROUP", 2)


@given(st.integers(0, 2**32 - 1), st.integers(0, 40), st.integers(1, 6), st.integers(1, 45), st.booleans())
def test_exact_ties_go_to_the_lower_id(seed, n, kinds, k, in_blocks):
    rng = np.random.default_rng(seed)
    database, queries = hypercube(rng, n, kinds), hypercube(rng, 5)
    exclude = rng.integers(-1, n, size=5)
    with pytest.MonkeyPatch.context() as monkeypatch:
        if in_blocks:
            force_many_blocks(monkeypatch)
        for omit in (None, exclude):
            found = gqe.knn(database, k, queries=queries, exclude=omit)
            ids, similarities = by_loops(queries, database, k, omit)
            np.testing.assert_array_equal(found.ids, ids)
            np.testing.assert_array_equal(found.similarities, similarities)
        graph = gqe.knn(database, k)
        ids, similarities = by_loops(database, database, k, range(n))
        np.testing.assert_array_equal(graph.ids, ids)
        np.testing.assert_array_equal(graph.similarities, similarities)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 40), st.booleans())
def test_random_vectors(seed, n, k, in_blocks):
    rng = np.random.default_rng(seed)
    database, queries = rng.normal(size=(n, 4)), rng.normal(size=(3, 4))
    database, queries = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (database, queries))
    assume(literal.clearly_ranked(queries, database))
    with pytest.MonkeyPatch.context() as monkeypatch:
        if in_blocks:
            force_many_blocks(monkeypatch, pile=3)
        found = gqe.knn(database, k, queries=queries)
    ids, similarities = by_loops(queries, database, k)
    np.testing.assert_array_equal(found.ids, ids)
    np.testing.assert_allclose(found.similarities, similarities, atol=1e-6)


def test_the_same_as_faiss(random_unit, block_sizes):
    database, queries = random_unit(3000, 48), random_unit(40, 48, seed=1)
    index = faiss.IndexFlatIP(48)
    index.add(database)
    similarities, ids = index.search(queries, 30)
    found = gqe.knn(database, 30, queries=queries)
    np.testing.assert_allclose(found.similarities, similarities, atol=2e-6)
    assert (found.ids == ids).mean() > 0.999  # faiss may swap two that round to the same similarity
    assert found.recall is None
    assert found.ids.dtype == np.int32
    assert found.similarities.dtype == np.float32


def test_an_item_is_removed_by_id_and_its_duplicates_stay(random_unit, block_sizes):
    database = random_unit(40, 8)
    database[[3, 17, 30]] = database[3]
    graph = gqe.knn(database, 4)
    assert graph.ids[3, :2].tolist() == [17, 30]
    assert graph.ids[17, :2].tolist() == [3, 30]
    assert graph.ids[30, :2].tolist() == [3, 17]
    assert not (graph.ids == np.arange(40)[:, None]).any()
    found = gqe.knn(database, 4, queries=database[[17]], exclude=[17])
    np.testing.assert_array_equal(found.ids[0], graph.ids[17])


def test_one_query_at_a_time_gives_the_same_bits_as_all_at_once(monkeypatch):
    database = awkward()
    queries = np.concatenate([awkward(seed=1)[:60], database[:60]])
    together = gqe.knn(database, 20, queries=queries)
    singly = [gqe.knn(database, 20, queries=queries[i : i + 1]) for i in range(len(queries))]
    np.testing.assert_array_equal(together.ids, np.concatenate([one.ids for one in singly]))
    np.testing.assert_array_equal(together.similarities, np.concatenate([one.similarities for one in singly]))
    force_many_blocks(monkeypatch)
    in_blocks = gqe.knn(database, 20, queries=queries[:20])
    np.testing.assert_array_equal(in_blocks.ids, together.ids[:20])
    np.testing.assert_array_equal(in_blocks.similarities, together.similarities[:20])


def test_the_graph_is_the_search_for_each_item_without_itself():
    database = awkward()
    graph = gqe.knn(database, 15)
    found = gqe.knn(database, 15, queries=database, exclude=np.arange(len(database)))
    np.testing.assert_array_equal(graph.ids, found.ids)
    np.testing.assert_array_equal(graph.similarities, found.similarities)
    assert (np.diff(graph.similarities, axis=1) <= 0).all()
    tied = np.diff(graph.similarities, axis=1) == 0
    assert tied.sum() > 5000  # the data are as awkward as they should be
    assert (np.diff(graph.ids, axis=1)[tied] > 0).all()
    exact = np.take_along_axis(database @ database.T, graph.ids.astype(np.int64), axis=1)
    np.testing.assert_allclose(graph.similarities, exact, atol=2e-6)


def test_a_larger_k_begins_like_a_smaller_one():
    database = awkward()
    large = gqe.knn(database, 30)
    for k in (1, 2, 7, 29):
        np.testing.assert_array_equal(gqe.knn(database, k).ids, large.ids[:, :k])


def test_very_long_vectors_give_the_same_bits_in_every_batch(random_unit):
    # torch splits the sum of a single row of more than 32768 values among threads.
    database, queries = random_unit(3, 40_000), random_unit(4, 40_000, seed=1)
    for n in (1, 2, 3):
        together = gqe.knn(database[:n], 3, queries=queries).similarities
        singly = [gqe.knn(database[:n], 3, queries=queries[i : i + 1]).similarities for i in range(4)]
        np.testing.assert_array_equal(together, np.concatenate(singly))


def test_products_of_low_precision_allowed_elsewhere_do_not_lose_neighbours(random_unit):
    # Where a CPU has bfloat16 products, they lose some of 300 neighbours that lie close together.
    database = random_unit(3000, 64)
    expected = gqe.knn(database, 300)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found = gqe.knn(database, 300)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    np.testing.assert_array_equal(found.ids, expected.ids)


@pytest.mark.parametrize(("n", "k"), [(0, 3), (1, 1), (1, 5), (4, 3), (4, 4), (4, 100)])
def test_fewer_items_than_neighbours(random_unit, n, k):
    database = random_unit(n, 6)
    graph = gqe.knn(database, k)
    ids, similarities = by_loops(database, database, k, range(n))
    np.testing.assert_array_equal(graph.ids, ids)
    assert (graph.similarities[graph.ids < 0] == -np.inf).all()
    np.testing.assert_allclose(graph.similarities, similarities, atol=1e-6)
    found = gqe.knn(database, k, queries=random_unit(2, 6, seed=1))
    assert (found.ids >= 0).sum() == 2 * min(n, k)
    assert gqe.knn(database, k, queries=random_unit(0, 6)).ids.shape == (0, k)


def test_kinds_of_input(random_unit):
    database, queries = random_unit(50, 8), random_unit(5, 8, seed=1)
    expected = gqe.knn(database, 4, queries=queries).ids
    for given_db, given_q in [
        (torch.from_numpy(database), queries),
        (database.astype(np.float64) * 3, torch.from_numpy(queries).double()),
        (np.asfortranarray(database), queries[::-1][::-1]),
        (database.tolist(), queries.tolist()),
    ]:
        found = gqe.knn(given_db, 4, queries=given_q)
        assert isinstance(found.ids, np.ndarray)
        np.testing.assert_array_equal(found.ids, expected)
    half = database.astype(np.float16)
    rounded = half.astype(np.float32)  # its own cosines, in the order of the stored values
    found = gqe.knn(half, 4, queries=queries)
    np.testing.assert_allclose(
        found.similarities, np.take_along_axis(queries @ rounded.T, found.ids.astype(int), axis=1), atol=1e-6
    )
    np.testing.assert_array_equal(found.ids, np.argsort(-(queries @ rounded.T), axis=1)[:, :4])


@pytest.mark.parametrize("exclude", [[3, -1, 0], np.array([3, -1, 0], np.int8), torch.tensor([3, -1, 0])])
def test_excluded_ids(random_unit, exclude):
    database = random_unit(20, 5)
    queries = database[[3, 4, 5]]
    found = gqe.knn(database, 3, queries=queries, exclude=exclude)
    assert found.ids[1, 0] == 4
    assert 3 not in found.ids[0]
    assert 0 not in found.ids[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k: expected a whole number of at least 1, got 0"),
        ({"k": -2}, "k: expected"),
        ({"k": True}, "k: expected a whole number of at least 1, got True"),
        ({"k": 2.0}, "k: expected"),
        ({"k": "3"}, "k: expected"),
        ({"k": None}, "k: expected"),
        ({"recall": 2}, "recall: expected a number above 0 and at most 1, got 2"),
        ({"recall": 0}, "recall: "),
        ({"recall": -0.5}, "recall: "),
        ({"recall": float("nan")}, "recall: "),
        ({"recall": True}, "recall: "),
        ({"recall": "0.9"}, "recall: "),
        ({"seed": -1}, "seed: "),
        ({"seed": 1.5}, "seed: "),
        ({"seed": "a"}, "seed: "),
        ({"seed": 2**31}, "seed: "),
        ({"device": "gpu"}, "device: 'gpu' is not a device; use auto, cpu, cuda"),
        ({"device": None}, "device: None is not a device"),
        ({"device": "meta"}, "device: 'meta' cannot be used here"),
        ({"exclude": [0, 1, 2]}, "exclude: the items of a graph already exclude themselves"),
        ({"queries": np.eye(3, 4)}, "queries: dimension 4 does not match the database's 3"),
        ({"queries": np.ones(3)}, "queries: expected shape"),
        ({"queries": np.zeros((1, 3))}, "queries: row 0 is all zeros"),
        ({"queries": np.eye(3), "exclude": [0, 1]}, "exclude: expected 3 whole numbers"),
        ({"queries": np.eye(3), "exclude": [0, 1, 5]}, "exclude: ids must lie between -1 and 4"),
        ({"queries": np.eye(3), "exclude": [0, 1, -2]}, "exclude: ids must lie between -1 and 4"),
        ({"queries": np.eye(3), "exclude": [0.0, 1.0, 2.0]}, "exclude: expected 3 whole numbers"),
        ({"queries": np.eye(3), "exclude": [True, False, True]}, "exclude: expected 3 whole numbers"),
        ({"queries": np.eye(3), "exclude": [[0], [1, 2], []]}, "exclude: expected 3 whole numbers"),
        ({"queries": np.eye(3), "exclude": 1}, "exclude: expected 3 whole numbers"),
        ({"database": np.ones(3)}, "database: expected shape"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    options = {"database": np.eye(5, 3) + 1, "k": 2} | options
    with pytest.raises(gqe.InputError, match=message) as caught:
        gqe.knn(options.pop("database"), options.pop("k"), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda")])
def test_a_missing_gpu_is_named(device):
    with pytest.raises(gqe.InputError, match="no CUDA device is available here"):
        gqe.knn(np.eye(3), 1, device=device)


def test_numpy_integers_are_whole_numbers_too():
    assert gqe.knn(np.eye(3), np.int64(2), seed=np.int32(3)).k == 2
