"""The steps from vectors to an index, whoever takes them: this process, or the workers of a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path

from gqe.index.device_cache import DeviceCache
from gqe.index.drafts import file_name
from gqe.index.files import FileRecord
from gqe.index.items import INT, TEXT, encoded_text
from gqe.index.levels import StoredSource, open_levels
from gqe.index.manifest import Manifest, Segment
from gqe.index.plan import Plan
from gqe.index.snapshot import Snapshot
from gqe.model_files import Model
from gqe.models import Expander
from gqe.neighbors.updating import SPARE_NEIGHBORS

EXPANDER, AUGMENTER = "expander", "augmenter"


class Steps(ABC):
    """What every build does in the same order.

    Args:
        plan: what to build.
    """

    def __init__(self, plan: Plan) -> None:
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
    def _measured(self, manifest: Manifest, prefix: str, i: int) -> Manifest: ...

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
        plan, ids, base = self.plan, self.plan.ids, self.plan.taken_over
        if base is not None:
            manifest = replace(base, state=1, storage=plan.storage, augmented=plan.augmented)
            manifest = replace(manifest, background_items=self.n, files=dict(self.done))
            return manifest.with_used_files(self.done)
        tables = {"vectors": self._whole("vectors"), "graph": [], "ids": self._whole("ids")}
        if ids.dtype == object:
            tables["id-text"] = [Segment(first_file("id-text"), len(encoded_text(ids)[0]))]
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
            manifest = self._measured(manifest, prefix, i)
        return manifest


def unfinished_levels(
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
    return replace(manifest, landscape=quantiles, backgrounds=manifest.backgrounds | {prefix: backgrounds})


def planned_tables(plan: Plan) -> list[str]:
    """The tables that a build of this plan may write, ids left out."""
    levels = [f"level-{i}" for i in range(1, len(plan.expander.stack) + 1)]
    augmented = [f"augmented-{i}" for i in range(1, len(plan.expander.database_stack) + 1)]
    return ["vectors", "graph", *levels, *augmented]


def first_file(table: str, ending: str = "npy") -> str:
    """The file of a table as the build writes it."""
    return file_name(table, 1, ending)
