"""Requests that come at the same time are answered by one call."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

Job = TypeVar("Job")
Answer = TypeVar("Answer")


class Busy(Exception):
    """A job cannot be done now, but may be later."""


class _Waiting(NamedTuple, Generic[Job, Answer]):
    job: Job
    size: int
    future: Future[Answer]


class Batcher(Generic[Job, Answer]):
    """A thread that takes all jobs that wait, as one batch.

    While a batch is worked on, the next one gathers. After a batch of several jobs the worker waits a moment
    for as many again: their senders are likely to come back. A job that is alone never waits.

    Args:
        run: Answers jobs, called by the one thread. An answer may be an exception, for that job alone.
        size: How much of a batch a job takes.
        most: Largest batch; a job that is larger runs alone.
        wait: Seconds to wait for others.
        room: How many jobs may wait.
        name: Of the thread.
        observe: Called with the size of every batch.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Job]], Sequence[Answer | Exception]],
        *,
        size: Callable[[Job], int] = lambda _: 1,
        most: int = 64,
        wait: float = 0.003,
        room: int = 1024,
        name: str = "batches",
        observe: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._run, self._size, self._observe = run, size, observe
        self._most, self._wait = most, wait
        self._queue: queue.Queue[_Waiting[Job, Answer] | None] = queue.Queue(room)
        self._next: _Waiting[Job, Answer] | None = None
        self._expected = 1
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Future[Answer]:
        """Hand a job in.

        Raises:
            Busy: There is no room, or the batcher is closed.
        """
        waiting = _Waiting[Job, Answer](job, self._size(job), Future())
        with self._closing:  # nothing may be put behind the end
            if self._closed:
                raise Busy("the service is ending")
            try:
                self._queue.put_nowait(waiting)
            except queue.Full:
                raise Busy("too many requests are waiting") from None
        return waiting.future

    def waiting(self) -> int:
        """About how many jobs wait."""
        return self._queue.qsize()

    def close(self) -> None:
        """Take no more jobs, and return when all that were handed in are done."""
        with self._closing:
            closed, self._closed = self._closed, True
        if not closed:
            self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            batch = self._gather()
            if batch is None:
                return
            self._expected = len(batch)
            ready = [each for each in batch if each.future.set_running_or_notify_cancel()]
            if ready:
                self._observe(sum(each.size for each in ready))
                self._answer(ready)

    def _gather(self) -> list[_Waiting[Job, Answer]] | None:
        """The next batch; None at the end."""
        first, self._next = self._next or self._queue.get(), None
        if first is None:
            return None
        batch, total = [first], first.size
        until = time.monotonic() + self._wait
        while total < self._most:
            left = until - time.monotonic() if len(batch) < self._expected else 0.0
            try:
                other = self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if other is None:
                self._queue.put(None)  # found again after this batch
                break
            if total + other.size > self._most:
                self._next = other
                break
            batch.append(other)
            total += other.size
        return batch

    def _answer(self, batch: list[_Waiting[Job, Answer]]) -> None:
        try:
            answers = self._run([each.job for each in batch])
        except Exception as error:
            answers = [error] * len(batch)
        for each, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                each.future.set_exception(answer)
            else:
                each.future.set_result(answer)
