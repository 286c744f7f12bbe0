"""The routes of the API: search, items, and the state of the service."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Form, Query, UploadFile
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gqe.parsing import whole_number
from gqe.server.bodies import BodyRoute
from gqe.server.engine import Engine, SearchOptions
from gqe.server.jobs import AddItems, Queries, RemoveItems, SearchJob, check_vectors, resolve_queries
from gqe.server.pictures import SIDES
from gqe.server.problems import RETRY_SOON
from gqe.server.schemas import (
    About,
    AddRequest,
    ChangeResponse,
    DescribeItemsRequest,
    DescribeResponse,
    EmbedRequest,
    ExplainRequest,
    ExplainResponse,
    Hits,
    ItemDescriptionsResponse,
    ItemsResponse,
    QueryParameters,
    RemoveRequest,
    SearchParameters,
    SearchRequest,
    SearchResponse,
    State,
    error_responses,
)
from gqe.server.service import Service
from gqe.server.weight_graph import WeightGraph

# For the schema: `GuardMiddleware` checks tokens.
_PROTECTED: dict[str, Any] = {
    "dependencies": [
        Depends(
            HTTPBearer(
                scheme_name="bearer", auto_error=False, description="Needed if the service has tokens."
            )
        )
    ],
    "responses": error_responses(400, 401, 403, 408, 413, 415, 422, 429, 431, 503, 507),
}
search_router = APIRouter(prefix="/v1", tags=["search"], route_class=BodyRoute, **_PROTECTED)
items_router = APIRouter(prefix="/v1", tags=["items"], route_class=BodyRoute, **_PROTECTED)
protected_router = APIRouter(tags=["status"], **_PROTECTED)
public_router = APIRouter(tags=["status"])
routers = (search_router, items_router, protected_router, public_router)


async def _get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(_get_service)]
Upload = Annotated[UploadFile, File(description="JPEG, PNG, WebP...")]


def _count_queries(request: QueryParameters, service: Service) -> int:
    """How many queries a request has, if they are not too many."""
    settings = service.settings
    count = len(request.vectors or request.ids or [1])
    if count > settings.max_vectors:
        raise HTTPException(422, f"at most {settings.max_vectors} queries are answered at once; send fewer")
    if len(request.like or []) + len(request.dislike) > settings.max_examples:
        raise HTTPException(422, f"at most {settings.max_examples} examples are taken; send fewer")
    return count


def _search_response(options: SearchOptions, hits: list[Hits]) -> Response:
    method = options.method if options.rounds is None else f"{options.method}:rounds={options.rounds}"
    # Query by query: encoding all results in one call would block the other threads.
    results = ",".join(json.dumps(each, separators=(",", ":")) for each in hits)
    return Response(f'{{"method":{json.dumps(method)},"results":[{results}]}}', media_type="application/json")


@search_router.post("/search", response_model=SearchResponse, summary="Search")
async def search(request: SearchRequest, service: ServiceDep) -> Any:
    """Search by vectors, by ids of items, or by liked and disliked examples.

    Examples are combined into one query: the unit vector along the weighted mean of the liked vectors minus
    `dislike_weight` times the weighted mean of the disliked ones. It is then expanded like any other query.
    """
    count, options = _count_queries(request, service), service.check_options(request)
    hits = await service.search(SearchJob(lambda engine: resolve_queries(engine, request), options, count))
    if count == 1:
        return _search_response(options, hits[:1])
    return await service.run("bodies", _search_response, options, hits)


@search_router.post("/search/picture", response_model=SearchResponse, summary="Search by a picture")
async def search_picture(
    service: ServiceDep,
    picture: Upload,
    k: Annotated[int, Form(ge=1, le=1_000_000)] = 10,
    expand: Annotated[bool, Form()] = True,
    method: Annotated[str, Form(max_length=80)] = "index",
    rerank: Annotated[str | None, Form(max_length=80)] = None,
) -> Any:
    """Compute the vector of an uploaded picture as for those of the index, and search with it."""
    parameters = SearchParameters.model_construct(k=k, expand=expand, method=method, rerank=rerank or None)
    options = service.check_options(parameters)
    vector = await service.describe_picture(await picture.read())
    queries = Queries(vector[None], [None], [])
    hits = await service.search(SearchJob(lambda _: queries, options))
    return _search_response(options, hits)


@search_router.post("/describe", response_model=DescribeResponse, summary="The vector of a picture")
async def describe(service: ServiceDep, picture: Upload) -> Any:
    """Compute the vector of an uploaded picture as for those of the index, to search or explain with it."""
    vector = await service.describe_picture(await picture.read())
    return JSONResponse({"vector": vector.tolist()})


@search_router.post("/embed", response_model=DescribeResponse, summary="The vector of a text")
async def embed(request: EmbedRequest, service: ServiceDep) -> Any:
    """Compute the vector of a text as for those of the index, to search or explain with it."""
    return JSONResponse({"vector": (await service.embed_text(request.text)).tolist()})


@search_router.post("/explain", response_model=ExplainResponse, summary="Explain an expansion")
async def explain(request: ExplainRequest, service: ServiceDep) -> Any:
    """Neighbour weights of the query, and those of its neighbours: a graph of two hops."""
    if _count_queries(request, service) != 1:
        raise HTTPException(422, "give one query to explain")
    method = service.check_method(request.method).text

    def work(engine: Engine) -> WeightGraph:
        queries = resolve_queries(engine, request)
        return engine.explain(queries.vectors[0], queries.exclude[0], method, request.first, request.second)

    graph = await service.read(work, method)
    return JSONResponse(
        {
            "method": method,
            "items_with_weight": graph.items_with_weight,
            "nodes": [node._asdict() for node in graph.nodes],
            "edges": [edge._asdict() for edge in graph.edges],
        }
    )


def _check_count(count: int, service: Service) -> None:
    limit = service.settings.max_vectors
    if count > limit:
        raise HTTPException(422, f"at most {limit} items are taken at once; send fewer")


@items_router.get("/items", response_model=ItemsResponse, summary="Ids of items")
async def items(
    service: ServiceDep,
    start: Annotated[int, Query(ge=0, le=2**53)] = 0,
    count: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Any:
    """Ids of items in the order in which they were added."""
    return JSONResponse({"ids": await service.read(lambda engine: engine.list_ids(start, count))})


@items_router.post(
    "/items/describe", response_model=ItemDescriptionsResponse, summary="What is known of items"
)
async def describe_items(request: DescribeItemsRequest, service: ServiceDep) -> Any:
    """Metadata of items and, where right results are known, their labels."""
    _check_count(len(request.ids), service)
    return Response(
        json.dumps({"items": await service.describe_items(request.ids)}), media_type="application/json"
    )


@items_router.post("/items", response_model=ChangeResponse, summary="Add items")
async def add(request: AddRequest, service: ServiceDep) -> Any:
    """Add items; answers once they are stored durably. Needs the scope `write`."""
    _check_count(len(request.vectors), service)
    vectors = await service.run("bodies", check_vectors, request.vectors, service.engine.dimension)
    if request.ids is not None and len(request.ids) != len(vectors):
        raise HTTPException(422, f"ids: {len(request.ids)} for {len(vectors)} vectors; give one for each")
    for column, values in (request.metadata or {}).items():
        if len(values) != len(vectors):
            raise HTTPException(422, f"metadata: {column!r:.40} needs one value for each vector")
    return JSONResponse(await service.write(AddItems(vectors, request.ids, request.metadata)))


@items_router.post("/items/remove", response_model=ChangeResponse, summary="Remove items")
async def remove(request: RemoveRequest, service: ServiceDep) -> Any:
    """Remove items; answers once that is stored durably. Needs the scope `write`."""
    _check_count(len(request.ids), service)
    return JSONResponse(await service.write(RemoveItems(list(request.ids))))


@items_router.get(
    "/picture",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}}, **error_responses(404)},
    summary="Picture of an item",
)
async def picture(
    service: ServiceDep,
    id: Annotated[str, Query(min_length=1, max_length=1000)],
    side: Annotated[int, Query(ge=1, le=max(SIDES))] = SIDES[0],
) -> Any:
    """A thumbnail as JPEG; its longer side has 160 or 320 pixels at most."""
    item = whole_number(id) if service.engine.id_kind == "int" else id
    if item is None:
        raise HTTPException(404, "no such item")
    content = None
    if service.thumbnails is not None:
        larger = next(each for each in SIDES if side <= each)
        content = await service.run("pictures", service.thumbnails, item, larger)
    if content is None:
        raise HTTPException(404, "no such item, or it has no picture")
    return Response(content, media_type="image/jpeg", headers={"cache-control": "private, max-age=60"})


@public_router.get("/health", summary="Whether the service runs")
async def health() -> State:
    """Answers as long as the process can."""
    return State(status="ok")


@public_router.get("/ready", responses=error_responses(503), summary="Whether the service is ready")
async def ready(service: ServiceDep) -> State:
    """Answers 200 when the model is loaded and the index or database can be read."""
    if not service.ready:
        raise HTTPException(503, "still being loaded, or out of reach; come back later", RETRY_SOON)
    return State(status="ready")


@protected_router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
    summary="Prometheus metrics",
)
async def metrics(service: ServiceDep) -> Any:
    """Requests, their duration, batch sizes, items."""
    engine, values = service.engine.snapshot(), service.metrics
    values.items.set(len(engine))
    values.version.set(engine.version)
    values.waiting.labels("read").set(service.reader.qsize())
    values.waiting.labels("write").set(service.writer.qsize())
    return Response(generate_latest(values.registry), headers={"content-type": CONTENT_TYPE_LATEST})


@protected_router.get("/v1/about", response_model=About, summary="What the service offers")
async def about(service: ServiceDep) -> Any:
    """Size of the index, methods, limits, and example items."""
    engine, settings, methods = service.engine.snapshot(), service.settings, service.methods()
    return JSONResponse(
        About(
            title=engine.title,
            items=len(engine),
            dimension=engine.dimension,
            version=engine.version,
            id_kind="int" if engine.id_kind == "int" else "text",
            expansion=engine.expansion,
            methods=methods,
            methods_with_k=[name for name in methods if service.takes_k(name)],
            rerankers=service.rerankers(),
            most_neighbors=settings.max_neighbors,
            most_k=settings.max_k,
            pictures=service.thumbnails is not None,
            describes=service.describe is not None,
            embeds=service.embed is not None,
            labelled=service.labels is not None,
            read_only=settings.read_only,
            examples=await service.examples(),
        )
    )
