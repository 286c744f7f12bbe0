import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gqe.aggregators.affinity import Affinity
from gqe.aggregators.base import Neighborhood
from gqe.aggregators.context import PLACES, QUANTILES, density_rank, list_profiles
from gqe.errors import InputError
from gqe.expansion import expand, expansion_weights
from gqe.neighbors import knn
from gqe.source import MemorySource
from gqe.statistics import (
    adjust_for_noise,
    background,
    neighbor_similarity_quantiles,
    without_outliers,
)

CPU = torch.device("cpu")


def unit_rows(n, d, seed=0):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(x, dim=1)


def trained_looking(base=False, seed=0):
    """A model whose weights are not the smooth ones of the start."""
    torch.manual_seed(seed)
    model = Affinity(k=6, width=16, layers=2, heads=2, base=base)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def literal_neighborhood(query, database, k):
    """Everything of one query, by plain loops."""
    similarity = database @ query
    ids = sorted(range(len(database)), key=lambda i: -float(similarity[i]))[:k]
    lists = []
    for i in ids:
        others = sorted(
            (float(database[i] @ database[j]) for j in range(len(database)) if j != i), reverse=True
        )
        lists.append([others[p - 1] if p <= len(others) else -np.inf for p in PLACES])
    mine = sorted((float(s) for s in similarity), reverse=True)
    lists.insert(0, [mine[p - 1] if p <= len(mine) else -np.inf for p in PLACES])
    tokens = torch.stack([query, *(database[i] for i in ids)])[None]
    ground = background(database)
    grams = (database @ database.T).fill_diagonal_(-torch.inf).tolist()
    every = [sorted(row, reverse=True)[:-1] for row in grams]
    usual = [[rest[p - 1] if p <= len(rest) else -1.0 for p in PLACES] for rest in every]
    usual = torch.from_numpy(np.quantile(usual, np.linspace(0, 1, QUANTILES), axis=0)).float()
    return Neighborhood(
        tokens,
        torch.ones(1, k + 1, dtype=torch.bool),
        base=tokens,
        profiles=torch.tensor([lists]),
        background=adjust_for_noise(torch.stack([ground, ground]), usual),
        quantiles=usual,
    )


def test_hierarchy_gives_what_plain_loops_give():
    database, queries = unit_rows(50, 8), unit_rows(5, 8, seed=1)
    model = trained_looking()
    asked = knn(database, model.graph_k, queries=queries)
    expanded = expand(MemorySource([model], database, device=CPU), queries, asked)
    for query, found in zip(queries, expanded, strict=True):
        with torch.no_grad():
            wanted = model(literal_neighborhood(query, database, 6)).embeddings[0]
        assert torch.allclose(found, wanted, atol=1e-5)


def test_coordinates_do_not_matter_only_similarities_do():
    database, queries = unit_rows(60, 8), unit_rows(7, 8, seed=1)
    turn = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(2))).Q
    wider = torch.cat([torch.eye(8), torch.zeros(8, 5)], dim=1)
    stack = [trained_looking(), trained_looking(base=True, seed=1)]
    asked = knn(database, 32, queries=queries)
    plain = expand(MemorySource(stack, database, device=CPU), queries, asked)
    turned = expand(MemorySource(stack, database @ turn @ wider, device=CPU), queries @ turn @ wider, asked)
    assert torch.allclose(turned, plain @ turn @ wider, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 12), st.integers(1, 40), st.integers(0, 1000))
def test_weights_lie_between_0_and_1_for_any_size(n, k, seed):
    database, queries = unit_rows(n, 6, seed), unit_rows(3, 6, seed + 1)
    stack = [trained_looking(), trained_looking(base=True)]
    for model in stack:
        model.k = k
    asked = knn(database, stack[0].graph_k, queries=queries)
    source = MemorySource(stack, database, device=CPU)
    expanded = expand(source, queries, asked)
    assert torch.isfinite(expanded).all()
    assert torch.allclose(expanded.norm(dim=1), torch.ones(3), atol=1e-5)
    weights = expansion_weights(source, queries, asked)
    rebuilt = weights.items @ database.numpy() + weights.own[:, None] * queries.numpy()
    rebuilt /= np.linalg.norm(rebuilt, axis=1, keepdims=True)
    assert np.allclose(rebuilt, expanded, atol=1e-4)


def test_missing_neighbours_change_nothing():
    model = trained_looking()
    around = literal_neighborhood(unit_rows(1, 8, seed=1)[0], unit_rows(50, 8), 6)
    with torch.no_grad():
        short = model.score(around)
        longer = Neighborhood(
            torch.cat([around.tokens, unit_rows(3, 8)[None]], dim=1),
            torch.cat([around.mask, torch.zeros(1, 3, dtype=torch.bool)], dim=1),
            base=torch.cat([around.tokens, unit_rows(3, 8)[None]], dim=1),
            profiles=torch.cat([around.profiles, torch.zeros(1, 3, len(PLACES))], dim=1),
            background=around.background,
            quantiles=around.quantiles,
        )
        assert torch.allclose(model.score(longer)[:, :7], short, atol=1e-5)
        assert (model.weights(longer)[:, 7:] == 0).all()


def test_starts_as_an_expansion_by_a_few_neighbours():
    torch.manual_seed(0)
    weights = Affinity(k=32).score(literal_neighborhood(unit_rows(1, 8, seed=1)[0], unit_rows(50, 8), 32))[0]
    assert weights[0] == 1
    assert weights[1] > 0.7
    assert weights[10:].max() < 0.2
    assert 2 < weights[1:].sum() < 7


def crowded_database(spread=1.2):
    """Fifty random items and eight that stand closer together, the less the spread the closer."""
    together = unit_rows(1, 8, seed=5) + spread * unit_rows(8, 8, seed=6)
    return torch.nn.functional.normalize(torch.cat([unit_rows(50, 8), together]), dim=1)


def crowded_query():
    return unit_rows(1, 8, seed=5)[0]


def test_a_spot_far_denser_than_the_rest_is_met_with_caution():
    model = Affinity(k=6)
    around = literal_neighborhood(crowded_query(), crowded_database(), 6)
    careful = model.score(around)[0, 1:]
    with torch.no_grad():
        model.caution.zero_()
    assert (model.score(around)[0, 1:] > careful).all()
    elsewhere = literal_neighborhood(unit_rows(1, 8, seed=1)[0], crowded_database(), 6)
    before = model.score(elsewhere)
    with torch.no_grad():
        model.caution.fill_(12.0)
    assert torch.equal(model.score(elsewhere), before)


def test_a_class_of_its_own_among_strangers_is_listened_to():
    model = Affinity(k=6)
    around = literal_neighborhood(crowded_query(), crowded_database(spread=0.1), 6)
    before = model.score(around)
    with torch.no_grad():
        model.caution.fill_(100.0)
    assert torch.equal(model.score(around), before)


def test_a_flat_list_with_nothing_near_is_met_with_caution():
    model = Affinity(k=12)
    flat = literal_neighborhood(unit_rows(1, 200, seed=1)[0], unit_rows(80, 200), 12)
    near = flat._replace(tokens=flat.tokens.clone(), base=flat.base.clone())
    near.tokens[0, 1] = near.base[0, 1] = near.tokens[0, 0]  # the same list with one that is near
    careful, trusting = model.score(flat)[0, 2:], model.score(near)[0, 2:]
    with torch.no_grad():
        model.caution.zero_()
    assert (model.score(flat)[0, 2:] > careful).all()
    assert torch.equal(model.score(near)[0, 2:], trusting)


def test_gradients_reach_every_parameter():
    for base in (False, True):
        model = trained_looking(base).train()
        around = literal_neighborhood(crowded_query(), crowded_database(), 6)
        model(around).embeddings[0, 0].backward()
        idle = [
            name
            for name, p in model.named_parameters()
            if name not in ("prior", "ranks.weight") and not (p.grad is not None and p.grad.abs().max() > 0)
        ]
        assert idle == []
        assert model.prior.grad[1:7].abs().min() > 0


def test_settings_make_it_again():
    model = Affinity(k=5, width=32, layers=1, heads=2, base=True)
    again = Affinity(**model.settings())
    assert again.settings() == model.settings()
    again.load_state_dict(model.state_dict())


def test_says_what_is_wrong():
    with pytest.raises(InputError, match="heads: 3 heads do not divide the width 16"):
        Affinity(width=16, heads=3)
    with pytest.raises(InputError, match="neighborhood"):
        Affinity().score(Neighborhood(unit_rows(3, 4)[None], torch.ones(1, 3, dtype=torch.bool)))


def test_landscape_of_short_lists_and_of_none():
    lists = torch.tensor([[0.9, 0.5], [0.7, -torch.inf], [0.8, 0.1]])
    found = neighbor_similarity_quantiles(lists)
    assert found.shape == (QUANTILES, 2)
    assert found[0].tolist() == pytest.approx([0.7, -1.0])
    assert found[QUANTILES // 2].tolist() == pytest.approx([0.8, 0.1])
    assert found[-1].tolist() == pytest.approx([0.9, 0.5])
    assert neighbor_similarity_quantiles(lists[:0]).tolist() == [[0.0, 0.0]] * QUANTILES


@given(st.integers(1, 60), st.integers(0, 1000))
def test_crowding_is_the_share_of_less_crowded_items(n, seed):
    rng = np.random.default_rng(seed)
    lists = torch.from_numpy(np.sort(rng.uniform(-1, 1, (n, 2)).astype(np.float32))[:, ::-1].copy())
    values = torch.from_numpy(rng.uniform(-1.2, 1.2, (2, 3, 4)).astype(np.float32))
    grid = neighbor_similarity_quantiles(lists)
    found = density_rank(values, grid)
    for place in range(2):
        steps = grid[:, place].double().numpy()
        wanted = np.interp(values[place].double().numpy(), steps, np.linspace(0, 1, QUANTILES))
        if n > 1:
            assert np.allclose(found[place], wanted, atol=2e-3)
    order = values.flatten(1).argsort(dim=1)
    assert (found.flatten(1).gather(1, order).diff(dim=1) >= 0).all()


def test_background_of_random_directions_and_of_a_common_one():
    x = unit_rows(1000, 100)
    middle, spread = background(x)
    assert abs(float(middle)) < 0.01
    assert abs(float(spread) - 0.1) < 0.01
    shifted = torch.nn.functional.normalize(x + torch.nn.functional.one_hot(torch.tensor(0), 100), dim=1)
    assert abs(float(background(shifted)[0]) - 0.5) < 0.03
    assert background(x[:2]).tolist() == pytest.approx([0.0, 0.1])
    assert float(background(x[:1].expand(10, -1))[1]) > 0


def test_profiles_keep_the_places():
    lists = torch.arange(40, 0, -1)[None].float()
    assert list_profiles(lists).tolist() == [[40, 39, 37, 33, 25, 9]]
    assert list_profiles(lists[:, :3]).tolist()[0][:3] == [40, 39, -np.inf]


def test_background_is_measured_among_items_with_company():
    rng = np.random.default_rng(0)
    common = rng.normal(size=64)
    classes = np.repeat(rng.normal(size=(40, 64)) + 0.8 * common, 10, axis=0) + 0.4 * rng.normal(
        size=(400, 64)
    )
    signs = torch.nn.functional.normalize(torch.from_numpy(classes).float(), dim=1)
    beside = torch.cat([signs, unit_rows(1200, 64)])

    def measured(database):
        source = MemorySource([Affinity(4, 8, 1, 1)], database, device=CPU)
        source.statistics.measure(0, source)
        return source.statistics.backgrounds[0]

    alone, diluted = measured(signs), background(beside[::4])
    assert float(alone[0]) > 0.25
    assert abs(float(diluted[0])) < 0.05
    assert measured(beside).tolist() == pytest.approx(alone.tolist(), abs=0.12)


def parted(share, n, seed=0):
    """Lists of n items, of which a share has company."""
    rng = np.random.default_rng(seed)
    near = rng.random(n) < share
    fourth = np.where(near, rng.normal(0.8, 0.05, n), rng.normal(0.3, 0.05, n))
    return torch.from_numpy(np.repeat(fourth[:, None], len(PLACES), axis=1)).float(), near


def test_company_of_few_items_and_of_one_group_is_everybody():
    few, _ = parted(0.5, 200)
    assert without_outliers(few).tolist() == list(range(200))
    one = torch.randn(900, len(PLACES))
    assert without_outliers(one).tolist() == list(range(900))
    assert without_outliers(torch.ones(300, len(PLACES))).tolist() == list(range(300))
    assert without_outliers(one[:0]).tolist() == []
    assert without_outliers(torch.full((300, len(PLACES)), -torch.inf)).tolist() == list(range(300))


@given(st.floats(0.3, 0.7), st.integers(1000, 1400), st.integers(0, 1000))
def test_company_is_the_group_with_near_neighbours(share, n, seed):
    lists, near = parted(share, n, seed)
    assert without_outliers(lists).tolist() == np.flatnonzero(near).tolist()


def test_company_is_at_least_256_and_at_most_1024():
    lists, near = parted(0.05, 2000)
    chosen = without_outliers(lists)
    assert len(chosen) == 256
    assert set(np.flatnonzero(near)) <= set(chosen.tolist())
    lists, near = parted(0.5, 4000)
    chosen = without_outliers(lists)
    assert len(chosen) == 1024
    assert near[chosen].all()
    assert chosen.tolist() == sorted(set(chosen.tolist()))


def first_places(nearest, tenth):
    """Quantiles by its nearest pair, and by how near a tenth of the items have a neighbour."""
    shares = np.linspace(0, 1, QUANTILES)
    column = np.interp(shares, [0, 29 / 32, 1], [0.0, tenth, nearest])
    return torch.from_numpy(np.repeat(column[:, None], len(PLACES), axis=1)).float()


@pytest.mark.parametrize(
    ("nearest", "tenth", "share"),
    [
        (0.99, 0.9, 1.0),  # good descriptors
        (0.475, 0.4, 0.25),  # noise: half as near as twins are, squared
        (0.475, 0.3, 1.0),  # a database of strangers
        (0.475, 0.35625, 0.5),  # between the two
    ],
)
def test_noise_narrows_the_background(nearest, tenth, share):
    grounds = torch.tensor([[0.0, 0.06], [0.05, 0.2]])
    found = adjust_for_noise(grounds, first_places(nearest, tenth))
    assert found[:, 0].tolist() == pytest.approx([0.0, 0.05])
    assert found[:, 1].tolist() == pytest.approx([0.06 * share, 0.2 * share], rel=1e-4)


@pytest.mark.parametrize(
    ("ground", "usual"),
    [
        ([0.0, 0.1], torch.zeros(QUANTILES, len(PLACES))),  # no items
        ([0.0, 0.1], first_places(0.475, 0.4)),  # as near as strangers are by chance
        ([0.9, 0.01], first_places(0.999, 0.99)),  # a crowded space
    ],
)
def test_no_noise(ground, usual):
    assert adjust_for_noise(torch.tensor([ground]), usual)[0].tolist() == pytest.approx(ground)


def test_a_noisy_copy_of_a_database_is_trusted_as_the_database_is():
    rng = np.random.default_rng(0)
    classes = np.repeat(rng.normal(size=(60, 128)), 12, axis=0) + 0.5 * rng.normal(size=(720, 128))
    noisy = unit_of(classes) + 0.8 * rng.normal(size=(720, 128)) / 128**0.5

    def deviation(x):
        source = MemorySource([Affinity(4, 8, 1, 1)], torch.from_numpy(unit_of(x)).float(), device=CPU)
        grounds, quantiles = source.statistics.read(0, source)
        near = float(quantiles[QUANTILES // 2, 0] - grounds[0, 0])
        return near / float(grounds[0, 1]), near / float(source.statistics.backgrounds[0][1])

    clean, noise = deviation(classes), deviation(noisy)
    assert clean[0] == pytest.approx(clean[1], rel=0.35)
    assert noise[1] < 0.75 * clean[1]
    assert noise[0] > 0.75 * clean[0]


def unit_of(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)
