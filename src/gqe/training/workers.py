"""Several processes that train one model: each computes some losses of an update, and they add up.

Started by `torchrun --nproc-per-node 4 script.py ...`, which tells every process its number. An update is the
same as that of one process with all the losses, but for rounding.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import distributed, nn


@dataclass(frozen=True)
class Workers:
    """The processes of one training run.

    Attributes:
        rank: number of this process; process 0 validates and writes files.
        count: how many there are.
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def started(cls) -> Workers:
        """Join the other processes; alone if this one was not started by torchrun."""
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls()
        # gloo, because several processes may share one GPU; what is sent is small.
        distributed.init_process_group("gloo")
        return cls(distributed.get_rank(), count)

    def add_up(self, model: nn.Module, numbers: list[float]) -> list[float]:
        """Add up the gradients of all processes in place, and some numbers."""
        if self.count == 1:
            return numbers
        parameters = [p for p in model.parameters() if p.requires_grad]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([part.detach().flatten().float() for part in parts]).cpu()
        told = torch.tensor(numbers, dtype=torch.float64)
        distributed.all_reduce(flat)
        distributed.all_reduce(told)
        flat = flat.to(parameters[0].device)
        sizes = [p.numel() for p in parameters]
        for parameter, part in zip(parameters, torch.split(flat, sizes), strict=True):
            parameter.grad = part.reshape(parameter.shape).to(parameter.dtype)
        return told.tolist()
