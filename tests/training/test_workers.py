import socket

import numpy as np
import pytest
import torch
from torch import multiprocessing

from gqe.aggregators import Affinity
from gqe.errors import InputError
from gqe.training.episodes import EpisodeSettings
from gqe.training.loop import TrainSettings, train
from gqe.training.ranking import RankingLosses, RankingSettings
from gqe.training.spaces import LabelledSet
from gqe.training.workers import Workers

EPISODES = EpisodeSettings(queries=12, items=(40, 60), items_both_sides=(40, 60), k=(6,))


def run(workers):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(16), 8)
    x = rng.normal(size=(16, 12))[labels] + 0.5 * rng.normal(size=(len(labels), 12))
    torch.manual_seed(0)
    stack = [Affinity(6, width=16, layers=1, heads=2, base=base) for base in (False, True)]
    settings = RankingSettings(episodes=3)
    losses = RankingLosses([LabelledSet.of("set", x, labels)], settings, EPISODES, workers=workers)
    outcome = train(stack, losses, settings=TrainSettings(steps=4), workers=workers)
    return torch.cat([p.detach().flatten() for a in outcome.stack for p in a.parameters()]), outcome.loss


def work(rank, port, results):
    import os

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    weights, loss = run(Workers.started())
    results.put((rank, weights.numpy(), loss))


def test_two_processes_train_what_one_would():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    processes = [context.Process(target=work, args=(rank, port, results)) for rank in range(2)]
    for process in processes:
        process.start()
    told = {rank: (weights, loss) for rank, weights, loss in (results.get() for _ in processes)}
    for process in processes:
        process.join()
    alone, loss = run(Workers())
    for weights, their_loss in told.values():
        np.testing.assert_allclose(weights, alone.numpy(), atol=1e-5)
        assert their_loss == pytest.approx(loss, abs=1e-5)


def test_several_processes_cannot_stop_early():
    with pytest.raises(InputError, match="patience"):
        train(
            [Affinity(4)], lambda stack, step: [], settings=TrainSettings(patience=1), workers=Workers(0, 2)
        )


def test_alone_without_torchrun(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert Workers.started() == Workers(0, 1)
