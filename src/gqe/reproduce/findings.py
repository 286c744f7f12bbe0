"""What the numbers say about the order that the paper found, in words."""

from __future__ import annotations

import itertools

from gqe.reproduce.rows import Filled
from gqe.reproduce.tables import Column, mean, value


def order_of_methods(
    query: list[Filled], database: list[Filled], over: list[Column], columns: list[Column]
) -> list[str]:
    """Where the paper's order holds, in the mean and by column.

    None < hand-crafted < LAttQE < GQE, GQE the best without and DBA + GQE the best with augmentation; and, as
    the paper does not show, whether training gave anything at all.
    """
    known = {row.row.title: row for row in query + database}
    means = {title: mean(row, over) for title, row in known.items()}
    by_hand = {
        title: number
        for title, row in known.items()
        if row.row.grid and title not in ("none", "EGT") and not row.row.grid.startswith("DBA")
        if (number := means[title]) is not None
    }
    sentences = []
    chain = ["none"]
    if by_hand:
        chain.append(max(by_hand, key=lambda title: by_hand[title]))
    chain += ["LAttQE", "GQE"]
    for lower, higher in itertools.pairwise(chain):
        sentences.append(_step(known, means, lower, higher, columns, best=higher in by_hand))
    if "GQE, untrained" in known:
        sentences.append(_step(known, means, "GQE, untrained", "GQE", columns, best=False))
    sentences.append(_best({row.row.title: means[row.row.title] for row in query}, "GQE", "rows without DBA"))
    sentences.append(_best(means, "DBA + GQE", "rows"))
    holds = sum(sentence.startswith("Holds") for sentence in sentences)
    summary = f"{holds} of {len(sentences)} statements hold (mean over {len(over)}"
    return [f"{summary} column{'s' if len(over) != 1 else ''}).", *sentences]


def _step(
    known: dict[str, Filled],
    means: dict[str, float | None],
    lower: str,
    higher: str,
    columns: list[Column],
    *,
    best: bool,
) -> str:
    low, high = means.get(lower), means.get(higher)
    name = f"the best hand-crafted method, {higher}," if best else higher
    if low is None or high is None:
        return f"Not decided: {lower} < {name.rstrip(',')}; {higher if high is None else lower} has no mean."
    pairs = [(value(known[lower], c), value(known[higher], c), c) for c in columns]
    both = [(a, b, c) for a, b, c in pairs if a is not None and b is not None]
    lost = [c.heading for a, b, c in both if b <= a]
    where = f"in {len(both) - len(lost)} of {len(both)} columns"
    if lost:
        where += f", not in {', '.join(lost)}"
    if high > low:
        return f"Holds: {name} is above {lower} in the mean ({high:.1f} against {low:.1f}), {where}."
    return f"Does not hold: {name} is not above {lower} in the mean ({high:.1f} against {low:.1f}); {where}."


def _best(means: dict[str, float | None], title: str, among: str) -> str:
    mine = means.get(title)
    if mine is None:
        return f"Not decided: {title} the best of all {among}; it has no mean."
    above = {name: number for name, number in means.items() if number is not None and number > mine}
    if not above:
        return f"Holds: {title} has the highest mean of all {among} ({mine:.1f})."
    listed = ", ".join(f"{name} {number:.1f}" for name, number in sorted(above.items(), key=lambda x: -x[1]))
    return (
        f"Does not hold: {title} the best of all {among}; it has {mine:.1f} in the mean, above it: {listed}."
    )
