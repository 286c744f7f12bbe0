"""Whole reports of tiny suites."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gqe import InputError
from gqe.evaluation.benchmark import Bench
from gqe.methods import parse_method, parse_methods
from gqe.reproduce import StreamingOptions, reproduce
from gqe.reproduce.streaming import StreamedBench
from reproduce import worlds
from reproduce.worlds import save_models, tiny

COLUMNS = ["ROxf M", "ROxf H", "ROxf+R1M M", "ROxf+R1M H", "RPar M", "RPar H", "RPar+R1M M", "RPar+R1M H"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def whole(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run."""
    output = tmp_path_factory.mktemp("whole")
    report = reproduce(tiny(models), output, device="cpu")
    assert report.computed > 100
    return output


def written(folder: Path) -> dict[str, bytes]:
    endings = (".csv", ".tex", ".svg", ".png", ".html")
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in endings}


def rows(path: Path) -> dict[str, dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def test_files_and_columns(whole: Path) -> None:
    names = set(written(whole))
    assert {"index.html", "table1.csv", "table1.tex", "table1-tuned-on-test.csv", "table2.tex"} <= names
    assert {"k-sweep.svg", "k-sweep.png", "agreement-diversity.svg", "depth.csv"} <= names
    head = (whole / "table1.csv").read_text(encoding="utf-8").splitlines()[0]
    plain = [*COLUMNS, "Mean"]
    expected = ["section", "method", "settings", *plain, *(f"{c}, paper" for c in plain)]
    assert next(csv.reader([head])) == [*expected, *(f"{c}, difference" for c in plain)]


def test_the_papers_numbers_and_the_difference_stand_beside(whole: Path) -> None:
    row = rows(whole / "table1.csv")["GQE"]
    assert row["RPar H, paper"] == "72.4000"
    assert row["Mean, paper"] == "61.4000"
    assert float(row["RPar H, difference"]) == pytest.approx(float(row["RPar H"]) - 72.4, abs=1e-3)
    egt = rows(whole / "table1.csv")["EGT"]
    assert (egt["ROxf+R1M M"], egt["Mean"]) == ("", "")
    assert egt["ROxf M"]
    collapsed = rows(whole / "table2.csv")["GQE, collapsed"]
    assert (collapsed["ROxf H, paper"], collapsed["RPar M, paper"]) == ("49.3000", "86.3000")


def test_numbers_are_those_of_a_bench_asked_directly(whole: Path, models: Path, tmp_path: Path) -> None:
    suite = tiny(models)
    table = rows(whole / "table1.csv")
    validation = Bench(suite.validation["tiny"].load(), device="cpu")
    grid = parse_methods(worlds.GRIDS["AQE"])
    chosen = max(grid, key=lambda method: validation.run(method).evaluation.main)
    assert table["AQE"]["settings"] == chosen.summary
    methods = {
        "none": parse_method("none"),
        "AQE": chosen,
        "GQE": parse_method(str(models / "gqe")),
        "DBA + GQE, untrained": parse_method(f"dba-{models / 'gqe'}:untrained=1"),
        "DBA + AQE-G, the model's K": parse_method("dba-aqe-g:k=6"),
    }
    for place in suite.tests:
        bench = Bench(place.load(), device="cpu")
        for row, method in methods.items():
            scores = bench.run(method).evaluation.map
            for short, name in (("M", "medium"), ("H", "hard")):
                # Streamed ones may round the last digit otherwise.
                found = float(table[row][f"{place.title} {short}"])
                assert found == pytest.approx(scores[name], abs=1e-3 if place.large else 5.1e-5)


def test_tuned_on_test_is_at_least_as_good_there(whole: Path) -> None:
    honest, tuned = rows(whole / "table1.csv"), rows(whole / "table1-tuned-on-test.csv")
    small = [c for c in COLUMNS if "R1M" not in c]
    for row in ("AQE", "αQE", "DBA + AQE"):
        assert sum(float(tuned[row][c]) for c in small) >= sum(float(honest[row][c]) for c in small) - 1e-6


def test_the_sweep_stops_where_a_model_has_no_positions(whole: Path) -> None:
    table = rows(whole / "k-sweep.csv")
    assert table["GQE"]["K 4"]
    assert table["GQE"]["K 16"] == ""
    assert table["AQE"]["K 16"]


def test_the_page_opens_with_what_expansion_gives(whole: Path, models: Path, tmp_path: Path) -> None:
    suite = tiny(models, large=False)
    suite.tests.pop()
    report = reproduce(suite, tmp_path, ["overview"], device="cpu")
    bench = Bench(suite.tests[0].load(), device="cpu")
    expected = [
        bench.run(parse_method(name)).evaluation.map["medium"]
        for name in ("none", "universal", "dba-universal")
    ]
    assert [number.value for number in report.artefacts[0].headline] == pytest.approx(expected)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert f"<b>{expected[0]:.1f}</b> without expansion" in page
    whole_page = (whole / "index.html").read_text(encoding="utf-8")
    assert (
        whole_page.index('id="overview"') < whole_page.index('id="reading"') < whole_page.index('id="table1"')
    )


def test_the_page_is_there_after_the_first_part(models: Path, tmp_path: Path) -> None:
    page, pages = tmp_path / "index.html", []

    def look(line: str) -> None:
        pages.append((line, page.read_text(encoding="utf-8")))

    reproduce(tiny(models, large=False), tmp_path, ["overview", "table2"], device="cpu", print_line=look)
    assert [line.rpartition(" (")[2] for line, _ in pages] == ["1 of 2 parts)", "2 of 2 parts)"]
    assert "Still being measured: table2." in pages[0][1]
    assert "without expansion" in pages[0][1]
    assert "Still being measured" not in pages[1][1]


def test_a_second_run_computes_nothing_and_writes_the_same(
    whole: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = written(whole)

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(Bench, "run", refuse)
    monkeypatch.setattr(StreamedBench, "run", refuse)
    report = reproduce(tiny(models), whole, device="cpu")
    assert report.computed == 0
    assert written(whole) == before


def test_changed_data_and_a_changed_model_are_noticed(whole: Path, models: Path, tmp_path: Path) -> None:
    output = tmp_path / "copy"
    output.mkdir()
    (output / "results.json").write_bytes((whole / "results.json").read_bytes())
    other = save_models(tmp_path / "other", seed=7)
    report = reproduce(tiny(other), output, ["table2"], device="cpu")
    assert report.computed == 3 * 2  # every row is one of a model
    assert reproduce(tiny(models), output, ["table2"], device="cpu").computed == 0
    suite = tiny(models)
    place = suite.tests[0]
    data = place.load()
    moved = replace(data, database=np.roll(data.database, 1, axis=1))
    suite.tests[0] = replace(place, load=lambda: moved)
    assert reproduce(suite, output, ["table2"], device="cpu").computed == 3


def _environment() -> dict[str, str]:
    """As many threads as here: sums are the same to the last bit then."""
    return os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}


def test_killed_in_the_middle_it_goes_on_to_the_same_bytes(whole: Path, models: Path, tmp_path: Path) -> None:
    output = tmp_path / "killed"
    script = Path(worlds.__file__)
    run = subprocess.Popen([sys.executable, str(script), str(models), str(output)], env=_environment())
    cells = 0
    deadline = time.monotonic() + 60
    while cells < 40 and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
        if (output / "results.json").is_file():
            cells = len(json.loads((output / "results.json").read_text())["cells"])
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    report = reproduce(tiny(models), output, device="cpu")
    assert report.kept >= 40
    assert report.computed > 0
    assert written(output) == written(whole)


def test_missing_models_leave_dashes_and_say_so(tmp_path: Path) -> None:
    suite = tiny(tmp_path / "nothing", large=False, paper="reference")
    report = reproduce(suite, tmp_path / "out", ["table1"], device="cpu")
    table = rows(tmp_path / "out" / "table1.csv")
    assert table["GQE"]["ROxf M"] == ""
    assert table["universal"]["ROxf M"]
    assert table["universal"]["Mean"]
    assert not any("difference" in column for column in table["none"])
    assert any("Not decided" in finding for finding in report.findings)
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "LAttQE: no such model here." in page
    assert "for other descriptors" in page


def test_the_page_holds_everything_and_loads_nothing(whole: Path) -> None:
    page = (whole / "index.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    for word in ("Table 1", "Table 2", "DBA + GQE", "72.4", "tuned on the test sets", "Klein and Wolf"):
        assert word in page
    assert 'src="http' not in page
    assert "<script" not in page


def test_an_unknown_artefact_is_refused(models: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="table3"):
        reproduce(tiny(models), tmp_path / "out", ["table3"])
    assert not (tmp_path / "out").exists()


def test_rows_left_out_are_shown_once_they_were_measured(models: Path, tmp_path: Path) -> None:
    suite = tiny(models, large=False)
    options = StreamingOptions(leave_out=("dba + *GQE*", "DQE"))
    reproduce(suite, tmp_path, ["table1"], device="cpu", options=options)
    table = rows(tmp_path / "table1.csv")
    assert table["DBA + GQE"]["ROxf M"] == table["DQE"]["ROxf M"] == ""
    assert table["DBA + LAttQE"]["ROxf M"]
    assert "DBA + GQE: left out." in (tmp_path / "index.html").read_text(encoding="utf-8")
    more = reproduce(suite, tmp_path, ["table1"], device="cpu")
    assert more.computed > 0
    again = reproduce(suite, tmp_path, ["table1"], device="cpu", options=options)
    assert again.computed == 0
    assert rows(tmp_path / "table1.csv")["DBA + GQE"]["ROxf M"]


WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"matplotlib", "sklearn", "faiss", "PIL", "h5py", "pyarrow", "onnxruntime"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from pathlib import Path
import importlib.util
found = importlib.util.find_spec
def find_spec(name, package=None):
    try:
        return found(name, package)
    except ModuleNotFoundError:
        return None
importlib.util.find_spec = find_spec
sys.path.insert(0, sys.argv[3])
from gqe.reproduce import reproduce
from reproduce.worlds import tiny
reproduce(tiny(Path(sys.argv[1])), Path(sys.argv[2]), device="cpu")
"""


def test_measured_where_little_is_installed_and_drawn_elsewhere(
    whole: Path, models: Path, tmp_path: Path
) -> None:
    """Another machine may have no matplotlib: what it cannot do is done here."""
    output = tmp_path / "out"
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(models), str(output), str(Path(__file__).parents[1])],
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "figures are not drawn: matplotlib is not installed" in run.stderr
    assert not (output / "k-sweep.svg").exists()
    report = reproduce(tiny(models), output, device="cpu")
    assert report.computed == 0
    assert written(output) == written(whole)
