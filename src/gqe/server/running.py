"""Run the service until it is told to stop."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import uvicorn
from fastapi import FastAPI

from gqe.errors import InputError
from gqe.server.connections import ACCEPTED, BACKLOG, HEAD_BYTES, READ_BYTES, protocol
from gqe.server.settings import Settings

log = logging.getLogger(__name__)

_INTERRUPTED = 130  # the exit status of what Ctrl+C stopped
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


def guarded(settings: Settings, host: str, names: Sequence[str] = ()) -> Settings:
    """Settings for an address: what everybody can reach takes no changes without tokens.

    A service without tokens that only this machine can reach answers only to names of this machine, so that
    no page from elsewhere gets at it through a name of its own.

    Args:
        settings: As wanted.
        host: Address to listen at.
        names: More names to answer to, as of a proxy in front.
    """
    if settings.tokens is not None:
        return settings
    if is_loopback(host):
        return replace(settings, hosts=(*_LOOPBACK_NAMES, *(name.lower() for name in names)))
    if not settings.read_only:
        log.warning("%s can be reached by others and there are no tokens: changes are refused", host)
        return replace(settings, read_only=True)
    return settings


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address; port 0 takes any that is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the protocol named, asyncio sends at once; otherwise answers wait 40 ms for a delayed ACK.
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--host {host} --port {port}: {reason}; choose another address or port") from None
    return listening


def server_of(app: FastAPI, *, proxies: Sequence[str] = (), patience: int = 30) -> uvicorn.Server:
    """A server with the limits that lie below an ASGI app: connections, and the time they may take.

    Args:
        app: See `create_app`.
        proxies: Addresses of proxies whose X-Forwarded-For says who a client is.
        patience: Seconds that requests under way have after a signal to end.
    """
    config = uvicorn.Config(
        app,
        http=protocol(app.state.service.settings),
        h11_max_incomplete_event_size=HEAD_BYTES + READ_BYTES,  # the protocol's own limit comes first
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        timeout_keep_alive=15,
        timeout_graceful_shutdown=patience,
        backlog=ACCEPTED,
    )
    return _Server(config)


def run(app: FastAPI, listening: socket.socket, *, proxies: Sequence[str] = ()) -> None:
    """Serve until SIGTERM or SIGINT; requests and writes that were accepted are finished first.

    A second SIGINT ends the process at once, from here to its end: what was acknowledged is stored.

    Args:
        app: See `create_app`.
        listening: See `bound`.
        proxies: See `server_of`.
    """
    server = server_of(app, proxies=proxies)
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            os._exit(_INTERRUPTED)
        received.append(number)
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server.run(sockets=[listening])
    if received[:1] == [signal.SIGINT]:
        raise KeyboardInterrupt


class _Server(uvicorn.Server):
    """Leaves signals to `run`, and lets more connections wait than are taken at once."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See `uvicorn.Server`."""
        yield


def checked_proxies(addresses: Sequence[str]) -> list[str]:
    """Addresses of proxies, each of them one."""
    for address in addresses:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise InputError(f"--proxy: {address!r} is not an IP address; give that of the proxy") from None
    return list(addresses)
