"""Pictures decoded ahead of the network, by worker processes, in order, with a bounded number at a time."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import gqe
from gqe.errors import InputError
from gqe.extraction.pictures import Opening
from gqe.extraction.preparing import Preparation
from gqe.extraction.worker import HEADER, decoded

logger = logging.getLogger(__name__)
Pixels: TypeAlias = "np.ndarray[Any, Any]"
# Decoded pictures that wait for the network, at most: pixels of them all are in memory.
AHEAD = 48


class Picture(NamedTuple):
    """A picture to describe.

    Attributes:
        path: Its file.
        name: What it is called in the results.
        box: (left, top, right, bottom) to crop to, or None.
    """

    path: str
    name: str
    box: tuple[float, float, float, float] | None = None


def decode(
    pictures: Sequence[Picture], prepare: Preparation, opening: Opening, workers: int, ahead: int = AHEAD
) -> Iterator[Pixels | str]:
    """Prepared pixels (h, w, 3) of each picture, or the reason why there are none, in order.

    Args:
        pictures: What to decode.
        prepare: For the network.
        opening: How files are opened.
        workers: Processes that decode; 0 to decode here.
        ahead: Most pictures in flight.
    """
    if workers < 1:
        for picture in pictures:
            yield decoded(picture.path, picture.box, prepare, opening)
        return
    team = _Team(pictures, prepare, opening, ahead)
    try:
        team.start(min(workers, len(pictures)))
        yield from team.answers()
    finally:
        team.stop()


class _Team:
    """Workers, each with a thread that feeds it one picture after another."""

    def __init__(
        self, pictures: Sequence[Picture], prepare: Preparation, opening: Opening, ahead: int
    ) -> None:
        self.pictures = pictures
        self.greeting = pickle.dumps((prepare, opening))
        self.next = 0
        self.lock = threading.Lock()
        self.room = threading.Semaphore(ahead)
        self.done: SimpleQueue[tuple[int, Pixels | str | BaseException]] = SimpleQueue()
        self.stopping = False
        self.threads: list[threading.Thread] = []

    def start(self, workers: int) -> None:
        for number in range(workers):
            thread = threading.Thread(target=self._feed, name=f"pictures-{number}", daemon=True)
            self.threads.append(thread)
            thread.start()

    def answers(self) -> Iterator[Pixels | str]:
        early: dict[int, Pixels | str] = {}
        for wanted in range(len(self.pictures)):
            while wanted not in early:
                number, answer = self.done.get()
                if isinstance(answer, BaseException):
                    raise answer
                early[number] = answer
            yield early.pop(wanted)
            self.room.release()

    def stop(self) -> None:
        self.stopping = True
        for _ in self.threads:
            self.room.release()  # whoever waits for room looks up
        for thread in self.threads:
            thread.join()

    def _feed(self) -> None:
        worker = None
        try:
            worker = _Worker(self.greeting)
            while (number := self._take()) is not None:
                answer = worker.ask(self.pictures[number])
                if answer is None:  # it ended; so might the next one at the same picture
                    answer = f"its decoder was ended ({worker.end()})"
                    logger.warning("%s: %s", self.pictures[number].path, answer)
                    worker = _Worker(self.greeting)
                self.done.put((number, answer))
        except BaseException as error:
            self.done.put((-1, error))
        finally:
            if worker is not None:
                worker.end()

    def _take(self) -> int | None:
        self.room.acquire()
        with self.lock:
            if self.stopping or self.next >= len(self.pictures):
                return None
            self.next += 1
            return self.next - 1


class _Worker:
    """One process of `gqe.extraction.worker`."""

    def __init__(self, greeting: bytes) -> None:
        home = str(Path(gqe.__file__).parents[1])
        paths = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from gqe.extraction.worker import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # One thread each: there are as many workers as are wanted.
                env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            )
        except OSError as error:
            raise InputError(
                f"workers: no process can be started ({error.strerror}); use --workers 0"
            ) from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.source, self.target = self.process.stdout, self.process.stdin
        self.target.write(greeting)

    def ask(self, picture: Picture) -> Pixels | str | None:
        """What it says about a picture; None if it has ended."""
        try:
            self.target.write(pickle.dumps((picture.path, picture.box)))
            self.target.flush()
        except BrokenPipeError:
            return None
        header = self.source.read(HEADER.size)
        if len(header) < HEADER.size:
            return None
        height, width, length, good = HEADER.unpack(header)
        content = self.source.read(length)
        if len(content) < length:
            return None
        return np.frombuffer(content, np.uint8).reshape(height, width, 3) if good else content.decode()

    def end(self) -> str:
        """End it; says how it did."""
        for pipe in (self.target, self.source):
            with suppress(BrokenPipeError):
                pipe.close()
        status = self.process.wait()
        return f"signal {-status}" if status < 0 else f"status {status}"
