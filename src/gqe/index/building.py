"""Building an index, so that an interrupted build continues where it stopped.

`BuildSteps` are the same for this process and for the workers of a cluster. Here every table is written row
by row into its final file, and a journal that is removed when the manifest is written records how far it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gqe.errors import InputError, StorageError
from gqe.expansion import compute_level
from gqe.index import approximate
from gqe.index.drafts import file_name, is_temporary, try_remove_leftovers
from gqe.index.files import LOCK, FileRecord, check_file, wrap_os_errors, writer_lock
from gqe.index.finding import nearest_rows, rank_lists
from gqe.index.gpu import DeviceCache
from gqe.index.items import INT, TEXT, encode_text
from gqe.index.journal import Journal
from gqe.index.levels import StoredSource, open_levels
from gqe.index.manifest import BUILDING, MANIFEST, FaissRecord, Manifest, Segment, write_manifest
from gqe.index.metadata import write_metadata
from gqe.index.plan import BuildPlan, fingerprint, read_rows
from gqe.index.snapshot import Snapshot, storage_of
from gqe.index.tables import copy_to_host, encode_rows, list_dtype, pack_lists, row_dtype
from gqe.model_files import Model, save_model
from gqe.models import Expander
from gqe.neighbors.cells import ApproximateLists, approximate_lists
from gqe.neighbors.rescoring import SPARE
from gqe.neighbors.updating import SPARE_NEIGHBORS, NeighborLists
from gqe.progress import Report
from gqe.transfer import PendingCopy

EXPANDER, AUGMENTER = "expander", "augmenter"


class BuildSteps(ABC):
    """What every build does in the same order.

    Args:
        plan: what to build.
    """

    def __init__(self, plan: BuildPlan) -> None:
        self.plan = plan
        self.n, self.dimension = plan.vectors.shape
        self.width = plan.graph_k + SPARE_NEIGHBORS
        self.own_augmenter = plan.augmented and plan.expander.database_stack != plan.expander.stack

    @property
    @abstractmethod
    def done(self) -> dict[str, FileRecord]:
        """The files that are written."""

    @abstractmethod
    def _write_items(self) -> None: ...

    @abstractmethod
    def _write_graph(self, manifest: Manifest) -> Manifest: ...

    @abstractmethod
    def _write_level(self, manifest: Manifest, prefix: str, i: int) -> Manifest: ...

    @abstractmethod
    def _measure(self, manifest: Manifest, prefix: str, i: int) -> Manifest: ...

    def run(self) -> Manifest:
        """Write everything; returns the manifest that makes it an index."""
        self._write_items()
        manifest = self._first_manifest()
        manifest = self._write_graph(manifest)
        depth = len(self.plan.expander.stack)
        shared = self.plan.augmented and not self.own_augmenter
        manifest = self._write_chain(manifest, "level", depth if shared else depth - 1)
        if self.own_augmenter:
            manifest = self._write_chain(manifest, "augmented", len(self.plan.expander.database_stack))
        return manifest.with_used_files(self.done)

    def _models(self) -> dict[str, Model]:
        """What is stored of the expander, by folder."""
        expander = self.plan.expander
        stacks = {EXPANDER: expander.stack}
        if self.own_augmenter:
            stacks[AUGMENTER] = expander.database_stack
        options = expander.query_options
        return {part: Model(stack, expander.name, {}, options) for part, stack in stacks.items()}

    def _first_manifest(self) -> Manifest:
        """The manifest of the items alone."""
        plan, ids, base = self.plan, self.plan.ids, self.plan.base_manifest
        if base is not None:
            manifest = replace(base, state=1, storage=plan.storage, augmented=plan.augmented)
            manifest = replace(manifest, background_items=self.n, files=dict(self.done))
            return manifest.with_used_files(self.done)
        tables = {"vectors": self._whole("vectors"), "graph": [], "ids": self._whole("ids")}
        if ids.dtype == object:
            tables["id-text"] = [Segment(first_file("id-text"), len(encode_text(ids)[0]))]
        metadata = [first_file("metadata", "parquet")] if plan.metadata is not None else []
        manifest = replace(self._empty_manifest(), tables=tables, metadata=metadata, files=dict(self.done))
        return manifest.with_used_files(self.done)

    def _empty_manifest(self) -> Manifest:
        """The manifest before anything is written."""
        plan, ids = self.plan, self.plan.ids
        return Manifest(
            state=1,
            dimension=self.dimension,
            rows=self.n,
            items=self.n,
            width=self.width,
            storage=plan.storage,
            augmented=plan.augmented,
            id_kind=TEXT if ids.dtype == object else INT,
            next_id=0 if ids.dtype == object or not len(ids) else int(ids.max()) + 1,
            recall=None,
            seed=plan.seed,
            wanted_recall=plan.recall,
            search_kind=plan.kind,
            background_items=self.n,
        )

    def _whole(self, table: str) -> list[Segment]:
        return [Segment(first_file(table), self.n)]

    def _write_chain(self, manifest: Manifest, prefix: str, levels: int) -> Manifest:
        """Levels from 1 on, each measured for its background before the next one reads it."""
        for i in range(levels + 1):
            if i:
                manifest = self._write_level(manifest, prefix, i)
            manifest = self._measure(manifest, prefix, i)
        return manifest


def open_unfinished_levels(
    folder: Path, manifest: Manifest, expander: Expander, prefix: str, cache: DeviceCache
) -> StoredSource:
    """The levels of an index that is being built, as far as its manifest names them."""
    if prefix == "augmented" and "augmented-1" not in manifest.tables:
        manifest = replace(manifest, tables=manifest.tables | {"augmented-1": []})
    snapshot = Snapshot(folder, manifest)
    return open_levels(snapshot, expander, cache).by_prefix()[prefix]


def with_statistics(manifest: Manifest, prefix: str, i: int, source: StoredSource) -> Manifest:
    """The manifest with the statistics of the whole database, measured up to level i."""
    if not source.needs_context or i >= source.depth:
        return manifest
    source.statistics.measure(i, source)
    quantiles, backgrounds = source.statistics.to_config()
    return replace(manifest, quantiles=quantiles, backgrounds=manifest.backgrounds | {prefix: backgrounds})


def planned_table_names(plan: BuildPlan) -> list[str]:
    """The tables that a build of this plan may write, ids left out."""
    levels = [f"level-{i}" for i in range(1, len(plan.expander.stack) + 1)]
    augmented = [f"augmented-{i}" for i in range(1, len(plan.expander.database_stack) + 1)]
    return ["vectors", "graph", *levels, *augmented]


def first_file(table: str, ending: str = "npy") -> str:
    """The file of a table as the build writes it."""
    return file_name(table, 1, ending)


def build(folder: Path, plan: BuildPlan, progress: Report | None = None) -> None:
    """Build into a folder that is new, empty, or holds an interrupted build."""
    prepare(folder)
    with writer_lock(folder), wrap_os_errors(folder):
        if (folder / MANIFEST).exists():
            raise InputError(f"{folder}: already holds an index; add to it, or build into another folder")
        try:
            with Journal(folder, fingerprint(plan), progress, _names(plan)) as journal:
                manifest = LocalBuild(folder, plan, journal).run()
                journal.wait_for_disk()
            write_manifest(folder, manifest)
        finally:
            if (folder / MANIFEST).exists():
                try_remove_leftovers(folder)


class LocalBuild(BuildSteps):
    """The steps on this machine; each passes over what its journal says is finished."""

    def __init__(self, folder: Path, plan: BuildPlan, journal: Journal) -> None:
        super().__init__(plan)
        self.folder = folder
        self.journal = journal
        self.cache = DeviceCache(plan.device)

    @property
    def done(self) -> dict[str, FileRecord]:
        """See `BuildSteps`."""
        return self.journal.done

    def _write_items(self) -> None:
        models = self._models()
        saving = [self.journal.part(part, partial(save_model, model=model)) for part, model in models.items()]
        if self.plan.base is None:
            self._write_own_items()
        else:
            self._take_over(self.plan.base)
        for part in saving:
            part.result()

    def _take_over(self, base: Snapshot) -> None:
        """Link the files of another index with the same items."""
        assert self.plan.base_manifest is not None
        for name in sorted(self.plan.base_manifest.file_names()):
            check_file(base.folder / name, base.manifest.files[name])
            self.journal.link(name, base.folder / name, base.manifest.files[name])

    def _write_own_items(self) -> None:
        plan, journal = self.plan, self.journal
        if plan.ids.dtype == object:
            text, ends = encode_text(plan.ids)
            journal.array(first_file("id-text"), text)
            journal.array(first_file("ids"), ends)
        else:
            journal.array(first_file("ids"), plan.ids)
        if plan.metadata is not None:
            journal.other(first_file("metadata", "parquet"), lambda path: write_metadata(path, plan.metadata))
        self._write_vectors("vectors", plan.storage[0], partial(read_rows, plan.vectors))

    def _write_vectors(self, name: str, storage: str, rows: Callable[[int, int], torch.Tensor]) -> None:
        """Write the embeddings or a level; `rows` gives those from one number to another."""
        dtype, shape = row_dtype(storage, self.dimension)
        self.journal.table(
            first_file(name),
            dtype,
            (self.n, *shape),
            lambda start, stop: copy_to_host(rows(start, stop), storage),
            name,
            lambda block: encode_rows(block, storage),
        )

    def _write_graph(self, manifest: Manifest) -> Manifest:
        if self.plan.base is not None:
            return manifest
        device, table = self.plan.device, Snapshot(self.folder, manifest).vectors
        search = None if self.plan.recall is None else self._faiss(table)
        engine = None if search is None else search.engine(table, None)
        near = self.cache.table("vectors", table)
        lists = None
        if search is not None and first_file("graph") not in self.journal.done:
            lists = self._approximate_lists(table)

        def work(start: int, stop: int) -> PendingCopy:
            if lists is not None:
                return PendingCopy(*rank_lists(near, lists, slice(start, stop), self.width, device))
            omit = torch.arange(start, stop)
            found = nearest_rows(near, near[start:stop], self.width, device=device, omit=omit, engine=engine)
            return PendingCopy(*found)

        def encode(found: PendingCopy) -> Any:
            ids, similarities = found.wait()
            return pack_lists(NeighborLists(ids.numpy(), similarities.numpy()))

        self.journal.table(first_file("graph"), list_dtype(self.width), (self.n,), work, "neighbours", encode)
        manifest = replace(manifest, tables=manifest.tables | {"graph": self._whole("graph")})
        if search is not None:
            about = FaissRecord(first_file("search", "faiss"), *search[1:])
            manifest = replace(manifest, search=about, recall=self.journal.notes.get("graph", search.recall))
        return manifest.with_used_files(self.journal.done)

    def _approximate_lists(self, table: Any) -> ApproximateLists | None:
        """The neighbour lists of all rows to the wanted recall; None where the faiss index is as fast."""
        assert self.plan.recall is not None
        lists = approximate_lists(
            table, self.width + SPARE + 1, self.plan.recall, self.plan.seed, self.journal.progress
        )
        if lists is not None:
            self.journal.note("graph", lists.recall)
        return lists

    def _faiss(self, table: Any) -> approximate.Approximate | None:
        """The faiss index: read if it is finished, built otherwise."""
        name, plan = first_file("search", "faiss"), self.plan
        if name in self.journal.done:
            content = np.fromfile(self.folder / name, dtype=np.uint8)
            return approximate.Approximate(approximate.read_faiss(content), *self.journal.notes["search"])
        assert plan.recall is not None
        search = approximate.build_approximate(table, self.width, plan.recall, plan.kind, plan.seed)
        if search is not None:
            notes = {"search": list(search[1:])}
            self.journal.other(name, lambda path: approximate.write_faiss(path, search.index), notes)
        return search

    def _measure(self, manifest: Manifest, prefix: str, i: int) -> Manifest:
        return with_statistics(manifest, prefix, i, self._levels(manifest, prefix))

    def _write_level(self, manifest: Manifest, prefix: str, i: int) -> Manifest:
        name = f"{prefix}-{i}"
        if self.plan.lazy and prefix == "level" and (self.own_augmenter or not self.plan.augmented):
            # As if all items had come after the level was written: searches compute the rows they read.
            marks = first_file(f"stale-{name}")
            self.journal.array(marks, np.ones(self.n, dtype=bool))
            stale, tables = manifest.stale | {name: marks}, manifest.tables | {name: []}
            return replace(manifest, tables=tables, stale=stale).with_used_files(self.journal.done)
        source = self._levels(manifest, prefix)
        self._write_vectors(
            name,
            storage_of(manifest, name),
            lambda start, stop: compute_level(source, i, torch.arange(start, stop)),
        )
        tables = manifest.tables | {name: self._whole(name)}
        return replace(manifest, tables=tables).with_used_files(self.journal.done)

    def _levels(self, manifest: Manifest, prefix: str) -> StoredSource:
        return open_unfinished_levels(self.folder, manifest, self.plan.expander, prefix, self.cache)


def _names(plan: BuildPlan) -> list[str]:
    """All files that a build may write into the folder itself."""
    others = [first_file("search", "faiss"), first_file("metadata", "parquet")]
    tables = planned_table_names(plan)
    stale = [f"stale-{name}" for name in tables if plan.lazy]
    linked = [] if plan.base_manifest is None else plan.base_manifest.file_names()
    return [*map(first_file, [*tables, *stale, "ids", "id-text"]), *others, *linked]


def prepare(folder: Path) -> None:
    """Make the folder of a build; refuse one that holds something else."""
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: is a file; give the name of a folder")
        if folder.is_dir() and not (folder / MANIFEST).exists():
            # A build stopped in its first moments leaves these.
            names = sorted(path.name for path in folder.iterdir())
            others = [name for name in names if name != LOCK and not is_temporary(name)]
            if others and not (folder / BUILDING).is_file():
                raise InputError(f"{folder}: holds other files ({others[0]}); build into a new folder")
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError.of(error, folder, "made") from error
