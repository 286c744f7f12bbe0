"""The model and the runs it rests on."""

from __future__ import annotations

import doctest
import importlib
import math
from dataclasses import replace

import pytest

from gqe.planning import checks
from gqe.planning.hardware import PEAKS


def test_runs_that_set_a_share_are_met_and_the_others_nearly() -> None:
    rows = checks.all_checks()
    for row in rows:
        if row.fits:
            assert row.error == pytest.approx(0, abs=1e-9), row.what
        else:
            assert abs(math.log(row.modelled / row.measured)) < math.log(2.5), row.what
    assert checks.model_error(rows, "s").typical < 1.3
    assert checks.model_error(rows, "B").typical < 1.15


def test_each_share_is_set_once_and_most_runs_only_check() -> None:
    runs = checks.measured_runs()
    setting = [(run.nodes.kind.name, run.fits) for run in runs if run.fits]
    assert len(setting) == len(set(setting)) == len(checks.measured_shares())
    assert all(kind in PEAKS for _, kind in setting)
    assert len(runs) > 2 * len(setting) - 2
    assert all(share <= 1 for (_, kind), share in checks.measured_shares().items() if kind != "steps")


def test_the_error_is_that_of_the_runs_that_only_check() -> None:
    slower = [
        replace(run, seconds=2 * run.seconds) if run.fits is None else run for run in checks.measured_runs()
    ]
    before = {row.what: row for row in checks.all_checks() if row.unit == "s"}
    for row in checks.compare(slower):
        if row.unit == "s":
            factor = 1 if row.fits else 2
            assert row.modelled == before[row.what].modelled
            assert row.measured == factor * before[row.what].measured
    only = [row for row in checks.compare(slower) if row.what == "the same in another run"]
    assert checks.model_error(only, "s").worst == pytest.approx(2 * 62.6 / 71.3, rel=1e-3)


def test_a_run_that_cannot_set_a_share_is_refused() -> None:
    first = checks.measured_runs()[0]
    with pytest.raises(ValueError, match="cannot set the share"):
        checks.fit_shares([replace(first, fits="encoder")])


@pytest.mark.parametrize("name", ["quantities", "hardware", "job", "plan"])
def test_examples(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(f"gqe.planning.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0
