"""The neighbour graph, and exact and approximate nearest neighbours behind one function."""

from gqe.neighbors.graph import NeighborGraph
from gqe.neighbors.search import knn

__all__ = ["NeighborGraph", "knn"]
