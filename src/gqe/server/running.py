"""Run the service until it is told to stop."""

from __future__ import annotations

import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import uvicorn

from gqe.errors import InputError
from gqe.server.settings import Settings

log = logging.getLogger(__name__)

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


def run(app: Any, listening: socket.socket, *, patience: int = 30) -> None:
    """Serve until SIGTERM or SIGINT; requests and writes that were accepted are finished first.

    Args:
        app: See `create_app`.
        listening: See `bound`.
        patience: Seconds that requests under way have after the signal.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=patience,
        backlog=1024,
    )

    def stop(_: int, __: FrameType | None) -> None:
        sys.exit(0)

    before = signal.signal(signal.SIGTERM, stop)  # uvicorn repeats the signal when everything is done
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, before)
