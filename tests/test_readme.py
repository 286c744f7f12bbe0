"""What the README and the documentation show must run."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs_and_prints_a_gain(capsys) -> None:
    found = re.search(r"## Five lines\n\n```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    exec(found.group(1), {})
    before, after = capsys.readouterr().out.split("after:")
    medium = [float(re.search(r"mAP +[\d.]+ +([\d.]+)", text)[1]) for text in (before, after)]
    assert medium[1] > medium[0] + 10


def test_training_in_python_runs(capsys, tmp_path, monkeypatch) -> None:
    text = (README.parent / "docs" / "training.md").read_text(encoding="utf-8")
    section = text.split("## Training in Python\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 3
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert "mAP" in capsys.readouterr().out
    assert (tmp_path / "mine" / "model.safetensors").is_file()


def test_it_names_only_files_that_are_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []
