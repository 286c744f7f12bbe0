from __future__ import annotations

import json
from pathlib import Path

import pytest

SIZES = ("--items", "100M", "--dim", "2048", "--levels", "2", "--k", "44")


def test_a_plan_is_one_table_with_its_error(gqe, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    ran = gqe("plan", *SIZES, "--nodes", "8xH200", "--method", "gqe", "--json", file)
    assert ran.status == 0, ran.err
    for stage in ("read", "graph (exact)", "level 1", "augmentation", "write", "build", "serving, one query"):
        assert f"\n{stage} " in ran.out
    assert "fits: yes" in ran.out
    assert "error of the model on measured runs" in ran.out
    told = json.loads(file.read_text())
    assert told["fits"]
    assert told["build"]["seconds"] == pytest.approx(sum(s["seconds"] for s in told["stages_on_each_node"]))
    assert told["model_error"]["s"]["runs"] == sum(
        c["fits"] is None and c["unit"] == "s" for c in told["checks"]
    )


def test_the_error_of_every_run_is_printed_once_and_only_if_asked_for(gqe) -> None:
    run = "exact graph, H200, 1M x 2048"
    usual = gqe("plan", *SIZES, "--nodes", "8xH200")
    assert run not in usual.out
    assert usual.out.count("off by a factor of") == 2
    asked = gqe("plan", *SIZES, "--nodes", "8xH200", "--checks")
    assert asked.out.count(run) == 1
    assert asked.out.count("error of the model on measured runs") == 1
    assert asked.out.count("off by a factor of") == 2


def test_what_does_not_fit_has_a_remedy(gqe) -> None:
    ran = gqe("plan", *SIZES, "--nodes", "2xL4", "--graph", "approximate", "--no-dba", "--network", "100")
    assert ran.status == 0, ran.err
    assert "fits: no; " in ran.out
    assert "remedy: use " in ran.out
    assert "augmentation" not in ran.out


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--items", "lots"),
        ("--dim", "0"),
        ("--levels", "0"),
        ("--k", "0"),
        ("--nodes", "8xTPU"),
        ("--method", "magic"),
        ("--graph", "some"),
        ("--dtype", "float8"),
        ("--network", "0"),
        ("--contrast", "1"),
        ("--rounds", "99"),
    ],
)
def test_bad_input_is_one_line(gqe, option: str, value: str) -> None:
    ran = gqe("plan", *SIZES, "--nodes", "8xH200", option, value)
    assert ran.status == 2
    assert ran.err.startswith(f"gqe: {option}: ")
    assert ran.err.count("\n") == 1
