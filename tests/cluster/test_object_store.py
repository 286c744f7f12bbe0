"""Shards in a store of objects whose server fails, is slow, or keeps only a part: what is served is whole."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster import worlds
from cluster.s3 import BUCKET, KEYS, Proxy, put, s3
from gqe.cluster.building import build_index
from gqe.cluster.serving import ShardedServing
from gqe.cluster.session import connect
from gqe.cluster.storage import Storage, fetch_index, open_storage
from gqe.errors import InputError
from gqe.formats.sources import open_source
from gqe.index import Index
from gqe.index.files import record_of, write_array
from gqe.index.manifest import BUILDING, MANIFEST
from gqe.index.plan import make_plan
from gqe.index.shards import even_bounds
from index.in_shards import run_alone
from index.worlds import stacks

pytestmark = pytest.mark.skipif(
    not (find_spec("moto") and find_spec("s3fs")), reason="moto and s3fs are not installed"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with s3() as proxy:
        file = tmp_path_factory.mktemp("given") / "vectors.npy"
        np.save(file, worlds.table())
        put(proxy.port, f"/{BUCKET}/vectors.npy", file.read_bytes())
        yield proxy


@pytest.fixture
def proxy(server: Proxy) -> Iterator[Proxy]:
    """Without faults at first."""
    server.met.clear()
    yield server
    server.fault = lambda method, path: None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return worlds.build_whole(tmp_path_factory.mktemp("whole") / "index")


def build_alone(place: str, progress: Any = None) -> Any:
    source = open_source("s3://bucket/vectors.npy")
    plan = make_plan(source, stacks()["affinity"], None, None, "float32", True, None, "auto", "cpu", 0)
    return run_alone(plan, open_storage(place, "job"), even_bounds(worlds.N, 3), progress)


def objects(folder: str) -> list[str]:
    return open_storage(f"s3://{BUCKET}/{folder}").names()


def test_build_stop_go_on_fetch_and_serve_through_faults(proxy: Proxy, whole: Index, tmp_path: Path) -> None:
    """Of the requests some are answered 500, some slowly, and some connections end in the middle."""
    turns = {method: itertools.count() for method in ("GET", "PUT", "HEAD", "DELETE")}
    kinds = {"GET": {1: "error", 3: "slow", 5: "cut"}, "PUT": {2: "error", 4: "cut", 6: "half"}}

    struck: set[tuple[str, str]] = set()

    def fault(method: str, path: str) -> str | None:
        if (method, path) in struck:  # a request that is tried again goes through
            struck.discard((method, path))
            return None
        kind = kinds.get(method, {7: "error"}).get(next(turns[method]) % 11)
        if kind not in (None, "slow"):
            struck.add((method, path))
        return kind

    class Stop(Exception):
        pass

    def stop(done: int, total: int, what: str) -> None:
        if (what, done) == ("level-1", 2):
            raise Stop

    proxy.fault = fault
    given, made = f"s3://{BUCKET}/vectors.npy", f"s3://{BUCKET}/index"
    how: dict[str, Any] = {"dba": True, "shards": 3}
    with connect("local", workers=2):
        with pytest.raises(Stop):
            build_index(given, stacks()["affinity"], made, progress=stop, **how)
        assert MANIFEST not in objects("index")
        taken = build_index(given, stacks()["affinity"], made, **how)
        assert taken["files_taken_over"] >= 2 * 3 + 2
        left = [name for name in objects("index") if name.startswith(".") or name == BUILDING]
        assert left == []
        fetch_index(made, tmp_path / "copy")
        worlds.assert_same(tmp_path / "copy", whole)
        with ShardedServing(tmp_path / "copy", device="cpu") as serving:
            found = serving.search(worlds.queries(), 6)
        np.testing.assert_array_equal(found.ids, whole.search(worlds.queries(), 6).ids)
    met = {(kind, method) for kind, method, _ in proxy.met}
    assert met >= {(kind, method) for method in kinds for kind in kinds[method].values()}


@pytest.mark.parametrize("kind", ["half", "error"])
def test_what_cannot_be_stored_is_never_taken_for_whole(
    proxy: Proxy, whole: Index, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server keeps half of a file and says that all is well; or fails for ever."""
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    folder = f"broken-{kind}"
    turn = itertools.count()

    def fault(method: str, path: str) -> str | None:
        return kind if method == "PUT" and ".building." in path and next(turn) >= 6 else None

    proxy.fault = fault
    with pytest.raises(InputError, match=r"run it again") as caught:
        build_alone(f"s3://{BUCKET}/{folder}")
    assert "\n" not in str(caught.value)
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)
    with pytest.raises(InputError, match=r"manifest.json: nothing is there"):
        fetch_index(f"s3://{BUCKET}/{folder}", tmp_path / "early")
    proxy.fault = lambda method, path: None
    noted = json.loads(open_storage(f"s3://{BUCKET}/{folder}").read(BUILDING) or b"")["done"]
    assert len(build_alone(f"s3://{BUCKET}/{folder}").done) > len(noted) > 0
    fetch_index(f"s3://{BUCKET}/{folder}", tmp_path / "copy")
    worlds.assert_same(tmp_path / "copy", whole)


def test_a_fetch_that_breaks_off_goes_on(proxy: Proxy, whole: Index, tmp_path: Path) -> None:
    build_alone(f"s3://{BUCKET}/fetched")
    turn = itertools.count()
    proxy.fault = lambda method, path: "error" if method == "GET" and next(turn) >= 8 else None
    with pytest.raises(InputError, match=r"cannot be reached: .*; check the address, the network and"):
        fetch_index(f"s3://{BUCKET}/fetched", tmp_path / "copy")
    with pytest.raises(InputError, match="its fetch was interrupted; run `gqe index fetch` again"):
        Index.open(tmp_path / "copy")
    proxy.fault = lambda method, path: "slow" if method == "GET" else None
    again: list[int] = []
    fetch_index(f"s3://{BUCKET}/fetched", tmp_path / "copy", progress=lambda done, *_: again.append(done))
    assert again[0] > 3
    worlds.assert_same(tmp_path / "copy", whole)


def test_no_bucket_is_made_of_a_mistyped_name(proxy: Proxy) -> None:
    with pytest.raises(InputError, match=r"^s3://buket/index: nothing is there; check the address"):
        build_alone("s3://buket/index")
    with pytest.raises(InputError, match=r"^s3://buket/x\.npy: nothing is there; check the address"):
        open_source("s3://buket/x.npy")


@pytest.mark.parametrize("place", ["s3://bucket/given-up", "folder", "file://{}/elsewhere"])
def test_a_node_that_was_given_up_changes_nothing(proxy: Proxy, tmp_path: Path, place: str) -> None:
    """It still writes a file that another node, which computes a little otherwise, has finished."""
    store: Storage = open_storage(tmp_path if place == "folder" else place.format(tmp_path), "job")
    store.write(BUILDING, b"{}")
    name = "level-1-shard-00000.00000001.npy"
    record = store.put(name, lambda path: write_array(path, np.arange(3.0)))
    assert store.size(name) is None  # the driver knows nothing of it yet
    store.commit(name, record)
    store.put(name, lambda path: write_array(path, np.arange(3.0) + 1e-9))
    assert record_of(store.fetch({name: record}) / name) == record
    store.clean()
    assert record_of(store.fetch({name: record}) / name) == record
    store.clean()


def test_what_is_missing_is_named(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    monkeypatch.setitem(os.environ, "AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    with pytest.raises(InputError, match=r"^s3://bucket/x.npy: cannot be reached: .*127.0.0.1:9.*network"):
        open_source("s3://bucket/x.npy")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
