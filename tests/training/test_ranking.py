import math

import torch

from gqe.training.forward import LevelRelevance
from gqe.training.ranking import ranking_terms, relevance_loss


def test_pairs_and_precision_by_plain_loops():
    generator = torch.Generator().manual_seed(0)
    s = torch.randn(4, 9, generator=generator)
    relevant = torch.rand(4, 9, generator=generator) < 0.4
    relevant[:, 0], relevant[:, 1] = True, False
    terms = ranking_terms(s, relevant, temperature=0.7, sharpness=0.05)
    variances = [torch.var(row, correction=0) for row in s]
    spread = math.sqrt(sum(float(v) for v in variances) / 4 + 1e-8)
    for q in range(4):
        positives = [float(v) for v in s[q][relevant[q]]]
        negatives = [float(v) for v in s[q][~relevant[q]]]
        pairs = [math.log1p(math.exp((n - p) / spread / 0.7)) for p in positives for n in negatives]
        assert abs(float(terms.pairs[q]) - sum(pairs) / len(pairs)) < 1e-4

        def step(other, item):
            return 1 / (1 + math.exp(-(other - item) / spread / 0.05))

        precision = 0.0
        for p in positives:
            ahead = 1 + sum(step(o, p) for o in positives if o != p)
            precision += ahead / (ahead + sum(step(n, p) for n in negatives))
        assert abs(float(terms.precision[q]) - (1 - precision / len(positives))) < 1e-4


def test_scale_and_shift_of_a_space_do_not_matter():
    s = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    relevant = torch.arange(20) < 4
    a = ranking_terms(s, relevant.expand(3, 20))
    b = ranking_terms(0.01 * s + 0.7, relevant.expand(3, 20))
    assert torch.allclose(a.pairs, b.pairs, rtol=1e-2)
    assert torch.allclose(a.precision, b.precision, atol=1e-2)


def test_queries_with_nothing_to_rank_are_left_out():
    s = torch.randn(2, 5)
    relevant = torch.tensor([[False] * 5, [True] * 5])
    terms = ranking_terms(s, relevant)
    assert terms.valid.tolist() == [False, False]
    assert torch.isfinite(terms.pairs).all()
    assert torch.isfinite(terms.precision).all()


def test_relevance_loss_ignores_missing_neighbours():
    weights = torch.tensor([[0.9, 0.2, 0.5]])
    level = LevelRelevance(weights, torch.tensor([[True, False, True]]), torch.tensor([[True, True, False]]))
    wanted = -(math.log(0.9) + math.log(0.8)) / 2
    assert abs(float(relevance_loss(level)) - wanted) < 1e-6
    cosines = LevelRelevance(torch.zeros(1, 3), *level[1:])
    assert abs(float(relevance_loss(cosines, probabilities=False)) - math.log(2)) < 1e-6
