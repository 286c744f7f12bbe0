"""What the tests of the stores share: small data, and the same data in every engine."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gqe import Expander
from gqe.aggregators import Affinity, Alpha, Mean
from gqe.query_options import QueryOptions

DIM = 16
N = 120
YEARS = [2000 + i % 7 for i in range(N)]
KINDS = ["a" if i % 3 else "b'\"c" for i in range(N)]
_number = itertools.count()


def unit(table: np.ndarray) -> np.ndarray:
    return (table / np.linalg.norm(table, axis=1, keepdims=True)).astype(np.float32)


def vectors(n: int, seed: int = 0) -> np.ndarray:
    """(n, DIM) unit vectors around a few centres."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(8, DIM))
    return unit(centres[rng.integers(8, size=n)] + 0.8 * rng.normal(size=(n, DIM)))


TABLE = vectors(N)
QUERIES = vectors(6, seed=1)


def expanders() -> dict[str, Expander]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        affinity = [Affinity(4, width=8, layers=1, heads=2, base=i > 0) for i in range(2)]
    return {
        "affinity": Expander(affinity, "affinity", query_options=QueryOptions(0.4)),
        "deep": Expander([Alpha(3), Mean(4), Alpha(3)], "deep"),
        "flat": Expander([Alpha(3)], "flat", query_options=QueryOptions(0.2)),
    }


class Engine:
    """Makes collections in one engine and gives their addresses."""

    name = ""

    def create(self, ids: Sequence[Any], table: np.ndarray, **settings: Any) -> str:
        raise NotImplementedError


class Postgres(Engine):
    name = "pgvector"

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def run(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        import psycopg

        with psycopg.connect(self.uri, autocommit=True) as connection:
            cursor = connection.execute(text, values)
            return cursor.fetchall() if cursor.description else []

    def create(
        self,
        ids: Sequence[Any],
        table: np.ndarray,
        *,
        column: str = "vector",
        index: str = "",
        fields: bool = True,
    ) -> str:
        import psycopg
        from pgvector.psycopg import register_vector

        name = f"items{next(_number)}"
        kind = "bigint" if not len(ids) or isinstance(ids[0], int) else "text"
        with psycopg.connect(self.uri, autocommit=True) as connection:
            register_vector(connection)
            connection.execute(
                f"CREATE TABLE {name} (id {kind} PRIMARY KEY, embedding {column}({table.shape[1]}),"
                " year int, kind text)"
            )
            rows = [
                (i, v, YEARS[at % N], KINDS[at % N]) for at, (i, v) in enumerate(zip(ids, table, strict=True))
            ]
            with connection.cursor() as cursor:
                cursor.executemany(f"INSERT INTO {name} VALUES (%s, %s, %s, %s)", rows)
            if index:
                connection.execute(f"CREATE INDEX ON {name} USING {index}")
        return f"{self.uri}&table={name}"


class Qdrant(Engine):
    name = "qdrant"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self) -> tuple[Any, str, str]:
        """A client, a new collection's name, and its address."""
        from qdrant_client import QdrantClient

        folder = self.folder / f"qdrant{next(_number)}"
        return QdrantClient(path=str(folder)), "items", f"qdrant://{folder}?collection=items"

    def create(self, ids: Sequence[Any], table: np.ndarray, *, distance: str = "Cosine") -> str:
        from qdrant_client import models

        client, name, url = self.place()
        client.create_collection(
            name,
            vectors_config=models.VectorParams(size=table.shape[1], distance=models.Distance(distance)),
        )
        payloads = [{"year": YEARS[at % N], "kind": KINDS[at % N]} for at in range(len(ids))]
        if len(ids):
            batch = models.Batch(ids=list(ids), vectors=table.tolist(), payloads=payloads)
            client.upsert(name, batch, wait=True)
        client.close()
        return url


class QdrantServer(Qdrant):
    """A server that runs already, at an address such as qdrant://127.0.0.1:6333."""

    name = "qdrant-server"

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")

    def place(self) -> tuple[Any, str, str]:
        from qdrant_client import QdrantClient

        name = f"gqe_test_{os.getpid()}_{next(_number)}"
        return QdrantClient(self.address.replace("qdrant", "http", 1)), name, f"{self.address}/{name}"


class Milvus(Engine):
    name = "milvus"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def release(url: str) -> None:
        """Let other processes open the file."""
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_server(url.removeprefix("milvus://").partition("?")[0])

    def place(self) -> tuple[Any, str, str]:
        """A client, a new collection's name, and its address."""
        from pymilvus import MilvusClient

        path = self.folder / f"milvus{next(_number)}.db"
        return MilvusClient(str(path)), "items", f"milvus://{path}?collection=items"

    def create(
        self, ids: Sequence[Any], table: np.ndarray, *, metric: str = "COSINE", index: str = "FLAT"
    ) -> str:
        from pymilvus import DataType

        client, name, url = self.place()
        schema = client.create_schema(auto_id=False, enable_dynamic_field=True)
        if not len(ids) or isinstance(ids[0], int):
            schema.add_field("id", DataType.INT64, is_primary=True)
        else:
            schema.add_field("id", DataType.VARCHAR, max_length=64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=table.shape[1])
        schema.add_field("year", DataType.INT64)
        params = client.prepare_index_params()
        settings = {"M": 16, "efConstruction": 200} if index == "HNSW" else {}
        params.add_index("vector", index_type=index, metric_type=metric, params=settings)
        client.create_collection(name, schema=schema, index_params=params)
        rows = [
            {"id": i, "vector": v.tolist(), "year": YEARS[at % N], "kind": KINDS[at % N]}
            for at, (i, v) in enumerate(zip(ids, table, strict=True))
        ]
        if rows:
            client.upsert(name, rows)
        client.close()
        self.release(url)
        return url


class MilvusServer(Milvus):
    """A server that runs already, at an address such as milvus://127.0.0.1:19530."""

    name = "milvus-server"

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")

    @staticmethod
    def release(url: str) -> None:
        """Nobody holds a server alone."""

    def place(self) -> tuple[Any, str, str]:
        from pymilvus import MilvusClient

        name = f"gqe_test_{os.getpid()}_{next(_number)}"
        return MilvusClient(self.address.replace("milvus", "http", 1)), name, f"{self.address}/{name}"


class Lance(Engine):
    name = "lancedb"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(
        self, ids: Sequence[Any], table: np.ndarray, *, index: str = "", distance: str = "cosine"
    ) -> str:
        import lancedb
        import pyarrow as pa

        folder = self.folder / f"lance{next(_number)}"
        kind = pa.int64() if not len(ids) or isinstance(ids[0], int) else pa.string()
        columns = {
            "id": pa.array(list(ids), kind),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(table.reshape(-1)), table.shape[1]),
            "year": pa.array([YEARS[at % N] for at in range(len(ids))], pa.int64()),
            "kind": pa.array([KINDS[at % N] for at in range(len(ids))], pa.string()),
        }
        items = lancedb.connect(folder).create_table("items", pa.table(columns))
        if index:
            settings = getattr(lancedb.index, index)(distance_type=distance, num_partitions=2)
            items.create_index("vector", config=settings)
        return f"lancedb://{folder}?table=items"


class Embedded(Engine):
    name = "embedded"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self, ids: Sequence[Any], table: np.ndarray, *, expander: Expander | None = None) -> str:
        from gqe.index import Index

        folder = self.folder / f"index{next(_number)}"
        metadata = {
            "year": [YEARS[at % N] for at in range(len(ids))],
            "kind": [KINDS[at % N] for at in range(len(ids))],
        }
        Index.build(
            table, expander or expanders()["affinity"], folder, ids=list(ids), metadata=metadata, device="cpu"
        )
        return str(folder)


Progress = Callable[[int, int, str], None]
