"""Suites by name."""

from __future__ import annotations

from collections.abc import Callable

from gqe.errors import InputError
from gqe.reproduce.suite import Suite
from gqe.reproduce.suites import paper, real, synthetic, town
from gqe.reproduce.suites.base import Sources

SUITES: dict[str, Callable[[Sources], Suite]] = {
    "town": town.make,
    "real": real.make,
    "paper": paper.make,
    "synthetic": synthetic.make,
}


def make_suite(name: str, sources: Sources) -> Suite:
    """The suite of a name; a dry run is always the synthetic one."""
    if sources.dry_run:
        name = "synthetic"
    if name not in SUITES:
        raise InputError(f"--suite: {name!r} is unknown; it can be {', '.join(SUITES)}")
    return SUITES[name](sources)


__all__ = ["SUITES", "Sources", "make_suite"]
