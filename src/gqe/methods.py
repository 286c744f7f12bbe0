"""The names users type, what each one stacks, and its settings."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import itertools
import math
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gqe.aggregators import Aggregator, Identity
from gqe.aggregators.base import METHODS as METHODS
from gqe.aggregators.base import MOST_LEVELS, positive_int
from gqe.errors import InputError, short_repr
from gqe.model_files import Model, load_model, rebuild, with_side
from gqe.query_options import QueryOptions
from gqe.rerank import RERANKERS, Reranking

Stack = list[Aggregator]


def learned(
    model: Model,
    k: int | None = None,
    temperature: float | None = None,
    untrained: int = 0,
    collapsed: int = 0,
) -> Stack:
    """A trained model.

    Args:
        model: as saved.
        k: another number of neighbours than it was trained with.
        temperature: see `Aggregator`; on every level.
        untrained: 1 for the same model with fresh random weights, to see what training gave.
        collapsed: 1 to skip all levels but the last (the paper's collapsed GQE).
    """
    changes = {"k": k, "temperature": temperature}
    stack = rebuild(
        model.stack, untrained=bool(untrained), **{key: v for key, v in changes.items() if v is not None}
    )
    if collapsed:
        stack = [*(Identity() for _ in stack[:-1]), stack[-1]]
    return stack


def model_folder(name: str | Path) -> Path | None:
    """The folder of a model by its name in the package or by its path; None if there is none."""
    for folder in (PRETRAINED / name, Path(name)):
        if (folder / "config.json").is_file():
            return folder
    return None


PRETRAINED = Path(__file__).parent / "pretrained"
# Settings of every method that concern queries alone; None stands for what the model says.
_QUERY_OPTIONS = tuple(field.name for field in dataclasses.fields(QueryOptions))
# Methods that one list of them may stand for.
_MOST_METHODS = 10_000
# Settings that are no numbers: the path of a file.
_TEXTS = ("model",)


@dataclass(frozen=True)
class Method:
    """A method with its complete settings.

    Attributes:
        name: of the expansion.
        settings: of the expansion.
        dba: whether the database is augmented by the same stack.
        reranking: what reorders the results, if anything does.
        database_only: whether queries stay as they are and the database alone is augmented.
    """

    name: str
    settings: dict[str, Any]
    dba: bool = False
    reranking: Reranking | None = None
    database_only: bool = False

    def stack(self) -> Stack:
        """The aggregators of the query's side, first level first."""
        return [Identity()] if self.database_only else self._stack()

    @property
    def query_options(self) -> QueryOptions:
        """The options of the query's side: those of the settings, and of the model where these have none."""
        return QueryOptions() if self.database_only else self._query_options()

    @cached_property
    def model(self) -> Model | None:
        """The saved model that this method is, read once; None for a hand-crafted method."""
        return None if self.name in METHODS else load_model(model_folder(self.name) or self.name)

    def _stack(self) -> Stack:
        settings = {key: value for key, value in self.settings.items() if key not in _QUERY_OPTIONS}
        if self.model is not None:
            return learned(self.model, **settings)
        levels = positive_int("levels", settings.pop("levels", 1), most=MOST_LEVELS)
        return [METHODS[self.name](**settings) for _ in range(levels)]

    def _query_options(self) -> QueryOptions:
        options = QueryOptions() if self.model is None else self.model.query_options
        changes = {key: self.settings[key] for key in _QUERY_OPTIONS if self.settings.get(key) is not None}
        return dataclasses.replace(options, **changes)

    def database_stack(self, stack: Stack) -> Stack:
        """The aggregators of the database's side: the given ones of the query's side, or as tuned for it."""
        if self.database_only:
            stack = self._stack()
        tuned = None if self.model is None else self.model.about.get("dba")
        if not tuned or self.settings | dict.fromkeys(_QUERY_OPTIONS) != defaults(self.name):
            return stack
        return with_side(stack, tuned["k"], tuned["temperatures"])

    @property
    def title(self) -> str:
        """The name as typed, without settings."""
        return self.expansion if self.reranking is None else f"{self.expansion}+{self.reranking.name}"

    @property
    def expansion(self) -> str:
        """The name as typed without settings and re-ranker."""
        return ("dba-" if self.dba else "") + ("only-" if self.database_only else "") + self.name

    @property
    def active_settings(self) -> dict[str, Any]:
        """The settings that are in force (those that are None, and switches that are off, are not)."""
        off = {"untrained": 0, "collapsed": 0}
        return {key: v for key, v in self.settings.items() if v is not None and v != off.get(key)}

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the method, its settings, and those of its re-ranker."""
        about: dict[str, Any] = {"method": self.title, "settings": self.active_settings}
        return about if self.reranking is None else about | {"reranker_settings": self.reranking.settings}

    @property
    def summary(self) -> str:
        """K and what differs from the defaults, for a table."""
        usual = defaults(self.name)
        shown = {
            key: value for key, value in self.active_settings.items() if key == "k" or value != usual[key]
        }
        parts = [f"{key}={value}" for key, value in shown.items()]
        if self.reranking is not None and self.reranking.changed_settings:
            parts += ["+", *(f"{key}={value}" for key, value in self.reranking.changed_settings.items())]
        return " ".join(parts)

    def with_settings(self, **settings: Any) -> Method:
        """The same method with other settings of the expansion; those it does not have are passed over."""
        known = {key: value for key, value in settings.items() if key in self.settings}
        return self.replace(settings=self.settings | known).check()

    def with_reranker(self, reranking: Reranking) -> Method:
        """The same method, its results reordered."""
        if self.reranking is not None:
            raise InputError(
                f"method: {self.title}+{reranking.name}: only one re-ranker can follow an expansion"
            )
        return self.replace(reranking=reranking)

    def replace(self, **changes: Any) -> Method:
        """The same method with other attributes; a model that was read already is not read again."""
        other = dataclasses.replace(self, **changes)
        if "model" in vars(self) and other.name == self.name:
            vars(other)["model"] = self.model
        return other

    def check(self) -> Method:
        """The method itself; settings that make no sense are refused."""
        self._stack()
        self._query_options()
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Without the model: another process reads it itself.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __str__(self) -> str:
        expansion = self.expansion + "".join(f":{key}={value}" for key, value in self.active_settings.items())
        return expansion if self.reranking is None else f"{expansion}+{self.reranking}"


def defaults(name: str) -> dict[str, Any]:
    """The settings of a method with their default values."""
    if name not in METHODS and model_folder(name) is None:
        models = sorted(folder.parent.name for folder in PRETRAINED.glob("*/config.json"))
        known = [*METHODS, *models, *RERANKERS]
        raise InputError(f"method: {short_repr(name)} is unknown{_nearest(name, known)}")
    if name == "none":
        return {}  # without expansion there is nothing to set
    if name in METHODS:
        settings = METHODS[name].method_settings(name)
    else:
        _, *arguments = inspect.signature(learned).parameters.values()
        settings = {each.name: each.default for each in arguments}
    return settings | dict.fromkeys(_QUERY_OPTIONS)


def method(name: str, /, **settings: Any) -> Method:
    """A named method with all its settings, checked.

    The name of a re-ranker alone stands for it after a search without expansion; behind an expansion and a
    plus, as in "universal+egt", it keeps its default settings.

    Example:
        >>> str(method("alpha", k=6))
        'alpha:k=6:alpha=3.0'
        >>> str(method("egt", t=0.5))
        'none+egt:t=0.5'
    """
    if not isinstance(name, str):
        raise InputError(f"method: expected a name such as 'aqe', got {name!r}")
    if name in RERANKERS:
        return Method("none", {}, reranking=_reranking(name, settings))
    expansion, _, reranking = name.rpartition("+")
    if expansion and reranking in RERANKERS:
        return method(expansion, **settings).with_reranker(_reranking(reranking, {}))
    dba, name = name.startswith("dba-"), name.removeprefix("dba-")
    only, name = dba and name.startswith("only-"), name.removeprefix("only-") if dba else name
    if name in RERANKERS:
        raise InputError(f"method: {name!r} reorders results; name what augments, as in dba-aqe+{name}")
    known = defaults(name)
    for key in settings:
        if key not in known:
            raise InputError(f"{name}: has no setting {short_repr(key)}{_nearest(key, known)}")
    return Method(name, known | settings, dba, database_only=only).check()


def _reranking(name: str, settings: dict[str, Any]) -> Reranking:
    known = RERANKERS[name].default_settings()
    for key in settings:
        if key not in known:
            raise InputError(f"{name}: has no setting {short_repr(key)}{_nearest(key, known)}")
    result = Reranking(name, known | settings)
    result.make()  # refuses values that make no sense
    return result


def parse_method(text: str) -> Method:
    """Read a method as typed on a command line: NAME[:SETTING=VALUE]...[+RERANKER[:SETTING=VALUE]...].

    Example:
        >>> parse_method("dba-alpha:k=6:alpha=1").settings
        {'k': 6, 'alpha': 1, 'temperature': None, 'contrast': None, 'rounds': None}
        >>> str(parse_method("aqe:k=4+reciprocal:k1=10").reranking)
        'reciprocal:k1=10'
    """
    first, _, last = text.rpartition("+")
    reranking = _split(last, text)
    if not first or reranking[0] not in RERANKERS:
        name, settings = _split(text, text)
        return method(name, **settings)
    name, settings = _split(first, text)
    return method(name, **settings).with_reranker(_reranking(*reranking))


def _split(part: str, text: str) -> tuple[str, dict[str, Any]]:
    """The name and the settings in one part of a method as typed."""
    name, *parts = part.strip().split(":")
    settings: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(
                f"method {short_repr(text)}: write a setting as NAME=VALUE, not {short_repr(part)}"
            )
        if key.strip() in settings:
            raise InputError(
                f"method {short_repr(text)}: the setting {short_repr(key.strip())} is given twice"
            )
        settings[key.strip()] = value.strip() if key.strip() in _TEXTS else _number(value.strip(), text)
    return name.strip(), settings


def parse_methods(text: str) -> list[Method]:
    """Read a list of methods separated by commas; a setting may hold several values separated by slashes.

    Example:
        >>> [str(each) for each in parse_methods("none,aqe:k=4/8")]
        ['none', 'aqe:k=4', 'aqe:k=8']
    """
    methods: list[Method] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        # Every slash multiplies; a plus between two parts stays where it is.
        pieces = re.split(r"([:+])", entry)
        choices = [
            [f"{piece.partition('=')[0]}={value}" for value in piece.partition("=")[2].split("/")]
            if "=" in piece and piece.partition("=")[0].strip() not in _TEXTS
            else [piece]
            for piece in pieces
        ]
        if len(methods) + math.prod(map(len, choices)) > _MOST_METHODS:
            raise InputError(f"methods: stand for more than {_MOST_METHODS:,} methods; give fewer values")
        methods += [parse_method("".join(chosen)) for chosen in itertools.product(*choices)]
    if not methods:
        raise InputError(f"methods: none named in {short_repr(text)}; try none,aqe:k=10")
    return methods


def _number(value: str, text: str) -> int | float | None:
    if value == "none":
        return None
    # Python also takes digits of other scripts for numbers.
    if value.isascii():
        for kind in (int, float):
            with suppress(ValueError):
                return kind(value)
    raise InputError(f"method {short_repr(text)}: {short_repr(value)} is not a number")


def _nearest(name: str, known: Collection[str]) -> str:
    """What to say about a wrong name: the nearest valid ones, or all of them."""
    if not known:
        return "; it has none"
    name = name[:60]  # the time it takes grows with the square of the length
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; it can be {', '.join(known)}"
