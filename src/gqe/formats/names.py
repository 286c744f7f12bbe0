"""Names of files that come out of a file or over a network: none may lead elsewhere.

Files that this package writes have plain names. Those of other people stay inside their folder.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

from gqe.errors import InputError

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
# Windows takes these, with any ending, for devices.
_DEVICES = {"con", "prn", "aux", "nul", *(f"{kind}{i}" for kind in ("com", "lpt") for i in range(10))}


def plain_name(name: object, where: object) -> str:
    """Refuse a name that is not a file of a folder, or of a folder in it, on every system.

    Args:
        name: as it was read.
        where: what it was read from, for the error message.

    Example:
        >>> plain_name("expander/config.json", "manifest.json")
        'expander/config.json'
        >>> plain_name("../a.txt", "manifest")
        Traceback (most recent call last):
        gqe.errors.InputError: manifest: names a file '../a.txt', which is not a plain name; do not use it
    """
    parts = name.split("/") if isinstance(name, str) else []
    if isinstance(name, str) and 1 <= len(parts) <= 2 and all(map(_is_plain, parts)):
        return name
    raise InputError(f"{where}: names a file {name!r:.80}, which is not a plain name; do not use it")


def plain_names(names: Iterable[object], where: object, reserved: Collection[str] = ()) -> list[str]:
    """Names that are plain, do not collide on a system that mixes up cases, and are not reserved.

    Example:
        >>> plain_names(["a.npy", "A.npy"], "manifest.json")
        Traceback (most recent call last):
        gqe.errors.InputError: manifest.json: names a file 'A.npy' that it cannot have; do not use it
    """
    result = [plain_name(name, where) for name in names]
    forbidden = {name.lower() for name in reserved}
    taken = forbidden | {name.split("/")[0].lower() for name in result if "/" in name}
    for name in result:
        if name.lower() in taken or name.split("/")[0].lower() in forbidden:
            raise InputError(f"{where}: names a file {name!r:.80} that it cannot have; do not use it")
        taken.add(name.lower())
    return result


def stays_inside(name: str) -> bool:
    """Whether a name that others have chosen stays in the folder it is joined to, on any system.

    Example:
        >>> stays_inside("Paris/Tour Eiffel.jpg"), stays_inside("../a.jpg"), stays_inside("C:a.jpg")
        (True, False, False)
    """
    parts = PurePosixPath(name).parts
    return bool(parts) and ".." not in parts and parts[0] != "/" and not set(name) & set("\\:\0")


def _is_plain(part: str) -> bool:
    is_device = part.lower().split(".")[0] in _DEVICES
    return _PART.fullmatch(part) is not None and not part.endswith(".") and not is_device
