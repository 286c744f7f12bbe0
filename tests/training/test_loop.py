import dataclasses

import numpy as np
import pytest
import torch

from gqe.aggregators import Affinity, Attention
from gqe.datasets.base import Benchmark
from gqe.errors import InputError
from gqe.evaluation.benchmark import Bench
from gqe.training.contrastive import ContrastiveLosses, PaperSettings
from gqe.training.episodes import EpisodeSettings
from gqe.training.loop import TrainSettings, one_cycle, train, validate
from gqe.training.ranking import RankingLosses, RankingSettings
from gqe.training.spaces import LabelledSet

EPISODES = EpisodeSettings(queries=16, items=(60, 90), items_both_sides=(60, 80), k=(6,))
SETTINGS = TrainSettings(steps=6, validate_every=3, checkpoint_every=3)
ONE = RankingSettings(episodes=1)
PAPER = PaperSettings(
    k=4, layers=1, heads=2, feedforward=16, epochs=2, refresh=12, batch=4, pool=60, dropout=0.2
)


def arrays(classes=24, size=8, seed=0, spread=0.45):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), size)
    return rng.normal(size=(classes, 12))[labels] + spread * rng.normal(size=(len(labels), 12)), labels


def bench(seed=1):
    x, labels = arrays(seed=seed)
    asked = np.arange(len(x)) % 8 == 0
    return Bench(Benchmark("val", x[asked], x[~asked], (labels[asked], labels[~asked])))


def ranking(classes=24):
    return RankingLosses([LabelledSet.of("set", *arrays(classes))], ONE, EPISODES)


def affinity():
    torch.manual_seed(0)
    return [Affinity(6, width=16, layers=1, heads=2, base=base) for base in (False, True)]


def contrastive():
    x, labels = arrays()
    x = torch.nn.functional.normalize(torch.from_numpy(x).float(), dim=1)
    graph = (x @ x.T - 3 * torch.eye(len(x))).topk(4).indices
    return ContrastiveLosses(x, labels, graph, PAPER)


def attention():
    torch.manual_seed(0)
    return list(PAPER.stack(12))


def weights(stack):
    return torch.cat([p.detach().flatten() for a in stack for p in a.parameters()])


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    ("fresh", "losses", "settings"),
    [(affinity, ranking, SETTINGS), (attention, contrastive, PAPER.settings())],
)
def test_a_killed_training_ends_with_the_same_weights(tmp_path, fresh, losses, settings):
    whole = train(fresh(), losses(), [bench()], settings)
    file = tmp_path / "checkpoint.pt"

    def kill(line):
        if line["step"] == settings.steps:
            raise Killed

    with pytest.raises(Killed):
        train(fresh(), losses(), [bench()], settings, checkpoint=file, report=kill)
    again = train(fresh(), losses(), [bench()], settings, checkpoint=file)
    assert torch.equal(weights(whole.stack), weights(again.stack))
    timeless = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in o.history] for o in (whole, again)
    ]
    assert timeless[0] == timeless[1]


def test_refuses_foreign_checkpoints(tmp_path):
    file = tmp_path / "checkpoint.pt"
    train(affinity(), ranking(), [], SETTINGS, checkpoint=file)
    other = dataclasses.replace(SETTINGS, seed=5)
    with pytest.raises(InputError, match="a checkpoint of other settings"):
        train(affinity(), ranking(), [], other, checkpoint=file)
    fewer = [Affinity(5, width=16, layers=1, heads=2, base=base) for base in (False, True)]
    with pytest.raises(InputError, match="a checkpoint of other settings"):
        train(fewer, ranking(), [], SETTINGS, checkpoint=file)
    with pytest.raises(InputError, match="a checkpoint of other data"):
        train(affinity(), ranking(), [], SETTINGS, checkpoint=file, data="another file")
    file.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="not a checkpoint"):
        train(affinity(), ranking(), [], SETTINGS, checkpoint=file)


def test_training_helps_unseen_classes():
    held_out, stack = bench(), affinity()
    settings = TrainSettings(steps=40, validate_every=40, learning_rate=3e-3)
    before = validate(stack, [held_out])["benchmarks"]["val"]
    trained = train(stack, ranking(60), [held_out], settings).stack
    after = validate(trained, [held_out])["benchmarks"]["val"]
    assert (
        after["qe"]
        > held_out.evaluate([Attention(12, 1, layers=1, heads=1, feedforward=1, temperature=1e-4)]).main
    )
    assert after["dba"] > before["dba"]


def test_it_stops_when_nothing_gets_better():
    settings = TrainSettings(steps=40, validate_every=1, patience=3, learning_rate=1e-12, average=0.0)
    outcome = train(affinity(), ranking(), [bench()], settings)
    assert outcome.steps == 4
    assert outcome.best_step == 1


def test_a_loss_that_is_not_finite_stops_in_one_line():
    def broken(stack, step):
        yield sum(p.sum() for a in stack for p in a.parameters()) * float("nan")

    with pytest.raises(InputError, match="loss is nan at step 0"):
        train(affinity(), broken, [], SETTINGS)


def test_the_paper_begins_only_at_an_epoch():
    with pytest.raises(InputError, match="not the first of an epoch"):
        list(contrastive()(attention(), 1))


def test_the_rate_rises_and_falls():
    rates = [one_cycle(p / 100, 0.1) for p in range(101)]
    assert max(rates) == rates[10] == pytest.approx(1.0)
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == 0.005
