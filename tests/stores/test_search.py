"""Expanded search through every engine equals that of an index on the same vectors."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import gqe
from gqe.index import Index
from stores.engines import (
    KINDS,
    QUERIES,
    TABLE,
    YEARS,
    Embedded,
    Engine,
    Lance,
    Milvus,
    N,
    Postgres,
    expanders,
    vectors,
)


def names(kind: str) -> list:
    if kind == "int":
        return list(range(N))
    # In rising order, so that an index, which counts from 0, draws the same samples.
    return sorted(str(uuid.uuid5(uuid.NAMESPACE_OID, str(i))) for i in range(N))


@pytest.mark.parametrize(("stack", "kind"), [("affinity", "int"), ("deep", "text"), ("flat", "int")])
def test_an_expanded_search_equals_the_index(engine: Engine, tmp_path: Path, stack: str, kind: str) -> None:
    ids = names(kind)
    index = Index.build(TABLE, expanders()[stack], tmp_path / "index", ids=ids, device="cpu")
    with gqe.connect(engine.create(ids, TABLE), device="cpu") as items:
        items.attach(expanders()[stack], exact=True)
        assert len(items) == N
        assert items.id_kind == kind
        expected = index.search(QUERIES, 10)
        found = items.search(QUERIES, 10, exact=True)
        assert found.ids.tolist() == expected.ids.tolist()
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
        np.testing.assert_allclose(items.expand(QUERIES, exact=True), index.expand(QUERIES), atol=1e-4)
        plain = items.search(QUERIES, 10, expand=False, exact=True)
        assert plain.ids.tolist() == index.search(QUERIES, 10, expand=False).ids.tolist()
        own = [ids[3], None, *found.ids[2:5, 0].tolist(), None]
        without = items.search(QUERIES, 5, exclude=own, exact=True)
        assert without.ids.tolist() == index.search(QUERIES, 5, exclude=own).ids.tolist()
        for settings in (
            {"rounds": 2},
            {"rerank": "reciprocal:k1=6"},
            {"rerank": "egt:k=5:t=0.1", "exclude": own},
        ):
            again = items.search(QUERIES, 5, exact=True, **settings)
            assert again.ids.tolist() == index.search(QUERIES, 5, **settings).ids.tolist()
        reordered = items.search(QUERIES, 5, exact=True, expander="aqe:k=3+reciprocal:k1=6")
        wanted = gqe.expander("aqe:k=3+reciprocal:k1=6").fit(TABLE).search(QUERIES, 5)
        assert reordered.ids.tolist() == [[ids[row] for row in rows] for rows in wanted.ids.tolist()]
        said, known = items.explain(QUERIES[:2], top=6, exact=True), index.explain(QUERIES[:2], top=6)
        assert said.ids.tolist() == known.ids.tolist()
        np.testing.assert_allclose(said.weights, known.weights, atol=1e-3)
        np.testing.assert_allclose(said.own, known.own)


def test_an_index_is_a_store_too(embedded: Embedded) -> None:
    path = embedded.create(list(range(N)), TABLE)
    index = Index.open(path, device="cpu")
    with gqe.connect(path, device="cpu") as items:
        for settings in ({}, {"exclude": [1, 2, 3, None, 5, 6]}, {"filter": {"year": [2001, 2002]}}):
            expected, found = index.search(QUERIES, 8, **settings), items.search(QUERIES, 8, **settings)
            assert found.ids.tolist() == expected.ids.tolist()
            np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
        one = items.search(QUERIES[0], 3)
        assert one.ids.tolist() == index.search(QUERIES[0], 3).ids.tolist()
        assert items.explain(QUERIES, top=4).ids.tolist() == index.explain(QUERIES, top=4).ids.tolist()
        fields = {"year": [2020, 2021], "kind": ["a", "a"]}
        items.upsert(vectors(2, seed=5), [N, 3], fields=fields)
        items.remove([7])
        index.reopen()
        assert len(items) == len(index) == N
        assert items.sync().lists > 0
        assert items.search(QUERIES, 8).ids.tolist() == index.search(QUERIES, 8).ids.tolist()


FILTERS = {
    "value": ({"year": 2003}, lambda i: YEARS[i] == 2003),
    "values": ({"year": [2001, 2005]}, lambda i: YEARS[i] in (2001, 2005)),
    "range": ({"year": {"gte": 2002, "lt": 2005}}, lambda i: 2002 <= YEARS[i] < 2005),
    "quoted": ({"kind": "b'\"c"}, lambda i: KINDS[i] == "b'\"c"),
    "both": ({"kind": ["a"], "year": {"gt": 2004}}, lambda i: KINDS[i] == "a" and YEARS[i] > 2004),
    "nothing": ({"year": []}, lambda i: False),
    "hostile": ({"kind": "x' or 1=1 --"}, lambda i: False),
}


@pytest.fixture(
    params=["pgvector", "qdrant", "milvus", "lance", "embedded", "qdrant_server", "milvus_server"],
    scope="module",
)
def filtered(request: pytest.FixtureRequest) -> gqe.stores.Connection:
    engine = request.getfixturevalue({"pgvector": "postgres"}.get(request.param, request.param))
    with gqe.connect(engine.create(list(range(N)), TABLE), device="cpu") as items:
        yield items


@pytest.mark.parametrize("what", sorted(FILTERS))
def test_filters_run_in_the_engine(filtered: gqe.stores.Connection, what: str) -> None:
    given, allowed = FILTERS[what]
    found = filtered.search(QUERIES, 12, expand=False, filter=given, exact=True)
    for query, row in zip(QUERIES, found.ids.tolist(), strict=True):
        best = sorted((i for i in range(N) if allowed(i)), key=lambda i: -float(TABLE[i] @ query))[:12]
        assert row == best + [-1] * (12 - len(best))


INDEXES = ["hnsw (embedding vector_cosine_ops)", "ivfflat (embedding vector_ip_ops) WITH (lists = 8)"]


@pytest.mark.parametrize("index", INDEXES)
def test_approximate_search_in_postgres_misses_little(postgres: Postgres, index: str) -> None:
    table = vectors(600, seed=3)
    with gqe.connect(
        postgres.create(list(range(600)), table, index=index) + "&ef_search=40&probes=4"
    ) as items:
        items.attach(gqe.expander("aqe-g", k=4))
        assert items.store.metric == ("dot" if "ip_ops" in index else "cosine")
        near, exact = items.search(QUERIES, 50), items.search(QUERIES, 50, exact=True)
        assert (near.ids >= 0).all()  # more results than ef_search: none may go missing
        shares = [np.isin(a, b).mean() for a, b in zip(near.ids, exact.ids, strict=True)]
        assert np.mean(shares) > 0.9
        few = items.search(QUERIES, 20, expand=False, filter={"year": 2003})
        assert (few.ids >= 0).all()  # the scan goes on until the filter has let enough through


def test_half_precision_columns_serve(postgres: Postgres) -> None:
    url = postgres.create(
        list(range(N)), TABLE, column="halfvec", index="hnsw (embedding halfvec_cosine_ops)"
    )
    with gqe.connect(url, device="cpu") as items:
        items.attach(gqe.expander("aqe-g", k=4), exact=True)
        expected = gqe.expander("aqe-g", k=4).fit(TABLE.astype(np.float16)).search(QUERIES, 5)
        np.testing.assert_allclose(items.search(QUERIES, 5, exact=True).scores, expected.scores, atol=2e-3)


def test_approximate_search_in_milvus_misses_little(milvus: Milvus) -> None:
    with gqe.connect(milvus.create(list(range(N)), TABLE, index="HNSW"), device="cpu") as items:
        items.attach(gqe.expander("aqe-g", k=4))
        expected = gqe.expander("aqe-g", k=4).fit(TABLE).search(QUERIES, 10)
        found = items.search(QUERIES, 10)
        shares = [np.isin(a, b).mean() for a, b in zip(found.ids, expected.ids, strict=True)]
        assert np.mean(shares) > 0.9


@pytest.mark.parametrize("index", ["IvfPq", "HnswSq"])
def test_approximate_search_in_lancedb_misses_little(lance: Lance, index: str) -> None:
    table = vectors(600, seed=3)
    url = lance.create(list(range(600)), table, index=index, distance="dot" if index == "IvfPq" else "cosine")
    with gqe.connect(url, device="cpu") as items:
        assert items.store.metric == ("dot" if index == "IvfPq" else "cosine")
        items.attach(gqe.expander("aqe-g", k=4))
        near, exact = items.search(QUERIES, 50), items.search(QUERIES, 50, exact=True)
        shares = [np.isin(a, b).mean() for a, b in zip(near.ids, exact.ids, strict=True)]
        assert np.mean(shares) > 0.9
        plain = items.search(QUERIES, 50, expand=False)
        cosines = (table[plain.ids] @ QUERIES[:, :, None])[:, :, 0]
        np.testing.assert_allclose(plain.scores, cosines, atol=1e-5)  # of whole vectors, not of codes
        few = items.search(QUERIES, 20, expand=False, filter={"year": 2003})
        assert (few.ids >= 0).all()


def test_vectors_of_any_length_are_directions(engine: Engine) -> None:
    lengths = np.random.default_rng(4).uniform(0.5, 3, size=(N, 1)).astype(np.float32)
    with gqe.connect(engine.create(list(range(N)), TABLE * lengths), device="cpu") as items:
        items.attach(gqe.expander("aqe-g", k=4), exact=True)
        expected = gqe.expander("aqe-g", k=4).fit(TABLE).search(QUERIES, 8)
        found = items.search(QUERIES, 8, exact=True)
        assert found.ids.tolist() == expected.ids.tolist()
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_few_items(engine: Engine, count: int) -> None:
    with gqe.connect(engine.create(list(range(count)), TABLE[:count]), device="cpu") as items:
        items.attach(expanders()["affinity"], exact=True)
        found = items.search(QUERIES, 4, exact=True)
        assert (found.ids >= 0).sum() == count * len(QUERIES)
        if not count:
            np.testing.assert_allclose(items.expand(QUERIES), QUERIES)


def test_threads_may_share_a_connection(engine: Engine) -> None:
    with gqe.connect(engine.create(list(range(N)), TABLE), device="cpu") as items:
        items.attach(gqe.expander("aqe-g", k=4), exact=True)
        expected = items.search(QUERIES, 5, exact=True).ids.tolist()
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda query: items.search(query, 5, exact=True).ids.tolist(), QUERIES))
        assert found == expected


def test_exact_search_in_postgres_never_uses_the_index(postgres: Postgres) -> None:
    table, asked = vectors(3000, seed=3), vectors(40, seed=4)
    poor = "hnsw (embedding vector_cosine_ops) WITH (m = 2, ef_construction = 4)"
    url = postgres.create(list(range(3000)), table, index=poor)
    postgres.run(f"ANALYZE {url.partition('table=')[2]}")
    with gqe.connect(url + "&ef_search=5") as items:
        near = items.search(asked, 5, expand=False)  # so often that PostgreSQL keeps the plan
        found = items.search(asked, 5, expand=False, exact=True)
    truth = np.argsort(-(asked @ table.T), axis=1)[:, :5]
    assert (near.ids != truth).any()  # the index was used, and misses some
    assert found.ids.tolist() == truth.tolist()
