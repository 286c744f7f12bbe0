"""What a store keeps beside vectors comes back with results, the same in every engine."""

from __future__ import annotations

import numpy as np
import pytest

import gqe
from gqe.errors import InputError
from gqe.integrations.documents import find_documents
from stores.engines import KINDS, QUERIES, TABLE, YEARS, Embedded, Engine, N, Postgres

WANTED = [{"year": year, "kind": kind} for year, kind in zip(YEARS, KINDS, strict=True)]


def check(items: gqe.Index | gqe.stores.Connection) -> None:
    found = items.search(QUERIES, 5, expand=False, with_metadata=True)
    scores, ids = found
    assert [[WANTED[i] for i in row] for row in ids.tolist()] == found.metadata
    assert scores.shape == (6, 5)
    one = items.search(QUERIES[0], 5, expand=False, with_metadata=True, filter={"year": 2003})
    assert one.metadata == [WANTED[i] for i in one.ids]
    few = items.search(QUERIES[0], N + 2, expand=False, with_metadata=True)
    assert [entry is None for entry in few.metadata] == [False] * N + [True, True]
    assert items.get([7, 3]) == [WANTED[7], WANTED[3]]
    assert items.search(QUERIES, 5, expand=False).metadata is None
    with pytest.raises(InputError, match=str(N + 5)):
        items.get([1, N + 5])
    assert find_documents(items, QUERIES[0], 1, options={"expand": False})[0].document == WANTED[ids[0, 0]]


def test_fields_of_every_engine(engine: Engine) -> None:
    with gqe.connect(engine.create(list(range(N)), TABLE), device="cpu") as items:
        check(items)


def test_metadata_of_an_index(embedded: Embedded) -> None:
    folder = embedded.create(list(range(N)), TABLE)
    check(gqe.Index.open(folder))
    with gqe.connect(folder) as items:
        check(items)


def test_columns_of_postgres_of_every_type(postgres: Postgres) -> None:
    postgres.run(
        "CREATE TABLE typed (id uuid PRIMARY KEY, embedding halfvec(3), other vector(2), day date,"
        " price numeric, tags text[], about jsonb, missing text)"
    )
    name = "00000000-0000-0000-0000-000000000001"
    row = (name, "[1,0,0]", "[1,2]", "2024-05-01", "1.50", ["a", "b"], '{"x": [1]}')
    postgres.run(
        "INSERT INTO typed (id, embedding, other, day, price, tags, about) VALUES (%s,%s,%s,%s,%s,%s,%s)", row
    )
    wanted = {"day": "2024-05-01", "price": 1.5, "tags": ["a", "b"], "about": {"x": [1]}, "missing": None}
    with gqe.connect(f"{postgres.uri}&table=typed") as items:
        assert items.get([name]) == [wanted]
    postgres.run("CREATE TABLE only_vectors (id bigint PRIMARY KEY, embedding vector(3))")
    postgres.run("INSERT INTO only_vectors VALUES (5, '[1,0,0]')")
    with gqe.connect(f"{postgres.uri}&table=only_vectors") as items:
        assert items.search(np.eye(3)[0], 2, expand=False, with_metadata=True).metadata == [{}, None]
