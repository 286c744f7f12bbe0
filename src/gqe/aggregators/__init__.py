"""How much weight each neighbour of a node gets: the classes that a stack is made of."""

from gqe.aggregators.affinity import Affinity
from gqe.aggregators.attention import Attention
from gqe.aggregators.averaging import Alpha, Decay, Identity, Mean
from gqe.aggregators.base import AGGREGATORS, Aggregation, Aggregator, Neighborhood, weighted_sum
from gqe.aggregators.jaccard import Jaccard
from gqe.aggregators.svm import Svm

__all__ = [
    "AGGREGATORS",
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
