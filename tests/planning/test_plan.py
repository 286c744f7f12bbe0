"""Plans: what is stored is counted to the byte, more items never cost less, remedies are remedies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gqe
from gqe.errors import InputError
from gqe.index import Index
from gqe.planning.costs import (
    BATCHES,
    fewest_shards,
    graph_network,
    level_network,
    remote_share,
    shard,
)
from gqe.planning.hardware import parse_nodes
from gqe.planning.job import METHODS, Job
from gqe.planning.plan import plan, shortfalls
from gqe.planning.quantities import as_bytes, as_time, parse_count

NODES = ("H200", "8xH200", "3xL4", "cpu:2", "5xcpu:16")


@given(
    items=st.integers(1, 2_000_000_000),
    factor=st.floats(1.0, 50.0),
    dim=st.sampled_from([16, 128, 2048]),
    method=st.sampled_from(METHODS),
    graph=st.sampled_from(["exact", "approximate"]),
    nodes=st.sampled_from(NODES),
    dba=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_more_items_cost_no_less(
    items: int, factor: float, dim: int, method: str, graph: str, nodes: str, dba: bool
) -> None:
    where = parse_nodes(nodes)
    less = plan(Job(items, dim, 2, 20, method, graph, "float16", dba), where)
    more = plan(replace(less.job, items=min(int(items * factor), 2**31 - 1)), where)
    if [timed.stage.name for timed in less.stages] != [timed.stage.name for timed in more.stages]:
        return  # few items are searched exactly, whatever was asked for
    for name in ("flops", "disk", "network", "seconds"):
        assert getattr(more, name) >= getattr(less, name) * (1 - 1e-9), name
    assert more.serving.memory >= less.serving.memory
    assert all(more.latency[batch] >= less.latency[batch] for batch in BATCHES)


@pytest.mark.parametrize("method", ["aqe-g:k=12", "universal"])
@pytest.mark.parametrize("storage", ["float32", "float16", "int8"])
@pytest.mark.parametrize("dba", [False, True])
def test_the_disk_is_counted_to_the_byte(tmp_path: Path, method: str, storage: str, dba: bool) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 24))
    name, _, setting = method.partition(":k=")
    expander = gqe.expander(name, k=int(setting)) if setting else gqe.expander(name)
    index = Index.build(vectors, expander, tmp_path / "index", storage=storage, dba=dba)
    job = Job(300, 24, 2, 12 if setting else 32, "aqe" if setting else "universal", "exact", storage, dba)
    counted = plan(job, parse_nodes("cpu:2")).disk
    assert sum(np.load(path).nbytes for path in index.path.glob("*.npy")) == counted


def test_what_crosses_the_network() -> None:
    job = Job(1000, 10, 2, 4, "aqe", "exact", "float32")
    # Each of 5 shards of queries meets the 4 others, and gets a list from each.
    vectors = sum(200 * job.row_bytes for mine in range(5) for other in range(5) if mine != other)
    lists = sum(200 * job.list_bytes for mine in range(5) for other in range(5) if mine != other)
    assert graph_network(job, 5) * job.items == vectors + lists
    assert graph_network(job, 1) == level_network(job, 1, 1) == remote_share(1) == 0
    assert plan(job, parse_nodes("cpu:2")).network == 0


@pytest.mark.parametrize("shards", [2, 5, 20])
@pytest.mark.parametrize("method", ["aqe", "universal"])
def test_rows_that_a_level_fetches(shards: int, method: str) -> None:
    job = Job(4000, 10, 2, 12, method, "exact", "float32")
    ids = np.random.default_rng(0).integers(job.items, size=(job.items, job.k))
    size = job.items // shards
    rows = 0
    for start in range(0, job.items, size):
        needed = np.unique(ids[start : start + size])
        rows += ((needed < start) | (needed >= start + size)).sum()
    for level in (1, 2):
        row = job.row_bytes
        if method == "universal":
            row += job.list_bytes + (job.row_bytes if level == 2 else 0)
        assert level_network(job, shards, level) * job.items == pytest.approx(rows * row, rel=0.01)


def test_shards_as_asked_for() -> None:
    job, nodes = Job(100_000_000, 2048), parse_nodes("8xH200")
    usual, few = plan(job, nodes), plan(job, nodes, shards=16)
    assert usual.sharding.shards > 700
    assert few.sharding.shards == 16
    assert few.network < usual.network
    assert few.stages[1].stage.memory > usual.stages[1].stage.memory
    for wrong in (0, 7, 10**9):
        with pytest.raises(InputError, match="--shards"):
            plan(job, nodes, shards=wrong)


def test_fewer_shards_are_proposed_where_they_are_faster() -> None:
    job, nodes = Job(100_000_000, 2048), parse_nodes("8xH200")
    made = plan(job, nodes)
    assert made.stages[1].bound == "network"
    assert made.faster is not None
    better = plan(job, nodes, made.faster[0])
    assert better.seconds == made.faster[1] < made.seconds
    assert better.fits
    assert better.faster is None


def test_shards_are_those_of_a_build() -> None:
    # The rule of gqe.cluster.building: four for each worker, but at least 1,024 rows and at most 1 GiB each.
    def shards(items: int, dim: int, text: str, graph: str = "exact") -> int:
        return shard(Job(items, dim, graph=graph), parse_nodes(text)).shards

    assert shards(10_000_000, 16, "3xL4") == 12
    assert shards(10_000_000, 16, "2xcpu:4") == 32
    assert shards(10_000_000, 16, "2xcpu:4", "approximate") == 8
    assert shards(3000, 16, "2xcpu:4") == 2
    assert shards(100, 16, "2xcpu:4") == 1
    assert shards(100_000_000, 2048, "8xH200") == -(-100_000_000 * 2048 * 4 // 2**30)
    assert shards(1_000_000, 64, "cpu:2") == 1


def test_fewest_shards_fit() -> None:
    for text in NODES:
        nodes, job = parse_nodes(text), Job(50_000_000, 1024)
        count = fewest_shards(job, nodes)
        assert count % nodes.count == 0
        memory = nodes.kind.memory or nodes.kind.host_memory
        assert 2 * job.items / count * 1024 * 2 <= memory / 2


def test_twice_the_nodes_take_half_the_time() -> None:
    job = Job(100_000_000, 512, 2, 44, "gqe")
    few, many = plan(job, parse_nodes("8xH200")), plan(job, parse_nodes("16xH200"))
    assert few.stages[1].bound == "compute"
    assert few.stages[1].seconds == pytest.approx(2 * many.stages[1].seconds)
    assert few.flops == many.flops


@pytest.mark.parametrize(("nodes", "serving"), [("1xcpu:8", True), ("400xcpu:8", False)])
def test_a_database_is_named_where_serving_does_not_fit(nodes: str, serving: bool) -> None:
    made = plan(Job(1_000_000_000, 512, dba=False), parse_nodes(nodes))
    assert serving == any(shortfall.what == "serving" for shortfall in made.shortfalls)
    assert serving == any("gqe store attach" in remedy for remedy in made.remedies)


@pytest.mark.parametrize("text", ["8xH200", "2xL4", "2xcpu:16"])
def test_remedies_are_remedies(text: str) -> None:
    job, nodes = Job(1_000_000_000, 2048, 2, 44), parse_nodes(text)
    made = plan(job, nodes)
    assert not made.fits
    assert made.shortfalls == shortfalls(job, nodes)
    enough = parse_nodes(next(r for r in made.remedies if r.startswith("use ")).removeprefix("use "))
    assert not shortfalls(job, enough)
    assert shortfalls(job, replace(enough, count=enough.count - 1))
    slim = [remedy for remedy in made.remedies if "--dim" in remedy]
    for remedy in slim:
        dim = int(remedy.rpartition("--dim ")[2].rstrip(")"))
        assert not shortfalls(replace(job, dim=dim), nodes)
    assert plan(replace(job, items=100_000), parse_nodes("H200")).fits


def test_float32_is_slower_on_a_gpu_than_16_bits() -> None:
    half, full = (
        plan(Job(10**6, 2048, 2, 44, "gqe", dtype=d), parse_nodes("H200")) for d in ("float16", "float32")
    )
    assert full.stages[2].seconds > 5 * half.stages[2].seconds


@pytest.mark.parametrize(
    ("text", "count"), [("7", 7), ("20k", 20_000), ("100M", 10**8), ("1.5B", 1_500_000_000), ("1,200", 1200)]
)
def test_counts(text: str, count: int) -> None:
    assert parse_count("--items", text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "1.5", "1Q", "1e9", "nan", "٣", "99999T", "1.2.3M"])
def test_bad_counts(text: str) -> None:
    with pytest.raises(InputError, match="--items"):
        parse_count("--items", text)


@pytest.mark.parametrize(
    "text", ["", "x", "0xH200", "8xH999", "cpu", "cpu:0", "8x", "H200:4", "-1xH200", "8 H200"]
)
def test_bad_nodes(text: str) -> None:
    with pytest.raises(InputError, match="--nodes"):
        parse_nodes(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("items", 0),
        ("dim", -1),
        ("dim", 10**9),
        ("levels", 0),
        ("levels", 99),
        ("k", 0),
        ("k", True),
        ("method", "magic"),
        ("graph", "none"),
        ("dtype", "float64"),
        ("contrast", 1.5),
        ("rounds", 0),
    ],
)
def test_bad_jobs(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"--{name}"):
        Job(**{"items": 10, "dim": 8, name: value})  # type: ignore[arg-type]


def test_quantities_read_well() -> None:
    assert [as_bytes(value) for value in (0, 12, 999.6e6, 409.6e9, 1.2e12)] == [
        *("0 B", "12.0 B", "1.00 GB", "410 GB", "1.20 TB")
    ]
    assert [as_time(value) for value in (0.0021, 12, 600, 12_960, 10 * 86_400)] == [
        *("2.10 ms", "12.0 s", "10.0 min", "3.60 h", "10.0 days")
    ]


def test_a_query_reads_the_negatives_too() -> None:
    """Sharded serving reads the K rows of every level, and with contrast those at the ranks to 192."""
    job, nodes = Job(10_000_000, 128, 2, 32, "aqe"), parse_nodes("2xH200")
    without = plan(job, nodes)
    assert without.serving.network == 0.5 * 2 * 32 * job.row_bytes
    contrast = plan(replace(job, contrast=0.4), nodes)
    assert contrast.serving.network == 0.5 * (192 + 32) * job.row_bytes
    assert all(contrast.latency[batch] > without.latency[batch] for batch in BATCHES)
    many = replace(job, k=300, contrast=0.4)  # the negatives are among the neighbours
    assert plan(many, nodes).serving.network == 0.5 * 2 * 300 * job.row_bytes


def test_the_options_of_queries_are_those_of_the_method() -> None:
    """The universal model subtracts negatives unless that is switched off, and also reads lists."""
    shipped = gqe.expander("universal").query_options.contrast
    job, nodes = Job(10_000_000, 128), parse_nodes("2xH200")
    assert job.options.contrast == shipped > 0
    rows = (192 + 32) * job.row_bytes + 32 * job.list_bytes
    assert plan(job, nodes).serving.network == 0.5 * rows
    off = replace(job, contrast=0)
    assert plan(off, nodes).serving.network == 0.5 * (rows - 160 * job.row_bytes)


def test_each_round_searches_and_expands() -> None:
    job, nodes = Job(10_000_000, 128, 2, 32, "aqe"), parse_nodes("2xH200")
    one, three = plan(job, nodes), plan(replace(job, rounds=3), nodes)
    assert three.serving.network == 3 * one.serving.network
    assert (one.serving.hops, three.serving.hops) == (2, 4)
    searches = [sum(work.kind == "products" for work in p.serving.works[64]) for p in (one, three)]
    assert searches == [2, 4]
    assert three.latency[64] > 1.5 * one.latency[64]
