"""Items: their pictures, adding and removing them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse, Response

from gqe.parsing import whole_number
from gqe.server.bodies import BodyRoute
from gqe.server.pictures import SIDES
from gqe.server.problems import Refused
from gqe.server.queries import checked
from gqe.server.schemas import AddRequest, ChangeResponse, ItemsResponse, RemoveRequest, problems
from gqe.server.service import Service
from gqe.server.writing import Add, Remove

_ERRORS = problems(400, 401, 403, 408, 413, 415, 422, 429, 431, 503, 507)


def router(service: Service) -> APIRouter:
    """The routes of one service."""
    routes = APIRouter(prefix="/v1", tags=["items"], route_class=BodyRoute)
    settings = service.settings

    @routes.get("/items", response_model=ItemsResponse, responses=_ERRORS, summary="Ids of items")
    async def items(
        start: Annotated[int, Query(ge=0, le=2**53)] = 0, count: Annotated[int, Query(ge=1, le=1000)] = 100
    ) -> Any:
        """Ids of items in the order in which they came."""
        return JSONResponse({"ids": await service.read(lambda engine: engine.some_ids(start, count))})

    @routes.post("/items", response_model=ChangeResponse, responses=_ERRORS, summary="Add items")
    async def add(request: AddRequest) -> Any:
        """Add items; the answer comes when they are safely stored. Needs the scope `write`."""
        _few(len(request.vectors))
        vectors = await service.computed(checked, request.vectors, service.engine.dimension)
        if request.ids is not None and len(request.ids) != len(vectors):
            raise Refused(422, f"ids: {len(request.ids)} for {len(vectors)} vectors; give one for each")
        for column, values in (request.metadata or {}).items():
            if len(values) != len(vectors):
                raise Refused(422, f"metadata: {column!r:.40} needs one value for each vector")
        written = await service.write(Add(vectors, request.ids, request.metadata))
        return JSONResponse(written._asdict())

    @routes.post("/items/remove", response_model=ChangeResponse, responses=_ERRORS, summary="Remove items")
    async def remove(request: RemoveRequest) -> Any:
        """Remove items; the answer comes when that is safely stored. Needs the scope `write`."""
        _few(len(request.ids))
        return JSONResponse((await service.write(Remove(list(request.ids))))._asdict())

    @routes.get(
        "/picture",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}}}, **problems(401, 403, 404, 422, 429, 431, 503)},
        summary="Picture of an item",
    )
    async def picture(
        id: Annotated[str, Query(min_length=1, max_length=1000)],
        side: Annotated[int, Query(ge=1, le=max(SIDES))] = SIDES[0],
    ) -> Any:
        """A thumbnail as JPEG; its longer side has 160 or 320 pixels at most."""
        item: int | str = id
        if service.engine.id_kind == "int":
            number = whole_number(id)
            if number is None:
                raise Refused(404, "no such item")
            item = number
        chosen = next(each for each in SIDES if side <= each)
        content = await service.picture(item, chosen)
        if content is None:
            raise Refused(404, "no such item, or it has no picture")
        return Response(content, media_type="image/jpeg", headers={"cache-control": "private, max-age=60"})

    def _few(count: int) -> None:
        if count > settings.most_vectors:
            raise Refused(422, f"at most {settings.most_vectors} items are taken at once; send fewer")

    return routes
