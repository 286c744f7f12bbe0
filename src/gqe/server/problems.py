"""Errors as application/problem+json (RFC 9457): one line for people, a status for programs."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gqe.errors import InputError, StorageError
from gqe.redaction import redact
from gqe.server.batching import Busy

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
LATER = {"retry-after": "1"}
"""For what is over soon."""
MUCH_LATER = {"retry-after": "10"}
"""For what somebody has to mend."""
_LONGEST = 500


class Refused(HTTPException):
    """A request that is refused.

    Args:
        status: HTTP status.
        detail: One line with the reason and the remedy.
        headers: More headers.
    """

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail, dict(headers) if headers else None)


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """The response for an error."""
    return Response(_content(status, detail), status, headers, MEDIA_TYPE)


def raw(status: int, detail: str) -> bytes:
    """The same as the bytes of an answer after which the connection is closed."""
    content = _content(status, detail)
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"content-type: {MEDIA_TYPE}",
        f"content-length: {len(content)}",
        *(["retry-after: 1"] if status == 503 else []),
        "connection: close",
    )
    return "\r\n".join((*head, "", content)).encode("ascii")


def _content(status: int, detail: str) -> str:
    title = HTTPStatus(status).phrase
    content = {"type": "about:blank", "title": title, "status": status, "detail": _shown(detail)}
    return json.dumps(content)  # plain ASCII: a text from outside may hold what cannot be written as UTF-8


def register(app: FastAPI) -> None:
    """Answer every error of the app with a problem."""
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(InputError, _of_input)
    app.add_exception_handler(Busy, _of_busy)


def of_system(error: OSError | StorageError) -> Refused:
    """What is told of an error of files or the system: nobody who asks is to blame, or may know paths."""
    known = error if isinstance(error, StorageError) else StorageError.of(error, "a file", "used")
    log.error("storage: %s", known)
    if known.full:
        return Refused(507, "no room is left on the disk; come back when there is some", MUCH_LATER)
    return Refused(503, "files cannot be read or written now; come back later", MUCH_LATER)


def unexpected(error: Exception) -> Response:
    """The response for what should never happen; the log has the details, the client does not."""
    if isinstance(error, OSError):
        return _of_storage(error)
    if isinstance(error, MemoryError):
        log.error("not enough memory for a request")
        return problem(503, "not enough memory now; ask for less, or come back later", MUCH_LATER)
    log.error("request failed", exc_info=error)
    return problem(500, "the service failed on this request; its log says why")


async def _of_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    if detail == HTTPStatus(error.status_code).phrase:
        detail = _EXPLAINED.get(error.status_code, detail)
    return problem(error.status_code, detail, error.headers)


async def _of_validation(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = dict(error.errors()[0]) if error.errors() else {"loc": (), "msg": "not valid"}
    place = ".".join(str(part) for part in first["loc"]) or "request"
    return problem(422, f"{place}: {first['msg']}")


async def _of_input(_: Request, error: Exception) -> Response:
    return _of_storage(error) if isinstance(error, StorageError) else problem(422, str(error))


def _of_storage(error: OSError | StorageError) -> Response:
    told = of_system(error)
    return problem(told.status_code, str(told.detail), told.headers)


async def _of_busy(_: Request, error: Exception) -> Response:
    return problem(503, f"{error}; come back later", LATER)


def _shown(text: str) -> str:
    line = redact(" ".join(text.split()))
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "…"


_EXPLAINED = {
    404: "there is nothing at this address; /openapi.json lists what there is",
    405: "this address does not answer to this method; /openapi.json lists what there is",
}
