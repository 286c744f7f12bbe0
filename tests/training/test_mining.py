"""Mining against naive loops over ranked lists."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gqe.errors import InputError
from gqe.training import mining
from gqe.training.mining import draw_pairs, hard_negatives, mine


def unit(n, d=6, seed=0):
    return F.normalize(torch.randn(n, d, generator=torch.Generator().manual_seed(seed)), dim=1)


def naive_negatives(expanded, query_labels, pool, pool_labels, count):
    """Go down each query's ranked list and take what is allowed."""
    similarities = expanded @ pool.T
    result = []
    for row, own in zip(similarities.tolist(), query_labels, strict=True):
        ranked = sorted(range(len(row)), key=lambda place: (-row[place], place))
        chosen, used = [], set()
        for place in ranked:
            label = pool_labels[place]
            if len(chosen) < count and (label == -1 or (label != own and label not in used)):
                chosen.append(place)
                used.add(label)
        result.append(chosen)
    return result


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(5, 40), st.booleans())
def test_hard_negatives_are_those_of_a_walk_down_the_ranked_list(seed, count, size, duplicates):
    generator = torch.Generator().manual_seed(seed)
    expanded, pool = unit(4, seed=seed), unit(size, seed=seed + 1)
    if duplicates:  # exact ties
        pool[size // 2 :] = pool[: size - size // 2].clone()
    labels = torch.randint(-1, 12, (size,), generator=generator).tolist()
    own = torch.randint(-1, 12, (4,), generator=generator).tolist()
    expected = naive_negatives(expanded, own, pool, labels, count)
    if any(len(row) < count for row in expected):
        with pytest.raises(InputError, match="other classes"):
            hard_negatives(expanded, own, pool, labels, count)
    else:
        assert hard_negatives(expanded, own, pool, labels, count).tolist() == expected


def test_blocks_change_nothing(monkeypatch):
    expanded, pool, labels = unit(30), unit(50, seed=1), torch.arange(50) % 9
    whole = hard_negatives(expanded, labels[:30], pool, labels)
    monkeypatch.setitem(mining._BLOCK_BYTES, "cpu", 1)
    assert torch.equal(hard_negatives(expanded, labels[:30], pool, labels), whole)


def test_pairs_are_of_one_class_and_never_an_item_with_itself():
    labels = torch.tensor([3, 3, 7, -1, -1, 5, 5, 5, 5])
    queries, positives = draw_pairs(labels, 4000, generator=torch.Generator().manual_seed(0))
    assert (labels[queries] == labels[positives]).all()
    assert (queries != positives).all()
    counts = torch.bincount(queries, minlength=9)
    assert counts[[2, 3, 4]].sum() == 0  # alone in its class, or in none
    assert counts[[0, 1, 5, 6, 7, 8]].min() > 500  # 667 expected each
    partners_of_5 = torch.bincount(positives[queries == 5], minlength=9)[6:]
    assert partners_of_5.min() > 150  # 222 expected each


def test_mining_uses_the_expanded_query_and_the_drawn_pool():
    x, labels = unit(60), torch.arange(60) % 12
    away = -x  # an expansion that turns everything round
    plain = mine(x, labels, lambda ids: x[ids], tuples=20, generator=torch.Generator().manual_seed(1))
    turned = mine(x, labels, lambda ids: away[ids], tuples=20, generator=torch.Generator().manual_seed(1))
    assert torch.equal(plain.queries, turned.queries)
    assert torch.equal(plain.positives, turned.positives)
    near = (x[plain.queries][:, None] * x[plain.negatives]).sum(-1)
    far = (x[turned.queries][:, None] * x[turned.negatives]).sum(-1)
    assert (near[:, 0] > far[:, 0]).all()
    for found in (plain, turned):
        classes = labels[found.negatives]
        assert (classes != labels[found.queries][:, None]).all()
        assert all(len(set(row)) == 5 for row in classes.tolist())
    assert (near[:, :-1] >= near[:, 1:]).all()


def test_a_pool_is_a_sample_and_a_seed_repeats_it():
    x, labels = unit(500), torch.arange(500) % 100
    draws = [
        mine(x, labels, lambda ids: x[ids], tuples=50, pool=30, generator=torch.Generator().manual_seed(seed))
        for seed in (3, 3, 4)
    ]
    assert all(torch.equal(a, b) for a, b in zip(draws[0], draws[1], strict=True))
    assert not torch.equal(draws[0].queries, draws[2].queries)
    assert len(draws[0].negatives.unique()) <= 30


def test_mistakes_are_named():
    x = unit(6)
    with pytest.raises(InputError, match="no class has two items"):
        draw_pairs([0, 1, 2, -1, -1], 3)
    with pytest.raises(InputError, match=r"pool: only 1 other classes for a query that needs 5"):
        mine(x, [0, 0, 0, 1, 1, 1], lambda ids: x[ids], tuples=4)
    with pytest.raises(InputError, match=r"labels: expected \(6,\) whole numbers"):
        mine(x, [0, 0, 1], lambda ids: x[ids])
    with pytest.raises(InputError, match="labels"):
        draw_pairs([0.5, 0.5], 3)
