"""What to build, checked, and its fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from gqe.embeddings import as_table, blocks
from gqe.errors import InputError
from gqe.formats.sources import VectorSource
from gqe.index.approximate import check_kind
from gqe.index.items import check_ids
from gqe.index.manifest import MOST_ROWS, Manifest
from gqe.index.metadata import as_metadata, metadata_bytes
from gqe.index.snapshot import Snapshot
from gqe.index.tables import check_storage
from gqe.models import Expander
from gqe.models import expander as expander_by_name
from gqe.neighbors.search import check_approximation, resolve_device
from gqe.neighbors.updating import SPARE_NEIGHBORS


class BuildPlan(NamedTuple):
    """What to build.

    Attributes:
        vectors: (n, d) as given, an array or a source, not checked yet.
        ids: (n,) checked.
        metadata: pyarrow Table or None.
        expander: the stacks.
        storage: by level.
        augmented: whether to store the augmentation.
        recall: None for exact.
        kind: of faiss index.
        seed: for what is random.
        device: where to compute.
        base: the index whose items and neighbour lists are taken over; None to compute them.
        lazy: whether a search computes the levels of the query side, instead of the build.
    """

    vectors: Any
    ids: np.ndarray[Any, Any]
    metadata: Any
    expander: Expander
    storage: list[str]
    augmented: bool
    recall: float | None
    kind: str
    seed: int
    device: torch.device
    base: Snapshot | None = None
    lazy: bool = False

    @property
    def base_manifest(self) -> Manifest | None:
        """What is taken over from the base: everything but the levels and the expander."""
        if self.base is None:
            return None
        manifest = self.base.manifest
        names = ("vectors", "graph", "ids", "id-text")
        tables = {name: manifest.tables[name] for name in names if name in manifest.tables}
        return replace(manifest, tables=tables, stale={}, backgrounds={}, quantiles=[], files={})

    @property
    def graph_k(self) -> int:
        """How many neighbours of an item are read."""
        stacks = [*self.expander.stack, *(self.expander.database_stack if self.augmented else [])]
        return max(level.graph_k for level in stacks)


def make_plan(
    vectors: Any,
    expander: Expander | str,
    ids: Any,
    metadata: Any,
    storage: str | Sequence[str],
    dba: bool | None,
    recall: float | None,
    kind: str,
    device: str | torch.device,
    seed: int,
) -> BuildPlan:
    """A plan from what the user gave, see `Index.build`; the vectors' rows are checked when they are read."""
    check_approximation(recall, seed)
    expander = _resolve_expander(expander)
    augmented = expander.dba if dba is None else bool(dba)
    if not isinstance(vectors, torch.Tensor | VectorSource):
        vectors = np.asarray(vectors)
    as_table(vectors[:0] if vectors.ndim else vectors, "vectors")
    if len(vectors) > MOST_ROWS:
        raise InputError(f"vectors: {len(vectors)} rows; an index holds at most {MOST_ROWS}: build several")
    return BuildPlan(
        vectors,
        np.arange(len(vectors)) if ids is None else check_ids(ids, len(vectors), None),
        None if metadata is None else as_metadata(metadata, len(vectors)),
        expander,
        check_storage(storage, len(expander.stack) + int(augmented)),
        augmented,
        None if recall is None else float(recall),
        check_kind(kind),
        int(seed),
        resolve_device(device, vectors if isinstance(vectors, torch.Tensor) else None),
    )


def plan_over(
    base: Snapshot, expander: Expander | str, dba: bool, lazy: bool, device: torch.device
) -> BuildPlan:
    """The plan of another expander over the items of an index, see `Index.with_expander`."""
    manifest = base.manifest
    if not base.all_alive:
        raise InputError(f"{base.folder}: has removed items; compact it first")
    expander = _resolve_expander(expander)
    plan = BuildPlan(
        base.vectors,
        base.ids.take(np.arange(manifest.rows)),
        None,
        expander,
        check_storage(manifest.storage[0], len(expander.stack) + int(bool(dba))),
        bool(dba),
        manifest.wanted_recall,
        manifest.search_kind,
        manifest.seed,
        device,
        base,
        bool(lazy),
    )
    if plan.graph_k + SPARE_NEIGHBORS > manifest.width:
        raise InputError(
            f"{base.folder}: stores lists for K of at most {manifest.width - SPARE_NEIGHBORS},"
            f" {expander.name} reads {plan.graph_k}; build an index with that expander"
        )
    return plan


def _resolve_expander(expander: Expander | str) -> Expander:
    if isinstance(expander, str):
        expander = expander_by_name(expander)
    if not isinstance(expander, Expander):
        raise InputError(f"expander: expected an Expander or its name, got {type(expander).__name__}")
    if expander.reranking is not None:
        raise InputError(
            f"expander: {expander.name}: an index keeps no re-ranker; leave it out"
            f" and search with rerank={str(expander.reranking)!r}"
        )
    return expander


def read_rows(vectors: Any, start: int, stop: int) -> torch.Tensor:
    """Some rows of the user's vectors, checked and of unit length; errors name the row in the whole."""
    return as_table(vectors[start:stop], first_row=start)


def fingerprint(plan: BuildPlan) -> str:
    """A checksum of everything that the built index depends on."""
    digest = hashlib.blake2b(digest_size=16)
    settings = [list(plan.vectors.shape), str(plan.vectors.dtype), plan.storage, plan.augmented]
    digest.update(json.dumps([*settings, plan.recall, plan.kind, plan.seed]).encode())
    digest.update(json.dumps(plan.expander.query_options.to_config()).encode())
    known: dict[int, bytes] = {}  # both stacks may be the same
    levels = (*plan.expander.stack, *plan.expander.database_stack)
    with ThreadPoolExecutor() as threads:  # one alone would take longer than a GPU for much of the rest
        if plan.base is not None:
            records = sorted((name, record.checksum) for name, record in plan.base.manifest.files.items())
            digest.update(json.dumps([records, plan.lazy]).encode())
        elif isinstance(plan.vectors, VectorSource):  # maybe far too large to be read for this
            digest.update(json.dumps(plan.vectors.identity).encode())
        else:
            for part in threads.map(lambda rows: _digest(plan.vectors[rows]), _chunks(plan.vectors)):
                digest.update(part)
        for level in {id(level): level for level in levels}.values():
            named = level.state_dict()
            parts = zip(named, threads.map(_digest, named.values()), strict=True)
            known[id(level)] = b"".join(name.encode() + part for name, part in parts)
    digest.update(repr(plan.ids.dtype).encode())
    digest.update("\0".join(plan.ids).encode() if plan.ids.dtype == object else plan.ids.tobytes())
    if plan.metadata is not None:
        digest.update(metadata_bytes(plan.metadata))
    for level in levels:
        digest.update(repr(level).encode() + known[id(level)])
    return digest.hexdigest()


def _chunks(vectors: Any) -> Iterator[slice]:
    return blocks(len(vectors), int(vectors.shape[1]) * 8)


def _digest(block: Any) -> bytes:
    """A checksum of an array or a tensor."""
    if isinstance(block, torch.Tensor):
        block = block.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    content = np.ascontiguousarray(block).reshape(-1)
    return hashlib.blake2b(content.view(np.uint8).data, digest_size=16).digest()
