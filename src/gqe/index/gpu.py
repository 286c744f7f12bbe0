"""The device where an index computes: a CPU from the mapped files, a GPU from its own memory where they fit.

Precision on a GPU: neighbours are the exact ones in every storage. Encoders (`Attention`) of an index that
stores everything in 16 bits or fewer compute in bfloat16, while sums stay in float32. As soon as one table is
stored in float32, everything is computed in float32.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache

import torch
from torch import Tensor

from gqe.embeddings import blocks
from gqe.index.tables import Table
from gqe.transfer import to_device

log = logging.getLogger(__name__)

# Runs before the recording, in which libraries choose their kernels and take memory of their own.
_WARM_UP = 3
# A process can record one thing at a time, and a recording has one place for its inputs: threads take turns.
_turn = threading.Lock()
# The stream of the last replay on each GPU: all replays use the same memory of libraries.
_last: dict[torch.device, torch.cuda.Stream] = {}


class DeviceCache:
    """A device and what lies in its memory of one version of an index.

    Args:
        device: where to compute.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = torch.empty(0, device=device).device  # "cuda" with its number, as tensors name it
        self._tables: dict[str, Table | Tensor] = {}

    def table(self, name: str, table: Table) -> Table | Tensor:
        """A table of this version in the memory of the device; as it lies on disk where it does not fit."""
        if name not in self._tables:
            self._tables[name] = _load(table, self.device) if fits_device(self.device, table) else table
        return self._tables[name]


def fits_device(device: torch.device, table: Table) -> bool:
    """Whether a device has memory of its own with room for a table: half of what is free is for the work."""
    if device.type != "cuda":
        return False
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return table.nbytes < (torch.cuda.mem_get_info(device)[0] + unused) // 2


def _load(table: Table, device: torch.device) -> Tensor:
    """All rows on a device; a GPU fetches some while the next ones are read."""
    if device.type != "cuda":
        return table.to(device)
    result = torch.empty(table.shape, dtype=table.dtype, device=device)
    for part in blocks(len(table), table.shape[1] * table.element_size()):
        result[part] = to_device(table[part], device)
    return result


def encoder_type(device: torch.device, storage: Sequence[str]) -> torch.dtype:
    """What encoders compute in, given how the tables of the index are stored."""
    short = device.type == "cuda" and "float32" not in storage
    return torch.bfloat16 if short else torch.float32


class CudaGraphRunner:
    """A function of tensors on a GPU that always takes the same steps: recorded once, then replayed.

    Two levels of an encoder are about three hundred steps for a single query. A GPU completes all of them in
    0.4 ms, but Python takes ten times as long to launch them one by one. A CUDA graph launches all at once.

    The function may neither wait for the GPU nor read anything but its arguments and tensors that stay where
    they are. Whatever cannot be recorded is run step by step, with the same result.

    Args:
        work: gives one tensor; referenced from here on, and with it the memory of what it reads.
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
                self._recordings[kind] = _record(self._work, inputs)
            recording = self._recordings[kind]
            if recording is not None:
                return recording.play(inputs)
        return self._work(*inputs)


class _Recording:
    """Steps on a GPU between inputs and a result in fixed buffers.

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
        for buffer, tensor in zip(self._inputs, inputs, strict=True):
            buffer.copy_(tensor)
        self._graph.replay()
        return self._result.clone()


def _record(work: Callable[..., Tensor], inputs: Sequence[Tensor]) -> _Recording | None:
    """A recording of the work, or None if it cannot be recorded."""
    before = torch.cuda.current_stream()
    aside = _side_stream(before.device)
    try:
        buffers = [tensor.clone() for tensor in inputs]
        aside.wait_stream(before)
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UP):
                work(*buffers)
        graph = torch.cuda.CUDAGraph()
        with _recording(graph, aside):
            result = work(*buffers)
        return _Recording(graph, buffers, result)
    except RuntimeError as error:
        log.warning("single queries are expanded step by step, they could not be recorded: %s", error)
        # Torch's random number generator stays in the state of a recording until one succeeds.
        number = torch.zeros(1, device=before.device)
        with suppress(RuntimeError), _recording(torch.cuda.CUDAGraph(), aside):
            number += 1
        return None


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, aside: torch.cuda.Stream) -> Iterator[None]:
    """Record the work of the block; in any case the current stream is the one it was before."""
    # Only this thread must keep to what can be recorded; others may be using the GPU meanwhile.
    steps = torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local")
    with torch.cuda.stream(torch.cuda.current_stream()), steps:
        yield


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Where recordings are made: one for all, since libraries keep memory for every stream they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
