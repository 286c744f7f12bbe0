"""Added, changed and deleted items: a sync equals an index that was changed in the same way."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import gqe
from gqe.errors import InputError
from gqe.index import Index
from gqe.stores import Connection, syncing
from gqe.stores.attaching import AttachJob
from stores.engines import QUERIES, TABLE, Engine, Lance, Milvus, N, Postgres, expanders, vectors

MORE = vectors(9, seed=6)
NEW = list(range(N, N + 6))
CHANGED, DELETED = [4, 50, 51], [0, 17, 90, 91]


def change(items: Connection) -> None:
    items.upsert(MORE[:6], NEW, fields={"year": [2020] * 6})
    items.upsert(MORE[6:], CHANGED)
    items.remove(DELETED)


def assert_equal(items: Connection, index: Index) -> None:
    found, expected = items.search(QUERIES, 12, exact=True), index.search(QUERIES, 12)
    assert found.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
    np.testing.assert_allclose(items.expand(QUERIES, exact=True), index.expand(QUERIES), atol=1e-4)


def changed_index(path: Path, stack: str) -> Index:
    index = Index.build(TABLE, expanders()[stack], path, device="cpu")
    index.add(MORE[:6], ids=NEW)
    index.update(MORE[6:], CHANGED)
    index.remove(DELETED)
    return index


def everything(items: Connection) -> dict:
    """All records by id, up to rounding."""
    known = {}
    for records in items.store.scan(levels=True):
        for at, name in enumerate(records.ids.tolist()):
            one = records.at(at)
            graph_k = items.expander.stack[0].graph_k
            known[name] = (
                one.checksums,
                int(one.valid),
                one.neighbors[:graph_k].tolist(),
                one.levels.round(4).tolist(),
            )
    return known


@pytest.mark.parametrize("stack", ["affinity", "deep"])
def test_a_sync_equals_a_changed_index(engine: Engine, tmp_path: Path, stack: str) -> None:
    index = changed_index(tmp_path / "index", stack)
    with gqe.connect(engine.create(list(range(N)), TABLE), device="cpu") as items:
        items.attach(expanders()[stack], exact=True)
        assert items.sync() == (0, 0, 0, 0)
        change(items)
        done = items.sync()
        assert done[:3] == (6, 3, 4)
        assert done.lists >= 9
        if stack == "deep":
            assert done.lists < N  # only what is affected
        assert_equal(items, index)
        assert items.stats()["stale"] == 0
        same = items.search(TABLE[:1], N, expand=False, filter={"year": 2004}, exact=True).ids
        assert set(CHANGED[:1]) <= set(same[0].tolist())  # its other fields stayed
        assert items.sync() == (0, 0, 0, 0)


def test_levels_that_nothing_touched_are_not_written(postgres: Postgres) -> None:
    with gqe.connect(postgres.create(list(range(N)), TABLE), device="cpu") as items:
        items.attach(gqe.expander("aqe-g", k=2), exact=True)
        written = []
        write = items.store.write
        items.store.write = lambda records: (written.extend(records.ids.tolist()), write(records))
        items.upsert(MORE[:1], [N])
        items.sync()
        affected = {
            name
            for records in items.store.scan()
            for name, near in zip(records.ids.tolist(), records.neighbors.tolist(), strict=True)
            if N in near
        }
        assert set(written) == affected | {N}


def test_postgres_tells_what_changed_and_only_that_is_read(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gqe.connect(postgres.create(list(range(N)), TABLE), device="cpu") as items:
        items.attach(gqe.expander("aqe-g", k=2), exact=True)
        store, read = items.store, []
        fetch = store.fetch

        def watched(ids: np.ndarray) -> object:
            read.extend(ids.tolist())
            return fetch(ids)

        monkeypatch.setattr(store, "fetch", watched)
        monkeypatch.setattr(store, "iterate", None)  # nobody reads everything
        assert items.sync() == (0, 0, 0, 0)
        assert read == []
        postgres.run(f"UPDATE {items.address.partition('table=')[2]} SET year = 1")  # no vector changed
        assert items.sync() == (0, 0, 0, 0)
        assert read == []
        items.remove([5])
        done = items.sync()
        assert (done.deleted, done.lists < N // 2) == (1, True)
        assert len(set(read)) < N // 2  # those that listened to it, and whom they listen to
        items.upsert(TABLE[5:6], [5])
        assert items.sync()[:3] == (1, 0, 0)
        np.testing.assert_array_equal(store.checksums(TABLE), marks_in_the_database(postgres, items))


def test_stats_tell_what_is_not_synced(postgres: Postgres, embedded: Engine) -> None:
    with gqe.connect(postgres.create(list(range(N)), TABLE), device="cpu") as items:
        items.attach(gqe.expander("aqe-g", k=2), exact=True)
        assert (items.stats()["stale"], items.stats()["unsynced"]) == (0, 0)
        change(items)
        assert items.stats()["unsynced"] == len(NEW) + len(CHANGED) + len(DELETED)
        items.sync()
        assert (items.stats()["stale"], items.stats()["unsynced"]) == (0, 0)
    with gqe.connect(embedded.create(list(range(N)), TABLE), device="cpu") as items:
        assert (items.stats()["stale"], items.stats()["unsynced"]) == (0, 0)
        items.remove(DELETED)
        assert items.stats()["stale"] > 0
        items.sync()
        assert items.stats()["stale"] == 0


def marks_in_the_database(postgres: Postgres, items: Connection) -> np.ndarray:
    table = items.address.partition("table=")[2]
    rows = postgres.run(f"SELECT md5(vector_send(embedding)) FROM {table} ORDER BY id")
    return np.array([row[0] for row in rows], dtype=object)


def test_before_a_sync_new_items_take_part_with_their_own_vector(postgres: Postgres) -> None:
    with gqe.connect(postgres.create(list(range(N)), TABLE), device="cpu") as items:
        items.attach(expanders()["affinity"], exact=True)
        items.upsert(QUERIES[:1], [N])
        items.remove([3])
        assert items.search(QUERIES[0], 1, exact=True).ids.tolist() == [N]


@pytest.mark.parametrize("count", [20, 400])
def test_a_database_that_halved_or_doubled_is_measured_anew(
    postgres: Postgres, tmp_path: Path, count: int
) -> None:
    with gqe.connect(postgres.create(list(range(N)), TABLE), device="cpu") as items:
        items.attach(expanders()["affinity"], exact=True)
        if count < N:
            items.remove(list(range(count, N)))
            table = TABLE[:count]
        else:
            table = np.concatenate([TABLE, vectors(count - N, seed=8)])
            items.upsert(table[N:], list(range(N, count)))
        items.sync()
        assert_equal(items, Index.build(table, expanders()["affinity"], tmp_path / "index", device="cpu"))
        assert len(everything(items)) == count


class _Stop(Exception):
    pass


def stopping(items: Connection, writes: int) -> None:
    """Let the store take so many writes, and no more."""
    store, left = items.store, [writes]

    def counted(method: object) -> object:
        def call(*given: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise _Stop
            return method(*given)

        return call

    for name in ("write", "write_about", "delete_records"):
        setattr(store, name, counted(getattr(store, name)))


@pytest.mark.parametrize("stack", ["affinity", "deep"])
def test_a_sync_stopped_at_any_write_goes_on(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: str
) -> None:
    monkeypatch.setattr("gqe.stores.base._MOST_ITEMS", 40)
    url = postgres.create(list(range(N)), TABLE)
    table = url.partition("table=")[2]
    with gqe.connect(url, device="cpu") as items:
        items.attach(expanders()[stack], exact=True)
        change(items)
        for kept in ("", "_gqe", "_gqe_about"):
            postgres.run(f"CREATE TABLE kept_{table}{kept} AS TABLE {table}{kept}")
        items.sync()
        expected = everything(items)
    stopped = 0
    for writes in range(1, 50, 12):
        for kept in ("", "_gqe", "_gqe_about"):
            postgres.run(f"DELETE FROM {table}{kept}")
            postgres.run(f"INSERT INTO {table}{kept} TABLE kept_{table}{kept}")
        with gqe.connect(url, device="cpu") as items:
            stopping(items, writes)
            try:
                items.sync()
            except _Stop:
                stopped += 1
        with gqe.connect(url, device="cpu") as items:
            items.sync()
            assert everything(items) == expected
    assert stopped >= 2


def attach_in_child(url: str) -> int:
    child = os.fork()
    if child:
        return child
    try:
        torch.set_num_threads(1)
        with gqe.connect(url, device="cpu") as items:
            items.attach(expanders()["affinity"], exact=True)
        os._exit(0)
    except BaseException:
        os._exit(9)
    finally:
        os._exit(8)


def test_attaching_killed_at_any_moment_goes_on(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gqe.stores.base._MOST_ITEMS", 8)
    with gqe.connect(postgres.create(list(range(N)), TABLE), device="cpu") as items:
        items.attach(expanders()["affinity"], exact=True)
        expected = everything(items)
    url = postgres.create(list(range(N)), TABLE)
    begun = time.perf_counter()
    assert os.waitpid(attach_in_child(url), 0)[1] == 0
    takes = time.perf_counter() - begun
    stages = set()
    for share in (0.4, 0.6, 0.8):
        url = postgres.create(list(range(N)), TABLE)
        child = attach_in_child(url)
        time.sleep(share * takes)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with gqe.connect(url, device="cpu") as items:
            stages.add(items.stats().get("stage"))
            items.attach(expanders()["affinity"], exact=True)
            assert everything(items) == expected
    assert stages - {None, "ready"}


def test_attaching_stopped_goes_on_in_every_engine(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gqe.stores.base._MOST_ITEMS", 40)
    with gqe.connect(engine.create(list(range(N)), TABLE), device="cpu") as items:
        items.attach(expanders()["deep"], exact=True)
        expected = everything(items)
        items.attach(expanders()["deep"], exact=True)  # nothing is left to do
        items.store.detach()
        stopping(items, 12)  # in the middle of the first level
        with pytest.raises(_Stop):
            items.attach(expanders()["deep"], exact=True)
        for name in ("write", "write_about", "delete_records"):
            delattr(items.store, name)
        assert items.stats()["stage"] == "levels"
        with pytest.raises(InputError, match="not finished; run gqe store attach again"):
            items.search(QUERIES, 3)
        items.attach(expanders()["deep"], exact=True)
        assert everything(items) == expected


def test_a_connection_killed_in_the_middle_is_one_line_and_goes_on(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gqe.stores.base._MOST_ITEMS", 16)
    url = postgres.create(list(range(N)), TABLE)

    def kill(done: int, total: int, what: str) -> None:
        if done == 64 and what == "neighbours":
            postgres.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )

    with gqe.connect(url, device="cpu") as items:
        with pytest.raises(InputError, match="goes on where it was") as caught:
            items.attach(expanders()["affinity"], exact=True, progress=kill)
        assert "\n" not in str(caught.value)
        assert items.stats()["stage"] == "lists"  # connected anew
        shown = []
        items.attach(expanders()["affinity"], exact=True, progress=lambda *now: shown.append(now))
        assert sum(what == "neighbours" for _, _, what in shown) == -(-(N - 64) // 16)
        assert items.stats()["stage"] == "ready"


def test_who_reads_levels_that_another_replaced_is_told(engine: Engine) -> None:
    with gqe.connect(engine.create(list(range(20)), TABLE[:20]), device="cpu") as items:
        items.attach(expanders()["deep"], exact=True)
        items.search(QUERIES, 3)
        known = items._attachment
        items.attach(expanders()["flat"], exact=True, anew=True)
        items.stats()
        items._attachment = known  # as another process has it
        with pytest.raises(InputError, match="something else was attached"):
            items.search(QUERIES, 3)
        items.reopen()
        assert items.search(QUERIES, 3).ids.shape == (6, 3)


def test_what_many_writes_leave_in_lancedb_is_joined(lance: Lance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gqe.stores.lancedb._WRITES_TO_JOIN", 5)
    monkeypatch.setattr("gqe.stores.base._MOST_ITEMS", 8)
    with gqe.connect(lance.create(list(range(N)), TABLE), device="cpu") as items:
        items.attach(expanders()["affinity"], exact=True)  # 15 writes of lists, and 15 of levels
        assert items.store._table("items_gqe").stats()["fragment_stats"]["num_fragments"] <= 5
        found = items.search(QUERIES, 5, exact=True)
        expected = expanders()["affinity"].fit(TABLE, device="cpu").search(QUERIES, 5)
        assert found.ids.tolist() == expected.ids.tolist()


def test_milvus_keeps_what_was_written_before_a_kill(milvus: Milvus, monkeypatch: pytest.MonkeyPatch) -> None:
    url = milvus.create(list(range(N)), TABLE)
    code = (
        "import os, sys, gqe\n"
        "items = gqe.connect(sys.argv[1], device='cpu')\n"
        "def die(done, total, what):\n"
        "    if what == 'level 1': os.kill(os.getpid(), 9)\n"
        "items.attach(gqe.expander('aqe-g', k=4), exact=True, progress=die)\n"
    )
    import subprocess
    import sys

    ran = subprocess.run([sys.executable, "-c", code, url], capture_output=True, check=False)
    assert ran.returncode == -signal.SIGKILL
    with gqe.connect(url, device="cpu") as items:
        assert items.stats()["stage"] == "levels"
        items.attach(gqe.expander("aqe-g", k=4), exact=True)
        expected = gqe.expander("aqe-g", k=4).fit(TABLE).search(QUERIES, 8)
        assert items.search(QUERIES, 8, exact=True).ids.tolist() == expected.ids.tolist()


def test_what_is_read_of_work_is_its_state(postgres: Postgres) -> None:
    with gqe.connect(postgres.create(list(range(N)), TABLE), device="cpu") as items:
        items.attach(expanders()["affinity"], exact=True)
        attachment = items.store.attachment()
        assert attachment is not None
        work = AttachJob(items.store, attachment, torch.device("cpu"))
        work.note(cursor=7)
        again = items.store.attachment()
        assert again is not None
        assert again.cursor == 7
        assert again.replace(cursor=None, expander=None) == attachment.replace(expander=None)
        assert syncing.stale(items.store, attachment) == 0
