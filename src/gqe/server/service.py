"""The service behind the routes: its threads, how routes await them, and its metrics."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from operator import attrgetter
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.exceptions import HTTPException

from gqe.results import plain_value
from gqe.server import jobs
from gqe.server.batching import Batcher, FutureBridge
from gqe.server.engine import NONE, Array, Engine, ItemId, SearchOptions
from gqe.server.expanders import OWN, RequestedMethod, parse_requested
from gqe.server.pictures import ItemPictures, PictureVectors, Thumbnails
from gqe.server.problems import RETRY_LATER, RETRY_SOON
from gqe.server.schemas import ChangeResponse, Hits, SearchParameters
from gqe.server.settings import Settings

log = logging.getLogger(__name__)

Result = TypeVar("Result")
TextVectors = Callable[[str], Array]
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 1024)


class Metrics:
    """Prometheus metrics of one app; every app has its own, so that several can live in a process."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.requests = Counter(
            "gqe_requests", "Requests by route and status.", ["route", "status"], registry=own
        )
        self.seconds = Histogram(
            "gqe_request_seconds", "Seconds a request took.", ["route"], buckets=_SECONDS, registry=own
        )
        self.under_way = Gauge("gqe_requests_under_way", "Requests not answered yet.", registry=own)
        self.batches = Histogram(
            "gqe_batch_queries", "Queries answered by one call.", buckets=_BATCHES, registry=own
        )
        self.written = Counter("gqe_items_written", "Items by change.", ["change"], registry=own)
        self.items = Gauge("gqe_items", "Items in the index.", registry=own)
        self.version = Gauge("gqe_index_version", "Version of the index.", registry=own)
        self.waiting = Gauge("gqe_waiting", "Jobs that wait, by kind.", ["kind"], registry=own)


class Service:
    """Threads around an engine: one reads, one writes, one prepares methods, others parse and load pictures.

    Args:
        engine: What to search.
        settings: Limits.
        describe: Pictures to vectors, or None if the service cannot do that.
        pictures: Pictures of items, or None if there are none.
        examples: Ids to offer on the page; None for items all over the index.
        embed: Texts to vectors, or None if the service cannot do that.
        labels: Of items whose right results are known: those of the same label.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        describe: PictureVectors | None,
        pictures: ItemPictures | None,
        examples: Sequence[Any] | None,
        embed: TextVectors | None = None,
        labels: Mapping[ItemId, ItemId] | None = None,
    ) -> None:
        self.engine, self.settings, self.describe = engine, settings, describe
        self.embed, self.labels = embed, labels
        self.metrics = Metrics()
        self.thumbnails = None if pictures is None else Thumbnails(pictures, engine)
        self._examples = None if examples is None else list(examples)
        self._warm_up: Future[Any] = Future()
        self._unreadable = False

    def start(self) -> None:
        """Start the threads and load what searches need; called in the event loop."""
        settings = self.settings
        self._bridge = FutureBridge(asyncio.get_running_loop())
        self.reader: Batcher[jobs.SearchJob | jobs.ReadJob, Any] = Batcher(
            self._run_reads,
            size=attrgetter("size"),
            max_batch=settings.max_batch,
            wait=settings.batch_wait,
            max_queue=settings.max_queue,
            name="gqe-reader",
        )
        self.writer: Batcher[jobs.Change, ChangeResponse] = Batcher(
            functools.partial(jobs.run_writes, self.engine),
            size=attrgetter("size"),
            max_batch=settings.max_vectors,
            wait=0.0,
            max_queue=settings.max_queue,
            name="gqe-writer",
        )
        names = ("bodies", "describe", "pictures", "prepare")
        self._pools = {name: ThreadPoolExecutor(1, f"gqe-{name}") for name in names}
        self._pending = dict.fromkeys(names, 0)
        self._large_search = asyncio.Semaphore(1)
        self._preparing: dict[tuple[str, str | None, int], asyncio.Future[Engine]] = {}
        self._warm_up = self.reader.submit(jobs.ReadJob(_warm_up))

    def close(self) -> None:
        """Finish all that was accepted, writes first, and end the threads."""
        self.writer.close()
        self.reader.close()
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)
        self.engine.close()

    async def poll(self) -> None:
        """Reload what other processes change, and check that the engine can be read, until cancelled."""
        while True:
            await asyncio.sleep(self.settings.poll_seconds)
            try:
                if await asyncio.to_thread(self.engine.is_outdated):
                    await asyncio.shield(asyncio.wrap_future(self.writer.submit(jobs.Reload())))
                if self._warm_up.done() and self._warm_up.exception() is not None:
                    self._warm_up = self.reader.submit(jobs.ReadJob(_warm_up))
                self._unreadable = False
            except Exception as error:
                if not self._unreadable:
                    log.warning("what is served cannot be read any longer: %s", error)
                self._unreadable = True

    @property
    def ready(self) -> bool:
        """Whether searches are answered at once, and the last check could read the engine."""
        return self._warm_up.done() and self._warm_up.exception() is None and not self._unreadable

    def methods(self) -> list[str]:
        """Methods that are offered, the index's own one first."""
        return self.engine.methods(self.settings.methods, self.settings.max_items_in_memory)

    def takes_k(self, method: str) -> bool:
        """Whether a method is offered with another K than its own."""
        return self.engine.takes_k(method, self.settings.max_items_in_memory)

    def rerankers(self) -> list[str]:
        """Re-rankers that are offered."""
        return self.engine.rerankers(self.settings.rerankers, self.settings.max_items_in_memory)

    def check_method(self, text: str) -> RequestedMethod:
        """The method that a request names, if it is offered."""
        settings = self.settings
        requested = parse_requested(text, self.methods(), settings.max_neighbors, settings.max_rounds)
        name, colon, _ = requested.text.partition(":")
        if colon and not self.takes_k(name):
            raise HTTPException(
                422, f"method: {name} is not offered with other settings here; leave them out"
            )
        return requested

    def check_options(self, request: SearchParameters) -> SearchOptions:
        """How to search, if that is offered."""
        if request.k > self.settings.max_k:
            raise HTTPException(422, f"k: at most {self.settings.max_k} results are given; ask for fewer")
        method = self.check_method(request.method if request.expand else NONE)
        if request.rerank is not None and method.rerank is not None:
            raise HTTPException(422, "rerank: the method names a re-ranker already; name one of them")
        rerank = request.rerank or method.rerank
        if rerank is not None and rerank not in self.rerankers():
            offered = ", ".join(self.rerankers()) or "none"
            raise HTTPException(422, f"rerank: {rerank!r:.40} is not offered here; there is: {offered}")
        # Equal filters give equal texts.
        chosen = None if request.filter is None else json.dumps(request.filter, sort_keys=True)
        return SearchOptions(
            request.k,
            method.text,
            rerank,
            request.exact or None,
            chosen,
            method.rounds,
            request.with_metadata,
        )

    async def read(self, work: Callable[[Engine], Result], method: str = OWN) -> Result:
        """Call a function with the engine, prepared for a method, in the thread that reads."""
        result: Result = await self._submit(jobs.ReadJob(work, await self._prepare(method)))
        return result

    async def search(self, job: jobs.SearchJob) -> list[Hits]:
        """Results of each query of a search."""
        engine = await self._prepare(job.options.method, job.options.rerank)
        if job.size <= self.settings.max_batch:
            hits: list[Hits] = await self._submit(job._replace(engine=engine))
            return hits
        return await self._in_time(self._search_in_parts(job, engine))

    async def _search_in_parts(self, job: jobs.SearchJob, engine: Engine | None) -> list[Hits]:
        """A search with many queries; other requests are answered between its parts."""
        size, hits = self.settings.max_batch, []
        async with self._large_search:
            seen = self.engine.snapshot() if engine is None else engine
            queries: jobs.Queries = await self._submit(jobs.ReadJob(job.resolve, seen))
            jobs.check_result_count(min(job.options.k, len(seen)), len(queries.vectors))
            for start in range(0, len(queries.vectors), size):
                rows = slice(start, start + size)
                part = jobs.Queries(queries.vectors[rows], queries.exclude[rows], queries.drop)
                resolve = functools.partial(jobs.return_queries, part)
                hits += await self._submit(jobs.SearchJob(resolve, job.options, len(part.vectors), seen))
        return hits

    async def _prepare(self, method: str, rerank: str | None = None) -> Engine | None:
        """The engine for a method and a re-ranker; None if they need no preparation.

        What is ready never waits for what is not: that is prepared by a thread of its own.
        """
        if method in (OWN, NONE) and rerank is None:
            return None
        ready = self.engine.ready_for(method, rerank)
        if ready is not None:
            return ready
        key = (method, rerank, self.engine.version)
        if key not in self._preparing:
            if len(self._preparing) >= self.settings.max_preparing:
                raise HTTPException(503, "others are being prepared; come back later", RETRY_LATER)
            loop = asyncio.get_running_loop()
            task = loop.run_in_executor(self._pools["prepare"], self.engine.prepare, method, rerank)
            task.add_done_callback(lambda _: self._preparing.pop(key))
            self._preparing[key] = task
        return await self._in_time(asyncio.shield(self._preparing[key]))

    async def write(self, change: jobs.AddItems | jobs.RemoveItems) -> ChangeResponse:
        """Store a change; it goes on even if nobody waits for it any longer."""
        stored = asyncio.shield(asyncio.wrap_future(self.writer.submit(change)))
        late = "the change is still being stored; look whether it is there before repeating it"
        response = await self._in_time(stored, late)
        kind = "added" if isinstance(change, jobs.AddItems) else "removed"
        self.metrics.written.labels(kind).inc(len(response["ids"]))
        return response

    async def describe_picture(self, content: bytes) -> Array:
        """The vector (d,) of a picture file's content."""
        if self.describe is None:
            raise HTTPException(422, "picture: this service does not know how its pictures were described")
        return await self.run("describe", self.describe, content)

    async def embed_text(self, text: str) -> Array:
        """The vector (d,) of a text."""
        if self.embed is None:
            raise HTTPException(422, "text: this service does not know how its texts were embedded")
        return await self.run("describe", self.embed, text)

    async def describe_items(self, ids: Sequence[ItemId]) -> list[dict[str, Any]]:
        """Metadata and label of items."""
        labels = self.labels or {}
        metadata = await self.read(lambda engine: engine.metadata(ids))
        return [
            {"id": item, "metadata": plain_value(row), "label": labels.get(item)}
            for item, row in zip(ids, metadata, strict=True)
        ]

    async def examples(self) -> list[Any]:
        """Ids to offer on the page."""
        if self._examples is not None:
            return self._examples
        return await self.read(lambda engine: engine.list_ids(0, 24, spread=True))

    async def run(self, pool: str, work: Callable[..., Result], *args: Any) -> Result:
        """Call a function in the thread of a pool: "bodies", "describe" or "pictures"."""
        if self._pending[pool] >= self.settings.max_queue:
            raise HTTPException(503, "too many requests are waiting; come back later", RETRY_SOON)
        self._pending[pool] += 1
        try:
            loop = asyncio.get_running_loop()
            return await self._in_time(loop.run_in_executor(self._pools[pool], work, *args))
        finally:
            self._pending[pool] -= 1

    def _run_reads(self, batch: Sequence[jobs.SearchJob | jobs.ReadJob]) -> list[Any]:
        self.metrics.batches.observe(sum(job.size for job in batch))
        return jobs.run_reads(self.engine, batch)

    async def _submit(self, job: jobs.SearchJob | jobs.ReadJob) -> Any:
        return await self._in_time(self._bridge.wrap(self.reader.submit(job)))

    async def _in_time(
        self, result: Awaitable[Result], late: str = "no answer in time; ask for less, or come back later"
    ) -> Result:
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await result
        except TimeoutError:
            raise HTTPException(503, late, RETRY_SOON) from None


def _warm_up(engine: Engine) -> None:
    """A first search, which loads the model."""
    if len(engine):
        engine.search(engine.vectors(engine.list_ids(0, 1)), [None], SearchOptions(1))
