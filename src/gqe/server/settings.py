"""What a service allows: its limits, and the tokens with their scopes."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import os
from dataclasses import dataclass, field

from gqe.errors import InputError
from gqe.formats.checks import existing_file, wrap_parse_errors

log = logging.getLogger(__name__)

READ, WRITE = "read", "write"
_VARIABLE = "GQE_TOKENS"
_MIN_TOKEN = 16


class Tokens:
    """Bearer tokens with their scopes. Only digests are stored, so that no log or error can show a token.

    Args:
        scopes: Scopes ("read", "write") by token.

    Example:
        >>> tokens = Tokens({"a-long-secret-text": {"read"}})
        >>> sorted(tokens.scopes("a-long-secret-text")), tokens.scopes("a guess") is None
        (['read'], True)
    """

    def __init__(self, scopes: dict[str, set[str]]) -> None:
        self._scopes = [(_digest(token), frozenset(allowed)) for token, allowed in scopes.items()]

    def scopes(self, token: str) -> frozenset[str] | None:
        """What a token allows; None if it is unknown. Takes equally long for any token."""
        digest, found = _digest(token), None
        for known, allowed in self._scopes:
            if hmac.compare_digest(digest, known):
                found = allowed
        return found

    def __repr__(self) -> str:
        return f"<Tokens: {len(self._scopes)}>"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def read_tokens(path: str | os.PathLike[str] | None = None) -> Tokens | None:
    """Tokens of a file or, without one, of the environment variable GQE_TOKENS; None if there are none.

    Each line holds scopes and a token: `read SECRET`, `write SECRET` or `read,write SECRET`. Empty lines and
    comments (#) are skipped. In the variable, semicolons may separate the lines.
    """
    if path is None:
        text, source = os.environ.get(_VARIABLE, ""), f"${_VARIABLE}"
        if not text.strip():
            return None
        text = text.replace(";", "\n")
    else:
        file = existing_file(path)
        with wrap_parse_errors(file, "file of tokens"):
            text, source = file.read_text(encoding="utf-8"), str(file)
        if os.name == "posix" and file.stat().st_mode & 0o077:
            log.warning("%s: other users can read it; chmod 600", file)
    scopes: dict[str, set[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        # The line itself is never shown: it may be a token.
        words = line.split()
        allowed = set(words[0].split(","))
        if len(words) != 2 or not allowed <= {READ, WRITE}:
            raise InputError(f"{source}: line {number} is not `read SECRET` or `read,write SECRET`")
        if len(words[1]) < _MIN_TOKEN:
            raise InputError(
                f"{source}: the token in line {number} is shorter than {_MIN_TOKEN} characters; lengthen it"
            )
        if words[1] in scopes:
            raise InputError(f"{source}: line {number} repeats a token; join their scopes: read,write SECRET")
        scopes[words[1]] = allowed
    if not scopes:
        raise InputError(f"{source}: holds no tokens; write lines such as `read SECRET`")
    return Tokens(scopes)


@dataclass(frozen=True)
class Settings:
    """Limits of the service; the defaults suit one machine and a page.

    Attributes:
        tokens: Who may read and write; None allows everybody.
        read_only: Refuse changes, whatever a token allows.
        hosts: Host names the service answers to, None for any. Protects a service on this machine from DNS
            rebinding by pages of other sites.
        max_body_bytes: Size of one request body.
        max_total_body_bytes: All bodies larger than 64 KiB that are being processed, together.
        max_connections: Open connections; fewer where the system allows fewer open files (see `runner`). A
            new connection replaces the one that has been idle longest.
        max_pixels: Pixels of an uploaded picture.
        max_k: Results per query.
        max_vectors: Queries, or new items, per request.
        max_examples: Liked and disliked examples per request.
        rate: Requests per second and client in the long run; 0 for no limit.
        burst: Requests that a client may send at once.
        timeout: Seconds for the head of a request, for its body, and for answering it.
        max_queue: Requests that may wait for a search.
        max_preparing: Methods and re-rankers that are being prepared, or wait for it (`Engine.prepare`).
        max_batch: Queries per call of the engine. A request with more of them is answered in parts, one such
            request at a time.
        batch_wait: Seconds to wait for more queries, if the last batch had several.
        methods: Methods that a request may name beside the index's own, with settings such as `:k=K`.
        max_neighbors: Largest K.
        max_rounds: Most rounds of expansion; each is one more search.
        max_items_in_memory: Items up to which other methods than the index's own are offered, and re-rankers
            in front of a database: they are computed in memory.
        poll_seconds: Seconds between checks whether another process changed the index.
        rerankers: Re-rankers that a request may name, exactly as written here.
    """

    tokens: Tokens | None = field(default=None, repr=False)
    read_only: bool = False
    hosts: tuple[str, ...] | None = None
    max_body_bytes: int = 16 << 20
    max_total_body_bytes: int = 256 << 20
    max_connections: int = 1000
    max_pixels: int = 40_000_000
    max_k: int = 1000
    max_vectors: int = 1000
    max_examples: int = 100
    rate: float = 500.0
    burst: int = 1000
    timeout: float = 30.0
    max_queue: int = 1024
    max_preparing: int = 4
    max_batch: int = 64
    batch_wait: float = 0.003
    methods: tuple[str, ...] = ("aqe", "aqewd", "alpha", "aqe-g", "alpha-g")
    max_neighbors: int = 64
    max_rounds: int = 3
    max_items_in_memory: int = 20_000
    poll_seconds: float = 1.0
    rerankers: tuple[str, ...] = ("reciprocal", "superglobal", "egt", "diffusion")

    def __post_init__(self) -> None:
        """Refuse a rate that limits nothing without saying so."""
        if not 0 <= self.rate < math.inf:
            raise InputError(f"rate: expected requests per second, 0 for no limit, got {self.rate}")
