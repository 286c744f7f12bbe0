"""An HTTP service and a page in front of an index or a vector database."""

from gqe.server.app import create_app
from gqe.server.engine import Engine, Options
from gqe.server.index_engine import IndexEngine
from gqe.server.settings import Settings
from gqe.server.store_engine import StoreEngine
from gqe.server.tokens import Tokens, read_tokens

__all__ = [
    "Engine",
    "IndexEngine",
    "Options",
    "Settings",
    "StoreEngine",
    "Tokens",
    "create_app",
    "read_tokens",
]
