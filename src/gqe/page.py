"""One HTML page that needs nothing beside it: the skeleton, text and pictures."""

from __future__ import annotations

import base64
import io
import os
from html import escape
from typing import Any

from gqe.formats.atomic import atomic_path


def write_page(path: str | os.PathLike[str], title: str, style: str, body: str) -> None:
    """Write a page beside its place and rename it.

    Args:
        path: the page.
        title: of its tab, plain text.
        style: CSS.
        body: HTML inside <main>.
    """
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{style}</style></head><body><main>{body}</main></body></html>\n"
    )
    with atomic_path(path) as beside:
        beside.write_text(page, encoding="utf-8")


def text(plain: str) -> str:
    """Plain text as HTML, also in attributes, and writable as UTF-8 whatever a file is called.

    Example:
        >>> text("a < b")
        'a &lt; b'
    """
    return escape(plain.encode("utf-8", "backslashreplace").decode(), quote=True)


def picture(image: Any, alt: str, **attributes: str) -> str:
    """A PIL image as an <img> that holds its own pixels.

    Args:
        image: in RGB.
        alt: what it shows.
        attributes: others of the tag; `kind` is its class.
    """
    content = io.BytesIO()
    image.save(content, format="JPEG", quality=85)
    data = base64.b64encode(content.getvalue()).decode()
    named = {"class" if name == "kind" else name: value for name, value in attributes.items()}
    tags = "".join(f' {name}="{text(value)}"' for name, value in named.items())
    return f'<img alt="{text(alt)}"{tags} src="data:image/jpeg;base64,{data}">'
