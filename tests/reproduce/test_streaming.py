from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gqe.evaluation.benchmark import Bench
from gqe.methods import parse_method
from gqe.reproduce import filed
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
    went_on: list[tuple[int, str]] = []
    bench = StreamedBench(
        data, "sum", tmp_path / "s", device="cpu", progress=lambda d, t, n: went_on.append((d, n))
    )
    found = bench.run(method)
    assert [done for done, _ in went_on] == [150, 200, 250, 300]  # neither the graph nor level 1 again
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
