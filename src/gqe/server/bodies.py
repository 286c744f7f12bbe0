"""Request bodies: parsed and validated outside of the event loop, with one line for an error."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gqe.server.problems import storage_problem

# Bytes up to which passing a body to a thread would take longer than parsing it.
_SMALL = 16 << 10
# Every bracket becomes an object in memory, fifty times as large. Those in strings count, too.
_MAX_BRACKETS = 100_000
# Of an upload: a picture, and the search parameters.
_MAX_FILES, _MAX_FIELDS = 1, 16
# Errors that say only that another type was expected, as every other branch of a union does.
_TYPES = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "null",
}


class _ParsedRequest(Request):
    """A request whose JSON body has been validated, or whose form is read with limits of our own."""

    content: BaseModel | None = None

    async def json(self) -> Any:
        # FastAPI takes an instance of the model as it is.
        return self.content

    async def form(self, **_: Any) -> FormData:  # type: ignore[override]
        try:
            return await super().form(max_files=_MAX_FILES, max_fields=_MAX_FIELDS)
        except OSError as error:  # large files are spooled to the disk, which may be full
            raise storage_problem(error) from error


class BodyRoute(APIRoute):
    """A route whose JSON body is parsed here: a large one in a thread instead of the event loop."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handle = super().get_route_handler()
        hints = typing.get_type_hints(self.endpoint).values()
        models = [hint for hint in hints if inspect.isclass(hint) and issubclass(hint, BaseModel)]

        async def parse_and_handle(request: Request) -> Response:
            parsed = _ParsedRequest(request.scope, request.receive)
            if models:
                _check_content_type(parsed, "application/json")
                try:
                    body = await parsed.body()
                except ClientDisconnect:
                    raise HTTPException(
                        400, "body: the connection was closed before it was complete"
                    ) from None
                if len(body) <= _SMALL:
                    parsed.content = parse_json(models[0], body)
                else:
                    service = request.app.state.service
                    parsed.content = await service.run("bodies", parse_json, models[0], body)
            elif self.body_field is not None:
                _check_content_type(parsed, "multipart/form-data")
            return await handle(parsed)

        return parse_and_handle


def _check_content_type(request: Request, expected: str) -> None:
    """Refuse other content types: pages of other origins may send some without a preflight request."""
    header = Message()
    header["content-type"] = request.headers.get("content-type", "")
    if header.get_content_type() != expected:
        raise HTTPException(415, f"content-type: send {expected}")


def parse_json(model: type[BaseModel], body: bytes) -> BaseModel:
    """The request in a JSON body, validated up to its first error."""
    if not body:
        raise HTTPException(422, "body: is empty; send JSON")
    if sum(body.count(bracket) for bracket in (b"[", b"{", b":")) > _MAX_BRACKETS:
        raise HTTPException(422, f"body: more than {_MAX_BRACKETS} brackets and colons; send less at once")
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise HTTPException(400, f"body: {_explain_syntax(body, error)}") from None
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise HTTPException(422, _explain(error.errors(include_url=False), content)) from None


def _explain_syntax(body: bytes, error: ValueError) -> str:
    try:
        from_json(body, allow_inf_nan=True)
    except ValueError:
        return f"is not valid JSON: {error}"
    return f"NaN and Infinity are not JSON ({error}); send numbers"


def _explain(errors: typing.Sequence[ErrorDetails], content: Any) -> str:
    """The most specific error, in one line that begins with its location in the content.

    That is the error at the deepest location, and there a wrong value before a wrong type: the branches of a
    union that are meant for other types say nothing of interest.
    """
    locations = [_location(error, content) for error in errors]
    deepest = max(locations, key=len)
    there = [error for error, location in zip(errors, locations, strict=True) if location == deepest]
    message = next((error["msg"] for error in there if error["type"] not in _TYPES), None)
    if message is None:
        expected = list(dict.fromkeys(_TYPES[error["type"]] for error in there))
        message = f"expected {', '.join(expected[:-1])}{' or ' if expected[:-1] else ''}{expected[-1]}"
    location = ".".join(f"{part!s:.60}" for part in deepest) or "body"
    return f"{location}: {message.removeprefix('Value error, ')}"


def _location(error: ErrorDetails, content: Any) -> tuple[int | str, ...]:
    """Where an error is, without the names of union branches and types that pydantic inserts."""
    location: list[int | str] = []
    for part in error["loc"]:
        inside = isinstance(content, dict) and part in content
        if inside or (isinstance(content, list) and isinstance(part, int) and part < len(content)):
            content = content[part]
        elif not (error["type"] == "missing" and part == error["loc"][-1]):
            continue
        location.append(part)
    return tuple(location)
