"""Names out of files and networks: plain ones only."""

from __future__ import annotations

import pytest

from gqe.errors import InputError
from gqe.formats.names import plain_name, plain_names

BAD = [
    "",
    ".",
    "..",
    "../a",
    "a/../b",
    "/etc/passwd",
    "a/b/c",
    "a//b",
    "a/",
    "./a",
    ".hidden",
    "a\\b",
    "..\\a",
    "C:a",
    "C:/a",
    "\\\\server\\a",
    "a\0b",
    "a\nb",
    "a b",
    "~",
    "~/a",
    "$HOME",
    "a*",
    "naïve",
    "ａ",
    "a.",
    "CON",
    "nul.npy",
    "com1.txt",
    "x" * 201,
    "-rf",
    "file://a",
    3,
    None,
    True,
    ["a"],
    b"a",
]


@pytest.mark.parametrize("name", BAD, ids=repr)
def test_what_might_lead_elsewhere_is_refused(name: object) -> None:
    with pytest.raises(InputError, match=r"^manifest: names a file") as caught:
        plain_name(name, "manifest")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "name",
    ["vectors.00000001.npy", "graph.00000002.0123456789abcdef.rows.npy", "expander/config.json", "README.md"],
)
def test_names_of_an_index_pass(name: str) -> None:
    assert plain_name(name, "manifest") == name


@pytest.mark.parametrize(
    "names",
    [
        ["a.npy", "A.npy"],
        ["lock"],
        ["LOCK"],
        ["lock/a"],
        ["expander", "expander/config.json"],
        ["Expander/config.json", "expander"],
        ["x/a", "X/A"],
    ],
    ids=str,
)
def test_names_that_collide_are_refused(names: list[str]) -> None:
    with pytest.raises(InputError, match="that it cannot have"):
        plain_names(names, "manifest", ["lock"])
    assert plain_names(["expander/a", "expander/b", "c"], "manifest", ["lock"])
