"""Pictures decoded ahead of the network, by worker processes, in order, with a bounded number at a time.

A worker is a program of its own, not a copy of the process that wants the pictures: a decoder that crashes or
takes too much memory ends only this one, and it ends by itself when the other is gone, however that ended.
By its standard input comes first a pickle of (preprocessing, opening), then for each picture one of (path,
box). Each is answered by a header of four numbers (h, w, length of the rest, whether it is pixels) and the
pixels or the reason why there are none.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np

import gqe
from gqe.errors import InputError
from gqe.extraction.pictures import DecodingOptions, Picture, UnreadablePictureError, open_picture
from gqe.extraction.preprocessing import Preprocessing
from gqe.formats.checks import Array, one_line

logger = logging.getLogger(__name__)
# Decoded pictures that wait for the network, at most: pixels of them all are in memory.
AHEAD = 48
_HEADER = struct.Struct("<QQQ?")


def decode(
    pictures: Sequence[Picture],
    prepare: Preprocessing,
    opening: DecodingOptions,
    workers: int,
    ahead: int = AHEAD,
) -> Generator[Array | str, None, None]:
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
            yield decode_one(picture.path, picture.box, prepare, opening)
        return
    setup = pickle.dumps((prepare, opening))
    idle: list[_Worker] = []

    def decode_in_worker(picture: Picture) -> Array | str:
        try:
            worker = idle.pop()
        except IndexError:
            worker = _Worker(setup)
        answer = worker.ask(picture)
        if answer is not None:
            idle.append(worker)
            return answer
        reason = f"its decoder was ended ({worker.end()})"  # so might be the next one at the same picture
        logger.warning("%s: %s", picture.path, reason)
        return reason

    threads = ThreadPoolExecutor(min(workers, len(pictures)) or 1, "pictures")  # one for each worker
    answers: deque[Future[Array | str]] = deque()
    try:
        for picture in pictures:
            if len(answers) >= ahead:
                yield answers.popleft().result()
            answers.append(threads.submit(decode_in_worker, picture))
        while answers:
            yield answers.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)
        for worker in idle:
            worker.end()


class _Worker:
    """One process of `run_worker`."""

    def __init__(self, setup: bytes) -> None:
        home = str(Path(gqe.__file__).parents[1])
        paths = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from gqe.extraction.decoding import run_worker; run_worker()"],
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
        self.target.write(setup)

    def ask(self, picture: Picture) -> Array | str | None:
        """What it says about a picture; None if it has ended."""
        try:
            self.target.write(pickle.dumps((picture.path, picture.box)))
            self.target.flush()
        except BrokenPipeError:
            return None
        header = self.source.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        height, width, length, good = _HEADER.unpack(header)
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


def decode_one(
    path: str, box: Sequence[float] | None, prepare: Preprocessing, opening: DecodingOptions
) -> Array | str:
    """Prepared pixels (h, w, 3) of a picture, or the reason why there are none."""
    try:
        opened = open_picture(path, box=box, opening=opening, at_least=prepare.at_least)
        return prepare(opened.image, opened.full_side)
    except UnreadablePictureError as error:
        return str(error)
    except MemoryError:
        return "does not fit into memory"
    except Exception as error:  # resizing, say, a picture of one pixel by a million
        return one_line(error)


def _serve(source: IO[bytes], target: IO[bytes]) -> None:
    """Decode pictures until there are no more to come."""
    prepare, opening = pickle.load(source)
    while True:
        try:
            path, box = pickle.load(source)
        except EOFError:
            return
        answer = decode_one(path, box, prepare, opening)
        if isinstance(answer, str):
            content = answer.encode("utf-8", "backslashreplace")
            target.write(_HEADER.pack(0, 0, len(content), False) + content)
        else:
            height, width, _ = answer.shape
            target.write(_HEADER.pack(height, width, answer.nbytes, True))
            target.write(np.ascontiguousarray(answer).data)
        target.flush()


def run_worker() -> None:
    """Decode pictures for another process until it ends; see this module."""
    # What a decoder prints must not get between the answers.
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the other process, which then ends this one
    with suppress(BrokenPipeError):
        _serve(sys.stdin.buffer, answers)
