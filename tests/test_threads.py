"""Threads that wait leave their core to others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gqe.threads import sleep_while_waiting

# CPU seconds of some queries by `universal`, in a process with as many threads as there are cores.
QUERIES = """
import time
import numpy as np, gqe
x = np.random.default_rng(0).normal(size=(2000, 128)).astype("float32")
expander = gqe.expander("universal").fit(x)
expander.expand(x[:8])
start = time.process_time()
for at in range(0, 96, 8):
    expander.expand(x[at : at + 8])
print(time.process_time() - start)
"""


def run(code: str, **changed: str) -> subprocess.CompletedProcess[str]:
    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {name: value for name, value in os.environ.items() if name not in names} | changed
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the OpenMP of Linux says what it read")
def test_openmp_has_read_that_threads_sleep() -> None:
    shown = run("import gqe; gqe.expander", OMP_DISPLAY_ENV="true").stderr
    policies = [line.split("=")[1].strip() for line in shown.splitlines() if "OMP_WAIT_POLICY" in line]
    assert policies
    assert set(policies) == {"'PASSIVE'"}


def test_what_the_user_chose_stays() -> None:
    for chosen in ({"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "9"}, {"KMP_BLOCKTIME": "200"}):
        environment = dict(chosen)
        sleep_while_waiting(environment)
        assert environment == chosen
    empty: dict[str, str] = {}
    sleep_while_waiting(empty)
    assert empty == {"OMP_WAIT_POLICY": "passive"}


@pytest.mark.slow
def test_other_programs_do_not_make_it_dearer() -> None:
    quiet = float(run(QUERIES).stdout)
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)
    ]
    try:
        busy = float(run(QUERIES).stdout)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert busy <= 1.5 * quiet
