"""What the service costs beside the index alone: throughput and times over loopback.

    python benchmarks/serve.py                        # 20,000 x 256, `universal`, 10 s for each row
    python benchmarks/serve.py --seconds 3 --items 5000

The server runs in a process of its own, the clients in another one (plain sockets that stay open, JSON made
beforehand). Compared are: the service with batches and with one query a call, plain faiss (IndexFlatIP, no
expansion) behind the same service, and the index searched in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import clustered, timed

K = 10
CLIENTS = (1, 8, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--method", default="universal")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each row")
    parser.add_argument("--kinds", default="batches,single,faiss", help="which servers to measure")
    options = parser.parse_args()
    import torch

    from gqe.index import Index
    from gqe.methods import parse_method
    from gqe.models import from_method

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "index")
        table = clustered(options.items, options.dim)
        index = Index.build(table, from_method(parse_method(options.method)), path, device="cpu")
        queries = clustered(1000, options.dim, seed=1)
        about = {"items": options.items, "dim": options.dim, "method": options.method}
        rows: dict[str, Any] = {"in process": in_process(index, queries, options.seconds)}
        del index
        for name, kind in (("batches", "batches"), ("one by one", "single"), ("faiss", "faiss")):
            if kind not in options.kinds.split(","):
                continue
            with Server(path, kind) as server:
                rows[name] = {count: loaded(server, queries, count, options.seconds) for count in CLIENTS}
        goal: dict[str, Any] = {}
        if "batches" in rows and "one by one" in rows:
            ratio = rows["batches"][64]["requests a second"] / rows["one by one"][64]["requests a second"]
            goal = {"batches beside one by one, 64 clients": round(ratio, 2), "goal": ">= 3"}
        print(json.dumps(about | rows | goal, indent=2))


def in_process(index: Any, queries: np.ndarray, seconds: float) -> dict[str, Any]:
    """The index alone: queries one by one, and 64 in a call."""
    index.search(queries[:64], K)
    result = {}
    for size in (1, 64):
        times, until, at = [], time.perf_counter() + seconds, 0
        while time.perf_counter() < until:
            times.append(timed(lambda at=at, size=size: index.search(queries[at : at + size], K))[0])
            at = (at + size) % (len(queries) - size)
        result[f"{size} a call"] = {
            "queries a second": round(size * len(times) / sum(times), 1),
            "p50 ms": round(1000 * statistics.median(times), 2),
        }
    return result


class Server:
    """The service in a process of its own."""

    def __init__(self, path: Path, kind: str) -> None:
        from gqe.server.runner import bind_socket

        self.socket = bind_socket("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=serve, args=(path, kind, self.socket))

    def __enter__(self) -> Server:
        self.process.start()
        asyncio.run(ready(self.port))
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGTERM)
        self.process.join(30)

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(path: Path, kind: str, listening: Any) -> None:
    import torch

    from gqe.index import Index
    from gqe.server import IndexEngine, Settings, create_app
    from gqe.server.runner import run

    torch.set_num_threads(1)
    index = Index.open(path, device="cpu")
    engine = faiss_engine(index) if kind == "faiss" else IndexEngine(index)
    settings = Settings(rate=0, max_batch=1 if kind == "single" else 64)
    run(create_app(engine, settings), listening)


def faiss_engine(index: Any) -> Any:
    """The same items in a flat faiss index, searched without expansion."""
    import faiss

    from gqe import SearchResult
    from gqe.server import IndexEngine

    faiss.omp_set_num_threads(1)

    class Faiss(IndexEngine):
        def __init__(self) -> None:
            super().__init__(index)
            self.flat = faiss.IndexFlatIP(index.dimension)
            self.flat.add(self.vectors(index.ids.tolist()))

        def search(self, queries: Any, exclude: Any, options: Any) -> SearchResult:
            return SearchResult(*self.flat.search(queries, options.k))

    return Faiss()


def request(path: str, content: Any = None) -> bytes:
    """A request as it goes over the wire."""
    body = b"" if content is None else json.dumps(content).encode()
    head = f"{'GET' if content is None else 'POST'} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Client:
    """A connection that stays open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def at(cls, port: int) -> Client:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 22))

    async def ask(self, content: bytes) -> tuple[int, bytes]:
        """Send a request; status and body of its answer."""
        self.writer.write(content)
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        return int(head[9:12]), await self.reader.readexactly(length)


async def ready(port: int) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            if (await (await Client.at(port)).ask(request("/ready")))[0] == 200:
                return
        except (OSError, asyncio.IncompleteReadError):
            pass
        await asyncio.sleep(0.1)
    raise SystemExit("the server did not start")


def loaded(server: Server, queries: np.ndarray, clients: int, seconds: float) -> dict[str, Any]:
    """Throughput and times, and what a request costs the server: that hardly depends on other work."""
    before = server.cpu()
    row, count = asyncio.run(load(server.port, queries, clients, seconds))
    return row | {"server's CPU ms a request": round(1000 * (server.cpu() - before) / count, 2)}


async def load(port: int, queries: np.ndarray, clients: int, seconds: float) -> tuple[dict[str, Any], int]:
    """Every client asks again as soon as it is answered."""
    bodies = [request("/v1/search", {"vectors": [query.tolist()], "k": K}) for query in queries]
    times: list[float] = []
    begun = time.perf_counter()

    async def one(number: int) -> None:
        client = await Client.at(port)
        while (now := time.perf_counter()) - begun < seconds:
            status, _ = await client.ask(bodies[number % len(bodies)])
            assert status == 200
            times.append(time.perf_counter() - now)
            number += clients

    await asyncio.gather(*(one(number) for number in range(clients)))
    elapsed = time.perf_counter() - begun
    p50, p99 = np.percentile(times, [50, 99]) * 1000
    row = {
        "requests a second": round(len(times) / elapsed, 1),
        "p50 ms": round(float(p50), 2),
        "p99 ms": round(float(p99), 2),
    }
    return row, len(times)


if __name__ == "__main__":
    main()
