"""The one error a user's mistake raises."""

from __future__ import annotations

from gqe.redaction import redacted


class InputError(ValueError):
    """Something given by the user cannot be used.

    The message is one line: it names the argument or file, the row where there is one, and the remedy.
    The command line prints it and exits with status 2. Secrets in it are masked, whoever raises it.
    """

    def __init__(self, *message: object) -> None:
        super().__init__(*(redacted(part) if isinstance(part, str) else part for part in message))
