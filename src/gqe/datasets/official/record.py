"""What was downloaded: a checksum of every file, kept beside them in checksums.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from gqe.errors import InputError
from gqe.formats.atomic import atomic_path
from gqe.formats.checks import wrap_parse_errors
from gqe.formats.names import stays_inside

RECORD_NAME = "checksums.json"
_VERSION = 1


@dataclass(frozen=True)
class Entry:
    """One downloaded file.

    Attributes:
        address: where it came from.
        size: bytes.
        sha256: of its content.
        published: whether the owner publishes (the beginning of) that checksum; else it was recorded here.
        unpacked: for an archive, whether its files are unpacked and the archive is gone.
    """

    address: str
    size: int
    sha256: str
    published: bool
    unpacked: bool = False


def read_record(folder: Path) -> dict[str, Entry]:
    """The entries of a data set's folder by file name; none where nothing was downloaded yet."""
    path = folder / RECORD_NAME
    if not path.exists():
        return {}
    with wrap_parse_errors(path, "record of downloads"):
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != _VERSION:
            raise InputError(f"{path}: is of version {content['version']}, this reads {_VERSION}; update gqe")
        entries = {name: Entry(**entry) for name, entry in content["files"].items()}
        for name, entry in entries.items():
            if not stays_inside(name) or type(entry.size) is not int or not isinstance(entry.sha256, str):
                raise InputError(f"{path}: its entry {name!r:.60} is broken; remove the entry")
        return entries


def write_entry(folder: Path, name: str, entry: Entry | None) -> None:
    """Add, change or (None) drop one entry; the file is replaced at once."""
    entries = read_record(folder)
    if entry is None:
        entries.pop(name, None)
    else:
        entries[name] = entry
    files = {key: asdict(value) for key, value in sorted(entries.items())}
    text = json.dumps({"version": _VERSION, "files": files}, indent=2) + "\n"
    with atomic_path(folder / RECORD_NAME) as beside:
        beside.write_text(text, encoding="utf-8")
