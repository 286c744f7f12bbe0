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

from gqe.errors import InputError
from gqe.index import approximate
from gqe.index.chains import StoredHierarchy, open_chains
from gqe.index.drafts import file_name
from gqe.index.files import LOCK, explained, only_writer, sweep
from gqe.index.finding import located
from gqe.index.items import INT, TEXT, encoded_text
from gqe.index.journal import Journal, Progress
from gqe.index.lists import SPARE_NEIGHBORS, Lists, list_type, packed
from gqe.index.manifest import BUILDING, MANIFEST, Manifest, Search, Segment, write_manifest
from gqe.index.metadata import write_metadata
from gqe.index.place import Place
from gqe.index.plan import Plan, checked_rows, fingerprint
from gqe.index.snapshot import Snapshot, storage_of
from gqe.index.tables import encoded, leaving, row_type
from gqe.model_files import Model, save_model
from gqe.transfer import Arriving

EXPANDER, AUGMENTER = "expander", "augmenter"


def build(folder: Path, plan: Plan, progress: Progress = None) -> None:
    """Build into a folder that is new, empty, or holds an interrupted build."""
    _prepare(folder)
    with only_writer(folder), explained(folder):
        if (folder / MANIFEST).exists():
            raise InputError(f"{folder}: already holds an index; add to it, or build into another folder")
        with Journal(folder, fingerprint(plan), progress) as journal:
            manifest = Build(folder, plan, journal).run()
            journal.settle()
        write_manifest(folder, manifest)
        sweep(folder, {MANIFEST, *manifest.files})


class Build:
    """The steps of a build; each passes over what its journal says is finished."""

    def __init__(self, folder: Path, plan: Plan, journal: Journal) -> None:
        self.folder = folder
        self.plan = plan
        self.journal = journal
        self.place = Place(plan.device)
        self.n, self.dimension = plan.vectors.shape
        stacks = [*plan.expander.stack, *(plan.expander.database_stack if plan.augmented else [])]
        self.width = max(level.reach for level in stacks) + SPARE_NEIGHBORS
        self.own_augmenter = plan.augmented and plan.expander.database_stack != plan.expander.stack

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
        return manifest.with_used_files(self.journal.done)

    def _write_items(self) -> None:
        plan, journal = self.plan, self.journal
        if plan.ids.dtype == object:
            text, ends = encoded_text(plan.ids)
            journal.array(first_file("id-text"), text)
            journal.array(first_file("ids"), ends)
        else:
            journal.array(first_file("ids"), plan.ids)
        if plan.metadata is not None:
            journal.other(first_file("metadata", "parquet"), lambda path: write_metadata(path, plan.metadata))
        expander = plan.expander
        stacks = {EXPANDER: expander.stack}
        if self.own_augmenter:
            stacks[AUGMENTER] = expander.database_stack
        models = {part: Model(stack, expander.name, {}) for part, stack in stacks.items()}
        saving = [journal.part(part, partial(save_model, model=model)) for part, model in models.items()]
        storage = plan.storage[0]
        dtype, shape = row_type(storage, self.dimension)

        def work(start: int, stop: int) -> Arriving:
            return leaving(checked_rows(plan.vectors, start, stop), storage)

        def encode(rows: Arriving) -> Any:
            return encoded(rows, storage)

        journal.table(first_file("vectors"), dtype, (self.n, *shape), work, "vectors", encode)
        for part in saving:
            part.result()

    def _first_manifest(self) -> Manifest:
        """The manifest of the items alone."""
        plan, ids = self.plan, self.plan.ids
        tables = {"vectors": self._whole("vectors"), "graph": [], "ids": self._whole("ids")}
        if ids.dtype == object:
            tables["id-text"] = [Segment(first_file("id-text"), len(encoded_text(ids)[0]))]
        manifest = Manifest(
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
            tables=tables,
            metadata=[first_file("metadata", "parquet")] if plan.metadata is not None else [],
            files=dict(self.journal.done),
        )
        return manifest.with_used_files(self.journal.done)

    def _whole(self, table: str) -> list[Segment]:
        return [Segment(first_file(table), self.n)]

    def _write_graph(self, manifest: Manifest) -> Manifest:
        device, table = self.plan.device, Snapshot(self.folder, manifest).vectors
        search = None if self.plan.recall is None else self._faiss(table)
        engine = None if search is None else search.engine(table, None)
        near = self.place.table("vectors", table)

        def work(start: int, stop: int) -> Arriving:
            numbers = torch.arange(start, stop)
            asked = near[start:stop]
            return Arriving(*located(near, asked, self.width, device=device, omit=numbers, engine=engine))

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
        made = approximate.made(table, self.width, plan.recall, plan.kind, plan.seed)
        if made is not None:
            notes = {"search": list(made[1:])}
            self.journal.other(name, lambda path: approximate.write_faiss(path, made.index), notes)
        return made

    def _write_chain(self, manifest: Manifest, prefix: str, levels: int) -> Manifest:
        """Levels from 1 on, each measured for its background before the next one reads it."""
        for i in range(levels + 1):
            if i:
                manifest = self._write_level(manifest, prefix, i)
            hierarchy = self._chain(manifest, prefix)
            if hierarchy.reads_background and not manifest.landscape:
                manifest = replace(manifest, landscape=hierarchy.measure_landscape())
            if hierarchy.reads_background and i < len(hierarchy.stack):
                known = manifest.backgrounds.get(prefix, [])
                measured = {prefix: [*known, hierarchy.measure_background(i)]}
                manifest = replace(manifest, backgrounds=manifest.backgrounds | measured)
        return manifest

    def _write_level(self, manifest: Manifest, prefix: str, i: int) -> Manifest:
        name = f"{prefix}-{i}"
        storage = storage_of(manifest, name)
        dtype, shape = row_type(storage, self.dimension)
        hierarchy = self._chain(manifest, prefix)

        def work(start: int, stop: int) -> Arriving:
            return leaving(hierarchy.rows(i, torch.arange(start, stop)), storage)

        def encode(rows: Arriving) -> Any:
            return encoded(rows, storage)

        self.journal.table(first_file(name), dtype, (self.n, *shape), work, name, encode)
        tables = manifest.tables | {name: self._whole(name)}
        return replace(manifest, tables=tables).with_used_files(self.journal.done)

    def _chain(self, manifest: Manifest, prefix: str) -> StoredHierarchy:
        if prefix == "augmented" and "augmented-1" not in manifest.tables:
            manifest = replace(manifest, tables=manifest.tables | {"augmented-1": []})
        snapshot, expander = Snapshot(self.folder, manifest), self.plan.expander
        chains = open_chains(snapshot, expander.stack, expander.database_stack, self.place)
        return chains.distinct()[prefix]


def first_file(table: str, ending: str = "npy") -> str:
    """The file of a table as the build writes it."""
    return file_name(table, 1, ending)


def _prepare(folder: Path) -> None:
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: is a file; give the name of a folder")
        if folder.is_dir() and not (folder / MANIFEST).exists():
            own = (LOCK, ".building.", ".manifest.")  # a build stopped in its first moments leaves these
            strangers = [path.name for path in folder.iterdir() if not path.name.startswith(own)]
            if strangers and not (folder / BUILDING).is_file():
                raise InputError(f"{folder}: holds other files ({strangers[0]}); build into a new folder")
        folder.mkdir(exist_ok=True)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{folder}: cannot be made: {reason}; choose another place") from error
