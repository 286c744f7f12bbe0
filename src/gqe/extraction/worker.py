"""A process that decodes pictures for another: paths come by standard input, pixels go by standard output.

It is a program of its own, not a copy of the process that wants the pictures: a decoder that crashes or takes
too much memory ends only this one, and it ends by itself when the other is gone, however that ended.

First comes a pickle of (preparation, opening), then for each picture one of (path, box). Each is answered by
a header of four numbers (h, w, length of the rest, whether it is pixels) and the pixels or the reason.
"""

from __future__ import annotations

import pickle
import signal
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

import numpy as np

from gqe.extraction.pictures import Opening, Unreadable, open_picture
from gqe.extraction.preparing import Preparation
from gqe.formats.checks import one_line

HEADER = struct.Struct("<QQQ?")


def decoded(
    path: str, box: Sequence[float] | None, prepare: Preparation, opening: Opening
) -> np.ndarray[Any, Any] | str:
    """Prepared pixels (h, w, 3) of a picture, or the reason why there are none."""
    try:
        opened = open_picture(path, box=box, opening=opening, at_least=prepare.at_least)
        return prepare(opened.image, opened.full_side)
    except Unreadable as error:
        return str(error)
    except MemoryError:
        return "does not fit into memory"
    except Exception as error:  # resizing, say, a picture of one pixel by a million
        return one_line(error)


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """Decode pictures until there are no more to come."""
    prepare, opening = pickle.load(source)
    while True:
        try:
            path, box = pickle.load(source)
        except EOFError:
            return
        answer = decoded(path, box, prepare, opening)
        if isinstance(answer, str):
            content = answer.encode("utf-8", "backslashreplace")
            target.write(HEADER.pack(0, 0, len(content), False) + content)
        else:
            height, width, _ = answer.shape
            target.write(HEADER.pack(height, width, answer.nbytes, True))
            target.write(np.ascontiguousarray(answer).data)
        target.flush()


def main() -> None:
    """Run as a worker."""
    # What a decoder prints must not get between the answers.
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the other process, which then ends this one
    with suppress(BrokenPipeError):
        serve(sys.stdin.buffer, answers)
