"""The names users type, what each one stacks, and its settings."""

from __future__ import annotations

import difflib
import inspect
import itertools
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from gqe.aggregators import Aggregator, Alpha, Decay, Identity, Mean, Svm
from gqe.aggregators.base import positive_int
from gqe.errors import InputError

Stack = list[Aggregator]


def none() -> Stack:
    """No expansion: the query as it is."""
    return [Identity()]


def aqe(k: int = 10, temperature: float | None = None) -> Stack:
    """AQE: the mean of the query and its K neighbours (Chum et al., 2007)."""
    return [Mean(k, temperature)]


def aqewd(k: int = 8, temperature: float | None = None) -> Stack:
    """AQEwD: weights that fall with the rank, (K - i) / K (Gordo et al., 2017)."""
    return [Decay(k, temperature)]


def alpha(k: int = 48, alpha: float = 3.0, temperature: float | None = None) -> Stack:
    """αQE: weights cosine^alpha (Radenović et al., 2019)."""
    return [Alpha(k, alpha, temperature)]


def dqe(
    k: int = 1000, positives: int = 20, negatives: int = 20, c: float = 1.0, temperature: float | None = None
) -> Stack:
    """DQE: a linear SVM of the top against the end of a list of K (Arandjelović and Zisserman, 2012)."""
    return [Svm(k, positives, negatives, c, temperature)]


def aqe_g(k: int = 10, levels: int = 2, temperature: float | None = None) -> Stack:
    """AQE-G: AQE on every level of the neighbour graph (Klein and Wolf, 2021)."""
    return [Mean(k, temperature) for _ in range(positive_int("levels", levels))]


def alpha_g(k: int = 10, alpha: float = 3.0, levels: int = 2, temperature: float | None = None) -> Stack:
    """αQE-G: αQE on every level of the neighbour graph (Klein and Wolf, 2021)."""
    return [Alpha(k, alpha, temperature) for _ in range(positive_int("levels", levels))]


def learned(
    folder: str | Path,
    k: int | None = None,
    temperature: float | None = None,
    untrained: int = 0,
    collapsed: int = 0,
) -> Stack:
    """A trained model.

    Args:
        folder: where it was saved, or the name of one that ships with the package.
        k: another number of neighbours than it was trained with.
        temperature: see `Aggregator`; on every level.
        untrained: 1 for the same model with fresh random weights, to see what training gave.
        collapsed: 1 to skip all levels but the last (the paper's collapsed GQE).
    """
    from gqe.model_files import load_model, remade

    stack = load_model(model_folder(folder) or folder).stack
    changes = {"k": k, "temperature": temperature}
    stack = remade(
        stack, untrained=bool(untrained), **{key: v for key, v in changes.items() if v is not None}
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
METHODS: dict[str, Callable[..., Stack]] = {
    "none": none,
    "aqe": aqe,
    "aqewd": aqewd,
    "alpha": alpha,
    "dqe": dqe,
    "aqe-g": aqe_g,
    "alpha-g": alpha_g,
}


class Method(NamedTuple):
    """A method with its complete settings; `dba` means that the database is augmented by the same stack."""

    name: str
    settings: dict[str, Any]
    dba: bool = False

    def stack(self) -> Stack:
        """The aggregators of the query's side, first level first."""
        if self.name in METHODS:
            return METHODS[self.name](**self.settings)
        return learned(self.name, **self.settings)

    def database_stack(self, stack: Stack) -> Stack:
        """The aggregators of the database's side: the given ones of the query's side, or as tuned for it."""
        from gqe.model_files import load_model, remade

        folder = None if self.name in METHODS else model_folder(self.name)
        tuned = {} if folder is None else load_model(folder).about.get("dba", {})
        if not tuned or self.settings != defaults(self.name):
            return stack
        levels = zip(stack, tuned["temperatures"], strict=True)
        return [remade([level], k=tuned["k"], temperature=t)[0] for level, t in levels]

    @property
    def title(self) -> str:
        """The name as typed, without settings."""
        return f"dba-{self.name}" if self.dba else self.name

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are in force (those that are None, and switches that are off, are not)."""
        off = {"untrained": 0, "collapsed": 0}
        return {key: v for key, v in self.settings.items() if v is not None and v != off.get(key)}

    @property
    def summary(self) -> str:
        """K and what differs from the defaults, for a table."""
        usual = defaults(self.name)
        shown = {key: value for key, value in self.given.items() if key == "k" or value != usual[key]}
        return " ".join(f"{key}={value}" for key, value in shown.items())

    def with_settings(self, **settings: Any) -> Method:
        """The same method with other settings; those it does not have are passed over."""
        known = {key: value for key, value in settings.items() if key in self.settings}
        return method(self.title, **self.settings | known)

    def __str__(self) -> str:
        return self.title + "".join(f":{key}={value}" for key, value in self.given.items())


def defaults(name: str) -> dict[str, Any]:
    """The settings of a method with their default values."""
    if name not in METHODS and model_folder(name) is None:
        known = [*METHODS, *sorted(folder.parent.name for folder in PRETRAINED.glob("*/config.json"))]
        raise InputError(f"method: {name!r} is unknown{_nearest(name, known)}")
    parameters = inspect.signature(METHODS.get(name, learned)).parameters
    return {key: value.default for key, value in parameters.items() if key != "folder"}


def method(name: str, /, **settings: Any) -> Method:
    """A named method with all its settings, checked.

    Example:
        >>> str(method("alpha", k=6))
        'alpha:k=6:alpha=3.0'
    """
    if not isinstance(name, str):
        raise InputError(f"method: expected a name such as 'aqe', got {name!r}")
    dba, name = name.startswith("dba-"), name.removeprefix("dba-")
    known = defaults(name)
    for key in settings:
        if key not in known:
            raise InputError(f"{name}: has no setting {key!r}{_nearest(key, known)}")
    result = Method(name, known | settings, dba)
    result.stack()  # refuses values that make no sense
    return result


def parse_method(text: str) -> Method:
    """Read a method as typed on a command line: NAME[:SETTING=VALUE]...

    Example:
        >>> parse_method("dba-alpha:k=6:alpha=1").settings
        {'k': 6, 'alpha': 1, 'temperature': None}
    """
    name, *parts = text.strip().split(":")
    settings: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"method {text!r}: write a setting as NAME=VALUE, not {part!r}")
        if key.strip() in settings:
            raise InputError(f"method {text!r}: the setting {key.strip()!r} is given twice")
        settings[key.strip()] = _number(value.strip(), text)
    return method(name.strip(), **settings)


def parse_methods(text: str) -> list[Method]:
    """Read a list of methods separated by commas; a setting may hold several values separated by slashes.

    Example:
        >>> [str(each) for each in parse_methods("none,aqe:k=4/8")]
        ['none', 'aqe:k=4', 'aqe:k=8']
    """
    methods = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, *settings = entry.split(":")
        choices = [
            [f"{part.partition('=')[0]}={value}" for value in part.partition("=")[2].split("/")]
            if "=" in part
            else [part]
            for part in settings
        ]
        methods += [parse_method(":".join([name, *chosen])) for chosen in itertools.product(*choices)]
    if not methods:
        raise InputError(f"methods: none named in {text!r}; try none,aqe:k=10")
    return methods


def _number(value: str, text: str) -> int | float | None:
    if value == "none":
        return None
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        raise InputError(f"method {text!r}: {value!r} is not a number") from None


def _nearest(name: str, known: Collection[str]) -> str:
    """What to say about a wrong name: the nearest valid ones, or all of them."""
    if not known:
        return "; it has none"
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; it can be {', '.join(known)}"
