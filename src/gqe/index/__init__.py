"""The index: a directory on disk that is built once, searched fast and updated forever."""

from gqe.index.index import Index
from gqe.index.searching import Explanation
from gqe.index.verifying import verify

__all__ = ["Explanation", "Index", "verify"]
