"""Building an index on a cluster: rows are cut into shards, and tasks write the files of each shard."""

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
from gqe.cluster.job import SUMMARY, JobState, sum_counts
from gqe.cluster.session import Chain, Session, TaskRunner, connect, ray_module
from gqe.cluster.storage import open_storage
from gqe.errors import InputError
from gqe.formats.addresses import is_address
from gqe.formats.sources import VectorSource, open_source
from gqe.index.building import BuildSteps, first_file, planned_table_names, prepare
from gqe.index.drafts import flush_and_record, is_temporary, try_remove_leftovers
from gqe.index.files import FileRecord, wrap_os_errors, write_array, writer_lock
from gqe.index.items import encode_text
from gqe.index.manifest import BUILDING, MANIFEST, FaissRecord, Manifest, Segment, manifest_bytes
from gqe.index.metadata import write_metadata
from gqe.index.plan import BuildPlan, fingerprint, make_plan
from gqe.index.shards import even_bounds, shard_file
from gqe.model_files import save_model
from gqe.models import Expander
from gqe.planning.job import default_num_shards
from gqe.progress import Progress, Report, reporting

log = logging.getLogger(__name__)


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
    progress: Progress = False,
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
        progress: see `Index.build`; it counts tasks.

    Returns:
        What the job took, by stage: seconds of work, bytes read from other shards, sent and written. It is
        stored in the index as cluster.json.
    """
    ray = ray_module()
    vectors = source if isinstance(source, VectorSource) else open_source(source, key=key)
    plan = make_plan(vectors, expander, ids, metadata, storage, dba, recall, approximate_by, "cpu", seed)
    with ExitStack() as stack:
        if not is_address(path):
            prepare(Path(path))
            stack.enter_context(writer_lock(Path(path)))
            stack.enter_context(wrap_os_errors(Path(path)))
        mark = fingerprint(plan)
        files = open_storage(path, mark)
        if files.size(MANIFEST) is not None:
            raise InputError(f"{path}: already holds an index; add to it, or build into another folder")
        session = stack.enter_context(connect(cluster))
        runner = TaskRunner(ray, session, _resolve_device(device, session), str(path))
        bounds = even_bounds(len(vectors), _num_shards(shards, plan, runner))
        job = JobState(files, mark, bounds, fixed=shards is not None, names=partial(_names, plan))
        report = stack.enter_context(reporting(progress, "index"))
        build = ClusterBuild(plan, job, runner, report)
        manifest = build.run()
        about = {"workers": runner.workers, "nodes": session.nodes, "device": runner.device}
        summary = job.summary(len(vectors), about | {"wall_seconds": build.walls})
        files.write(SUMMARY, (json.dumps(summary, indent=1) + "\n").encode())
        files.write(MANIFEST, manifest_bytes(manifest))
        if is_address(path):
            for name in [BUILDING, *filter(is_temporary, files.names())]:
                files.remove(name)
            runner.run_on_all_nodes(tasks.clean, files)
        else:
            try_remove_leftovers(Path(path))
        return summary


class ClusterBuild(BuildSteps):
    """The steps of a build as tasks; those whose file is finished are passed over.

    Args:
        plan: what to build.
        job: its files.
        runner: runs the tasks.
        progress: see `build_index`.

    Attributes:
        walls: seconds of each stage, as this run saw them.
    """

    def __init__(self, plan: BuildPlan, job: JobState, runner: TaskRunner, progress: Report | None) -> None:
        super().__init__(plan)
        self.job = job
        self.runner = runner
        self.progress = progress
        self.walls: dict[str, float] = {}

    @property
    def done(self) -> dict[str, FileRecord]:
        """See `BuildSteps`."""
        return self.job.done

    def _write_items(self) -> None:
        plan, job = self.plan, self.job
        values = plan.ids
        if plan.ids.dtype == object:
            text, values = encode_text(plan.ids)
            job.put(first_file("id-text"), lambda path: write_array(path, text))
        job.put(first_file("ids"), lambda path: write_array(path, values))
        if plan.metadata is not None:
            write = _flush_and_record(lambda path: write_metadata(path, plan.metadata))
            job.put(first_file("metadata", "parquet"), write)
        for part, model in self._models().items():
            with tempfile.TemporaryDirectory() as folder:
                save_model(folder, model)
                for file in sorted(Path(folder).iterdir()):
                    job.put(f"{part}/{file.name}", _flush_and_record(partial(shutil.copyfile, file)))
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
        compare = self.runner.task(tasks.compare, returns=2)
        work, step = self._work(manifest), self._progress_steps("neighbours", len(left) * len(shards))

        def chain(queries: int) -> Chain:
            running, counts = None, []
            # Each starts with itself, so that not all read the same file at the same time.
            for place in shards:
                database, last = (queries + place) % len(shards), place == len(shards) - 1
                reference, running = compare.remote(work, queries, database, running, last)
                result = yield reference
                step()
                counts.append(result.counts if last else result)
            self.job.finish(result.name, result.record, sum_counts(counts))

        self._run_timed("graph", map(chain, left))
        manifest = replace(manifest, tables=manifest.tables | {"graph": self._whole("graph")})
        return manifest.with_used_files(self.done)

    def _write_searches(self, manifest: Manifest) -> Manifest:
        """The faiss index of every shard that is large enough for one."""
        searches: dict[int, FaissRecord] = {}
        make, work = self.runner.task(tasks.make_search, spread=True), self._work(manifest)
        shards = range(len(self.job.bounds))
        step = self._progress_steps("search", len(shards))

        def chain(number: int) -> Chain:
            name = shard_file("search", number, "faiss")
            if name in self.done:
                searches[number] = FaissRecord(**self.job.counts[name]["search"])
            else:
                result = yield make.remote(work, number, self.plan.recall, self.plan.kind)
                if result is not None:
                    (file, record, counts), searches[number] = result
                    self.job.finish(file, record, counts | {"search": asdict(searches[number])})
            step()

        self._run_timed("search", map(chain, shards))
        ordered = [searches[number] for number in sorted(searches)]
        # Shards without a faiss index are searched exactly.
        missed = sum((1 - search.recall) * search.rows for search in ordered)
        recall = 1 - missed / self.n if ordered else None
        manifest = replace(manifest, shard_searches=ordered, recall=recall)
        return manifest.with_used_files(self.done)

    def _write_level(self, manifest: Manifest, prefix: str, i: int) -> Manifest:
        name = f"{prefix}-{i}"
        self._store(name, name, manifest, tasks.store_level, prefix, i)
        tables = manifest.tables | {name: self._whole(name)}
        return replace(manifest, tables=tables).with_used_files(self.done)

    def _measure(self, manifest: Manifest, prefix: str, i: int) -> Manifest:
        stack = self.plan.expander.database_stack if prefix == "augmented" else self.plan.expander.stack
        if not any(aggregator.needs_context for aggregator in stack):
            return manifest
        measured = self.runner.call(tasks.measure, self._work(manifest), prefix, i)
        return replace(manifest, quantiles=measured.quantiles, backgrounds=measured.backgrounds)

    def _store(
        self, what: str, table: str, manifest: Manifest, function: Callable[..., Any], *arguments: Any
    ) -> None:
        """Compute every shard of a table that is not finished."""
        numbers = range(len(self.job.bounds))
        left = [number for number in numbers if shard_file(table, number) not in self.done]
        task, work = self.runner.task(function, spread=True), self._work(manifest)
        step = self._progress_steps(what, len(left))

        def chain(number: int) -> Chain:
            result = yield task.remote(work, *arguments, number)
            self.job.finish(result.name, result.record, result.counts)
            step()

        self._run_timed(table, map(chain, left))

    def _work(self, manifest: Manifest) -> Any:
        """What the tasks of a stage know, sent once."""
        plan, job = self.plan, self.job
        work = tasks.TaskContext(
            job.storage, plan.vectors, manifest, plan.expander, self.runner.device, job.bounds
        )
        return self.runner.ray.put(work)

    def _run_timed(self, stage: str, chains: Iterator[Chain]) -> None:
        begun = time.perf_counter()
        self.runner.run(chains)
        self.walls[stage] = round(time.perf_counter() - begun, 3)
        log.info("%s: %.2f s", stage, self.walls[stage])

    def _progress_steps(self, what: str, total: int) -> Callable[[], None]:
        """To be called when a task is done."""
        done = 0

        def step() -> None:
            nonlocal done
            done += 1
            if self.progress is not None:
                self.progress(done, total, what)

        return step


def _num_shards(shards: int | None, plan: BuildPlan, runner: TaskRunner) -> int:
    n, dimension = int(plan.vectors.shape[0]), int(plan.vectors.shape[1])
    if shards is not None:
        return min(positive_int("shards", shards), max(1, n))
    return default_num_shards(n, dimension, runner.workers, exact=plan.recall is None)


def _resolve_device(device: str, session: Session) -> str:
    if device == "auto":
        return "cuda" if session.gpus else "cpu"
    if device not in ("cpu", "cuda"):
        raise InputError(f"device: {device!r} cannot be used on a cluster; use auto, cpu or cuda")
    if device == "cuda" and not session.gpus:
        raise InputError("device: no node of the cluster has a GPU; use --device cpu or auto")
    return device


def _names(plan: BuildPlan, shards: int) -> list[str]:
    """All files that a job may write into the folder itself."""
    whole = [*map(first_file, ("ids", "id-text")), first_file("metadata", "parquet")]
    parts = [shard_file(table, i) for table in planned_table_names(plan) for i in range(shards)]
    return [*whole, *parts, *(shard_file("search", i, "faiss") for i in range(shards))]


def _flush_and_record(write: Callable[[Path], Any]) -> Callable[[Path], FileRecord]:
    """The same, and the record of the file."""

    def write_and_flush(path: Path) -> FileRecord:
        write(path)
        return flush_and_record(path)

    return write_and_flush
