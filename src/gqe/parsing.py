"""Numbers in texts that users write."""

from __future__ import annotations

import re


def whole_number(text: str) -> int | None:
    """A whole number of plain decimal digits, or None if the text is anything else.

    `int` and `str.isdigit` take more: digits of other scripts, superscripts, underscores, blanks, signs.

    Example:
        >>> whole_number("40"), whole_number("²"), whole_number("4_0"), whole_number("-4")
        (40, None, None, None)
    """
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None
