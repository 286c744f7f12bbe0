"""The app: routes, page, and a gate around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from gqe import __version__
from gqe.index import Index
from gqe.server import problems, routes_items, routes_search, routes_status
from gqe.server.engine import Engine
from gqe.server.gate import Gate, is_guarded
from gqe.server.index_engine import IndexEngine
from gqe.server.pictures import ItemPictures, PictureVectors
from gqe.server.schemas import Problem
from gqe.server.service import Service
from gqe.server.settings import Settings
from gqe.server.store_engine import StoreEngine
from gqe.stores import Connection

PAGE = Path(__file__).parent / "page"


def create_app(
    engine: Engine | Index | Connection,
    settings: Settings | None = None,
    *,
    describe: PictureVectors | None = None,
    pictures: ItemPictures | None = None,
    examples: Sequence[Any] | None = None,
) -> FastAPI:
    """Make the app that serves an engine.

    Args:
        engine: An opened index, a connection of `gqe.connect` with levels attached, or anything that keeps
            the contract of `Engine`. Nobody else may use it.
        settings: Limits and tokens.
        describe: Pictures to vectors, for searches by picture.
        pictures: Pictures of items, for the page.
        examples: Ids that the page offers first; None for items all over the index.

    Returns:
        An ASGI app; its threads live from its start-up to its shut-down.

    Example:
        >>> import numpy as np, tempfile
        >>> index = Index.build(np.eye(8), "aqe", tempfile.mkdtemp() + "/index")
        >>> sorted(create_app(index).openapi()["paths"])[:2]
        ['/health', '/metrics']
    """
    limits = settings or Settings()
    service = Service(_as_engine(engine), limits, describe, pictures, examples)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        following = asyncio.create_task(service.follow())
        try:
            yield
        finally:
            following.cancel()
            await asyncio.to_thread(service.close)

    app = FastAPI(
        title="GQE",
        version=__version__,
        description="Search with graph query expansion.",
        lifespan=lifespan,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name whatever host the request names
    )
    problems.register(app)
    for routes in (routes_search, routes_items, routes_status):
        app.include_router(routes.router(service))

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers={"cache-control": "no-cache"})

    app.mount("/page", StaticFiles(directory=PAGE), name="page")
    app.add_middleware(Gate, settings=limits, metrics=service.metrics)
    _complete_schema(app)
    app.state.service = service
    return app


def _as_engine(given: Engine | Index | Connection) -> Engine:
    if isinstance(given, Index):
        return IndexEngine(given)
    return StoreEngine(given) if isinstance(given, Connection) else given


def _complete_schema(app: FastAPI) -> None:
    """Put what the gate does into the OpenAPI schema: tokens, and errors in the place of FastAPI's own."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = made()
            parts = schema["components"]["schemas"]
            parts["Problem"] = Problem.model_json_schema()
            for unused in ("HTTPValidationError", "ValidationError"):
                parts.pop(unused, None)
            schema["components"]["securitySchemes"] = {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Needed if the service has tokens.",
                }
            }
            for path, operations in schema["paths"].items():
                for operation in operations.values() if is_guarded(path) else ():
                    operation["security"] = [{"bearer": []}]
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
