"""Between the host's memory and a GPU's, without waiting.

A plain `.to(device)` waits until the GPU has done everything it was given before: the GPU then stands idle
while Python prepares its next piece of work. Through pinned memory copies queue up like any other work.
"""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; a GPU fetches it from the host while the caller goes on.

    Args:
        tensor: of any shape, on any device.
        device: where it is needed.
    """
    if tensor.device == device or device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.contiguous().pin_memory().to(device, non_blocking=True)


class PendingCopy:
    """Tensors on their way into the host's memory: what the GPU is given later does not hold them up.

    Args:
        tensors: of any shape, on any device. What is in the host's memory already is not copied.

    Example:
        >>> arriving = PendingCopy(torch.ones(2))
        >>> arriving.wait()
        (tensor([1., 1.]),)
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._here = tuple(_copy_to_host(tensor) for tensor in tensors)
        self._events = [_end_of_queue(device) for device in {t.device for t in tensors if t.is_cuda}]

    def wait(self) -> tuple[Tensor, ...]:
        """The tensors, as soon as they have arrived."""
        for event in self._events:
            event.synchronize()
        return self._here


def _copy_to_host(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if not tensor.is_cuda:
        return tensor
    here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return here.copy_(tensor, non_blocking=True)


def _end_of_queue(device: torch.device) -> torch.cuda.Event:
    """An event after all that the GPU has been given so far; a thread that waits for it sleeps."""
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
