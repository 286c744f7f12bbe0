"""The one error a user's mistake raises."""

from __future__ import annotations


class InputError(ValueError):
    """Something given by the user cannot be used.

    The message is one line: it names the argument or file, the row where there is one, and the remedy.
    The command line prints it and exits with status 2.
    """
