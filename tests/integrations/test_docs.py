"""The code in the documentation runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
PARTS = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
SECTIONS = {part.partition("\n")[0]: part for part in PARTS if "```python" in part}
# The module of each section that does not come with the core.
NEEDS = {
    "LangChain": "langchain_core",
    "LlamaIndex": "llama_index.core",
    "Haystack": "haystack",
    "Documents kept with an index": "pyarrow",
}


@pytest.mark.parametrize("name", SECTIONS)
def test_the_code_of_each_section_runs(name, tmp_path, monkeypatch):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason="its extra is not installed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", SECTIONS[name], re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, names)
