"""A long mixed load with faults: whether an acknowledged change is lost, or an answer wrong.

    python benchmarks/soak.py                                  # ten minutes
    python benchmarks/soak.py --seconds 30 --items 300 --method aqe-g

Clients add, remove and search over HTTP while `gqe index` in other processes adds, updates, removes and
compacts. Meanwhile the service and these processes are killed, the disk is filled up (a small file system
of its own; root only), and the service runs out of open files. Everything that comes back is compared with
an oracle (soak_oracle.py). Prints one JSON object; exit status 1 if anything was lost, wrong or unexpected.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import json
import os
import random
import resource
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from soak_load import SIGNALS, Load, new_items
from soak_notes import FULL, IDLE, Notes
from soak_oracle import Oracle
from soak_processes import FILES, Service, run_gqe, small_disk

from gqe.index import Index
from gqe.index.manifest import RESERVED, read_manifest
from gqe.methods import parse_method
from gqe.models import from_method

GRACE = 20.0  # seconds; the service looks for others' changes every second, on a machine that may be busy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--items", type=int, default=2000, help="about as many stay in the index")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--method", default="universal")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between two requests of a client")
    parser.add_argument("--megabytes", type=int, default=64, help="size of the index's file system")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="keep what the service prints in this file")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    notes = Notes(options.log)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "disk").mkdir()
        skipped = small_disk(place / "disk", options.megabytes)
        try:
            numbers = run(options, place, notes, skipped)
        finally:
            if skipped is None:
                subprocess.run(["umount", "--lazy", place / "disk"], check=True)
    names = ("seconds", "items", "dim", "method", "clients")
    about = {name: getattr(options, name) for name in names} | {
        "full disks": f"skipped: {skipped}" if skipped else "injected"
    }
    print(json.dumps(about | numbers | notes.report(), indent=2))
    raise SystemExit(1 if notes.problems else 0)


def run(options: argparse.Namespace, place: Path, notes: Notes, skipped: str | None) -> dict[str, Any]:
    """Load and faults until the time is over, then the last checks."""
    path, log = place / "disk" / "index", options.log or place / "service.log"
    items = new_items(list(range(options.items)), options.dim, np.random.default_rng(options.seed))
    expander = from_method(parse_method(options.method))
    Index.build(items.vectors, expander, path, metadata={"year": items.years}, device="cpu")
    oracle = Oracle(items, GRACE)
    load = Load(options, place, items, oracle, notes)
    service = Service(path, log, notes, oracle)
    memory, files = {"start": service.resident()}, {"start": len(service.open_files())}
    threads = load.start(service)
    try:
        inject(options.seconds, Faults(service, place / "disk", notes, skipped), load)
    finally:
        load.stop.set()
        for thread in threads:
            thread.join()
    time.sleep(1.0)  # connections that were closed are gone
    memory |= {"end": service.resident(), "peak": service.peak}
    files["end"] = len(service.open_files())
    service.finish()
    load.read_content()
    load.check()
    verified = final(notes, ["index", "verify", str(path)], place)
    final(notes, ["index", "compact", str(path), "--device", "cpu"], place)
    # After one more change nothing is left of those that were stopped.
    named = {name.split("/")[0] for name in read_manifest(path).files} | set(RESERVED)
    left = sorted(each.name for each in path.iterdir() if each.name not in named)
    if left:
        notes.fail("left over files", str(left))
    return {
        "versions": oracle.newest,
        "verify": verified.rpartition(": ")[2],
        "left over files": len(left),
        "resident MB of the service": {name: round(size, 1) for name, size in memory.items()},
        "open descriptors of the service": files,
    }


def final(notes: Notes, arguments: list[str], place: Path) -> str:
    """Output of a command that must succeed."""
    status, output, _ = run_gqe(arguments, place / "output")
    if status:
        notes.fail("unexpected errors", f"{' '.join(arguments)}: {status}: {output}")
    return output


def inject(seconds: float, faults: Faults, load: Load) -> None:
    """Faults in turn, with a rest between them."""
    while not load.notes.acknowledged and not load.notes.problems:
        time.sleep(0.1)  # a busy machine takes its time to begin
    until, rest = time.monotonic() + seconds, min(12.0, max(1.0, seconds / 15))
    for fault in itertools.cycle([faults.fill_disk, faults.kill, faults.exhaust_files]):
        time.sleep(rest)
        if time.monotonic() > until:
            return
        fault(min(4.0, rest))
        load.read_content()


class Faults:
    """What goes wrong.

    Args:
        service: that is killed, and gets no files.
        disk: that is filled up.
        notes: told how long each lasts.
        skipped: why the disk cannot be filled up; None if it can.
    """

    def __init__(self, service: Service, disk: Path, notes: Notes, skipped: str | None) -> None:
        self.service, self.disk, self.notes, self.skipped = service, disk, notes, skipped
        self._signals = itertools.cycle(SIGNALS)

    def fill_disk(self, seconds: float) -> None:
        """Fill the disk but for some KB, and free it again."""
        if self.skipped is not None:
            return
        ballast, room = self.disk / "ballast", random.choice([0, 4, 20, 100])
        with self.notes.during(FULL):
            with ballast.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                file.truncate(max(0, file.tell() - room * 1024))
            time.sleep(seconds)
            ballast.unlink()

    def kill(self, _: float) -> None:
        """Kill the service and start it again."""
        how = next(self._signals)
        with self.notes.during(f"{how.name} of the service"):
            self.service.restart(how)

    def exhaust_files(self, seconds: float) -> None:
        """Many idle connections; then no file can be opened at all."""
        with self.notes.during(IDLE), ExitStack() as opened:
            for _ in range(2 * FILES):  # none waits for another
                idle = opened.enter_context(socket.socket())
                idle.setblocking(False)
                idle.connect_ex(("127.0.0.1", self.service.port))
            time.sleep(seconds / 2)
        with self.notes.during("no file can be opened"):
            self.service.deny_files(seconds / 2)


if __name__ == "__main__":
    main()
