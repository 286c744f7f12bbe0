"""A file from an HTTP address, whole and checked, or not at all.

Written here because the download libraries of this field do not continue a stopped transfer, or continue it
without proof that the server still has the same file.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import re
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from gqe.errors import InputError
from gqe.formats.atomic import flush, flush_folder
from gqe.formats.checks import one_line
from gqe.parsing import whole_number
from gqe.redaction import redact, secrets_of

log = logging.getLogger(__name__)

PARTIAL = ".partial"
_BLOCK_BYTES = 1 << 18
_MAX_WAIT = 30.0
_TEMPORARY_STATUSES = {408, 425, 429, 500, 502, 503, 504}
Progress = Callable[[int, int, str], None]


class RetryPolicy(NamedTuple):
    """When to give up on a server.

    Attributes:
        timeout: seconds without a byte.
        tries: failures in a row, none of which brought a byte, before giving up.
        wait: seconds before the second try; doubled after every failure, up to half a minute.
    """

    timeout: float = 30.0
    tries: int = 6
    wait: float = 1.0


class DownloadResult(NamedTuple):
    """Size and checksum of a downloaded file."""

    size: int
    sha256: str


class TemporaryError(Exception):
    """Something that a second try may get past; `wait` seconds if the server said so."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


class _StatusError(InputError):
    """The server answered with an error that will not pass."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class RemoteFile:
    """What a server says about a file before sending it."""

    address: str
    total: int | None = None
    etag: str | None = None
    modified: str | None = None

    @property
    def validator(self) -> str | None:
        """Proves that a later request is for the same bytes; a weak tag does not."""
        if self.etag and not self.etag.startswith("W/"):
            return self.etag
        return self.modified

    def agrees_with(self, earlier: RemoteFile) -> bool:
        """Whether nothing said about the file differs from what was said earlier."""
        return self.etag in (None, earlier.etag) and self.modified in (None, earlier.modified)


def download(
    address: str,
    target: Path,
    *,
    size: int | None = None,
    sha256: str = "",
    check: Callable[[Path], None] | None = None,
    progress: Progress | None = None,
    retry: RetryPolicy | None = None,
) -> DownloadResult:
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
        progress: called with (bytes done, bytes in all, name).
        retry: time limits and number of tries.

    Raises:
        InputError: it cannot be had, or what came is not it. Nothing stands at `target` then.
    """
    partial = target.parent / PARTIAL / target.name
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{partial.parent}: cannot be made: {error.strerror}; choose another --root"
        ) from None
    resumed = partial.exists()
    while True:
        _transfer_with_retries(address, partial, size, progress, retry or RetryPolicy())
        result = DownloadResult(partial.stat().st_size, file_sha256(partial))
        problem = _find_problem(result, size, sha256)
        if problem is None:
            break
        discard(partial)
        if not resumed:
            raise InputError(
                f"{address}: what came is not the file: {problem}; it was not kept, try again later"
            )
        # Two halves of different files can have met; a file fetched in one piece settles it.
        log.info("%s: %s after a continued download; fetching it anew", redact(address), problem)
        resumed = False
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
    return result


def remote_size(address: str, timeout: float) -> int | None:
    """Size of a file, without fetching it; None if the server will not say."""
    for tries_left in (2, 1, 0):
        try:
            with _open(address, timeout, method="HEAD") as response:
                return _remote_file(address, response).total
        except _StatusError as error:
            if error.status not in (405, 501):  # a server that does not know HEAD
                raise
            return None
        except TemporaryError as error:
            if not tries_left:
                raise InputError(f"{address}: {error}; check the connection or try later") from None
            time.sleep(error.wait if error.wait is not None else 0.5)
    return None


def discard(partial: Path) -> None:
    """Remove what has come of a file."""
    partial.unlink(missing_ok=True)
    _state_path(partial).unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _find_problem(result: DownloadResult, size: int | None, sha256: str) -> str | None:
    if size is not None and result.size != size:
        return f"it has {result.size} bytes, {size} are expected"
    if not result.sha256.startswith(sha256):
        return f"its SHA-256 begins with {result.sha256[: max(12, len(sha256))]}, not {sha256}"
    return None


def _transfer_with_retries(
    address: str, partial: Path, size: int | None, progress: Progress | None, retry: RetryPolicy
) -> None:
    failures = 0
    while True:
        before = partial.stat().st_size if partial.exists() else 0
        try:
            _transfer(address, partial, retry.timeout, size, progress)
            return
        except TemporaryError as error:
            gained = partial.exists() and partial.stat().st_size > before
            failures = 1 if gained else failures + 1
            if failures >= retry.tries:
                raise InputError(
                    f"{address}: {error}; tried {failures} times, the same command goes on from here later"
                ) from None
            pause = error.wait if error.wait is not None else retry.wait * 2 ** (failures - 1)
            log.info("%s: %s; trying again in %.0f s", redact(address), error, pause)
            time.sleep(min(pause, max(_MAX_WAIT, error.wait or 0)))


def _transfer(
    address: str, partial: Path, timeout: float, size: int | None, progress: Progress | None
) -> None:
    """Bring `partial` to the end of the file at `address`, from where it stands.

    `partial`.json says which file it is the beginning of.

    Raises:
        TemporaryError: try again; what has come is kept if it can be continued.
        InputError: trying again will not help.
    """
    known = _read_state(partial)
    have = partial.stat().st_size if partial.exists() else 0
    if known is None or known.address != redact(address) or not known.validator:
        known, have = None, 0  # nothing proves that these bytes belong to that file
    headers = {}
    if known is not None and have:
        if known.total == have:
            return
        headers = {"Range": f"bytes={have}-", "If-Range": known.validator or ""}
    changed = TemporaryError("the file has changed on the server")
    try:
        response = _open(address, timeout, headers=headers)
    except _StatusError as error:
        if error.status == 416:  # the file is shorter now than what we have of it
            discard(partial)
            raise changed from None
        raise
    with response:
        remote = _remote_file(address, response)
        total = remote.total
        if response.status == 206:
            begin, total = _content_range(response)
            # A server may leave If-Range unread; what it says about the file is compared once more.
            if known is None or begin != have or total != known.total or not remote.agrees_with(known):
                discard(partial)
                raise changed
        else:
            have = 0
            if size is not None and total is not None and size != total:
                raise InputError(
                    f"{address}: the server has {total} bytes, {size} are expected; nothing was fetched"
                )
            try:
                partial.write_bytes(b"")
                _write_state(partial, remote)
            except OSError as error:
                raise _write_error(partial, error) from None
        have = _copy(response, partial, have, total, progress)
    if total is not None and have < total:
        raise TemporaryError(f"the connection ended after {have} of {total} bytes")


def _open(address: str, timeout: float, *, method: str = "GET", headers: dict[str, str] | None = None) -> Any:
    """Open an address; errors become TemporaryError or InputError."""
    sent = {"User-Agent": "gqe", "Accept-Encoding": "identity", **(headers or {})}

    def describe(reason: object) -> str:  # some errors quote a part of the address
        return one_line(Exception(redact(reason, secrets_of(address))))

    try:
        response = urlopen(Request(address, method=method, headers=sent), timeout=timeout)
    except HTTPError as error:
        with error:
            reason = f"the server answers {error.code} {describe(error.reason)}"
            if error.code in _TEMPORARY_STATUSES:
                seconds = whole_number(error.headers.get("Retry-After", "") if error.headers else "")
                raise TemporaryError(reason, None if seconds is None else min(60.0, seconds)) from None
        gone = error.code in (404, 410)
        remedy = "the file has moved or gone" if gone else "it does not give this file out"
        raise _StatusError(f"{address}: {reason}: {remedy}; see docs/datasets.md", error.code) from None
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise InputError(
                f"{address}: its certificate is not trusted here ({describe(error.reason)}); "
                "check the clock and the certificates of this machine"
            ) from None
        raise TemporaryError(f"cannot be reached: {describe(error.reason)}") from None
    except (OSError, http.client.HTTPException) as error:
        raise TemporaryError(f"cannot be reached: {describe(error)}") from None
    if not response.url.startswith(("http://", "https://")):
        response.close()
        raise InputError(f"{address}: the server points to {response.url!r}, which is neither http nor https")
    return response


def _copy(response: Any, partial: Path, have: int, total: int | None, progress: Progress | None) -> int:
    try:
        stream = partial.open("ab")
    except OSError as error:
        raise _write_error(partial, error) from None
    with stream:
        while True:
            try:
                # A server need not close the connection after the last byte, and before Python 3.11.8 this
                # would wait for it.
                block = b"" if have == total else response.read1(_BLOCK_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise TemporaryError(f"the connection broke after {have} bytes: {one_line(error)}") from None
            if not block:
                return have
            try:
                stream.write(block)
                stream.flush()
            except OSError as error:
                raise _write_error(partial, error) from None
            have += len(block)
            if progress is not None:
                progress(have, total or have, partial.name)


def _write_error(partial: Path, error: OSError) -> InputError:
    return InputError(
        f"{partial}: cannot be written: {error.strerror or error}; "
        "free some space or choose another --root: the same command then goes on from here"
    )


def _remote_file(address: str, response: Any) -> RemoteFile:
    # What a server calls a number may be anything else, such as ² or five thousand digits.
    total = whole_number(response.headers.get("Content-Length", ""), digits=20)
    etag, modified = response.headers.get("ETag"), response.headers.get("Last-Modified")
    return RemoteFile(redact(address), total, etag, modified)


def _content_range(response: Any) -> tuple[int, int | None]:
    found = re.fullmatch(
        r"bytes ([0-9]{1,20})-[0-9]+/([0-9]{1,20}|\*)", response.headers.get("Content-Range", "").strip()
    )
    if found is None:
        return -1, None
    return int(found[1]), None if found[2] == "*" else int(found[2])


def _state_path(partial: Path) -> Path:
    return partial.with_name(partial.name + ".json")


def _read_state(partial: Path) -> RemoteFile | None:
    # A broken companion only means that the file is begun anew.
    with suppress(OSError, ValueError, TypeError, RecursionError):
        return RemoteFile(**json.loads(_state_path(partial).read_text(encoding="utf-8")))
    return None


def _write_state(partial: Path, remote: RemoteFile) -> None:
    beside = _state_path(partial).with_suffix(".new")
    beside.write_text(json.dumps(asdict(remote)), encoding="utf-8")
    beside.replace(_state_path(partial))
