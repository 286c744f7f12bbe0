"""Queries and their results before and after expansion, as rows of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gqe.page import picture, text
from gqe.reproduce.artefact import Example, Result

_SIDE = 168  # pixels: sharp on dense screens
_STATES = {
    "relevant": "right",
    "ignored": "not counted: shows too little of the same thing",
    "other": "wrong",
}


def examples_html(examples: Sequence[Example]) -> str:
    """One block an example; frames tell right from wrong, and so do the words behind them."""
    return "".join(_block(example) for example in examples)


def _block(example: Example) -> str:
    old, new = example.scores
    kind = "up" if new >= old else "down"
    change = (
        f'average precision {old:.1f} → <span class="{kind}">{new:.1f}</span>'
        f' <small class="{kind}">{new - old:+.1f}</small>'
    )
    strips = _strip("before", example.before) + _strip("after", example.after)
    return (
        f'<div class="example"><h3>{text(example.title)}: {change}</h3><div class="strips">'
        f'<div class="query">{_image(example.picture, "the query", "asked")}<span>query</span></div>'
        f"<div>{strips}</div></div></div>"
    )


def _strip(name: str, results: Sequence[Result]) -> str:
    images = (
        _image(result.picture, f"{name}, place {place}: {_STATES[result.state]}", result.state)
        for place, result in enumerate(results, 1)
    )
    right = sum(result.state == "relevant" for result in results)
    told = f"<span>{name}<small>{right} right</small></span>"
    return f'<div class="strip">{told}{"".join(images)}</div>'


def _image(image: Any, alt: str, kind: str) -> str:
    return picture(image.convert("RGB").resize((_SIDE, _SIDE)), alt, title=alt, kind=kind)
