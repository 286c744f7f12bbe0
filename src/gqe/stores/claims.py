"""One attach or sync at a time: whoever works on an attachment claims it, in the database itself.

A claim is a text among those kept about the attachment. Everybody writes its own first and then looks for
others, so of two that come at the same moment at least one sees the other; whoever sees another withdraws.
The claim of a process that was killed counts no longer: at once on the same machine, elsewhere after a while.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gqe.errors import InputError
from gqe.stores.base import Store

PREFIX = "claim."
# Of whoever adds items, see `gqe.stores.inserting`.
RESERVED = "insert."
# Seconds that a claim counts after it was written, and after which it is written anew.
LASTS, RENEWED_AFTER = 600.0, 30.0
# Claims held by this process.
_held: set[str] = set()


class Lease:
    """The right to work on the attachment of a store.

    Args:
        store: whose.
    """

    prefix = PREFIX
    attempts = 4

    def __init__(self, store: Store) -> None:
        self.store = store
        self.key = self.prefix + uuid.uuid4().hex
        self._since = time.time()
        self._written = 0.0

    def take(self) -> None:
        """Lease, or refuse if somebody else is at work."""
        _held.add(self.key)
        for attempt in range(self.attempts):
            others = self._others()
            if not others:
                self._write()
                others = self._others()
                if not others:
                    return
                self.store.erase_about([self.key])
            if attempt + 1 < self.attempts:  # maybe both came at the same moment: who waits longer gives way
                time.sleep(random.uniform(0.05, 0.4))
        raise self.refusal(others[0])

    def refusal(self, other: dict[str, Any]) -> InputError:
        """What to say while somebody else is at work."""
        return _refusal(self.store, other)

    def renew(self) -> None:
        """Write the claim anew if that is due; refuses to go on if another has taken the work over."""
        if time.time() - self._written < RENEWED_AFTER:
            return
        if self._others():
            raise InputError(
                f"{self.store.address}: another attach or sync took the work over, because this one did not"
                " say for long that it was alive; run it again when that one has ended"
            )
        self._write()

    def give_back(self) -> None:
        """Let others work; where the engine is out of reach, they find out that this process has stopped."""
        _held.discard(self.key)
        with contextlib.suppress(InputError):
            self.store.erase_about([self.key])

    def _write(self) -> None:
        self._written = time.time()
        about = self.more() | {
            "host": _machine(),
            "name": socket.gethostname(),
            "process": os.getpid(),
            "since": self._since,
            "until": self._written + LASTS,
        }
        self.store.write_about({self.key: json.dumps(about)})

    def more(self) -> dict[str, Any]:
        """What else a claim says."""
        return {}

    def concerns(self, other: dict[str, Any]) -> bool:
        """Whether the claim of another one excludes this one."""
        return True

    def texts(self) -> dict[str, str]:
        """All claims of this kind, and maybe other texts."""
        return self.store.read_about()

    def _others(self) -> list[dict[str, Any]]:
        """Claims of others that count; those that do not are cleared away."""
        living, dead = [], []
        for key, text in self.texts().items():
            if key.startswith(self.prefix) and key != self.key:
                about = _read(text)
                if about is None or not _alive(key, about):
                    dead.append(key)
                elif self.concerns(about):
                    living.append(about)
        if dead:
            self.store.erase_about(dead)
        return living


@contextmanager
def claimed(store: Store) -> Iterator[Lease]:
    """Work on the attachment of a store, while nobody else does."""
    store.prepare_about()
    claim = Lease(store)
    try:
        claim.take()
        yield claim
    finally:
        claim.give_back()


def _read(text: str) -> dict[str, Any] | None:
    try:
        about = json.loads(text)
        return dict(about) | {
            "host": str(about["host"]),
            "name": str(about["name"]),
            "process": int(about["process"]),
            "since": float(about["since"]),
            "until": float(about["until"]),
        }
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _alive(key: str, about: dict[str, Any]) -> bool:
    if about["until"] < time.time():
        return False
    if about["host"] != _machine():
        return True
    if about["process"] == os.getpid():
        return key in _held
    try:
        os.kill(about["process"], 0)
    except (ProcessLookupError, OverflowError):  # no machine has processes of such numbers
        return False
    except OSError:  # somebody else's
        return True
    return True


def _machine() -> str:
    """Where process numbers mean the same: a machine since its start, or a container on it."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def minutes_left(other: dict[str, Any]) -> int:
    """How long a claim counts if nobody renews it."""
    return max(1, round((float(other["until"]) - time.time()) / 60))


def _refusal(store: Store, other: dict[str, Any]) -> InputError:
    begun = time.strftime("%H:%M:%S", time.localtime(other["since"]))
    return InputError(
        f"{store.address}: another attach or sync is at work since {begun} (process {other['process']} on"
        f" {other['name']}); wait until it ends, or {minutes_left(other)} min if it was killed on another"
        " machine"
    )
