from __future__ import annotations

import json
from pathlib import Path

import pytest

from gqe.reproduce import suites
from reproduce.worlds import save_models, tiny


@pytest.fixture
def small_town(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    models = save_models(tmp_path / "models")
    monkeypatch.setitem(suites.SUITES, "town", lambda sources: tiny(models, large=False))


@pytest.mark.usefixtures("small_town")
def test_tables_as_json_and_nothing_measured_twice(gqe, tmp_path: Path) -> None:
    command = ("reproduce", "table2", "--suite", "town", "-o", tmp_path / "out", "--device", "cpu")
    ran = gqe(*command, "--json")
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)
    assert found["computed"] == 6
    rows = found["tables"]["table2"]["rows"]
    assert [row["method"] for row in rows] == ["LAttQE", "GQE, collapsed", "GQE"]
    assert rows[2]["paper"][:4] == [74.1, 51.0, 87.4, 72.4]
    again = gqe(*command)
    assert again.status == 0
    assert "0 cells computed, 6 were there" in again.out
    assert str(tmp_path / "out" / "index.html") in again.out
    assert "table2: " in again.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("table9",), "artefact: 'table9' is unknown"),
        (("all", "--suite", "city"), "--suite: 'city' is unknown"),
        (("all", "--suite", "real"), "--data: give the folder"),
        (("all", "--suite", "paper", "--data", "{folder}"), "gqe data get roxford5k"),
        (("all", "--suite", "synthetic"), "--dry-run: give the number"),
        (("table1", "--graph-recall", "2"), "--graph-recall: expected a number above 0"),
        (("repaired",), "'repaired' needs pictures"),
        (("table1", "--device", "abacus", "--dry-run", "5", "--dim", "4"), "device"),
    ],
)
@pytest.mark.usefixtures("small_town")
def test_mistakes_are_one_line(gqe, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    given = [argument.format(folder=tmp_path) for argument in arguments]
    ran = gqe("reproduce", *given, "-o", tmp_path / "out")
    assert ran.status == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.usefixtures("small_town")
def test_a_file_in_the_place_of_the_folder(gqe, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = gqe("reproduce", "table2", "-o", tmp_path / "file")
    assert ran.status == 2
    assert "file" in ran.err
