"""Algorithm 2 of the paper, written out as plain loops over sets in float64: the oracle of every faster path.

Nodes are database ids, and QUERY for the query. One thing is more general than the paper: each level may have
its own K, so the sets grow by NN of the level that will read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

QUERY = -1
# Two different items may not lie closer to each other than this in similarity, or float32 may swap them.
LEAST_GAP = 1e-5


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def nearest(vector: np.ndarray, database: np.ndarray, k: int, omit: int = -1) -> list[int]:
    """Ids of the k nearest by cosine, ties by rising id, without the omitted id."""
    ids = [i for i in range(len(database)) if i != omit]
    return sorted(ids, key=lambda i: (-float(sum(vector * database[i])), i))[:k]


def weights(aggregator: object, node: np.ndarray, neighbors: Sequence[np.ndarray]) -> np.ndarray:
    """What an aggregator of the package should give the node and its neighbours, from its paper's formula."""
    kind = type(aggregator).__name__
    if kind == "Identity":
        given = [1.0] + [0.0 for _ in neighbors]
    elif kind == "Mean":
        given = [1.0] + [1.0 for _ in neighbors]
    elif kind == "Decay":
        given = [1.0] + [(aggregator.k - i) / aggregator.k for i in range(1, len(neighbors) + 1)]
    elif kind == "Alpha":
        given = [1.0] + [max(0.0, float(sum(node * d))) ** aggregator.alpha for d in neighbors]
    elif kind == "Svm":
        given = svm_weights(aggregator, [node, *neighbors])
    else:
        raise NotImplementedError(kind)
    given = np.array(given)
    if aggregator.temperature is not None:
        given = np.exp((given - given.max()) / aggregator.temperature)
        given = given / given.sum()
    return given


def svm_weights(aggregator: object, tokens: list[np.ndarray]) -> list[float]:
    """Signed dual coefficients of a linear SVM: node and top neighbours against the end of the list."""
    last = max(aggregator.positives + 1, len(tokens) - aggregator.negatives)
    used = [*range(aggregator.positives + 1), *range(last, len(tokens))]
    if last >= len(tokens):
        return [1.0] * len(tokens)
    from sklearn.svm import SVC  # takes seconds to load

    svm = SVC(C=aggregator.c, kernel="linear", tol=1e-10)
    svm.fit([tokens[i] for i in used], [1 if i <= aggregator.positives else -1 for i in used])
    given = [0.0] * len(tokens)
    for place, coefficient in zip(svm.support_, svm.dual_coef_[0], strict=True):
        given[used[place]] = float(coefficient)
    return given


def aggregated(aggregator: object, node: np.ndarray, neighbors: Sequence[np.ndarray]) -> np.ndarray:
    """The weighted sum of a node and its neighbours, normalised; the node itself where the sum vanishes."""
    given = weights(aggregator, node, neighbors)
    total = given[0] * node
    for weight, vector in zip(given[1:], neighbors, strict=True):
        total = total + weight * vector
    if np.linalg.norm(total) < 1e-6 * np.abs(given).sum():
        return node
    return unit(total)


def algorithm_2(
    query: np.ndarray,
    database: np.ndarray,
    stack: Sequence[object],
    exclude: int = -1,
    agg: Callable[[object, np.ndarray, Sequence[np.ndarray]], np.ndarray] = aggregated,
) -> np.ndarray:
    """qe of one query. For a database item, give its vector and its own id as `exclude`.

    `agg` stands for the aggregation function; another one can be given to test other aggregators.
    """
    query, database = query.astype(np.float64), database.astype(np.float64)
    vector = {QUERY: query} | dict(enumerate(database))
    levels = len(stack)

    def nn(u: int, k: int) -> list[int]:
        return nearest(vector[u], database, k, omit=exclude if u == QUERY else u)

    sets: list[set[int]] = [set() for _ in range(levels + 1)]
    sets[levels] = {QUERY}
    for i in range(1, levels + 1):
        reader = stack[levels - i]
        sets[levels - i] = set(sets[levels - i + 1])
        for u in sets[levels - i + 1]:
            sets[levels - i] |= set(nn(u, reader.k))

    now = {u: vector[u] for u in sets[0]}
    for i in range(1, levels + 1):
        aggregator = stack[i - 1]
        now = {u: agg(aggregator, now[u], [now[d] for d in nn(u, aggregator.k)]) for u in sets[i]}
    return now[QUERY]


def expanded(queries: np.ndarray, database: np.ndarray, stack: Sequence[object], exclude=None) -> np.ndarray:
    """Algorithm 2 for each query: (m, d)."""
    without = [-1] * len(queries) if exclude is None else exclude
    rows = [algorithm_2(q, database, stack, int(e)) for q, e in zip(queries, without, strict=True)]
    return np.array(rows).reshape(len(queries), queries.shape[1])


def augmented(database: np.ndarray, stack: Sequence[object]) -> np.ndarray:
    """Algorithm 2 for each database item, never its own neighbour: (n, d)."""
    return expanded(database, database, stack, exclude=range(len(database)))


def clearly_ranked(queries: np.ndarray, database: np.ndarray) -> bool:
    """Whether different items never come so close in similarity that rounding could order them."""
    database = database.astype(np.float64)
    different = np.unique(database, axis=0)
    similarities = np.sort(np.concatenate([queries, database]).astype(np.float64) @ different.T, axis=1)
    return bool((np.diff(similarities, axis=1) > LEAST_GAP).all())
