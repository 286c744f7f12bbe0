"""A user's mistake is one line, whatever is quoted in it."""

from __future__ import annotations

from gqe.errors import InputError, shown


def test_a_message_is_one_line_that_steers_no_terminal():
    error = InputError("a\nb.npy:\r\n is \x1b[31mred\x07 and \udcff;\ttry\x1c again\u2028 ")
    assert str(error) == r"a b.npy: is \x1b[31mred\x07 and \udcff; try again"


def test_values_are_shown_as_far_as_they_can_be():
    assert shown(3) == "3"
    assert shown(10**5000) == "a number of 16610 bits"
    assert len(shown("x" * 1000)) == 200
