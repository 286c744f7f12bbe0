"""Changed files end in an answer or in one line: no crash, no hang, no flood of memory, no traceback."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from formats.mutations import MAKERS, mutated, outcomes

# Their libraries take seconds to load; the others are read in one process.
SLOW_TO_LOAD = {name for name, (reader, _) in MAKERS.items() if reader in ("network", "whitening", "model")}
UNREADABLE = {"four.mat", "config.json"}
"""Refused even when whole: level 4 is not read, and a configuration needs its weights."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory and time by Linux")


def changed_files(folder: Path, name: str, count: int) -> list[tuple[str, Path]]:
    """The whole file first, then changed ones."""
    reader, make = MAKERS[name]
    whole = folder / "whole" / name
    whole.parent.mkdir(parents=True)
    make(whole)
    files, content, chance = [(reader, whole)], whole.read_bytes(), random.Random(name)
    for number in range(count):
        path = folder / str(number) / name
        path.parent.mkdir()
        path.write_bytes(mutated(content, chance))
        if reader == "network":
            path.with_suffix(".toml").write_text("size = 8\n")
        files.append((reader, path))
    return files


def check(folder: Path, names: list[str], count: int) -> None:
    files = [file for name in names for file in changed_files(folder / name, name, count)]
    found = outcomes(files)
    whole = {path.name: outcome for path, outcome in found.items() if path.parent.name == "whole"}
    assert {name for name, outcome in whole.items() if outcome != "read"} <= UNREADABLE
    assert {path: outcome for path, outcome in found.items() if outcome not in ("read", "refused")} == {}
    assert len(found) == len(files)


def test_some_changed_files(tmp_path: Path) -> None:
    check(tmp_path, [name for name in MAKERS if name not in SLOW_TO_LOAD], 15)


@pytest.mark.slow  # two thousand changes of each of the 36 kinds take minutes
@pytest.mark.parametrize("name", MAKERS)
def test_many_changed_files(tmp_path: Path, name: str) -> None:
    check(tmp_path, [name], 2000)
