"""A user's mistakes with stores: one clear line with the remedy, no secrets in it, nothing half-written."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gqe
from gqe.errors import DamagedError, InputError
from gqe.stores import address
from stores.engines import DIM, QUERIES, TABLE, Engine, Lance, Milvus, N, Postgres, Qdrant, expanders

SECRET = "s3cr%40t!"


def refused(work: Callable[[], object], message: str) -> str:
    with pytest.raises(InputError, match=message) as caught:
        work()
    assert "\n" not in str(caught.value)
    assert "s3cr" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://host/db", "unknown kind of address 'mysql'; it can be index, postgresql"),
        ("", "expected an address"),
        ("/no/such/folder", "no such index"),
        ("postgresql://host/db", r"no table is named; add \?table=NAME"),
        ("postgresql://host:port/db?table=x", "malformed; check host and port"),
        ("postgresql://host/db?table=x&ef_search=many", "ef_search: expected a whole number"),
        ("postgresql://host/db?table=x&ef_search=²", "ef_search: expected a whole number"),
        (f"postgresql://host/db?table=x&probes={'9' * 5000}", "probes: expected a whole number"),
        (f"postgresql://me:12/{SECRET}@host/db?table=x", "an @ behind its host.*write %2F for /"),
        (f"postgresql://me:12#{SECRET}@host/db?table=x", "an @ behind its host.*%23 for #"),
        (f"postgresql:/me:{SECRET}@host/db?table=x", "lacks slashes; it begins with postgresql://"),
        (f"host=db password={SECRET}", "no such index"),
        (f"postgresql://host/db?table=x&password=12&{SECRET}", "an option without a value.*%26 for &"),
        (f"index://me:{SECRET}@x/folder", "an index has no user and password"),
        ("qdrant://host", "no collection is named; write qdrant://host/NAME"),
        ("qdrant:///no/such/folder?collection=x", "no folder /no/such/folder"),
        ("qdrant:///some/folder", r"no collection is named; write \?collection=NAME"),
        ("milvus:///no/such/file.db?collection=x", "no file /no/such/file.db"),
        ("lancedb:///no/such/folder?table=x", "no folder /no/such/folder"),
        ("lancedb:///tmp", r"no table is named; write \?table=NAME"),
        ("lancedb://host/items", "LanceDB is a folder; write lancedb:///path"),
        (f"postgresql://me:{SECRET}@127.0.0.1:1/db?table=x", "no connection.*check that the server runs"),
        (f"qdrant://127.0.0.1:1/items?api_key={SECRET}", "out of reach.*check the address"),
        (f"milvus://me:{SECRET}@127.0.0.1:1/items", "out of reach.*check the address"),
    ],
)
def test_a_wrong_address_is_one_line(url: str, message: str) -> None:
    modules = {"postgresql": "psycopg", "qdrant": "qdrant_client", "milvus": "pymilvus", "lancedb": "lancedb"}
    for engine, module in modules.items():
        if url.startswith(engine):
            pytest.importorskip(module)
    refused(lambda: gqe.connect(url), message)


def test_secrets_are_masked_wherever_an_address_is_shown() -> None:
    parsed = address.parse(f"qdrants://me:{SECRET}@host/items?api_key=k3y&vector=v")
    assert parsed.password == "s3cr@t!"
    assert parsed.display == "qdrants://me:***@host/items?api_key=***&vector=v"
    assert parsed.redact("login\nwith s3cr@t! and k3y failed") == "login with *** and *** failed"


def test_a_key_from_the_environment_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("qdrant_client")
    monkeypatch.setenv("QDRANT_API_KEY", "s3cr\nt")  # the client refuses such a header and quotes it
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"qdrant://127.0.0.1:{server.getsockname()[1]}/items"
        refused(lambda: gqe.connect(url), "Illegal header value")


def test_a_half_configured_postgres_is_one_line(postgres: Postgres) -> None:
    uri = postgres.uri
    refused(lambda: gqe.connect(f"{uri}&table=absent"), "no table 'absent'; check table=")
    postgres.run("CREATE TABLE bare (id bigint PRIMARY KEY, name text, embedding vector(3), tags text[])")
    refused(
        lambda: gqe.connect(f"{uri}&table=bare&vector=vec"), "no column 'vec'; there are id, name.*vector="
    )
    refused(lambda: gqe.connect(f"{uri}&table=bare&id=key"), "no column 'key'")
    refused(lambda: gqe.connect(f"{uri}&table=bare&vector=name"), "'name' is text; it must be vector")
    refused(
        lambda: gqe.connect(f"{uri}&table=bare&id=name"), "may repeat; run ALTER TABLE bare ADD PRIMARY KEY"
    )
    postgres.run("CREATE TABLE loose (id bigint PRIMARY KEY, embedding vector)")
    refused(lambda: gqe.connect(f"{uri}&table=loose"), r"no dimension yet; declare vector\(d\)")
    postgres.run("CREATE DATABASE without_extension")
    other = uri.replace("/postgres?", "/without_extension?")
    refused(lambda: gqe.connect(f"{other}&table=x"), "lacks pgvector; run CREATE EXTENSION vector")
    postgres.run("INSERT INTO loose VALUES (1, '[1,2,3]'), (2, '[1,2]')")
    with gqe.connect(f"{uri}&table=loose") as items:
        refused(lambda: items.attach("aqe"), "item 2 has 2 dimensions, not 3")
    postgres.run(
        "INSERT INTO bare VALUES (1, '', '[1,0,0]', null), (2, '', '[0,0,0]', null), (3, '', null, null)"
    )
    with gqe.connect(f"{uri}&table=bare") as items:
        assert len(items) == 2  # what has no vector is no item
        refused(lambda: items.attach("aqe"), "the vector of item 2 is all zeros; repair or remove it")
        refused(lambda: items.search(np.eye(3), 1, expand=False, filter={"tags": 3}), "PostgreSQL refuses")
    postgres.run("CREATE ROLE reader LOGIN")
    postgres.run("GRANT SELECT ON bare TO reader")
    with gqe.connect(f"{uri.replace('postgres:@', 'reader:@')}&table=bare") as items:
        assert items.search(np.eye(3)[:1], 1, expand=False).ids.tolist() == [[1]]
        refused(lambda: items.attach("aqe"), "PostgreSQL refuses.*permission denied")


def test_an_index_of_another_metric_is_refused_with_the_remedy(postgres: Postgres) -> None:
    url = postgres.create(list(range(N)), TABLE, index="hnsw (embedding vector_l2_ops)")
    with gqe.connect(url) as items:
        refused(lambda: items.search(QUERIES, 3, expand=False), r"CREATE INDEX ON .* vector_cosine_ops\)")
        assert items.search(QUERIES, 3, expand=False, exact=True).ids.shape == (6, 3)
    url = postgres.create([0, 1], 2 * TABLE[:2], index="hnsw (embedding vector_ip_ops)")
    with gqe.connect(url) as items:
        refused(lambda: items.attach("aqe"), "has length 2, and inner products.*normalise them")


def test_other_metrics_are_refused(qdrant: Qdrant, milvus: Milvus) -> None:
    refused(lambda: gqe.connect(qdrant.create([1], TABLE[:1], distance="Euclid")), "anew with Cosine")
    refused(lambda: gqe.connect(milvus.create([1], TABLE[:1], metric="L2")), "its metric is L2.*with COSINE")
    with gqe.connect(milvus.create([1], TABLE[:1], index="HNSW")) as items:
        refused(lambda: items.search(QUERIES, 1, expand=False, exact=True), "exactly only with FLAT")


def test_a_table_of_lancedb_that_does_not_serve(lance: Lance) -> None:
    url = lance.create([3, 5, 5], TABLE[:3])
    refused(lambda: gqe.connect(url + "_absent"), "no table 'items_absent'; there are: items")
    refused(
        lambda: gqe.connect(url + "&id=key"), "no column 'key'; there are id, vector, year, kind; give id="
    )
    refused(lambda: gqe.connect(url + "&id=vector"), "ids are whole numbers or texts")
    refused(lambda: gqe.connect(url + "&vector=year"), "no vectors 'year'; give vector=, one of: vector")
    with gqe.connect(url, device="cpu") as items:
        refused(lambda: items.attach("aqe"), "item 5 is there twice; ids must be unique")
        refused(lambda: items.add(TABLE[:1], [7], fields={"colour": [1]}), "fields: no column 'colour'")
        refused(lambda: items.add(TABLE[:1], [7], fields={"year": ["long ago"]}), "LanceDB refuses")
        refused(lambda: items.search(QUERIES, 1, expand=False, filter={"year": "x"}), "LanceDB refuses")
        assert len(items) == 3
    l2 = lance.create(list(range(N)), TABLE, index="IvfFlat", distance="l2")
    refused(lambda: gqe.connect(l2), "the index of 'vector' is for l2; make it anew for cosine")


def test_missing_collections_and_vectors_are_named(qdrant: Qdrant, milvus: Milvus) -> None:
    for url in (qdrant.create([1], TABLE[:1]), milvus.create([1], TABLE[:1])):
        refused(
            lambda url=url: gqe.connect(url.replace("=items", "=absent")),
            "no collection 'absent'; there are: items",
        )
        refused(lambda url=url: gqe.connect(url + "&vector=other"), "vector")


def test_wrong_use_is_one_line_and_changes_nothing(engine: Engine) -> None:
    ids = list(range(20))
    with gqe.connect(engine.create(ids, TABLE[:20]), device="cpu") as items:
        refused(lambda: items.search(QUERIES, 3), "nothing is attached yet; run gqe store attach")
        refused(lambda: items.sync(), "nothing is attached yet")
        assert items.stats()["attached"] is None
        items.attach(expanders()["flat"], exact=True)
        before = items.search(QUERIES, 5).ids.tolist()
        refused(lambda: items.attach("aqe"), "flat is attached.*--anew to replace it by aqe")
        reordered = gqe.models.from_method(gqe.methods.parse_method("aqe+egt"))
        refused(lambda: items.attach(reordered), "keeps no re-ranker.*search with rerank='egt'")
        assert items.search(QUERIES, 3, expander=reordered).ids.shape == (6, 3)
        refused(lambda: items.attach(gqe.expander("aqe", rounds=2)), "flat is attached.*--anew")
        refused(lambda: items.attach(3), "expected an Expander")  # type: ignore[arg-type]
        refused(
            lambda: items.search(np.ones((2, DIM + 1)), 3),
            f"dimension 17 does not match the database's {DIM}",
        )
        refused(lambda: items.search(QUERIES, 0), "k: expected a whole number")
        refused(lambda: items.search(QUERIES, 10**9), "k: at most 1,000,000 results")
        refused(lambda: items.explain(QUERIES, top=10**9), "top: expected a whole number of at most")
        refused(lambda: items.search(QUERIES, 3, filter={"colour": "red"}), "filter: no field 'colour'")
        refused(lambda: items.search(QUERIES, 3, filter={"a = 1 or b": 1}), "filter: no field")
        refused(
            lambda: items.search(QUERIES, 3, filter={"year": {"near": 3}}), "bounds can be gt, gte, lt, lte"
        )
        refused(lambda: items.search(QUERIES, 3, filter={"year": None}), "expected texts, numbers")
        refused(lambda: items.search(QUERIES, 3, filter="year = 3"), "expected {")  # type: ignore[arg-type]
        refused(lambda: items.search(QUERIES, 3, exclude=[1]), "1 ids for 6 queries")
        refused(lambda: items.fetch([3, 99]), "no item 99")
        refused(lambda: items.remove([3, 99]), "no item 99")
        refused(lambda: items.fetch(["a"]), "by whole numbers")
        refused(lambda: items.upsert(np.ones((1, 3)), [5]), "dimension 3 does not match")
        refused(lambda: items.upsert(TABLE[:2], [5]), "1 ids for 2 vectors")
        refused(
            lambda: items.upsert(TABLE[:2], [5, 6], fields={"year": [1]}), "1 values of 'year' for 2 vectors"
        )
        assert len(items) == 20
        assert items.search(QUERIES, 5).ids.tolist() == before
        np.testing.assert_allclose(items.fetch([7, 3]), TABLE[[7, 3]], atol=1e-6)


def test_records_that_somebody_removed_are_named(engine: Engine) -> None:
    with gqe.connect(engine.create(list(range(20)), TABLE[:20]), device="cpu") as items:
        items.attach(expanders()["flat"], exact=True)
        store = items.store
        if engine.name == "pgvector":
            store._database.run(f"DROP TABLE {store._side.as_string(None)}")
        else:
            store._drop(store._side)
        items.reopen()
        for work in (items.sync, items.stats, lambda: items.search(QUERIES, 3), lambda: items.attach("aqe")):
            refused(work, "somebody removed its lists and levels; attach again with --anew")
        items.attach(expanders()["flat"], exact=True, anew=True)
        assert items.search(QUERIES, 3).ids.shape == (6, 3)


def test_who_may_not_write_is_told_so(postgres: Postgres) -> None:
    url = postgres.create(list(range(20)), TABLE[:20])
    table = url.partition("table=")[2]
    postgres.run(f"CREATE ROLE reader_of_{table} LOGIN; GRANT SELECT ON {table} TO reader_of_{table}")
    postgres.run("REVOKE CREATE ON SCHEMA public FROM public")
    other = url.replace("postgres:@", f"reader_of_{table}@", 1)
    with gqe.connect(other, device="cpu") as items:
        assert len(items.search(QUERIES, 3, expand=False).ids) == 6
        refused(lambda: items.attach("aqe"), "permission denied.*give this user the right")
    read_only = url + "&options=-c%20default_transaction_read_only%3Don"
    with gqe.connect(read_only, device="cpu") as items:
        refused(lambda: items.attach("aqe"), "read-only transaction.*the server that takes changes")
    with gqe.connect(url, device="cpu") as items:
        assert items.stats()["attached"] is None


def test_a_connection_cut_in_the_middle_of_a_write_leaves_nothing(
    postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres.create(list(range(20)), TABLE[:20])
    table = url.partition("table=")[2]
    postgres.run(
        f"CREATE FUNCTION cut_{table}() RETURNS trigger AS $$ BEGIN IF NEW.id = 60 THEN"
        " PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END $$ LANGUAGE plpgsql"
    )
    postgres.run(f"CREATE TRIGGER cut BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION cut_{table}()")
    with gqe.connect(url, device="cpu") as items:
        refused(lambda: items.upsert(TABLE[20:100], list(range(20, 100))), "it was lost.*run the same again")
        assert caplog.text == ""  # one line, and no other
        assert len(items) == 20
        postgres.run(f"DROP TRIGGER cut ON {table}")
        items.upsert(TABLE[20:100], list(range(20, 100)))
        assert len(items) == 100


def test_damaged_state_is_one_line(postgres: Postgres) -> None:
    url = postgres.create(list(range(20)), TABLE[:20])
    about = url.partition("table=")[2] + "_gqe_about"
    with gqe.connect(url, device="cpu") as items:
        items.attach(expanders()["affinity"], exact=True)
        infinite = f"replace(value, '\"dimension\": {DIM}', '\"dimension\": 1e999')"
        postgres.run(f"UPDATE {about} SET value = {infinite} WHERE key = 'state'")
        items.reopen()
        refused(lambda: items.search(QUERIES, 3), "damaged; attach again with --anew")
        items.attach(expanders()["affinity"], exact=True, anew=True)
        postgres.run(f"UPDATE {about} SET value = 'AAAA' WHERE key = 'model.safetensors.00000'")
        items.reopen()
        refused(lambda: items.search(QUERIES, 3), "damaged; attach again with --anew")
        postgres.run(f"UPDATE {about} SET value = '{{\"format\": 1}}' WHERE key = 'state'")
        items.reopen()
        refused(lambda: items.search(QUERIES, 3), "another version of gqe")
        items.attach(expanders()["affinity"], exact=True, anew=True)
        assert items.search(QUERIES, 3).ids.shape == (6, 3)


def test_an_index_keeps_its_own_levels(embedded: Engine, tmp_path: Path) -> None:
    with gqe.connect(embedded.create(list(range(20)), TABLE[:20]), device="cpu") as items:
        refused(lambda: items.attach("aqe", anew=True), "keeps the levels it was built with")
        refused(
            lambda: items.search(QUERIES, 3, filter={"colour": 1}), "no field 'colour'; there are kind, year"
        )
    made = gqe.Index.build(TABLE, "aqe", tmp_path / "augmented", dba=True)
    refused(lambda: gqe.connect(made.path), "augmented database; open it by gqe.Index.open")


def test_an_index_that_is_cut_off_while_it_is_open(embedded: Engine) -> None:
    """Reading behind the end of a mapped file would end the process."""
    path = Path(embedded.create(list(range(20)), TABLE[:20]))
    with gqe.connect(path, device="cpu") as items:
        os.truncate(next(path.glob("vectors.*.npy")), 0)
        for work in (
            lambda: items.search(QUERIES, 3),
            lambda: items.fetch([1]),
            lambda: items.store.existing_ids(np.array([1])),
            lambda: list(items.store.iterate()),
            lambda: items.store.read(np.array([1])),
        ):
            with pytest.raises(DamagedError, match="instead of"):
                work()
