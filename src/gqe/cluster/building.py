"""Building an index on a cluster: rows are cut into shards, and tasks make the files of each shard."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from gqe.aggregators.base import positive_int
from gqe.cluster import tasks
from gqe.cluster.job import SUMMARY, Job, summed
from gqe.cluster.running import Chain, TaskRunner
from gqe.cluster.session import Session, connect, ray_module
from gqe.cluster.storage import open_storage
from gqe.errors import InputError
from gqe.formats.addresses import is_address
from gqe.formats.sources import VectorSource, open_source
from gqe.index.building import prepare
from gqe.index.drafts import flushed_record
from gqe.index.files import FileRecord, explained, only_writer, write_array
from gqe.index.items import encoded_text
from gqe.index.leftovers import try_to_clean
from gqe.index.manifest import BUILDING, MANIFEST, Manifest, Search, Segment, manifest_bytes
from gqe.index.metadata import write_metadata
from gqe.index.plan import Plan, checked_plan, fingerprint
from gqe.index.shards import even_bounds, shard_file
from gqe.index.steps import Steps, first_file, planned_tables
from gqe.model_files import save_model
from gqe.models import Expander
from gqe.planning.job import default_num_shards

log = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None] | None


def build_index(
    source: str | os.PathLike[str] | VectorSource,
    expander: Expander | str,
    path: str | os.PathLike[str],
    *,
    cluster: str = "auto",
    shards: int | None = None,
    key: str | None = None,
    ids: Any = None,
    metadata: Any = None,
    storage: str | Sequence[str] = "float32",
    dba: bool = False,
    recall: float | None = None,
    approximate_by: str = "auto",
    device: str = "auto",
    seed: int = 0,
    progress: Progress = None,
) -> dict[str, Any]:
    """`Index.build` by the workers of a cluster; the same call goes on with a job that was stopped.

    Args:
        source: file or folder of vectors that all nodes see, or an fsspec address.
        expander: see `Index.build`, as what is not listed here.
        path: the index: a folder that all nodes see, or an fsspec address.
        cluster: see `gqe.cluster.session.connect`.
        shards: into how many parts the rows are cut; chosen by the number of workers if None.
        key: which array of files of several.
        ids: see `Index.build`.
        metadata: see `Index.build`.
        storage: see `Index.build`.
        dba: see `Index.build`.
        recall: see `Index.build`; every shard finds this share of its own true neighbours.
        approximate_by: see `Index.build`.
        device: "auto" for GPUs if the cluster has any, "cpu" or "cuda".
        seed: see `Index.build`.
        progress: called with tasks done, tasks in all, and what is being done.

    Returns:
        What the job took, by stage: seconds of work, bytes read from other shards, sent and written. It is
        kept in the index as cluster.json.
    """
    ray = ray_module()
    vectors = source if isinstance(source, VectorSource) else open_source(source, key=key)
    plan = checked_plan(vectors, expander, ids, metadata, storage, dba, recall, approximate_by, "cpu", seed)
    with ExitStack() as stack:
        if not is_address(path):
            prepare(Path(path))
            stack.enter_context(only_writer(Path(path)))
            stack.enter_context(explained(Path(path)))
        mark = fingerprint(plan)
        kept = open_storage(path, mark)
        if kept.size(MANIFEST) is not None:
            raise InputError(f"{path}: already holds an index; add to it, or build into another folder")
        session = stack.enter_context(connect(cluster))
        crew = TaskRunner(ray, session, _device(device, session), str(path))
        bounds = even_bounds(len(vectors), _shards(shards, plan, crew))
        job = Job(kept, mark, bounds, fixed=shards is not None, names=partial(_names, plan))
        build = ClusterBuild(plan, job, crew, progress)
        manifest = build.run()
        about = {"workers": crew.workers, "nodes": session.nodes, "device": crew.device}
        summary = job.summary(len(vectors), about | {"wall_seconds": build.walls})
        kept.write(SUMMARY, (json.dumps(summary, indent=1) + "\n").encode())
        kept.write(MANIFEST, manifest_bytes(manifest))
        if is_address(path):
            kept.remove(BUILDING)
            crew.everywhere(tasks.clean, kept)
        else:
            try_to_clean(Path(path))
        return summary


class ClusterBuild(Steps):
    """The steps of a build as tasks; those whose file is finished are passed over.

    Args:
        plan: what to build.
        job: its files.
        crew: the workers.
        progress: see `build_index`.

    Attributes:
        walls: seconds of each stage, as this run saw them.
    """

    def __init__(self, plan: Plan, job: Job, crew: TaskRunner, progress: Progress) -> None:
        super().__init__(plan)
        self.job = job
        self.crew = crew
        self.progress = progress
        self.walls: dict[str, float] = {}

    @property
    def done(self) -> dict[str, FileRecord]:
        """See `Steps`."""
        return self.job.done

    def _write_items(self) -> None:
        plan, job = self.plan, self.job
        values = plan.ids
        if plan.ids.dtype == object:
            text, values = encoded_text(plan.ids)
            job.put(first_file("id-text"), lambda path: write_array(path, text))
        job.put(first_file("ids"), lambda path: write_array(path, values))
        if plan.metadata is not None:
            write = _other(lambda path: write_metadata(path, plan.metadata))
            job.put(first_file("metadata", "parquet"), write)
        for part, model in self._models().items():
            with tempfile.TemporaryDirectory() as folder:
                save_model(folder, model)
                for file in sorted(Path(folder).iterdir()):
                    job.put(f"{part}/{file.name}", _other(partial(shutil.copyfile, file)))
        self._store("vectors", "vectors", self._empty_manifest(), tasks.store_vectors)

    def _whole(self, table: str) -> list[Segment]:
        if table == "ids":
            return super()._whole(table)
        bounds = enumerate(self.job.bounds)
        return [Segment(shard_file(table, i), stop - start, start) for i, (start, stop) in bounds]

    def _write_graph(self, manifest: Manifest) -> Manifest:
        if self.plan.recall is not None:
            manifest = self._write_searches(manifest)
        shards = range(len(self.job.bounds))
        left = [number for number in shards if shard_file("graph", number) not in self.done]
        compare = self.crew.task(tasks.compare, returns=2)
        work, step = self._work(manifest), self._steps("neighbours", len(left) * len(shards))

        def chain(asking: int) -> Chain:
            running, counts = None, []
            # Each begins with itself, so that not all read the same file at the same time.
            for place in shards:
                asked, last = (asking + place) % len(shards), place == len(shards) - 1
                counted, running = compare.remote(work, asking, asked, running, last)
                found = yield counted
                step()
                counts.append(found.counts if last else found)
            self.job.finish(found.name, found.record, summed(counts))

        self._timed("graph", map(chain, left))
        manifest = replace(manifest, tables=manifest.tables | {"graph": self._whole("graph")})
        return manifest.with_used_files(self.done)

    def _write_searches(self, manifest: Manifest) -> Manifest:
        """The faiss index of every shard that is large enough for one."""
        made: dict[int, Search] = {}
        make, work = self.crew.task(tasks.make_search, spread=True), self._work(manifest)
        shards = range(len(self.job.bounds))
        step = self._steps("search", len(shards))

        def chain(number: int) -> Chain:
            name = shard_file("search", number, "faiss")
            if name in self.done:
                made[number] = Search(**self.job.counts[name]["search"])
            else:
                found = yield make.remote(work, number, self.plan.recall, self.plan.kind)
                if found is not None:
                    (file, record, counts), made[number] = found
                    self.job.finish(file, record, counts | {"search": asdict(made[number])})
            step()

        self._timed("search", map(chain, shards))
        searches = [made[number] for number in sorted(made)]
        rows = sum(search.rows for search in searches)
        recall = sum(search.recall * search.rows for search in searches) + self.n - rows
        manifest = replace(manifest, shard_searches=searches, recall=recall / self.n if searches else None)
        return manifest.with_used_files(self.done)

    def _write_level(self, manifest: Manifest, prefix: str, i: int) -> Manifest:
        name = f"{prefix}-{i}"
        self._store(name, name, manifest, tasks.store_level, prefix, i)
        tables = manifest.tables | {name: self._whole(name)}
        return replace(manifest, tables=tables).with_used_files(self.done)

    def _measured(self, manifest: Manifest, prefix: str, i: int) -> Manifest:
        stack = self.plan.expander.database_stack if prefix == "augmented" else self.plan.expander.stack
        if not any(aggregator.needs_context for aggregator in stack):
            return manifest
        measured = self.crew.call(tasks.measure, self._work(manifest), prefix, i)
        return replace(manifest, landscape=measured.landscape, backgrounds=measured.backgrounds)

    def _store(
        self, what: str, table: str, manifest: Manifest, function: Callable[..., Any], *given: Any
    ) -> None:
        """Have every shard of a table made that is not finished."""
        numbers = range(len(self.job.bounds))
        left = [number for number in numbers if shard_file(table, number) not in self.done]
        task, work = self.crew.task(function, spread=True), self._work(manifest)
        step = self._steps(what, len(left))

        def chain(number: int) -> Chain:
            made = yield task.remote(work, *given, number)
            self.job.finish(made.name, made.record, made.counts)
            step()

        self._timed(table, map(chain, left))

    def _work(self, manifest: Manifest) -> Any:
        """What the tasks of a stage know, sent once."""
        plan, job = self.plan, self.job
        work = tasks.Work(job.storage, plan.vectors, manifest, plan.expander, self.crew.device, job.bounds)
        return self.crew.ray.put(work)

    def _timed(self, stage: str, chains: Iterator[Chain]) -> None:
        begun = time.perf_counter()
        self.crew.run(chains)
        self.walls[stage] = round(time.perf_counter() - begun, 3)
        log.info("%s: %.2f s", stage, self.walls[stage])

    def _steps(self, what: str, total: int) -> Callable[[], None]:
        """To be called when a task is done."""
        done = 0

        def step() -> None:
            nonlocal done
            done += 1
            if self.progress is not None:
                self.progress(done, total, what)

        return step


def _shards(wanted: int | None, plan: Plan, crew: TaskRunner) -> int:
    n, dimension = int(plan.vectors.shape[0]), int(plan.vectors.shape[1])
    if wanted is not None:
        return min(positive_int("shards", wanted), max(1, n))
    return default_num_shards(n, dimension, crew.workers, exact=plan.recall is None)


def _device(wanted: str, session: Session) -> str:
    if wanted == "auto":
        return "cuda" if session.gpus else "cpu"
    if wanted not in ("cpu", "cuda"):
        raise InputError(f"device: {wanted!r} cannot be used on a cluster; use auto, cpu or cuda")
    if wanted == "cuda" and not session.gpus:
        raise InputError("device: no node of the cluster has a GPU; use --device cpu or auto")
    return wanted


def _names(plan: Plan, shards: int) -> list[str]:
    """All files that a job may write into the folder itself."""
    whole = [*map(first_file, ("ids", "id-text")), first_file("metadata", "parquet")]
    parts = [shard_file(table, i) for table in planned_tables(plan) for i in range(shards)]
    return [*whole, *parts, *(shard_file("search", i, "faiss") for i in range(shards))]


def _other(write: Callable[[Path], Any]) -> Callable[[Path], FileRecord]:
    def make(path: Path) -> FileRecord:
        write(path)
        return flushed_record(path)

    return make
