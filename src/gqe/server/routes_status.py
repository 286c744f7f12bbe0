"""How the service is, and what it offers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from gqe.server.problems import Refused
from gqe.server.schemas import About, State, problems
from gqe.server.service import Service


def router(service: Service) -> APIRouter:
    """The routes of one service."""
    routes = APIRouter(tags=["status"])

    @routes.get("/health", response_model=State, summary="Whether the service lives")
    async def health() -> Any:
        """Answers as long as the process can."""
        return JSONResponse({"status": "ok"})

    @routes.get("/ready", response_model=State, responses=problems(503), summary="Whether it can answer")
    async def ready() -> Any:
        """Answers 200 when the model is loaded and what is served can be reached."""
        if not service.ready:
            raise Refused(503, "still being loaded, or out of reach; come back later", {"retry-after": "1"})
        return JSONResponse({"status": "ready"})

    @routes.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, **problems(401, 403, 429, 431)},
        summary="Numbers for Prometheus",
    )
    async def metrics() -> Any:
        """Requests, their times, sizes of batches, items."""
        numbers, engine = service.metrics, service.engine.fixed()
        numbers.items.set(len(engine))
        numbers.version.set(engine.version)
        numbers.waiting.labels("read").set(service.reader.waiting())
        numbers.waiting.labels("write").set(service.writer.waiting())
        return Response(numbers.page(), headers={"content-type": numbers.media_type})

    @routes.get(
        "/v1/about",
        response_model=About,
        responses=problems(401, 403, 429, 431, 503),
        summary="What is offered here",
    )
    async def about() -> Any:
        """Size of the index, methods, limits, and items to begin with."""
        engine, settings = service.engine.fixed(), service.settings
        return JSONResponse(
            {
                "title": engine.title,
                "items": len(engine),
                "dimension": engine.dimension,
                "version": engine.version,
                "id_kind": engine.id_kind,
                "expansion": engine.expansion,
                "methods": service.methods(),
                "methods_with_k": [name for name in service.methods() if service.takes_k(name)],
                "rerankers": service.rerankers(),
                "most_neighbors": settings.most_neighbors,
                "most_k": settings.most_k,
                "pictures": service.thumbnails is not None,
                "describes": service.describe is not None,
                "read_only": settings.read_only,
                "examples": await service.examples(),
            }
        )

    return routes
