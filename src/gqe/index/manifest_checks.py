"""What a manifest may say. Its checksum only tells that it arrived as it was sent, not who wrote it."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from gqe.errors import DamagedError
from gqe.formats.names import plain_names
from gqe.index.items import INT, TEXT
from gqe.index.tables import STORAGES

if TYPE_CHECKING:
    from gqe.index.manifest import Manifest, Search, Segment

KINDS = ("auto", "ivf", "ivf-pq", "hnsw")
# Lists number their items in 32 bits.
MOST_ROWS = 2**31 - 1
# Of neighbours in a list, and of numbers in a vector.
_MOST_COLUMNS = 2**24
_MOST_BYTES = 2**62
_LEVEL = re.compile(r"(level|augmented)-[1-9]\d{0,3}")


def check_manifest(manifest: Manifest, where: object, reserved: tuple[str, ...]) -> None:
    """Refuse, in one line, what no index says: names that lead elsewhere, sizes that cannot be."""
    for what, fits in _claims(manifest):
        if not fits:
            raise DamagedError(f"{where}: damaged or not to be trusted: {what}; restore it from a copy")
    plain_names(manifest.files, where, reserved)


def _claims(manifest: Manifest) -> list[tuple[str, bool]]:
    """Parts of a manifest by name, and whether each can be; later ones rely on earlier ones."""
    m, rows = manifest, manifest.rows
    sizes = [
        ("state", _whole(m.state, 1)),
        ("rows", _whole(rows, 0, MOST_ROWS)),
        ("items", _whole(rows) and _whole(m.items, 0, rows)),
        ("dimension", _whole(m.dimension, 1, _MOST_COLUMNS)),
        ("width", _whole(m.width, 1, _MOST_COLUMNS)),
        ("next_id", _whole(m.next_id, 0, 2**63)),
        ("seed", _whole(m.seed, -(2**64), 2**64)),
        ("background_items", _whole(m.background_items)),
        ("files", all(_whole(r.bytes) and isinstance(r.checksum, str) for r in m.files.values())),
    ]
    if not all(fits for _, fits in sizes):
        return sizes
    named = m.named() if _is_list(m.metadata, str) and _is_dict(m.stale, str) else {None}
    searches = [*([] if m.search is None else [m.search]), *m.shard_searches]
    return [
        *sizes,
        ("storage", _is_list(m.storage, str) and bool(m.storage) and set(m.storage) <= set(STORAGES)),
        ("augmented", isinstance(m.augmented, bool)),
        ("id_kind", m.id_kind in (INT, TEXT)),
        ("recall", _share(m.recall) and _share(m.wanted_recall)),
        ("search_kind", m.search_kind in KINDS),
        ("backgrounds", _is_dict(m.backgrounds, list) and all(map(_numbers, m.backgrounds.values()))),
        ("landscape", _numbers(m.landscape)),
        ("tables", _tables(m)),
        ("segments", all(_segments(table, parts, rows) for table, parts in m.tables.items())),
        ("stale", set(m.stale) <= {name for name in m.tables if _LEVEL.fullmatch(name)}),
        ("removed", (m.removed is None) == (m.items == rows)),
        ("search", all(_searched(search, rows) for search in searches)),
        ("files", named <= set(m.files)),
    ]


def _tables(manifest: Manifest) -> bool:
    names = set(manifest.tables)
    needed = {"vectors", "graph", "ids"} | ({"id-text"} if manifest.id_kind == TEXT else set())
    return names >= needed and all(_LEVEL.fullmatch(name) for name in names - needed)


def _segments(table: str, parts: list[Segment], rows: int) -> bool:
    """Whether segments follow each other from the first row on; others name their rows."""
    most, end = (_MOST_BYTES if table == "id-text" else rows), 0
    for part in parts:
        if not _whole(part.count, 0, most) or not _whole(part.start, 0, most):
            return False
        if part.rows is None:
            if part.start != end:
                return False
            end += part.count
    if table in ("vectors", "ids"):
        return end == rows and all(part.rows is None for part in parts)
    return end <= most


def _searched(search: Search, rows: int) -> bool:
    sizes = _whole(search.rows, 0, rows) and _whole(search.start, 0, rows) and _whole(search.breadth, 1)
    known = search.kind in KINDS[1:] and search.recall is not None and _share(search.recall)
    return sizes and known and search.start + search.rows <= rows


def _whole(value: Any, least: int = 0, most: int = _MOST_BYTES) -> bool:
    return type(value) is int and least <= value <= most


def _share(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value <= 1)


def _numbers(value: Any) -> bool:
    """Whether this is a list of lists of finite numbers."""
    inner = isinstance(value, list) and all(isinstance(part, list) for part in value)
    return inner and all(type(x) in (int, float) and math.isfinite(x) for part in value for x in part)


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(part, kind) for part in value)


def _is_dict(value: Any, kind: type) -> bool:
    return isinstance(value, dict) and all(isinstance(part, kind) for part in value.values())
