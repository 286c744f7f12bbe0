"""Bearer tokens: who may read, who may write."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from pathlib import Path

from gqe.errors import InputError
from gqe.formats.checks import existing_file, explaining

log = logging.getLogger(__name__)

VARIABLE = "GQE_TOKENS"
READ, WRITE = "read", "write"
_SHORTEST = 16


class Tokens:
    """Tokens with their scopes. Only digests are kept, so that no log or error can show a token.

    Args:
        scopes: Scopes ("read", "write") by token.

    Example:
        >>> tokens = Tokens({"a-long-secret-text": {"read"}})
        >>> sorted(tokens.scopes("a-long-secret-text")), tokens.scopes("a guess") is None
        (['read'], True)
    """

    def __init__(self, scopes: dict[str, set[str]]) -> None:
        self._known = [(_digest(token), frozenset(allowed)) for token, allowed in scopes.items()]

    def scopes(self, token: str) -> frozenset[str] | None:
        """What a token allows; None if it is unknown. Takes equally long for any token."""
        asked, found = _digest(token), None
        for known, allowed in self._known:
            if hmac.compare_digest(asked, known):
                found = allowed
        return found

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        return f"<Tokens: {len(self)}>"


def read_tokens(path: str | os.PathLike[str] | None = None) -> Tokens | None:
    """Tokens of a file or, without one, of the environment variable GQE_TOKENS; None if there are none.

    Each line holds scopes and a token: `read SECRET`, `write SECRET` or `read,write SECRET`. Empty lines and
    those that begin with # are passed over. In the variable, semicolons may stand for line ends.
    """
    if path is not None:
        found = existing_file(path)
        with explaining(found, "file of tokens"):
            text = found.read_text(encoding="utf-8")
        if _others_can_read(found):
            log.warning("%s: other users can read it; chmod 600", found)
        return _parsed(text.splitlines(), str(found))
    text = os.environ.get(VARIABLE, "")
    return _parsed(text.replace(";", "\n").splitlines(), f"${VARIABLE}") if text.strip() else None


def _parsed(lines: list[str], source: str) -> Tokens:
    scopes: dict[str, set[str]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        # The line itself is never shown: it may be a token.
        words = line.split()
        allowed = set(words[0].split(","))
        if len(words) != 2 or not allowed <= {READ, WRITE}:
            raise InputError(f"{source}: line {number} is not `read SECRET` or `read,write SECRET`")
        if len(words[1]) < _SHORTEST:
            raise InputError(
                f"{source}: the token in line {number} is shorter than {_SHORTEST} characters; lengthen it"
            )
        if words[1] in scopes:
            raise InputError(f"{source}: line {number} repeats a token; join their scopes: read,write SECRET")
        scopes[words[1]] = allowed
    if not scopes:
        raise InputError(f"{source}: holds no tokens; write lines such as `read SECRET`")
    return Tokens(scopes)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _others_can_read(path: Path) -> bool:
    return os.name == "posix" and bool(path.stat().st_mode & 0o077)
