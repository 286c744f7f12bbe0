"""Operations counted one by one: a product of numbers and its addition are two.

Only products of matrices are counted; what else there is (norms, sorting, reading) lies in the share of the
peak that measured runs reach.
"""

from __future__ import annotations

import math

# The paper's encoder (Klein and Wolf, 2021), see gqe.aggregators.Attention.
LAYERS, FEEDFORWARD = 3, 2048
# The universal model, see gqe.aggregators.Affinity; it reads so many places of a neighbour list.
WIDTH, AFFINITY_LAYERS, HEADS, PLACES = 128, 3, 4, 6
LISTED, STEPS, CROWDED = 16, 15, 28
# Lists of an inverted file for the root of the items, its training and its first breadth, as
# gqe.index.approximate sets them.
LISTS, TRAINING_POINTS, TRAINING_ROUNDS, LEAST_PROBES = 3.2, 50, 10, 4
# Below this an approximate search is exact.
SMALLEST_APPROXIMATE = 20_000


def product_flops(rows: float, inner: float, columns: float) -> float:
    """Of a matrix product (rows, inner) x (inner, columns)."""
    return 2.0 * rows * inner * columns


def exact_search_flops(queries: float, items: float, dim: int) -> float:
    """Of comparing all queries with all items."""
    return product_flops(queries, dim, items)


def rescoring_flops(queries: float, candidates: int, dim: int) -> float:
    """Of scoring candidates one by one."""
    return product_flops(queries * candidates, dim, 1)


def inverted_lists(items: float) -> float:
    """How many lists an inverted file of so many items has (the next power of two in truth)."""
    return LISTS * math.sqrt(items)


def inverted_file_flops(items: float, dim: int) -> float:
    """Of training an inverted file and entering all items."""
    lists = inverted_lists(items)
    training = TRAINING_ROUNDS * product_flops(min(items, TRAINING_POINTS * lists), dim, lists)
    return training + product_flops(items, dim, lists)


def inverted_scan_flops(queries: float, items: float, dim: int, share: float) -> tuple[float, float]:
    """Of finding the lists to look at, and of scanning them.

    Args:
        queries: how many.
        items: in the inverted file.
        dim: of a vector.
        share: of the items that a query is compared with, if that is more than the fewest lists hold.
    """
    lists = inverted_lists(items)
    scanned = items * min(1.0, max(share, LEAST_PROBES / lists))
    return product_flops(queries, dim, lists), product_flops(queries, dim, scanned)


def attention_flops(k: int, dim: int, layers: int = LAYERS, feedforward: int = FEEDFORWARD) -> float:
    """Of the paper's encoder over one node and its k neighbours, cosines and sum included."""
    tokens = k + 1
    projections = product_flops(tokens, dim, 4 * dim) + 2 * product_flops(tokens, dim, feedforward)
    attention = 2 * product_flops(tokens, dim, tokens)
    return layers * (projections + attention) + product_flops(k, dim, 1) + sum_flops(k, dim)


def affinity_flops(k: int, dim: int, *, first: bool) -> float:
    """Of the universal model over one node and its k neighbours.

    Args:
        k: neighbours.
        dim: of a vector.
        first: whether it is the first level; later ones compare the original vectors, too.
    """
    tokens, grams = k + 1, 1 if first else 2
    features = grams * (3 * (LISTED + 1) + PLACES) + 3 * PLACES + 9 + (grams + 2) * STEPS + CROWDED
    channels = 3 * grams + 3
    embedding = product_flops(tokens, features, WIDTH) + product_flops(tokens, WIDTH, WIDTH)
    layer = product_flops(tokens, WIDTH, 10 * WIDTH)  # q, k, v, out, and the two of the network behind
    layer += product_flops(HEADS, channels, tokens * tokens) + 2 * product_flops(tokens, WIDTH, tokens)
    output = product_flops(tokens, WIDTH + features, 1) + product_flops(1, 2, 1)
    return (
        grams * product_flops(tokens, dim, tokens)
        + embedding
        + AFFINITY_LAYERS * layer
        + output
        + sum_flops(k, dim)
    )


def sum_flops(k: int, dim: int) -> float:
    """Of the weighted sum of a node and its k neighbours: all that AQE computes."""
    return product_flops(1, k + 1, dim)


def alpha_flops(k: int, dim: int) -> float:
    """Of αQE: the cosines of a node with its neighbours, and the sum."""
    return product_flops(k, dim, 1) + sum_flops(k, dim)
