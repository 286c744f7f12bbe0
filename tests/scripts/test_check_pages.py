"""Pages are looked at where there is a browser; what they show is made of the documentation anywhere."""

from __future__ import annotations

from pathlib import Path

import check_pages
import numpy as np
import pytest

CHROMIUM = Path("/usr/bin/chromium")


def test_paragraphs_are_plain_and_like_words_are_near() -> None:
    found = check_pages.sentences()
    assert len(found["text"]) == len(found["title"]) > 100
    assert not any("](" in text or "```" in text for text in found["text"])
    one, same, other = map(check_pages.embed, ("neighbour graph", "graph neighbour", "bread and butter"))
    np.testing.assert_allclose(one @ same, 1, atol=1e-5)
    assert one @ other < 0.5


@pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no /usr/bin/chromium")
def test_a_page_that_is_too_wide_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    monkeypatch.setattr(check_pages, "WIDTHS", (390,))
    (tmp_path / "narrow.html").write_text("<p>text</p>")
    (tmp_path / "wide.html").write_text("<p style='width: 500px'>text</p><script>missing()</script>")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(CHROMIUM), args=check_pages.FLAGS)
        checker = check_pages.Checker(browser, None, tmp_path)
        checker.look("narrow", (tmp_path / "narrow.html").as_uri())
        assert checker.wrong == []
        checker.look("wide", (tmp_path / "wide.html").as_uri())
        browser.close()
    assert "wide-390-light: wider than the screen" in checker.wrong
    assert any("missing is not defined" in line for line in checker.wrong)
    assert (tmp_path / "wide-390-dark.png").is_file()
