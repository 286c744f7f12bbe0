"""Vector databases: expansion in front of the vectors people already have."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch

from gqe.errors import InputError
from gqe.neighbors.search import resolve_device
from gqe.stores.address import Address, from_client, parse
from gqe.stores.base import Store
from gqe.stores.connection import Connection

__all__ = ["Connection", "Store", "connect", "open_store"]

# The class of each engine in the module of its name, and the packages that it needs.
_ENGINES = {
    "embedded": ("EmbeddedStore", ""),
    "pgvector": ("PgvectorStore", "psycopg and pgvector"),
    "qdrant": ("QdrantStore", "qdrant-client"),
    "milvus": ("MilvusStore", "pymilvus"),
    "lancedb": ("LanceStore", "lancedb"),
}


def connect(
    url: Any, name: str | None = None, *, device: str | torch.device = "auto", **options: str | int
) -> Connection:
    """Connect to a vector database.

    Args:
        url: an open client, which is used as it is and never closed: a `QdrantClient`, a `MilvusClient`, a
            psycopg `Connection` or `ConnectionPool`, what `lancedb.connect` gives. Or an address: the folder
            of an index; `postgresql://user@host/db?table=items&vector=embedding&id=id`;
            `qdrant://host:6333/collection` or `qdrant:///folder?collection=NAME` (local mode);
            `milvus://host:19530/collection` or `milvus:///file.db?collection=NAME` (Milvus Lite);
            `lancedb:///folder?table=NAME`.
        name: with a client, the table or collection.
        options: with a client, what an address has behind its question mark: `vector=` (which vectors), and
            for PostgreSQL `id=`, `ef_search=`, `probes=`, for LanceDB `id=`.
        device: where aggregators run: "auto", "cpu", "cuda"...

    Example:
        >>> import tempfile, gqe
        >>> folder = tempfile.mkdtemp() + "/index"
        >>> _ = gqe.Index.build(np.eye(8), "aqe-g", folder)
        >>> with connect(folder) as items:
        ...     items.search(np.eye(8)[2], k=1).ids.tolist()
        [2]
    """
    if isinstance(url, str | os.PathLike):
        given = next(iter(options), "name" if name is not None else None)
        if given is not None:
            raise InputError(f"{given}: goes with an open client; an address names it itself")
        return Connection(open_store(url), resolve_device(device))
    return Connection(_open(from_client(url, name, options)), resolve_device(device))


def open_store(url: str | os.PathLike[str]) -> Store:
    """The store at an address, without expansion."""
    return _open(parse(url))


def _open(address: Address) -> Store:
    name, packages = _ENGINES[address.engine]
    try:
        module = import_module(f"gqe.stores.{address.engine}")
    except ImportError as error:
        raise InputError(
            f"{address.display}: needs {packages}: pip install 'gqe[{address.engine}]'"
        ) from error
    store: Store = getattr(module, name)(address)
    return store
