"""Of two that attach or sync at the same time one is refused, and who was killed stands in nobody's way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import gqe
from gqe.errors import InputError
from gqe.stores import leases
from gqe.stores.leases import LEASE_PREFIX, Lease, hold_lease
from stores.engines import QUERIES, TABLE, Engine, N, Postgres, expanders


def test_a_second_attach_or_sync_is_refused(engine: Engine) -> None:
    with gqe.connect(engine.create(list(range(30)), TABLE[:30]), device="cpu") as items:
        with (
            hold_lease(items.store),
            pytest.raises(InputError, match="another attach or sync") as said,
        ):
            items.attach(expanders()["flat"], exact=True)
        assert f"process {os.getpid()} on" in str(said.value)
        assert "wait until it ends" in str(said.value)
        assert items.stats()["attached"] is None  # a lease alone attaches nothing
        items.attach(expanders()["flat"], exact=True)
        with hold_lease(items.store), pytest.raises(InputError, match="another attach or sync"):
            items.sync()
        assert items.sync() == (0, 0, 0, 0)
        assert not [key for key in items.store.read_about() if key.startswith(LEASE_PREFIX)]


def test_another_process_is_refused_while_one_attaches(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gqe.stores.base._MOST_ITEMS", 60)
    url = postgres.create(list(range(N)), TABLE)
    command = [sys.executable, "-c", "from gqe.cli import main; main()", "store", "attach", url]
    command += ["--anew", "-m", "aqe"]
    others = []

    def also(done: int, total: int, what: str) -> None:
        if not others:
            others.append(
                subprocess.run([*command, "-m", "aqe"], capture_output=True, text=True, check=False)
            )

    with gqe.connect(url, device="cpu") as items:
        items.attach(expanders()["affinity"], exact=True, progress=also)
        assert others[0].returncode == 2
        assert "another attach or sync is at work" in others[0].stderr
        assert "Traceback" not in others[0].stderr
        assert items.expander.name == "affinity"
        assert items.search(QUERIES, 3).ids.shape == (6, 3)


def test_of_many_that_come_at_once_one_works_at_a_time(postgres: Postgres) -> None:
    url = postgres.create([1, 2], TABLE[:2])
    start, inside, most = threading.Barrier(6), [0], [0]
    refused: list[str] = []

    def work(_: int) -> None:
        with gqe.connect(url, device="cpu") as items:
            start.wait()
            for _ in range(3):
                try:
                    with hold_lease(items.store):
                        inside[0] += 1
                        most[0] = max(most[0], inside[0])
                        time.sleep(0.02)
                        inside[0] -= 1
                except InputError as error:
                    refused.append(str(error))

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert most[0] == 1
    assert len(refused) < 18
    assert all("another attach or sync" in said for said in refused)


@pytest.mark.parametrize("kind", ["killed", "elsewhere", "expired", "own", "damaged", "huge", "infinite"])
def test_whose_lease_counts(postgres: Postgres, kind: str) -> None:
    url = postgres.create([1, 2], TABLE[:2])
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    now = time.time()
    about = {
        "host": leases.machine_id(),
        "name": "here",
        "process": child.pid,
        "since": now,
        "until": now + 60,
    }
    about |= {
        "elsewhere": {"host": "another", "name": "another", "process": 1},
        "expired": {"host": "another", "until": now - 1},
        "huge": {"process": 10**30},
        "infinite": {"process": float("inf")},
        "own": {"process": os.getpid()},  # of work in this process that has ended
    }.get(kind, {})
    with gqe.connect(url, device="cpu") as items:
        items.store.prepare_about()
        text = "{" if kind == "damaged" else json.dumps(about)
        items.store.write_about({LEASE_PREFIX + "x": text})
        if kind == "elsewhere":
            with pytest.raises(InputError, match=r"process 1 on another.*or 1 min if"):
                items.attach(expanders()["flat"])
        else:
            items.attach(expanders()["flat"])
            assert LEASE_PREFIX + "x" not in items.store.read_about()


def test_work_that_was_taken_over_stops(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.0)
    with gqe.connect(postgres.create([1, 2], TABLE[:2]), device="cpu") as items:
        items.store.prepare_about()
        first = Lease(items.store)
        first.acquire()
        first.renew()
        monkeypatch.setattr(leases, "LEASE_SECONDS", -1.0)  # it was silent for too long
        first.renew()
        monkeypatch.setattr(leases, "LEASE_SECONDS", 600.0)
        with hold_lease(items.store), pytest.raises(InputError, match=r"took the work over.*run it again"):
            first.renew()
        first.release()
