"""The names and settings users type."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gqe
from gqe.aggregators import Alpha, Decay, Identity, Mean, Svm
from gqe.datasets import Benchmark
from gqe.errors import InputError
from gqe.evaluation import LabelGroundTruth
from gqe.evaluation.benchmark import Bench
from gqe.methods import METHODS, defaults, method, parse_method, parse_methods
from gqe.model_files import Model, save_model
from gqe.models import from_method
from gqe.query_options import QueryOptions


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        ("none", "[Identity(k=1)]"),
        ("aqe", "[Mean(k=10)]"),
        ("aqe:k=4:temperature=0.5", "[Mean(k=4, temperature=0.5)]"),
        ("aqewd", "[Decay(k=8)]"),
        ("alpha", "[Alpha(k=48, alpha=3.0)]"),
        ("alpha:alpha=0", "[Alpha(k=48, alpha=0.0)]"),
        ("dqe:k=30:positives=5:negatives=6:c=10", "[Svm(k=30, positives=5, negatives=6, c=10.0)]"),
        ("aqe-g:k=4", "[Mean(k=4), Mean(k=4)]"),
        ("aqe-g:levels=3:k=2", "[Mean(k=2), Mean(k=2), Mean(k=2)]"),
        ("alpha-g:alpha=1.5", "[Alpha(k=10, alpha=1.5), Alpha(k=10, alpha=1.5)]"),
        ("alpha-g:levels=1", "[Alpha(k=10, alpha=3.0)]"),
    ],
)
def test_what_a_name_stacks(text, stack):
    assert repr(parse_method(text).stack()) == stack
    assert not parse_method(text).dba
    assert repr(parse_method(f"dba-{text}").stack()) == stack
    assert parse_method(f"dba-{text}").dba


@pytest.mark.parametrize(
    "aggregator", [Identity(2, 0.5), Mean(3), Decay(4), Alpha(5, 0.5, 2.0), Svm(9, 2, 3)]
)
def test_settings_and_repr_make_an_aggregator_again(aggregator):
    again = type(aggregator)(**aggregator.settings())
    assert repr(again) == repr(aggregator)
    assert repr(eval(repr(aggregator))) == repr(aggregator)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_expands_by_name_with_its_defaults(name, random_unit):
    database, queries = random_unit(30, 8), random_unit(3, 8, seed=1)
    expander = gqe.expander(name)
    assert repr(expander).startswith(f"<Expander {name}: ")
    result = expander.fit(database).expand(queries)
    assert result.shape == (3, 8)
    np.testing.assert_allclose(np.linalg.norm(result, axis=1), 1, atol=1e-5)
    assert repr(expander).endswith("fitted to (30, 8)>")
    assert set(defaults(name)) == set(method(name).settings)


NUMBERS = {
    "k": st.integers(1, 10**6),
    "levels": st.integers(1, 5),
    "positives": st.integers(1, 100),
    "negatives": st.integers(1, 100),
    "alpha": st.floats(0, 1e6) | st.integers(0, 9),
    "c": st.floats(1e-6, 1e6),
    "weight": st.floats(1e-6, 1e6),
    "temperature": st.none() | st.floats(1e-6, 1e6),
    "contrast": st.none() | st.floats(0, 1, exclude_max=True),
    "rounds": st.integers(1, 5),
}


@given(st.data(), st.sampled_from(sorted(METHODS)), st.booleans())
def test_a_method_written_out_reads_back_the_same(data, name, dba):
    keys = data.draw(st.lists(st.sampled_from(sorted(defaults(name))), unique=True)) if defaults(name) else []
    settings = {key: data.draw(NUMBERS[key], label=key) for key in keys}
    made = method(f"dba-{name}" if dba else name, **settings)
    read = parse_method(str(made))
    assert read == made
    assert str(read) == str(made)
    assert repr(read.stack()) == repr(made.stack())


def test_spaces_do_not_matter_and_none_switches_off():
    assert parse_method(" aqe : k = 5 : temperature = none ") == method("aqe", k=5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("apha", "method: 'apha' is unknown; did you mean alpha"),
        ("AQE", "method: 'AQE' is unknown; did you mean aqe"),
        ("aqeg", "did you mean .*aqe-g"),
        ("aqe_g", "did you mean .*aqe-g"),
        ("xyz", "'xyz' is unknown; it can be none, aqe, "),
        ("", "'' is unknown; it can be none"),
        ("dba-alfa", "'alfa' is unknown; did you mean alpha"),
        ("dba-", "'' is unknown"),
        ("dba-dba-aqe", "'dba-aqe' is unknown; did you mean .*aqe"),
        ("alpha:alhpa=3", "alpha: has no setting 'alhpa'; did you mean alpha?"),
        ("aqe:temprature=1", "aqe: has no setting 'temprature'; did you mean temperature?"),
        ("aqe:K=3", "aqe: has no setting 'K'; did you mean k?"),
        ("aqe:alpha=3", "aqe: has no setting 'alpha'; it can be k, temperature, contrast, rounds"),
        ("none:k=3", "none: has no setting 'k'; it has none"),
        ("dba-only-aqe:rounds=0", "rounds: expected a whole number of at least 1"),
        ("aqe:contrast=1", "contrast: expected a number of at least 0 and below 1, such as 0.4, got 1"),
        ("aqe:contrast=-0.1", "contrast: expected a number of at least 0"),
        ("none:contrast=0.1", "none: has no setting 'contrast'"),
        ("aqe:name=3", "aqe: has no setting 'name'"),
        ("aqe:k", "write a setting as NAME=VALUE, not 'k'"),
        ("aqe:", "write a setting as NAME=VALUE, not ''"),
        ("aqe:=3", "has no setting ''"),
        ("aqe:k=abc", "'abc' is not a number"),
        ("aqe:k=", "'' is not a number"),
        ("aqe:k=3=4", "'3=4' is not a number"),
        ("aqe:k=3:k=4", "'k' is given twice"),
        ("aqe:k=0", "k: expected a whole number of at least 1, got 0"),
        ("aqe:k=-1", "k: expected a whole number of at least 1, got -1"),
        ("aqe:k=2.5", "k: expected a whole number of at least 1, got 2.5"),
        ("aqe:k=none", "k: expected a whole number of at least 1, got None"),
        ("alpha:alpha=-1", "alpha: expected a finite number of at least 0, got -1"),
        ("alpha:alpha=nan", "alpha: expected a finite number of at least 0"),
        ("alpha:alpha=inf", "alpha: expected a finite number of at least 0"),
        ("alpha:alpha=1" + "0" * 400, "alpha: expected a finite number of at least 0"),
        ("aqe:temperature=0", "temperature: expected a finite number above 0, got 0"),
        ("aqe:temperature=-2", "temperature: expected a finite number above 0"),
        ("aqe-g:levels=0", "levels: expected a whole number of at least 1"),
        ("alpha-g:levels=1.5", "levels: expected a whole number of at least 1"),
        ("dqe:positives=0", "positives: expected"),
        ("dqe:negatives=0", "negatives: expected"),
        ("dqe:c=0", "c: expected a finite number above 0"),
    ],
)
def test_mistakes_are_named_with_a_remedy(text, message):
    with pytest.raises(gqe.InputError, match=message) as caught:
        parse_method(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "settings"), [("aqe", {"k": True}), ("aqe", {"k": "3"}), ("alpha", {"alpha": "3"})]
)
def test_values_of_the_wrong_type_are_refused(name, settings):
    with pytest.raises(gqe.InputError, match=f"{next(iter(settings))}: expected"):
        gqe.expander(name, **settings)


@pytest.mark.parametrize("name", [None, 3, ["aqe"], Mean(3)])
def test_a_name_must_be_a_string(name):
    with pytest.raises(gqe.InputError, match="expected a name such as 'aqe'"):
        gqe.expander(name)


def test_numpy_numbers_are_numbers():
    assert (
        repr(gqe.expander("alpha", k=np.int64(3), alpha=np.float32(0.5)).stack) == "[Alpha(k=3, alpha=0.5)]"
    )


def test_a_dba_method_searches_the_augmented_database(random_unit):
    database, queries = random_unit(40, 8), random_unit(4, 8, seed=1)
    plain, both = gqe.expander("aqe", k=3).fit(database), gqe.expander("dba-aqe:k=3").fit(database)
    assert np.array_equal(both.search(queries, 5).ids, plain.search(queries, 5, dba=True).ids)
    assert np.array_equal(both.search(queries, 5, dba=False).ids, plain.search(queries, 5).ids)
    only = gqe.expander("dba-only-aqe", k=3).fit(database)
    assert np.allclose(only.expand(queries), queries)
    assert np.allclose(only.augment(), plain.augment())


def test_lists_of_methods():
    texts = [str(each) for each in parse_methods("none, aqe:k=4/8 ,dba-alpha:k=2/3:alpha=1/2,")]
    assert texts[:3] == ["none", "aqe:k=4", "aqe:k=8"]
    pairs = [(2, 1), (2, 2), (3, 1), (3, 2)]
    assert texts[3:] == [f"dba-alpha:k={k}:alpha={alpha}" for k, alpha in pairs]
    for text in ("", " , "):
        with pytest.raises(gqe.InputError, match="methods: none named"):
            parse_methods(text)
    with pytest.raises(gqe.InputError, match="'x' is not a number"):
        parse_methods("aqe:k=4/x")


def test_other_settings_keep_the_rest():
    assert str(parse_method("dba-alpha:k=3:alpha=2").with_settings(k=9, levels=4)) == "dba-alpha:k=9:alpha=2"
    assert parse_method("aqe").active_settings == {"k": 10}
    assert parse_method("dba-aqe").title == "dba-aqe"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("egt", "none+egt"),
        ("aqe:k=4+egt:t=0.3", "aqe:k=4+egt:t=0.3"),
        ("dba-alpha:k=6:alpha=1 + reciprocal:k1=10", "dba-alpha:k=6:alpha=1+reciprocal:k1=10"),
        ("universal+diffusion", "universal+diffusion"),
    ],
)
def test_a_re_ranker_follows_an_expansion(text, written):
    chosen = parse_method(text)
    assert str(chosen) == written
    assert parse_method(str(chosen)) == chosen
    assert chosen.with_settings(k=3).reranking == chosen.reranking


def test_slashes_multiply_on_both_sides_of_a_plus():
    found = [str(each) for each in parse_methods("aqe:k=4/8+egt:t=0.3/0.5,spectral:rank=5/6")]
    assert found == [
        "aqe:k=4+egt:t=0.3",
        "aqe:k=4+egt:t=0.5",
        "aqe:k=8+egt:t=0.3",
        "aqe:k=8+egt:t=0.5",
        "none+spectral:rank=5",
        "none+spectral:rank=6",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dba-egt", "method: 'egt' reorders results; name what augments, as in dba-aqe\\+egt"),
        ("aqe+egt+egt", "only one re-ranker can follow an expansion"),
        ("aqe+egtt", "method: 'aqe\\+egtt' is unknown"),
        ("egt:zz=1", "egt: has no setting 'zz'"),
        ("aqe+egt:t=x", "'x' is not a number"),
        ("reciprocal:k1=0", "k1"),
    ],
)
def test_mistakes_with_re_rankers_are_named(text, message):
    with pytest.raises(InputError, match=message):
        parse_method(text)


def test_the_database_alone_is_augmented(random_unit):
    database, queries = random_unit(50, 8), random_unit(4, 8, seed=1)
    only, both = parse_method("dba-only-aqe:k=3"), parse_method("dba-aqe:k=3")
    assert (only.title, str(only)) == ("dba-only-aqe", "dba-only-aqe:k=3")
    assert parse_method(str(only)) == only
    assert only.with_settings(k=5) == parse_method("dba-only-aqe:k=5")
    augmented = gqe.expander("aqe", k=3).fit(database).augment()
    assert from_method(only).fit(database).augment() == pytest.approx(augmented)
    found = from_method(only).fit(database).search(queries, 50, dba=True)
    assert (found.ids == gqe.knn(augmented, 50, queries=queries).ids).all()
    labels = np.arange(50) % 5
    truth = LabelGroundTruth(labels[:4], labels)
    bench = Bench(Benchmark("made up", queries, database, truth))
    plain = gqe.evaluate(found, truth).main  # items of the same neighbours are equal now: ties
    assert bench.run(only).evaluation.main == pytest.approx(plain)
    assert bench.run(both).evaluation.main != pytest.approx(plain)
    for wrong in ("only-aqe", "dba-only-nothing", "dba-only-egt"):
        with pytest.raises(InputError, match="method: "):
            parse_method(wrong)


@pytest.fixture
def reads(monkeypatch):
    """Names of the files that are read as bytes, in order."""
    names, read_bytes = [], Path.read_bytes

    def read(path):
        names.append(path.name)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    return names


@pytest.mark.parametrize(
    "make",
    [
        lambda: gqe.expander("universal"),
        lambda: gqe.expander("universal+egt", k=8, contrast=0.2),
        lambda: from_method(parse_method("dba-only-universal:k=4+reciprocal:k1=5")),
        lambda: from_method(parse_method("universal").with_settings(k=4, rounds=2)),
        lambda: gqe.Expander.from_pretrained("universal"),
    ],
)
def test_a_model_is_read_from_disk_once(reads, make):
    make()
    assert reads.count("model.safetensors") == 1


def test_a_method_travels_without_the_weights_of_its_model(reads):
    made = parse_method("universal:k=4:rounds=2")
    sent = pickle.dumps(made)
    assert len(sent) < 1000
    received = pickle.loads(sent)
    assert (received, received.query_options) == (made, made.query_options)
    assert repr(received.stack()) == repr(made.stack())
    assert reads.count("model.safetensors") == 2


def test_query_options_come_from_the_settings_and_then_from_the_model(tmp_path):
    save_model(tmp_path / "m", Model([Mean(3)], "m", {}, QueryOptions(contrast=0.25, rounds=3)))
    assert parse_method(str(tmp_path / "m")).query_options == QueryOptions(0.25, 3)
    assert parse_method(f"{tmp_path / 'm'}:rounds=1").query_options == QueryOptions(0.25, 1)
    assert parse_method(f"{tmp_path / 'm'}:contrast=0").query_options == QueryOptions(0, 3)
    assert parse_method(f"dba-only-{tmp_path / 'm'}").query_options == QueryOptions()
    assert parse_method("aqe:rounds=2").query_options == QueryOptions(rounds=2)
    assert gqe.expander(str(tmp_path / "m")).query_options.rounds == 3


ABSURD = (
    "-1",
    "nan",
    "inf",
    "1e400",
    "²",
    "１２",
    "1_000_001",
    "999999999999999999999",
    "9" * 5000,
    "",
    "x",
)


@pytest.mark.parametrize(
    "setting",
    [
        *("aqe:k", "aqe:rounds", "aqe-g:levels", "alpha-g:levels", "dqe:k", "dqe:positives", "dqe:negatives"),
        *("egt:k", "egt:p", "reciprocal:k1", "reciprocal:k2", "diffusion:k", "diffusion:kq"),
        *("diffusion:iterations", "diffusion:truncation", "offline-diffusion:truncation", "spectral:rank"),
        *("hybrid-diffusion:rank", "gss:k", "gss:epochs", "gss:layers", "gss:batch", "gss:m"),
        *("superglobal:m", "superglobal:k", "csa:m", "universal:k"),
    ],
)
def test_no_number_makes_endless_work(setting):
    for number in ABSURD:
        with pytest.raises(gqe.InputError) as caught:
            parse_method(f"{setting}={number}")
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "setting", ["alpha:alpha", "alpha:temperature", "dqe:c", "diffusion:gamma", "aqe:contrast"]
)
def test_no_real_number_is_without_end(setting):
    for number in ("-1", "nan", "inf", "1e400", "²", "9" * 5000, "", "x"):
        with pytest.raises(gqe.InputError):
            parse_method(f"{setting}={number}")


def test_a_list_of_methods_stands_for_a_bounded_number_of_them():
    values = "/".join(map(str, range(1, 300)))
    with pytest.raises(gqe.InputError, match="more than 10,000 methods"):
        parse_methods(f"aqe:k={values}:temperature={values}")
