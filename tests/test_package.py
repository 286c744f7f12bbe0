"""The wheel and the source archive: built, small, complete, and working in an environment of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import gqe

pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[1]
MOST_BYTES = 15_000_000


def run(*command: object, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def build(source: Path, target: Path, kind: str) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", target, cwd=source)
    (built,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


def empty_environment(folder: Path, wheel: Path, *options: str) -> Path:
    """A new environment with the wheel in it: its folder of programs."""
    venv.create(folder, with_pip=False, symlinks=True)
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet"]
    run(*pip, *options, wheel, cwd=folder)
    return programs


def test_the_wheel_is_small_and_has_what_is_read_at_run_time(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST_BYTES
    assert f"-{gqe.__version__}-" in wheel.name
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src"
    kept = [
        path for path in (package / "gqe").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert {path.relative_to(package).as_posix() for path in kept} <= names
    assert not any(name.startswith(("tests/", "scripts/")) for name in names)


def test_the_source_archive_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build(ROOT, tmp_path / "sdist", "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("gqe-*")
    again = build(unpacked, tmp_path / "again", "wheel")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert {i.filename: i.CRC for i in first.infolist()} == {i.filename: i.CRC for i in second.infolist()}


def test_it_works_from_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """What it depends on is borrowed from the environment of this test: installing it takes minutes."""
    programs = empty_environment(tmp_path / "env", wheel, "--no-deps", "--no-index")
    python = programs / "python"
    home = run(python, "-c", "import gqe; print(gqe.__file__)", cwd=tmp_path).strip()
    assert Path(home).is_relative_to(tmp_path)
    (Path(home).parents[1] / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    found = json.loads(run(programs / "gqe", "doctor", "--json", cwd=tmp_path))
    assert found["versions"]["gqe"] == gqe.__version__
    assert {"serve", "extract", "files"} <= {extra["name"] for extra in found["extras"]}


@pytest.mark.slow
def test_it_works_with_nothing_but_what_it_depends_on(wheel: Path, tmp_path: Path) -> None:
    """Needs a package index, and installs torch."""
    programs = empty_environment(tmp_path / "env", wheel)
    printed = run(programs / "gqe", "evaluate", "town", "--methods", "none,universal", "--json", cwd=tmp_path)
    none, universal = (result["map"]["medium"] for result in json.loads(printed)["results"])
    assert universal > none + 10
    extras = json.loads(run(programs / "gqe", "doctor", "--json", cwd=tmp_path))["extras"]
    assert "pip install 'gqe[serve]'" in [extra["command"] for extra in extras]


def test_the_citation_names_the_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", text, re.MULTILINE)[1] == gqe.__version__  # type: ignore[index]
