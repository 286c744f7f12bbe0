"""The manifest: the one small file that says which files make up an index."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gqe.errors import DamagedError, StorageError
from gqe.formats.atomic import atomic_path
from gqe.formats.names import plain_names
from gqe.index.files import LOCK, FileRecord
from gqe.index.items import INT, TEXT
from gqe.index.tables import STORAGES

MANIFEST = "manifest.json"
# There while an index is being built for the first time.
BUILDING = "building.json"
# There while it is being changed or fetched, see `gqe.index.drafts`.
CHANGING = "changing.json"
# Beside an index of pictures, see `gqe.extraction.record`. It names files and folders of the machine where it
# was written, so it is not part of the index and never comes with one from elsewhere.
_EXTRACTION = "extraction.json"
# What no file of an index may be called.
RESERVED = (MANIFEST, BUILDING, CHANGING, LOCK, _EXTRACTION)
# Attributes of a manifest that the file calls otherwise.
_ON_DISK = {"quantiles": "landscape"}
FORMAT = "gqe-index"
VERSION = 2
# Of an index without faiss indexes of shards; older versions of the package read it, too.
_WITHOUT_SHARDS = 1
KINDS = ("auto", "ivf", "ivf-pq", "hnsw")
# Lists number their items in 32 bits.
MOST_ROWS = 2**31 - 1
# Of neighbours in a list, and of numbers in a vector.
_MOST_COLUMNS = 2**24
_MOST_BYTES = 2**62
_LEVEL = re.compile(r"(level|augmented)-[1-9]\d{0,3}")


@dataclass(frozen=True)
class Segment:
    """Rows of a table that were written together.

    Attributes:
        file: where they are.
        count: how many.
        start: number of the first; they follow each other.
        rows: file of their numbers, for rows that do not follow each other; then `start` plays no part.
    """

    file: str
    count: int
    start: int = 0
    rows: str | None = None


@dataclass(frozen=True)
class FaissRecord:
    """The faiss index over the first `rows` rows, or those of a shard, and how widely it is searched.

    Attributes:
        file: where it is.
        kind: "ivf", "ivf-pq" or "hnsw".
        rows: how many rows it covers; later ones are compared one by one.
        breadth: lists probed, or efSearch.
        recall: what that reached on a sample.
        start: the first row it covers, that of a shard.
    """

    file: str
    kind: str
    rows: int
    breadth: int
    recall: float
    start: int = 0


@dataclass(frozen=True)
class Manifest:
    """One version of an index.

    Attributes:
        state: counts the changes.
        dimension: of the embeddings.
        rows: how many rows the tables have, removed ones included.
        items: how many of them are there.
        width: neighbours stored for each item.
        storage: type of each level, "float32", "float16" or "int8"; the last one also of levels beyond.
        augmented: whether the database-side augmentation is stored.
        id_kind: "int" or "text".
        next_id: the number the next item without an id gets.
        recall: what the approximate graph reached when it was built; None if exact.
        seed: for what is random in building.
        wanted_recall: the least recall of the build; None for exact.
        search_kind: the kind of faiss index of the build, "auto" or a kind.
        background_items: how many items there were when the backgrounds were measured.
        backgrounds: by prefix of the levels' names, the (median, deviation) of each level.
        quantiles: how near neighbours are, (QUANTILES, places); empty if no aggregator reads it.
        tables: the segments of each table, later ones override earlier ones.
        stale: of each level, the file that marks rows whose stored values are out of date.
        removed: file of the removed rows.
        metadata: Parquet files, in the order of the rows.
        search: the faiss index.
        shard_searches: those of shards, in the order of their rows; instead of `search`.
        files: every file of this version with size and checksum.
    """

    state: int
    dimension: int
    rows: int
    items: int
    width: int
    storage: list[str]
    augmented: bool
    id_kind: str
    next_id: int
    recall: float | None
    seed: int
    wanted_recall: float | None = None
    search_kind: str = "auto"
    background_items: int = 0
    backgrounds: dict[str, list[list[float]]] = field(default_factory=dict)
    quantiles: list[list[float]] = field(default_factory=list)
    tables: dict[str, list[Segment]] = field(default_factory=dict)
    stale: dict[str, str] = field(default_factory=dict)
    removed: str | None = None
    metadata: list[str] = field(default_factory=list)
    search: FaissRecord | None = None
    shard_searches: list[FaissRecord] = field(default_factory=list)
    files: dict[str, FileRecord] = field(default_factory=dict)

    def with_used_files(self, written: dict[str, FileRecord]) -> Manifest:
        """The same with the records of exactly the files it names; new ones come from `written`."""
        known = self.files | written
        return replace(self, files={name: known[name] for name in sorted(self.file_names())})

    def file_names(self) -> set[str]:
        """The files that the tables and the rest of it name."""
        names = {name for name in self.files if "/" in name}  # the expander never changes
        for segments in self.tables.values():
            names.update(part.file for part in segments)
            names.update(part.rows for part in segments if part.rows)
        names.update(self.stale.values())
        names.update(self.metadata)
        names.update([self.removed] if self.removed else [])
        names.update([self.search.file] if self.search else [])
        names.update(search.file for search in self.shard_searches)
        return names


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Swap the manifest: from here on this is the index."""
    with atomic_path(folder / MANIFEST, follow=False) as beside:
        beside.write_bytes(manifest_bytes(manifest))


def manifest_bytes(manifest: Manifest) -> bytes:
    """The content of the manifest's file."""
    body = {_ON_DISK.get(name, name): value for name, value in asdict(manifest).items()}
    body["files"] = {name: list(record) for name, record in manifest.files.items()}
    if not manifest.shard_searches:
        del body["shard_searches"]
        if body["search"] is not None:
            del body["search"]["start"]
    about = {"format": FORMAT, "version": _version_of(body), "checksum": _checksum(body), "index": body}
    return _to_bytes(about)


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest; anything that does not fit is refused in one line."""
    path = folder / MANIFEST
    if not path.is_file():
        _refuse_missing(folder)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StorageError.of(error, path, "read") from error
    return parse_manifest(content, path)


def parse_manifest(content: bytes, path: Path | str) -> Manifest:
    """A manifest from the content of its file, which `path` names in errors."""
    try:
        about = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedError(
            f"{path}: damaged, not readable as JSON ({error}); restore it from a copy"
        ) from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise DamagedError(f"{path}: not the manifest of an index of this package; restore it from a copy")
    version = about.get("version")
    if isinstance(version, int) and version > VERSION:
        raise StorageError(
            f"{path}: index format version {version}, this package reads {VERSION}; update gqe to open it"
        )
    body = about.get("index")
    intact = (
        isinstance(body, dict) and _checksum(body) == about.get("checksum") and content == _to_bytes(about)
    )
    if not isinstance(body, dict) or not intact or version != _version_of(body):
        raise DamagedError(f"{path}: damaged, its checksum does not match; restore it from a copy")
    try:
        tables = {name: [Segment(**part) for part in parts] for name, parts in body["tables"].items()}
        files = {name: FileRecord(*record) for name, record in body["files"].items()}
        search = None if body["search"] is None else FaissRecord(**body["search"])
        shards = [FaissRecord(**part) for part in body.get("shard_searches", [])]
        known = {"tables": tables, "files": files, "search": search, "shard_searches": shards}
        renamed = {name: body.pop(stored) for name, stored in _ON_DISK.items() if stored in body}
        manifest = Manifest(**body | renamed | known)
        _check(manifest, path)
    except (TypeError, KeyError, AttributeError):
        raise DamagedError(f"{path}: damaged or not to be trusted; restore it from a copy") from None
    return manifest


def _version_of(body: dict[str, Any]) -> int:
    return VERSION if body.get("shard_searches") else _WITHOUT_SHARDS


def _to_bytes(about: dict[str, Any]) -> bytes:
    return (json.dumps(about, indent=1) + "\n").encode()


def _checksum(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _refuse_missing(folder: Path) -> None:
    if (folder / BUILDING).is_file():
        raise StorageError(
            f"{folder}: its build was interrupted; run the same build again, it goes on from there"
        )
    if (folder / CHANGING).is_file():
        raise StorageError(f"{folder}: its fetch was interrupted; run `gqe index fetch` again")
    if folder.is_dir():
        raise StorageError(f"{folder}: holds no index; make one with `gqe index build`")
    raise StorageError(f"{folder}: no such index; check the name or make one with `gqe index build`")


def _check(manifest: Manifest, path: Path | str) -> None:
    """Refuse what no index says: names that lead elsewhere, sizes that cannot be.

    The checksum of a manifest only tells that it arrived as it was sent, not who wrote it.
    """
    for field_name, valid in _checks(manifest):
        if not valid:
            raise DamagedError(f"{path}: damaged or not to be trusted: {field_name}; restore it from a copy")
    plain_names(manifest.files, path, RESERVED)


def _checks(m: Manifest) -> list[tuple[str, bool]]:
    """Fields of a manifest, and whether each is valid; later ones rely on earlier ones."""
    rows = m.rows
    sizes = [
        ("state", _is_whole(m.state, 1)),
        ("rows", _is_whole(rows, 0, MOST_ROWS)),
        ("items", _is_whole(rows) and _is_whole(m.items, 0, rows)),
        ("dimension", _is_whole(m.dimension, 1, _MOST_COLUMNS)),
        ("width", _is_whole(m.width, 1, _MOST_COLUMNS)),
        ("next_id", _is_whole(m.next_id, 0, 2**63)),
        ("seed", _is_whole(m.seed, -(2**64), 2**64)),
        ("background_items", _is_whole(m.background_items)),
        ("files", all(_is_whole(r.bytes) and isinstance(r.checksum, str) for r in m.files.values())),
    ]
    if not all(valid for _, valid in sizes):
        return sizes
    named = m.file_names() if _is_list(m.metadata, str) and _is_dict(m.stale, str) else {None}
    searches = [*([] if m.search is None else [m.search]), *m.shard_searches]
    needed = {"vectors", "graph", "ids"} | ({"id-text"} if m.id_kind == TEXT else set())
    levels = {name for name in m.tables if _LEVEL.fullmatch(name)}
    return [
        *sizes,
        ("storage", _is_list(m.storage, str) and bool(m.storage) and set(m.storage) <= set(STORAGES)),
        ("augmented", isinstance(m.augmented, bool)),
        ("id_kind", m.id_kind in (INT, TEXT)),
        ("recall", _is_share(m.recall) and _is_share(m.wanted_recall)),
        ("search_kind", m.search_kind in KINDS),
        ("backgrounds", _is_dict(m.backgrounds, list) and all(map(_is_numbers, m.backgrounds.values()))),
        ("landscape", _is_numbers(m.quantiles)),
        ("tables", needed <= set(m.tables) <= needed | levels),
        ("segments", all(_are_segments(table, parts, rows) for table, parts in m.tables.items())),
        ("stale", set(m.stale) <= levels),
        ("removed", (m.removed is None) == (m.items == rows)),
        ("search", all(_is_search(search, rows) for search in searches)),
        ("files", named <= set(m.files)),
    ]


def _are_segments(table: str, parts: list[Segment], rows: int) -> bool:
    """Whether segments follow each other from the first row on; others name their rows."""
    most, end = (_MOST_BYTES if table == "id-text" else rows), 0
    for part in parts:
        if not _is_whole(part.count, 0, most) or not _is_whole(part.start, 0, most):
            return False
        if part.rows is None:
            if part.start != end:
                return False
            end += part.count
    if table in ("vectors", "ids"):
        return end == rows and all(part.rows is None for part in parts)
    return end <= most


def _is_search(search: FaissRecord, rows: int) -> bool:
    sizes = (
        _is_whole(search.rows, 0, rows) and _is_whole(search.start, 0, rows) and _is_whole(search.breadth, 1)
    )
    known = search.kind in KINDS[1:] and search.recall is not None and _is_share(search.recall)
    return sizes and known and search.start + search.rows <= rows


def _is_whole(value: Any, least: int = 0, most: int = _MOST_BYTES) -> bool:
    return type(value) is int and least <= value <= most


def _is_share(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value <= 1)


def _is_numbers(value: Any) -> bool:
    """Whether this is a list of lists of finite numbers."""
    inner = isinstance(value, list) and all(isinstance(part, list) for part in value)
    return inner and all(type(x) in (int, float) and math.isfinite(x) for part in value for x in part)


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(part, kind) for part in value)


def _is_dict(value: Any, kind: type) -> bool:
    return isinstance(value, dict) and all(isinstance(part, kind) for part in value.values())
