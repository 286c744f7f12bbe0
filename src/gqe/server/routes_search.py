"""Searching, explaining, describing."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, UploadFile
from starlette.responses import JSONResponse, Response

from gqe.server.bodies import BodyRoute
from gqe.server.neighborhood import Neighborhood
from gqe.server.problems import Refused
from gqe.server.queries import Queries, resolved
from gqe.server.reading import Found, Search
from gqe.server.schemas import (
    Ask,
    DescribeResponse,
    ExplainRequest,
    ExplainResponse,
    How,
    SearchRequest,
    SearchResponse,
    problems,
)
from gqe.server.service import Service

_ERRORS = problems(400, 401, 403, 408, 413, 415, 422, 429, 431, 503, 507)


def router(service: Service) -> APIRouter:
    """The routes of one service."""
    routes = APIRouter(prefix="/v1", tags=["search"], route_class=BodyRoute)
    settings = service.settings

    def limited(ask: Ask) -> int:
        """How many queries are asked, if they are not too many."""
        count = len(ask.vectors or ask.ids or [1])
        examples = len(ask.like or []) + len(ask.dislike)
        if count > settings.most_vectors:
            raise Refused(422, f"at most {settings.most_vectors} queries are answered at once; send fewer")
        if examples > settings.most_examples:
            raise Refused(422, f"at most {settings.most_examples} examples are taken; send fewer")
        return count

    @routes.post("/search", response_model=SearchResponse, responses=_ERRORS, summary="Search")
    async def search(request: SearchRequest) -> Any:
        """Search by vectors, by ids of items, or by examples of what is liked and disliked.

        Examples make one query: the unit vector along the weighted mean of the liked vectors minus
        `dislike_weight` times the weighted mean of the disliked ones. It is then expanded like any other.
        """
        count, options = limited(request), service.options(request)
        found = await service.search(Search(lambda engine: resolved(engine, request), count, options))
        if count == 1:
            return _results(options.method, found[:1])
        return await service.computed(_results, options.method, found)

    @routes.post(
        "/search/picture", response_model=SearchResponse, responses=_ERRORS, summary="Search by a picture"
    )
    async def search_picture(
        picture: Annotated[UploadFile, File(description="JPEG, PNG, WebP...")],
        k: Annotated[int, Form(ge=1, le=1_000_000)] = 10,
        expand: Annotated[bool, Form()] = True,
        method: Annotated[str, Form(max_length=80)] = "index",
        rerank: Annotated[str | None, Form(max_length=80)] = None,
    ) -> Any:
        """Describe an uploaded picture as those of the index were, and search with it."""
        how = How.model_construct(
            k=k, expand=expand, method=method, rerank=rerank or None, exact=False, filter=None
        )
        options = service.options(how)
        vector = await service.described(await picture.read())
        queries = Queries(vector[None], [None], [])
        found = await service.search(Search(lambda _: queries, 1, options))
        return _results(options.method, found)

    @routes.post(
        "/describe", response_model=DescribeResponse, responses=_ERRORS, summary="The vector of a picture"
    )
    async def describe(picture: Annotated[UploadFile, File(description="JPEG, PNG, WebP...")]) -> Any:
        """Describe an uploaded picture as those of the index were, for searches and explanations."""
        vector = await service.described(await picture.read())
        return JSONResponse({"vector": vector.tolist()})

    @routes.post("/explain", response_model=ExplainResponse, responses=_ERRORS, summary="Explain")
    async def explain(request: ExplainRequest) -> Any:
        """Whom the query listens to, whom those listen to, and with which weights: a graph of two hops."""
        if limited(request) != 1:
            raise Refused(422, "give one query to explain")
        method = service.method(request.method)

        def work(engine: Any) -> Neighborhood:
            queries = resolved(engine, request)
            around: Neighborhood = engine.explain(
                queries.vectors[0], queries.exclude[0], method, request.first, request.second
            )
            return around

        around = await service.read(work, method)
        return JSONResponse(
            {
                "method": method,
                "items_with_weight": around.listened,
                "nodes": [node._asdict() for node in around.nodes],
                "edges": [edge._asdict() for edge in around.edges],
            }
        )

    return routes


def _results(method: str, found: list[Found]) -> Response:
    # Query by query: a long text made in one call would keep every other thread waiting.
    results = ",".join(json.dumps(each._asdict(), separators=(",", ":")) for each in found)
    return Response(f'{{"method":{json.dumps(method)},"results":[{results}]}}', media_type="application/json")
