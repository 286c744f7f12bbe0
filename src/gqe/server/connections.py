"""Connections: how many, and how long they may keep the service waiting.

uvicorn waits for the head of a request, and for somebody to read an answer, as long as it takes. Every open
connection is an open file; a process that has too many of them can no longer open its index.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from typing import Any

from gqe.server.problems import raw
from gqe.server.settings import Settings

BACKLOG = 128
"""Connections that the system accepts before we see them."""
AT_ONCE = 16
"""Connections that asyncio takes in one turn of its loop."""
# Turns until one that is too many is closed.
_TURNS = 4
# Open files that are kept for the index, pictures and what else the process needs.
_RESERVE = 256
_FEWEST = 16
HEAD_BYTES = 16 << 10
"""Bytes of the head of a request, the address included."""
READ_BYTES = 32 << 10
"""Bytes read at once: what one connection sends must not keep the others waiting."""
# How often a connection is looked at, in seconds.
_LOOK = 1.0
# How many times the limit for each of its parts a request may take as a whole: body, picture, search, answer.
_PARTS = 4


def most_connections(wanted: int) -> int:
    """As many as wanted, but never so many that no file could be opened any longer."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(_FEWEST, min(wanted, files - _TURNS * AT_ONCE - _RESERVE))


def protocol(settings: Settings) -> type[asyncio.Protocol]:
    """The protocol of uvicorn that is installed, with limits."""
    name = "httptools" if importlib.util.find_spec("httptools") else "h11"
    module = importlib.import_module(f"uvicorn.protocols.http.{name}_impl")
    base = module.HttpToolsProtocol if name == "httptools" else module.H11Protocol
    limits = {"seconds": settings.timeout, "most": most_connections(settings.most_connections)}
    return type("LimitedProtocol", (_Limited, base), limits)


class _Limited(asyncio.Protocol):
    """What is put before a protocol of uvicorn.

    Attributes:
        seconds: For the head of a request; `_PARTS` times as many for all of it.
        most: Connections.
    """

    seconds: float
    most: int
    # Of uvicorn's protocols:
    cycle: Any
    connections: set[Any]
    loop: asyncio.AbstractEventLoop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._transport: Any = transport  # no asyncio.Transport with uvloop
        if hasattr(transport, "max_size"):
            transport.max_size = READ_BYTES
        self._since, self._head = self.loop.time(), 0
        self._timer = self.loop.call_later(min(_LOOK, self.seconds), self._look)
        if len(self.connections) > self.most and not self._make_room():
            self._refuse(503, "too many connections; come back later")

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        if self._between_requests():
            self._head += len(data)
            if self._head > HEAD_BYTES and not self._transport.is_closing():
                self._refuse(431, f"the head of the request is larger than {HEAD_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for what it cannot read."""
        self._refuse(400, "this is not a request of HTTP/1.1")

    def on_response_complete(self) -> None:
        """Called by uvicorn after an answer."""
        self._since, self._head = self.loop.time(), 0
        super().on_response_complete()  # type: ignore[misc]

    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _awaits_client(self) -> bool:
        """Whether nothing happens unless the client sends or reads something."""
        return self._between_requests() or self.cycle.more_body

    def _make_room(self) -> bool:
        """Close the connection that has kept us waiting longest, if one does."""
        # Those that are being closed stay among them for some turns of the loop.
        others = [each for each in self.connections if each is not self and not each._transport.is_closing()]
        if len(others) < self.most:
            return True
        waiting = [each for each in others if each._awaits_client()]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda each: (each._transport.get_write_buffer_size() > 0, each._since))
        oldest._transport.abort()
        return True

    def _look(self) -> None:
        """Close the connection if its time is over."""
        between = self._between_requests()
        if self.loop.time() - self._since > self.seconds * (1 if between else _PARTS):
            if not self._head or self._transport.is_closing() or not between:
                self._transport.abort()
                return
            self._refuse(408, "the request did not arrive in time")
        self._timer = self.loop.call_later(min(_LOOK, self.seconds), self._look)

    def _refuse(self, status: int, detail: str) -> None:
        self._transport.write(raw(status, detail))
        self._transport.close()
