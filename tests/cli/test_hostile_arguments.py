"""Whatever is typed: one line on stderr and status 2, no traceback, nothing half written."""

from __future__ import annotations

from pathlib import Path

import pytest

NUMBERS = ("-1", "nan", "1e400", "²", "999999999999999999999", "9" * 5000, "")
UNREADABLE = ("", "folder", "/dev/null", "a" * 5000 + ".npy", "absent.npy", "text.npy")
UNWRITABLE = UNREADABLE[:4]


@pytest.fixture
def place(files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (files / "folder").mkdir()
    (files / "empty.npy").touch()
    (files / "text.npy").write_text("hello")
    monkeypatch.chdir(files)
    return files


def assert_one_line(ran) -> None:
    assert ran.status == 2
    assert "Traceback" not in ran.err
    assert len(ran.err.splitlines()) == 1
    assert ran.err.startswith("gqe: ")
    assert len(ran.err) < 6000


def test_a_command_line_that_cannot_be_read(gqe) -> None:
    for arguments, said in (
        (("search", "--nope", "x"), "see gqe search --help"),
        (("search", "a.npy", "b.npy", "-k", "x"), "see gqe search --help"),
        (("index", "build"), "VECTORS'; see gqe index build --help"),
        (("nothing\n\x1b[31m",), r"\x1b[31m'; see gqe --help"),
    ):
        ran = gqe(*arguments)
        assert_one_line(ran)
        assert said in ran.err
    assert "Usage" in gqe("index").out  # without a command, its help


def test_numbers_of_methods(gqe, place: Path) -> None:
    for number in NUMBERS:
        assert_one_line(gqe("search", "database.npy", "queries.npy", "-m", f"aqe:rounds={number}"))


@pytest.mark.parametrize("option", ["--learning-rate", "--k", "--levels", "--steps", "--seed"])
def test_numbers_of_training(gqe, place: Path, option: str) -> None:
    import numpy as np

    np.savez(place / "train.npz", embeddings=np.load("database.npy"), labels=np.repeat(np.arange(5), 8))
    for number in (*NUMBERS, "100000000"):
        if option in ("--seed", "--learning-rate") and number.startswith(("99999", "1000")):
            continue  # a seed like any other; a rate under which training says that the loss is not finite
        ran = gqe("train", "train.npz", "-o", "model", "--preset", "small", "--steps", "1", option, number)
        assert_one_line(ran)
        assert not (place / "model" / "config.json").exists()


def test_more_results_than_anyone_has_are_refused(gqe, place: Path) -> None:
    ran = gqe("search", "database.npy", "queries.npy", "-k", "1000000000")
    assert_one_line(ran)
    assert "k: at most 1,000,000 results" in ran.err


@pytest.mark.parametrize("name", UNREADABLE)
def test_files_that_cannot_be_read(gqe, place: Path, name: str) -> None:
    before = sorted(place.iterdir())
    for arguments in (
        ("search", name, "queries.npy"),
        ("search", "database.npy", name),
        ("expand", name, "queries.npy"),
        ("explain", name, "queries.npy"),
        ("evaluate", name),
        ("evaluate", "--database", "database.npy", "--queries", "queries.npy", "--ground-truth", name),
        ("train", name, "-o", "model"),
        ("tune", "aqe", "--val", name),
        ("extract", name or "absent", "-o", "vectors.npy"),
        ("whiten", name, "-o", "white.npz"),
        ("data", "describe", name),
        ("data", "convert", name, "out.npy"),
    ):
        assert_one_line(gqe(*arguments))
    assert sorted(place.iterdir()) == before


@pytest.mark.parametrize("name", UNWRITABLE)
def test_files_that_cannot_be_written(gqe, place: Path, name: str) -> None:
    before = sorted(place.iterdir())
    for arguments in (
        ("expand", "database.npy", "queries.npy", "-o", name),
        ("evaluate", "labels.npz", "--methods", "none", "--csv", name),
        ("whiten", "database.npy", "-o", name),
        ("extract", "folder", "-o", name),
        ("data", "convert", "database.npy", name),
        ("data", "make", "town", "-o", name),
        ("plan", "--items", "1k", "--dim", "8", "--nodes", "1xH100", "--json", name),
    ):
        assert_one_line(gqe(*arguments))
    assert sorted(place.iterdir()) == before


def test_folders_that_cannot_be_made(gqe, place: Path) -> None:
    for command in (("train", "labels.npz"), ("reproduce", "table1"), ("demo",)):
        assert_one_line(gqe(*command, "-o", "text.npy/model"))
    assert_one_line(gqe("expand", "database.npy", "queries.npy", "-o", "absent/out.npy"))


def test_a_filter_that_is_nested_without_end(gqe, place: Path) -> None:
    ran = gqe("search", "qdrant://127.0.0.1:1/x", "queries.npy", "--filter", "[" * 100_000)
    assert_one_line(ran)
    assert "--filter: not readable as JSON" in ran.err


def test_places_without_an_item_take_no_memory(gqe, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gqe.index import Index
    from gqe.models import Expander
    from gqe.stores.connection import Connection

    gqe("index", "build", "database.npy", "index", "-m", "aqe")
    asked = []
    for kind in (Index, Expander, Connection):

        def search(self, queries, k, *, real=kind.search, **settings):
            asked.append(k)
            return real(self, queries, k, **settings)

        monkeypatch.setattr(kind, "search", search)
    for database in ("database.npy", "index", "index:index"):
        assert gqe("search", database, "queries.npy", "-k", "1000000").status == 0
        assert max(asked) == 40
        asked.clear()
        ran = gqe("search", database, "queries.npy", "-k", "1000000000")
        assert_one_line(ran)
        assert "k: " in ran.err
        asked.clear()
