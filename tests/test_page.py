from __future__ import annotations

import base64
import doctest
import io
from pathlib import Path

from PIL import Image

from gqe import page


def test_the_example_runs() -> None:
    outcome = doctest.testmod(page)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_titles_are_escaped_and_nothing_is_loaded(tmp_path: Path) -> None:
    page.write_page(tmp_path / "p.html", "A & <B>", "p { color: red }", "<p>text</p>")
    written = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "<title>A &amp; &lt;B&gt;</title>" in written
    assert "<main><p>text</p></main>" in written
    assert "src=" not in written


def test_a_name_that_is_no_unicode_can_be_written() -> None:
    assert page.text("a\udcff\"'<") == "a\\udcff&quot;&#x27;&lt;"


def test_a_picture_holds_its_pixels() -> None:
    tag = page.picture(Image.new("RGB", (5, 3), (200, 0, 0)), 'say "x"', kind="relevant")
    assert 'class="relevant"' in tag
    assert 'alt="say &quot;x&quot;"' in tag
    data = tag.split("base64,")[1].split('"')[0]
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert image.size == (5, 3)
    assert abs(image.getpixel((2, 1))[0] - 200) < 10
