"""The paper's loss against plain arithmetic, and its rounds on a toy problem."""

import math

import pytest
import torch
import torch.nn.functional as F

from gqe.errors import InputError
from gqe.training.contrastive import ContrastiveLosses, PaperSettings, contrastive_loss

RECIPE = PaperSettings(
    k=4, layers=1, heads=2, feedforward=16, refresh=48, batch=16, pool=60, learning_rate=3e-3
)


def unit(*shape, seed=0):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def naive(queries, positives, negatives, margin):
    total = 0.0
    for q, p, several in zip(queries.tolist(), positives.tolist(), negatives.tolist(), strict=True):
        for other, y in [(p, 1), *((n, 0) for n in several)]:
            distance = math.dist(q, other)
            total += 0.5 * y * distance**2 + 0.5 * (1 - y) * max(0.0, margin - distance) ** 2
    return total


@pytest.mark.parametrize("margin", [0.71, 1.5])
def test_loss_is_the_formula(margin):
    queries, positives, negatives = unit(4, 3), unit(4, 3, seed=1), unit(4, 5, 3, seed=2)
    loss = contrastive_loss(queries, positives, negatives, margin)
    assert loss.item() == pytest.approx(naive(queries, positives, negatives, margin), rel=1e-5)


def test_a_negative_in_the_same_place_has_a_loss_and_a_finite_gradient():
    q = unit(1, 3).requires_grad_()
    loss = contrastive_loss(q, q.detach(), q.detach()[:, None], 0.71)
    assert loss.item() == pytest.approx(0.5 * 0.71**2, rel=1e-4)
    loss.backward()
    assert torch.isfinite(q.grad).all()


def test_far_negatives_cost_nothing():
    q = torch.tensor([[1.0, 0.0]], requires_grad=True)
    loss = contrastive_loss(q, q.detach(), torch.tensor([[[0.0, 1.0]]]), 0.71)
    assert loss.item() == 0
    loss.backward()
    assert (q.grad == 0).all()


def toy():
    """Eight classes of ten noisy copies, and the graph of their neighbours."""
    centres = unit(8, 6)
    labels = torch.arange(80) % 8
    x = F.normalize(centres[labels] + 0.35 * torch.randn(80, 6, generator=torch.Generator().manual_seed(1)))
    graph = (x @ x.T - 3 * torch.eye(80)).topk(4).indices
    return x, labels, graph


def test_rounds_learn_and_repeat():
    x, labels, graph = toy()

    def train():
        torch.manual_seed(0)
        stack = RECIPE.stack(6)
        optimizer = torch.optim.Adam([p for a in stack for p in a.parameters()], lr=RECIPE.learning_rate)
        generator = torch.Generator().manual_seed(0)
        history = []
        for _ in range(12):
            losses = []
            for loss in ContrastiveLosses(x, labels, graph, RECIPE).round(stack, generator):
                optimizer.zero_grad()
                loss.backward()
                assert all(p.grad.abs().sum() > 0 for aggregator in stack for p in aggregator.parameters())
                optimizer.step()
                losses.append(loss.item())
            assert len(losses) == 3
            history.append(sum(losses))
        return history

    history = train()
    assert sum(history[-3:]) < sum(history[:3])
    assert train() == history


def test_mining_sees_the_model_without_dropout_and_leaves_it_training():
    x, labels, graph = toy()
    stack = PaperSettings(k=4, layers=1, heads=2, feedforward=16, refresh=8, batch=8, dropout=0.5).stack(6)
    recipe = PaperSettings(refresh=8, batch=8)
    modes = []
    score = stack[0].score

    def watched(neighborhood):
        modes.append(stack[0].training)
        return score(neighborhood)

    stack[0].score = watched
    list(ContrastiveLosses(x, labels, graph, recipe).round(stack))
    assert modes == [False, True]


def test_the_papers_settings():
    assert (PaperSettings().k, PaperSettings().levels, PaperSettings().margin, PaperSettings().negatives) == (
        44,
        2,
        0.71,
        5,
    )
    aggregator = RECIPE.stack(6)[0]
    assert (aggregator.k, aggregator.heads, aggregator.feedforward) == (4, 2, 16)


def test_mistakes_are_named():
    with pytest.raises(InputError, match="tuples: expected"):
        contrastive_loss(unit(2, 3), unit(2, 3), unit(2, 3))
    with pytest.raises(InputError, match="margin"):
        contrastive_loss(unit(2, 3), unit(2, 3), unit(2, 5, 3), margin=-1)
