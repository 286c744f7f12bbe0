"""The app: routes, page, and a gate around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from gqe import __version__
from gqe.index import Index
from gqe.server import problems, routes_items, routes_search, routes_status
from gqe.server.engine import Engine, IndexEngine
from gqe.server.gate import Gate
from gqe.server.pictures import ItemPictures, PictureVectors
from gqe.server.schemas import Problem
from gqe.server.service import Service
from gqe.server.settings import Settings

PAGE = Path(__file__).parent / "page"


def create_app(
    engine: Engine | Index,
    settings: Settings | None = None,
    *,
    describe: PictureVectors | None = None,
    pictures: ItemPictures | None = None,
    examples: Sequence[Any] | None = None,
) -> FastAPI:
    """Make the app that serves an engine.

    Args:
        engine: An opened index, or anything that keeps the contract of `Engine`. Nobody else may use it.
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
    served = IndexEngine(engine) if isinstance(engine, Index) else engine
    service = Service(served, limits, describe, pictures, examples)

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
    )
    problems.register(app)
    bearer = Depends(HTTPBearer(auto_error=False, description="Needed if the service has tokens."))
    for routes in (routes_search, routes_items):
        app.include_router(routes.router(service), dependencies=[bearer])
    app.include_router(routes_status.router(service))

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers={"cache-control": "no-cache"})

    app.mount("/page", StaticFiles(directory=PAGE), name="page")
    app.add_middleware(Gate, settings=limits, metrics=service.metrics)
    _describe_problems(app)
    app.state.service = service
    return app


def _describe_problems(app: FastAPI) -> None:
    """Put the one schema of errors into the OpenAPI schema, in the place of FastAPI's own."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = made()
            parts = schema["components"]["schemas"]
            parts["Problem"] = Problem.model_json_schema()
            for unused in ("HTTPValidationError", "ValidationError"):
                parts.pop(unused, None)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
