"""`gqe store` and searches of a store, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stores.conftest import folder, qdrant  # noqa: F401  # fixtures
from stores.engines import QUERIES, TABLE, YEARS, N, Qdrant


@pytest.fixture
def url(qdrant: Qdrant, tmp_path: Path) -> str:  # noqa: F811
    np.save(tmp_path / "queries.npy", QUERIES)
    return qdrant.create(list(range(N)), TABLE)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--html", "a.html"), "are for a search with --image"),
        (("--box", "1,2,3,4"), "are for a search with --image"),
        (("-m", "aqe-g"), "expander: aqe-g reads levels or lists, which have to be attached"),
        (("-m", "dba-aqe"), "dba: a store holds no augmented database"),
        (("-m", "aqe", "--plain"), "--plain: searches with the queries as they are; leave -m"),
        (("--dba",), "dba: a store holds no augmented database"),
        (("--recall", "0.9"), "--recall: is for a file of vectors"),
        (("--database-key", "x"), "--database-key: is for a file of vectors"),
    ],
)
def test_no_option_is_dropped_in_silence(
    gqe, url: str, tmp_path: Path, option: tuple[str, ...], message: str
) -> None:
    gqe("store", "attach", url, "--expander", "aqe-g:k=4")
    ran = gqe("search", url, tmp_path / "queries.npy", *option)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1


def test_attach_search_sync_stats(gqe, url: str, tmp_path: Path) -> None:
    queries = tmp_path / "queries.npy"
    assert json.loads(gqe("store", "stats", url, "--json").out)["attached"] is None
    ran = gqe("search", url, queries)
    assert ran.status == 2
    assert "nothing is attached yet; run gqe store attach" in ran.err
    ran = gqe("store", "attach", url, "--expander", "aqe-g:k=4", "--exact")
    assert ran.status == 0
    assert f"attached to {N} items" in ran.out
    about = json.loads(gqe("store", "stats", url, "--json").out)
    assert (about["attached"], about["stage"], about["stale"], about["levels"]) == ("aqe-g", "ready", 0, 2)
    assert about["unsynced"] is None  # Qdrant does not tell what changed
    shown = gqe("store", "stats", url).out
    assert "neighbors stored" in shown
    assert "unknown; gqe store sync finds out" in shown

    import gqe as package

    expected = package.expander("aqe-g", k=4).fit(TABLE).search(QUERIES, 5)
    found = json.loads(gqe("search", url, queries, "-k", 5, "--json").out)
    assert [row["ids"] for row in found["results"]] == expected.ids.tolist()
    other = package.expander("alpha", k=3).fit(TABLE).search(QUERIES, 5)
    found = json.loads(gqe("search", url, queries, "-k", 5, "-m", "alpha:k=3", "--exact", "--json").out)
    assert [row["ids"] for row in found["results"]] == other.ids.tolist()
    chosen = gqe("search", url, queries, "--filter", '{"year": 2003}', "--plain", "--json")
    assert {YEARS[i] for row in json.loads(chosen.out)["results"] for i in row["ids"]} == {2003}
    with package.connect(url) as items:
        items.remove([0, 1])
    synced = json.loads(gqe("store", "sync", url, "--json").out)
    assert (synced["deleted"], synced["added"], synced["items"]) == (2, 0, N - 2)
    assert "0 added, 0 changed, 0 deleted" in gqe("store", "sync", url).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["store", "attach", "URL", "-m", "dba-aqe"], "leave dba-"),
        (["store", "attach", "mysql://x/y"], "unknown kind of address"),
        (["search", "URL", "QUERIES", "--filter", "{"], "--filter: not readable as JSON"),
        (["search", "QUERIES", "URL"], "no such file"),
        (["search", "QUERIES", "QUERIES", "--filter", "{}"], "--filter: a file of vectors has no metadata"),
    ],
)
def test_mistakes_are_one_line(gqe, url: str, tmp_path: Path, arguments: list[str], message: str) -> None:
    known = {"URL": url, "QUERIES": tmp_path / "queries.npy"}
    ran = gqe(*(known.get(argument, argument) for argument in arguments))
    assert ran.status == 2
    assert message in ran.err
    assert len(ran.err.strip().splitlines()) == 1
