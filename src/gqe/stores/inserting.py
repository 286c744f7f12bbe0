"""Adding items to engines that have no insert which refuses an id that is there.

Whoever adds leaves a reservation of its ids among the texts in `NAME_gqe_about` first, and then looks for
those of others, as claims do: of two that add the same id at the same moment, at most one goes on. It looks
whether the id is there, writes the item and takes its reservation back. The other one then finds the id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from gqe.errors import InputError
from gqe.stores.base import Array, Store, taken
from gqe.stores.claims import RESERVED, Lease, minutes_left

# Ids of one reservation: as checksums they stay below what every engine takes as one text.
_MOST = 2000


class Reservation(Lease):
    """The right to add some items.

    Args:
        store: where.
        ids: (p,) ids.
    """

    prefix = RESERVED
    attempts = 16

    def __init__(self, store: Store, ids: Array) -> None:
        super().__init__(store)
        self._ids = {hashlib.blake2b(repr(name).encode(), digest_size=8).hexdigest() for name in ids.tolist()}

    def more(self) -> dict[str, Any]:
        """See `Lease`."""
        return {"ids": sorted(self._ids)}

    def concerns(self, other: dict[str, Any]) -> bool:
        """See `Lease`."""
        return not self._ids.isdisjoint(other.get("ids", ()))

    def texts(self) -> dict[str, str]:
        """See `Lease`."""
        return self.store.read_about(kind=RESERVED.removesuffix("."))

    def refusal(self, other: dict[str, Any]) -> InputError:
        """See `Lease`."""
        return InputError(
            f"{self.store.address}: process {other['process']} on {other['name']} is adding one of these ids;"
            f" look soon whether it is there, or in {minutes_left(other)} min if that one was killed"
        )


def insert_reserved(
    store: Store, ids: Array, vectors: Array, fields: Mapping[str, Sequence[Any]] | None = None
) -> None:
    """Write new items; refuses those that are there, or that somebody else is adding."""
    store.prepare_about()
    with ExitStack() as held:
        for start in range(0, len(ids), _MOST):
            reservation = Reservation(store, ids[start : start + _MOST])
            held.callback(reservation.give_back)
            reservation.take()
        if len(store.existing(ids)):
            raise taken(store, ids)
        store.upsert(ids, vectors, fields)
