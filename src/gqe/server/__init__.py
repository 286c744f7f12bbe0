"""An HTTP service and a page in front of an index or a vector database."""

from gqe.server.app import create_app
from gqe.server.engine import Engine, SearchOptions
from gqe.server.index_engine import IndexEngine
from gqe.server.settings import Settings, Tokens, read_tokens
from gqe.server.store_engine import StoreEngine

__all__ = [
    "Engine",
    "IndexEngine",
    "SearchOptions",
    "Settings",
    "StoreEngine",
    "Tokens",
    "create_app",
    "read_tokens",
]
