"""The neighbour graph in memory and on disk; broken and foreign files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import gqe
from gqe import NeighborGraph
from gqe.neighbors import graph as module


def small(n=4, k=2, recall=None, dtype=np.int32):
    ids = (np.arange(n)[:, None] + np.arange(1, k + 1)) % n
    similarities = np.linspace(1, 0, n * k, dtype=np.float32).reshape(n, k)
    return NeighborGraph(ids.astype(dtype), similarities, recall)


def saved(path, arrays, **about):
    """A file with the right checksum, whatever is in it."""
    about = {"format": "gqe-neighbor-graph", "version": "1", "recall": ""} | about
    about.setdefault("checksum", module._checksum(arrays, about["recall"]))
    save_file(arrays, path, metadata=about)
    return path


def arrays_of(graph):
    return {"ids": graph.ids, "similarities": graph.similarities}


@pytest.mark.parametrize("recall", [None, 0.9375, 1 / 3])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(4, 2), (1, 1), (0, 3)])
def test_round_trip(tmp_path, recall, dtype, shape):
    n, k = shape
    graph = NeighborGraph(np.full(shape, -1, dtype), np.full(shape, -np.inf, np.float32), recall)
    if n > k:
        graph = small(n, k, recall, dtype)
    graph.save(tmp_path / "g.safetensors")
    loaded = NeighborGraph.load(tmp_path / "g.safetensors")
    assert loaded.ids.dtype == dtype
    np.testing.assert_array_equal(loaded.ids, graph.ids)
    np.testing.assert_array_equal(loaded.similarities, graph.similarities)
    assert loaded.recall == recall
    assert (len(loaded), loaded.k) == shape


def test_a_real_graph_with_missing_neighbours_and_a_view_of_it(tmp_path, random_unit):
    graph = gqe.knn(random_unit(6, 4), 9)
    for each in (graph, graph.truncate(3)):
        each.save(tmp_path / "g.safetensors")
        loaded = NeighborGraph.load(str(tmp_path / "g.safetensors"))
        np.testing.assert_array_equal(loaded.ids, each.ids)
        np.testing.assert_array_equal(loaded.similarities, each.similarities)


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "g.safetensors"
    small().save(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(gqe.InputError, match=r"g\.safetensors: ") as caught:
            NeighborGraph.load(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(whole + b"\0")
    with pytest.raises(gqe.InputError, match=r"g\.safetensors: "):
        NeighborGraph.load(path)


@pytest.mark.parametrize("flip", [1, 0x20, 0x80])
def test_every_flipped_byte_is_refused_or_harmless(tmp_path, flip):
    path = tmp_path / "g.safetensors"
    graph = small(recall=0.95)
    graph.save(path)
    whole = path.read_bytes()
    data_begins = 8 + int.from_bytes(whole[:8], "little")
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
        try:
            loaded = NeighborGraph.load(path)
        except gqe.InputError as error:
            assert str(error).startswith(f"{path}: ")  # noqa: PT017
            continue
        assert place < data_begins  # spaces that fill up the header, at most
        np.testing.assert_array_equal(loaded.ids, graph.ids)
        np.testing.assert_array_equal(loaded.similarities, graph.similarities)
        assert loaded.recall == 0.95


def test_the_checksum_is_what_finds_damaged_values(tmp_path):
    path = tmp_path / "g.safetensors"
    small().save(path)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(gqe.InputError, match="checksum does not match, the file is damaged; build it again"):
        NeighborGraph.load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable graph file"),
        (b"not a graph at all", "not a readable graph file"),
        (b"\xff" * 200, "not a readable graph file"),
        (b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}", "not a readable graph file"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path, content, message):
    path = tmp_path / "g.safetensors"
    path.write_bytes(content)
    with pytest.raises(gqe.InputError, match=message):
        NeighborGraph.load(path)


def test_a_foreign_safetensors_file_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"weight": np.ones((2, 2), np.float32)}, path)
    with pytest.raises(gqe.InputError, match=r"model\.safetensors: not a neighbour graph of this package"):
        NeighborGraph.load(path)
    save_file({"weight": np.ones((2, 2), np.float32)}, path, metadata={"format": "pt"})
    with pytest.raises(gqe.InputError, match="not a neighbour graph of this package"):
        NeighborGraph.load(path)
    extra = arrays_of(small()) | {"weight": np.ones(2, np.float32)}
    with pytest.raises(gqe.InputError, match="not a neighbour graph of this package"):
        NeighborGraph.load(saved(path, extra))


def test_a_newer_version_is_refused(tmp_path):
    path = saved(tmp_path / "g.safetensors", arrays_of(small()), version="2")
    with pytest.raises(gqe.InputError, match="graph format version 2, this package reads 1"):
        NeighborGraph.load(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"ids": np.zeros(4, np.int32), "similarities": np.zeros(4, np.float32)}, r"ids must be \(n, K\)"),
        ({"ids": np.zeros((4, 2), np.int16), "similarities": np.zeros((4, 2), np.float32)}, "int32 or int64"),
        (
            {"ids": np.zeros((4, 2), np.int32), "similarities": np.zeros((4, 3), np.float32)},
            "similarities must be",
        ),
        (
            {"ids": np.zeros((4, 2), np.int32), "similarities": np.zeros((4, 2), np.float64)},
            "similarities must be",
        ),
    ],
)
def test_wrong_shapes_and_types_are_refused_with_the_name_of_the_file(tmp_path, arrays, message):
    path = saved(tmp_path / "g.safetensors", arrays)
    with pytest.raises(gqe.InputError, match=rf"g\.safetensors: .*{message}"):
        NeighborGraph.load(path)
    with pytest.raises(gqe.InputError, match=f"graph: .*{message}"):
        NeighborGraph(**arrays)


def test_a_recall_that_is_no_number_is_refused(tmp_path):
    path = saved(tmp_path / "g.safetensors", arrays_of(small()), recall="good")
    with pytest.raises(gqe.InputError, match=r"g\.safetensors: "):
        NeighborGraph.load(path)


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(gqe.InputError, match="no such graph file"):
        NeighborGraph.load(tmp_path / "nothing.safetensors")
    with pytest.raises(gqe.InputError, match="no such graph file"):
        NeighborGraph.load(tmp_path)


def test_saving_is_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "g.safetensors"
    small().save(path)
    before = path.read_bytes()

    def half_written(arrays, target, metadata):
        target.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.numpy.save_file", half_written)
    with pytest.raises(KeyboardInterrupt):
        small(n=9).save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["g.safetensors"]


def test_saving_into_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(gqe.InputError, match="does not exist"):
        small().save(tmp_path / "nowhere" / "g.safetensors")


def test_the_file_says_what_it_is(tmp_path):
    path = tmp_path / "g.safetensors"
    small(recall=0.5).save(path)
    raw = path.read_bytes()
    about = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    assert about["format"] == "gqe-neighbor-graph"
    assert about["version"] == "1"
    assert about["recall"] == "0.5"


def test_truncated_is_a_view_of_the_first_columns():
    graph = small(n=6, k=4, recall=0.9)
    cut = graph.truncate(2)
    np.testing.assert_array_equal(cut.ids, graph.ids[:, :2])
    np.testing.assert_array_equal(cut.similarities, graph.similarities[:, :2])
    assert np.shares_memory(cut.ids, graph.ids)
    assert cut.recall == 0.9
    assert graph.truncate(4).k == 4
    with pytest.raises(gqe.InputError, match="holds 4 neighbours an item, 5 were asked for; rebuild it"):
        graph.truncate(5)
    for k in (0, -1, True, 1.0, "2"):
        with pytest.raises(gqe.InputError, match="k: expected a whole number of at least 1"):
            graph.truncate(k)


def test_check():
    graph = small(n=4, k=2)
    graph.check(4)
    graph.check(10, of_database=False)
    with pytest.raises(gqe.InputError, match="it has 4 rows, the database 5"):
        graph.check(5)
    with pytest.raises(gqe.InputError, match="points outside the database's 3 items"):
        graph.check(3, of_database=False)
    with pytest.raises(gqe.InputError, match="points outside"):
        NeighborGraph(np.array([[-2]], np.int32), np.zeros((1, 1), np.float32)).check(1)
    own = NeighborGraph(np.array([[1], [1]], np.int32), np.zeros((2, 1), np.float32))
    with pytest.raises(gqe.InputError, match="item 1 is its own neighbour"):
        own.check(2)
    own.check(2, of_database=False)
    NeighborGraph(np.empty((0, 3), np.int32), np.empty((0, 3), np.float32)).check(0)


def test_what_is_no_graph_is_refused():
    with pytest.raises(gqe.InputError, match="must be NumPy arrays"):
        NeighborGraph([[1]], [[0.5]])


def test_a_graph_prints_in_one_line_and_compares_by_identity():
    graph = small(n=1000, k=7, recall=0.951)
    assert repr(graph) == "<NeighborGraph n=1000 k=7 recall=0.951>"
    assert repr(small()) == "<NeighborGraph n=4 k=2 exact>"
    assert graph == graph
    assert graph != small(n=1000, k=7, recall=0.951)
    assert len({graph, graph}) == 1
