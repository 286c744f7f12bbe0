"""The same small work on a GPU again and again: recorded once as a CUDA graph, then replayed as a whole.

Two levels of an encoder are about three hundred steps for a single query. A GPU is through with all of them
in 0.4 ms, but Python takes ten times as long to ask for them one by one. A recording asks for all at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache

import torch
from torch import Tensor

log = logging.getLogger(__name__)

# Runs before the recording, in which libraries choose their kernels and take memory of their own.
_WARM_UP = 3
# A process can record one thing at a time, and a recording has one place for its inputs: threads take turns.
_turn = threading.Lock()
# Where the last replay on each GPU was asked for: all use the same memory of libraries.
_last: dict[torch.device, torch.cuda.Stream] = {}


class CudaGraphRunner:
    """A function of tensors on a GPU that always takes the same steps.

    It may neither wait for the GPU nor read anything but its arguments and tensors that stay where they are.
    Whatever cannot be recorded is run step by step, with the same result.

    Args:
        work: gives one tensor. It is kept, and with it the memory of what it reads.
    """

    def __init__(self, work: Callable[..., Tensor]) -> None:
        self._work = work
        self._recordings: dict[tuple[object, ...], _Recording | None] = {}

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The result for these inputs; a recording is made for each combination of shapes and types."""
        if not inputs[0].is_cuda:
            return self._work(*inputs)
        kind = tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        with _turn, torch.cuda.device(inputs[0].device), torch.inference_mode(False), torch.no_grad():
            if kind not in self._recordings:
                self._recordings[kind] = _recorded(self._work, inputs)
            recording = self._recordings[kind]
            if recording is not None:
                return recording.play(inputs)
        return self._work(*inputs)


class _Recording:
    """Steps on a GPU between inputs and a result that have fixed places.

    Args:
        graph: the steps.
        inputs: where they read.
        result: where they write.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, inputs: Sequence[Tensor], result: Tensor) -> None:
        self._graph = graph
        self._inputs = inputs
        self._result = result

    def play(self, inputs: Sequence[Tensor]) -> Tensor:
        """The result for other inputs."""
        now = torch.cuda.current_stream()
        before = _last.setdefault(now.device, now)
        if now != before:
            now.wait_stream(before)
            _last[now.device] = now
        for place, tensor in zip(self._inputs, inputs, strict=True):
            place.copy_(tensor)
        self._graph.replay()
        return self._result.clone()


def _recorded(work: Callable[..., Tensor], inputs: Sequence[Tensor]) -> _Recording | None:
    """A recording of the work, or None if it cannot be recorded."""
    before = torch.cuda.current_stream()
    aside = _side_stream(before.device)
    try:
        places = [tensor.clone() for tensor in inputs]
        aside.wait_stream(before)
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UP):
                work(*places)
        graph = torch.cuda.CUDAGraph()
        with _recording(graph, aside):
            result = work(*places)
        return _Recording(graph, places, result)
    except RuntimeError as error:
        log.warning("single queries are expanded step by step, they could not be recorded: %s", error)
        # Torch's random numbers still believe that they are being recorded, until a recording ends well.
        number = torch.zeros(1, device=before.device)
        with suppress(RuntimeError), _recording(torch.cuda.CUDAGraph(), aside):
            number += 1
        return None


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, aside: torch.cuda.Stream) -> Iterator[None]:
    """Record what is asked for; whatever happens, the current stream is the one it was before."""
    # Only this thread must keep to what can be recorded; others may be using the GPU meanwhile.
    steps = torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local")
    with torch.cuda.stream(torch.cuda.current_stream()), steps:
        yield


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Where recordings are made: one for all, since libraries keep memory for every stream they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
