"""What a stopped writer leaves behind, and who may remove it.

Before a change writes its first file it notes, in a file of its own, which names it may leave: those of the
version it replaces, and everything that carries the token it draws. After it, or before the next one, all of
these that the manifest on the disk does not name are removed, and then the note. So it does not matter where
a writer stopped, and a file that nobody has noted is never touched.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gqe.errors import DamagedError, InputError
from gqe.formats.atomic import flush_folder, replacing
from gqe.formats.names import plain_names
from gqe.index.manifest import BUILDING, CHANGING, MANIFEST, RESERVED, read_manifest

log = logging.getLogger(__name__)

_FORMAT = "gqe-change"
# What `replacing`, or a worker of a cluster, writes beside before it is renamed; only they make such names.
_BESIDE = re.compile(r"\.(building|changing|manifest|model|README|config)\.[0-9a-f]{16}(\.tmp)?\.[a-z]+")


class Note(NamedTuple):
    """What a writer may have left.

    Attributes:
        names: of files.
        token: part of the name of every other file.
        new: whether there was no index before.
    """

    names: frozenset[str]
    token: str
    new: bool


def begin(folder: Path, names: Iterable[str], *, new: bool = False) -> str:
    """Note what may be left from here on; a note of an earlier writer must have been read.

    Args:
        folder: the index.
        names: files that may have to be removed later.
        new: whether there is no index yet.

    Returns:
        The token that the name of every file that is written must carry.
    """
    token = secrets.token_hex(8)
    # Those that are found by their names need no note.
    noted = sorted(name for name in names if not is_beside(name.rpartition("/")[2]))
    about = {"format": _FORMAT, "token": token, "new": new, "names": noted}
    with replacing(folder / CHANGING, follow=False) as beside:
        beside.write_text(json.dumps(about) + "\n")
    return token


def clean(folder: Path) -> dict[str, OSError]:
    """Remove what a writer has left; its note goes last, so that this can be stopped, too.

    Returns:
        The files that the system would not remove. Their note stays, and the next one must name them.
    """
    note, there = read_note(folder), {path.name for path in folder.iterdir()}
    names = set(filter(is_beside, there))
    if note is None and BUILDING not in there and not names:
        return {}
    new = note is not None and note.new and MANIFEST not in there
    # The manifest on the disk is the index, whatever a writer meant to do.
    keep = set() if new else set(read_manifest(folder).files)
    if note is not None:
        names |= note.names | {name for name in there if note.token in name}
    built = building_names(folder) if BUILDING in there else None
    if built is not None:
        names |= built
        for part in {name.split("/")[0] for name in keep if "/" in name}:
            names |= {f"{part}/{path.name}" for path in (folder / part).iterdir() if is_beside(path.name)}
    left = {}
    for name in sorted(names - keep):
        try:
            (folder / name).unlink()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            left[name] = error
    if left:
        return left
    flush_folder(folder)
    for name, ours in ((CHANGING, note), (BUILDING, built)):
        if ours is not None:
            (folder / name).unlink(missing_ok=True)
    flush_folder(folder)
    return {}


def try_to_clean(folder: Path) -> None:
    """`clean` after a change, which stands whether this succeeds or not: the next writer does the rest."""
    try:
        left = clean(folder)
        if left:
            raise next(iter(left.values()))
    except (OSError, InputError) as error:
        log.warning("%s: old files are still there, the next change removes them: %s", folder, error)


def read_note(folder: Path) -> Note | None:
    """What the last writer of a folder noted; None if it has finished."""
    path = folder / CHANGING
    try:
        about = json.loads(path.read_bytes())
        if about["format"] != _FORMAT or not re.fullmatch("[0-9a-f]{16}", about["token"]):
            raise ValueError
        names = frozenset(plain_names(about["names"], path, RESERVED))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise DamagedError(f"{path}: not a note of this package, or damaged; move it elsewhere") from None
    return Note(names, about["token"], about.get("new") is True)


def building_names(folder: Path) -> frozenset[str] | None:
    """The files that an interrupted build may have left; None if there is no journal of one."""
    try:
        journal = json.loads((folder / BUILDING).read_bytes())
        names = {*journal.get("names", ()), *journal["done"], *journal["partial"]}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return frozenset(plain_names(names, folder / BUILDING, RESERVED))


def is_beside(name: str) -> bool:
    """Whether only this package makes such names, for files that are renamed when they are finished."""
    return _BESIDE.fullmatch(name) is not None
