"""The learned aggregators and what they know of a database, as plain formulas in float64.

No code is shared with the package: only numbers are read from an aggregator, those of its `state_dict()` and
its settings. `Literal` is Algorithm 2 for stacks that hold any aggregator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import erf

import literal

PLACES = (1, 2, 4, 8, 16, 32)  # of a neighbour list, counted from 1
STEPS = [-0.1 + 0.08 * i for i in range(15)]


class Literal:
    """Algorithm 2 over a database.

    Args:
        stack: aggregators of the package, first level first.
        database: (n, d) unit vectors.
        lists: ids of the neighbours of each item; found here by similarity if None.
    """

    def __init__(self, stack: Sequence[object], database: np.ndarray, lists: list[list[int]] | None = None):
        self.stack = stack
        self.database = database.astype(np.float64)
        self.n = len(database)
        self.lists = lists or [self.nearest(self.database[u], u) for u in range(self.n)]
        self.levels = [self.database]
        self.coefficients = [np.eye(self.n)]  # of a level: each row's weights of the database items
        self.backgrounds: list[tuple[float, float]] = []
        self.profiles = [self.profile(self.database[u], self.lists[u]) for u in range(self.n)]
        self.quantiles = quantiles(self.profiles)
        self.chosen = without_outliers([profile[2] for profile in self.profiles])
        for i in range(len(stack)):
            self.backgrounds.append(background(self.levels[i][self.chosen]))
            self._raise(i)

    def nearest(self, vector: np.ndarray, omit: int) -> list[int]:
        """All other items by falling similarity, ties by rising id."""
        similarities = self.database @ vector
        ids = [i for i in range(self.n) if i != omit]
        return sorted(ids, key=lambda i: (-round(float(similarities[i]), 12), i))

    def profile(self, vector: np.ndarray, ids: list[int]) -> list[float]:
        """The similarities at PLACES of a neighbour list; -1 where it is shorter."""
        return [
            float(vector @ self.database[ids[place - 1]]) if place <= len(ids) else -1.0 for place in PLACES
        ]

    def _raise(self, i: int) -> None:
        """Compute level i + 1 of all database items."""
        rows, coefficients = [], []
        for u in range(self.n):
            row, shares = self.aggregate(i, self.levels[i][u], self.database[u], self.lists[u])
            rows.append(row)
            read = self.lists[u][: self.stack[i].k]
            coefficients.append(shares[0] * self.coefficients[i][u] + shares[1:] @ self.coefficients[i][read])
        self.levels.append(np.array(rows).reshape(self.database.shape))
        self.coefficients.append(np.array(coefficients).reshape(self.n, self.n))

    def aggregate(
        self, i: int, now: np.ndarray, original: np.ndarray, ids: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """One node from level i to i + 1: its unit vector, and the coefficients of node and neighbours."""
        aggregator, read = self.stack[i], ids[: self.stack[i].k]
        tokens = np.array([now, *self.levels[i][read]])
        kind = type(aggregator).__name__
        if kind == "Attention":
            given = attention_weights(aggregator, tokens)
        elif kind in ("Jaccard", "Affinity"):
            originals = np.array([original, *self.database[read]])
            profiles = np.array([self.profile(original, ids), *(self.profiles[j] for j in read)])
            grounds = adjust_for_noise([self.backgrounds[0], self.backgrounds[i]], self.quantiles)
            context = originals, profiles, grounds, self.quantiles
            given = (jaccard_weights if kind == "Jaccard" else affinity_weights)(aggregator, tokens, *context)
        else:
            given = literal.weights(aggregator, tokens[0], tokens[1:])
        if kind in ("Attention", "Jaccard", "Affinity") and aggregator.temperature is not None:
            given = softmax(given / aggregator.temperature)
        total = given @ tokens
        length = np.linalg.norm(total)
        if length < 1e-6 * np.abs(given).sum():
            return now, np.eye(len(given))[0]
        return total / length, given / length

    def expand(self, query: np.ndarray, exclude: int = -1) -> tuple[np.ndarray, np.ndarray, float]:
        """The expanded query (d,), the weights (n,) of the items in it, and that of the query itself."""
        original = query.astype(np.float64)
        now, ids = original, self.nearest(original, exclude)
        items, own = np.zeros(self.n), 1.0
        for i, aggregator in enumerate(self.stack):
            now, shares = self.aggregate(i, now, original, ids)
            items = shares[0] * items + shares[1:] @ self.coefficients[i][ids[: aggregator.k]]
            own = shares[0] * own
        return (now, items, 0.0) if abs(own) < 1e-8 else (now, items / own, 1.0)

    def expand_all(self, queries: np.ndarray, exclude: Sequence[int] | None = None) -> tuple[np.ndarray, ...]:
        """Expanded queries (m, d), weights of the items (m, n) and of the queries (m,)."""
        without = [-1] * len(queries) if exclude is None else exclude
        parts = [self.expand(query, int(e)) for query, e in zip(queries, without, strict=True)]
        return tuple(np.array(column) for column in zip(*parts, strict=True))

    def subtract_negatives(
        self, query: np.ndarray, expanded: np.ndarray, contrast: float, exclude: int = -1
    ) -> np.ndarray:
        """The unit vector along `expanded - contrast * mean of the items at ranks 65 to 192`.

        They are subtracted only as far as the eight nearest items are apart from them.
        """
        ids = self.nearest(query.astype(np.float64), exclude)
        if len(ids) <= 64:
            return expanded
        near, beyond = self.database[ids[:8]], self.database[ids[64:192]]
        within = np.mean([near[i] @ near[j] for i in range(8) for j in range(8) if i != j])
        across = np.mean([a @ b for a in near for b in beyond])
        apart = np.clip(((within - across) / max(1 - within, 1e-6) - 0.3) / 0.3, 0, 1)
        return literal.unit(expanded - contrast * apart * beyond.mean(axis=0))


# Statistics of a database.


def quantiles(profiles: list[list[float]]) -> np.ndarray:
    """(33, places) how near the neighbours of items are: quantiles 0, 1/32, ..., 1 of each place."""
    if not profiles:
        return np.zeros((33, len(PLACES)))
    return np.array([[quantile(column, i / 32) for column in zip(*profiles, strict=True)] for i in range(33)])


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest of the sorted values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def background(rows: np.ndarray) -> tuple[float, float]:
    """The median similarity of all pairs, and the deviation below it."""
    n, d = rows.shape
    if n < 3:
        return 0.0, d**-0.5
    pairs = [float(rows[i] @ rows[j]) for i in range(n) for j in range(i + 1, n)]
    middle = quantile(pairs, 0.5)
    return middle, max((middle - quantile(pairs, 0.05)) / 1.645, 1e-3)


def without_outliers(fourth: list[float]) -> list[int]:
    """Items among whom the background is measured: all, or in two groups those with near fourth neighbours.

    The groups are those of Otsu's threshold, and separate if 82% of the variance lies between them.
    """
    n = len(fourth)
    if n <= 256:
        return list(range(n))
    order = sorted(range(n), key=lambda i: (-fourth[i], i))
    best, most = 0, -1.0
    for count in range(1, n):
        upper, lower = [fourth[i] for i in order[:count]], [fourth[i] for i in order[count:]]
        between = count / n * (1 - count / n) * (np.mean(upper) - np.mean(lower)) ** 2
        if between > most:
            best, most = count, between
    group = sorted(order[: max(best, 256)]) if most > 0.82 * np.var(fourth) else list(range(n))
    size = min(len(group), 1024)
    return [group[i * len(group) // size] for i in range(size)]


def adjust_for_noise(grounds: list[tuple[float, float]], grid: np.ndarray) -> np.ndarray:
    """Deviations shrink where the nearest pair is far from equal and yet many items have a near neighbour."""
    mean, deviation = grounds[0]
    nearest, tenth = max(grid[32, 0] - mean, 1e-6), max(grid[29, 0] - mean, 1e-6)
    ceiling = min(nearest / max(1 - mean, 1e-3) / 0.95, 1.0)
    paired = np.clip((tenth / nearest - 0.7) / (0.8 - 0.7), 0, 1)
    significant = np.clip((tenth / deviation - 4.5) / (5.5 - 4.5), 0, 1)
    return np.array([[middle, spread * ceiling ** (2 * paired * significant)] for middle, spread in grounds])


def density_rank(value: float, grid: np.ndarray) -> float:
    """The share of items that are less similar than the value, linear between 33 quantiles.

    Of equal quantiles the first counts.
    """
    above = 1
    while above < 32 and grid[above] < value - 1e-5:  # nearer than that they are equal
        above += 1
    low, high = grid[above - 1], grid[above]
    return float((above - 1 + min(max((value - low) / max(high - low, 1e-6), 0), 1)) / 32)


# Aggregators.


def attention_weights(aggregator: object, tokens: np.ndarray) -> np.ndarray:
    """Algorithm 1 of the paper: 1 for the node, cosines of encoded node and encoded neighbours."""
    parameters = numbers(aggregator)
    x = tokens + parameters["positions"][: len(tokens)]
    for layer in range(aggregator.layers):
        own = part(parameters, f"encoder.{layer}.")
        if aggregator.norm_first:
            x = x + attend(layer_norm(x, own, "norm1"), own, aggregator.heads)
            hidden = np.maximum(linear(layer_norm(x, own, "norm2"), own, "up"), 0)
            x = x + linear(hidden, own, "down")
        else:
            x = layer_norm(x + attend(x, own, aggregator.heads), own, "norm1")
            hidden = np.maximum(linear(x, own, "up"), 0)
            x = layer_norm(x + linear(hidden, own, "down"), own, "norm2")
    if aggregator.norm_first:
        x = layer_norm(x, parameters, "norm")
    cosines = [float(x[0] @ y / (np.linalg.norm(x[0]) * np.linalg.norm(y))) for y in x[1:]]
    return np.array([1.0, *(max(c, 0.0) if aggregator.clamp else c for c in cosines)])


def jaccard_weights(
    aggregator: object,
    tokens: np.ndarray,
    originals: np.ndarray,
    profiles: np.ndarray,
    grounds: np.ndarray,
    grid: np.ndarray,
) -> np.ndarray:
    """The Jaccard index of soft sets of reciprocal neighbours, mean over k1 = 8, 16 and 32."""
    count, cosines, unit = len(tokens), originals @ originals.T, 0.25 * grounds[0, 1]
    total = np.zeros(count)
    for place in (3, 4, 5):  # the eighth, sixteenth and thirty-second neighbour
        among = sigmoid((cosines - profiles[:, place]) / unit)  # i among the nearest of j
        mutual = among * among.T
        np.fill_diagonal(mutual, 1.0)
        for j in range(1, count):
            shared = mutual[0] @ mutual[j]
            total[j] += shared / max(mutual[0].sum() + mutual[j].sum() - shared, 1e-6) / 3
    return np.array([1.0, *(aggregator.weight * total[1:])])


def affinity_weights(
    aggregator: object,
    tokens: np.ndarray,
    originals: np.ndarray,
    profiles: np.ndarray,
    grounds: np.ndarray,
    grid: np.ndarray,
) -> np.ndarray:
    """An encoder over features of similarities, then a sigmoid of its log-odds."""
    parameters, count = numbers(aggregator), len(tokens)
    if count == 1:
        return np.ones(1)
    cosines = originals @ originals.T
    share, deviation, contrast = scales(cosines, grounds[0])

    # behind[p, i, j]: how surely PLACES[p] items are nearer to j than i is.
    behind = np.array([sigmoid((profiles[:, p] - cosines) / (0.25 * grounds[0, 1])) for p in range(6)])
    place = behind.mean(axis=0)
    channels = [share, deviation, contrast, place, place.T]
    views = [(share, deviation, contrast)]
    if aggregator.base:
        views.append(scales(tokens @ tokens.T, grounds[1]))
        channels += views[1]

    nodes_ranks = [density_rank(profiles[0, p], grid[:, p]) for p in range(6)]
    features = []
    for t in range(count):
        row = [value for view in views for table in view for value in padded(table[t], 17)]
        for view in views:
            others = sorted((view[0][t, j] for j in range(count) if j != t), reverse=True)
            row += [others[p - 1] if p <= len(others) else 0.0 for p in PLACES]
        mean, spread = grounds[0]
        row += [max((s - mean) / max(1 - mean, 1e-3), -0.5) for s in profiles[t]]
        row += [np.tanh((s - mean) / (6 * spread)) for s in profiles[t]]
        row += list(behind[:, 0, t])
        average = share[t].mean()
        row += [
            min(max(share[t, 0] / max(share[0, 1], 0.05), -1.0), 1.5),
            average,
            np.sqrt((share[t] ** 2).mean()),
            place[0, t],
            np.log2(count) / 6,
            *(value for mean, spread in grounds for value in (mean, 6 * spread)),
        ]
        ranks = [density_rank(profiles[t, p], grid[:, p]) for p in range(6)]
        ranks += nodes_ranks
        ranks += [density_rank(cosines[t, 0], grid[:, p]) for p in (0, 3)]
        row += ranks + [rarity(rank) for rank in ranks]
        spread_out = [share[t, 0], average, place[0, t]] + [view[0][t, 0] for view in views[1:]]
        steps = [max(0.0, 1 - abs(value - step) / 0.08) for value in spread_out for step in STEPS]
        features.append([*(3 * value for value in row), *steps])
    features = np.array(features)

    x = gelu(linear(features, parameters, "read.0"))
    ranks = np.minimum(np.arange(count), 64)
    x = linear(x, parameters, "read.2") + parameters["ranks.weight"][ranks]
    for layer in range(aggregator.layers):
        own = part(parameters, f"blocks.{layer}.")
        bias = [sum(w * c for w, c in zip(head, channels, strict=True)) for head in own["bias.weight"]]
        x = x + attend(layer_norm(x, own, "before"), own, aggregator.heads, bias)
        x = x + linear(gelu(linear(layer_norm(x, own, "between"), own, "feed.0")), own, "feed.2")
    logits = linear(layer_norm(x, parameters, "norm"), parameters, "head")[:, 0]
    logits = logits + linear(features, parameters, "direct")[:, 0] + parameters["prior"][ranks]

    # Reasons for low weights: a rare density that is no class, and a flat list with nothing near.
    best, eighth = share[0, 1], share[0, min(8, count - 1)]
    dense = max(rarity(density_rank(profiles[0, 2], grid[:, 2])) - 0.5, 0) * np.clip(
        (0.8 - eighth) / 0.1, 0, 1
    )
    flat = max(1 - (best - eighth) / 0.2, 0) * np.clip((0.55 - best) / 0.15, 0, 1)
    logits = logits - parameters["caution"] @ [dense, flat]
    return np.array([1.0, *sigmoid(logits[1:])])


def scales(cosines: np.ndarray, ground: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cosines above the background as a share of what is possible, in deviations, and inside the group."""
    mean, spread = ground
    share = np.maximum((cosines - mean) / max(1 - mean, 1e-3), -0.5)
    others = [share[i, j] for i in range(len(share)) for j in range(len(share)) if i != j]
    contrast = (share - np.mean(others)) / (2 * np.sqrt(np.var(others) + 1e-6) + 0.02)
    return share, np.tanh((cosines - mean) / (6 * spread)), np.clip(contrast, -2, 2)


def rarity(rank: float) -> float:
    return -math.log2(1 - rank + 1 / 64) / 6


# Parts of an encoder.


def numbers(aggregator: object) -> dict[str, np.ndarray]:
    return {name: value.double().numpy() for name, value in aggregator.state_dict().items()}


def part(parameters: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name[len(prefix) :]: value for name, value in parameters.items() if name.startswith(prefix)}


def attend(x: np.ndarray, own: dict[str, np.ndarray], heads: int, bias: Sequence | None = None) -> np.ndarray:
    """Multi-head self-attention, head by head; `bias` is added to the scores of each head."""
    size = x.shape[1] // heads
    query, key, value = np.split(linear(x, own, "qkv"), 3, axis=1)
    mixed = []
    for head in range(heads):
        here = slice(head * size, (head + 1) * size)
        scores = query[:, here] @ key[:, here].T / np.sqrt(size)
        if bias is not None:
            scores = scores + bias[head]
        mixed.append(softmax(scores) @ value[:, here])
    return linear(np.concatenate(mixed, axis=1), own, "out")


def linear(x: np.ndarray, own: dict[str, np.ndarray], name: str) -> np.ndarray:
    return x @ own[f"{name}.weight"].T + own[f"{name}.bias"]


def layer_norm(x: np.ndarray, own: dict[str, np.ndarray], name: str) -> np.ndarray:
    centred = x - x.mean(axis=1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    return normal * own[f"{name}.weight"] + own[f"{name}.bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + erf(x / np.sqrt(2))) / 2


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -700, 700)))


def softmax(rows: np.ndarray) -> np.ndarray:
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def padded(row: np.ndarray, size: int) -> list[float]:
    return [*row[:size], *[0.0] * (size - len(row))]
