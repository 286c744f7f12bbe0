"""Expanded search through FAISS indexes of all kinds equals that of an index of our own."""

from __future__ import annotations

import re

import faiss
import numpy as np
import pytest
import torch

import gqe
from gqe.formats import read_vectors
from gqe.integrations.faiss import wrap

D, N, CLASSES = 16, 400, 20
METRICS = [faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2]
METHOD = "aqe-g:k=6:contrast=0.2"  # two levels, lists and negatives


class World:
    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        centres = rng.normal(size=(CLASSES, D))
        self.labels, self.query_labels = np.arange(N) % CLASSES, np.arange(12) % CLASSES
        self.database = self._near(rng, centres[self.labels])
        self.queries = self._near(rng, centres[self.query_labels])
        self.expander = gqe.expander(METHOD).fit(self.database)
        self.expected = self.expander.search(self.queries, 10)

    def _near(self, rng, centres):
        vectors = (centres + 0.8 * rng.normal(size=centres.shape)).astype(np.float32)
        faiss.normalize_L2(vectors)
        return vectors

    def precision(self, ids) -> float:
        return float((self.labels[np.asarray(ids)] == self.query_labels[:, None]).mean())


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def make(spec: str, metric: int, vectors, ids=None):
    index = faiss.index_factory(D, spec, metric)
    index.train(vectors)
    index.add(vectors) if ids is None else index.add_with_ids(vectors, ids)
    if "IVF" in spec:
        faiss.extract_index_ivf(index).nprobe = 8
    if "HNSW" in spec:
        inner = faiss.downcast_index(index.index) if "IDMap" in spec else index
        inner.hnsw.efSearch = N
    return index


@pytest.mark.parametrize(("metric", "beside"), [(METRICS[0], False), (METRICS[1], True)])
@pytest.mark.parametrize(
    "spec", ["Flat", "IVF8,Flat", "HNSW16", "IDMap,Flat", "IDMap2,HNSW16", "L2norm,Flat"]
)
def test_what_keeps_its_vectors_finds_the_same_as_an_index(world, spec, metric, beside):
    ids = np.arange(N)[::-1] * 3 + 7 if "IDMap" in spec else None
    index = make(spec, metric, world.database, ids)
    wrapped = gqe.wrap(index, world.database if beside else None, METHOD)
    found, wanted = wrapped.search(world.queries, 10), world.expected
    np.testing.assert_array_equal(found.ids, wanted.ids if ids is None else ids[wanted.ids])
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-5)
    np.testing.assert_allclose(wrapped.expand(world.queries), world.expander.expand(world.queries), atol=1e-5)
    # The way of FAISS: distances and ids, best first, of a second search that FAISS could do as well.
    _, theirs = index.search(wrapped.expand(world.queries), 10)
    np.testing.assert_array_equal(found[1], theirs)


@pytest.mark.parametrize(
    ("spec", "metric"),
    [("PQ8x4", 1), ("IVF8,PQ8x4", 0), ("PCA12,IVF8,PQ6x4", 1), ("IVF8,PQ8x4fs", 0), ("SQ8", 0)],
)
def test_codes_gain_and_gain_more_with_the_vectors_beside_them(world, spec, metric):
    index = make(spec, metric, world.database)
    plain = world.precision(index.search(world.queries, 10)[1])
    alone = world.precision(gqe.wrap(index, None, METHOD).search(world.queries, 10).ids)
    beside = gqe.wrap(index, world.database, METHOD)
    assert alone >= plain
    assert world.precision(beside.search(world.queries, 10).ids) >= world.precision(world.expected.ids) - 0.03
    # All vectors are compared: the same as without FAISS, up to the lists of neighbours.
    exact = beside.search(world.queries, 10, expand=False, exact=True)
    np.testing.assert_array_equal(exact.ids, world.expander.search(world.queries, 10, expand=False).ids)
    same = gqe.wrap(index, None, METHOD).search(world.queries, 10, expand=False)
    np.testing.assert_array_equal(same.ids, index.search(world.queries, 10)[1])


def test_an_inverted_file_with_ids_of_its_own(world):
    ids = np.random.default_rng(0).permutation(N) * 5 + 1
    index = make("IVF8,Flat", faiss.METRIC_INNER_PRODUCT, world.database, ids)
    order = np.argsort(ids)
    for vectors in (None, world.database[order]):
        wrapped = gqe.wrap(index, vectors, METHOD)
        found = wrapped.search(world.queries, 10)
        np.testing.assert_allclose(found.scores, world.expected.scores, atol=1e-5)
        np.testing.assert_array_equal(found.ids, ids[world.expected.ids])
        own = ids[world.expected.ids[:, 0]]
        np.testing.assert_array_equal(
            wrapped.search(world.queries, 10, exclude=own).ids,
            ids[world.expander.search(world.queries, 10, exclude=world.expected.ids[:, 0]).ids],
        )
    assert index.direct_map.type == faiss.DirectMap.NoMap  # as it was
    with pytest.raises(gqe.InputError, match="exclude: id 2 is not in the index"):
        wrapped.search(world.queries[0], 10, exclude=2)


def test_neighbour_lists_of_faiss_are_a_graph(world):
    names = np.arange(N) + 1000
    for metric in METRICS:
        distances, ids = make("Flat", metric, world.database).search(world.database, 33)
        fitted = gqe.expander(METHOD).fit(world.database, graph=(distances, ids))
        np.testing.assert_array_equal(fitted.search(world.queries, 10).ids, world.expected.ids)
        index = make("IDMap,Flat", metric, world.database, names)
        wrapped = gqe.wrap(index, None, METHOD, graph=index.search(world.database, 33))
        np.testing.assert_array_equal(wrapped.search(world.queries, 10).ids, names[world.expected.ids])
        with pytest.raises(gqe.InputError, match="graph: I names items that are not in the index"):
            gqe.wrap(index, None, METHOD, graph=(distances, ids))
    with pytest.raises(gqe.InputError, match="graph: it holds 3 neighbours an item, 6 were asked for"):
        gqe.expander(METHOD).fit(world.database, graph=(distances[:, :4], ids[:, :4]))


def test_files_and_what_is_inside_them(world, tmp_path):
    ids = np.arange(N) + 50
    index = make("IDMap,Flat", faiss.METRIC_L2, world.database, ids)
    faiss.write_index(index, str(tmp_path / "base.faiss"))
    np.save(tmp_path / "base.npy", world.database)
    del index
    np.testing.assert_array_equal(read_vectors(tmp_path / "base.faiss"), world.database)
    # The file is read, and all that is around what is searched goes out of scope.
    for vectors in (None, tmp_path / "base.npy"):
        found = gqe.wrap(tmp_path / "base.faiss", vectors, METHOD).search(world.queries, 10)
        np.testing.assert_array_equal(found.ids, ids[world.expected.ids])


def test_filters_keep_the_settings_of_the_index(world):
    allowed = np.arange(0, N, 3)
    wanted = gqe.expander(METHOD).fit(world.database).expand(world.queries) @ world.database[allowed].T
    wanted = allowed[np.argsort(-wanted, axis=1)[:, :5]]
    for spec in ("Flat", "IVF8,Flat", "HNSW16", "L2norm,Flat"):
        wrapped = gqe.wrap(make(spec, faiss.METRIC_INNER_PRODUCT, world.database), None, METHOD)
        for exact in (None, True):
            found = wrapped.search(world.queries, 5, filter=allowed, exact=exact)
            np.testing.assert_array_equal(found.ids, wanted)
        few = wrapped.search(world.queries, 5, filter=[4, 9])
        assert set(few.ids.ravel().tolist()) == {4, 9, -1}
        ranked = wrapped.search(world.queries, 5, filter=allowed, rerank="reciprocal:k1=6")
        assert set(ranked.ids.ravel().tolist()) <= set(allowed.tolist())


def test_augmentation_goes_into_another_index(world):
    wrapped = gqe.wrap(make("IVF8,Flat", faiss.METRIC_L2, world.database), None, METHOD)
    np.testing.assert_allclose(wrapped.augment(), world.expander.augment(), atol=1e-5)
    augmented = faiss.IndexFlatIP(D)
    augmented.add(wrapped.augment())
    _, found = augmented.search(wrapped.expand(world.queries), 10)
    wanted = world.expander.search(world.queries, 10, dba=True).ids
    np.testing.assert_array_equal(np.sort(found), np.sort(wanted))  # ties of 1e-7 in another order


def test_an_empty_index_and_one_vector():
    index = faiss.IndexFlatIP(4)
    found = gqe.wrap(index, None, METHOD).search(np.eye(4), 2)
    assert (found.ids == -1).all()
    index.add(np.eye(4, dtype=np.float32)[:1])
    assert gqe.wrap(index, None, METHOD).search(np.eye(4)[0], 2).ids.tolist() == [0, -1]
    assert isinstance(gqe.wrap(index, None, METHOD).search(torch.eye(4), 1).ids, torch.Tensor)


def flat(vectors):
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(np.ascontiguousarray(vectors, np.float32))
    return index


def test_what_cannot_be_right_is_refused(world, tmp_path):
    twice = make("IDMap,Flat", 0, world.database, np.arange(N) // 2)
    hashes = make("LSH", faiss.METRIC_L2, world.database)
    (tmp_path / "broken.faiss").write_bytes(b"IxFI" + b"\0" * 20)
    cases = [
        (
            lambda: wrap(flat(3 * world.database)),
            "not of unit length (median 3), so it does not rank by cosine",
        ),
        (lambda: wrap(flat(world.database), world.database[:5]), "vectors: shape (5, 16), the index has"),
        (
            lambda: wrap(flat(world.database), world.database[::-1]),
            "vectors: not those in the index",
        ),
        (lambda: wrap(world.database), "index: expected a FAISS index of float vectors, got ndarray"),
        (lambda: wrap(faiss.IndexBinaryFlat(16)), "index: expected a FAISS index of float vectors"),
        (lambda: wrap(faiss.IndexFlat(4, faiss.METRIC_L1)), "only METRIC_INNER_PRODUCT and METRIC_L2"),
        (lambda: wrap(twice), "index: id 0 is there twice"),
        (lambda: wrap(hashes), "not of unit length"),
        (lambda: wrap(flat(world.database), method=3), "method: expected a name or an Expander, got int"),
        (lambda: wrap(tmp_path / "broken.faiss"), "broken.faiss: is not a readable FAISS index"),
        (lambda: wrap(tmp_path / "none.faiss"), "none.faiss: no such file"),
        (
            lambda: wrap(flat(world.database), method="aqe").search(world.queries, 3, dba=True),
            "dba: this FAISS index holds",
        ),
        (
            lambda: wrap(flat(world.database), method="aqe").search(world.queries, 3, filter={"a": 1}),
            "filter: a FAISS index",
        ),
        (
            lambda: wrap(make("PQ8x4", 0, world.database), method="aqe").search(world.queries, 3, filter=[1]),
            "IndexPQ only",
        ),
        (
            lambda: wrap(flat(world.database), method="aqe").search(world.queries, 3, exclude=[1]),
            "exclude: expected 12",
        ),
    ]
    for call, message in cases:
        with pytest.raises(gqe.InputError, match=re.escape(message)):
            call()
    index = flat(world.database)
    wrapped = wrap(index, method="aqe")
    index.add(world.queries)
    with pytest.raises(
        gqe.InputError, match="it holds 412 items now, 400 when it was wrapped; wrap it again"
    ):
        wrapped.search(world.queries, 3)
    # Hashes are good enough to find candidates with, where the vectors are beside them.
    found = wrap(hashes, world.database, METHOD).search(world.queries, 10)
    assert world.precision(found.ids) > 0.5
