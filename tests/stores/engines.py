"""What the tests of the stores share: small data, and the same data in every engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gqe import Expander
from gqe.aggregators import Affinity, Alpha, Mean

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
        "affinity": Expander(affinity, "affinity"),
        "deep": Expander([Alpha(3), Mean(4), Alpha(3)], "deep"),
        "flat": Expander([Alpha(3)], "flat"),
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

    def create(self, ids: Sequence[Any], table: np.ndarray, *, distance: str = "Cosine") -> str:
        from qdrant_client import QdrantClient, models

        folder = self.folder / f"qdrant{next(_number)}"
        client = QdrantClient(path=str(folder))
        distance = models.Distance(distance)
        client.create_collection(
            "items", vectors_config=models.VectorParams(size=table.shape[1], distance=distance)
        )
        payloads = [{"year": YEARS[at % N], "kind": KINDS[at % N]} for at in range(len(ids))]
        if len(ids):
            client.upsert("items", models.Batch(ids=list(ids), vectors=table.tolist(), payloads=payloads))
        client.close()
        return f"qdrant://{folder}?collection=items"


class Milvus(Engine):
    name = "milvus"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def release(path: Path) -> None:
        """Let other processes open the file."""
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_server(str(path))

    def create(
        self, ids: Sequence[Any], table: np.ndarray, *, metric: str = "COSINE", index: str = "FLAT"
    ) -> str:
        from pymilvus import DataType, MilvusClient

        path = self.folder / f"milvus{next(_number)}.db"
        client = MilvusClient(str(path))
        schema = client.create_schema(auto_id=False, enable_dynamic_field=True)
        if not len(ids) or isinstance(ids[0], int):
            schema.add_field("id", DataType.INT64, is_primary=True)
        else:
            schema.add_field("id", DataType.VARCHAR, max_length=64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=table.shape[1])
        schema.add_field("year", DataType.INT64)
        params = client.prepare_index_params()
        params.add_index("vector", index_type=index, metric_type=metric)
        client.create_collection("items", schema=schema, index_params=params)
        rows = [
            {"id": i, "vector": v.tolist(), "year": YEARS[at % N], "kind": KINDS[at % N]}
            for at, (i, v) in enumerate(zip(ids, table, strict=True))
        ]
        if rows:
            client.upsert("items", rows)
        client.close()
        self.release(path)
        return f"milvus://{path}?collection=items"


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
