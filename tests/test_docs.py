"""The documentation: its links lead somewhere, its navigation and references are whole, its examples run."""

from __future__ import annotations

import html
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import typer

import gqe
from gqe.cli import app
from gqe.cli import main as cli_main

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


# What a page takes for granted: files and names that its code reads.
WORLD = """
import numpy as np
import gqe
rng = np.random.default_rng(0)
centres = rng.normal(size=(6, 16))
database = vectors = centres[np.arange(60) % 6] + 0.8 * rng.normal(size=(60, 16))
queries = centres + 0.8 * rng.normal(size=(6, 16))
query = queries[0]
names, years = [f"item {i}" for i in range(60)], 2020 + np.arange(60) % 6
np.save("base.npy", vectors.astype("float32"))
np.save("queries.npy", queries.astype("float32"))
np.save("more.npy", queries.astype("float32"))
"""
SETUPS = {
    "evaluation.md": """
scores_or_ranking, ground_truth = queries @ vectors.T, (np.arange(6), np.arange(60) % 6)
""",
    "index-on-disk.md": """
name, old_names, names_of_better = names[0], names[:2], names[2:5]
more, more_names, more_years = queries, [f"new {i}" for i in range(6)], [2024] * 6
better, better_years = vectors[2:5] + 0.1, [2025] * 3
""",
    "reranking.md": "index = gqe.Index.build(vectors, 'universal', 'some-index')",
    "stores.md": """
from qdrant_client import QdrantClient, models
server = QdrantClient(":memory:")
size = models.VectorParams(size=16, distance=models.Distance.COSINE)
for name in ("pictures", "items"):
    server.create_collection(name, size)
    server.upload_collection(name, vectors, [{"year": int(year)} for year in years], ids=range(60))
connect = gqe.connect
gqe.connect = lambda *place, **options: connect(server, "pictures")
own_id, changed_ids, new_ids, old_ids, vectors, years = 3, [1, 2], [100, 101], [5], vectors[:2], [2024, 2025]
""",
}
FILES = {
    "evaluation.md": """
import json, pickle
from pathlib import Path
from gqe.formats import write_vectors
labels = {"query_labels": np.arange(6), "database_labels": np.arange(60) % 6}
np.savez("benchmark.npz", queries=queries, database=database, **labels)
write_vectors("D.fvecs", database), np.save("D.npy", database), np.save("Q.npy", queries)
truth = [{"easy": list(range(i, 30, 6)), "hard": list(range(i + 30, 60, 6)), "junk": []} for i in range(6)]
Path("gnd_roxford5k.pkl").write_bytes(pickle.dumps({"gnd": truth}))
beir = Path("beir/scifact")
(beir / "qrels").mkdir(parents=True)
(beir / "corpus.jsonl").write_text("".join(json.dumps({"_id": f"d{i}"}) + "\\n" for i in range(60)))
(beir / "queries.jsonl").write_text("".join(json.dumps({"_id": f"q{i}"}) + "\\n" for i in range(6)))
judged = "".join(f"q{i % 6}\\td{i}\\t1\\n" for i in range(60))
(beir / "qrels/test.tsv").write_text("query-id\\tcorpus-id\\tscore\\n" + judged)
Path("test.qrels").write_text("".join(f"q{i % 6} 0 d{i} 1\\n" for i in range(60)))
Path("docs.txt").write_text("".join(f"d{i}\\n" for i in range(60)))
Path("queries.txt").write_text("".join(f"q{i}\\n" for i in range(6)))
Path("bm25.run").write_text("".join(f"q{i % 6} Q0 d{i} {1 + i // 6} {60 - i} bm25\\n" for i in range(60)))
gqe.Index.build(vectors, "universal", "my-index", ids=[f"d{i}" for i in range(60)])
""",
    "index-on-disk.md": """
from pyarrow import parquet, table
np.savetxt("gone.txt", [0], "%d")
parquet.write_table(table({"year": years}), "base.parquet")
parquet.write_table(table({"year": years[:6]}), "more.parquet")
""",
    "reranking.md": """
labels = {"query_labels": np.arange(6), "database_labels": np.arange(60) % 6}
np.savez("val.npz", queries=queries, database=database, **labels)
gqe.Index.build(vectors, "universal", "my-index")
""",
}
NEEDS = {"integrations.md": "langchain_core", "stores.md": "qdrant_client"}
SERVERS = ("psycopg.connect", "langchain_core", "llama_index", "haystack")  # of a recipe, or of tests/stores
NOT_RUN = {
    "cluster.md": "needs Ray: tests/cluster",
    "pictures.md": "a recipe: tests/scripts/test_play_recipes.py",
    "quickstart.md": "a recipe: tests/scripts/test_play_recipes.py",
    "recipes.md": "tests/scripts/test_play_recipes.py",
    "reproduce.md": "trains models: tests/reproduce",
    "sharded-serving.md": "needs Ray: tests/cluster",
    "training.md": "tests/test_readme.py",
}


def code_of(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.mark.parametrize(
    "page", [page for page in PAGES if code_of(page, "python")], ids=lambda page: page.name
)
def test_the_python_of_each_page_runs(page: Path, tmp_path, monkeypatch) -> None:
    if page.name in NOT_RUN:
        pytest.skip(NOT_RUN[page.name])
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gqe, "connect", gqe.connect)  # back again after the page of stores
    names: dict[str, Any] = {"__name__": "__main__"}
    for code in (WORLD, SETUPS.get(page.name, ""), *code_of(page, "python")):
        if not any(server in code for server in SERVERS):
            exec(code, names)


def lines_of_shell() -> list[tuple[str, list[str]]]:
    """The page and the arguments of every line that calls the command."""
    found = []
    for page in [*PAGES, ROOT / "README.md"]:
        for code in code_of(page, "sh"):
            lines = (shlex.split(line, comments=True) for line in code.replace("\\\n", " ").splitlines())
            found += [(page.name, line[1:]) for line in lines if line[:1] == ["gqe"]]
    return found


def test_every_command_of_the_docs_is_one() -> None:
    """Its name, its options and their values; what it does is not run here."""
    lines = lines_of_shell()
    assert len(lines) > 90
    for page, arguments in lines:
        command: Any = typer.main.get_command(app)
        words = arguments[: arguments.index("&")] if "&" in arguments else arguments
        while isinstance(command, click.Group):
            _, command, words = command.resolve_command(click.Context(command), words)
        try:
            command.make_context("gqe", list(words)).close()
        except click.exceptions.Exit:  # --help
            pass
        except click.UsageError as wrong:
            raise AssertionError(f"{page}: gqe {' '.join(arguments)}: {wrong.format_message()}") from None


def test_the_options_of_scripts_in_the_docs_exist() -> None:
    called = 0
    for page in PAGES:
        for line in "".join(code_of(page, "sh")).replace("\\\n", " ").splitlines():
            found = re.search(r"python (\w+/\w+\.py)(.*)", line)
            if found:
                source = (ROOT / found[1]).read_text(encoding="utf-8").replace("_", "-")
                known = set(
                    re.findall(r'"(?:--)?([a-z-]+)"', source)
                )  # with hyphens, or made of names of settings
                missing = set(re.findall(r" --([a-z-]+)", found[2])) - known
                assert missing == set(), (page.name, found[1])
                called += 1
    assert called > 5


def test_extras_are_installed_in_one_way() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    places = [*PAGES, ROOT / "README.md", *(ROOT / "src").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    said = [
        (place.name, words)
        for place in places
        for words in re.findall(r"pip install ([^`\n ]*\[[^`\n]*?\]'?)", place.read_text("utf-8"))
    ]
    assert len(said) > 20
    for name, words in said:
        form = re.fullmatch(r"'gqe\[([a-z0-9,]+)\]'", words)
        assert form or "{" in words, (name, words)
        assert form is None or set(form[1].split(",")) <= {*known, "name"}, (name, words)


@pytest.mark.parametrize("page", FILES)
def test_the_commands_of_a_page_run(page: str, tmp_path, monkeypatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    exec(WORLD + FILES[page], {})
    for name, arguments in lines_of_shell():
        if name == page:
            monkeypatch.setattr("sys.argv", ["gqe", *arguments])
            with pytest.raises(SystemExit) as ended:
                cli_main()
            assert not ended.value.code, arguments


def test_the_site_is_built_without_a_warning(tmp_path) -> None:
    pytest.importorskip("zensical")
    for part in ("docs", "src"):
        shutil.copytree(ROOT / part, tmp_path / part)
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    reference = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    assert all(
        f'id="{name}"' in reference
        for name in ("gqe.neighbors.knn", "gqe.models.Expander.search", "gqe.index.Index.expand")
    )
