"""Tables as CSV and LaTeX."""

from __future__ import annotations

import csv
import io

from gqe.reproduce.tables import Line, Table, shown

_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{c: "\\" + c for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "α": r"$\alpha$",
    "–": "--",
}


def csv_text(table: Table) -> str:
    """One line a row: section, method, settings, the numbers, then the paper's and the differences."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["section", "method", "settings", *table.columns]
    if table.beside:
        head += [f"{column}, paper" for column in table.columns]
    if table.beside == "same":
        head += [f"{column}, difference" for column in table.columns]
    writer.writerow(head)
    for section, lines in table.sections.items():
        for line in lines:
            row = [section, line.title, line.settings, *(_full(v) for v in line.values)]
            if table.beside:
                row += [_full(p) for p in line.paper]
            if table.beside == "same":
                row += [_full(d) for d in differences(line)]
            writer.writerow(row)
    return text.getvalue()


def latex_text(table: Table) -> str:
    """A tabular of the booktabs package; the paper's numbers stand below ours in small type."""
    count = len(table.columns) + 1
    lines = [
        f"% {table.name}: needs \\usepackage{{booktabs}}",
        f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        "\\toprule",
        " & ".join(["", *(latex(column) for column in table.columns)]) + r" \\",
    ]
    for section, rows in table.sections.items():
        lines += ["\\midrule", f"\\multicolumn{{{count}}}{{c}}{{{latex(section)}}} \\\\", "\\midrule"]
        best = bests(rows)
        for row in rows:
            cells = [
                f"\\textbf{{{shown(v)}}}" if v is not None and v == b else shown(v)
                for v, b in zip(row.values, best, strict=True)
            ]
            lines.append(" & ".join([latex(row.title), *cells]) + r" \\")
            if table.beside and any(number is not None for number in row.paper):
                small = [f"{{\\scriptsize {shown(number)}}}" for number in row.paper]
                lines.append(" & ".join([r"{\scriptsize \quad printed in the paper}", *small]) + r" \\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    lines += [f"% {note}" for note in table.notes]
    return "\n".join(lines) + "\n"


def latex(text: str) -> str:
    r"""Text with everything escaped that means something to LaTeX.

    Example:
        >>> latex("αQE & 50%")
        '$\\alpha$QE \\& 50\\%'
    """
    return "".join(_SPECIAL.get(character, character) for character in text)


def bests(lines: list[Line]) -> list[float | None]:
    """The highest number of each column."""
    width = len(lines[0].values) if lines else 0
    columns = ([line.values[i] for line in lines] for i in range(width))
    return [max((v for v in column if v is not None), default=None) for column in columns]


def differences(line: Line) -> list[float | None]:
    """Ours less the paper's."""
    pairs = zip(line.values, line.paper, strict=True)
    return [None if ours is None or theirs is None else ours - theirs for ours, theirs in pairs]


def _full(number: float | None) -> str:
    return "" if number is None else f"{number:.4f}"
