from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import train_trust
from train_trust import Recorded
from trust import Trust, Trusted

from gqe.aggregators import Affinity
from gqe.expansion import expand
from gqe.model_files import Model, save_model
from gqe.neighbors import knn
from gqe.source import MemorySource
from gqe.training.episodes import Episode

CPU = torch.device("cpu")


def options(**changed: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"cautious": True, "database_only": False, "hidden": 0} | changed)


def frozen_model() -> list[Affinity]:
    torch.manual_seed(0)
    stack = [Affinity(6, width=16, layers=1, heads=2, base=base) for base in (False, True)]
    for parameter in torch.nn.ModuleList(stack).parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape)
    return [level.eval() for level in stack]


def episode(items: int = 90) -> Episode:
    torch.manual_seed(1)
    labels = torch.arange(items + 12) % 15
    points = torch.nn.functional.normalize(torch.randn(15, 12)[labels] + torch.randn(items + 12, 12), dim=1)
    return Episode(points[12:], labels[12:], points[:12], labels[:12], 6, True, "points")


def random_trust(hidden: int = 0) -> Trust:
    trust = Trust(hidden)
    for parameter in trust.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return trust.eval()


def searched(each: Episode, stack: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Expanded queries and items by the code that runs any model."""
    graph, near = knn(each.database, 32), knn(each.database, 32, queries=each.queries)
    source = MemorySource(stack, each.database, graph, device=CPU)
    Trusted.of_queries = False
    items = source.augment()
    Trusted.of_queries = True
    return expand(source, each.queries, near), items


@pytest.mark.parametrize("items", [90, 5])
def test_without_a_correction_what_is_recorded_runs_as_the_frozen_model(items: int) -> None:
    given, stack = episode(items), frozen_model()
    each = train_trust.record(given, stack, "cpu")
    untrained = [Trust(), Trust()]
    for expanded in (train_trust.run(each, None, options()), train_trust.run(each, untrained, options())):
        queries, database = searched(given, stack)
        torch.testing.assert_close(expanded.queries, queries, atol=1e-5, rtol=0)
        torch.testing.assert_close(expanded.items, database, atol=1e-5, rtol=0)


@pytest.mark.parametrize("hidden", [0, 7])
@pytest.mark.parametrize("cautious", [True, False])
@pytest.mark.parametrize("database_only", [True, False])
def test_a_corrected_last_level_runs_as_it_does_in_a_stack(
    hidden: int, cautious: bool, database_only: bool
) -> None:
    given, stack = episode(), frozen_model()
    each = train_trust.record(given, stack, "cpu")
    settings = {"hidden": hidden, "cautious": cautious, "database_only": database_only}
    corrected = Trusted.on(stack[1], **settings)
    corrected.trust = random_trust(hidden)
    expanded = train_trust.run(each, [corrected.trust], options(**settings))
    queries, database = searched(given, [stack[0], corrected.eval()])
    # Features are recorded in 16 bits.
    torch.testing.assert_close(expanded.queries, queries, atol=3e-3, rtol=0)
    torch.testing.assert_close(expanded.items, database, atol=3e-3, rtol=0)
    plain = train_trust.run(each, None, options())
    assert torch.equal(plain.queries, expanded.queries) == database_only
    assert (plain.items - expanded.items).abs().max() > 0.02


def test_reciprocal_neighbors_overlap_as_their_sets_do() -> None:
    """Two groups far apart: those of a group are reciprocal neighbours, as far as places are certain."""
    torch.manual_seed(0)
    centres = torch.eye(8)[:2].repeat_interleave(5, dim=0)
    points = torch.nn.functional.normalize(centres + 0.01 * torch.randn(10, 8), dim=1)
    given = Episode(points, torch.arange(10) // 5, points[:1], torch.zeros(1, dtype=torch.int64), 9, True, "")
    each = train_trust.record(given, frozen_model(), "cpu")
    start = 6 + 6  # after what is said of similarity, and of the node's place in the list
    overlap = each.found.pair[1:, :, start]  # of the items, with reciprocal neighbourhoods of four
    torch.testing.assert_close(overlap[:, 4:9].float(), torch.zeros(10, 5), atol=0.05, rtol=0)
    assert bool((overlap[:, :3] > 0.2).all())


def test_kinds_are_left_out_and_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "sets").mkdir()
    for name in ("cars-a", "cars-b", "faces-a"):
        labels = np.repeat(np.arange(25), 8)
        vectors = rng.normal(size=(25, 16))[labels] + rng.normal(size=(len(labels), 16))
        embeddings = np.rint(127 * vectors / np.abs(vectors).max(axis=1, keepdims=True)).astype(np.int8)
        np.savez(tmp_path / "sets" / f"{name}.npz", embeddings=embeddings, labels=labels)
    save_model(tmp_path / "model", Model(list(frozen_model()), "frozen", {}))
    arguments = [
        tmp_path / "sets",
        "--model",
        tmp_path / "model",
        "--out",
        tmp_path / "out",
        "--device",
        "cpu",
    ]
    arguments += ["--databases", 2, "--items", 60, 90, "--queries", 10, "--steps", 2, "--fold", "cars"]
    trained_on: list[list[Recorded]] = []
    train = train_trust.train
    monkeypatch.setattr(train_trust, "train", lambda *given: trained_on.append(given[0]) or train(*given))
    monkeypatch.setattr(sys, "argv", ["train_trust", *map(str, arguments)])
    train_trust.main()
    assert {each.kind for each in trained_on[0]} == {"faces", "synthetic"}
    outcomes = json.loads((tmp_path / "out" / "outcomes.json").read_text())
    assert {name.split()[0] for name in outcomes} == {"cars"}
    for found in outcomes.values():
        assert found["none"][0] == found["none"][1]
        assert len(found["frozen"]) == len(found["trusted"]) == 2
    weights = torch.load(tmp_path / "out" / "fold-0.pt")
    assert any(bool(tensor.any()) for tensor in weights.values())
    assert train_trust.summary(outcomes)[-1].split()[1] == "mean"
