import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch

from gqe.aggregators import Affinity
from gqe.errors import InputError
from gqe.training.episodes import EpisodeSettings
from gqe.training.loop import ProcessGroup, TrainSettings, train
from gqe.training.ranking import RankingLosses, RankingSettings
from gqe.training.spaces import LabelledSet

EPISODES = EpisodeSettings(queries=12, items=(40, 60), items_both_sides=(40, 60), k=(6,))


def run(process_group):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(16), 8)
    x = rng.normal(size=(16, 12))[labels] + 0.5 * rng.normal(size=(len(labels), 12))
    torch.manual_seed(0)
    stack = [Affinity(6, width=16, layers=1, heads=2, base=base) for base in (False, True)]
    settings = RankingSettings(episodes=3)
    losses = RankingLosses(
        [LabelledSet.of("set", x, labels)], settings, EPISODES, process_group=process_group
    )
    outcome = train(stack, losses, settings=TrainSettings(steps=4), process_group=process_group)
    return torch.cat([p.detach().flatten() for a in outcome.stack for p in a.parameters()]), outcome.loss


def test_two_processes_train_what_one_would(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = []
    for rank in range(2):
        told = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [sys.executable, __file__, str(tmp_path / f"{rank}.pt")]
        processes.append(subprocess.Popen(command, env=os.environ | told | {"OMP_NUM_THREADS": "1"}))
    try:
        assert [process.wait(timeout=120) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    alone, loss = run(ProcessGroup())
    for rank in range(2):
        weights, their_loss = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(weights, alone, atol=1e-5, rtol=0)
        assert their_loss == pytest.approx(loss, abs=1e-5)


def test_several_processes_cannot_stop_early():
    with pytest.raises(InputError, match="patience"):
        train(
            [Affinity(4)],
            lambda stack, step: [],
            settings=TrainSettings(patience=1),
            process_group=ProcessGroup(0, 2),
        )


def test_alone_without_torchrun(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert ProcessGroup.from_environment() == ProcessGroup(0, 1)


if __name__ == "__main__":  # one of the two processes
    torch.save(run(ProcessGroup.from_environment()), sys.argv[1])
