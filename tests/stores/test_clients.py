"""Clients that the user has open already, instead of an address: used as they are, never closed."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gqe
from gqe.errors import InputError
from gqe.stores.base import Unreachable
from stores.engines import DIM, QUERIES, TABLE, YEARS, Lance, Milvus, N, Postgres, expanders


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> gqe.SearchResult:
    folder = tmp_path_factory.mktemp("index") / "index"
    return gqe.Index.build(TABLE, expanders()["affinity"], folder, device="cpu").search(QUERIES, 10)


def check(wanted: gqe.SearchResult, client: Any, name: str, **options: Any) -> None:
    """Attach, search, write and close; the client works on."""
    with gqe.connect(client, name, device="cpu", **options) as items:
        assert "secret" not in items.address
        assert name in repr(items)
        items.attach(expanders()["affinity"], exact=True)
        found = items.search(QUERIES, 10, exact=True)
        assert found.ids.tolist() == wanted.ids.tolist()
        np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-4)
        items.add(QUERIES[:1], [N], fields={"year": [1999]})
        assert items.sync().added == 1
        one = items.search(QUERIES[0], 1, filter={"year": {"lt": 2000}})
        assert one.ids.tolist() == [N]


def qdrant_in_memory() -> Any:
    qdrant = pytest.importorskip("qdrant_client", reason="needs gqe[qdrant]")
    client, models = qdrant.QdrantClient(":memory:"), qdrant.models
    settings = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    client.create_collection("items", vectors_config={"image": settings})
    points = [
        models.PointStruct(id=i, vector={"image": row.tolist()}, payload={"year": YEARS[i]})
        for i, row in enumerate(TABLE)
    ]
    client.upsert("items", points)
    return client


def test_a_qdrant_client_in_memory(wanted: gqe.SearchResult) -> None:
    client = qdrant_in_memory()
    check(wanted, client, "items", vector="image")
    assert client.count("items").count == N + 1  # not closed
    with pytest.raises(InputError, match="name one of its vectors by vector=: image"):
        gqe.connect(client, "items")
    with pytest.raises(InputError, match="no collection 'other'; there are: items, items_gqe"):
        gqe.connect(client, "other")
    assert client.count("items").count == N + 1  # nor by a refusal


def test_a_milvus_client(milvus: Milvus, wanted: gqe.SearchResult) -> None:
    from pymilvus import MilvusClient

    url = milvus.create(list(range(N)), TABLE)
    path = url.removeprefix("milvus://").partition("?")[0]
    with closing(MilvusClient(path)) as client:
        check(wanted, client, "items", vector="vector")
        assert int(client.query("items", output_fields=["count(*)"])[0]["count(*)"]) == N + 1
    milvus.release(url)


def test_a_connection_to_lancedb(lance: Lance, wanted: gqe.SearchResult) -> None:
    import lancedb

    url = lance.create(list(range(N)), TABLE)
    client = lancedb.connect(url.removeprefix("lancedb://").partition("?")[0])
    table = client.open_table("items")
    check(wanted, client, "items", vector="vector", id="id")
    table.checkout_latest()
    assert table.count_rows() == N + 1
    with pytest.raises(InputError, match="cannot work with lancedb's LanceTable; give a DBConnection"):
        gqe.connect(table)


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_psycopg_connection(postgres: Postgres, wanted: gqe.SearchResult, autocommit: bool) -> None:
    import psycopg
    from psycopg.rows import dict_row

    table = postgres.create(list(range(N)), TABLE).rpartition("=")[2]
    with psycopg.connect(postgres.uri, autocommit=autocommit, row_factory=dict_row) as connection:
        check(wanted, connection, table)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        row = connection.execute(f"SELECT count(*) AS n, min(embedding::text) AS v FROM {table}").fetchone()
        assert row is not None
        assert row["n"] == N + 1  # the rows of the user are as the user wants them
        one = connection.execute(f"SELECT embedding FROM {table} WHERE id = 3").fetchone()
        assert isinstance(one["embedding"], str)  # and so are the vectors
    assert postgres.run(f"SELECT count(*) FROM {table}") == [(N + 1,)]


def test_a_transaction_that_is_open_stays_open(postgres: Postgres) -> None:
    import psycopg

    table = postgres.create(list(range(N)), TABLE).rpartition("=")[2]
    with psycopg.connect(postgres.uri) as connection:
        connection.execute("SELECT 1")
        items = gqe.connect(connection, table, id="id", vector="embedding", ef_search=50)
        items.add(QUERIES[:1], [N])
        with pytest.raises(InputError, match="is there already"):
            items.add(QUERIES[:1], [N])
        assert len(items) == N + 1
        connection.rollback()
        assert len(items) == N


def test_a_lost_connection_is_one_line(postgres: Postgres) -> None:
    import psycopg

    table = postgres.create(list(range(N)), TABLE).rpartition("=")[2]
    connection = psycopg.connect(postgres.uri)
    items = gqe.connect(connection, table)
    connection.close()
    with pytest.raises(Unreachable, match=f"Connection '{table}': no connection, or it was lost"):
        items.search(QUERIES, 3, expand=False)


def test_a_pool(postgres: Postgres, wanted: gqe.SearchResult) -> None:
    pool = pytest.importorskip("psycopg_pool", reason="needs psycopg-pool")
    table = postgres.create(list(range(N)), TABLE).rpartition("=")[2]
    with pool.ConnectionPool(postgres.uri, min_size=2, open=True) as connections:
        check(wanted, connections, table)
        items = gqe.connect(connections, table)
    with pytest.raises(Unreachable, match="no connection, or it was lost"):
        len(items)


def test_what_is_no_client_is_refused(tmp_path: Path) -> None:
    def refuse(message: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(InputError, match=message):
            gqe.connect(*arguments, **options)

    refuse("store: expected an address, or a Connection, .*got dict", {})
    refuse("name: goes with an open client; an address names it itself", str(tmp_path), "items")
    refuse("vector: goes with an open client", str(tmp_path), vector="image")
    qdrant = pytest.importorskip("qdrant_client", reason="needs gqe[qdrant]")
    client = qdrant_in_memory()
    refuse("name: a QdrantClient holds many; give the name of a collection", client)
    refuse("id: no option of a QdrantClient; there are vector", client, "items", id="id")
    away = qdrant.AsyncQdrantClient(":memory:")
    refuse("cannot work with qdrant_client's AsyncQdrantClient; give a QdrantClient", away, "items")
    asyncio.run(away.close())
