from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from gqe.reproduce.artefact import ResultTable, TableRow
from gqe.reproduce.writing import csv_text, latex, latex_text, table_html

TABLE = ResultTable(
    "t",
    "A <title>",
    ["ROxf & M", "Mean"],
    {
        "QE": [
            TableRow("αQE 50%", "k=3, x_1", [71.25, None], [70.0, None]),
            TableRow("GQE {ours}", "", [72.0, 3.0], [None, None]),
        ]
    },
    "same",
    ["A note."],
)


def unescaped(text: str, character: str) -> int:
    return text.replace("\\" + character, "").count(character)


def test_latex_is_balanced_and_escaped() -> None:
    text = latex_text(TABLE)
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert unescaped(body, "{") == unescaped(body, "}")
    assert body.count("\\begin{tabular}") == body.count("\\end{tabular}") == 1
    assert unescaped(body, "$") % 2 == 0
    assert unescaped(body, "%") == unescaped(body, "_") == unescaped(body, "#") == 0
    rows = [line for line in body.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert [unescaped(row, "&") for row in rows] == [2] * len(rows)
    assert r"\textbf{72.0}" in body
    assert r"$\alpha$QE 50\%" in body
    assert "{\\scriptsize 70.0}" in body


@given(st.text(alphabet="ab\\&%$#_{}~^<>α–", max_size=12))
def test_any_text_is_escaped(text: str) -> None:
    escaped = latex(text)
    assert unescaped(escaped.replace("\\textbackslash", ""), "{") == unescaped(
        escaped.replace("\\textbackslash", ""), "}"
    )
    assert unescaped(escaped, "&") == unescaped(escaped, "%") == unescaped(escaped, "_") == 0


def test_csv_reads_back() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(TABLE))))
    assert rows[0]["ROxf & M"] == "71.2500"
    assert rows[0]["ROxf & M, difference"] == "1.2500"
    assert rows[0]["settings"] == "k=3, x_1"
    assert rows[1]["Mean, paper"] == ""


def test_html_escapes_marks_the_best_and_shows_the_difference() -> None:
    html = table_html(TABLE)
    assert "A &lt;title&gt;" in html
    assert '<td class="best">72.0</td>' in html
    assert '70.0 <span class="up">+1.2</span>' in html
    assert TABLE.sections["QE"][0].differences == [1.25, None]
