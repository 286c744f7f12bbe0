from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gqe import Expander, InputError
from gqe.aggregators import Affinity, Alpha, Attention, Identity, Mean, Svm
from gqe.model_files import Model, load_model, save_model
from gqe.query_options import QueryOptions


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    stack = [
        Affinity(k=5, width=16, layers=1, heads=2),
        Attention(dim=8, k=5, layers=1, heads=2, feedforward=16, temperature=0.5),
        Alpha(k=3, alpha=2.0),
        Identity(),
        Svm(k=7, positives=2),
    ]
    about = {
        "training_data": {"space": "none"},
        "validation": [{"epoch": 1, "mAP": 50.0}, {"epoch": 2, "mAP": 51.5}],
        "note": "made for a test",
    }
    return Model(stack, "little", about)


@pytest.fixture
def folder(model: Model, tmp_path: Path) -> Path:
    save_model(tmp_path / "model", model)
    return tmp_path / "model"


def test_a_loaded_model_is_the_saved_one(model: Model, folder: Path) -> None:
    loaded = load_model(folder)
    assert [repr(level) for level in loaded.stack] == [repr(level) for level in model.stack]
    assert (loaded.name, loaded.about) == ("little", model.about)
    for mine, theirs in zip(model.stack, loaded.stack, strict=True):
        for name, tensor in mine.state_dict().items():
            assert torch.equal(tensor, theirs.state_dict()[name]), name
    rng = np.random.default_rng(0)
    database, queries = rng.normal(size=(30, 8)), rng.normal(size=(4, 8))
    np.testing.assert_array_equal(
        Expander(model.stack).fit(database).expand(queries),
        Expander(loaded.stack).fit(database).expand(queries),
    )


def test_the_card_tells_what_it_is_and_what_it_reached(folder: Path) -> None:
    card = (folder / "README.md").read_text()
    assert "# little" in card
    assert "Attention(" in card
    assert "| 2 | 51.5 |" in card
    assert "made for a test" in card


def test_query_options_are_kept(model: Model, tmp_path: Path) -> None:
    for options, written in [
        (QueryOptions(), {"contrast": 0.0}),
        (QueryOptions(contrast=0.4), {"contrast": 0.4}),
        (QueryOptions(rounds=2), {"contrast": 0.0, "rounds": 2}),
    ]:
        save_model(tmp_path, model._replace(query_options=options))
        config = json.loads((tmp_path / "config.json").read_text())
        assert {key: config[key] for key in ("contrast", "rounds") if key in config} == written
        assert load_model(tmp_path).query_options == options
    assert Expander.from_pretrained(tmp_path).query_options.rounds == 2
    _change_config(tmp_path, rounds=17)
    with pytest.raises(InputError, match=r"config\.json: rounds: expected a whole number of at most 16"):
        load_model(tmp_path)
    config.pop("contrast")
    config.pop("rounds")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_model(tmp_path).query_options == QueryOptions()


def test_one_aggregator_on_several_levels(model: Model, tmp_path: Path) -> None:
    shared = model.stack[0]
    save_model(tmp_path, Model([shared, shared], "shared", {}))
    for level in load_model(tmp_path).stack:
        assert torch.equal(level.state_dict()["head.weight"], shared.state_dict()["head.weight"])


def test_only_three_files_are_written(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def _change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def _rewrite_weights(folder: Path, change) -> None:
    """Change the tensors and make the checksum agree, as a careful forger would."""
    import hashlib

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    weights = (folder / "model.safetensors").read_bytes()
    _change_config(folder, checksum=hashlib.blake2b(weights, digest_size=16).hexdigest())


FIRST = "levels.0.head.bias"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
        (lambda f: (f / "config.json").write_text("{"), "JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "not the configuration"),
        (lambda f: _change_config(f, format="other"), "not the configuration"),
        (lambda f: _change_config(f, version=99), "version 99"),
        (lambda f: _change_config(f, levels=[]), "levels"),
        (lambda f: _change_config(f, levels=[{"aggregator": "oracle"}]), "oracle"),
        (lambda f: _change_config(f, levels=[{"aggregator": "mean", "kk": 3}]), "mean"),
        (lambda f: _change_config(f, levels=[{"aggregator": "mean", "k": 3}]), "unknown tensor"),
        (lambda f: _rewrite_weights(f, lambda t: t.pop(FIRST)), f"no tensor {FIRST}"),
        (lambda f: _rewrite_weights(f, lambda t: t.update(extra=torch.ones(1))), "extra"),
        (lambda f: _rewrite_weights(f, lambda t: t.update({FIRST: torch.ones(2)})), "shape"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 100), "damaged"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(folder: Path, damage, told: str) -> None:
    damage(folder)
    with pytest.raises(InputError, match=told) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_every_flipped_byte_of_the_weights_is_noticed(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 50)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(InputError):
            load_model(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"about": []},
        {"about": {"dba": {"k": 3, "temperatures": [None] * 9}}},
        {"about": {"dba": {"temperatures": [None]}}},
        {"name": ["m"]},
        {"levels": "abc"},
        {"levels": [1]},
        {"levels": [{"aggregator": ["mean"], "k": 1}]},
        {"levels": [{"aggregator": "mean", "k": 10**4000}]},
        {"levels": [{"aggregator": "mean", "k": 1}] * 17},
        {"levels": [{"aggregator": "affinity", "k": 3, "width": 16384, "layers": 64, "heads": 1}]},
        {"levels": [{"aggregator": "attention", "dim": 65536, "k": 4000, "feedforward": 131072, "heads": 1}]},
        {"levels": [{"aggregator": "affinity", "k": 3, "layers": 10**9}]},
    ],
)
def test_a_configuration_that_asks_for_too_much_is_refused(tmp_path, change):
    save_model(tmp_path, Model([Mean(2)], "m", {}))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(InputError) as caught:
        load_model(tmp_path)
    assert str(tmp_path) in str(caught.value)
