"""Errors as application/problem+json (RFC 9457): one line for people, a status code for programs."""

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
RETRY_SOON = {"retry-after": "1"}
"""For load that is over soon."""
RETRY_LATER = {"retry-after": "10"}
"""For what takes long, or needs somebody to repair it."""
_MAX_DETAIL = 500
_DETAILS = {
    404: "there is nothing at this address; /openapi.json lists what there is",
    405: "this address does not answer to this method; /openapi.json lists what there is",
}


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """The response for an error."""
    return Response(_content(status, detail), status, headers, MEDIA_TYPE)


def raw_problem(status: int, detail: str) -> bytes:
    """The same as the bytes of an HTTP/1.1 response that closes the connection."""
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
    line = redact(" ".join(detail.split()))
    if len(line) > _MAX_DETAIL:
        line = line[:_MAX_DETAIL] + "…"
    content = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": line}
    return json.dumps(content)  # plain ASCII: the detail may quote what cannot be encoded as UTF-8


def register_handlers(app: FastAPI) -> None:
    """Answer every error of the app with a problem."""

    async def handle(_: Request, error: Exception) -> Response:
        return problem_of(error)

    for kind in (HTTPException, RequestValidationError, InputError, Busy):
        app.add_exception_handler(kind, handle)


def problem_of(error: Exception) -> Response:
    """The response for an exception. Faults that are not the client's are logged, and not described."""
    if isinstance(error, OSError | StorageError):
        error = storage_problem(error)
    if isinstance(error, HTTPException):
        detail = str(error.detail)
        if detail == HTTPStatus(error.status_code).phrase:
            detail = _DETAILS.get(error.status_code, detail)
        return problem(error.status_code, detail, error.headers)
    if isinstance(error, RequestValidationError):
        first: dict[str, Any] = dict(error.errors()[0]) if error.errors() else {"loc": (), "msg": "not valid"}
        return problem(422, f"{'.'.join(map(str, first['loc'])) or 'request'}: {first['msg']}")
    if isinstance(error, InputError):
        return problem(422, str(error))
    if isinstance(error, Busy):
        return problem(503, f"{error}; come back later", RETRY_SOON)
    if isinstance(error, MemoryError):
        log.error("not enough memory for a request")
        return problem(503, "not enough memory now; ask for less, or come back later", RETRY_LATER)
    log.error("request failed", exc_info=error)
    return problem(500, "the service failed on this request; its log says why")


def storage_problem(error: OSError | StorageError) -> HTTPException:
    """The answer to an error of files or the system, without the path that the log names."""
    known = error if isinstance(error, StorageError) else StorageError.of(error, "a file", "used")
    log.error("storage: %s", known)
    if known.full:
        return HTTPException(507, "no room is left on the disk; come back when there is some", RETRY_LATER)
    return HTTPException(503, "files cannot be read or written now; come back later", RETRY_LATER)
