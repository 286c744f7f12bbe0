"""`gqe doctor`."""

from __future__ import annotations

import json


def test_it_lists_what_is_here(gqe) -> None:
    ran = gqe("doctor")
    assert ran.status == 0
    assert "torch" in ran.out
    assert "extract" in ran.out


def test_as_json_it_names_the_command_of_every_extra(gqe) -> None:
    found = json.loads(gqe("doctor", "--json").out)
    assert {part["name"] for part in found["extras"]} >= {"serve", "stores", "cluster"}
    assert all((part["command"] is None) == (part["missing"] == []) for part in found["extras"])
