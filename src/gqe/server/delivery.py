"""Answers of a thread, brought to those who wait for them in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from concurrent.futures import Future
from typing import Any


class Delivery:
    """Brings answers that come together by one wake-up of the loop.

    A wake-up for each would hand Python's lock to and fro between the two threads as many times.

    Args:
        loop: Where they are waited for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._called = False

    def awaited(self, answer: Future[Any]) -> asyncio.Future[Any]:
        """The same answer, to be awaited; who gives up waiting takes the job back if it has not begun."""
        waiting = self._loop.create_future()
        waiting.add_done_callback(lambda given_up: answer.cancel() if given_up.cancelled() else None)
        answer.add_done_callback(lambda done: self._put(waiting, done))
        return waiting

    def _put(self, waiting: asyncio.Future[Any], done: Future[Any]) -> None:
        self._done.append((waiting, done))
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._called = False  # before looking: what comes from now on calls again
        while self._done:
            waiting, done = self._done.popleft()
            if waiting.done():
                continue
            if done.cancelled():
                waiting.cancel()
            elif (error := done.exception()) is not None:
                waiting.set_exception(error)
            else:
                waiting.set_result(done.result())
