"""Who calls: under which name of ours, from a page of which origin, how often."""

from __future__ import annotations

import ipaddress
import re
from collections import OrderedDict
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from gqe.server.problems import Refused

_MOST_CLIENTS = 10_000
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]{1,5})?")


def check_host(headers: Headers, hosts: tuple[str, ...] | None) -> None:
    """Refuse a request that was sent to another name, as pages from elsewhere do by a name of their own.

    Args:
        headers: Of the request.
        hosts: Names the service answers to; None for any.
    """
    if hosts is None:
        return
    given = [_HOST.fullmatch(each.lower()) for each in headers.getlist("host")]
    if len(given) != 1 or given[0] is None or given[0][1] not in hosts:
        raise Refused(421, "this service does not answer to this name; see --name")


def check_origin(headers: Headers) -> None:
    """Refuse a request of a page from elsewhere; what comes from no browser passes.

    Browsers say where a request comes from: all of today's by Sec-Fetch-Site, older ones, and those that
    reach us over plain HTTP from another machine, by Origin.
    """
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    if site is not None:
        allowed = site in ("same-origin", "none")
    else:
        allowed = origin is None or _place_of(origin) == headers.get("host", "").lower()
    if not allowed:
        raise Refused(403, "a page from elsewhere may not use this service; let proxies pass Host on")


def _place_of(origin: str) -> str | None:
    """Name and port in an Origin header; None if it has none, or is not one."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def client_of(address: str) -> str:
    """Whose requests count together: an address, or a network of IPv6, all of which one client can have."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address


class Buckets:
    """A bucket of tokens for each client: it fills steadily, a request takes one.

    Args:
        rate: Tokens a second; 0 for no limit.
        burst: Size of a bucket.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float) -> float:
        """0 if the client may go on, else the seconds to wait."""
        if self.rate <= 0:
            return 0.0
        left, then = self._left.pop(client, (float(self.burst), now))
        left = min(float(self.burst), left + (now - then) * self.rate)
        allowed = left >= 1
        self._left[client] = (left - 1 if allowed else left, now)
        if len(self._left) > _MOST_CLIENTS:
            self._left.popitem(last=False)  # who was away longest has a full bucket anyway
        return 0.0 if allowed else (1 - left) / self.rate
