"""GQE: Graph Query Expansion.

Example:
    >>> import gqe
    >>> database, queries = np.eye(8, dtype=np.float32), np.eye(8, dtype=np.float32)[:2]
    >>> expander = gqe.expander("aqe", k=3).fit(database)
    >>> expander.expand(queries).shape
    (2, 8)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gqe.errors import InputError
from gqe.threads import sleep_while_waiting

if TYPE_CHECKING:
    from gqe.evaluation import evaluate
    from gqe.index import Index
    from gqe.integrations.faiss import wrap
    from gqe.models import Expander, expander
    from gqe.neighbors import NeighborGraph, knn
    from gqe.results import SearchResult
    from gqe.stores import connect

__version__ = "0.1.0"

sleep_while_waiting()  # before torch is loaded

__all__ = [
    "Expander",
    "Index",
    "InputError",
    "NeighborGraph",
    "SearchResult",
    "__version__",
    "connect",
    "evaluate",
    "expander",
    "knn",
    "wrap",
]

# Imported when first used: torch takes seconds to load, and `gqe --help` should not.
_HOMES = {
    "Expander": "gqe.models",
    "Index": "gqe.index",
    "NeighborGraph": "gqe.neighbors",
    "SearchResult": "gqe.results",
    "connect": "gqe.stores",
    "evaluate": "gqe.evaluation",
    "expander": "gqe.models",
    "knn": "gqe.neighbors",
    "wrap": "gqe.integrations.faiss",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gqe' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
