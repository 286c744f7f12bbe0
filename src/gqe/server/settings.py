"""What a service allows."""

from __future__ import annotations

from dataclasses import dataclass, field

from gqe.server.tokens import Tokens


@dataclass(frozen=True)
class Settings:
    """Limits of the service; the defaults suit one machine and a page.

    Attributes:
        tokens: Who may read and write; None lets everybody in.
        read_only: Refuse changes, whatever a token allows.
        hosts: Names the service answers to, None for any. Keeps other sites' pages from reaching a service
            on this machine under a name of their own.
        most_body: Bytes of a request.
        most_bodies: Bytes of all requests under way, without those up to 64 KiB; more are told to come back.
        most_connections: Open connections; fewer where the system allows fewer files (see `running`). One
            more takes the place of that which has kept the service waiting longest.
        most_pixels: Pixels of an uploaded picture.
        most_k: Results for a query.
        most_vectors: Queries, or new items, in a request.
        most_examples: Liked and disliked examples in a request.
        rate: Requests a second for each client in the long run; 0 for no limit.
        burst: Requests that a client may send at once.
        timeout: Seconds for the head of a request, for its body, and for answering it.
        most_waiting: Requests that may wait for a search; more are told to come back.
        most_preparing: Methods and re-rankers that are being prepared, or wait for it (`Engine.prepare`).
        most_batch: Queries in one call. A request with more of them is answered part by part, and no other
            such request meanwhile.
        batch_wait: Seconds to wait for others, if the last batch had several queries.
        methods: Other methods than the index's own that a request may name, with `:k=K` behind them.
        most_neighbors: Largest K.
        other_methods_up_to: Items above which only the index's own method is offered: others are computed
            in memory.
        follow: Seconds between looks whether another process changed the index.
        rerankers: Re-rankers that a request may name, exactly as written here.
    """

    tokens: Tokens | None = field(default=None, repr=False)
    read_only: bool = False
    hosts: tuple[str, ...] | None = None
    most_body: int = 16 << 20
    most_bodies: int = 256 << 20
    most_connections: int = 1000
    most_pixels: int = 40_000_000
    most_k: int = 1000
    most_vectors: int = 1000
    most_examples: int = 100
    rate: float = 500.0
    burst: int = 1000
    timeout: float = 30.0
    most_waiting: int = 1024
    most_preparing: int = 4
    most_batch: int = 64
    batch_wait: float = 0.003
    methods: tuple[str, ...] = ("aqe", "aqewd", "alpha", "aqe-g", "alpha-g")
    most_neighbors: int = 64
    other_methods_up_to: int = 20_000
    follow: float = 1.0
    rerankers: tuple[str, ...] = ("reciprocal", "superglobal", "egt", "diffusion")
