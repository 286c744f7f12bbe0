"""The demo on a small grid: the whole path from the town to the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from gqe import demo
from gqe.training.presets import Options


def test_the_demo_writes_a_page_with_table_figures_and_pictures(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(demo, "GRIDS", {"AQE": "aqe:k=1/4", "DBA + AQE": "dba-aqe:k=4"})
    monkeypatch.setattr(demo, "TRAINING", Options(preset="small", k=8, steps=3))
    monkeypatch.setattr(demo, "READY", {"GQE, trained here": "{model}"})
    monkeypatch.setattr(demo, "SWEPT", {"AQE": ("aqe", (2, 8)), "GQE": ("{model}", (4,))})
    seen: list[tuple[int, int]] = []
    result = demo.run(tmp_path / "report", progress=lambda done, total, now: seen.append((done, total)))
    page = result.page.read_text()
    assert list(result.outcomes) == ["no expansion", "AQE", "DBA + AQE", "GQE, trained here"]
    # Chosen on validation, shown on test: the setting is one of the grid.
    assert result.outcomes["AQE"].method.settings["k"] in (1, 4)
    for outcome in result.outcomes.values():
        assert f"{outcome.evaluation.map['medium']:.1f}" in page
    assert page.count("<svg") == 2
    assert page.count("data:image/jpeg") == 5 * (1 + 8 + 8)
    assert seen[-1] == (9, 10)
    assert (tmp_path / "report" / "model" / "config.json").is_file()


def test_the_command_prints_where_the_report_is(tmp_path: Path, monkeypatch, capsys) -> None:
    from gqe import cli

    monkeypatch.setattr(demo, "GRIDS", {"AQE": "aqe:k=4"})
    monkeypatch.setattr(demo, "TRAINING", Options(preset="small", k=8, steps=1))
    monkeypatch.setattr(demo, "READY", {})
    monkeypatch.setattr(demo, "SWEPT", {"AQE": ("aqe", (2,))})
    monkeypatch.setattr("sys.argv", ["gqe", "demo", "-o", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    out = capsys.readouterr().out
    assert str(tmp_path / "index.html") in out
    assert "AQE" in out
