"""Pictures to embeddings: networks, pooling, whitening."""

from gqe.extraction.lite0 import Lite0
from gqe.extraction.whitening import Whitening, fit

__all__ = ["Lite0", "Whitening", "fit"]
