"""GQE: Graph Query Expansion.

>>> import gqe
>>> expander = gqe.expander("aqe", k=10).fit(database)  # (n, d) embeddings
>>> better = expander.expand(queries)  # (m, d)
"""

from gqe.errors import InputError

# from gqe.evaluation import evaluate
from gqe.models import Expander, SearchResult, expander
from gqe.neighbors import NeighborGraph, knn

__version__ = "0.1.0"

__all__ = [
    "Expander",
    "InputError",
    "NeighborGraph",
    "SearchResult",
    "__version__",
    "evaluate",
    "expander",
    "knn",
]
