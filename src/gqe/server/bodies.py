"""JSON of requests, read several times faster than by the standard library: vectors are long."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response


class _Quick(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_content"):
            try:
                self._content = from_json(await self.body())
            except ValueError as error:
                raise json.JSONDecodeError(str(error), "", 0) from None
        return self._content


class QuickRoute(APIRoute):
    """A route whose requests read their bodies with pydantic's parser."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handle = super().get_route_handler()

        async def quickly(request: Request) -> Response:
            return await handle(_Quick(request.scope, request.receive))

        return quickly
