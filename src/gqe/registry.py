"""Classes that are known by name and made again from their settings: aggregators and re-rankers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gqe.errors import InputError


def is_ours(known: type | None) -> bool:
    """Whether it is a class of this package."""
    return known is not None and known.__module__.startswith("gqe.")


class Configurable:
    """An object that is made again from its settings.

    The constructor stores each argument as an attribute of the same name: `settings` reads them there. It may
    pass arguments on to its base class by `**arguments`.
    """

    @classmethod
    def default_settings(cls) -> dict[str, Any]:
        """The arguments of the constructor with their default values; `inspect.Parameter.empty` for none."""
        defaults: dict[str, Any] = {}
        for base in cls.__mro__:
            if "__init__" not in vars(base):
                continue
            _, *arguments = inspect.signature(vars(base)["__init__"]).parameters.values()
            named = [each for each in arguments if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
            defaults = {each.name: each.default for each in named} | defaults
            if all(each.kind != each.VAR_KEYWORD for each in arguments):
                break
        return defaults

    def settings(self) -> dict[str, Any]:
        """The keyword arguments that make this object again."""
        names = self.default_settings()
        for name in names:
            if not hasattr(self, name):
                raise InputError(
                    f"{type(self).__name__}: its constructor does not store the argument {name!r}"
                )
        return {name: getattr(self, name) for name in names}


class Registered(Configurable):
    """A class that enters the registry of its kind when it is defined, unless it is abstract.

    A class of this package keeps its name; among other classes of the same name the one defined last counts.

    Attributes:
        name: in files and in the texts that users write; the name of the class in lower case if not set.
        tuning_grid: values of settings that are worth trying on validation data.
        registry: all classes of this kind by name.
    """

    name: ClassVar[str]
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {}
    registry: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.name = vars(cls).get("name", cls.__name__.lower())
        if inspect.isabstract(cls):
            return
        if not is_ours(cls.registry.get(cls.name)):
            cls.registry[cls.name] = cls
