"""A file from an address, whole and checked, or not at all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gqe.datasets.official.record import sha256_of
from gqe.datasets.official.transfer import Progress, TemporaryError, discard, transfer
from gqe.errors import InputError
from gqe.formats.atomic import flush, flush_folder
from gqe.redaction import redacted

log = logging.getLogger(__name__)

PARTIAL = ".partial"
_LONGEST_WAIT = 30.0


class Patience(NamedTuple):
    """How long to put up with a server.

    Attributes:
        timeout: seconds without a byte.
        tries: failures in a row, none of which brought a byte, before giving up.
        wait: seconds before the second try; doubled after every failure, up to half a minute.
    """

    timeout: float = 30.0
    tries: int = 6
    wait: float = 1.0


class Fetched(NamedTuple):
    """Size and checksum of a downloaded file."""

    size: int
    sha256: str


def download(
    address: str,
    target: Path,
    *,
    size: int | None = None,
    sha256: str = "",
    check: Callable[[Path], None] | None = None,
    progress: Progress | None = None,
    patience: Patience | None = None,
) -> Fetched:
    """Fetch one file.

    It grows in a hidden folder `.partial` beside its place and moves there when it is complete and checked. A
    stopped download, killed even, is continued by the next call, if the server proves that the file is the
    same; else it begins anew.

    Args:
        address: http or https.
        target: where the file goes; its folder is made.
        size: bytes it must have.
        sha256: checksum it must have, or the beginning of it.
        check: raises InputError if the content is not what it should be.
        progress: told (bytes done, bytes in all, name).
        patience: time limits and number of tries.

    Raises:
        InputError: it cannot be had, or what came is not it. Nothing stands at `target` then.
    """
    folder = target.parent / PARTIAL
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror}; choose another --root") from None
    partial = folder / target.name
    continued = partial.exists()
    _fill(address, partial, size, progress, patience or Patience())
    fetched = Fetched(partial.stat().st_size, sha256_of(partial))
    wrong = _wrong(fetched, size, sha256)
    if wrong and continued:
        # Two halves of different files can have met; a file fetched in one piece settles it.
        log.info("%s: %s after a continued download; fetching it anew", redacted(address), wrong)
        discard(partial)
        _fill(address, partial, size, progress, patience or Patience())
        fetched = Fetched(partial.stat().st_size, sha256_of(partial))
        wrong = _wrong(fetched, size, sha256)
    if wrong:
        discard(partial)
        raise InputError(f"{address}: what came is not the file: {wrong}; it was not kept, try again later")
    if check is not None:
        try:
            check(partial)
        except InputError as error:
            discard(partial)
            text = str(error).replace(f"{partial}: ", "")
            raise InputError(f"{address}: what came is not the file: {text}") from None
    flush(partial)
    partial.replace(target)
    discard(partial)
    flush_folder(target.parent)
    return fetched


def _fill(
    address: str, partial: Path, size: int | None, progress: Progress | None, patience: Patience
) -> None:
    failures = 0
    while True:
        before = partial.stat().st_size if partial.exists() else 0
        try:
            transfer(address, partial, timeout=patience.timeout, size=size, progress=progress)
            return
        except TemporaryError as error:
            gained = partial.exists() and partial.stat().st_size > before
            failures = 1 if gained else failures + 1
            if failures >= patience.tries:
                raise InputError(
                    f"{address}: {error}; tried {failures} times, the same command goes on from here later"
                ) from None
            pause = error.wait if error.wait is not None else patience.wait * 2 ** (failures - 1)
            log.info("%s: %s; trying again in %.0f s", redacted(address), error, pause)
            time.sleep(min(pause, max(_LONGEST_WAIT, error.wait or 0)))


def _wrong(fetched: Fetched, size: int | None, sha256: str) -> str | None:
    if size is not None and fetched.size != size:
        return f"it has {fetched.size} bytes, {size} are expected"
    if not fetched.sha256.startswith(sha256):
        return f"its SHA-256 begins with {fetched.sha256[: max(12, len(sha256))]}, not {sha256}"
    return None
