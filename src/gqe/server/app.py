"""The ASGI app: routes, the page, and the middleware around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from gqe import __version__
from gqe.index import Index
from gqe.server.engine import Engine, ItemId
from gqe.server.index_engine import IndexEngine
from gqe.server.middleware import GuardMiddleware
from gqe.server.pictures import ItemPictures, PictureVectors
from gqe.server.problems import register_handlers
from gqe.server.routes import routers
from gqe.server.schemas import Problem
from gqe.server.service import Service, TextVectors
from gqe.server.settings import Settings
from gqe.server.store_engine import StoreEngine
from gqe.stores import Connection

_PAGE = Path(__file__).parent / "page"


def create_app(
    engine: Engine | Index | Connection,
    settings: Settings | None = None,
    *,
    describe: PictureVectors | None = None,
    pictures: ItemPictures | None = None,
    examples: Sequence[Any] | None = None,
    embed: TextVectors | None = None,
    labels: Mapping[ItemId, ItemId] | None = None,
) -> FastAPI:
    """Create the app that serves an engine.

    Args:
        engine: An opened index, a connection of `gqe.connect` with levels attached, or another implementation
            of `Engine`. Nobody else may use it.
        settings: Limits and tokens.
        describe: Pictures to vectors, for searches by picture.
        pictures: Pictures of items, for the page.
        examples: Ids that the page offers first; None for items all over the index.
        embed: Texts to vectors (d,), for searches by text.
        labels: Of items whose right results are known, for the page: those of the same label are right.

    Returns:
        An ASGI app; its threads live from its start-up to its shut-down.

    Example:
        >>> import numpy as np, tempfile
        >>> index = Index.build(np.eye(8), "aqe", tempfile.mkdtemp() + "/index")
        >>> sorted(create_app(index).openapi()["paths"])[:2]
        ['/health', '/metrics']
    """
    if isinstance(engine, Index):
        engine = IndexEngine(engine)
    elif isinstance(engine, Connection):
        engine = StoreEngine(engine)
    settings = settings or Settings()
    service = Service(engine, settings, describe, pictures, examples, embed, labels)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        polling = asyncio.create_task(service.poll())
        try:
            yield
        finally:
            polling.cancel()
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
    app.state.service = service
    register_handlers(app)
    for router in routers:
        app.include_router(router)

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_PAGE / "index.html", headers={"cache-control": "no-cache"})

    app.mount("/page", StaticFiles(directory=_PAGE), name="page")
    app.add_middleware(GuardMiddleware, settings=settings, metrics=service.metrics)
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        schema = generate()
        schema["components"]["schemas"]["Problem"] = TypeAdapter(Problem).json_schema()
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app
