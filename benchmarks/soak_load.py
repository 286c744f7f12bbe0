"""The load of soak.py: clients of the service, and commands that change the index beside it."""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import signal
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from common import clustered
from soak_notes import FULL, Notes
from soak_oracle import Answer, Content, Items, Oracle, Query, Sent
from soak_processes import Client, Service, run_gqe

from gqe.index import Index

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
KINDS = ("vector", "vector", "filter", "id", "index", "method", "rerank", "explain")
_YEARS = 7


class Load:
    """Sends changes and searches, and compares what comes back with the oracle.

    Args:
        options: of the command line.
        place: folder for files that the commands read.
        items: what the index was built with.
        oracle: knows what is right.
        notes: where to count.
    """

    def __init__(
        self, options: argparse.Namespace, place: Path, items: Items, oracle: Oracle, notes: Notes
    ) -> None:
        self.options, self.place, self.path = options, place, place / "disk" / "index"
        self.oracle, self.notes = oracle, notes
        self.stop = threading.Event()
        self._lock = threading.Lock()
        self._free = set(items.ids)  # that no change is under way for
        self._new_ids = itertools.count(max(items.ids) + 1)
        self._answers: deque[tuple[Query, Answer, int, float]] = deque()
        self._contents: deque[tuple[Content, float]] = deque()

    def start(self, service: Service) -> list[threading.Thread]:
        """Threads that go on until `stop` is set."""
        self.service = service
        self._rerankers = Client(service.port).ask("/v1/about")[1]["rerankers"]
        works = [(self.ask_service, i) for i in range(self.options.clients)] + [(self.run_commands, 10**6)]
        threads = [threading.Thread(target=self._guard, args=work) for work in works]
        for thread in threads:
            thread.start()
        return threads

    def _guard(self, work: Any, number: int) -> None:
        try:
            work(np.random.default_rng([self.options.seed, number]))
        except Exception as error:
            self.notes.fail("crashes", f"{work.__name__}: {type(error).__name__}: {error}")
            raise

    def ask_service(self, rng: np.random.Generator) -> None:
        """Changes and searches over HTTP, one after the other."""
        client = Client(self.service.port)
        while not self.stop.wait(self.options.pause):
            (self._change if rng.random() < 0.3 else self._search)(client, rng)
            self.check()

    def _change(self, client: Client, rng: np.random.Generator) -> None:
        """Add or remove a few items."""
        added, removed = self._new_change(rng)
        path, content = "/v1/items/remove", {"ids": removed}
        if added is not None:
            path, content = "/v1/items", {"ids": added.ids, "vectors": added.vectors.tolist()}
            content["metadata"] = {"year": added.years}
        kind = "HTTP " + ("remove" if added is None else "add")
        sent, generation = self.oracle.send(), self.service.generation
        answered = self._ask(client, path, content)
        if answered is not None and answered[0] == 200:
            self.notes.acknowledged[kind] += 1
            self.oracle.store(sent, added, removed, answered[1]["version"], known=True, service=True)
            self._release(added, removed, stored=True)
            return
        self.notes.not_acknowledged[kind] += 1
        if answered is None or "still being stored" in answered[1]["detail"]:
            self.service.outlast(generation)
        elif answered[0] < 500:
            self.notes.fail("wrong answers", f"{kind} was refused: {answered}")
        self._settle(sent, added, removed)

    def _search(self, client: Client, rng: np.random.Generator) -> None:
        """A search or an explanation; its answer is compared later."""
        kind = str(rng.choice(KINDS))
        path, content, query = self._new_query(kind, rng)
        floor = self.oracle.floor(self.notes.calm_since)
        answered = self._ask(client, path, content)
        if answered is None or answered[0] >= 500:
            return
        status, found = answered
        if status == 200 and kind == "explain":
            answer = Answer(sorted({node["id"] for node in found["nodes"] if node["id"] is not None}), [])
        elif status == 200:
            answer = Answer(**found["results"][0])
        elif status == 422 and kind == "id":
            kind, answer = "id that is gone", Answer(None, [])
        else:
            self.notes.fail("wrong answers", f"{kind}: {status} {found}")
            return
        self.notes.answers[kind] += 1
        self._answers.append((query, answer, floor, time.monotonic()))

    def _new_query(self, kind: str, rng: np.random.Generator) -> tuple[str, dict[str, Any], Query]:
        """Where to ask, what to send, and what the oracle is asked."""
        k, vector = int(rng.integers(1, 20)), clustered(1, self.options.dim, int(rng.integers(2**31)))[0]
        by_vector = {"vectors": [vector.tolist()], "k": k}
        if kind == "explain":
            return "/v1/explain", {"vectors": [vector.tolist()]}, Query(1000, exact=False, few=True)
        if kind == "id":
            item = int(rng.choice(self.oracle.some_ids()))
            return "/v1/search", {"ids": [item], "k": k, "expand": False}, Query(k, id=item)
        if kind == "vector":
            return "/v1/search", by_vector | {"expand": False}, Query(k, vector)
        if kind == "filter":
            years = rng.choice(_YEARS, 2, replace=False).tolist()
            content = by_vector | {"expand": False, "filter": {"year": years}}
            return "/v1/search", content, Query(k, vector, years=years)
        more = {
            "index": {},
            "method": {"method": str(rng.choice(["aqe", "alpha", "aqe:k=3"]))},
            "rerank": {"rerank": str(rng.choice(self._rerankers))},
        }
        return "/v1/search", by_vector | more[kind], Query(k, exact=False)

    def _ask(self, client: Client, path: str, content: Any) -> tuple[int, Any] | None:
        """Status and content; None if no answer came."""
        fault, calm = self.notes.fault, self.notes.is_calm(2)
        try:
            status, found = client.ask(path, content)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.notes.refuse(fault, f"no answer: {type(error).__name__}")
            return None
        if status >= 500:
            self.notes.refuse_request(path, status, found["detail"], fault, calm)
            self.stop.wait(4 * self.options.pause)
        return status, found

    def run_commands(self, rng: np.random.Generator) -> None:
        """`gqe index add`, `remove` and `compact`, one after the other; some are killed."""
        usual = 1.0  # seconds
        for number in itertools.count(1):
            if self.stop.wait(40 * self.options.pause):  # the service has to write, too
                return
            compact = number % 10 == 0
            added, removed = (None, []) if compact else self._new_change(rng, update=0.3)
            kind = "compact" if compact else "remove" if added is None else "update" if removed else "add"
            sent, begun = self.oracle.send(), time.monotonic()
            kill = (rng.uniform(0, 1.2) * usual, SIGNALS[rng.integers(3)]) if rng.random() < 0.3 else None
            arguments = self._arguments(kind, added, removed)
            status, output, killed = run_gqe(arguments, self.place / "output", kill)
            if killed is not None:
                self.notes.faults[f"{killed.name} of gqe index"] += 1
            if status == 0:
                usual = 0.8 * usual + 0.2 * (time.monotonic() - begun)
                self.notes.acknowledged[f"gqe index {kind}"] += 1
                version = json.loads(output)["version"]
                self.oracle.store(sent, added, removed, version, known=True, service=False)
                self._release(added, removed, stored=True)
            else:
                self.notes.not_acknowledged[f"gqe index {kind}"] += 1
                self._judge(kind, status, output, killed)
                self._settle(sent, added, removed)

    def _arguments(self, kind: str, added: Items | None, removed: list[int]) -> list[str]:
        """Of a command of `gqe index`, whose files are written."""
        given = [str(self.path), "--device", "cpu", "--json"]
        if kind == "compact":
            return ["index", "compact", *given]
        ids, vectors, years = (self.place / name for name in ("ids.txt", "vectors.npy", "years.parquet"))
        ids.write_text("\n".join(map(str, removed if added is None else added.ids)))
        given += ["--ids", str(ids)]
        if added is None:
            return ["index", "remove", *given]
        np.save(vectors, added.vectors)
        pyarrow.parquet.write_table(pyarrow.table({"year": added.years}), years)
        given += [str(vectors), "--metadata", str(years), *(["--update"] if removed else [])]
        return ["index", "add", *given]

    def _judge(self, kind: str, status: int, output: str, killed: signal.Signals | None) -> None:
        """Count why a command failed."""
        if killed is not None and status in (-killed, 130):
            return
        if killed == signal.SIGINT and status == 1 and not output:
            return  # before the process was our command
        fault, last = self.notes.fault, output.splitlines()[-1] if output else ""
        if status == 2 and "another process or object is changing this index" in last:
            self.notes.refuse(fault, "gqe index: another process is changing")
        elif status == 2 and "no space left" in last and (fault == FULL or not self.notes.is_calm(5)):
            self.notes.refuse(fault, "gqe index: no space left")
        else:
            self.notes.fail("unexpected errors", f"gqe index {kind}: exit status {status}: {output[-1000:]}")

    def _new_change(self, rng: np.random.Generator, update: float = 0.0) -> tuple[Items | None, list[int]]:
        """A few items to add, remove or update; nobody else changes them meanwhile."""
        count, chance = int(rng.integers(1, 4)), rng.random(2)
        with self._lock:
            full = len(self._free) > self.options.items
            if chance[0] >= update and chance[1] > (0.7 if full else 0.3):
                return new_items([next(self._new_ids) for _ in range(count)], self.options.dim, rng), []
            removed = rng.choice(list(self._free), count, replace=False).tolist()
            self._free.difference_update(removed)
        return new_items(removed, self.options.dim, rng) if chance[0] < update else None, removed

    def _release(self, added: Items | None, removed: list[int], *, stored: bool) -> None:
        """Others may change what is there."""
        with self._lock:
            self._free.update(([] if added is None else added.ids) if stored else removed)

    def _settle(self, sent: Sent, added: Items | None, removed: list[int]) -> None:
        """See whether a change that was not acknowledged is there; its process does nothing any longer."""
        content = self.read_content()
        found = dict(zip(content.ids.tolist(), content.vectors, strict=True))
        if added is None:
            done = [item not in found for item in removed]
        else:
            pairs = zip(added.ids, added.vectors, strict=True)
            done = [item in found and np.allclose(found[item], vector, atol=1e-6) for item, vector in pairs]
        if any(done) and not all(done):
            self.notes.fail("half a change", f"version {content.version}: {done} of {added} {removed}")
        if any(done):
            self.oracle.store(sent, added, removed, content.version, known=False, service=False)
        else:
            self.oracle.drop(sent)
        self._release(added, removed, stored=any(done))

    def read_content(self) -> Content:
        """All that the index holds now; compared when every change under way has ended."""
        index = Index.open(self.path, device="cpu")
        ids = index.ids
        content = Content(index.version, ids, index.vectors(ids))
        self._contents.append((content, time.monotonic()))
        return content

    def check(self) -> None:
        """Compare what was read before any change that is still under way."""
        with self._lock:
            answers, contents = self._decided(self._answers), self._decided(self._contents)
        for query, answer, floor, until in answers:
            if not self.oracle.is_right(query, answer, floor, until):
                line = f"{query} {answer}, versions {floor} to {self.oracle.newest}"
                self.notes.fail("wrong answers", line)
        for content, _ in contents:
            found = +Counter(self.oracle.differences(content))
            if found:
                self.notes.lost += found
                self.notes.fail("lost", f"version {content.version}: {dict(found)}")

    def _decided(self, waiting: deque[Any]) -> list[Any]:
        """Those that can be compared, from the first; the last part of each is when it was read."""
        result = []
        while waiting and self.oracle.is_decided(waiting[0][-1]):
            result.append(waiting.popleft())
        return result


def new_items(ids: list[int], dim: int, rng: np.random.Generator) -> Items:
    """Items of these ids."""
    return Items(
        ids, clustered(len(ids), dim, int(rng.integers(2**31))), rng.integers(_YEARS, size=len(ids)).tolist()
    )
