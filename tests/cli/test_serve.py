"""`gqe serve` as it is started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import numpy as np
import pytest

from gqe.index import Index


def test_the_demonstration_answers_and_ends(tmp_path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from gqe.cli import main; main()",
            "serve",
            "--demo",
            "--port",
            "0",
            "--json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
    )
    try:
        assert process.stdout is not None
        url = json.loads("".join(process.stdout.readline() for _ in range(3)))["url"]
        until = time.monotonic() + 60
        while True:
            try:
                if httpx.get(url + "health").status_code == 200:
                    break
            except httpx.TransportError:
                assert time.monotonic() < until
                time.sleep(0.05)
        about = httpx.get(url + "v1/about", timeout=60).json()
        assert (about["items"], about["expansion"], about["pictures"]) == (3012, "universal", True)
        picture = httpx.get(url + "v1/picture", params={"id": about["examples"][0]}, timeout=60)
        assert picture.content[:2] == b"\xff\xd8"
        assert httpx.get(url + "v1/picture", params={"id": 99999}, timeout=60).status_code == 404
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert not list(tmp_path.glob("gqe-town-*"))  # the copy that was served is gone


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "INDEX"),
        (("index", "--demo"), "INDEX"),
        (("absent",), "absent"),
        (("index", "--tokens", "absent.txt"), "absent.txt"),
        (("index", "--pictures", "."), "--pictures"),
        (("index", "--host", "no.such.host.invalid"), "--host"),
        (("--demo", "--pictures", "."), "--pictures"),
    ],
)
def test_mistakes_are_one_line(gqe, tmp_path, monkeypatch, arguments, named) -> None:
    monkeypatch.chdir(tmp_path)
    Index.build(np.eye(8), "aqe", "index", device="cpu")
    ran = gqe("serve", "--port", "0", *arguments)
    assert ran.status == 2
    assert named in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_a_port_that_is_taken(gqe, tmp_path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = gqe("serve", "--demo", "--port", taken.getsockname()[1])
    assert ran.status == 2
    assert "choose another" in ran.err
