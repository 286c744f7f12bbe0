"""The service as a process: signals."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress

import httpx

from server.test_writes import Process
from server.worlds import build, vectors


def test_a_second_interrupt_shows_no_traceback(tmp_path) -> None:
    build(tmp_path / "index", n=1000)
    served = Process(tmp_path / "index")
    many = {"vectors": vectors(1000).tolist(), "k": 200}

    def ask() -> None:
        with suppress(httpx.TransportError):  # it is cut off
            httpx.post(served.url + "/v1/search", json=many, timeout=30)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)  # some of them are under way
    served.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    if served.process.poll() is None:
        served.process.send_signal(signal.SIGINT)
    _, errors = served.process.communicate(timeout=60)
    for thread in threads:
        thread.join()
    assert served.process.returncode == 130
    assert "Traceback" not in errors
