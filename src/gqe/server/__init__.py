"""An HTTP service and a page in front of an index."""

from gqe.server.app import create_app
from gqe.server.engine import Engine, IndexEngine, Options
from gqe.server.settings import Settings
from gqe.server.tokens import Tokens, read_tokens

__all__ = ["Engine", "IndexEngine", "Options", "Settings", "Tokens", "create_app", "read_tokens"]
