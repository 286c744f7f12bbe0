"""A streamed benchmark gives what the same benchmark gives in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gqe import InputError
from gqe.evaluation.benchmark import Bench
from gqe.index import Index, approximate, journal
from gqe.methods import parse_method
from gqe.neighbors import knn
from gqe.reproduce import streaming
from gqe.reproduce.streaming import StreamedBench
from gqe.reproduce.synthetic import SyntheticWorld
from reproduce.worlds import planted, save_models


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_BLOCK", 50)
    monkeypatch.setattr(journal, "_CHECKPOINT", 0.0)
    monkeypatch.setattr(streaming, "_NOTE_EVERY", 0.0)


def models(folder: Path) -> dict[str, str]:
    saved = save_models(folder / "models")
    return {name: str(saved / name) for name in ("lattqe", "gqe", "gqe3")}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "text",
    [
        "none",
        "aqe:k=3",
        "aqe-g:k=3",
        "aqe:k=3:rounds=2",
        "universal",
        "{lattqe}",
        "{gqe}:collapsed=1",
        "{gqe3}",
        "{gqe}:contrast=0.3",
        "dba-alpha:k=4",
        "dba-aqe-g:k=2",
        "dba-universal",
        "dba-only-aqe-g:k=3",
        "dba-{gqe3}",
    ],
)
def test_it_gives_what_a_bench_gives(text: str, tmp_path: Path) -> None:
    data = planted("large", 3, n=180, distractors=150)
    method = parse_method(text.format(**models(tmp_path)))
    streamed = StreamedBench(data, "sum", tmp_path / "scratch", device="cpu").run(method)
    expected = Bench(data, device="cpu").run(method)
    assert streamed.evaluation.map == pytest.approx(expected.evaluation.map, abs=1e-3)
    assert not list((tmp_path / "scratch").glob("method-*"))  # a million items would leave gigabytes


def test_a_database_smaller_than_k(tmp_path: Path) -> None:
    data = planted("large", 3, n=24)
    for text in ("aqe-g:k=40", "dba-aqe:k=40"):
        method = parse_method(text)
        found = StreamedBench(data, "sum", tmp_path / "scratch", device="cpu").run(method)
        expected = Bench(data, device="cpu").run(method)
        assert found.evaluation.map == pytest.approx(expected.evaluation.map, abs=1e-3)


def test_queries_that_are_database_items_do_not_find_themselves(tmp_path: Path) -> None:
    data = planted("large", 3, n=180)
    labels = np.arange(180) % 6
    truth = {"query_labels": labels[:30], "database_labels": labels, "exclude": np.arange(30)}
    same = replace(data, queries=data.database[:30], ground_truth=truth)
    for text in ("aqe:k=3", "aqe-g:k=3", "dba-aqe:k=3"):
        method = parse_method(text)
        found = StreamedBench(same, "sum", tmp_path / "scratch", device="cpu").run(method)
        expected = Bench(same, device="cpu").run(method)
        assert found.evaluation.map == pytest.approx(expected.evaluation.map, abs=1e-3)


def test_float16_from_a_mapped_file(tmp_path: Path) -> None:
    data = planted("large", 3, n=180, distractors=150)
    np.save(tmp_path / "half.npy", data.database.astype(np.float16))
    mapped = replace(data, database=np.load(tmp_path / "half.npy", mmap_mode="r"))
    bench = StreamedBench(mapped, "sum", tmp_path / "scratch", device="cpu")
    assert bench.table.dtype.itemsize == 2  # not copied to float32
    for text in ("aqe-g:k=3", "dba-aqe:k=3"):
        found = bench.run(parse_method(text)).evaluation.map
        assert found == pytest.approx(
            Bench(data, device="cpu").run(parse_method(text)).evaluation.map, abs=1.5
        )
    (graph,) = (tmp_path / "scratch").glob("graph-*")
    assert Index.open(graph).stats()["storage"] == ["float16"]


@pytest.mark.usefixtures("small_blocks")
def test_a_stopped_augmentation_goes_on(tmp_path: Path) -> None:
    data = planted("large", 3, n=180, distractors=150)
    method = parse_method(f"dba-{models(tmp_path)['gqe']}")

    def stop(done: int, total: int, name: str) -> None:
        if name == "level-2" and done >= 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        StreamedBench(data, "sum", tmp_path / "s", device="cpu", progress=stop).run(method)
    (clock,) = (tmp_path / "s").glob("*.seconds")
    spent = float(clock.read_text())
    went_on: list[tuple[int, str]] = []
    bench = StreamedBench(
        data, "sum", tmp_path / "s", device="cpu", progress=lambda d, t, n: went_on.append((d, n))
    )
    found = bench.run(method)
    # Rows from 150 on: neither the graph nor level 1 again.
    assert went_on == [(done, "level-2") for done in (200, 250, 300, 330)]
    assert bench.earlier_seconds == spent > 0
    assert found.evaluation.map == pytest.approx(
        Bench(data, device="cpu").run(method).evaluation.map, abs=1e-3
    )
    bench.run(parse_method("dba-aqe:k=3"))
    assert bench.earlier_seconds == 0
    assert not list((tmp_path / "s").glob("method-*"))


@pytest.mark.usefixtures("small_blocks")
def test_a_stopped_graph_goes_on(tmp_path: Path) -> None:
    data = planted("large", 3, n=180, distractors=150)
    method = parse_method("dba-aqe:k=3")

    def stop(done: int, total: int, name: str) -> None:
        if name == "neighbours" and done >= 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        StreamedBench(data, "sum", tmp_path / "s", device="cpu", progress=stop).run(method)
    went_on: list[tuple[int, str]] = []
    bench = StreamedBench(
        data, "sum", tmp_path / "s", device="cpu", progress=lambda d, t, n: went_on.append((d, n))
    )
    bench.run(method)
    assert bench.earlier_seconds > 0
    assert went_on[:4] == [(done, "neighbours") for done in (200, 250, 300, 330)]


def test_stopped_before_the_evaluation_the_index_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = planted("large", 3, n=180, distractors=150)
    method, other = parse_method("dba-aqe-g:k=3"), parse_method("aqe-g:k=3")

    def stop(self: Index) -> None:
        raise KeyboardInterrupt

    bench = StreamedBench(data, "sum", tmp_path / "s", device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(Index, "blocks", stop)
        with pytest.raises(KeyboardInterrupt):
            bench.run(method)
    built: list[str] = []
    bench = StreamedBench(data, "sum", tmp_path / "s", device="cpu", progress=lambda d, t, n: built.append(n))
    # The same stack without augmentation is another index.
    plain = bench.run(other).evaluation.map
    found = bench.run(method).evaluation.map
    assert built == []
    for each, expected in ((found, method), (plain, other)):
        assert each == pytest.approx(Bench(data, device="cpu").run(expected).evaluation.map, abs=1e-3)


def test_one_graph_serves_every_smaller_k(tmp_path: Path) -> None:
    data = planted("large", 3, n=180, distractors=150)
    bench = StreamedBench(data, "sum", tmp_path / "s", device="cpu")
    for text in ("dba-aqe:k=60", "dba-aqe:k=3", "dba-aqe-g:k=50"):
        bench.run(parse_method(text))
    assert [folder.name for folder in (tmp_path / "s").iterdir()] == ["graph-sum-k-60"]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("text", ["aqe-g:k=3", "universal", "dba-alpha:k=4"])
def test_approximate_lists(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximate, "SMALLEST", 10)
    data = planted("large", 3, n=180, distractors=150)
    # With all lists probed it is exact, and so are the results.
    bench = StreamedBench(data, "sum", tmp_path / "s", device="cpu", recall=0.9999)
    found = bench.run(parse_method(text)).evaluation.map
    expected = Bench(data, device="cpu").run(parse_method(text)).evaluation.map
    assert found == pytest.approx(expected, abs=0.5)
    (graph,) = (tmp_path / "s").glob("graph-sum-recall0.9999-*")
    assert Index.open(graph).stats()["search"]["kind"] == "ivf"


def test_the_recall_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximate, "SMALLEST", 1000)
    world = SyntheticWorld(3000, 32, 0)
    database = world.vectors(world.things[-3000:], 1)
    data = replace(planted("large", 3), database=database, queries=database[:6])
    bench = StreamedBench(data, "sum", tmp_path / "s", device="cpu", recall=0.9)
    bench.run(parse_method("dba-aqe:k=10"))
    (folder,) = (tmp_path / "s").glob("graph-*")
    index = Index.open(folder)
    assert 0.9 <= index.stats()["graph_recall"] < 1  # not an exact search in disguise
    found = index.neighbors(np.arange(3000)).ids[:, :10]
    true = knn(torch.from_numpy(database), 10, device="cpu").ids
    recall = np.mean([np.isin(t, f).mean() for t, f in zip(true, found, strict=True)])
    assert recall >= 0.88
    assert not (found == np.arange(3000)[:, None]).any()  # nobody is its own neighbour


def test_encoders_in_bfloat16_change_little(tmp_path: Path) -> None:
    data = planted("large", 3, n=180, distractors=150)
    method = parse_method(f"dba-{models(tmp_path)['gqe']}")
    bench = StreamedBench(data, "sum", tmp_path / "s", device="cpu", bfloat16=True)
    stack = bench.encoding(method.stack())
    assert {p.dtype for level in stack for p in level.parameters()} == {torch.bfloat16}
    found = bench.run(method).evaluation.map
    assert found == pytest.approx(Bench(data, device="cpu").run(method).evaluation.map, abs=1.0)


def test_reranking_is_refused(tmp_path: Path) -> None:
    bench = StreamedBench(planted("large", 3), "sum", tmp_path / "s", device="cpu")
    with pytest.raises(InputError, match="re-ranking a streamed database"):
        bench.run(parse_method("none+egt"))
