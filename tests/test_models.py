"""Expander: what a user calls."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn

import gqe
from gqe import Expander
from gqe.aggregators import Affinity, Alpha, Mean
from gqe.embeddings import as_table
from gqe.methods import parse_method
from gqe.models import from_method
from gqe.query_options import QueryOptions
from gqe.source import MemorySource


@pytest.fixture
def world(random_unit):
    return random_unit(5, 8, seed=1), random_unit(40, 8)


def test_numpy_in_numpy_out(world):
    queries, database = world
    expander = gqe.expander("aqe-g", k=3).fit(database)
    for given in (queries, queries.astype(np.float64), queries.astype(np.float16), queries.tolist()):
        result = expander.expand(given)
        assert isinstance(result, np.ndarray)
        assert result.dtype == np.float32
        assert result.shape == (5, 8)
    found = expander.search(queries, 4)
    assert isinstance(found.scores, np.ndarray)
    assert found.ids.dtype == np.int64
    assert isinstance(expander.augment(), np.ndarray)


def test_torch_in_torch_out(world):
    queries, database = world
    expander = gqe.expander("aqe-g", k=3).fit(torch.from_numpy(database))
    expected = gqe.expander("aqe-g", k=3).fit(database).expand(queries)
    for dtype in (torch.float32, torch.float64):
        result = expander.expand(torch.from_numpy(queries).to(dtype))
        assert isinstance(result, torch.Tensor)
        assert result.dtype == torch.float32
        np.testing.assert_allclose(result.numpy(), expected, atol=1e-6)
    found = expander.search(torch.from_numpy(queries), 4)
    assert found.ids.dtype == torch.int64
    assert isinstance(found.scores, torch.Tensor)
    assert isinstance(expander.augment(), torch.Tensor)
    assert isinstance(expander.expand(queries), np.ndarray)  # the kind of the queries, not of the database


def test_the_length_of_vectors_does_not_matter(world):
    queries, database = world
    plain = gqe.expander("alpha", k=3).fit(database).expand(queries)
    lengths = np.geomspace(1e-3, 1e3, len(database))[:, None]
    scaled = gqe.expander("alpha", k=3).fit(database * lengths).expand(queries * 17)
    np.testing.assert_allclose(scaled, plain, atol=1e-5)


def test_search_is_expansion_and_a_second_search(world):
    queries, database = world
    expander = gqe.expander("alpha", k=3).fit(database)
    for dba, table in ((False, database), (True, expander.augment())):
        found = expander.search(queries, 6, dba=dba)
        scores = expander.expand(queries) @ table.T
        np.testing.assert_array_equal(found.ids, np.argsort(-scores, axis=1)[:, :6])
        np.testing.assert_allclose(found.scores, -np.sort(-scores, axis=1)[:, :6], atol=1e-6)
    scores, ids = expander.search(queries, 50)
    assert (ids[:, 40:] == -1).all()
    assert (scores[:, 40:] == -np.inf).all()


def test_an_excluded_item_neither_helps_nor_is_found(world):
    _, database = world
    expander = gqe.expander("aqe", k=3).fit(database)
    own = np.arange(5)
    found = expander.search(database[:5], 39, exclude=own)
    assert not (found.ids == own[:, None]).any()
    assert expander.weights(database[:5], exclude=own).diagonal().tolist() == [0] * 5
    np.testing.assert_allclose(expander.expand(database[:5], exclude=own), expander.augment()[:5], atol=1e-6)


def test_fit_again_forgets_the_first_database(world):
    queries, database = world
    expander = gqe.expander("aqe-g", k=3)
    expander.fit(database[:20]).expand(queries)
    again = expander.fit(database).expand(queries)
    np.testing.assert_array_equal(again, gqe.expander("aqe-g", k=3).fit(database).expand(queries))


def test_a_stack_of_any_depth(world):
    queries, database = world
    for stack in ([Mean(3)], (Mean(3), Alpha(2)), nn.ModuleList([Mean(2)] * 4)):
        expander = Expander(stack, name="mine").fit(database)
        assert expander.target.source.depth == len(stack)
        assert expander.expand(queries).shape == (5, 8)


def test_an_approximate_graph_below_the_size_that_needs_one_is_exact(world):
    queries, database = world
    approximate = gqe.expander("aqe-g", k=3).fit(database, recall=0.9)
    np.testing.assert_array_equal(
        approximate.expand(queries), gqe.expander("aqe-g", k=3).fit(database).expand(queries)
    )


def test_a_query_costs_no_second_look_at_the_database(world, monkeypatch):
    queries, database = world
    expander = gqe.expander("aqe", k=3).fit(database)
    looked_at = []
    monkeypatch.setattr(
        "gqe.retrieval.as_table", lambda v, *a, **o: looked_at.append(len(v)) or as_table(v, *a, **o)
    )
    monkeypatch.setattr("gqe.neighbors.search.as_table", lambda *a, **o: pytest.fail("checked again"))
    expander.search(queries, 3)
    assert looked_at == [5]


def test_repr():
    assert repr(gqe.expander("aqe", k=2, rounds=3)) == "<Expander aqe: Mean(k=2), rounds 3>"
    assert repr(gqe.expander("aqe", k=2, contrast=0.2)) == "<Expander aqe: Mean(k=2), contrast 0.2>"
    assert repr(gqe.expander("alpha", k=6, alpha=1)) == "<Expander alpha: Alpha(k=6, alpha=1.0)>"
    fitted = gqe.expander("aqe-g", k=2).fit(np.eye(3))
    assert repr(fitted) == "<Expander aqe-g: Mean(k=2) -> Mean(k=2), fitted to (3, 3)>"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda e, q: e.expand(q), "aqe: not bound to a database yet; call fit"),
        (lambda e, q: e.augment(), "not bound to a database yet"),
        (lambda e, q: e.weights(q), "not bound to a database yet"),
        (lambda e, q: e.search(q, 3), "not bound to a database yet"),
        (lambda e, q: e.fit(q).expand(q[:, :3]), "queries: dimension 3 does not match the database's 8"),
        (
            lambda e, q: e.fit(q).expand(q[None]),
            r"queries: expected shape \(n, d\), got \(1, 5, 8\)",
        ),
        (lambda e, q: e.fit(q).expand(q * 0), "queries: row 0 is all zeros"),
        (lambda e, q: e.fit(q * np.nan), "database: row 0 contains NaN"),
        (lambda e, q: e.fit(None), "database: "),
        (lambda e, q: e.fit(q).expand(q, exclude=[1]), "exclude: expected 5 whole numbers"),
        (lambda e, q: e.fit(q).expand(q, exclude=[1, 2, 3, 4, 5]), "exclude: ids must lie between -1 and 4"),
        (lambda e, q: e.fit(q).search(q, 0), "k: expected a whole number of at least 1"),
        (lambda e, q: e.fit(q, recall=2), "recall: expected"),
        (lambda e, q: e.fit(q, seed=-1), "seed: expected"),
        (lambda e, q: e.fit(q, device="tpu9"), "device: 'tpu9' is not a device"),
        (lambda e, q: e.fit(q, graph="graph.safetensors"), "graph: expected a NeighborGraph"),
        (
            lambda e, q: Expander([]),
            r"stack: expected a list of aggregators, such as \[Mean\(10\)\], got \[\]",
        ),
        (lambda e, q: Expander(Mean(3)), r"stack: expected a list of aggregators.*got Mean\(k=3\)"),
        (lambda e, q: Expander(["aqe"]), r"stack: expected a list of aggregators"),
        (lambda e, q: Expander("aqe"), "stack: expected a list of aggregators"),
        (lambda e, q: QueryOptions(rounds=0), "rounds: expected a whole number of at least 1"),
        (lambda e, q: gqe.expander("aqe", rounds=1.5), "rounds: expected a whole number of at least 1"),
        (lambda e, q: gqe.expander("none", rounds=2), "none: has no setting 'rounds'"),
        (lambda e, q: QueryOptions(contrast=True), "contrast: expected a number of at least 0 and"),
    ],
)
def test_mistakes(world, wrong, message):
    queries, _ = world
    with pytest.raises(gqe.InputError, match=message) as caught:
        wrong(gqe.expander("aqe", k=2), queries)
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["none", "aqe", "aqewd", "alpha", "dqe", "aqe-g", "alpha-g"])
def test_on_a_gpu(world, name):
    queries, database = world
    here = gqe.expander(name).fit(database, device="cpu")
    there = gqe.expander(name).fit(torch.from_numpy(database).cuda())
    result = there.expand(torch.from_numpy(queries).cuda())
    assert result.is_cuda
    assert there.augment().is_cuda
    assert isinstance(there.expand(queries), np.ndarray)
    np.testing.assert_allclose(result.cpu().numpy(), here.expand(queries), atol=1e-5)
    np.testing.assert_allclose(there.augment().cpu().numpy(), here.augment(), atol=1e-5)
    np.testing.assert_allclose(there.weights(queries).toarray(), here.weights(queries).toarray(), atol=1e-4)
    found = gqe.expander(name).fit(database, device="cuda").search(queries, 5)
    np.testing.assert_array_equal(found.ids, here.search(queries, 5).ids)


def test_a_saved_expander_comes_back_the_same(tmp_path):
    rng = np.random.default_rng(0)
    database, queries = rng.normal(size=(30, 8)), rng.normal(size=(4, 8))
    made = gqe.Expander([Affinity(k=5, width=16, layers=1, heads=2), Alpha(k=3)], name="mine")
    made.save_pretrained(tmp_path / "model", about={"note": "from a test"})
    back = gqe.Expander.from_pretrained(tmp_path / "model")
    assert repr(back.stack) == repr(made.stack)
    np.testing.assert_array_equal(made.fit(database).expand(queries), back.fit(database).expand(queries))
    assert "from a test" in (tmp_path / "model" / "README.md").read_text()
    with pytest.raises(gqe.InputError, match="nowhere"):
        gqe.Expander.from_pretrained(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["alpha", "universal", "egt", "dba-x"])
def test_a_folder_is_loaded_whatever_its_name(tmp_path, monkeypatch, name: str):
    about = {"note": "kept", "dba": {"k": 2, "temperatures": [0.5]}}
    gqe.Expander([Mean(3)], name="mine").save_pretrained(tmp_path / name, about)
    monkeypatch.chdir(tmp_path)
    back = gqe.Expander.from_pretrained(name)
    assert (back.name, repr(back.stack)) == ("mine", "[Mean(k=3)]")
    assert repr(back.database_stack) == "[Mean(k=2, temperature=0.5)]"
    back.save_pretrained(tmp_path / "copy")
    again = gqe.Expander.from_pretrained(tmp_path / "copy")
    assert (again.name, again.about) == ("mine", about)
    assert repr(again.database_stack) == repr(back.database_stack)


def test_a_method_is_no_pretrained_model():
    with pytest.raises(gqe.InputError, match="give the folder of a saved model"):
        gqe.Expander.from_pretrained("alpha-g")


def test_the_shipped_model_fits_every_dimension():
    rng = np.random.default_rng(1)
    for dim in (3, 64, 300):
        database, queries = rng.normal(size=(50, dim)), rng.normal(size=(4, dim))
        expander = gqe.Expander.from_pretrained("universal").fit(database)
        assert expander.expand(queries).shape == (4, dim)
        weights = expander.weights(queries)
        assert weights.data.min() >= 0


def test_a_reranker_with_longer_lists_leaves_the_given_graph_in_place(random_unit):
    database, queries = random_unit(60, 8), random_unit(5, 8, seed=1)
    exact = gqe.knn(database, 4)
    given = gqe.NeighborGraph(exact.ids[:, ::-1].copy(), exact.similarities[:, ::-1].copy())
    plain = gqe.expander("aqe-g", k=2).fit(database, given)
    before = plain.expand(queries)
    reordered = gqe.expander("aqe-g+reciprocal", k=2).fit(database, given)
    reordered.search(queries, 5)
    assert reordered.target.source.graph is given
    np.testing.assert_array_equal(reordered.expand(queries), before)
    assert not np.allclose(before, gqe.expander("aqe-g", k=2).fit(database).expand(queries))


def test_another_reranker_shares_what_was_computed(random_unit, monkeypatch):
    database, queries = random_unit(60, 8), random_unit(5, 8, seed=1)
    plain = gqe.expander("aqe-g", k=4).fit(database)
    plain.augment()
    reranking = parse_method("egt:k=5").reranking
    calls = []
    augment = MemorySource.augment
    monkeypatch.setattr(MemorySource, "augment", lambda *given: calls.append(1) or augment(*given))
    again = plain.with_reranker(reranking)
    assert (plain.reranking, again.reranking) == (None, reranking)
    for dba in (False, True):
        wanted = gqe.expander("aqe-g+egt", k=4)
        wanted.reranking = reranking
        expected = wanted.fit(database).search(queries, 7, dba=dba)
        calls.clear()
        found = again.search(queries, 7, dba=dba)
        assert not calls
        assert (found.ids == expected.ids).all()
        assert found.scores == pytest.approx(expected.scores)
    fresh = gqe.expander("aqe-g", k=4).fit(database)
    assert (plain.search(queries, 7).ids == fresh.search(queries, 7).ids).all()


RERANKERS = (
    "egt",
    "reciprocal",
    "diffusion",
    "spectral",
    "superglobal",
    "gss:epochs=1",
    "csa",
    "offline-diffusion",
)


@pytest.mark.parametrize(
    "text", ["none", "aqe:k=1000000", "universal:k=30", *(f"aqe+{name}" for name in RERANKERS)]
)
def test_more_results_than_items_are_missing_ones(text):
    rng = np.random.default_rng(0)
    database, queries = rng.normal(size=(30, 8)), rng.normal(size=(3, 8))
    fitted = from_method(parse_method(text)).fit(database)
    few, many = fitted.search(queries, 30), fitted.search(queries, 1000)
    assert many.scores.shape == many.ids.shape == (3, 1000)
    np.testing.assert_array_equal(many.ids[:, :30], few.ids)
    assert (many.ids[:, 30:] == -1).all()
    assert np.isneginf(many.scores[:, 30:]).all()


def test_work_is_bounded_by_the_size_of_the_database():
    database = np.random.default_rng(0).normal(size=(60, 8))
    tracemalloc.start()
    fitted = from_method(parse_method("aqe-g:k=1000000:levels=2+superglobal:m=1000000")).fit(database)
    fitted.search(database[:5], 5)
    fitted.explain(database[:5])
    assert tracemalloc.get_traced_memory()[1] < 32 << 20  # lists of a million for 60 items would be 480 MB
    tracemalloc.stop()


@pytest.mark.parametrize("k", [1_000_001, 10**9, 10**30, -1, 0])
def test_an_absurd_number_of_results_is_refused(k):
    fitted = gqe.expander("aqe").fit(np.eye(4))
    with pytest.raises(gqe.InputError, match=r"^k: "):
        fitted.search(np.eye(4), k)
    with pytest.raises(gqe.InputError, match=r"^k: "):
        gqe.knn(np.eye(4), k)


def test_so_many_rounds_are_refused():
    with pytest.raises(gqe.InputError, match="at most 16"):
        gqe.expander("aqe", rounds=99_999_999)
    with pytest.raises(gqe.InputError, match="at most 16"):
        QueryOptions(rounds=17)
