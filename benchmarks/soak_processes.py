"""The processes and the disk that soak.py needs: `gqe` in processes of their own, and a small file system."""

from __future__ import annotations

import ctypes
import http.client
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from soak_notes import Notes
from soak_oracle import Oracle

FILES = 484
"""Files that the service may have open: 100 connections, and what it keeps for itself."""
_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS
_ENDED = {signal.SIGKILL: -9, signal.SIGTERM: 0, signal.SIGINT: 130}

_processes = multiprocessing.get_context("forkserver")  # imports once, so that processes start at once
_processes.set_forkserver_preload(["gqe.cli", "gqe.index", "gqe.server.app", "pyarrow.parquet", "faiss"])


def start_gqe(arguments: list[str], output: Path, files: int | None = None) -> Any:
    """Run the command line in a process of its own; what it prints goes to the end of a file."""
    process = _processes.Process(target=_run, args=(arguments, output, files), daemon=True)
    process.start()
    return process


def run_gqe(
    arguments: list[str], output: Path, kill: tuple[float, signal.Signals] | None = None
) -> tuple[int, str, signal.Signals | None]:
    """Exit status and output of a command, and the signal if it was killed after some seconds."""
    output.write_bytes(b"")
    process, killed = start_gqe(arguments, output), None
    if kill is not None:
        process.join(kill[0])
        if process.exitcode is None:
            killed = kill[1]
            with suppress(ProcessLookupError):
                os.kill(process.pid, killed)
    process.join()
    return process.exitcode, output.read_text().strip(), killed


def _run(arguments: list[str], output: Path, files: int | None) -> None:
    if files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    with output.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import torch

    from gqe.cli import main

    torch.set_num_threads(1)
    sys.argv = ["gqe", *arguments]
    main()


def small_disk(folder: Path, megabytes: int) -> str | None:
    """Mount a small file system that ends with this process; a reason if that is not possible."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_NEW_MOUNTS):
        return f"a mount needs root: {os.strerror(ctypes.get_errno())}"
    for arguments in (
        ["--make-rprivate", "/"],
        ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)],
    ):
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
        if done.returncode:
            return f"mount: {done.stderr.strip()}"
    return None


class Service:
    """`gqe serve`, which is killed and started again at the same port.

    Args:
        index: its folder.
        log: file for what it prints.
        notes: told of what should not happen.
        oracle: told which version a new process has.
    """

    def __init__(self, index: Path, log: Path, notes: Notes, oracle: Oracle) -> None:
        from gqe.server.runner import bind_socket

        with bind_socket("127.0.0.1", 0) as probe:
            self.port = probe.getsockname()[1]
        self._arguments = ["serve", str(index), "--port", str(self.port), "--rate", "0", "--device", "cpu"]
        self._log, self._notes, self._oracle = log, notes, oracle
        self._lock = threading.Lock()
        self.generation = 0
        self.peak = 0.0
        self._start()

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._process.pid is not None
        return int(self._process.pid)

    def restart(self, how: signal.Signals) -> None:
        """End the process and start another."""
        with self._lock:
            self._end(how)
            self._start()

    def finish(self) -> None:
        """End the process."""
        with self._lock:
            self._end(signal.SIGTERM)

    def outlast(self, generation: int) -> None:
        """Wait until a process has ended, so that it changes nothing any longer; end it if it does not."""
        until = time.monotonic() + 1.5
        while self.generation == generation and time.monotonic() < until:
            time.sleep(0.02)
        with self._lock:
            if self.generation == generation:
                self._end(signal.SIGTERM)
                self._start()

    def resident(self) -> float:
        """Megabytes in memory, 0 if it has just ended; the peak is kept."""
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError:
            return 0.0
        sizes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS", "VmHWM"))}
        if len(sizes) < 2:
            return 0.0
        self.peak = max(self.peak, int(sizes["VmHWM"]) / 1024)
        return int(sizes["VmRSS"]) / 1024

    def open_files(self) -> set[int]:
        """Open descriptors."""
        return {int(path.name) for path in Path(f"/proc/{self.pid}/fd").iterdir()}

    def deny_files(self, seconds: float) -> None:
        """Let it open no more files for a while; again and again, since it allows itself more."""
        with self._lock:  # none is started meanwhile
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                free = min(set(range(FILES)) - self.open_files(), default=FILES)
                resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (free, FILES))
                time.sleep(0.01)
            resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (FILES, FILES))

    def _start(self) -> None:
        version = self._oracle.newest
        self._process = start_gqe(self._arguments, self._log, FILES)
        until = time.monotonic() + 120
        while not self._is_ready():
            if self._process.exitcode is not None:
                self._notes.fail(
                    "crashes", f"the service did not start, exit status {self._process.exitcode}"
                )
                self._process = start_gqe(self._arguments, self._log, FILES)
            if time.monotonic() > until:
                raise SystemExit(f"the service did not start; see {self._log}")
            time.sleep(0.05)
        self.generation += 1
        self._oracle.see(version, service=True)

    def _is_ready(self) -> bool:
        try:
            return Client(self.port).ask("/ready")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _end(self, how: signal.Signals) -> None:
        if self._process.exitcode is not None:
            self._notes.fail("crashes", f"the service ended by itself, exit status {self._process.exitcode}")
            return
        self.resident()
        os.kill(self.pid, how)
        self._process.join(60)
        if self._process.exitcode != _ENDED[how]:
            self._notes.fail("crashes", f"{how.name}: the service ended with {self._process.exitcode}")
            self._process.kill()
            self._process.join()


class Client:
    """A connection that stays open, and is made anew after an error."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, path: str, content: Any = None) -> tuple[int, Any]:
        """Status and content of the answer."""
        body = None if content is None else json.dumps(content)
        try:
            self._connection.request(
                "GET" if body is None else "POST", path, body, {"content-type": "application/json"}
            )
            answer = self._connection.getresponse()
            return answer.status, json.loads(answer.read())
        except BaseException:
            self._connection.close()
            raise
