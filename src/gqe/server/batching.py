"""Jobs that arrive at the same time are processed as one batch by one thread."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


class Busy(Exception):
    """A job cannot be done now, but may be later."""


class _Entry(NamedTuple, Generic[Job, Result]):
    job: Job
    size: int
    future: Future[Result]


class Batcher(Generic[Job, Result]):
    """A thread that takes all jobs in its queue as one batch.

    While a batch is processed, the next one gathers. After a batch of several jobs the thread waits a moment
    for as many again: their clients are likely to come back. A single job never waits.

    Args:
        run: Processes a batch, in the thread. A result may be an exception, for that job alone.
        size: The share of a job in a batch.
        max_batch: Largest batch; a larger job is a batch of its own.
        wait: Seconds to wait for more jobs.
        max_queue: Jobs that may wait.
        name: Of the thread.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Job]], Sequence[Result | Exception]],
        *,
        size: Callable[[Job], int] = lambda _: 1,
        max_batch: int = 64,
        wait: float = 0.003,
        max_queue: int = 1024,
        name: str = "batches",
    ) -> None:
        self._run, self._size, self._max_batch, self._wait = run, size, max_batch, wait
        self._queue: queue.Queue[_Entry[Job, Result] | None] = queue.Queue(max_queue)
        self._next: _Entry[Job, Result] | None = None
        self._expected = 1
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Future[Result]:
        """Add a job to the queue.

        Raises:
            Busy: The queue is full, or the batcher is closed.
        """
        entry = _Entry[Job, Result](job, self._size(job), Future())
        with self._lock:  # nothing may follow the None that ends the queue
            if self._closed:
                raise Busy("the service is ending")
            try:
                self._queue.put_nowait(entry)
            except queue.Full:
                raise Busy("too many requests are waiting") from None
        return entry.future

    def qsize(self) -> int:
        """About how many jobs wait."""
        return self._queue.qsize()

    def close(self) -> None:
        """Take no more jobs, and return when all submitted ones are done."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (batch := self._gather()) is not None:
            self._expected = len(batch)
            batch = [entry for entry in batch if entry.future.set_running_or_notify_cancel()]
            if not batch:
                continue
            try:
                results = self._run([entry.job for entry in batch])
            except Exception as error:
                results = [error] * len(batch)
            for entry, result in zip(batch, results, strict=True):
                if isinstance(result, Exception):
                    entry.future.set_exception(result)
                else:
                    entry.future.set_result(result)

    def _gather(self) -> list[_Entry[Job, Result]] | None:
        """The next batch; None at the end."""
        first, self._next = self._next or self._queue.get(), None
        if first is None:
            return None
        batch, total = [first], first.size
        deadline = time.monotonic() + self._wait
        while total < self._max_batch:
            left = deadline - time.monotonic() if len(batch) < self._expected else 0.0
            try:
                other = self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if other is None:
                self._queue.put(None)  # read again after this batch
                break
            if total + other.size > self._max_batch:
                self._next = other
                break
            batch.append(other)
            total += other.size
        return batch


class FutureBridge:
    """Like `asyncio.wrap_future`, but results that arrive together wake the event loop only once.

    A wake-up per result would pass Python's lock between the two threads as many times.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def wrap(self, future: Future[Result]) -> asyncio.Future[Result]:
        """An awaitable for a future; cancelling it cancels a job that has not begun."""
        waiter: asyncio.Future[Result] = self._loop.create_future()

        def set_waiter() -> None:
            if waiter.done():
                return
            if future.cancelled():
                waiter.cancel()
            elif (error := future.exception()) is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(future.result())

        def schedule(_: Future[Result]) -> None:
            self._done.append(set_waiter)
            if not self._scheduled:
                self._scheduled = True
                with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                    self._loop.call_soon_threadsafe(self._deliver)

        waiter.add_done_callback(lambda _: future.cancel() if waiter.cancelled() else None)
        future.add_done_callback(schedule)
        return waiter

    def _deliver(self) -> None:
        self._scheduled = False  # first: a result that arrives from now on schedules again
        while self._done:
            self._done.popleft()()
