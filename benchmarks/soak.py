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
import contextlib
import errno
import http.client
import itertools
import json
import os
import random
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import clustered
from soak_oracle import Answer, Content, Items, Oracle, Query
from soak_processes import FILES, Client, Service, small_disk, start_gqe

GRACE = 20.0  # seconds; the service looks for others' changes every second, on a machine that may be busy
CALM, IDLE = "no fault", "idle connections"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
YEARS = 7
# What a 503 says that may come without a fault.
BUSY = ("another process is changing", "others are being prepared", "no answer in time", "too many", "ending")


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
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as place:
        disk = Path(place, "disk")
        disk.mkdir()
        skipped = small_disk(disk, options.megabytes)
        try:
            soak = Soak(options, Path(place), disk, skipped)
            soak.run()
        finally:
            if skipped is None:
                subprocess.run(["umount", "--lazy", disk], check=True)
    print(json.dumps(soak.report(), indent=2))
    raise SystemExit(1 if soak.has_failed() else 0)


class Soak:
    """One run.

    Args:
        options: see `main`.
        place: folder for files that the commands read.
        disk: folder of the index.
        skipped: why the disk cannot be filled up; None if it can.
    """

    def __init__(self, options: argparse.Namespace, place: Path, disk: Path, skipped: str | None) -> None:
        import torch

        from gqe.index import Index
        from gqe.methods import parse_method
        from gqe.models import from_method

        torch.set_num_threads(1)
        self.options, self.place, self.disk, self.skipped = options, place, disk, skipped
        self.path = disk / "index"
        self.new_ids = itertools.count()
        first = self.new_items(options.items, np.random.default_rng(options.seed))
        expander = from_method(parse_method(options.method))
        Index.build(first.vectors, expander, self.path, metadata={"year": first.years}, device="cpu")
        self.oracle = Oracle(first, GRACE)
        self.lock = threading.Lock()
        self.free = set(first.ids)  # that no change is under way for
        self.stop = threading.Event()
        self.fault, self.calm_since = CALM, 0.0
        self.pending: deque[tuple[Query, Answer, int, float]] = deque()
        self.contents: deque[tuple[Content, float]] = deque()
        self.acknowledged: Counter[str] = Counter()
        self.not_acknowledged: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.refused: dict[str, Counter[str]] = {}
        self.lost: Counter[str] = Counter()
        self.problems: list[str] = []  # anything that makes the run fail, in words
        self.wrong = self.unexpected = self.half = 0
        self.log = options.log or place / "service.log"

    def run(self) -> None:
        """Load and faults until the time is over, then the last checks."""
        self.service = Service(self.path, self.log, self.fail, self.oracle)
        self.rerankers = Client(self.service.port).ask("/v1/about")[1]["rerankers"]
        self.start_memory, self.start_files = self.service.resident(), len(self.service.open_files())
        loads = [
            threading.Thread(target=self.guard, args=(self.client, i)) for i in range(self.options.clients)
        ]
        loads.append(threading.Thread(target=self.guard, args=(self.others,)))
        for load in loads:
            load.start()
        try:
            self.inject(time.monotonic() + self.options.seconds)
        finally:
            self.stop.set()
            for load in loads:
                load.join()
        time.sleep(1.0)  # connections that were closed are gone
        self.end_memory, self.end_files = self.service.resident(), len(self.service.open_files())
        self.service.finish()
        self.read_content()
        self.check()
        status, output = self.gqe("index", "verify", str(self.path))
        self.verified = output
        if status:
            self.fail(f"verify: {output}")
        self.check_leftovers()

    def guard(self, work: Any, *given: Any) -> None:
        """Do something in a thread; its failure is one of the run."""
        try:
            work(*given)
        except Exception as error:
            self.fail(f"{work.__name__}: {type(error).__name__}: {error}")
            raise

    def fail(self, line: str) -> None:
        """Note what must not happen."""
        with self.lock:
            self.problems.append(line)
        if self.options.log:
            with self.options.log.open("a") as file:
                file.write(f"soak: {time.monotonic():.1f} {self.fault}: {line}\n")

    # The load over HTTP

    def client(self, number: int) -> None:
        """Changes and searches, one after the other."""
        rng, client = np.random.default_rng([self.options.seed, number]), Client(self.service.port)
        while not self.stop.is_set():
            (self.change if rng.random() < 0.3 else self.search)(client, rng)
            self.check()
            time.sleep(self.options.pause)

    def change(self, client: Client, rng: np.random.Generator) -> None:
        """Add or remove a few items."""
        added, removed = self.new_change(rng)
        if added is not None:
            path = "/v1/items"
            content: dict[str, Any] = {"vectors": added.vectors.tolist(), "ids": added.ids}
            content["metadata"] = {"year": added.years}
        else:
            path, content = "/v1/items/remove", {"ids": removed}
        kind = "HTTP " + ("remove" if added is None else "add")
        sent, generation = self.oracle.send(), self.service.generation
        answered = self.ask(client, path, content)
        if answered is not None and answered[0] == 200:
            self.acknowledged[kind] += 1
            self.oracle.store(sent, added, removed, answered[1]["version"], known=True, service=True)
            self.release(added, removed, stored=True)
            return
        self.not_acknowledged[kind] += 1
        if answered is None or "still being stored" in answered[1]["detail"]:
            self.service.outlast(generation)
        elif answered[0] < 500:
            self.wrong += 1
            self.fail(f"{kind} was refused: {answered}")
        self.settle(sent, added, removed)

    def search(self, client: Client, rng: np.random.Generator) -> None:
        """A search or explanation of some kind."""
        kind = rng.choice(["vector", "vector", "filter", "id", "index", "method", "rerank", "explain"])
        k = int(rng.integers(1, 20))
        vector = clustered(1, self.options.dim, int(rng.integers(2**31)))[0]
        content: dict[str, Any] = {"vectors": [vector.tolist()], "k": k}
        query = Query(k, vector, exact=False)
        if kind in ("vector", "filter"):
            content["expand"] = False
            query = Query(k, vector)
        if kind == "filter":
            years = rng.choice(YEARS, 2, replace=False).tolist()
            content["filter"] = {"year": years}
            query = query._replace(years=years)
        elif kind == "id":
            item = int(rng.choice(self.oracle.some_ids()))
            content = {"ids": [item], "k": k, "expand": False}
            query = Query(k, id=item)
        elif kind == "method":
            content["method"] = str(rng.choice(["aqe", "alpha", "aqe:k=3"]))
        elif kind == "rerank":
            content["rerank"] = str(rng.choice(self.rerankers))
        elif kind == "explain":
            content = {"vectors": [vector.tolist()]}
            query = Query(64 * 17, vector, exact=False, few=True)
        floor = self.oracle.floor(self.calm_since)
        path = "/v1/explain" if kind == "explain" else "/v1/search"
        answered = self.ask(client, path, content)
        if answered is None or answered[0] >= 500:
            return
        until = time.monotonic()
        status, found = answered
        if status == 200:
            self.answers[f"{kind}"] += 1
            if kind == "explain":
                nodes = {node["id"] for node in found["nodes"] if node["id"] is not None}
                answer = Answer(sorted(nodes), [])
            else:
                answer = Answer(found["results"][0]["ids"], found["results"][0]["scores"])
        elif status == 422 and kind == "id":
            self.answers["id that is gone"] += 1
            answer = Answer(None, [])
        else:
            self.wrong += 1
            self.fail(f"{kind}: {status} {found}")
            return
        self.pending.append((query, answer, floor, until))

    def ask(self, client: Client, path: str, content: Any) -> tuple[int, Any] | None:
        """Status and content; None if no answer came. Errors of the service are counted."""
        fault, calm = self.fault, time.monotonic() - self.calm_since > 2
        try:
            status, found = client.ask(path, content)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.count(fault, f"no answer: {type(error).__name__}")
            return None
        if status < 500:
            return status, found
        if fault == self.fault == CALM and not calm:
            fault = f"{CALM}, less than 2 s after one"
        self.count(fault, f"{status}: {found['detail']}")
        # The service keeps files for itself, however many connections there are.
        sound = fault == self.fault and ((calm and fault == CALM) or fault == IDLE)
        busy = status == 503 and any(word in found["detail"] for word in BUSY)
        if status not in (503, 507) or (sound and not busy):
            self.unexpected += 1
            self.fail(f"{path}: {status} {found['detail']}")
        return status, found

    def count(self, fault: str, line: str) -> None:
        """Count what was not done, by the fault that there was."""
        with self.lock:
            self.refused.setdefault(fault, Counter())[line] += 1

    # The load by other processes

    def others(self) -> None:
        """`gqe index add`, `remove` and `compact`, one after the other; some are killed."""
        rng, usual = np.random.default_rng([self.options.seed, 10**6]), 1.0
        for number in itertools.count():
            if self.stop.is_set():
                return
            compact = number % 10 == 9
            added, removed = (None, []) if compact else self.new_change(rng, update=0.3)
            kind = (
                "compact" if compact else ("add" if not removed else "remove" if added is None else "update")
            )
            sent, begun = self.oracle.send(), time.monotonic()
            killed = rng.random() < 0.3
            status, output = self.gqe(
                *self.arguments(kind, added, removed),
                kill=(rng.uniform(0, 1.2) * usual, random.choice(SIGNALS)) if killed else None,
            )
            if status == 0:
                usual = 0.8 * usual + 0.2 * (time.monotonic() - begun)
                self.acknowledged[f"gqe index {kind}"] += 1
                version = json.loads(output)["version"]
                if compact:
                    self.oracle.drop(sent)
                    self.oracle.see(version, service=False)
                else:
                    self.oracle.store(sent, added, removed, version, known=True, service=False)
                    self.release(added, removed, stored=True)
            else:
                self.not_acknowledged[f"gqe index {kind}"] += 1
                self.explain_failure(kind, status, output, killed)
                self.settle(sent, added, removed)
            time.sleep(self.options.pause * 10)

    def arguments(self, kind: str, added: Items | None, removed: list[int]) -> list[str]:
        """A command of `gqe index` and the files it reads."""
        import pyarrow
        import pyarrow.parquet

        given = [
            "index",
            "compact" if kind == "compact" else "remove" if added is None else "add",
            str(self.path),
        ]
        ids = self.place / "ids.txt"
        ids.write_text("\n".join(map(str, removed if added is None else added.ids)))
        if added is not None:
            np.save(self.place / "vectors.npy", added.vectors)
            table = pyarrow.table({"year": added.years})
            pyarrow.parquet.write_table(table, self.place / "years.parquet")
            given += [str(self.place / "vectors.npy"), "--metadata", str(self.place / "years.parquet")]
        given += [] if kind == "compact" else ["--ids", str(ids)]
        return given + (["--update"] if kind == "update" else []) + ["--device", "cpu", "--json"]

    def gqe(self, *arguments: str, kill: tuple[float, signal.Signals] | None = None) -> tuple[int, str]:
        """Exit status and output of a command that may be killed after some seconds."""
        output = self.place / "output"
        output.write_bytes(b"")
        process = start_gqe(list(arguments), output)
        if kill is not None:
            process.join(kill[0])
            if process.exitcode is None:
                self.faults[f"{kill[1].name} of gqe index"] += 1
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, kill[1])
        process.join(120)
        return process.exitcode, output.read_text().strip()

    def explain_failure(self, kind: str, status: int | None, output: str, killed: bool) -> None:
        """Count why a command failed; what should not happen is a problem."""
        last = output.splitlines()[-1] if output else ""
        if killed and status in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 130):
            return
        if killed and status == 1 and not output:
            return  # SIGINT, before the process was our command
        for reason, fault in (("is changing this index", None), ("no space left", "full disk")):
            if status == 2 and reason in last:
                self.count(self.fault, f"gqe index: {reason}")
                if fault is not None and self.fault != fault and time.monotonic() - self.calm_since > 5:
                    self.fail(f"gqe index {kind}: {last}")
                return
        self.unexpected += 1
        self.fail(f"gqe index {kind}: exit status {status}: {output[-1000:]}")

    # Changes

    def new_change(self, rng: np.random.Generator, update: float = 0.0) -> tuple[Items | None, list[int]]:
        """A few items to add, remove or update; nobody else changes them meanwhile."""
        count = int(rng.integers(1, 4))
        with self.lock:
            full = len(self.free) > self.options.items
            if rng.random() < update:
                removed = self.take(rng, count)
                return self.new_items(len(removed), rng, removed), removed
            if rng.random() < (0.7 if full else 0.3):
                return None, self.take(rng, count)
            return self.new_items(count, rng), []

    def take(self, rng: np.random.Generator, count: int) -> list[int]:
        """Some items that nobody changes now."""
        taken = [int(item) for item in rng.choice(list(self.free), count, replace=False)]
        self.free.difference_update(taken)
        return taken

    def new_items(self, count: int, rng: np.random.Generator, ids: list[int] | None = None) -> Items:
        """Items with new ids, or new vectors for some."""
        vectors = clustered(count, self.options.dim, int(rng.integers(2**31)))
        names = [next(self.new_ids) for _ in range(count)] if ids is None else ids
        return Items(names, vectors, rng.integers(YEARS, size=count).tolist())

    def release(self, added: Items | None, removed: list[int], *, stored: bool) -> None:
        """Others may change what is there."""
        there = ([] if added is None else added.ids) if stored else removed
        with self.lock:
            self.free.update(there)

    def settle(self, sent: Any, added: Items | None, removed: list[int]) -> None:
        """See whether a change that was not acknowledged is there; its process does nothing any longer."""
        content = self.read_content()
        if added is None and not removed:
            self.oracle.drop(sent)
            self.oracle.see(content.version, service=False)
            return
        places = {int(item): row for row, item in enumerate(content.ids.tolist())}
        if added is None:
            done = [item not in places for item in removed]
        else:
            pairs = zip(added.ids, added.vectors, strict=True)
            done = [i in places and np.allclose(content.vectors[places[i]], v, atol=1e-6) for i, v in pairs]
        if any(done) and not all(done):
            self.half += 1
            self.fail(f"half a change: {done}")
        if any(done):
            self.oracle.store(sent, added, removed, content.version, known=False, service=False)
        else:
            self.oracle.drop(sent)
        self.release(added, removed, stored=any(done))

    # Faults

    def inject(self, until: float) -> None:
        """Faults in turn, with a rest between them."""
        rest = min(12.0, self.options.seconds / 15)
        order = itertools.cycle([self.fill_disk, self.kill, self.exhaust_files])
        for fault in order:
            if time.monotonic() + rest > until:
                break
            time.sleep(rest)
            self.service.resident()
            fault(min(4.0, rest))
            self.read_content()
        time.sleep(max(0.0, until - time.monotonic()))

    @contextlib.contextmanager
    def during(self, name: str) -> Iterator[None]:
        """While it lasts, errors of its kind are expected."""
        self.faults[name] += 1
        self.fault, self.calm_since = name, float("inf")
        try:
            yield
        finally:
            self.calm_since = time.monotonic()
            self.fault = CALM

    def fill_disk(self, seconds: float) -> None:
        """Fill the disk but for some KB, and free it again."""
        if self.skipped is not None:
            return
        with self.during("full disk"):
            ballast, room = self.disk / "ballast", random.choice([0, 4, 20, 100])
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
        how = SIGNALS[self.faults["kills"] % len(SIGNALS)]
        self.faults["kills"] += 1
        with self.during(f"{how.name} of the service"):
            self.service.restart(how)

    def exhaust_files(self, seconds: float) -> None:
        """Many idle connections; then no file can be opened at all."""
        with self.during(IDLE), contextlib.ExitStack() as opened:
            until = time.monotonic() + seconds / 2
            for _ in range(2 * FILES):  # none waits for another
                idle = opened.enter_context(socket.socket())
                idle.setblocking(False)
                idle.connect_ex(("127.0.0.1", self.service.port))
            time.sleep(max(0.0, until - time.monotonic()))
        with self.during("no file can be opened"):
            self.service.deny_files(seconds / 2)

    # Checks

    def read_content(self) -> Content:
        """All that the index holds now; compared when every change under way has ended."""
        from gqe.index import Index

        index = Index.open(self.path, device="cpu")
        ids = index.ids
        content = Content(index.version, ids, index.vectors(ids))
        self.contents.append((content, time.monotonic()))
        return content

    def check(self) -> None:
        """Compare what can be decided."""
        with self.lock:
            due = [self.pending.popleft() for _ in range(_decided(self.oracle, self.pending))]
            read = [self.contents.popleft() for _ in range(_decided(self.oracle, self.contents))]
        for query, answer, floor, until in due:
            if not self.oracle.is_right(query, answer, floor, until):
                self.wrong += 1
                newest = self.oracle.newest
                self.fail(f"wrong: {query} {answer}, versions {floor} to {newest}")
        for content, _ in read:
            found = +Counter(self.oracle.differences(content))
            if found:
                self.lost += found
                self.fail(f"version {content.version}: {dict(found)}")

    def check_leftovers(self) -> None:
        """After one more change nothing is left of those that were stopped."""
        from gqe.index.manifest import RESERVED, read_manifest

        status, output = self.gqe("index", "compact", str(self.path), "--device", "cpu")
        if status:
            self.fail(f"compact: {output}")
        named = {name.split("/")[0] for name in read_manifest(self.path).files} | set(RESERVED)
        self.left_over = sorted(path.name for path in self.path.iterdir() if path.name not in named)
        if self.left_over:
            self.fail(f"left over: {self.left_over}")

    def has_failed(self) -> bool:
        """Whether anything happened that must not."""
        return bool(self.problems or self.lost or self.wrong or self.unexpected or self.half)

    def report(self) -> dict[str, Any]:
        """The numbers."""
        about = {
            name: getattr(self.options, name) for name in ("seconds", "items", "dim", "method", "clients")
        }
        return about | {
            "acknowledged": dict(self.acknowledged) | {"in all": self.acknowledged.total()},
            "not acknowledged": dict(self.not_acknowledged),
            "answers that were checked": dict(self.answers) | {"in all": self.answers.total()},
            "faults": dict(self.faults),
            "full disks": self.skipped or "injected",
            "refused, by fault": {fault: dict(lines) for fault, lines in self.refused.items()},
            "lost": self.lost.total(),
            "lost, by kind": dict(self.lost),
            "half a change": self.half,
            "wrong answers": self.wrong,
            "unexpected errors": self.unexpected,
            "left over files": len(self.left_over),
            "verify": self.verified,
            "last version": self.oracle.newest,
            "resident MB of the service": {
                "start": round(self.start_memory, 1),
                "peak": round(self.service.peak, 1),
                "end": round(self.end_memory, 1),
            },
            "open descriptors of the service": {"start": self.start_files, "end": self.end_files},
            "problems": self.problems[:20],
        }


def _decided(oracle: Oracle, waiting: deque[Any]) -> int:
    """How many of those that wait, from the first, are decided."""
    return next((n for n, each in enumerate(waiting) if not oracle.is_decided(each[-1])), len(waiting))


if __name__ == "__main__":
    main()
