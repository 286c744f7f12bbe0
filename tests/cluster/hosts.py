"""Hosts of their own on this machine: Linux namespaces, joined by a wire that can be slow, lossy and cut.

Each host has its processes, its network with one address, its name, /tmp and shared memory; `Hosts.shared` is
/mnt on all of them. Traffic goes between them only: the wire is a process with one end of each host's network
device. All are children of one process that dies with the tests, and nothing has a name in the system, so the
system takes everything back however the tests end.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

PORT = 6379
# Of all commands on hosts.
SETTINGS = {
    # A cluster notices after some two seconds, not after half a minute, that a host has gone.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_enable_metrics_collection": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(str(Path(__file__).parents[2] / part) for part in ("src", "tests")),
}
# What a host does before it lives: its own /tmp and shared memory, what is shared at /mnt.
_INIT = """
mount --bind "$1" /mnt && mount --bind "$2" /tmp && mount -t tmpfs -o size=1g tmpfs /dev/shm &&
hostname "$3" && ip link set lo up && echo ready && exec sleep infinity
"""


@cache
def why_not() -> str | None:
    """Why there cannot be hosts here; None if there can."""
    if sys.platform != "linux":
        return "namespaces need Linux"
    for tool in ("unshare", "nsenter", "ip", "setpriv"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (util-linux, iproute2)"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun cannot be opened"
    tried = subprocess.run([*_unshare(), "ip", "tuntap", "add", "try", "mode", "tap"], capture_output=True)
    return f"namespaces are not allowed: {tried.stderr.decode().strip()}" if tried.returncode else None


class Host:
    """A running host.

    Args:
        number: 1 or more, the end of its address.
        folder: of what is shared, and of its own /tmp.
    """

    def __init__(self, number: int, shared: Path, own: Path) -> None:
        self.address = f"10.231.77.{number}"
        self.own = own
        own.mkdir(parents=True)
        init = ["sh", "-c", _INIT, "init", str(shared), str(own), f"host-{number}"]
        self._outer = subprocess.Popen(
            [*_unshare("--mount", "--pid", "--uts", "--mount-proc"), *init],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._outer.stdout is not None
        assert self._outer.stderr is not None
        assert self._outer.stdout.readline() == b"ready\n", self._outer.stderr.read().decode()
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        self.process = int(children.read_text())

    def command(self, *command: str) -> list[str]:
        """A command as it has to be called here to run there."""
        return ["nsenter", "-t", str(self.process), "-n", "-m", "-p", "-u", "--", *command]

    def run(self, *command: str) -> str:
        """Run a command there to its end; what it writes."""
        started = self.start(*command)
        out, err = started.communicate(timeout=900)
        assert started.returncode == 0, f"{command}: {out[-1500:]} {err[-3000:]}"
        return out

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command there, to be spoken with line by line."""
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(self.command(*command), text=True, env=os.environ | SETTINGS, **pipes)

    def start_ray(self, head: Host | None = None, cpus: int = 1) -> None:
        """Start the node of a cluster; the head of one if none is given."""
        where = ["--head", "--port", str(PORT), "--include-dashboard=false"]
        if head is not None:
            where = ["--address", f"{head.address}:{PORT}"]
        sizes = ["--num-cpus", str(cpus), "--object-store-memory", str(128 << 20)]
        ray = str(Path(sys.executable).with_name("ray"))
        self.run(ray, "start", *where, *sizes, "--node-ip-address", self.address, "--disable-usage-stats")

    def kill(self) -> None:
        """As by a power failure: all processes end, and nobody is told."""
        with suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        self._outer.wait()


class Hosts:
    """Hosts on a wire.

    Attributes:
        shared: what is /mnt on all of them.
        all: those that were started, the dead ones included.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shared = folder / "shared"
        self.shared.mkdir(parents=True)
        self.all: list[Host] = []
        script = Path(__file__).with_name("wire.py")
        self._wire = subprocess.Popen(
            [*_unshare(), sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def add(self) -> Host:
        """One more host."""
        number = len(self.all) + 1
        host = Host(number, self.shared, self.folder / f"host-{number}")
        self.all.append(host)
        self.tell(add=[number, host.process])
        host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        return host

    def cut(self, *hosts: Host) -> None:
        """Let nothing through to these hosts, nor from them; with none, heal the network."""
        self.tell(cut=[self.all.index(host) + 1 for host in hosts])

    def disturb(self, seconds: float, share: float) -> None:
        """Delay every frame, and lose a share of them."""
        self.tell(delay=seconds, loss=share)

    def tell(self, **what: Any) -> dict[str, int]:
        """Tell the wire something; what has gone through it so far."""
        assert self._wire.stdin is not None
        assert self._wire.stdout is not None
        self._wire.stdin.write(json.dumps(what) + "\n")
        self._wire.stdin.flush()
        answer: dict[str, int] = json.loads(self._wire.stdout.readline())
        return answer

    def close(self) -> None:
        """End all hosts."""
        for host in self.all:
            host.kill()
        self._wire.kill()
        self._wire.wait()


@contextmanager
def hosts(count: int, folder: Path) -> Iterator[Hosts]:
    """Some hosts, gone at the end."""
    made = Hosts(folder)
    try:
        for _ in range(count):
            made.add()
        yield made
    finally:
        made.close()


def _unshare(*more: str) -> Sequence[str]:
    """A process with a network of its own, which dies with this one, and with it all that it starts."""
    user = ["--map-root-user"] if os.geteuid() else []
    return ["setpriv", "--pdeathsig", "KILL", "unshare", *user, "--net", *more, "--fork", "--kill-child"]
