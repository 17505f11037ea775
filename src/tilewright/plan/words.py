"""The words of the plan language, and suggestions for statements with a misspelt word."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import SequenceMatcher, get_close_matches

from tilewright.errors import ArgumentError
from tilewright.plan.version1 import WORDS as VERSION_1

WORDS = (
    *("axis", "of", "whole", "cluster", "task", "wave", "loop", "unit", "as", "unroll", "peel"),
    *("grid", "raster", "cyclic", "contiguous", "dynamic", "reversed", "longest", "first", "loops"),
    *("in", "place", "tile", "run", "halo", "panel", "strip", "packed", "at", "bind", "start", "to", "from"),
    *("register", "shared", "workspace", "kept", "computed", "again", "reuse", "keep", "stream"),
    *("repack", "aligned", "rows", "im", "col", "padded", "block", "diagonal"),
    *("by", "transposed", "producer", "consumer", "waves", "registers", "stages", "joint", "resident", "epilogue"),
    *("store", "per", "group", "pingpong", "split", "kernel", "after", "before", "then", "parts", "atom"),
    *("overlap", "none", "delayed", "mma", "ahead", "ordered", "lanes", "vector", "box"),
    *("occupancy", "workgroups", "persistent", "domains", "launch", "plain", "early"),
)
NEAR = 3
"""The most similar words that are tried in place of one word."""
LONGEST = 400
"""The most characters of a statement for which corrections are tried."""


def near_statement(statement: str, parse: Callable[[str], object]) -> str | None:
    """Return a correction of an illegal statement: the most similar text, with one word replaced, that `parse` accepts.

    None if there is none, or if the statement has more than LONGEST (400) characters. `parse` reads a statement and
    raises an ArgumentError for an illegal one.

    >>> def parse(statement: str) -> None:
    ...     if statement != "parts K 4":
    ...         raise ArgumentError(statement)
    >>> near_statement("prts K 4", parse)
    'parts K 4'
    """
    suggestions: list[tuple[float, str]] = []
    for found_word in re.finditer(r"[A-Za-z_]+", statement) if len(statement) <= LONGEST else ():
        word = found_word[0].lower()
        for near in get_close_matches(word, (*WORDS, *VERSION_1), NEAR):
            if near != found_word[0]:
                similarity = SequenceMatcher(None, word, near).ratio()
                suggestions.append((similarity, statement[: found_word.start()] + near + statement[found_word.end() :]))
    for _, suggestion in sorted(suggestions, key=lambda x: -x[0]):
        try:
            parse(suggestion)
        except ArgumentError:
            continue
        return suggestion
    return None
