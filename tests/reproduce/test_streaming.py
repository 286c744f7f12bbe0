from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gqe.evaluation.benchmark import Bench
from gqe.methods import parse_method
from gqe.reproduce import clustered, filed
from gqe.reproduce.streaming import StreamedBench
from reproduce.worlds import planted, save_models


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filed, "CHUNK", 50)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    "text", ["none", "aqe:k=3", "aqe-g:k=3", "universal", "dba-alpha:k=4", "dba-aqe-g:k=2", "dba-universal"]
)
def test_it_gives_what_a_bench_gives(text: str, tmp_path: Path) -> None:
    data = planted("large", 3, n=180, distractors=150)
    method = parse_method(text)
    streamed = StreamedBench(data, "sum", tmp_path / "scratch", device="cpu").run(method)
    expected = Bench(data, device="cpu").run(method)
    assert streamed.evaluation.map == pytest.approx(expected.evaluation.map, abs=1e-3)
    assert not list((tmp_path / "scratch").glob("levels-*"))  # a million items would leave gigabytes


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


@pytest.mark.usefixtures("small_chunks")
def test_a_stopped_augmentation_goes_on(tmp_path: Path) -> None:
    data = planted("large", 3, n=180, distractors=150)
    models = save_models(tmp_path / "models")
    method = parse_method(f"dba-{models / 'gqe'}")
    told: list[tuple[int, str]] = []

    def stop(done: int, total: int, name: str) -> None:
        told.append((done, name))
        if name.startswith("levels") and name.endswith("-2") and done >= 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        StreamedBench(data, "sum", tmp_path / "s", device="cpu", progress=stop).run(method)
    spent = sum(filed.spent(tmp_path / "s" / name) for name in {name for _, name in told if "levels" in name})
    went_on: list[tuple[int, str]] = []
    bench = StreamedBench(
        data, "sum", tmp_path / "s", device="cpu", progress=lambda d, t, n: went_on.append((d, n))
    )
    found = bench.run(method)
    assert [done for done, _ in went_on] == [150, 200, 250, 300]  # neither the graph nor level 1 again
    assert bench.earlier_seconds == spent > 0
    assert found.evaluation.map == pytest.approx(
        Bench(data, device="cpu").run(method).evaluation.map, abs=1e-3
    )


def test_rows_of_a_file_without_its_array_are_computed_again(tmp_path: Path) -> None:
    def rows(part: slice) -> dict[str, np.ndarray]:
        calls.append(part.start)
        return {"x": np.arange(part.start, part.stop, dtype=np.float32)[:, None]}

    calls: list[int] = []
    shape = {"x": ((7, 1), np.float32)}
    assert filed.filled(tmp_path / "t", shape, rows)["x"][:, 0].tolist() == list(range(7))
    filed.filled(tmp_path / "t", shape, rows)
    assert calls == [0]
    (tmp_path / "t-x.npy").unlink()
    filed.filled(tmp_path / "t", shape, rows)
    assert calls == [0, 0]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("text", ["aqe-g:k=3", "universal", "dba-alpha:k=4"])
def test_approximate_lists(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustered, "SMALLEST", 10)
    data = planted("large", 3, n=180, distractors=150)
    # Compared with all lists it is exact, and so are the results.
    bench = StreamedBench(data, "sum", tmp_path / "s", device="cpu", recall=0.9999)
    assert bench.approximate
    found = bench.run(parse_method(text)).evaluation.map
    expected = Bench(data, device="cpu").run(parse_method(text)).evaluation.map
    assert found == pytest.approx(expected, abs=0.5)
    assert list((tmp_path / "s").glob("graph-sum-recall0.9999-*-lists.npz"))


def test_encoders_in_bfloat16_change_little(tmp_path: Path) -> None:
    data = planted("large", 3, n=180, distractors=150)
    method = parse_method(f"dba-{save_models(tmp_path / 'models') / 'gqe'}")
    bench = StreamedBench(data, "sum", tmp_path / "s", device="cpu", bfloat16=True)
    stack = bench.encoding(method.stack())
    assert {p.dtype for level in stack for p in level.parameters()} == {torch.bfloat16}
    found = bench.run(method).evaluation.map
    assert found == pytest.approx(Bench(data, device="cpu").run(method).evaluation.map, abs=1.0)


@pytest.mark.usefixtures("small_chunks")
def test_parts_of_any_rows_go_on_where_they_were(tmp_path: Path) -> None:
    parts = [np.array([4, 1]), np.array([0, 2, 6]), np.array([3, 5])]
    calls: list[list[int]] = []

    def rows(part: np.ndarray) -> dict[str, np.ndarray]:
        if len(calls) == 2:
            calls.append([])
            raise KeyboardInterrupt
        calls.append(part.tolist())
        return {"x": part[:, None] * 10.0}

    shape = {"x": ((7, 1), np.float32)}
    with pytest.raises(KeyboardInterrupt):
        filed.filled(tmp_path / "t", shape, rows, parts=parts)
    assert not filed.finished(tmp_path / "t", 7)
    table = filed.filled(tmp_path / "t", shape, rows, parts=parts)["x"]
    assert calls == [[4, 1], [0, 2, 6], [], [3, 5]]
    assert table[:, 0].tolist() == [0, 10, 20, 30, 40, 50, 60]
    assert filed.finished(tmp_path / "t", 7)
