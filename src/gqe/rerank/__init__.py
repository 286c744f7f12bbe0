"""Methods that reorder the results of a search by the neighbour graph of the database."""

from gqe.rerank.base import RERANKERS, Reranker, Reranking
from gqe.rerank.csa import Csa
from gqe.rerank.diffusion import Diffusion, OfflineDiffusion
from gqe.rerank.egt import Egt
from gqe.rerank.gss import Gss
from gqe.rerank.reciprocal import Reciprocal
from gqe.rerank.spectral import HybridDiffusion, Spectral
from gqe.rerank.superglobal import SuperGlobal

__all__ = [
    "RERANKERS",
    "Csa",
    "Diffusion",
    "Egt",
    "Gss",
    "HybridDiffusion",
    "OfflineDiffusion",
    "Reciprocal",
    "Reranker",
    "Reranking",
    "Spectral",
    "SuperGlobal",
]
