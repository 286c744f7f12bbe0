"""A process may die at any call to the engine: what was acknowledged stays, the next one makes it whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from gqe.errors import InputError
from gqe.stores import Connection
from gqe.stores.leases import LEASE_PREFIX, RESERVATION_PREFIX
from stores.engines import Engine, Lance, Postgres, Qdrant, expanders, vectors
from stores.faults import HOWS, Calls, Died, copied, failure, opened, watched
from stores.test_races import records

COUNT = 10
ITEMS = vectors(COUNT, seed=30)
NEW = vectors(20, seed=31)
DEEP = "deep"


class Scenario(NamedTuple):
    """Something that is done to a collection, and what it was prepared by."""

    before: Callable[[Connection], None]
    work: Callable[[Connection], None]


def nothing(items: Connection) -> None:
    pass


def attach(items: Connection) -> None:
    items.attach(expanders()[DEEP], exact=True)


def attached_flat(items: Connection) -> None:
    items.attach(expanders()["flat"], exact=True)


def attach_anew(items: Connection) -> None:
    items.attach(expanders()[DEEP], exact=True, anew=True)


def changed(items: Connection) -> None:
    """Attached, and then some items came, changed and went."""
    attach(items)
    items.upsert(NEW[:2], [100, 101], fields={"year": [1, 1]})
    items.upsert(NEW[2:4], [3, 4], fields={"year": [1, 1]})
    items.remove([0, 5])


def replaced(items: Connection) -> None:
    """Attached, and then nearly everything changed."""
    attach(items)
    items.upsert(NEW[:7], list(range(7)), fields={"year": [1] * 7})


def sync(items: Connection) -> None:
    items.sync()


def detach(items: Connection) -> None:
    items.store.detach()


ATTACHING = {
    "attach": Scenario(nothing, attach),
    "anew": Scenario(attached_flat, attach_anew),
    "sync": Scenario(changed, sync),
    "sync of nearly everything": Scenario(replaced, sync),
    "detach": Scenario(attach, detach),
}


def told(work: Callable[[], object]) -> str:
    """What a user is told if something cannot be done."""
    try:
        work()
    except InputError as error:
        return str(error)
    return ""


def items_of(items: Connection) -> dict[Any, Any]:
    """The user's own items, with their fields."""
    names = np.concatenate(list(items.store.names()))
    found = dict(zip(names.tolist(), items.fetch(names).round(5).tolist(), strict=True))
    every = np.ones((1, items.dimension), dtype=np.float32)
    for year in (1, *range(2000, 2007)):
        here = items.search(every, len(found), expand=False, filter={"year": year}, exact=True).ids[0]
        found |= {name: (found[name], year) for name in here.tolist() if name in found}
    return found


class State(NamedTuple):
    """What a new process sees: the user's items, all records, and whether these are said to be up to date."""

    own: dict[Any, Any]
    records: dict[Any, Any]
    current: bool


def state(engine: Engine, url: str) -> State:
    with opened(engine, url) as items:
        own, about = items_of(items), {"attached": None}
        damage = told(lambda: about.update(items.stats()))
        assert not damage or "--anew" in damage
        if about["attached"] is None:
            return State(own, {}, current=False)
        refusal = told(lambda: items.search(ITEMS[:2], 3))
        assert not refusal or "not finished; run gqe store attach again" in refusal
        current = (about["stage"], about["stale"]) == ("ready", 0)
        assert not (current and refusal)
        return State(own, records(items), current)


def repair(items: Connection) -> None:
    """What a user does next: sync, and what the message says; and again what was asked for."""
    said = told(items.sync)
    assert not said or "run gqe store attach" in said or "--anew" in said
    items.attach(
        expanders()[DEEP], exact=True, anew="--anew" in said or "--anew" in told(lambda: attach(items))
    )


def walk(engine: Engine, name: str, step: int, hows: tuple[str, ...] = HOWS) -> int:
    """Die at every so many calls; returns how often."""
    scenario = ATTACHING[name]
    prepared = engine.create(list(range(COUNT)), ITEMS)
    with opened(engine, prepared) as items:
        scenario.before(items)
    earlier = state(engine, prepared)
    whole = copied(engine, prepared)
    calls = Calls()
    with watched(engine, whole, calls) as items:
        scenario.work(items)
    after = state(engine, whole).records
    with opened(engine, whole) as items:
        attach_anew(items)
        expected = records(items)
    assert after in ({}, expected)
    walked = 0
    for at in range(1, calls.count + 1, step):
        for how in hows:
            where = f"{engine.name}: {name}: {how} call {at} of {calls.count}"
            url = copied(engine, prepared)
            with watched(engine, url, Calls(at, how, failure(engine))) as items:
                try:
                    said = told(lambda items=items: scenario.work(items))
                    assert how == "fail", where
                    assert not said or "no space left on device" in said, where
                except Died:
                    assert how != "fail", where
            found = state(engine, url)
            assert found.own == earlier.own, where
            if found.current:
                assert found.records in (earlier.records, expected), where
            with opened(engine, url) as items:
                repair(items)
                assert records(items) == expected, where
                assert items.stats()["stage"] == "ready"
                assert not [key for key in items.store.read_about() if key.startswith(LEASE_PREFIX)], where
            assert state(engine, url).own == earlier.own, where
            walked += 1
    return walked


def add(items: Connection) -> None:
    items.add(NEW[:3], [100, 101, 102], fields={"year": [1, 1, 1]})


def remove(items: Connection) -> None:
    items.remove([1, 2])


CHANGING = {"add": add, "remove": remove}


def walk_change(engine: Engine, name: str, step: int, hows: tuple[str, ...] = HOWS) -> int:
    """Die at every so many calls of a change of items."""
    change, prepared = CHANGING[name], engine.create(list(range(COUNT)), ITEMS)
    with opened(engine, prepared) as items:
        attach(items)
    before, whole, calls = state(engine, prepared).own, copied(engine, prepared), Calls()
    with watched(engine, whole, calls) as items:
        change(items)
    after, walked = state(engine, whole).own, 0
    with opened(engine, whole) as items:
        attach_anew(items)
        expected = records(items)
    for at in range(1, calls.count + 1, step):
        for how in hows:
            where = f"{engine.name}: {name}: {how} call {at} of {calls.count}"
            url, acknowledged = copied(engine, prepared), False
            with watched(engine, url, Calls(at, how, failure(engine))) as items:
                try:
                    acknowledged = not told(lambda items=items: change(items))
                except Died:
                    assert how != "fail", where
            own = state(engine, url).own
            assert own == after or (own == before and not acknowledged), where  # whole, or absent
            with opened(engine, url) as items:
                said = told(lambda items=items: change(items))
                assert bool(said) == (own == after), where
                assert not said or "is there already" in said or "no item" in said, where
                items.sync()
                assert records(items) == expected, where
                kept = [
                    key
                    for key in items.store.read_about()
                    if key.startswith((LEASE_PREFIX, RESERVATION_PREFIX))
                ]
                assert not kept, where
            walked += 1
    return walked


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gqe.stores.base._MOST_ITEMS", 4)


@pytest.mark.parametrize("name", list(ATTACHING))
def test_some_calls_are_the_last(qdrant: Qdrant, small_batches: None, name: str) -> None:
    assert walk(qdrant, name, 1 if name == "detach" else 29, ("after",)) >= 3


@pytest.mark.parametrize("name", list(CHANGING))
def test_some_calls_of_a_change_in_lancedb_are_the_last(lance: Lance, name: str) -> None:
    assert walk_change(lance, name, 3, ("after",)) >= 1


@pytest.mark.parametrize("name", list(CHANGING))
def test_some_calls_of_a_change_are_the_last(qdrant: Qdrant, postgres: Postgres, name: str) -> None:
    assert walk_change(qdrant, name, 5, ("after",)) >= 1
    assert walk_change(postgres, name, 1, ("after",)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CHANGING))
def test_any_call_of_a_change_is_the_last(engine: Engine, name: str) -> None:
    """Slow: one run for each call, in each engine."""
    assert walk_change(engine, name, 1) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ATTACHING))
def test_any_call_is_the_last(engine: Engine, small_batches: None, name: str) -> None:
    """Slow: one run for each of some hundred calls, in each engine."""
    assert walk(engine, name, 1) >= 3
