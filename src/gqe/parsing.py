"""Numbers in texts that users write."""

from __future__ import annotations

import re


def whole_number(text: str, digits: int = 18) -> int | None:
    """A whole number of plain decimal digits, or None if the text is anything else.

    `int` and `str.isdigit` take more: digits of other scripts, superscripts, underscores, blanks, signs.

    Args:
        text: what was written.
        digits: how many there may be; up to 18 fit into 64 bits.

    Example:
        >>> whole_number("40"), whole_number("²"), whole_number("4_0"), whole_number("-4")
        (40, None, None, None)
    """
    return int(text) if len(text) <= digits and re.fullmatch("[0-9]+", text) else None
