"""Training of contextual similarity aggregation: its loss against the formula, and that it learns."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch

from gqe.rerank.csa import CsaEncoder, CsaInput
from gqe.training import csa
from gqe.training.csa import CsaLosses, CsaSettings, csa_loss, train_csa
from gqe.training.loop import TrainSettings

SMALL = CsaSettings(m=24)


def made_encoder(seed: int = 0) -> CsaEncoder:
    torch.manual_seed(seed)
    return CsaEncoder(anchors=24, width=16, depth=1, heads=2)


def test_loss_equals_the_formula():
    torch.manual_seed(1)
    encoder = CsaEncoder(anchors=3, width=8, depth=1, heads=2)
    given = CsaInput(torch.rand(3, 6, 4), torch.ones(3, 6, dtype=torch.bool))
    given.mask[0, 4:] = False
    relevant = torch.tensor([[1, 0, 0, 1, 1], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
    settings = CsaSettings(temperature=0.7, faithful=0.4)
    with torch.no_grad():
        loss = float(csa_loss(encoder, given, relevant, settings))
        x = encoder(given).double().numpy()
        back = encoder.back(encoder(given)).double().numpy()
    contrasts, distances = [], []
    for q in range(3):
        good, others = [], 0.0
        for i in range(6):
            if given.mask[q, i]:
                affinities = given.affinities[q, i].double().numpy()
                difference = back[q, i] / np.linalg.norm(back[q, i]) - affinities / np.linalg.norm(affinities)
                distances.append(np.linalg.norm(difference))
            if i and given.mask[q, i]:
                cosine = x[q, 0] @ x[q, i] / np.linalg.norm(x[q, 0]) / np.linalg.norm(x[q, i])
                if relevant[q, i - 1]:
                    good.append(np.exp(cosine / 0.7))
                else:
                    others += np.exp(cosine / 0.7)
        if good:
            contrasts.append(np.mean([-np.log(one / (one + others)) for one in good]))
    # The third query has nothing relevant: it says nothing about ranking.
    assert len(contrasts) == 2
    assert loss == pytest.approx(np.mean(contrasts) + 0.4 * np.mean(distances), abs=1e-5)


def test_training_lowers_the_loss_of_episodes_it_has_not_seen():
    encoder = made_encoder()
    unseen = CsaLosses([], SMALL, seed=99)

    def loss() -> float:
        with torch.no_grad():
            return float(np.mean([float(part) for step in range(8) for part in unseen([encoder], step)]))

    before = loss()
    outcome = train_csa(encoder, [], TrainSettings(steps=40, learning_rate=3e-3), csa=SMALL)
    assert outcome.steps == 40
    assert loss() < before - 0.1
    assert not encoder.training


def test_training_repeats_bit_for_bit():
    states = []
    for _ in range(2):
        encoder = made_encoder()
        train_csa(encoder, [], TrainSettings(steps=3), csa=SMALL)
        states.append(encoder.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_example():
    assert doctest.testmod(csa).failed == 0
