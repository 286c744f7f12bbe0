"""Small indexes, and a real server on a free port."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn
from PIL import Image

from gqe.extraction.preprocessing import FitLongerSide
from gqe.index import Index
from gqe.server import Settings, Tokens, create_app
from gqe.server.pictures import PictureVectors
from gqe.server.runner import bind_socket, create_server

DIM = 16
READ, WRITE, BOTH = "token-that-may-read", "token-that-may-write", "token-that-may-do-both"
TOKENS = Tokens({READ: {"read"}, WRITE: {"write"}, BOTH: {"read", "write"}})


def vectors(n: int, seed: int = 0, dim: int = DIM) -> np.ndarray:
    """(n, dim) unit vectors around a few centres."""
    centres = np.random.default_rng(99).normal(size=(8, dim))
    rng = np.random.default_rng(seed)
    made = centres[rng.integers(8, size=n)] + 0.6 * rng.normal(size=(n, dim))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def build(path: Path, n: int = 120, expander: Any = "aqe-g", **settings: Any) -> Index:
    return Index.build(vectors(n), expander, path, device="cpu", **settings)


class Served:
    """A running server."""

    def __init__(self, app: Any, url: str) -> None:
        self.app, self.url = app, url
        self.client = httpx.Client(base_url=url, timeout=30)

    def post(self, path: str, content: Any = None, **given: Any) -> httpx.Response:
        return self.client.post(path, json=content, **given)

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self.client.get(path, **given)


@contextmanager
def serving(engine: Any, settings: Settings | None = None, **parts: Any) -> Iterator[Served]:
    """A real uvicorn in a thread, ready to answer."""
    app = create_app(engine, settings, **parts)
    with running(app, create_server(app), bind_socket("127.0.0.1", 0)) as served:
        yield served


@contextmanager
def running(
    app: Any, server: uvicorn.Server, listening: socket.socket, ready: str = "/ready"
) -> Iterator[Served]:
    port = listening.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    served = Served(app, f"http://127.0.0.1:{port}")
    try:
        wait_until(lambda: _ready(served, ready))
        yield served
    finally:
        served.client.close()
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def _ready(served: Served, path: str) -> bool:
    try:
        return served.get(path).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(happened: Any, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def jpeg(seed: int = 0, side: int = 64) -> bytes:
    """Coarse noise as a JPEG file."""
    noise = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(noise).resize((side, side)).save(content, format="JPEG")
    return content.getvalue()


class Tiny:
    """A network that averages a picture into DIM numbers."""

    prepare = FitLongerSide(32, 32)
    dimension = DIM

    def run(self, pixels: np.ndarray) -> np.ndarray:
        flat = pixels.reshape(len(pixels), -1).astype(np.float32)
        return np.stack([part.mean(axis=1) + 1 for part in np.array_split(flat, DIM, axis=1)], axis=1)


def describer(max_pixels: int = 1_000_000) -> PictureVectors:
    return PictureVectors(Tiny(), None, max_pixels=max_pixels)


def embedder() -> Callable[[str], np.ndarray]:
    """A text to DIM numbers: how often each code point occurs, by its remainder."""

    def embed(text: str) -> np.ndarray:
        counts = np.bincount([ord(character) % DIM for character in text], minlength=DIM) + 1.0
        return (counts / np.linalg.norm(counts)).astype(np.float32)

    return embed


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}
