"""How the threads of torch, faiss and onnxruntime wait for each other: asleep.

By default a thread of theirs that waits for the others keeps its core busy for milliseconds. Where other
programs want the same cores, the one it waits for does not get one, and most of the time goes into waiting.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

_CHOSEN_BY_USER = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def sleep_while_waiting(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let OpenMP's threads sleep while they wait, unless the user chose otherwise.

    OpenMP reads this once, when torch or faiss is loaded; loaded before this package, they stay as they are.
    Processes that are started inherit it.
    """
    if not any(name in environment for name in _CHOSEN_BY_USER):
        environment["OMP_WAIT_POLICY"] = "passive"


def waiting_threads_sleep() -> bool:
    """Whether threads sleep while they wait, as far as the environment says."""
    return os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
