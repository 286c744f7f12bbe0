"""Bringing an index from an address to this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gqe.cluster.storage import RemoteFolder
from gqe.errors import InputError
from gqe.formats.addresses import explaining_address, is_address, opened
from gqe.formats.atomic import replacing
from gqe.index.files import record_of
from gqe.index.manifest import MANIFEST, parse_manifest


def fetch_index(
    address: str, folder: str | os.PathLike[str], *, progress: Callable[[int, int, str], None] | None = None
) -> None:
    """Copy an index; files that are there already and sound are kept.

    Args:
        address: where the index is, such as "s3://bucket/my-index".
        folder: where it shall be.
        progress: called with files done, files in all, and the file's name.

    Raises:
        InputError: nothing is at the address, or a file arrives damaged.
    """
    if not is_address(address):
        raise InputError(f"{address}: is no address; open the folder as it is")
    target = Path(folder)
    content = RemoteFolder(address).read(MANIFEST)
    if content is None:
        raise InputError(f"{address}: no index is there; check the address, or finish its build")
    manifest = parse_manifest(content, f"{address}/{MANIFEST}")
    system, inside = opened(address)
    for number, (name, record) in enumerate(manifest.files.items()):
        if progress is not None:
            progress(number, len(manifest.files), name)
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if copy.is_file() and record_of(copy) == record:
            continue
        with replacing(copy) as beside:
            with explaining_address(f"{address}/{name}"):
                system.get_file(f"{inside}/{name}", str(beside))
            if record_of(beside) != record:
                raise InputError(f"{address}/{name}: arrived damaged; fetch it again")
    with replacing(target / MANIFEST) as beside:
        beside.write_bytes(content)
