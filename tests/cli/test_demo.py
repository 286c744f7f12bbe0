"""The demo on tiny data: the whole path to the page, and what it prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from PIL import Image

from gqe.reproduce import suites
from reproduce.worlds import save_models, tiny


def test_it_writes_one_page_and_says_what_comes_next(gqe, tmp_path: Path, monkeypatch) -> None:
    suite = tiny(save_models(tmp_path / "models"), large=False)
    place = suite.tests[0]
    data = replace(place.load(), picture=lambda kind, index: Image.new("RGB", (4, 4)))
    suite.tests[0] = replace(place, load=lambda: data)
    monkeypatch.setitem(suites.SUITES, "town", lambda sources: replace(suite, pictures=True))
    ran = gqe("demo", "-o", tmp_path / "report", "--device", "cpu")
    assert ran.status == 0, ran.err
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    for part in ('id="table1"', 'id="repaired"', 'id="k-sweep"', 'id="agreement-diversity"'):
        assert part in page
    assert 'id="depth"' not in page
    assert page.count("<svg") == 2
    assert "data:image/jpeg" in page
    assert "DBA + GQE" in ran.out
    assert str(tmp_path / "report" / "index.html") in ran.out
    assert "gqe serve --demo" in ran.out


def test_the_real_town_has_pictures() -> None:
    from gqe.reproduce import Sources, make_suite

    suite = make_suite("town", Sources(Path("unused")))
    picture = suite.tests[0].load().picture
    assert suite.pictures
    assert picture("database", 3).size[0] > 32
