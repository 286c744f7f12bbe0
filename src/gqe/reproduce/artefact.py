"""What an artefact is once it is measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from gqe.reproduce.tables import Table


@dataclass(frozen=True)
class Picture:
    """A figure: SVG text that stands inside a page, and the same as PNG."""

    name: str
    description: str
    svg: str
    png: bytes


@dataclass(frozen=True)
class Artefact:
    """Tables, figures, and what they say in words.

    Attributes:
        name: what users type.
        title: its heading.
        text: what it shows.
        tables: in order.
        pictures: in order.
        findings: sentences computed from the numbers.
    """

    name: str
    title: str
    text: str
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
