"""Building an index from nothing, so that an interrupted build goes on where it was.

Every table is written row by row into its final file, under the eyes of a journal that is dropped when the
manifest is written.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gqe.errors import InputError, StorageError
from gqe.expansion import compute_level
from gqe.index import approximate
from gqe.index.device_cache import DeviceCache
from gqe.index.files import LOCK, FileRecord, check_file, explained, only_writer
from gqe.index.finding import nearest_rows
from gqe.index.items import encoded_text
from gqe.index.journal import Journal, Progress
from gqe.index.leftovers import is_beside, try_to_clean
from gqe.index.levels import StoredSource
from gqe.index.lists import list_type, packed
from gqe.index.manifest import BUILDING, MANIFEST, Manifest, Search, write_manifest
from gqe.index.metadata import write_metadata
from gqe.index.plan import Plan, checked_rows, fingerprint
from gqe.index.snapshot import Snapshot, storage_of
from gqe.index.steps import Steps, first_file, planned_tables, unfinished_levels, with_statistics
from gqe.index.tables import encoded, leaving, row_type
from gqe.model_files import save_model
from gqe.neighbors.updating import Lists
from gqe.transfer import Arriving


def build(folder: Path, plan: Plan, progress: Progress = None) -> None:
    """Build into a folder that is new, empty, or holds an interrupted build."""
    prepare(folder)
    with only_writer(folder), explained(folder):
        if (folder / MANIFEST).exists():
            raise InputError(f"{folder}: already holds an index; add to it, or build into another folder")
        try:
            with Journal(folder, fingerprint(plan), progress, _names(plan)) as journal:
                manifest = Build(folder, plan, journal).run()
                journal.settle()
            write_manifest(folder, manifest)
        finally:
            if (folder / MANIFEST).exists():
                try_to_clean(folder)


class Build(Steps):
    """The steps on this machine; each passes over what its journal says is finished."""

    def __init__(self, folder: Path, plan: Plan, journal: Journal) -> None:
        super().__init__(plan)
        self.folder = folder
        self.journal = journal
        self.place = DeviceCache(plan.device)

    @property
    def done(self) -> dict[str, FileRecord]:
        """See `Steps`."""
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
        assert self.plan.taken_over is not None
        for name in sorted(self.plan.taken_over.named()):
            check_file(base.folder / name, base.manifest.files[name])
            self.journal.link(name, base.folder / name, base.manifest.files[name])

    def _write_own_items(self) -> None:
        plan, journal = self.plan, self.journal
        if plan.ids.dtype == object:
            text, ends = encoded_text(plan.ids)
            journal.array(first_file("id-text"), text)
            journal.array(first_file("ids"), ends)
        else:
            journal.array(first_file("ids"), plan.ids)
        if plan.metadata is not None:
            journal.other(first_file("metadata", "parquet"), lambda path: write_metadata(path, plan.metadata))
        storage = plan.storage[0]
        dtype, shape = row_type(storage, self.dimension)

        def work(start: int, stop: int) -> Arriving:
            return leaving(checked_rows(plan.vectors, start, stop), storage)

        def encode(rows: Arriving) -> Any:
            return encoded(rows, storage)

        journal.table(first_file("vectors"), dtype, (self.n, *shape), work, "vectors", encode)

    def _write_graph(self, manifest: Manifest) -> Manifest:
        if self.plan.base is not None:
            return manifest
        device, table = self.plan.device, Snapshot(self.folder, manifest).vectors
        search = None if self.plan.recall is None else self._faiss(table)
        engine = None if search is None else search.engine(table, None)
        near = self.place.table("vectors", table)

        def work(start: int, stop: int) -> Arriving:
            numbers = torch.arange(start, stop)
            asked = near[start:stop]
            return Arriving(
                *nearest_rows(near, asked, self.width, device=device, omit=numbers, engine=engine)
            )

        def encode(found: Arriving) -> Any:
            ids, similarities = found.wait()
            return packed(Lists(ids.numpy(), similarities.numpy()))

        self.journal.table(first_file("graph"), list_type(self.width), (self.n,), work, "neighbours", encode)
        manifest = replace(manifest, tables=manifest.tables | {"graph": self._whole("graph")})
        if search is not None:
            about = Search(first_file("search", "faiss"), *search[1:])
            manifest = replace(manifest, search=about, recall=search.recall)
        return manifest.with_used_files(self.journal.done)

    def _faiss(self, table: Any) -> approximate.Approximate | None:
        """The faiss index: read if it is finished, made otherwise."""
        name, plan = first_file("search", "faiss"), self.plan
        if name in self.journal.done:
            content = np.fromfile(self.folder / name, dtype=np.uint8)
            return approximate.Approximate(approximate.read_faiss(content), *self.journal.notes["search"])
        assert plan.recall is not None
        made = approximate.build_approximate(table, self.width, plan.recall, plan.kind, plan.seed)
        if made is not None:
            notes = {"search": list(made[1:])}
            self.journal.other(name, lambda path: approximate.write_faiss(path, made.index), notes)
        return made

    def _measured(self, manifest: Manifest, prefix: str, i: int) -> Manifest:
        return with_statistics(manifest, prefix, i, self._chain(manifest, prefix))

    def _write_level(self, manifest: Manifest, prefix: str, i: int) -> Manifest:
        name = f"{prefix}-{i}"
        if self.plan.lazy and prefix == "level" and (self.own_augmenter or not self.plan.augmented):
            # As if all items had come after the level was written: searches compute the rows they read.
            marks = first_file(f"stale-{name}")
            self.journal.array(marks, np.ones(self.n, dtype=bool))
            stale, tables = manifest.stale | {name: marks}, manifest.tables | {name: []}
            return replace(manifest, tables=tables, stale=stale).with_used_files(self.journal.done)
        storage = storage_of(manifest, name)
        dtype, shape = row_type(storage, self.dimension)
        source = self._chain(manifest, prefix)

        def work(start: int, stop: int) -> Arriving:
            return leaving(compute_level(source, i, torch.arange(start, stop)), storage)

        def encode(rows: Arriving) -> Any:
            return encoded(rows, storage)

        self.journal.table(first_file(name), dtype, (self.n, *shape), work, name, encode)
        tables = manifest.tables | {name: self._whole(name)}
        return replace(manifest, tables=tables).with_used_files(self.journal.done)

    def _chain(self, manifest: Manifest, prefix: str) -> StoredSource:
        return unfinished_levels(self.folder, manifest, self.plan.expander, prefix, self.place)


def _names(plan: Plan) -> list[str]:
    """All files that a build may write into the folder itself."""
    others = [first_file("search", "faiss"), first_file("metadata", "parquet")]
    tables = planned_tables(plan)
    stale = [f"stale-{name}" for name in tables if plan.lazy]
    linked = [] if plan.taken_over is None else plan.taken_over.named()
    return [*map(first_file, [*tables, *stale, "ids", "id-text"]), *others, *linked]


def prepare(folder: Path) -> None:
    """Make the folder of a build; refuse one that holds something else."""
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: is a file; give the name of a folder")
        if folder.is_dir() and not (folder / MANIFEST).exists():
            # A build stopped in its first moments leaves these.
            names = sorted(path.name for path in folder.iterdir())
            strangers = [name for name in names if name != LOCK and not is_beside(name)]
            if strangers and not (folder / BUILDING).is_file():
                raise InputError(f"{folder}: holds other files ({strangers[0]}); build into a new folder")
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError.of(error, folder, "made") from error
