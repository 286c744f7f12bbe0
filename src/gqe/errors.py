"""The one error a user's mistake raises."""

from __future__ import annotations


class InputError(ValueError):
    """Something given by the user cannot be used.

    The message is one line, whatever is quoted in it: it names the argument or file, the row where there is
    one, and the remedy. The command line prints it and exits with status 2.
    """

    def __init__(self, message: str = "") -> None:
        line = " ".join(str(message).split())
        # Names from files and networks may hold what steers a terminal, or what it cannot print.
        super().__init__("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line))


def shown(value: object) -> str:
    """A value in a message: the beginning of what it looks like."""
    if isinstance(value, int) and value.bit_length() > 128:  # Python shows no number of 5000 digits
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
