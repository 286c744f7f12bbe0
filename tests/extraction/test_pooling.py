from __future__ import annotations

import torch

from gqe.extraction.resnet import GeM


def test_pooling_matches_the_formula() -> None:
    features = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    pooled = GeM(p=3.0)(features)
    for n in range(2):
        for c in range(3):
            values = [float(v) ** 3 for v in features[n, c].flatten()]
            assert abs(float(pooled[n, c]) - (sum(values) / len(values)) ** (1 / 3)) < 1e-5


def test_large_powers_approach_the_maximum() -> None:
    features = torch.tensor([[[[0.1, 0.5], [0.9, 0.2]]]])
    assert abs(float(GeM(p=60.0)(features)) - 0.9) < 0.03


def test_nothing_seen_gives_the_smallest_value() -> None:
    pooled = GeM()(torch.zeros(1, 2, 3, 3))
    torch.testing.assert_close(pooled, torch.full((1, 2), 1e-6))
