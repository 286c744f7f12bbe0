"""Addresses of stores: which engine, where, which collection. Secrets never get into messages."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from gqe.errors import InputError
from gqe.redaction import MASK, is_secret, redact

# What most often makes an address mean something else.
_WRITTEN = "; in user, password and options write %2F for /, %3F for ?, %23 for #, %40 for @, %26 for &"
SCHEMES = {
    "index": "embedded",
    "postgresql": "pgvector",
    "postgres": "pgvector",
    "qdrant": "qdrant",
    "qdrants": "qdrant",
    "milvus": "milvus",
    "milvuss": "milvus",
    "lancedb": "lancedb",
}
# Clients that may be given instead of an address, by package and class.
CLIENTS = {
    ("psycopg", "Connection"): "pgvector",
    ("psycopg_pool", "ConnectionPool"): "pgvector",
    ("qdrant_client", "QdrantClient"): "qdrant",
    ("pymilvus", "MilvusClient"): "milvus",
    ("lancedb", "DBConnection"): "lancedb",
}
# What names the items in each engine, and the other options that a client leaves open.
_CLIENT_OPTIONS = {
    "pgvector": ("table", ("vector", "id", "ef_search", "probes")),
    "qdrant": ("collection", ("vector",)),
    "milvus": ("collection", ("vector",)),
    "lancedb": ("table", ("vector", "id")),
}


class Address(NamedTuple):
    """An address, taken apart.

    Attributes:
        engine: "embedded", "pgvector", "qdrant", "milvus" or "lancedb".
        scheme: as given.
        user: or None.
        password: or None.
        host: or "" for something on this machine.
        port: or None.
        path: unquoted, with its leading slash.
        options: what follows the question mark.
        client: an open client of the user's, which is used and never closed; then there is no address.
    """

    engine: str
    scheme: str
    user: str | None
    password: str | None
    host: str
    port: int | None
    path: str
    options: dict[str, str]
    client: Any = None

    def __repr__(self) -> str:
        return f"<Address {self.display}>"

    @property
    def display(self) -> str:
        """For messages."""
        if self.engine == "embedded":
            return redact(self.path)
        if self.client is not None:
            return redact(f"{type(self.client).__name__} {self.options[_CLIENT_OPTIONS[self.engine][0]]!r}")
        user = "" if self.user is None else quote(self.user) + (f":{MASK}" if self.password else "") + "@"
        port = "" if self.port is None else f":{self.port}"
        options = {key: MASK if is_secret(key) else value for key, value in self.options.items()}
        tail = "?" + urlencode(options, safe="*/:.", quote_via=quote) if options else ""
        path = quote(self.path, safe="/:" if self.host else "/:@")
        return redact(f"{self.scheme}://{user}{self.host}{port}{path}{tail}")

    @property
    def secrets(self) -> list[str]:
        """What must never be shown."""
        named = [value for key, value in self.options.items() if is_secret(key)]
        return [secret for secret in (self.password, *named) if secret]

    def redact(self, text: object, *more: str | None) -> str:
        """What an engine said, in one line and without secrets: those of the address, and more."""
        known = [*self.secrets, *(secret for secret in more if secret)]
        return redact(" ".join(redact(text, known).split()))[:300]


def parse(url: str | os.PathLike[str]) -> Address:
    """Take an address apart.

    Example:
        >>> parse("postgresql://me:secret@db/shop?table=items").display
        'postgresql://me:***@db/shop?table=items'
    """
    try:
        text = os.fspath(url)
    except TypeError:
        raise InputError(f"store: expected an address, got {type(url).__name__}") from None
    if "://" not in text:
        path = text.removeprefix("index:")
        scheme = path.partition(":")[0].lower()
        if path == text and ":" in text and scheme in SCHEMES:
            raise InputError(f"store: the {scheme} address lacks slashes; it begins with {scheme}://")
        if not path or "\0" in path:
            raise InputError(
                "store: expected an address such as postgresql://host/db?table=items, or a folder"
            )
        return Address("embedded", "index", None, None, "", None, path, {})
    scheme = text.partition("://")[0].lower()
    if scheme not in SCHEMES:
        shown = (
            repr(scheme) if re.fullmatch(r"[a-z0-9+.\-]{1,20}", scheme) else "that does not begin with one"
        )
        raise InputError(f"store: unknown kind of address {shown}; it can be {', '.join(SCHEMES)}")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InputError(f"store: the {scheme} address is malformed; check host and port{_WRITTEN}") from None
    behind = text.partition("://")[2].removeprefix(parts.netloc or parts.path)
    if "@" in behind:  # where the password ends is a guess then
        raise InputError(f"store: the {scheme} address has an @ behind its host{_WRITTEN}")
    if any(part and "=" not in part for part in parts.query.split("&")):  # the end of a password, maybe
        raise InputError(f"store: the {scheme} address has an option without a value{_WRITTEN}")
    user, password = parts.username, parts.password
    path = unquote(parts.path)
    if SCHEMES[scheme] == "embedded":
        if password is not None:
            raise InputError("store: an index has no user and password; give the path of its folder")
        path = unquote(parts.netloc) + path
    return Address(
        SCHEMES[scheme],
        scheme,
        None if user is None else unquote(user),
        None if password is None else unquote(password),
        parts.hostname or "",
        port,
        path,
        dict(parse_qsl(parts.query, keep_blank_values=True)),
    )


def from_client(client: object, name: str | None, options: Mapping[str, object]) -> Address:
    """An address that stands for an open client and a table or collection behind it."""
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(client).__mro__]
    engine = next((CLIENTS[kind] for kind in kinds if kind in CLIENTS), None)
    package, given = kinds[0]
    if engine is None:
        if any(package == known for known, _ in CLIENTS):
            fitting = " or ".join(kind for known, kind in CLIENTS if known == package)
            raise InputError(
                f"store: cannot work with {package}'s {given}; give a {fitting}, which is synchronous"
            )
        raise InputError(
            f"store: expected an address, or a {', '.join(kind for _, kind in CLIENTS)} (psycopg 3, Qdrant,"
            f" Milvus, LanceDB); got {given}"
        )
    what, known_options = _CLIENT_OPTIONS[engine]
    unknown = sorted(set(options) - set(known_options))
    if unknown:
        raise InputError(f"{unknown[0]}: no option of a {given}; there are {', '.join(known_options)}")
    if not isinstance(name, str) or not name:
        raise InputError(f"name: a {given} holds many; give the name of a {what}: connect(client, NAME)")
    texts = {key: str(value) for key, value in options.items()}
    return Address(engine, engine, None, None, "", None, "", {what: name, **texts}, client)


def collection_of(address: Address) -> tuple[str, str]:
    """The collection or table an address names, and the path on this machine ("" for a server)."""
    what = _CLIENT_OPTIONS[address.engine][0]
    if address.client is not None:
        return address.options[what], ""
    if address.host:
        name = address.options.get(what) or address.path.strip("/")
        path = ""
    else:
        name, path = address.options.get(what, ""), address.path
        if not path.strip("/"):
            raise InputError(
                f"{address.display}: neither a host nor a path; write {address.scheme}://host/NAME"
            )
    if not name or "/" in name:
        where = f"{address.scheme}://host/NAME" if address.host else f"?{what}=NAME"
        raise InputError(f"{address.display}: no {what} is named; write {where}")
    return name, path
