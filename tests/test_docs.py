"""The documentation: its links lead somewhere, its navigation and references are whole, its examples run."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

import gqe
from gqe.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def text_of(page: Path) -> str:
    """A page without its blocks of code, where brackets are no links."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", title).lower()) for title in titles)
    return {re.sub(r"[ -]+", "-", title.strip()) for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (DOCS / name) if name else page
        if not target.is_file() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_in_the_navigation_once() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))

    def leaves(part: Any) -> list[str]:
        if isinstance(part, str):
            return [part]
        return [
            leaf for inner in (part.values() if isinstance(part, dict) else part) for leaf in leaves(inner)
        ]

    assert sorted(leaves(config["project"]["nav"])) == [page.name for page in PAGES]


def test_the_command_line_page_has_every_command_and_option() -> None:
    """After a change: see CONTRIBUTING.md for the command that writes the page."""
    page = html.unescape((DOCS / "cli.md").read_text(encoding="utf-8"))
    sections = dict(re.findall(r"^#+ `(gqe[^`]*)`\n(.*?)(?=^#+ `gqe|\Z)", page, re.MULTILINE | re.DOTALL))

    def check(name: str, command: Any) -> None:
        for parameter in command.params:
            for option in parameter.opts:
                assert not option.startswith("-") or option in sections[name], (name, option)
        for inner, sub in getattr(command, "commands", {}).items():
            assert f"{name} {inner}" in sections
            check(f"{name} {inner}", sub)

    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        check(f"gqe {name}", command)


def test_the_reference_has_all_that_the_package_exports() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    named = {line.rpartition(".")[2] for line in re.findall(r"^::: (\S+)$", page, re.MULTILINE)}
    assert set(gqe.__all__) - {"__version__"} <= named


def test_the_quick_start_runs_and_brings_a_gain(tmp_path, monkeypatch, capsys) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "quickstart.md").read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 3
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    before, after = (float(value) for value in re.findall(r"mAP +([\d.]+)", capsys.readouterr().out))
    assert after > before
    assert len(gqe.Index.open(tmp_path / "my-index")) == 440


@pytest.mark.slow  # some 20 s on two busy cores; links, navigation and references are checked above
def test_the_site_is_built_without_a_warning(tmp_path) -> None:
    pytest.importorskip("zensical")
    for part in ("docs", "src"):
        shutil.copytree(ROOT / part, tmp_path / part)
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    reference = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in reference for name in ("gqe.neighbors.knn", "gqe.models.Expander.search"))
