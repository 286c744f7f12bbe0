"""Leases in the database itself: one attach or sync at a time, and one writer per new id.

A lease is a text among those kept about the attachment. Every process writes its own first and then reads
those of others, so of two that start at the same moment at least one sees the other; a process that sees
another withdraws. The lease of a process that was killed is void: at once on the same machine, elsewhere when
it has expired.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gqe.errors import InputError

if TYPE_CHECKING:
    from gqe.stores.base import Store

LEASE_PREFIX, RESERVATION_PREFIX = "claim.", "insert."
# Seconds until a lease expires, and after which it is renewed.
LEASE_SECONDS, RENEW_SECONDS = 600.0, 30.0
# Ids of one reservation: as checksums they stay below what every engine takes as one text.
_MAX_IDS = 2000
# Keys of the leases that this process holds.
_held: set[str] = set()


class Lease:
    """The right to work on the attachment of a store.

    Args:
        store: the store.
        ids: checksums of the ids that it is restricted to; all items if None.
    """

    prefix = LEASE_PREFIX
    attempts = 4

    def __init__(self, store: Store, ids: set[str] | None = None) -> None:
        self.store = store
        self.ids = ids
        self.key = self.prefix + uuid.uuid4().hex
        self._since = time.time()
        self._written = 0.0

    def acquire(self) -> None:
        """Take the lease, or refuse if another process holds one."""
        _held.add(self.key)
        for attempt in range(self.attempts):
            others = self._others()
            if not others:
                self._write()
                others = self._others()
                if not others:
                    return
                self.store.erase_about([self.key])
            if (
                attempt + 1 < self.attempts
            ):  # both may have started at the same moment: wait for a random time
                time.sleep(random.uniform(0.05, 0.4))
        raise self._refusal(others[0])

    def renew(self) -> None:
        """Extend the lease if that is due; refuses if another process has taken the work over."""
        if time.time() - self._written < RENEW_SECONDS:
            return
        if self._others():
            raise InputError(
                f"{self.store.address}: another attach or sync took the work over, because this one did not"
                " say for long that it was alive; run it again when that one has ended"
            )
        self._write()

    def release(self) -> None:
        """Let others work; where the engine is out of reach, they find out that this process has stopped."""
        _held.discard(self.key)
        with suppress(InputError):
            self.store.erase_about([self.key])

    def _write(self) -> None:
        self._written = time.time()
        content = {
            "host": machine_id(),
            "name": socket.gethostname(),
            "process": os.getpid(),
            "since": self._since,
            "until": self._written + LEASE_SECONDS,
        }
        if self.ids is not None:
            content["ids"] = sorted(self.ids)
        self.store.write_about({self.key: json.dumps(content)})

    def _others(self) -> list[dict[str, Any]]:
        """Valid leases of others that exclude this one; void ones are removed."""
        valid, void = [], []
        for key, text in self.store.read_about(kind=self.prefix.removesuffix(".")).items():
            if key == self.key:
                continue
            other = _parse(text)
            if other is None or not _is_valid(key, other):
                void.append(key)
            elif self.ids is None or not self.ids.isdisjoint(other.get("ids", ())):
                valid.append(other)
        if void:
            self.store.erase_about(void)
        return valid

    def _refusal(self, other: dict[str, Any]) -> InputError:
        begun = time.strftime("%H:%M:%S", time.localtime(other["since"]))
        return InputError(
            f"{self.store.address}: another attach or sync is at work since {begun} (process"
            f" {other['process']} on {other['name']}); wait until it ends, or {_minutes_left(other)} min if"
            " it was killed on another machine"
        )


@contextmanager
def hold_lease(store: Store) -> Iterator[Lease]:
    """Work on the attachment of a store while no other process does."""
    store.prepare_about()
    lease = Lease(store)
    try:
        lease.acquire()
        yield lease
    finally:
        lease.release()


class Reservation(Lease):
    """The right to add some items.

    Args:
        store: the store.
        ids: (p,) their ids.
    """

    prefix = RESERVATION_PREFIX
    attempts = 16

    def __init__(self, store: Store, ids: np.ndarray[Any, Any]) -> None:
        names = [repr(name).encode() for name in ids.tolist()]
        super().__init__(store, {hashlib.blake2b(name, digest_size=8).hexdigest() for name in names})

    def _refusal(self, other: dict[str, Any]) -> InputError:
        return InputError(
            f"{self.store.address}: process {other['process']} on {other['name']} is adding one of these ids;"
            f" look soon whether it is there, or in {_minutes_left(other)} min if that one was killed"
        )


def insert_reserved(
    store: Store,
    ids: np.ndarray[Any, Any],
    vectors: np.ndarray[Any, Any],
    fields: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Write new items where the engine has no insert that refuses an id that exists.

    Of two that reserve the same id at most one goes on, looks whether the id exists and writes the item; the
    other one then finds the id.
    """
    store.prepare_about()
    with ExitStack() as stack:
        for start in range(0, len(ids), _MAX_IDS):
            reservation = Reservation(store, ids[start : start + _MAX_IDS])
            stack.callback(reservation.release)
            reservation.acquire()
        if len(store.existing_ids(ids)):
            raise store.duplicate_error(ids)
        store.upsert(ids, vectors, fields)


def _parse(text: str) -> dict[str, Any] | None:
    types = {"host": str, "name": str, "process": int, "since": float, "until": float}
    try:
        content = json.loads(text)
        return dict(content) | {key: convert(content[key]) for key, convert in types.items()}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _is_valid(key: str, lease: dict[str, Any]) -> bool:
    """Whether a lease of another has not expired and its process, as far as is known, still runs."""
    if lease["until"] < time.time():
        return False
    if lease["host"] != machine_id() or os.name == "nt":  # Windows cannot probe a process by a signal
        return True
    if lease["process"] == os.getpid():
        return key in _held
    try:
        os.kill(lease["process"], 0)
    except (ProcessLookupError, OverflowError):  # no machine has processes of such numbers
        return False
    except OSError:  # of another user
        return True
    return True


def machine_id() -> str:
    """Where process numbers mean the same: a machine since its start, or a container on it."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _minutes_left(lease: dict[str, Any]) -> int:
    return max(1, round((float(lease["until"]) - time.time()) / 60))
