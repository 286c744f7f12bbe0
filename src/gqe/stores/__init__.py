"""Vector databases: expansion in front of the vectors people already have."""

from gqe.stores.base import Store
from gqe.stores.connection import Connection
from gqe.stores.opening import connect, open_store

__all__ = ["Connection", "Store", "connect", "open_store"]
