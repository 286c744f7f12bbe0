"""One file for each way of listening to neighbours."""

from gqe.aggregators.affinity import Affinity
from gqe.aggregators.alpha import Alpha
from gqe.aggregators.attention import Attention
from gqe.aggregators.base import Aggregation, Aggregator, Neighborhood, weighted_sum
from gqe.aggregators.decay import Decay
from gqe.aggregators.identity import Identity
from gqe.aggregators.jaccard import Jaccard
from gqe.aggregators.mean import Mean
from gqe.aggregators.svm import Svm

__all__ = [
    "Affinity",
    "Aggregation",
    "Aggregator",
    "Alpha",
    "Attention",
    "Decay",
    "Identity",
    "Jaccard",
    "Mean",
    "Neighborhood",
    "Svm",
    "weighted_sum",
]
