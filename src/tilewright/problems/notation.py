"""Shared parsing of convolution and matrix-product notation: numbers and names, with a caret at every error."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from tilewright.errors import ParseError, ProblemError
from tilewright.limits import written

_DIGITS = re.compile(r"[0-9]+")
_MAX_INTEGER = 2**63 - 1


def content(text: str) -> tuple[int, int]:
    """Return (begin, end): the positions in `text` of its first character that is not blank, and after its last one.

    The two are equal if all characters are blank.

    >>> content("  mb1 ")
    (2, 5)
    """
    begin = len(text) - len(text.lstrip())
    return begin, max(begin, len(text.rstrip()))


def read_number(text: str, at: int, what: str) -> tuple[int, int]:
    """Return (number, end): the number at position `at` of `text`, and the position after its last digit.

    Raise ParseError if there is no number, or if it is 2**63 or more; `what` says in the error what was expected.

    >>> read_number("ic64ih56", 2, "a number after ic")
    (64, 4)
    >>> read_number("icih56", 2, "a number after ic")
    Traceback (most recent call last):
        ...
    tilewright.errors.ParseError: expected a number after ic
      icih56
        ^
    """
    match = _DIGITS.match(text, at)
    if match is None:
        if text[at : at + 1] == "-":
            raise ParseError(f"expected {what}; no number of the notation has a sign", text, at)
        raise ParseError(f"expected {what}", text, at)
    digits = match.group().lstrip("0")
    if len(digits) > 19 or int(digits or "0") > _MAX_INTEGER:
        raise ParseError(f"expected {what} below 2**63", text, at)
    return int(digits or "0"), match.end()


def read_name(text: str, at: int, end: int) -> str | None:
    """Return the name at the positions `at` to `end` - 1 of `text`, without double quotes around it; None if it is
    empty.

    Raise ParseError if the closing quote is missing, or for a blank or a control character.

    >>> read_name('n"conv:1"', 1, 9), read_name("nconv", 1, 5), read_name("n", 1, 1)
    ('conv:1', 'conv', None)
    """
    name = text[at:end]
    if name.startswith('"'):
        if len(name) < 2 or not name.endswith('"'):
            raise ParseError("the name's closing quote is missing", text, end)
        name = name[1:-1]
        at += 1
    for offset, character in enumerate(name):
        if character == " " or not character.isprintable():
            raise ParseError(f"a name holds no blanks or control characters, not {character!r}", text, at + offset)
    return name or None


def integers(values: Any, key: str) -> tuple[int, ...]:
    """Return `values`, a sequence of integers given for the field `key` of a problem, as a tuple of ints.

    Raise ProblemError, which names the field, for any other value, and for magnitudes of 2**63 or more.
    """
    flat = getattr(values, "ndim", 1) == 1
    if isinstance(values, str | bytes) or not isinstance(values, Iterable) or not flat:
        raise ProblemError(f"{key} = {written(values)} is no row of integers", key)
    return tuple(integer(value, key) for value in values)


def integer(value: Any, key: str) -> int:
    """Return `value`, an integer given for the field `key` of a problem, as an int.

    Raise ProblemError, which names the field, for any other value, bools too, and for magnitudes of 2**63 or more.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or abs(int(value)) > _MAX_INTEGER:
        raise ProblemError(f"{key} = {written(value)} is no integer below 2**63", key)
    return int(value)


def check_name(name: str | None) -> str | None:
    """Return the name of a problem unchanged; None for an empty name.

    Raise ProblemError if `name` is neither a text nor None, or has blanks or control characters, which the notation
    cannot express.
    """
    if name is not None and not isinstance(name, str):
        raise ProblemError(f"the name {written(name)} is no text", "n")
    if name and (" " in name or not name.isprintable()):
        raise ProblemError(f"the name {name!r} holds a blank or a control character; write _ instead", "n")
    return name or None


def name_text(name: str | None, before: str = "n") -> str:
    """Return a problem's name as the notation writes it: in double quotes after `before`. Without a name, return "".

    >>> name_text("conv:1"), name_text(None)
    ('n"conv:1"', '')
    """
    return f'{before}"{name}"' if name else ""
