"""Look at the report and the served page in a browser: screenshots, accessibility, nothing cut off.

    python scripts/check_pages.py --axe node_modules/axe-core/axe.min.js --report report --output /tmp/pages

It serves the town (pictures), paragraphs of the documentation (text) and bare vectors, opens each page at
390, 768 and 1280 pixels in light and dark, and fails if axe-core finds anything serious or critical, if a
page is wider than the screen, or if a script fails. Needs, beside `gqe[serve]` and never as dependencies of
the package: `pip install playwright`, Chromium (Debian: `apt install chromium`), `npm install axe-core`.
`--picture FILE` writes the screenshot of docs/serve.md.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from gqe.index import Index
from gqe.server import create_app
from gqe.server.opening import open_demo
from gqe.server.runner import bind_socket, create_server

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
WIDTHS = (390, 768, 1280)
DOCS = Path(__file__).parents[1] / "docs"
DIM = 512


def embed(text: str) -> np.ndarray[Any, Any]:
    """A text as a bag of hashed words (512,): enough to see the page with texts."""
    vector = np.zeros(DIM, np.float32)
    for word in re.findall(r"[a-z]{3,}", text.lower()):
        vector[zlib.crc32(word.encode()) % DIM] += 1
    vector = np.log1p(vector) + 1e-6
    return vector / np.linalg.norm(vector)


def sentences() -> dict[str, list[Any]]:
    """Paragraphs of the documentation: title, text and words."""
    found: dict[str, list[Any]] = {"title": [], "text": [], "words": []}
    for path in sorted(DOCS.glob("*.md")):
        title = path.stem
        plain = re.sub(r"(?s)^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", plain).replace("`", "")
        for block in plain.split("\n\n"):
            if block.startswith("#"):
                title = block.splitlines()[0].lstrip("# ")
            elif block[:1].isalpha() and len(block) > 80:
                found["title"].append(title)
                found["text"].append(" ".join(block.split()))
                found["words"].append(len(block.split()))
    return found


@contextmanager
def serving(engine: Any, **parts: Any) -> Iterator[str]:
    """The service on a free port."""
    bound = bind_socket("127.0.0.1", 0)
    server = create_server(create_app(engine, **parts))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(20)


class Checker:
    """Opens pages, takes screenshots and collects what is wrong."""

    def __init__(self, browser: Any, axe: str | None, output: Path) -> None:
        self.browser, self.axe, self.output = browser, axe, output
        self.wrong: list[str] = []

    def look(
        self, name: str, url: str, wait: str | None = None, act: Callable[[Any], None] | None = None
    ) -> None:
        """Open a page at every width and in both colour schemes."""
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                self._look(f"{name}-{width}-{scheme}", url, width, scheme, wait, act)

    def _look(
        self,
        name: str,
        url: str,
        width: int,
        scheme: str,
        wait: str | None,
        act: Callable[[Any], None] | None,
    ) -> None:
        context = self.browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
        )
        page = context.new_page()
        page.on("pageerror", lambda error: self.wrong.append(f"{name}: {error}"))
        page.goto(url)
        if act is not None:
            act(page)
        if wait is not None:
            page.locator(wait).first.wait_for()
        page.wait_for_load_state("networkidle")
        page.screenshot(path=self.output / f"{name}.png", full_page=True)
        if page.evaluate("document.documentElement.scrollWidth") > width:
            self.wrong.append(f"{name}: wider than the screen")
        if self.axe is not None:
            page.add_script_tag(content=self.axe)
            found = page.evaluate("axe.run().then(({violations}) => violations)")
            for violation in found:
                where = violation["nodes"][0]["html"][:150]
                line = f"{name}: axe {violation['impact']}: {violation['id']}, {where}"
                print(line)
                if violation["impact"] in ("serious", "critical"):
                    self.wrong.append(line)
        context.close()


def main(arguments: Sequence[str]) -> int:
    """Check all pages; 0 if nothing is wrong."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--axe", type=Path, help="axe.min.js of axe-core; without it nothing is checked for access"
    )
    parser.add_argument("--report", type=Path, help="folder of a report of gqe demo")
    parser.add_argument("--output", type=Path, default=Path("pages"), help="folder for screenshots")
    parser.add_argument("--picture", type=Path, help="write the screenshot of the documentation")
    parser.add_argument("--browser", default="/usr/bin/chromium")
    given = parser.parse_args(arguments)
    given.output.mkdir(parents=True, exist_ok=True)
    axe = None if given.axe is None else given.axe.read_text(encoding="utf-8")
    with sync_playwright() as started, TemporaryDirectory() as folder:
        browser = started.chromium.launch(executable_path=given.browser, args=FLAGS)
        checker = Checker(browser, axe, given.output)
        if given.report is not None:
            checker.look("report", (given.report / "index.html").resolve().as_uri())
        town = open_demo(device="cpu")
        assert town.examples is not None
        with serving(
            town.engine,
            pictures=town.pictures,
            examples=town.examples,
            describe=town.describe,
            labels=town.labels,
        ) as url:
            query = f"{url}?id={town.examples[3]}"
            checker.look("town-start", url, "#examples img")
            checker.look("town", query, "#after .card")
            checker.look("town-off", f"{query}&method=none", "#after .card")
            if given.picture is not None:
                page = browser.new_page(viewport={"width": 1280, "height": 860})
                page.goto(query)
                page.locator("#after .card img").first.wait_for()
                page.wait_for_load_state("networkidle")
                page.screenshot(path=given.picture)
        texts = sentences()
        table = np.stack([embed(text) for text in texts["text"]])
        index = Index.build(table, "universal", Path(folder) / "texts", metadata=texts, device="cpu")
        with serving(index, embed=embed) as url:
            checker.look("texts-start", url, "#examples button")
            checker.look("texts", f"{url}?text=vectors+of+a+database+on+disk", "#after .card")
        bare = Index.build(table[:200], "aqe-g", Path(folder) / "bare", device="cpu")
        with serving(bare) as url:
            checker.look("vectors-start", url, "#examples button")
            checker.look("vectors", f"{url}?id=5", "#after .card")
            checker.look("missing", f"{url}?id=100000", "#error")
        browser.close()
    print("\n".join(dict.fromkeys(checker.wrong)) or "nothing is wrong")
    return 1 if checker.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
