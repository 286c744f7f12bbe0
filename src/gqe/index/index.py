"""Index: one directory on disk, one object."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gqe.embeddings import blocks
from gqe.errors import DamagedError, InputError
from gqe.index.building import build
from gqe.index.changing import change, check_new_items
from gqe.index.drafts import Draft, open_draft
from gqe.index.files import check_folder, writer_lock
from gqe.index.items import check_ids
from gqe.index.plan import make_plan, plan_over
from gqe.index.refreshing import check_copied, compact, refresh
from gqe.index.snapshot import Snapshot, level_names, open_snapshot
from gqe.index.target import IndexTarget
from gqe.index.verifying import statistics
from gqe.models import Expander
from gqe.neighbors.search import resolve_device
from gqe.progress import Progress, reporting
from gqe.results import SearchResult
from gqe.retrieval import Searchable


class Index(Searchable):
    """Embeddings, their neighbour graph and the levels of an expander, in one directory.

    Made by `Index.build`, opened by `Index.open`. An object sees the version that was newest when it was
    opened, whatever others write meanwhile; `reopen` takes the newest. Changes start from the newest version
    and leave the object at the one they wrote. One writer at a time, any number of readers.
    """

    def __init__(self, snapshot: Snapshot, device: torch.device) -> None:
        self.device = device
        self._target = IndexTarget(snapshot, device)

    @classmethod
    def build(
        cls,
        vectors: Any,
        expander: Expander | str,
        path: str | os.PathLike[str],
        *,
        ids: Any = None,
        metadata: Any = None,
        storage: str | Sequence[str] = "float32",
        dba: bool | None = None,
        recall: float | None = None,
        approximate_by: str = "auto",
        device: str | torch.device = "auto",
        seed: int = 0,
        progress: Progress = False,
    ) -> Index:
        """Build an index; the same call goes on with a build that was interrupted.

        Args:
            vectors: (n, d) embeddings, NumPy (also memory-mapped) or torch, or a source of
                `gqe.formats.sources.open_source`. n may be 0.
            expander: an Expander or its name, such as "universal" or "dba-universal:rounds=2".
            path: a folder that is not there yet, or that of the interrupted build.
            ids: (n,) whole numbers or texts; 0..n-1 if None.
            metadata: columns by name, a pyarrow Table or a Parquet file, one row for each vector.
            storage: "float32", "float16" or "int8", or a list by level, embeddings first.
            dba: store the database-side augmentation, too, and search in it; None as the expander says.
            recall: find neighbours approximately with at least this share of the true ones, both for the
                graph and later for searches; None for exact. Small databases are always exact.
            approximate_by: "auto", "ivf", "ivf-pq" or "hnsw".
            device: "auto", "cpu", "cuda"...
            seed: for what is random in building.
            progress: True shows a bar on a terminal and a line every ten seconds elsewhere; or a function
                that is called with rows done, rows in all, and what is being done.

        Example:
            >>> import tempfile
            >>> folder = tempfile.mkdtemp() + "/index"
            >>> index = Index.build(np.eye(8), "aqe-g", folder, ids=list("abcdefgh"))
            >>> index.search(np.eye(8)[2], k=1).ids
            array(['c'], dtype=object)
        """
        plan = make_plan(vectors, expander, ids, metadata, storage, dba, recall, approximate_by, device, seed)
        with reporting(progress, "index") as report:
            build(check_folder(path), plan, report)
        return cls.open(path, device=plan.device)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, device: str | torch.device = "auto") -> Index:
        """Open an index. Files are mapped, not read, and shared with other processes that have it open."""
        return cls(open_snapshot(check_folder(path)), resolve_device(device))

    def with_expander(
        self,
        expander: Expander | str,
        path: str | os.PathLike[str],
        *,
        dba: bool = False,
        lazy: bool = False,
        progress: Progress = False,
    ) -> Index:
        """Build an index of the same items with another expander; the same call goes on after a stop.

        Embeddings, ids, metadata and neighbour lists are those of this index, in the same files where the
        file system can link them, and levels are stored in the type of the embeddings.

        Args:
            expander: reads at most as many neighbours as this index was built for.
            path: a folder that is not there yet, or that of the interrupted build.
            dba: see `build`.
            lazy: do not compute the levels of the query side: each search computes the rows that it reads,
                which is less work for a few queries. `refresh` computes and stores them.
            progress: see `build`.
        """
        plan = plan_over(self._checked_snapshot(), expander, dba, lazy, self.device)
        with reporting(progress, "index") as report:
            build(check_folder(path), plan, report)
        return Index.open(path, device=self.device)

    @property
    def _snapshot(self) -> Snapshot:
        return self._target.snapshot

    def _checked_snapshot(self) -> Snapshot:
        """The version that an operation reads to its end, even if another thread reopens the index."""
        snapshot = self._snapshot
        snapshot.check_sizes()
        return snapshot

    def reopen(self) -> None:
        """See the newest version."""
        self._target = IndexTarget(open_snapshot(self.path), self.device, self._target.loaded)

    @property
    def path(self) -> Path:
        """The directory."""
        return self._snapshot.folder

    @property
    def version(self) -> int:
        """Counts the changes since the index was built, from 1."""
        return self._snapshot.manifest.state

    @property
    def dimension(self) -> int:
        """Of the embeddings."""
        return self._snapshot.manifest.dimension

    @property
    def ids(self) -> np.ndarray[Any, Any]:
        """(n,) ids of all items."""
        snapshot = self._checked_snapshot()
        return snapshot.ids.take(np.flatnonzero(snapshot.alive))

    @property
    def id_kind(self) -> str:
        """What items are named by: "int" or "text"."""
        return self._snapshot.manifest.id_kind

    def ids_at(self, places: Any) -> np.ndarray[Any, Any]:
        """Ids of the items at these places (m,) of `ids`, without making all the others."""
        snapshot = self._checked_snapshot()
        try:
            rows = np.flatnonzero(snapshot.alive)[places]
        except IndexError:
            raise InputError(f"places: the index has {snapshot.manifest.items} items; name others") from None
        return snapshot.ids.take(rows)

    def vectors(self, ids: Any) -> np.ndarray[Any, Any]:
        """(m, d) float32 embeddings of items, all of them in the index."""
        snapshot = self._checked_snapshot()
        rows = torch.from_numpy(snapshot.ids.find(ids, snapshot.alive))
        return np.asarray(snapshot.vectors.index_select(0, rows).to(torch.float32).numpy())

    def get(self, ids: Any) -> list[dict[str, Any]]:
        """The metadata of items, all of them in the index: one dictionary {column: value} for each."""
        snapshot = self._checked_snapshot()
        rows = snapshot.ids.find(ids, snapshot.alive)
        if snapshot.metadata is None:
            return [{} for _ in rows]
        found: list[dict[str, Any]] = snapshot.metadata.take(rows).to_pylist()
        return found

    def neighbors(self, ids: Any) -> SearchResult:
        """The stored neighbour lists of items, all of them in the index.

        Returns:
            (scores, ids): (m, `neighbors_kept`) each, nearest first; -inf and -1 (None for texts) = missing.
        """
        snapshot = self._checked_snapshot()
        lists = snapshot.graph.take(snapshot.ids.find(ids, snapshot.alive))
        try:
            return SearchResult(lists.similarities, snapshot.ids.take(lists.ids.astype(np.int64)))
        except IndexError:
            raise DamagedError(
                f"{snapshot.folder}: a list names an item that is not there; verify it"
            ) from None

    def blocks(self) -> Iterator[torch.Tensor]:
        """What a search compares with (the augmentation or the embeddings), in the order of `ids`: (b, d)."""
        snapshot = self._checked_snapshot()
        table = snapshot.levels[level_names(snapshot.manifest)[-1]] if self.augmented else snapshot.vectors
        for part in blocks(len(table), table.shape[1] * 4):
            yield table[part][torch.from_numpy(snapshot.alive[part])]

    @property
    def neighbors_kept(self) -> int:
        """How many neighbours of an item are stored."""
        return self._snapshot.manifest.width

    @property
    def augmented(self) -> bool:
        """Whether searches go to the database-side augmentation."""
        return self._snapshot.manifest.augmented

    @property
    def expander(self) -> Expander:
        """The expander the index was built with."""
        return self._target.expander

    def __len__(self) -> int:
        return self._snapshot.manifest.items

    def __contains__(self, item: object) -> bool:
        snapshot = self._checked_snapshot()
        try:
            wanted = check_ids([item], 1, snapshot.manifest.id_kind)
        except InputError:
            return False
        return bool(snapshot.ids.look_up(wanted, snapshot.alive)[0] >= 0)

    def __repr__(self) -> str:
        folder, about = self._snapshot.folder, self._snapshot.manifest
        return f"<Index {folder}: {about.items} items of dimension {about.dimension}, version {about.state}>"

    @property
    def target(self) -> IndexTarget:
        """The version that this object sees, as a search sees it."""
        return self._target

    def add(
        self,
        vectors: Any,
        *,
        ids: Any = None,
        metadata: Any = None,
        refresh: bool = False,
        progress: Progress = False,
    ) -> None:
        """Add items. Neighbour lists are right at once; levels that changed are computed when needed.

        Args:
            vectors: (m, d) embeddings.
            ids: (m,) new ids; numbers that go on from the largest if None, or the smallest free ones where
                there are none behind it. Texts are required.
            metadata: one row for each vector, with the columns of the index.
            refresh: compute and store the levels that changed at once; always done with augmentation.
            progress: see `build`.
        """
        self._change(np.empty(0, object), vectors, ids, metadata, refresh, progress)

    def remove(self, ids: Any, *, refresh: bool = False, progress: Progress = False) -> None:
        """Remove items by their ids (m,), all of them in the index. See `add` for the other arguments."""
        self._change(ids, None, None, None, refresh, progress)

    def update(
        self,
        vectors: Any,
        ids: Any,
        *,
        metadata: Any = None,
        refresh: bool = False,
        progress: Progress = False,
    ) -> None:
        """Give items new embeddings, in one step: no reader sees them missing. They become the newest items.

        See `add` for the arguments; all ids must be in the index.
        """
        self._change(ids, vectors, ids, metadata, refresh, progress)

    def refresh(self, *, progress: Progress = False) -> None:
        """Compute and store all levels that are out of date."""
        with reporting(progress, "index") as report, self._open_draft() as draft:
            if draft.manifest.stale:
                refresh(draft, self._target.levels_of, report)
                self._commit(draft)

    def compact(self, *, progress: Progress = False) -> None:
        """Refresh, drop removed items from the files, join segments, and build a faiss index again."""
        with reporting(progress, "index") as report, writer_lock(self.path):
            self.reopen()
            with open_draft(self.path, self._snapshot.manifest) as draft:
                check_copied(draft)
                if draft.manifest.stale:
                    refresh(draft, self._target.levels_of, report)
                    self._commit(draft)
            with open_draft(self.path, self._snapshot.manifest) as draft:
                compact(draft, self._snapshot)
                self._commit(draft)

    def stats(self) -> dict[str, Any]:
        """Sizes, K, L, recall and staleness."""
        target = self._target
        target.snapshot.check_sizes()
        return statistics(target.snapshot, target.expander)

    def _change(
        self, removed: Any, vectors: Any, ids: Any, metadata: Any, refresh_now: bool, progress: Progress
    ) -> None:
        with reporting(progress, "index") as report, self._open_draft() as draft:
            before = self._snapshot
            rows = before.ids.find(removed, before.alive) if len(removed) else np.empty(0, np.int64)
            new = check_new_items(before, vectors, ids, metadata, rows)
            if not len(rows) and not len(new.vectors):
                return
            change(draft, before, rows, new, self._target.levels_of, self.device, report)
            if refresh_now or before.manifest.augmented:
                refresh(draft, self._target.levels_of, report)
            self._commit(draft)

    @contextmanager
    def _open_draft(self) -> Iterator[Draft]:
        """The next version of the newest one, while no one else may write."""
        with writer_lock(self.path):
            self.reopen()
            with open_draft(self.path, self._snapshot.manifest) as draft:
                yield draft

    def _commit(self, draft: Draft) -> None:
        self._target = IndexTarget(draft.commit(), self.device, self._target.loaded)
