"""docs/glossary.md defines the words that are the project's own, once each and in order."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs/glossary.md").read_text(encoding="utf-8")
DEFINED = re.findall(r"^\| \*\*([^*]+)\*\* \|", TEXT, flags=re.MULTILINE)


def test_own_words_are_defined_once_in_order():
    own = "atom lane wave workgroup role channel stage task worker access digit plan level machine fragment panel"
    assert set(own.split()) <= set(DEFINED)
    assert sorted(set(DEFINED)) == DEFINED


def test_every_definition_has_a_sentence():
    rows = [line.strip("|").split("|") for line in TEXT.splitlines() if line.startswith("| **")]
    assert all(len(meaning.split()) >= 5 for _, meaning, _ in rows)
