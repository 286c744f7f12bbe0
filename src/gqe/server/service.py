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
from gqe.server.expanders import named
from gqe.server.metrics import Metrics
from gqe.server.pictures import Array, ItemPictures, PictureVectors, Thumbnails
from gqe.server.problems import LATER, Refused
from gqe.server.schemas import How
from gqe.server.settings import Settings

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Service:
    """Threads around an engine: one reads, one writes, one describes pictures, one shows them.

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
        self._describing = ThreadPoolExecutor(1, "gqe-describe")
        self._showing = ThreadPoolExecutor(1, "gqe-pictures")
        self._warm = self.reader.submit(reading.Read(_warmed))

    def close(self) -> None:
        """Finish all that was accepted, writes first, and end the threads."""
        self.writer.close()
        self.reader.close()
        self._describing.shutdown(cancel_futures=True)
        self._showing.shutdown(cancel_futures=True)
        self.engine.close()

    async def follow(self) -> None:
        """See what others change, soon after they did, and whether there is an answer; until cancelled."""
        while True:
            await asyncio.sleep(self.settings.follow)
            try:
                outdated = await asyncio.to_thread(self.engine.outdated)
                self._away = False
                if outdated:
                    await asyncio.shield(asyncio.wrap_future(self.writer.submit(writing.Reload())))
                if self._warm is not None and self._warm.done() and self._warm.exception() is not None:
                    self._warm = self.reader.submit(reading.Read(_warmed))
            except Busy:
                self._away = True
            except Exception as error:
                log.warning("what is served changed and cannot be opened: %s", error)

    @property
    def ready(self) -> bool:
        """Whether searches are answered at once."""
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

    async def read(self, work: Callable[[Engine], Result]) -> Result:
        """Let the thread that reads do something."""
        result: Result = await self._answered(self.reader, reading.Read(work))
        return result

    async def search(self, job: reading.Search) -> list[reading.Found]:
        """Results for each query of a search."""
        found: list[reading.Found] = await self._answered(self.reader, job)
        return found

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
        vector: Array = await self._run(self._describing, self.describe, content)
        return vector

    async def picture(self, item: int | str, side: int) -> bytes | None:
        """A thumbnail of an item, or None."""
        if self.thumbnails is None:
            return None
        known = self.thumbnails.kept(item, side)
        if known is not None:
            return known
        content: bytes | None = await self._run(self._showing, self._shown, item, side)
        return content

    async def examples(self) -> list[Any]:
        """Ids to offer on the page."""
        if self._examples is not None:
            return self._examples
        return await self.read(lambda engine: engine.some_ids(0, 24, spread=True))

    def _shown(self, item: int | str, side: int) -> bytes | None:
        assert self.thumbnails is not None
        return self.thumbnails(item, side) if item in self.engine else None

    async def _answered(self, batcher: Batcher[Any, Any], job: Any) -> Any:
        return await self._in_time(self._delivery.awaited(_submitted(batcher, job)))

    async def _run(self, executor: ThreadPoolExecutor, work: Callable[..., Any], *given: Any) -> Any:
        return await self._in_time(asyncio.get_running_loop().run_in_executor(executor, work, *given))

    async def _in_time(self, waiting: asyncio.Future[Any]) -> Any:
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await waiting
        except TimeoutError:
            raise Refused(503, "no answer in time; ask for less, or come back later", LATER) from None


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
