"""Copies between host and GPU that nobody waits for hold what was there when they were asked for."""

from __future__ import annotations

import doctest

import pytest
import torch

from gqe import transfer
from gqe.transfer import PendingCopy, to_device

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_sent_is_what_there_was(device: str) -> None:
    place = torch.empty(0, device=device).device
    table = torch.arange(24).reshape(4, 6)
    for part in (table, table[:, 1:3], table.T, table[:0]):
        there = to_device(part, place)
        assert there.device == place
        assert torch.equal(there.cpu(), part)
    there = to_device(table, place)
    assert to_device(there, place) is there
    assert torch.equal(to_device(there, torch.device("cpu")), table)


@pytest.mark.parametrize("device", DEVICES)
def test_what_arrives_is_what_there_was(device: str) -> None:
    numbers = torch.arange(1000.0, device=device).requires_grad_()
    arriving = PendingCopy(numbers * 2, (numbers > 3)[::2])
    doubled, large = arriving.wait()
    assert doubled.device.type == large.device.type == "cpu"
    assert torch.equal(doubled, torch.arange(1000.0) * 2)
    assert torch.equal(large, torch.arange(0, 1000, 2) > 3)
    assert not doubled.requires_grad


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_later_work_does_not_hold_it_up_or_change_it() -> None:
    large = torch.ones(4096, 4096, device="cuda")
    arriving = [PendingCopy(large * i) for i in range(5)]
    for _ in range(50):
        large = large @ large * 0  # long after the copies were asked for
    for i, copy in enumerate(arriving):
        assert torch.equal(copy.wait()[0], torch.full((4096, 4096), float(i)))


def test_examples() -> None:
    outcome = doctest.testmod(transfer)
    assert outcome.attempted > 0
    assert outcome.failed == 0
