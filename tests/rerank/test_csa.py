"""Contextual similarity aggregation against its formulas, one query and one token at a time."""

from __future__ import annotations

import doctest
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import gqe
from gqe.datasets import town
from gqe.errors import InputError
from gqe.evaluation.benchmark import Bench
from gqe.methods import parse_method, parse_methods
from gqe.neighbors import NeighborGraph
from gqe.rerank import base, csa
from gqe.rerank.csa import Csa, CsaEncoder

CPU = torch.device("cpu")
UNUSED = NeighborGraph(np.empty((0, 0), np.int64), np.empty((0, 0), np.float32))


def random_encoder(seed: int, **settings: int) -> CsaEncoder:
    """An encoder with large random weights everywhere, so that every part of it counts."""
    encoder = CsaEncoder(**{"width": 8, "depth": 2, "heads": 2} | settings)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return encoder.eval()


def norm(x: np.ndarray, layer: torch.nn.LayerNorm) -> np.ndarray:
    x = (x - x.mean()) / np.sqrt(x.var() + layer.eps)
    return x * layer.weight.detach().double().numpy() + layer.bias.detach().double().numpy()


def linear(x: np.ndarray, layer: torch.nn.Linear) -> np.ndarray:
    return layer.weight.detach().double().numpy() @ x + layer.bias.detach().double().numpy()


def literal(encoder: CsaEncoder, query: np.ndarray, results: list[np.ndarray], m: int) -> list[float]:
    """Scores of the first m results: a pre-norm transformer over rows of affinities, written out."""
    tokens = [query, *results]
    anchors = tokens[: encoder.anchors + 1]
    missing = encoder.anchors + 1 - len(anchors)
    x = [linear(np.array([t @ a for a in anchors] + [0.0] * missing), encoder.enter) for t in tokens[: m + 1]]
    size = encoder.width // encoder.heads
    for layer in encoder.layers:
        qkv = [linear(norm(t, layer.norm1), layer.qkv) for t in x]
        heard = [np.zeros(encoder.width) for _ in x]
        for head in range(encoder.heads):
            q, k, v = (
                slice(p * encoder.width + head * size, p * encoder.width + (head + 1) * size)
                for p in range(3)
            )
            for i in range(len(x)):
                weights = np.exp([qkv[i][q] @ other[k] / np.sqrt(size) for other in qkv])
                weights /= weights.sum()
                heard[i][head * size : (head + 1) * size] = sum(
                    w * other[v] for w, other in zip(weights, qkv, strict=True)
                )
        x = [t + linear(h, layer.out) for t, h in zip(x, heard, strict=True)]
        x = [t + linear(np.maximum(linear(norm(t, layer.norm2), layer.up), 0), layer.down) for t in x]
    unit = [t / np.linalg.norm(t) for t in x]
    return [float(unit[0] @ t) for t in unit[1:]]


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def shortened(lists: NeighborGraph, rng: np.random.Generator) -> NeighborGraph:
    cut = np.arange(lists.k) >= rng.integers(0, lists.k + 1, size=(len(lists), 1))
    ids, similarities = lists.ids.copy(), lists.similarities.copy()
    ids[cut], similarities[cut] = -1, -np.inf
    return NeighborGraph(ids, similarities)


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 10),
    width=st.integers(1, 14),
    m=st.integers(1, 14),
    anchors=st.integers(1, 14),
    depth=st.integers(1, 2),
)
def test_equals_the_formulas(seed, n, width, m, anchors, depth):
    rng = np.random.default_rng(seed)
    database, queries = unit(rng.normal(size=(n, 5))), unit(rng.normal(size=(3, 5)))
    first = shortened(gqe.knn(database, width, queries=queries), rng)
    encoder = random_encoder(seed, anchors=anchors, depth=depth)
    method = Csa.of(encoder, m=m).fit(torch.from_numpy(database), UNUSED, device=CPU)
    result = method.rerank(torch.from_numpy(queries), first)
    for row in range(3):
        listed = [int(i) for i in first.ids[row] if i >= 0]
        vectors = [database[i].astype(np.float64) for i in listed]
        wanted = literal(encoder, queries[row].astype(np.float64), vectors, m)
        scores = dict(zip(listed[:m], wanted, strict=True))
        ranked = [int(i) for i in result.ids[row] if i >= 0]
        assert sorted(ranked[: len(scores)]) == sorted(scores)
        assert ranked[len(scores) :] == listed[m:]
        expected = [scores[i] for i in ranked[: len(scores)]]
        assert result.scores[row, : len(scores)] == pytest.approx(expected, abs=1e-5)


def test_a_fresh_encoder_refines_nothing():
    encoder = CsaEncoder(anchors=4, width=8, heads=2)
    given = csa.CsaInput(torch.rand(2, 5, 5), torch.ones(2, 5, dtype=torch.bool))
    assert torch.equal(encoder(given), encoder.enter(given.affinities))


def test_does_not_depend_on_the_batch(random_unit, monkeypatch):
    database, queries = torch.from_numpy(random_unit(80, 8)), torch.from_numpy(random_unit(6, 8, seed=1))
    first = gqe.knn(database, 40, queries=queries)
    method = Csa.of(random_encoder(0, anchors=20), m=30).fit(database, UNUSED, device=CPU)
    together = method.rerank(queries, first)
    monkeypatch.setattr(base, "blocks", lambda n, size: (slice(i, i + 1) for i in range(n)))
    alone = method.rerank(queries, first)
    assert (together.ids == alone.ids).all()
    assert together.scores == pytest.approx(alone.scores, abs=1e-5)


def test_saved_and_loaded_it_ranks_the_same(random_unit, tmp_path):
    database, queries = torch.from_numpy(random_unit(30, 8)), torch.from_numpy(random_unit(4, 8, seed=1))
    first = gqe.knn(database, 30, queries=queries)
    encoder = random_encoder(3, anchors=12)
    encoder.save(tmp_path / "csa.safetensors")
    loaded = Csa(model=str(tmp_path / "csa.safetensors"), m=20)
    assert loaded.settings() == {"model": str(tmp_path / "csa.safetensors"), "m": 20}
    before = Csa.of(encoder, m=20).fit(database, UNUSED, device=CPU).rerank(queries, first)
    after = loaded.fit(database, UNUSED, device=CPU).rerank(queries, first)
    assert (before.ids == after.ids).all()
    assert (before.scores == after.scores).all()


def test_stored_in_16_bits_it_ranks_nearly_the_same(random_unit, tmp_path):
    encoder = random_encoder(3, anchors=12)
    encoder.save(tmp_path / "whole.safetensors")
    encoder.save(tmp_path / "half.safetensors", half=True)
    whole, half = (CsaEncoder.load(tmp_path / f"{name}.safetensors") for name in ("whole", "half"))
    assert (tmp_path / "half.safetensors").stat().st_size < 0.7 * (
        tmp_path / "whole.safetensors"
    ).stat().st_size
    for name, tensor in half.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.allclose(tensor, whole.state_dict()[name], rtol=1e-3, atol=1e-6)


def test_a_file_is_named_like_any_setting(tmp_path):
    path = tmp_path / "csa.safetensors"
    random_encoder(3, anchors=12).save(path)
    one, other = parse_methods(f"none+csa:model={path}:m=5/6")
    assert one.reranking is not None
    assert one.reranking.settings == {"model": str(path), "m": 5}
    assert str(other) == f"none+csa:model={path}:m=6"
    with pytest.raises(InputError, match="no such file"):
        parse_methods("csa:model=nowhere.safetensors")


def test_the_shipped_encoder_helps_in_a_space_it_never_saw():
    bench = Bench(town.load("test"))
    plain, again = (bench.run(parse_method(name)).evaluation.main for name in ("none", "csa"))
    assert again > plain + 2


def test_refuses_broken_and_foreign_files(tmp_path):
    path = tmp_path / "csa.safetensors"
    with pytest.raises(InputError, match=r"^model: "):
        Csa(model="")
    with pytest.raises(InputError, match="no such file"):
        Csa(model=str(path))
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="not a readable"):
        CsaEncoder.load(path)
    save_file({"x": torch.ones(2)}, path)
    with pytest.raises(InputError, match="not a csa model"):
        CsaEncoder.load(path)
    encoder = random_encoder(0, anchors=3)
    encoder.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(InputError, match="checksum"):
        CsaEncoder.load(path)
    tensors, settings = encoder.state_dict(), json.dumps(encoder.settings() | {"width": 16})
    about = {"format": "gqe-csa", "version": "1", "settings": settings}
    save_file(tensors, path, metadata=about | {"checksum": csa._checksum(settings, tensors)})
    with pytest.raises(InputError, match="do not fit"):
        CsaEncoder.load(path)
    save_file(tensors, path, metadata=about | {"version": "2"})
    with pytest.raises(InputError, match="version 2"):
        CsaEncoder.load(path)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"anchors": 0}, "anchors"),
        ({"width": 1.5}, "width"),
        ({"depth": 0}, "depth"),
        ({"heads": 7}, "heads"),
    ],
)
def test_refuses_bad_settings(settings, named):
    with pytest.raises(InputError, match=f"^{named}: "):
        CsaEncoder(**settings)
    with pytest.raises(InputError, match=r"^m: "):
        Csa.of(CsaEncoder(anchors=2, width=8), m=0)


def test_refuses_foreign_results(random_unit):
    database = torch.from_numpy(random_unit(9, 3))
    first = gqe.knn(database, 5, queries=database[:2])
    method = Csa.of(random_encoder(0, anchors=3))
    with pytest.raises(InputError, match="fit"):
        method.rerank(database[:2], first)
    with pytest.raises(InputError, match="outside"):
        method.fit(database[:2], UNUSED, device=CPU).rerank(database[:2], first)
    with pytest.raises(InputError, match=r"^first: "):
        method.fit(database, UNUSED, device=CPU).rerank(database[:3], first)


def test_no_queries_settings_and_example(random_unit):
    encoder = CsaEncoder(anchors=5, width=8, heads=2, depth=1)
    made = Csa.of(encoder, m=7)
    none = NeighborGraph(np.empty((0, 4), np.int64), np.empty((0, 4), np.float32))
    fitted = made.fit(torch.from_numpy(random_unit(5, 3)), UNUSED, device=CPU)
    assert fitted.rerank(torch.empty(0, 3), none).ids.shape == (0, 4)
    assert (made.graph_k, made.num_candidates, Csa.of(encoder, m=2).num_candidates) == (0, 7, 5)
    assert made.size() == 4 * sum(p.numel() for p in encoder.parameters())
    assert repr(made) == "Csa(model='', m=7)"
    assert doctest.testmod(csa).failed == 0
