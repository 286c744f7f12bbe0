import dataclasses

import numpy as np
import pytest
import torch

from gqe.aggregators.affinity import Affinity
from gqe.errors import InputError
from gqe.evaluation.metrics import average_precision as reference
from gqe.training.episodes import EpisodeSettings
from gqe.training.loop import TrainSettings, one_cycle, train
from gqe.training.spaces import LabelledSet
from gqe.training.validation import Benchmark, average_precision, expanded_precision

EPISODES = EpisodeSettings(queries=16, items=(60, 90), items_both_sides=(60, 80), k=(6,))
SETTINGS = TrainSettings(steps=6, episodes=1, validate_every=3, checkpoint_every=3)


def arrays(classes=24, size=8, seed=0, spread=0.45):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), size)
    return rng.normal(size=(classes, 12))[labels] + spread * rng.normal(size=(len(labels), 12)), labels


def benchmark(seed=1):
    x, labels = arrays(seed=seed)
    asked = np.arange(len(x)) % 8 == 0
    return Benchmark.of("val", x[asked], labels[asked], x[~asked], labels[~asked])


def fresh():
    torch.manual_seed(0)
    return [Affinity(6, width=16, layers=1, heads=2, base=base) for base in (False, True)]


def weights(stack):
    return torch.cat([p.detach().flatten() for a in stack for p in a.parameters()])


def test_a_killed_training_ends_with_the_same_weights(tmp_path):
    sets = [LabelledSet.of("set", *arrays())]
    whole = train(fresh(), sets, [benchmark()], SETTINGS, EPISODES)

    class Killed(Exception):
        pass

    def kill(line):
        if line["step"] == 6:
            raise Killed

    file = tmp_path / "checkpoint.pt"
    with pytest.raises(Killed):
        train(fresh(), sets, [benchmark()], SETTINGS, EPISODES, checkpoint=file, report=kill)
    again = train(fresh(), sets, [benchmark()], SETTINGS, EPISODES, checkpoint=file)
    assert torch.equal(weights(whole.stack), weights(again.stack))
    assert [line["score"] for line in whole.history] == [line["score"] for line in again.history]


def test_refuses_foreign_checkpoints(tmp_path):
    sets, file = [LabelledSet.of("set", *arrays())], tmp_path / "checkpoint.pt"
    train(fresh(), sets, [], SETTINGS, EPISODES, checkpoint=file)
    other = dataclasses.replace(SETTINGS, seed=5)
    with pytest.raises(InputError, match="a checkpoint of other settings"):
        train(fresh(), sets, [], other, EPISODES, checkpoint=file)
    file.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="not a checkpoint"):
        train(fresh(), sets, [], SETTINGS, EPISODES, checkpoint=file)


def test_training_lowers_the_loss_and_helps_unseen_classes():
    sets, held_out = [LabelledSet.of("set", *arrays(60))], benchmark()
    stack = fresh()
    settings = TrainSettings(steps=40, episodes=1, validate_every=40, learning_rate=3e-3)
    before = expanded_precision(stack, held_out)
    outcome = train(stack, sets, [held_out], settings, EPISODES)
    after = expanded_precision(outcome.stack, held_out)
    assert after["qe"] > expanded_precision([], held_out)["qe"]
    assert after["dba"] > before["dba"]


def test_average_precision_is_that_of_the_evaluation():
    generator = torch.Generator().manual_seed(0)
    s = torch.randn(20, 30, generator=generator)
    relevant = torch.rand(20, 30, generator=generator) < 0.2
    relevant[:, 3] = True
    for row, mine, ap in zip(s, relevant, average_precision(s, relevant), strict=True):
        ranks = np.flatnonzero(mine[row.argsort(descending=True)])
        assert float(ap) == pytest.approx(reference(ranks, int(mine.sum())))


def test_sub_benchmarks():
    plain = benchmark()
    few = plain.few_relevant(2)
    assert np.unique(few.database_labels, return_counts=True)[1].tolist() == [2] * 24
    changed = plain.changed(40, 0.3, 0.5)
    assert changed.database.shape == (len(plain.database), 40)
    assert expanded_precision([], changed)["qe"] < expanded_precision([], plain)["qe"]


def test_the_rate_rises_and_falls():
    rates = [one_cycle(p / 100, 0.1) for p in range(101)]
    assert max(rates) == rates[10] == pytest.approx(1.0)
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == 0.005
