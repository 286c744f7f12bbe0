"""Bodies of requests: bounded before they are read, read away from the event loop, one line for an error."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine
from email.message import Message
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gqe.server.problems import Refused, of_system

# Bytes up to which a thread of its own would take longer than reading does.
_SMALL = 16 << 10
# Every bracket is an object in memory, fifty times as large. Those in texts are counted, too.
_MOST_BRACKETS = 100_000
# Of an upload: a picture, and how to search.
_MOST_FILES, _MOST_FIELDS = 1, 16
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


class _Read(Request):
    """A request whose body has been read."""

    content: BaseModel | None = None

    async def json(self) -> Any:
        # FastAPI takes an object of the model as it is.
        return self.content

    def form(self, **_: Any) -> Any:
        """See `Request`, with limits of our own."""
        return _Form(super().form(max_files=_MOST_FILES, max_fields=_MOST_FIELDS))


class _Form:
    """A form to be awaited: large files are kept on the disk, which may be full."""

    def __init__(self, form: Awaitable[Any]) -> None:
        self._form = form

    def __await__(self) -> typing.Generator[Any, None, Any]:
        try:
            return (yield from self._form.__await__())
        except OSError as error:
            raise of_system(error) from error


class BodyRoute(APIRoute):
    """A route whose body is checked and read here instead of in the event loop."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handle, model = super().get_route_handler(), _model_of(self.endpoint)

        async def read(request: Request) -> Response:
            again = _Read(request.scope, request.receive)
            if model is not None:
                _check_kind(again, "application/json")
                body = await _body_of(again)
                if len(body) <= _SMALL:
                    again.content = parsed(model, body)
                else:
                    again.content = await request.app.state.service.computed(parsed, model, body)
            elif self.body_field is not None:
                _check_kind(again, "multipart/form-data")
            return await handle(again)

        return read


async def _body_of(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect:
        raise Refused(400, "body: the connection was closed before it was complete") from None


def parsed(model: type[BaseModel], body: bytes) -> BaseModel:
    """The request in a body of JSON, checked up to its first error."""
    if not body:
        raise Refused(422, "body: is empty; send JSON")
    if sum(body.count(bracket) for bracket in (b"[", b"{", b":")) > _MOST_BRACKETS:
        raise Refused(422, f"body: more than {_MOST_BRACKETS} brackets and colons; send less at once")
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refused(400, f"body: {_not_json(body, error)}") from None
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise Refused(422, explained(error.errors(include_url=False), content)) from None


def explained(errors: typing.Sequence[ErrorDetails], content: Any) -> str:
    """The error that matters most, in one line that names its place in the content.

    The deepest place is looked at, and there an error of a value before one of its type: the branches of a
    union that are meant for other types say nothing of interest.
    """
    places = [_place(error, content) for error in errors]
    deepest = max(places, key=len)
    there = [error for error, place in zip(errors, places, strict=True) if place == deepest]
    said = next((error["msg"] for error in there if error["type"] not in _TYPES), None)
    if said is None:
        expected = list(dict.fromkeys(_TYPES[error["type"]] for error in there))
        said = f"expected {', '.join(expected[:-1])}{' or ' if expected[:-1] else ''}{expected[-1]}"
    place = ".".join(f"{part!s:.60}" for part in deepest) or "body"
    return f"{place}: {said.removeprefix('Value error, ')}"


def _place(error: ErrorDetails, content: Any) -> tuple[int | str, ...]:
    """Where an error is, without the names of branches and types that pydantic puts between."""
    place: list[int | str] = []
    for part in error["loc"]:
        inside = isinstance(content, dict) and part in content
        if inside or (isinstance(content, list) and isinstance(part, int) and part < len(content)):
            content = content[part]
        elif not (error["type"] == "missing" and part == error["loc"][-1]):
            continue
        place.append(part)
    return tuple(place)


def _not_json(body: bytes, error: ValueError) -> str:
    try:
        from_json(body, allow_inf_nan=True)
    except ValueError:
        return f"is not valid JSON: {error}"
    return f"NaN and Infinity are not JSON ({error}); send numbers"


def _model_of(endpoint: Callable[..., Any]) -> type[BaseModel] | None:
    """The model of a route's JSON, if it takes any."""
    for kind in typing.get_type_hints(endpoint).values():
        if inspect.isclass(kind) and issubclass(kind, BaseModel):
            return kind
    return None


def _check_kind(request: Request, wanted: str) -> None:
    """Refuse another type of content: a page from elsewhere may send some without asking first."""
    header = Message()
    header["content-type"] = request.headers.get("content-type", "")
    if header.get_content_type() != wanted:
        raise Refused(415, f"content-type: send {wanted}")
