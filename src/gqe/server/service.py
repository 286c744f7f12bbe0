"""The service behind the routes: its threads, and how routes wait for them."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from gqe.server import reading, writing
from gqe.server.batching import Batcher, Busy
from gqe.server.delivery import Delivery
from gqe.server.engine import NONE, Engine, Options
from gqe.server.expanders import OWN, named
from gqe.server.metrics import Metrics
from gqe.server.pictures import Array, ItemPictures, PictureVectors, Thumbnails
from gqe.server.problems import LATER, MUCH_LATER, Refused
from gqe.server.queries import Queries
from gqe.server.schemas import How
from gqe.server.settings import Settings

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Service:
    """Threads around an engine: one reads, one writes, one prepares methods, others see to the rest.

    Args:
        engine: What to search.
        settings: Limits.
        describe: Pictures to vectors, or None if the service cannot do that.
        pictures: Pictures of items, or None if there are none.
        examples: Ids to offer on the page; None for items all over the index.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        describe: PictureVectors | None,
        pictures: ItemPictures | None,
        examples: Sequence[Any] | None,
    ) -> None:
        self.engine, self.settings = engine, settings
        self.metrics = Metrics()
        self.describe = describe
        self.thumbnails = None if pictures is None else Thumbnails(pictures)
        self._examples = None if examples is None else list(examples)
        self._warm: Future[Any] | None = None
        self._away = False

    def start(self) -> None:
        """Start the threads and load what searches need; called in the event loop."""
        settings, metrics = self.settings, self.metrics
        self._delivery = Delivery(asyncio.get_running_loop())
        self.reader: Batcher[reading.Job, Any] = Batcher(
            functools.partial(reading.answer, self.engine),
            size=reading.size,
            most=settings.most_batch,
            wait=settings.batch_wait,
            room=settings.most_waiting,
            name="gqe-reader",
            observe=metrics.batches.observe,
        )
        self.writer: Batcher[writing.Change, writing.Written] = Batcher(
            functools.partial(writing.write, self.engine),
            size=writing.size,
            most=settings.most_vectors,
            wait=0.0,
            room=settings.most_waiting,
            name="gqe-writer",
        )
        names = ("bodies", "describe", "pictures", "prepare")
        self._pools = {name: ThreadPoolExecutor(1, f"gqe-{name}") for name in names}
        self._large = asyncio.Semaphore(1)
        self._busy = dict.fromkeys(self._pools, 0)
        self._preparing: dict[tuple[str, str | None, int], asyncio.Future[Engine]] = {}
        self._warm = self.reader.submit(reading.Read(_warmed))

    def close(self) -> None:
        """Finish all that was accepted, writes first, and end the threads."""
        self.writer.close()
        self.reader.close()
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)
        self.engine.close()

    async def follow(self) -> None:
        """See what others change, soon after they did, and whether there is an answer; until cancelled."""
        while True:
            await asyncio.sleep(self.settings.follow)
            try:
                if await asyncio.to_thread(self.engine.outdated):
                    await asyncio.shield(asyncio.wrap_future(self.writer.submit(writing.Reload())))
                if self._warm is not None and self._warm.done() and self._warm.exception() is not None:
                    self._warm = self.reader.submit(reading.Read(_warmed))
                self._away = False
            except Exception as error:
                if not self._away:
                    log.warning("what is served cannot be read any longer: %s", error)
                self._away = True

    @property
    def ready(self) -> bool:
        """Whether searches are answered at once, and what is served could be opened a moment ago."""
        warm = self._warm is not None and self._warm.done() and self._warm.exception() is None
        return warm and not self._away

    def options(self, how: How) -> Options:
        """How to search, checked against what is offered."""
        settings = self.settings
        if how.k > settings.most_k:
            raise Refused(422, f"k: at most {settings.most_k} results are given; ask for fewer")
        method = self.method(how.method if how.expand else NONE)
        if how.rerank is not None and how.rerank not in self.rerankers():
            offered = ", ".join(self.rerankers()) or "none"
            raise Refused(422, f"rerank: {how.rerank!r:.40} is not offered here; there is: {offered}")
        chosen = None if how.filter is None else how.model_dump_json(include={"filter"})
        return Options(how.k, method, how.rerank, how.exact or None, _inner(chosen))

    def method(self, text: str) -> str:
        """A method as a request names it, if it is offered."""
        chosen = named(text, self.methods(), self.settings.most_neighbors)
        if chosen.k is not None and not self.takes_k(chosen.name):
            raise Refused(422, f"method: {chosen.name} is not offered with another K here; leave :k=K out")
        return chosen.name if chosen.k is None else f"{chosen.name}:k={chosen.k}"

    def methods(self) -> list[str]:
        """What is offered, the index's own method first."""
        return self.engine.methods(self.settings.methods, self.settings.other_methods_up_to)

    def takes_k(self, method: str) -> bool:
        """Whether a method is offered with another K than its own."""
        return self.engine.takes_k(method, self.settings.other_methods_up_to)

    def rerankers(self) -> list[str]:
        """What is offered."""
        return self.engine.rerankers(self.settings.rerankers)

    async def read(self, work: Callable[[Engine], Result], method: str = OWN) -> Result:
        """Let the thread that reads do something, by a method."""
        job = reading.Read(work, await self._prepared(method))
        result: Result = await self._answered(self.reader, job)
        return result

    async def search(self, job: reading.Search) -> list[reading.Found]:
        """Results for each query of a search."""
        engine = await self._prepared(job.options.method, job.options.rerank)
        if job.queries <= self.settings.most_batch:
            found: list[reading.Found] = await self._answered(self.reader, job._replace(engine=engine))
            return found
        try:
            async with asyncio.timeout(self.settings.timeout), self._large:
                seen = self.engine.fixed() if engine is None else engine
                return await self._searched(job, seen)
        except TimeoutError:
            raise _late() from None

    async def _searched(self, job: reading.Search, engine: Engine) -> list[reading.Found]:
        """A search for many queries, part by part: others get their turn between two parts."""
        queries = await self._answered(self.reader, reading.Read(job.ask, engine))
        reading.check_amount(min(job.options.k, len(engine)), len(queries.vectors))
        found: list[reading.Found] = []
        for start in range(0, len(queries.vectors), self.settings.most_batch):
            part = queries.part(start, start + self.settings.most_batch)
            asked = job._replace(
                ask=functools.partial(_given, part), queries=len(part.vectors), engine=engine
            )
            found += await self._answered(self.reader, asked)
        return found

    async def _prepared(self, method: str, rerank: str | None = None) -> Engine | None:
        """What to search by a method and a re-ranker; None for what needs no preparation.

        What is ready never waits for what is not, which is made by a thread of its own.
        """
        if method in (OWN, NONE) and rerank is None:
            return None
        ready = self.engine.ready_for(method, rerank)
        if ready is not None:
            return ready
        wanted = (method, rerank, self.engine.version)
        if wanted not in self._preparing:
            if len(self._preparing) >= self.settings.most_preparing:
                raise Refused(503, "others are being prepared; come back later", MUCH_LATER)
            loop = asyncio.get_running_loop()
            made = loop.run_in_executor(self._pools["prepare"], self.engine.prepare, method, rerank)
            made.add_done_callback(lambda done: self._preparing.pop(wanted))
            self._preparing[wanted] = made
        prepared: Engine = await self._in_time(asyncio.shield(self._preparing[wanted]))
        return prepared

    async def computed(self, work: Callable[..., Result], *given: Any) -> Result:
        """Do what takes too long for the event loop."""
        result: Result = await self._run("bodies", work, *given)
        return result

    async def write(self, change: writing.Change) -> writing.Written:
        """Store a change; it goes on even if nobody waits for it any longer."""
        waiting = asyncio.shield(asyncio.wrap_future(_submitted(self.writer, change)))
        try:
            async with asyncio.timeout(self.settings.timeout):
                written: writing.Written = await waiting
        except Busy as error:
            raise Refused(503, f"{error}; come back later", LATER) from None
        except TimeoutError:
            raise Refused(
                503, "the change is still being stored; look whether it is there before repeating it", LATER
            ) from None
        kind = "added" if isinstance(change, writing.Add) else "removed"
        self.metrics.written.labels(kind).inc(len(written.ids))
        return written

    async def described(self, content: bytes) -> Array:
        """The vector (d,) of a picture file's content."""
        if self.describe is None:
            raise Refused(422, "picture: this service does not know how its pictures were described")
        vector: Array = await self._run("describe", self.describe, content)
        return vector

    async def picture(self, item: int | str, side: int) -> bytes | None:
        """A thumbnail of an item, or None."""
        if self.thumbnails is None:
            return None
        content: bytes | None = await self._run("pictures", self._shown, item, side)
        return content

    async def examples(self) -> list[Any]:
        """Ids to offer on the page."""
        if self._examples is not None:
            return self._examples
        return await self.read(lambda engine: engine.some_ids(0, 24, spread=True))

    def _shown(self, item: int | str, side: int) -> bytes | None:
        assert self.thumbnails is not None
        if item in self.engine:
            return self.thumbnails(item, side)
        self.thumbnails.forget(item)
        return None

    async def _answered(self, batcher: Batcher[Any, Any], job: Any) -> Any:
        return await self._in_time(self._delivery.awaited(_submitted(batcher, job)))

    async def _run(self, pool: str, work: Callable[..., Any], *given: Any) -> Any:
        if self._busy[pool] >= self.settings.most_waiting:
            raise Refused(503, "too many requests are waiting; come back later", LATER)
        self._busy[pool] += 1
        running = asyncio.get_running_loop().run_in_executor(self._pools[pool], work, *given)
        try:
            return await self._in_time(running)
        finally:
            self._busy[pool] -= 1

    async def _in_time(self, waiting: asyncio.Future[Any]) -> Any:
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await waiting
        except TimeoutError:
            raise _late() from None


def _given(queries: Queries, _: Engine) -> Queries:
    return queries


def _late() -> Refused:
    return Refused(503, "no answer in time; ask for less, or come back later", LATER)


def _submitted(batcher: Batcher[Any, Any], job: Any) -> Future[Any]:
    try:
        return batcher.submit(job)
    except Busy as error:
        raise Refused(503, f"{error}; come back later", LATER) from None


def _warmed(engine: Engine) -> None:
    """A first search, which loads the model."""
    if len(engine):
        ids = engine.some_ids(0, 1)
        engine.search(engine.vectors(ids), [None], Options(1))


def _inner(text: str | None) -> str | None:
    """The filter alone, of a request written as JSON: equal filters give equal texts."""
    if text is None:
        return None
    return json.dumps(json.loads(text)["filter"], sort_keys=True)
