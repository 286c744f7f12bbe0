"""Expander, Index and a connected store: the same arguments, the same meaning, the same results."""

from __future__ import annotations

import inspect

import faiss
import numpy as np
import pytest
import torch

import gqe
from gqe.cluster.serving import ShardedServing
from gqe.integrations.faiss import FaissIndex
from gqe.stores.connection import Connection

METHODS = ["universal", "aqe-g:k=4", "alpha:k=5:contrast=0.3", "universal:rounds=2", "jaccard:rounds=3"]


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(12, 16))

    def near(count):
        vectors = centres[np.arange(count) % 12] + 0.7 * rng.normal(size=(count, 16))
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    return near(260), near(7)


@pytest.fixture(scope="module", params=METHODS)
def targets(request, world, tmp_path_factory):
    database, _ = world
    folder = tmp_path_factory.mktemp("contract") / "index"
    expander = gqe.expander(request.param).fit(database)
    index = gqe.Index.build(database, request.param, folder)
    flat = faiss.IndexFlatL2(16)
    flat.add(database)
    others = {"reopened": gqe.Index.open(folder), "faiss": gqe.wrap(flat, method=request.param)}
    with gqe.connect(f"index:{folder}") as store:
        yield {"expander": expander, "index": index, "store": store} | others


def same(found, wanted, tolerance=1e-5):
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=tolerance)


SEARCHES = {
    "plain": {"expand": False},
    "as it is": {},
    "excluding": {"exclude": [0, None, 5, -1, 7, 8, None]},
    "two rounds": {"rounds": 2},
    "one round": {"rounds": 1},
    "exact": {"exact": True},
    "re-ranked": {"rerank": "reciprocal:k1=6"},
    "re-ranked, brings items in": {"rerank": "egt:k=8:t=0.1"},
    "re-ranked, excluding": {"rerank": "egt:k=8:t=-1", "exclude": [1, 2, 3, 4, 5, 6, None]},
}


@pytest.mark.parametrize("arguments", SEARCHES.values(), ids=SEARCHES)
def test_searches_mean_the_same(targets, world, arguments):
    _, queries = world
    wanted = targets["expander"].search(queries, 9, **arguments)
    for name in ("index", "reopened", "store", "faiss"):
        same(targets[name].search(queries, 9, **arguments), wanted)
    if "exclude" in arguments:
        assert not any(id in row for id, row in zip(arguments["exclude"], wanted.ids, strict=True) if id)


def test_one_vector_is_answered_like_a_table_of_one(targets, world):
    _, queries = world
    for target in targets.values():
        many = target.search(queries[:1], 4)
        same(gqe.SearchResult(*(part[0] for part in many)), target.search(queries[0], 4))
        alone = target.search(queries[0], 4, exclude=int(many.ids[0, 0]))
        assert many.ids[0, 0] not in alone.ids
        assert target.expand(queries[0]).shape == (16,)
        assert target.explain(queries[0], top=3).ids.shape == (3,)
        tensor = target.search(torch.from_numpy(queries[0]), 4)
        assert isinstance(tensor.ids, torch.Tensor)


def test_more_results_than_items_are_padded(targets, world):
    _, queries = world
    for target in targets.values():
        found = target.search(queries, 300)
        assert found.ids.shape == (7, 300)
        assert (found.ids[:, 260:] == -1).all()
        assert np.isneginf(found.scores[:, 260:]).all()


@pytest.mark.parametrize("rounds", [None, 1, 2, 4])
def test_expansions_and_explanations_mean_the_same(targets, world, rounds):
    database, queries = world
    wanted = targets["expander"].expand(queries, rounds=rounds)
    explanations = {
        name: targets[name].explain(queries, top=260, rounds=rounds)
        for name in ("expander", "index", "reopened", "store")
    }
    for name in ("index", "reopened", "store"):
        np.testing.assert_allclose(targets[name].expand(queries, rounds=rounds), wanted, atol=2e-5)
        found, explained = explanations[name], explanations["expander"]
        np.testing.assert_allclose(found.total, explained.total, rtol=1e-3)
        np.testing.assert_array_equal(found.own, explained.own)
    # The weights that are named put the expanded query together.
    for name in ("expander", "index", "store"):
        found = explanations[name]
        rows = database[found.ids.clip(min=0)] * (found.ids >= 0)[:, :, None]
        sums = found.own[:, None] * queries + (found.weights[:, :, None] * rows).sum(axis=1)
        np.testing.assert_allclose(sums / np.linalg.norm(sums, axis=1, keepdims=True), wanted, atol=1e-4)
        assert ((found.weights != 0).sum(axis=1) == found.count).all()
    theirs = targets["expander"].weights(queries, rounds=rounds)
    for name in ("index", "reopened"):
        difference = abs(targets[name].weights(queries, rounds=rounds) - theirs).max()
        assert difference < 1e-3 + 1e-5 * abs(theirs).max()  # weights of four rounds are millions


def test_what_makes_no_sense_is_refused_with_the_remedy(targets, world):
    _, queries = world
    for name in ("expander", "index"):
        with pytest.raises(gqe.InputError, match=r"filter: .*metadata"):
            targets[name].search(queries, 3, filter={"year": 1})
    with pytest.raises(gqe.InputError, match="dba: this index was built without augmentation; build it with"):
        targets["index"].search(queries, 3, dba=True)
    with pytest.raises(gqe.InputError, match="dba: a store holds no augmented database; build an Index with"):
        targets["store"].search(queries, 3, dba=True)
    for target in targets.values():
        with pytest.raises(gqe.InputError, match="rounds: expected a whole number of at least 1, got 0"):
            target.search(queries, 3, rounds=0)
        with pytest.raises(gqe.InputError, match="k: at most 1,000,000 results can be asked for"):
            target.search(queries, 1_000_001)
        with pytest.raises(gqe.InputError, match="rerank: expected a re-ranker such as 'reciprocal'"):
            target.search(queries, 3, rerank="aqe")
        with pytest.raises(gqe.InputError, match="queries: dimension 3 does not match the database's 16"):
            target.search(np.eye(3), 3)
    for name in ("expander", "faiss"):
        with pytest.raises(gqe.InputError, match="with_metadata: nothing is kept beside vectors in memory"):
            targets[name].search(queries, 3, with_metadata=True)
    for name in ("index", "store"):
        assert targets[name].search(queries[0], 3, with_metadata=True).metadata == [{}, {}, {}]
        assert targets[name].search(queries[0], 3).metadata is None
    with pytest.raises(gqe.InputError, match="weights: a store does not number its items; use explain"):
        targets["store"].weights(queries)


def test_signatures_are_the_same():
    for kind in (gqe.Expander, gqe.Index, ShardedServing):  # nothing is forwarded
        assert not set(vars(kind)) & {"search", "expand", "explain", "weights", "context"}
    for name in ("search", "expand", "explain"):
        wanted = list(inspect.signature(getattr(gqe.Expander, name)).parameters)
        for kind in (gqe.Index, ShardedServing, FaissIndex):
            assert list(inspect.signature(getattr(kind, name)).parameters) == wanted
        assert list(inspect.signature(getattr(Connection, name)).parameters) == [*wanted, "expander"]


def test_an_index_with_augmentation_searches_both_databases(world, tmp_path):
    database, queries = world
    expander = gqe.expander("dba-aqe-g:k=4").fit(database)
    index = gqe.Index.build(database, "dba-aqe-g:k=4", tmp_path / "index")
    assert index.augmented
    for dba in (None, True, False):
        same(index.search(queries, 9, dba=dba), expander.search(queries, 9, dba=dba))


def test_a_store_takes_other_methods_of_one_level(world, tmp_path):
    database, queries = world
    gqe.Index.build(database, "universal", tmp_path / "index")
    with gqe.connect(f"index:{tmp_path / 'index'}") as store:
        text = "alpha:k=5:rounds=2+reciprocal:k1=6"
        same(store.search(queries, 9, expander=text), gqe.expander(text).fit(database).search(queries, 9))
        wanted = gqe.expander("aqe", k=3).fit(database)
        np.testing.assert_allclose(
            store.expand(queries, expander="aqe:k=3"), wanted.expand(queries), atol=1e-5
        )
        for text in ("universal", "universal:rounds=2:contrast=0.3+reciprocal:k1=6"):  # what is attached
            wanted = gqe.expander(text).fit(database)
            same(store.search(queries, 9, expander=text), wanted.search(queries, 9))
        with pytest.raises(gqe.InputError, match="aqe-g reads levels or lists, which have to be attached"):
            store.search(queries, 9, expander="aqe-g")
