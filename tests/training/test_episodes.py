import numpy as np
import pytest
import torch

from gqe.errors import InputError
from gqe.training.episodes import EpisodeSettings, draw_episode
from gqe.training.spaces import LabelledSet, distort, synthesize

SMALL = EpisodeSettings(queries=24, items=(80, 200), items_both_sides=(60, 120))


def labelled(classes=30, size=12, d=16, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), size)
    centres = rng.normal(size=(classes, d))
    return centres[labels] + 0.3 * rng.normal(size=(len(labels), d)), labels


def test_principal_axes_change_no_cosine():
    x, labels = labelled()
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    made = LabelledSet.of("set", x.astype(np.float32), labels)
    assert np.allclose(made.embeddings @ made.embeddings.T, x @ x.T, atol=1e-5)
    deviations = made.embeddings.std(dim=0)
    assert (deviations.diff() <= 1e-5).all()
    assert np.allclose(made.spectrum, deviations / deviations[0], atol=1e-3)
    assert all(len(set(labels[rows])) == 1 for rows in made.members)
    assert sorted(np.concatenate(made.members)) == list(range(len(x)))


def test_unlabelled_items_are_classes_of_one():
    x, labels = labelled(4, 5)
    labels[-3:] = -1
    assert sorted(len(rows) for rows in LabelledSet.of("set", x, labels).members) == [1, 1, 1, 2, 5, 5, 5]


@pytest.mark.parametrize("labels", [np.arange(9), np.zeros(9, int), np.zeros(8, int), np.zeros(9)])
def test_refuses_labels_that_teach_nothing(labels):
    with pytest.raises(InputError, match="set: labels"):
        LabelledSet.of("set", np.random.default_rng(0).normal(size=(9, 4)), labels)


def test_same_seed_same_episode():
    sets = [LabelledSet.of("set", *labelled())]
    for step in range(8):
        one, two, other = (draw_episode(sets, SMALL, seed) for seed in [(0, step), (0, step), (1, step)])
        assert torch.equal(one.database, two.database)
        assert torch.equal(one.queries, two.queries)
        assert one.database.shape != other.database.shape or not torch.equal(one.database, other.database)


def test_queries_are_asked_of_a_database_that_holds_their_class_but_not_them():
    sets = [LabelledSet.of("set", *labelled())]
    settings = EpisodeSettings(queries=24, items=(80, 200), undistorted=1.0, both_sides=0.0, shares=(1, 0))
    sizes = set()
    for step in range(30):
        episode = draw_episode(sets, settings, (step,))
        assert len(episode.queries) > 0
        assert len(episode.database) == len(episode.labels)
        relevant = episode.query_labels[:, None] == episode.labels
        assert relevant.any(dim=1).all()
        sizes |= set(relevant.sum(dim=1).tolist())
        assert (torch.cdist(episode.queries, episode.database).min(dim=1).values > 1e-4).all()
        assert episode.k in settings.k
    assert min(sizes) == 1
    assert max(sizes) >= 8


def test_sets_and_made_up_spaces_take_turns_as_asked():
    sets = [LabelledSet.of("a", *labelled()), LabelledSet.of("b", *labelled(seed=1))]
    drawn = [draw_episode(sets, SMALL, (step,)).source for step in range(40)]
    assert set(drawn) == {"a", "b", "synthetic"}
    only = EpisodeSettings(queries=8, items=(60, 90), items_both_sides=(60, 90), shares=(0, 1, 0))
    assert {draw_episode(sets, only, (step,)).source for step in range(10)} == {"b"}
    with pytest.raises(InputError, match="shares: expected 3 numbers"):
        draw_episode(sets, EpisodeSettings(shares=(1, 1)), (0,))


def test_spaces_are_finite_and_of_unit_length_and_keep_classes_together():
    for seed in range(25):
        rng, noise = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        labels = np.repeat(np.arange(12), 6)
        x = synthesize(labels, rng, noise, "cpu")
        y = distort(x, None, rng, noise)
        for table in (x, y):
            assert torch.isfinite(table).all()
            assert torch.allclose(table.norm(dim=1), torch.ones(len(table)), atol=1e-4)
        same = torch.from_numpy(labels[:, None] == labels)
        assert (x @ x.T)[same].mean() > (x @ x.T)[~same].mean()
