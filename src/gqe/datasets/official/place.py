"""Where official data lies on this machine, and where it is fetched from."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from gqe.errors import InputError

ROOT_VARIABLE = "GQE_DATA"
MIRROR_VARIABLE = "GQE_DATA_MIRROR"


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all official data: `root`, else $GQE_DATA, else the cache folder of the platform.

    Example:
        >>> data_root("/data").as_posix()
        '/data'
    """
    chosen = os.fspath(root) if root is not None else os.environ.get(ROOT_VARIABLE, "")
    folder = Path(chosen).expanduser() if chosen else _platform_cache() / "gqe" / "data"
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is not a folder; give another with --root or ${ROOT_VARIABLE}")
    return folder


def address_of(collection: str, address: str) -> str:
    """The address to ask: the published one, or the same file below $GQE_DATA_MIRROR/COLLECTION.

    Only http and https are spoken, whatever the mirror or a redirection says.
    """
    mirror = os.environ.get(MIRROR_VARIABLE, "")
    if mirror:
        address = f"{mirror.rstrip('/')}/{collection}/{address.rpartition('/')[2]}"
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        source = f"${MIRROR_VARIABLE}" if mirror else "address"
        raise InputError(
            f"{source}: {address!r} is no http or https address; give one like https://host/data"
        )
    return address


def _platform_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache")
