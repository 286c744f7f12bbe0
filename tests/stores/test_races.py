"""Several writers at once: what was acknowledged is there, and of two that add an id one is told."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

import gqe
from gqe.errors import InputError
from gqe.stores import Connection, leases
from gqe.stores.leases import RESERVATION_PREFIX, Reservation
from stores.engines import DIM, TABLE, Engine, Postgres, expanders, vectors

WRITERS = 4


def writers(engine: Engine, url: str) -> list[Connection]:
    """Connections of several services; in local mode, where one may open the files, they share a client."""
    first = gqe.connect(url, device="cpu")
    if engine.name in ("pgvector", "lancedb") or "server" in engine.name:
        return [first, *(gqe.connect(url, device="cpu") for _ in range(WRITERS - 1))]
    return [first, *(Connection(copy.copy(first.store), first.device) for _ in range(WRITERS - 1))]


def add(items: Connection, new: np.ndarray, ids: list[int]) -> None:
    items.add(new, ids, fields={"year": [1] * len(ids)})


def at_once(items: list[Connection], work: Callable[[int, Connection], Any]) -> list[Any]:
    """What each got: a result, or what it was told."""
    start = threading.Barrier(len(items))

    def one(place: int) -> Any:
        start.wait()
        try:
            return work(place, items[place])
        except InputError as error:
            return str(error)

    with ThreadPoolExecutor(len(items)) as threads:
        return list(threads.map(one, range(len(items))))


def test_of_many_that_add_an_id_one_is_acknowledged_and_kept(engine: Engine) -> None:
    items = writers(engine, engine.create([1, 2], TABLE[:2]))
    new = vectors(WRITERS, seed=11)
    for name in range(100, 120 if engine.name == "pgvector" else 104):
        said = at_once(
            items, lambda i, each, name=name: add(each, new[[i, i]], [name, 1000 * (i + 1) + name])
        )
        won = [place for place, told in enumerate(said) if told is None]
        assert len(won) == 1, said
        assert all("there already" in told for told in said if told is not None)
        np.testing.assert_allclose(items[0].fetch([name])[0], new[won[0]], atol=1e-6)
        losers = [1000 * (i + 1) + name for i in range(WRITERS) if i not in won]
        assert not len(items[0].store.existing_ids(np.array(losers)))  # all of a request, or nothing
    assert not items[0].store.read_about(kind=RESERVATION_PREFIX.rstrip("."))
    for each in items[:1] if engine.name in ("qdrant", "milvus") else items:
        each.close()


def test_different_ids_do_not_wait_for_each_other(engine: Engine) -> None:
    items = writers(engine, engine.create([1, 2], TABLE[:2]))
    new = vectors(WRITERS, seed=12)
    assert at_once(items, lambda i, each: add(each, new[i : i + 1], [50 + i])) == [None] * WRITERS
    assert len(items[0]) == 2 + WRITERS


def test_two_services_in_front_of_one_table(postgres: Postgres) -> None:
    pytest.importorskip("fastapi", reason="needs the service: pip install 'gqe[serve]'")
    from gqe.server.opening import open_served
    from server.worlds import serving

    url = postgres.create(list(range(20)), TABLE[:20])
    with gqe.connect(url, device="cpu") as items:
        items.attach(expanders()["flat"], exact=True)
    new = vectors(2, seed=13)
    with (
        serving(open_served(url, device="cpu").engine) as one,
        serving(open_served(url, device="cpu").engine) as two,
        gqe.connect(url, device="cpu") as items,
        ThreadPoolExecutor(2) as threads,
    ):
        for name in range(100, 115):
            contents = [{"vectors": [row.tolist()], "ids": [name]} for row in new]
            answers: list[httpx.Response] = list(
                threads.map(lambda a: a[0].post("/v1/items", a[1]), zip((one, two), contents, strict=True))
            )
            assert sorted(answer.status_code for answer in answers) == [200, 422]
            kept = [answer.status_code for answer in answers].index(200)
            np.testing.assert_allclose(items.fetch([name])[0], new[kept], atol=1e-6)
            assert f"{name} is there already" in answers[1 - kept].json()["detail"]
            ids = {"ids": [name]}
            gone = list(threads.map(lambda s, ids=ids: s.post("/v1/items/remove", ids), (one, two)))
            assert sorted(answer.status_code for answer in gone) == [200, 422]


def test_writers_in_opposite_orders_do_not_block_each_other(postgres: Postgres) -> None:
    items = writers(postgres, postgres.create([1, 2], TABLE[:2]))[:2]
    names = list(range(200, 260))
    new = vectors(60, seed=14)
    for _ in range(5):
        said = at_once(items, lambda i, each: each.upsert(new, names[:: (1, -1)[i]]))
        assert said == [None, None]
        said = at_once(items, lambda i, each: each.remove(names[:: (1, -1)[i]]))
        assert sorted(told is None for told in said) == [False, True]
        assert len(items[0]) == 2


def test_an_update_of_what_another_removes_is_whole_or_refused(engine: Engine) -> None:
    items = writers(engine, engine.create(list(range(10)), TABLE[:10]))[:2]
    for name in range(6):
        new = vectors(1, seed=20 + name)

        def work(place: int, each: Connection, name: int = name, new: np.ndarray = new) -> None:
            each.upsert(new, [name], fields={"year": [1]}) if place else each.remove([name])

        at_once(items, work)
        if len(items[0].store.existing_ids(np.array([name]))):
            np.testing.assert_allclose(items[0].fetch([name])[0], new[0], atol=1e-6)
    assert len(items[0]) >= 4


def test_a_row_without_a_vector_is_no_item_and_can_be_added(postgres: Postgres) -> None:
    url = postgres.create([1, 2], TABLE[:2])
    table = url.partition("table=")[2]
    postgres.run(f"INSERT INTO {table} VALUES (3, null, 1999, 'kept')")
    with gqe.connect(url, device="cpu") as items:
        items.add(TABLE[2:3], [3])
        assert postgres.run(f"SELECT year, kind FROM {table} WHERE id = 3") == [(1999, "kept")]
        with pytest.raises(InputError, match="3 is there already"):
            items.add(TABLE[2:3], [3])
        postgres.run(f"INSERT INTO {table} VALUES (4, null)")
        with pytest.raises(InputError, match="no item 4"):
            items.remove([1, 4])
        assert len(items) == 3


def test_who_was_killed_while_adding_stands_in_nobodys_way(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine.name == "pgvector":
        pytest.skip("PostgreSQL needs no reservations")
    with gqe.connect(engine.create([1, 2], TABLE[:2]), device="cpu") as items:
        items.store.prepare_about()
        left = Reservation(items.store, np.array([7, 8]))
        left.acquire()
        with monkeypatch.context() as patch:
            patch.setattr(Reservation, "attempts", 2)
            with pytest.raises(InputError, match="is adding one of these ids; look soon"):
                add(items, TABLE[:1], [8])
        leases._held.discard(left.key)  # as if its process had gone
        add(items, TABLE[:1], [8])
        assert not items.store.read_about(kind="insert")


def test_items_added_while_another_attaches_or_syncs_are_found_by_the_next_sync(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gqe.stores.base._MOST_ITEMS", 8)
    with gqe.connect(engine.create(list(range(24)), TABLE[:24]), device="cpu") as items:
        name = [100]

        def more(done: int, total: int, what: str) -> None:
            add(items, vectors(1, seed=name[0]), [name[0]])
            items.upsert(vectors(1, seed=2 * name[0]), [name[0] % 24])
            items.remove([name[0]]) if name[0] % 3 == 0 else None
            name[0] += 1

        items.attach(expanders()["deep"], exact=True, progress=more)
        items.sync(progress=lambda *shown: more(*shown) if name[0] < 112 else None)
        items.sync()
        assert items.sync() == (0, 0, 0, 0)
        found = records(items)
        items.attach(expanders()["deep"], exact=True, anew=True)
        assert found == records(items)
        assert items.dimension == DIM


def records(items: Connection) -> dict[Any, Any]:
    """All that is attached, up to rounding."""
    known: dict[Any, Any] = {}
    attachment = items.store.attachment()
    if attachment is None:
        return known
    graph_k = attachment.graph_k
    for some in items.store.scan(levels=True):
        for at, name in enumerate(some.ids.tolist()):
            one = some.at(at)
            near = one.neighbors[:graph_k].tolist()
            known[name] = (one.checksums, int(one.valid), near, one.levels.round(4).tolist())
    return known
