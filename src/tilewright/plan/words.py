"""The words of plans, and the statement that one with a misspelt word is near to."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import SequenceMatcher, get_close_matches

from tilewright.errors import ArgumentError

WORDS = (
    *("axis", "of", "whole", "task", "loop", "unit"),
    *("tasks", "group", "strided", "contiguous", "dynamic", "backward", "order"),
    *("in", "place", "rows", "panels", "padded", "diagonal", "blocks"),
    *("packed", "at", "bind", "staged", "as", "lines", "panel", "halo"),
    *("keep", "stream", "by", "loops", "block"),
    *("transposed", "roles", "load", "wave", "waves", "registers", "multiply"),
    *("ring", "together", "once", "stored", "apart", "pingpong"),
    *("split", "atom", "overlap", "none", "defer", "ahead", "turns", "launch", "plain", "early", "then"),
)
NEAR = 3
"""Words that are tried in place of one."""
LONGEST = 400
"""Characters of a statement, at most, for which others are tried: a misspelt word is not looked for in a page."""


def near_statement(statement: str, read: Callable[[str], object]) -> str | None:
    """The nearest statement that `read` takes and that has one other word; None: there is none.

    >>> def read(statement: str) -> None:
    ...     if statement != "tasks M group 4":
    ...         raise ArgumentError(statement)
    >>> near_statement("tasks M grop 4", read)
    'tasks M group 4'
    """
    tried: list[tuple[float, str]] = []
    for place in re.finditer(r"[A-Za-z_]+", statement) if len(statement) <= LONGEST else ():
        word = place[0].lower()
        for near in get_close_matches(word, WORDS, NEAR):
            if near != place[0]:
                alike = SequenceMatcher(None, word, near).ratio()
                tried.append((alike, statement[: place.start()] + near + statement[place.end() :]))
    for _, other in sorted(tried, key=lambda x: -x[0]):
        try:
            read(other)
        except ArgumentError:
            continue
        return other
    return None
