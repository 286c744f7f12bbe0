"""Methods that reorder the results of a search by the neighbour graph of the database."""

from gqe.rerank.base import Ranking, Reranker

__all__ = ["Ranking", "Reranker"]
