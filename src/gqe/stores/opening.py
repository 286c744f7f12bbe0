"""From an address to a connection."""

from __future__ import annotations

import os

import torch

from gqe.neighbors.search import resolve_device
from gqe.stores.address import parse
from gqe.stores.base import Store
from gqe.stores.connection import Connection


def connect(url: str | os.PathLike[str], *, device: str | torch.device = "auto") -> Connection:
    """Connect to a vector database.

    Args:
        url: the folder of an index; `postgresql://user@host/db?table=items&vector=embedding&id=id`;
            `qdrant://host:6333/collection` or `qdrant:///folder?collection=NAME` (local mode);
            `milvus://host:19530/collection` or `milvus:///file.db?collection=NAME` (Milvus Lite).
        device: where aggregators run: "auto", "cpu", "cuda"...

    Example:
        >>> import tempfile, gqe
        >>> folder = tempfile.mkdtemp() + "/index"
        >>> _ = gqe.Index.build(np.eye(8), "aqe-g", folder)
        >>> with connect(folder) as items:
        ...     items.search(np.eye(8)[2], k=1).ids.tolist()
        [2]
    """
    return Connection(open_store(url), resolve_device(device))


def open_store(url: str | os.PathLike[str]) -> Store:
    """The store at an address, without anything around it."""
    address = parse(url)
    if address.engine == "pgvector":
        from gqe.stores.pgvector import PgvectorStore

        return PgvectorStore(address)
    if address.engine == "qdrant":
        from gqe.stores.qdrant import QdrantStore

        return QdrantStore(address)
    if address.engine == "milvus":
        from gqe.stores.milvus import MilvusStore

        return MilvusStore(address)
    from gqe.stores.embedded import EmbeddedStore

    return EmbeddedStore(address)
