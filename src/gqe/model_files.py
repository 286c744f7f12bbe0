"""A stack on disk: a folder with config.json, model.safetensors and README.md (the model card).

The configuration is written last and carries the checksum of the weights, so a folder that was being
overwritten when the machine stopped is refused instead of mixing two models.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gqe.aggregators import AGGREGATORS, Aggregator
from gqe.aggregators.base import MOST_LEVELS
from gqe.errors import InputError, short_repr
from gqe.formats.atomic import atomic_path
from gqe.formats.checks import wrap_parse_errors
from gqe.query_options import QueryOptions
from gqe.registry import is_ours

FILES = ("model.safetensors", "README.md", "config.json")
FORMAT = "gqe-model"
VERSION = 1


class Model(NamedTuple):
    """A stack with what is known about it.

    Attributes:
        stack: the aggregators, first level first.
        name: how it is called in tables.
        about: training data, settings, validation history, results: whatever the trainer recorded.
        query_options: what is done to queries beside running the stack.
    """

    stack: list[Aggregator]
    name: str
    about: dict[str, Any]
    query_options: QueryOptions = QueryOptions()


class _NoRandomWeights(TorchFunctionMode):
    """Modules made inside keep the memory of their random weights as it is, since weights are loaded next.

    Args:
        shapes_only: have no memory for the weights at all, which are then on the device "meta".
    """

    _DRAWS = frozenset({"uniform_", "normal_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_"})

    def __init__(self, *, shapes_only: bool = False) -> None:
        super().__init__()
        self._shapes_only = shapes_only

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") in self._DRAWS:
            return args[0] if args else kwargs["tensor"]
        if self._shapes_only and function in (torch.empty, torch.randn):
            kwargs = {**kwargs, "device": "meta"}
        return function(*args, **kwargs)


def _make(kind: type[Aggregator], settings: dict[str, Any], *, shapes_only: bool = False) -> Aggregator:
    """An aggregator whose weights are loaded next, or looked at only for their shapes."""
    # Arithmetic on the device "meta" loads PyTorch's compiler, which takes most of a second: what this
    # package computes besides its weights is small.
    elsewhere = torch.device("meta") if shapes_only and not is_ours(kind) else nullcontext()
    with elsewhere, _NoRandomWeights(shapes_only=shapes_only):
        return kind(**settings)


def save_model(folder: str | os.PathLike[str], model: Model, *, half: bool = False) -> None:
    """Write the folder, each file beside its place first and then renamed, the configuration last.

    A stack that could not be loaded again is refused before anything is written (`check_loadable`).

    Args:
        folder: made if it is not there.
        model: what to write.
        half: store the weights as float16, half the size.
    """
    from safetensors.torch import save

    check_loadable(model.stack)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        # A copy, since one aggregator may stand on several levels and files hold no tensor twice.
        name: t.detach().cpu().clone().contiguous().to(torch.float16 if half else t.dtype)
        for name, t in _state(model.stack).items()
    }
    weights = save(tensors, metadata={"format": "pt"})
    levels = [{"aggregator": level.name} | level.settings() for level in model.stack]
    config = {
        "format": FORMAT,
        "version": VERSION,
        "name": model.name,
        "levels": levels,
        **{"contrast": 0.0} | model.query_options.to_config(),
        "checksum": hashlib.blake2b(weights, digest_size=16).hexdigest(),
        "about": model.about,
    }
    card, about = _card(model).encode(), (json.dumps(config, indent=2) + "\n").encode()
    for name, content in zip(FILES, (weights, card, about), strict=True):
        with atomic_path(folder / name) as beside:
            Path(beside).write_bytes(content)


def load_model(folder: str | os.PathLike[str]) -> Model:
    """Read a folder written by `save_model`; anything that does not fit is refused in one line."""
    from safetensors.torch import load

    folder = Path(folder)
    config = _read_config(folder / "config.json")
    path = folder / "model.safetensors"
    if not path.is_file():
        raise InputError(f"{path}: no such file; the model folder is incomplete")
    weights = path.read_bytes()
    if hashlib.blake2b(weights, digest_size=16).hexdigest() != config["checksum"]:
        raise InputError(
            f"{path}: the weights do not belong to config.json or are damaged; save the model again"
        )
    with wrap_parse_errors(path, "safetensors file"):
        tensors = load(weights)
    # First without memory: only what the weights fill is made.
    _check_fit(path, _levels(folder, config, shapes_only=True), tensors)
    stack = _levels(folder, config)
    weights_by_name = {name.removeprefix("levels."): tensor.float() for name, tensor in tensors.items()}
    nn.ModuleList(stack).load_state_dict(weights_by_name)
    try:
        query_options = QueryOptions.from_config(config)
    except InputError as error:
        raise InputError(f"{folder / 'config.json'}: {error}") from None
    return Model(stack, config["name"], config["about"], query_options)


def check_loadable(stack: Sequence[Aggregator]) -> None:
    """Refuse aggregators that could not be loaded again: by the name of their class, from their settings."""
    for level in stack:
        kind = type(level)
        known = AGGREGATORS.get(kind.name)
        if known is not kind:
            owner = "no class" if known is None else f"{known.__module__}.{known.__qualname__}"
            raise InputError(
                f"stack: {kind.__name__} could not be loaded again, {kind.name!r} is the name of {owner};"
                " set another `name` in the class, or make the aggregator again if the class was redefined"
            )
        problem = ""
        try:
            settings = json.loads(json.dumps(level.settings()))
            again = _make(kind, settings, shapes_only=True)
            shapes = [{name: t.shape for name, t in each.state_dict().items()} for each in (level, again)]
            if again.settings() != level.settings() or shapes[0] != shapes[1]:
                problem = "other settings or weights come out"
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            problem = str(error).partition("\n")[0]
        if problem:
            raise InputError(
                f"stack: the settings of {kind.__name__} do not make it again ({problem}); store each"
                " argument of its constructor as an attribute of the same name, as a number, a text or a list"
            )


def rebuild(stack: Sequence[Aggregator], *, untrained: bool = False, **changes: Any) -> list[Aggregator]:
    """The stack with some settings changed on every level, with the same weights or fresh ones.

    Args:
        stack: the aggregators.
        untrained: leave the new aggregators as they are made, always with the same random weights.
        **changes: constructor arguments, such as k or temperature.
    """
    if untrained:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return [type(level)(**level.settings() | changes) for level in stack]
    fresh = [_make(type(level), level.settings() | changes) for level in stack]
    for new, old in zip(fresh, stack, strict=True):
        new.load_state_dict(old.state_dict())
    return fresh


def with_side(stack: Sequence[Aggregator], k: int, temperatures: Sequence[float | None]) -> list[Aggregator]:
    """The stack with another K, and a temperature for each level, as the database's side is tuned."""
    levels = zip(stack, temperatures, strict=True)
    return [rebuild([level], k=k, temperature=temperature)[0] for level, temperature in levels]


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path}: no such file; give the folder of a saved model")
    with wrap_parse_errors(path, "JSON file"):
        config = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise InputError(f"{path}: not the configuration of a model of this package")
    if config.get("version") != VERSION:
        raise InputError(
            f"{path}: model format version {config.get('version')}, this package reads {VERSION}; update gqe"
        )
    missing = [key for key in ("name", "levels", "checksum") if key not in config]
    if missing or not config["levels"]:
        raise InputError(f"{path}: {' and '.join(missing) or 'levels'} missing; save the model again")
    levels, about = config["levels"], config.setdefault("about", {})
    if not isinstance(config["name"], str) or not isinstance(about, dict):
        raise InputError(f"{path}: its name is no text or its 'about' no object; save the model again")
    if not isinstance(levels, list) or not all(isinstance(level, dict) for level in levels):
        raise InputError(f"{path}: levels are not a list of objects; save the model again")
    if len(levels) > MOST_LEVELS:
        raise InputError(f"{path}: {len(levels)} levels, at most {MOST_LEVELS} are read")
    side = about.get("dba", {})
    temperatures = side.get("temperatures", []) if isinstance(side, dict) else None
    if not isinstance(temperatures, list) or (side and (len(temperatures) != len(levels) or "k" not in side)):
        raise InputError(f"{path}: its tuned database side does not fit its levels; tune or save it again")
    return config


def _levels(folder: Path, config: dict[str, Any], *, shapes_only: bool = False) -> list[Aggregator]:
    return [_level(folder, entry, shapes_only) for entry in config["levels"]]


def _level(folder: Path, entry: dict[str, Any], shapes_only: bool) -> Aggregator:
    settings = dict(entry)
    name = settings.pop("aggregator", None)
    if not isinstance(name, str) or name not in AGGREGATORS:
        raise InputError(
            f"{folder / 'config.json'}: unknown aggregator {short_repr(name)}; it can be"
            f" {', '.join(AGGREGATORS)}; import the module that defines the class before you load"
        )
    try:
        return _make(AGGREGATORS[name], settings, shapes_only=shapes_only)
    except (TypeError, ValueError) as error:
        raise InputError(f"{folder / 'config.json'}: settings of {name} do not fit ({error})") from None


def _state(stack: Sequence[Aggregator]) -> dict[str, Tensor]:
    return nn.ModuleList(stack).state_dict(prefix="levels.")


def _check_fit(path: Path, stack: Sequence[Aggregator], tensors: dict[str, Tensor]) -> None:
    """Refuse missing, extra and misshapen tensors."""
    expected = _state(stack)
    missing, extra = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or extra:
        what = f"no tensor {missing[0]}" if missing else f"an unknown tensor {extra[0]}"
        raise InputError(f"{path}: {what}; the weights do not fit config.json")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise InputError(
                f"{path}: {name} has shape {tuple(tensor.shape)},"
                f" config.json asks for {tuple(expected[name].shape)}"
            )


def _card(model: Model) -> str:
    """The model card: what it is, how it was trained, what it reached."""
    parameters = sum(p.numel() for level in model.stack for p in level.parameters())
    options = str(model.query_options)
    lines = [
        f"# {model.name}",
        "",
        f"A stack of {len(model.stack)} aggregators for GQE, {parameters:,} parameters:",
        "",
        *(f"{i}. `{level!r}`" for i, level in enumerate(model.stack, start=1)),
        "",
        *([f"Queries are expanded with {options}.", ""] if options else []),
        "```python",
        "import gqe",
        "",
        'expander = gqe.Expander.from_pretrained("this folder").fit(database)',
        "better = expander.expand(queries)",
        "```",
    ]
    for title, content in model.about.items():
        lines += ["", f"## {title.replace('_', ' ').capitalize()}", "", *_as_markdown(content)]
    return "\n".join(lines) + "\n"


def _as_markdown(content: Any) -> list[str]:
    """A list of rows becomes a table, a dict becomes a list, anything else a sentence."""
    if isinstance(content, list) and content and all(isinstance(row, dict) for row in content):
        columns = list(content[0])
        rows = [[str(row.get(column, "")) for column in columns] for row in content]
        return [
            "| " + " | ".join(columns) + " |",
            "| " + " | ".join("---" for _ in columns) + " |",
            *("| " + " | ".join(row) + " |" for row in rows),
        ]
    if isinstance(content, dict):
        return [f"- {key}: {value}" for key, value in content.items()]
    return [str(content)]
