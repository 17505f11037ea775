"""Translate statements of version 1 of the plan language, an older notation, to version 2, the present one.

A statement of version 1 is recognised by its words, which no statement of version 2 has in these positions.
"""

from __future__ import annotations

import re

_NAME = r"[A-Za-z_][A-Za-z_0-9]*"
_ORDERS = {"strided": "cyclic", "contiguous": "contiguous", "dynamic": "dynamic", "backward": "reversed"}
_OVERLAPS = {"defer": "delayed store", "ahead": "mma ahead", "turns": "ordered"}
_FORMS = {"lines": "strip", "panel": "panel", "halo": "halo"}
_REPACKED = {"rows": "aligned rows", "panels": "im2col", "padded rows": "padded rows"}
_TASKS = re.compile(rf"tasks ({_NAME}(?:, {_NAME})*)(?: group (\d+))?(?: ({'|'.join(_ORDERS)}))?")
_LOOPS = re.compile(rf"order ({_NAME}(?:, {_NAME})*)")
_SPLIT = re.compile(rf"apart ({_NAME})")
_PARTS = re.compile(rf"split ({_NAME} \d+)")
_OVERLAP = re.compile(rf"overlap ({'|'.join(_OVERLAPS)})")
_STAGED = re.compile(rf"({_NAME}) staged at ({_NAME}) as ({'|'.join(_FORMS)}), ({_NAME})")
_COPIED = re.compile(rf"({_NAME}) in (?:({'|'.join(_REPACKED)})|([1-9]\d*) diagonal blocks), ({_NAME})")
_PRODUCT = re.compile(rf"({_NAME} by [^\s,]+), block (\d+x\d+(?: transposed)?)")
_ROLES = re.compile(
    r"roles load (\d+ waves? \d+ registers), multiply (\d+ waves? \d+ registers), ring (\d+)( together)?"
    r"(?:, halo (\d+))?(?:, once (\d+))?, stored (\d+)( apart)?(, pingpong)?"
)
WORDS = (
    *("tasks", "group", "strided", "backward", "order", "rows", "panels", "diagonal", "blocks", "staged", "lines"),
    *("block", "roles", "load", "multiply", "ring", "together", "once", "stored", "apart", "defer", "ahead", "turns"),
)
"""The words of version 1 that version 2 does not have."""
SUCCESSORS = {"tasks": "grid", "order": "loops", "roles": "producer", "apart": "split", "staged": "at", "in": "repack"}
"""{word of version 1: word of version 2 that replaces it}, for words that identify a statement."""


def as_version_2(statement: str) -> list[str] | None:
    """Translate a statement of version 1 of the plan language: return the equivalent statements of version 2.

    None if `statement` is no statement of version 1. Version 1 is an older notation; version 2 is the present one.

    >>> as_version_2("tasks M, N group 8 dynamic")
    ['grid M, N', 'raster 8, dynamic']
    >>> as_version_2("x staged at K as halo, keep")
    ['x halo at K']
    """
    if match := _TASKS.fullmatch(statement):
        raster = ", ".join([*([match[2]] if match[2] else []), *([_ORDERS[match[3]]] if match[3] else [])])
        return [f"grid {match[1]}", *([f"raster {raster}"] if raster else [])]
    if match := _ROLES.fullmatch(statement):
        return [_pipeline_statement(match)]
    if match := _STAGED.fullmatch(statement):
        return [f"{match[1]} {_FORMS[match[3]]} at {match[2]}{_hint_text(match[4])}"]
    if match := _COPIED.fullmatch(statement):
        form = _REPACKED[match[2]] if match[2] else f"block-diagonal {match[3]}"
        return [f"repack {match[1]}: {form}{_hint_text(match[4])}"]
    if match := _OVERLAP.fullmatch(statement):
        return [f"overlap {_OVERLAPS[match[1]]}"]
    if match := _PRODUCT.fullmatch(statement):
        return [f"{match[1]}, tile {match[2]}"]
    for pattern, begin in ((_LOOPS, "loops"), (_SPLIT, "split kernel after"), (_PARTS, "parts")):
        if match := pattern.fullmatch(statement):
            return [f"{begin} {match[1]}"]
    return None


def _hint_text(word: str) -> str:
    """Return the text that adds the cache hint `word` to a statement, such as ", stream"; empty for "keep".

    "keep" is the default hint.
    """
    return "" if word == "keep" else f", {word}"


def _pipeline_statement(match: re.Match[str]) -> str:
    """Return the statement `producer ...` of version 2 of the plan language for a statement `roles ...` of version 1.

    `match` is the statement's match of the pattern `_ROLES`.
    """
    producer, consumer, stages, joint, halo, resident, epilogue, per_group, pingpong = match.groups()
    parts = [
        f"producer {producer}",
        f"consumer {consumer}",
        f"stages {stages}",
        *(["joint"] if joint else []),
        *([f"halo stages {halo}"] if halo else []),
        *([f"resident stages {resident}"] if resident else []),
        f"epilogue stages {epilogue}",
        *(["store per group"] if per_group else []),
        *(["pingpong"] if pingpong else []),
    ]
    return ", ".join(parts)
