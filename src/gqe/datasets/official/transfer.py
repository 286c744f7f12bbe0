"""One HTTP exchange: begin or continue a partial file, and say which errors may pass."""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from gqe.errors import InputError
from gqe.formats.checks import one_line
from gqe.parsing import whole_number
from gqe.redaction import redacted, secrets_of

BLOCK = 1 << 18
# What a server calls a number may be anything else, such as ² or five thousand digits.
_MAY_PASS = {408, 425, 429, 500, 502, 503, 504}
Progress = Callable[[int, int, str], None]


class TemporaryError(Exception):
    """Something that a second try may get past; `wait` seconds if the server said so."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


@dataclass(frozen=True)
class Offer:
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

    def agrees_with(self, earlier: Offer) -> bool:
        """Whether nothing said about the file differs from what was said earlier."""
        return self.etag in (None, earlier.etag) and self.modified in (None, earlier.modified)


def ask(address: str, timeout: float) -> Offer:
    """Ask for size and version of a file without fetching it; the size is None if the server will not say."""
    try:
        with open_address(address, timeout, method="HEAD") as response:
            return _offer(address, response)
    except _Refused as error:
        if error.status in (405, 501):  # a server that does not know HEAD
            return Offer(address)
        raise


def transfer(
    address: str, partial: Path, *, timeout: float, size: int | None = None, progress: Progress | None = None
) -> None:
    """Bring `partial` to the end of the file at `address`, from where it stands.

    Args:
        address: http or https.
        partial: the file to fill; its companion `partial`.json says what of.
        timeout: seconds without a byte after which the connection is given up.
        size: bytes the whole file must have.
        progress: told (bytes done, bytes in all, name).

    Raises:
        TemporaryError: try again; what has come is kept if it can be continued.
        InputError: trying again will not help.
    """
    known = _read_state(partial)
    have = partial.stat().st_size if partial.exists() else 0
    if known is None or known.address != redacted(address) or not known.validator:
        have = 0  # nothing proves that these bytes belong to that file
    if have and known is not None and known.total == have:
        return
    headers = {}
    if have and known is not None and known.validator:
        headers = {"Range": f"bytes={have}-", "If-Range": known.validator}
    try:
        response = open_address(address, timeout, headers=headers)
    except _Refused as error:
        if error.status == 416:  # the file is shorter now than what we have of it
            discard(partial)
            raise TemporaryError("the file has changed on the server") from None
        raise
    with response:
        offer = _offer(address, response)
        if response.status == 206:
            begin, total = _content_range(response)
            # A server may leave If-Range unread; what it says about the file is compared once more.
            if known is None or begin != have or total != known.total or not offer.agrees_with(known):
                discard(partial)
                raise TemporaryError("the file has changed on the server")
        else:
            have, total = 0, offer.total
            if size is not None and total is not None and size != total:
                raise InputError(
                    f"{address}: the server has {total} bytes, {size} are expected; nothing was fetched"
                )
            _open_for_writing(partial, "wb").close()
            _write_state(partial, offer)
        have = _copy(response, partial, have, total, progress)
    if total is not None and have < total:
        raise TemporaryError(f"the connection ended after {have} of {total} bytes")


def discard(partial: Path) -> None:
    """Forget what has come of a file."""
    partial.unlink(missing_ok=True)
    _state_path(partial).unlink(missing_ok=True)


class _Refused(InputError):
    """The server answered with an error that will not pass."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def open_address(
    address: str, timeout: float, *, method: str = "GET", headers: dict[str, str] | None = None
) -> Any:
    """Open an address; errors become TemporaryError or InputError."""
    request = Request(address, method=method, headers={"User-Agent": "gqe", "Accept-Encoding": "identity"})
    for name, value in (headers or {}).items():
        request.add_header(name, value)
    try:
        response = urlopen(request, timeout=timeout)
    except HTTPError as error:
        with error:
            reason = f"the server answers {error.code} {_said(address, error.reason)}"
            if error.code in _MAY_PASS:
                raise TemporaryError(reason, _retry_after(error)) from None
        remedy = (
            "the file has moved or gone" if error.code in (404, 410) else "it does not give this file out"
        )
        raise _Refused(f"{address}: {reason}: {remedy}; see docs/datasets.md", error.code) from None
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise InputError(
                f"{address}: its certificate is not trusted here ({_said(address, error.reason)}); "
                "check the clock and the certificates of this machine"
            ) from None
        raise TemporaryError(f"cannot be reached: {_said(address, error.reason)}") from None
    except (OSError, http.client.HTTPException) as error:
        raise TemporaryError(f"cannot be reached: {_said(address, error)}") from None
    if not response.url.startswith(("http://", "https://")):
        response.close()
        raise InputError(f"{address}: the server points to {response.url!r}, which is neither http nor https")
    return response


def _said(address: str, reason: object) -> str:
    """What went wrong, in one line without secrets; some errors quote a part of the address."""
    return one_line(Exception(redacted(reason, secrets_of(address))))


def _copy(response: Any, partial: Path, have: int, total: int | None, progress: Progress | None) -> int:
    with _open_for_writing(partial, "ab") as stream:
        while True:
            try:
                # A server need not close the connection after the last byte, and before Python 3.11.8 this
                # would wait for it.
                block = b"" if have == total else response.read1(BLOCK)
            except (OSError, http.client.HTTPException) as error:
                raise TemporaryError(f"the connection broke after {have} bytes: {one_line(error)}") from None
            if not block:
                return have
            try:
                stream.write(block)
                stream.flush()
            except OSError as error:
                raise InputError(_not_written(partial, error)) from None
            have += len(block)
            if progress is not None:
                progress(have, total or have, partial.name)


def _open_for_writing(partial: Path, mode: str) -> Any:
    try:
        return partial.open(mode)
    except OSError as error:
        raise InputError(_not_written(partial, error)) from None


def _not_written(partial: Path, error: OSError) -> str:
    return (
        f"{partial}: cannot be written: {error.strerror or error}; "
        "free some space or choose another --root: the same command then goes on from here"
    )


def _offer(address: str, response: Any) -> Offer:
    total = whole_number(response.headers.get("Content-Length", ""), digits=20)
    return Offer(
        redacted(address), total, response.headers.get("ETag"), response.headers.get("Last-Modified")
    )


def _content_range(response: Any) -> tuple[int, int | None]:
    found = re.fullmatch(
        r"bytes ([0-9]{1,20})-[0-9]+/([0-9]{1,20}|\*)", response.headers.get("Content-Range", "").strip()
    )
    if found is None:
        return -1, None
    return int(found[1]), None if found[2] == "*" else int(found[2])


def _retry_after(error: HTTPError) -> float | None:
    text = error.headers.get("Retry-After", "") if error.headers else ""
    seconds = whole_number(text)
    return None if seconds is None else min(60.0, seconds)


def _state_path(partial: Path) -> Path:
    return partial.with_name(partial.name + ".json")


def _read_state(partial: Path) -> Offer | None:
    # A broken companion only means that the file is begun anew.
    with suppress(OSError, ValueError, TypeError, RecursionError):
        return Offer(**json.loads(_state_path(partial).read_text(encoding="utf-8")))
    return None


def _write_state(partial: Path, offer: Offer) -> None:
    beside = _state_path(partial).with_suffix(".new")
    try:
        beside.write_text(json.dumps(asdict(offer)), encoding="utf-8")
        beside.replace(_state_path(partial))
    except OSError as error:
        raise InputError(_not_written(partial, error)) from None
