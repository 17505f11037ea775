"""Plans that are recorded: a sample of what `benchmarks/plan_corpus.py compare` plans anew."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]

from corpus_entries import LEFT_OUT, entries, sample  # noqa: E402
from corpus_plans import Planned, machine_names, machine_of, pinned_by_name, planned_by_name  # noqa: E402
from corpus_text import differences, parse, read, shown, text_of  # noqa: E402

EACH, SEED = 6, 4
"""How many entries of each machine are planned here, and which."""
ENTRIES, RECORD = cache(entries), cache(read)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("machine", machine_names())
def test_plans_are_those_recorded(machine: str) -> None:
    differing = []
    for key in sample([key for key in ENTRIES() if key[2] == machine], EACH, SEED):
        lines = list(differences(RECORD()[key], planned_by_name(*key, limit=None)))
        if lines:
            differing.append("\n    ".join([shown(key), *lines]))
    assert not differing, "\n".join([*differing, "where this is meant: benchmarks/plan_corpus.py record"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("machine", ["hopper/132", "ampere/108", "cdna3/304", "xe/128", "x86.amx/16", "aarch64.neon/2"])
def test_a_plan_that_is_given_again_makes_the_same_programs(machine: str) -> None:
    """Plans of convolutions on Ampere and CDNA3 were refused where they were given as they were printed."""
    for key in sample([key for key in ENTRIES() if key[2] == machine], 3, SEED):
        chosen, given = pinned_by_name(*key)
        assert (given.error, given.plan, given.programs) == (chosen.error, chosen.plan, chosen.programs), shown(key)


def test_every_entry_is_recorded_and_nothing_else() -> None:
    assert set(RECORD()) == set(ENTRIES())
    assert len(ENTRIES()) >= 1500
    assert not set(LEFT_OUT) & set(ENTRIES())
    assert not [shown(key) for key, entry in RECORD().items() if entry.error.startswith("TooLong")]


def test_cores_are_those_of_the_name_and_caches_those_of_the_row() -> None:
    few, many = machine_of("x86.avx512/2"), machine_of("x86.avx512/16")
    assert (few.limits.cores, many.limits.cores) == (2, 16)
    assert few.limits.l2_bytes == many.limits.l2_bytes == 1 << 20


PLANNED = Planned("", 1234.5, "axis M = (M 9): task 3\ngrid M", "3:0123456789", "1:0123456789", ("f:aa", "g:bb"))


def test_a_record_is_read_as_it_was_written() -> None:
    record = {
        ("rows", "a problem", "xe/128"): PLANNED,
        ("rows", "a problem", "hopper/132"): replace(PLANNED, plan="grid N", programs=()),
        ("rows", "another one", "xe/128"): Planned(error="ProgramError: shared memory: 9 bytes"),
    }
    assert parse(text_of(record, "rows"), "rows") == record


def test_a_changed_plan_shows_as_the_lines_that_changed() -> None:
    new = replace(PLANNED, cycles=2469.0, plan="axis M = (M 9): task 9\ngrid M", programs=("f:aa", "g:cc"))
    assert list(differences(PLANNED, new)) == [
        "cycles: 1234.5 -> 2469 (2.0000 times)",
        "plan:",
        "  - axis M = (M 9): task 3",
        "  + axis M = (M 9): task 9",
        "    grid M",
        "programs: g:bb -> g:cc",
    ]
    assert not list(differences(PLANNED, replace(PLANNED, cycles=PLANNED.cycles * (1 + 1e-10))))
