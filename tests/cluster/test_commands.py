"""What commands say of --cluster."""

from __future__ import annotations

import sys

import pytest

from gqe import cli


def ran(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["gqe", *map(str, arguments)])
    status = 0
    try:
        cli.main()
    except SystemExit as stop:
        status = int(stop.code or 0)
    return status, *capsys.readouterr()


@pytest.mark.parametrize(
    "command", [("extract", ".", "-o", "out.npy"), ("tune", "aqe", "--val", "town-val")], ids=lambda c: c[0]
)
def test_without_ray_they_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    status, _, said = ran(monkeypatch, capsys, *command, "--cluster", "auto")
    assert status == 2
    assert said == "gqe: --cluster needs Ray: pip install 'gqe[cluster]'\n"
