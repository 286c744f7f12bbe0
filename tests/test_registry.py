"""Every method and every re-ranker by its name, and classes of users beside those of the package."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import gqe
from gqe import Expander, InputError
from gqe.aggregators import AGGREGATORS, Affinity, Aggregator, Alpha, Attention, Mean
from gqe.evaluation import tuning
from gqe.index import Index
from gqe.methods import METHODS, PRETRAINED, defaults, parse_method
from gqe.models import from_method
from gqe.rerank import RERANKERS, Diffusion, Reranker
from gqe.rerank.base import order_results
from gqe.results import SearchResult

DOCS = Path(__file__).parents[1] / "docs"
OURS = [name for name, kind in METHODS.items() if kind.__module__.startswith("gqe.")]
MODELS = sorted(config.parent.name for config in PRETRAINED.glob("*/config.json"))
RERANKED = {
    "csa": "csa:m=20",
    "diffusion": "diffusion:k=4:kq=3",
    "egt": "egt:k=4",
    "gss": "gss:k=4:epochs=2",
    "hybrid-diffusion": "hybrid-diffusion:k=4:kq=3:rank=5",
    "offline-diffusion": "offline-diffusion:k=4:kq=3:truncation=20",
    "reciprocal": "reciprocal:k1=4:k2=2",
    "spectral": "spectral:k=4:kq=3:rank=5",
    "superglobal": "superglobal:k=3:m=20",
}


@pytest.fixture
def world(random_unit):
    return random_unit(60, 8), random_unit(5, 8, seed=1)


def same(found, wanted):
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-5)


@pytest.mark.parametrize("name", [*OURS, *MODELS])
def test_every_method_from_building_to_loading(world, tmp_path, name):
    database, queries = world
    expander = gqe.expander(name, **({"k": 4} if "k" in defaults(name) else {})).fit(database)
    wanted = expander.search(queries, 7)
    Index.build(database, expander, tmp_path / "index")
    index = Index.open(tmp_path / "index")
    same(index.search(queries, 7), wanted)
    same(index.search(queries, 7, expand=False), gqe.expander("none").fit(database).search(queries, 7))
    explained = index.explain(queries, top=3)
    assert explained.ids.shape == (5, 3)
    sums = expander.weights_and_own(queries)
    sums = sums.own[:, None] * queries + sums.items @ database
    np.testing.assert_allclose(
        sums / np.linalg.norm(sums, axis=1, keepdims=True), expander.expand(queries), atol=1e-4
    )
    for saved in (expander, index.expander):
        saved.save_pretrained(tmp_path / "model")
        loaded = Expander.from_pretrained(tmp_path / "model")
        assert repr(loaded.stack) == repr(expander.stack)
        same(loaded.fit(database).search(queries, 7), wanted)


def test_all_re_rankers_are_walked_through():
    assert set(RERANKED) == {name for name, kind in RERANKERS.items() if kind.__module__.startswith("gqe.")}


@pytest.mark.parametrize("text", RERANKED.values())
def test_every_re_ranker_from_building_to_loading(world, tmp_path, text):
    database, queries = world
    expander = from_method(parse_method(f"aqe:k=4+{text}")).fit(database)
    wanted = expander.search(queries, 7)
    Index.build(database, gqe.expander("aqe", k=4), tmp_path / "index")
    index = Index.open(tmp_path / "index")
    same(index.search(queries, 7, rerank=text), wanted)
    assert index.explain(queries, top=3).ids.shape == (5, 3)
    expander.save_pretrained(tmp_path / "model")
    method = parse_method(f"{tmp_path / 'model'}+{text}")
    same(from_method(method).fit(database).search(queries, 7), wanted)
    reranker = expander.reranking.make()
    again = type(reranker)(**reranker.settings())
    assert (repr(again), again.settings()) == (repr(reranker), reranker.settings())
    assert RERANKERS[reranker.name] is type(reranker)
    assert set(reranker.tuning_grid) <= set(reranker.settings())


@pytest.fixture(autouse=True)
def registries():
    """What a test defines is forgotten after it."""
    known = [(registry, dict(registry)) for registry in (AGGREGATORS, METHODS, RERANKERS)]
    yield
    for registry, before in known:
        registry.clear()
        registry.update(before)


@pytest.fixture
def nearest():
    class Nearest(Aggregator):
        """A user's aggregator with a weight of its own for the first neighbours."""

        methods = {"nearest": {"k": 3}, "nearest-g": {"k": 3, "share": 0.25, "levels": 2}}  # noqa: RUF012
        tuning_grid = {"k": (2, 3), "share": (0.1, 0.5)}  # noqa: RUF012

        def __init__(self, k, share=0.5, temperature=None):
            super().__init__(k, temperature)
            self.share = share
            self.scale = torch.nn.Parameter(torch.ones(2))

        def score(self, neighborhood):
            weights = torch.full_like(neighborhood.tokens[:, :, 0], self.share) * self.scale[0]
            return torch.cat([torch.ones_like(weights[:, :1]), weights[:, 1:]], dim=1)

    return Nearest


@pytest.fixture
def backwards():
    class Backwards(Reranker):
        """A user's re-ranker: the first results in reverse."""

        tuning_grid = {"first": (2, 4)}  # noqa: RUF012
        graph_k = 0

        def __init__(self, *, first=3):
            self.first = first

        @property
        def num_candidates(self):
            return self.first

        def size(self):
            return 0

        def fit(self, database, graph, *, device):
            self.n = len(database)
            return self

        def rerank(self, queries, first) -> SearchResult:
            self._check(queries, first, self.n)
            ids = first.ids[:, : self.first]
            return order_results(ids, np.broadcast_to(np.arange(ids.shape[1]), ids.shape), first)

    return Backwards


def test_a_users_aggregator_works_everywhere(world, tmp_path, nearest):
    database, queries = world
    stack = [nearest(4, 0.3), nearest(2)]
    with torch.no_grad():
        stack[1].scale *= 0.5
    expander = Expander(stack, "mine").fit(database)
    wanted = expander.search(queries, 7)
    expander.save_pretrained(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["levels"][0] == {
        "aggregator": "nearest",
        "k": 4,
        "share": 0.3,
        "temperature": None,
    }
    same(Expander.from_pretrained(tmp_path / "model").fit(database).search(queries, 7), wanted)
    same(gqe.expander(str(tmp_path / "model")).fit(database).search(queries, 7), wanted)
    Index.build(database, expander, tmp_path / "index")
    same(Index.open(tmp_path / "index").search(queries, 7), wanted)
    assert repr(gqe.expander("nearest").stack) == "[Nearest(k=3, share=0.5)]"
    method = parse_method("nearest-g:k=2")
    assert str(method) == "nearest-g:k=2:share=0.25:levels=2"
    assert repr(method.stack()) == "[Nearest(k=2, share=0.25), Nearest(k=2, share=0.25)]"
    assert [str(each) for each in tuning.grid(parse_method("nearest"))][:2] == [
        "nearest:k=2:share=0.1",
        "nearest:k=2:share=0.5",
    ]


def test_a_users_re_ranker_works_by_name(world, tmp_path, backwards):
    database, queries = world
    plain = gqe.expander("aqe", k=4).fit(database).search(queries, 7)
    found = gqe.expander("aqe+backwards", k=4).fit(database).search(queries, 7)
    np.testing.assert_array_equal(found.ids[:, :4], plain.ids[:, [2, 1, 0, 3]])
    index = Index.build(database, gqe.expander("aqe", k=4), tmp_path / "index")
    same(index.search(queries, 7, rerank="backwards"), found)
    assert str(parse_method("aqe:k=4+backwards:first=5").reranking) == "backwards:first=5"
    assert [str(each.reranking) for each in tuning.grid(parse_method("backwards"))] == [
        "backwards:first=2",
        "backwards:first=4",
    ]


def refused(stack, folder, message):
    with pytest.raises(InputError, match=message) as caught:
        Expander(stack).save_pretrained(folder)
    assert "\n" not in str(caught.value)
    assert not folder.exists()


def test_what_could_not_be_loaded_again_is_not_saved(tmp_path, world, nearest):
    class Forgetful(nearest):
        def __init__(self, k, other=1):
            super().__init__(k)

    class Changing(nearest):
        def __init__(self, k):
            super().__init__(k + 1)

    class Grown(nearest):
        pass

    class Callback(nearest):
        def __init__(self, k, function):
            super().__init__(k)
            self.function = function

    grown = Grown(3)
    grown.scale = torch.nn.Parameter(torch.ones(3))
    for stack, message in [
        ([Forgetful(3)], "settings of Forgetful do not make it again .*'other'.*; store each argument"),
        ([Changing(3)], "settings of Changing do not make it again"),
        ([Mean(3), grown], "settings of Grown do not make it again .*weights"),
        ([Callback(3, len)], "settings of Callback do not make it again"),
    ]:
        refused(stack, tmp_path / "model", message)
        with pytest.raises(InputError, match=message):
            Index.build(world[0], Expander(stack), tmp_path / "index")


def test_the_name_of_a_class_belongs_to_one_class(tmp_path):
    ours = Mean

    def other():
        class Mean(ours):
            pass

        return Mean

    assert AGGREGATORS["mean"] is Mean
    refused([other()(3)], tmp_path / "model", "'mean' is the name of gqe.*Mean; set another `name`")

    def redefined():
        class Again(Mean):
            pass

        return Again

    old, new = redefined(), redefined()
    refused([old(3)], tmp_path / "model", "make the aggregator again")
    Expander([new(3)]).save_pretrained(tmp_path / "model")
    assert type(Expander.from_pretrained(tmp_path / "model").stack[0]) is new
    del AGGREGATORS["again"]
    with pytest.raises(InputError, match=r"unknown aggregator 'again'; .* import the module that defines"):
        Expander.from_pretrained(tmp_path / "model")


def test_methods_of_the_package_keep_their_names():
    with pytest.raises(InputError, match="'aqe' of Mine is a method already"):

        class Mine(Mean):
            methods = {"aqe": {"k": 3}}  # noqa: RUF012

    with pytest.raises(InputError, match="'theirs' of Theirs gives no default for dim"):

        class Theirs(Attention):
            methods = {"theirs": {"k": 3}}  # noqa: RUF012

    assert METHODS["aqe"] is Mean
    assert "theirs" not in METHODS


def test_a_subclass_is_not_taken_for_safe_in_a_cuda_graph():
    class Waits(Mean):
        def score(self, neighborhood):
            return super().score(neighborhood) * float(neighborhood.mask.sum())

    device = torch.device("cpu")
    assert Mean(3).cuda_graph_safe(device)
    assert Alpha(3).cuda_graph_safe(device)
    assert not Waits(3).cuda_graph_safe(device)
    assert not Affinity(3).cuda_graph_safe(device)
    assert not Attention(8, 3, heads=2).cuda_graph_safe(device)


def test_arguments_may_be_passed_on_to_the_base_class():
    class Passing(Diffusion):
        def __init__(self, *, extra: int = 1, **arguments):
            super().__init__(**arguments)
            self.extra = extra

    made = Passing(k=3, extra=5)
    assert made.settings() == Diffusion(k=3).settings() | {"extra": 5}
    assert Passing.default_settings() == Diffusion.default_settings() | {"extra": 1}
    assert repr(parse_method("none+passing:k=3:extra=5").reranking.make()) == repr(made)


def test_the_aggregator_in_the_docs_works(world):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "expansion.md").read_text(), flags=re.DOTALL)
    exec(next(block for block in blocks if "class First" in block), {"__name__": "__main__"})
    database, queries = world
    weights = gqe.expander("first").fit(database).weights(queries)
    assert weights.nnz == 5
    assert weights.data == pytest.approx(0.5)
    assert AGGREGATORS["first"](k=2, weight=0.25).settings() == {"k": 2, "weight": 0.25, "temperature": None}


def tables_of(page):
    return re.findall(r"(?:^\|.*\n)+", (DOCS / page).read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "names"), [("expansion.md", {*OURS, *MODELS}), ("reranking.md", set(RERANKED))]
)
def test_the_pages_name_all_methods_in_one_table(page, names):
    columns = [re.findall(r"^\| `([a-z-]+)` \|", table, flags=re.MULTILINE) for table in tables_of(page)]
    assert any(names <= set(column) for column in columns)


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_no_blank_line_cuts_a_table(page):
    for table in tables_of(page):
        assert re.match(r".*\n\|[ :|-]+\n", table), table[:80]
