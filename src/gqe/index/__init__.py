"""The index: a directory on disk that is built once, searched fast and updated forever."""

from gqe.index.index import Index
from gqe.index.verifying import verify
from gqe.retrieval import Explanation

__all__ = ["Explanation", "Index", "verify"]
