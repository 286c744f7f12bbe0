"""Agreement and Diversity: to whom the expansions of Table 1 listen."""

from __future__ import annotations

from gqe.reproduce.artefact import Artefact
from gqe.reproduce.measuring import Measurer, Unmeasured
from gqe.reproduce.rows import UNIVERSAL, Row, choose
from gqe.reproduce.tables import Line, Table
from gqe.reproduce.writing.figures import agreement_and_diversity

ROWS = [
    *(Row(name, grid=name) for name in ("AQE", "AQEwD", "αQE", "AQE-G", "αQE-G")),
    Row("LAttQE", model="lattqe"),
    Row("GQE", model="gqe"),
    Row("universal", model=UNIVERSAL),
]


def rows(measurer: Measurer) -> int:
    """How many points will be measured."""
    return len(ROWS)


def make(measurer: Measurer) -> Artefact:
    """Measure and draw it on the first benchmark."""
    place = measurer.suite.small(measurer.suite.main_space)[0]
    points: dict[str, tuple[float, float]] = {}
    lines, notes = [], []
    for row in ROWS:
        measurer.start_row(row.title)
        try:
            choice = choose(measurer, row, place)
            if choice is None:
                continue
            cell = measurer.measure(place, choice.method, quality=True)
        except Unmeasured as reason:
            notes.append(f"{row.title}: {reason}.")
            continue
        if cell.agreement is not None and cell.diversity is not None:
            points[row.title] = (cell.agreement, cell.diversity)
            values: list[float | None] = [100 * cell.agreement, cell.diversity, cell.main]
            lines.append(Line(row.title, choice.settings, values, [None] * 3))
    heads = ["Agreement (%)", "Diversity (nats)", "mAP"]
    return Artefact(
        "agreement-diversity",
        "To whom they listen",
        f"On {place.title}: Agreement is the share of an expansion's weight that lies on relevant items,"
        " Diversity the entropy of that part. Settings are those of Table 1.",
        [Table("agreement-diversity", "Agreement and Diversity", heads, {"QE": lines}, notes=notes)],
        [agreement_and_diversity("agreement-diversity", points)],
        _findings(points),
    )


def _findings(points: dict[str, tuple[float, float]]) -> list[str]:
    if "GQE" not in points or "LAttQE" not in points:
        return ["Not decided: GQE and LAttQE are not both here."]
    sentences = []
    for place, name in enumerate(("Agreement", "Diversity")):
        order = sorted(points, key=lambda row: -points[row][place])
        sentences.append(f"{name}, highest first: {', '.join(order)}.")
    more = points["GQE"][1] > points["LAttQE"][1]
    verdict = "Holds" if more else "Does not hold"
    return [f"{verdict}: GQE spreads its weight more widely than LAttQE.", *sentences]
