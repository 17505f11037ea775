"""Einsums, pairs of products and reductions with any dimensions missing: a sample of benchmarks/random_einsums.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tile_checks import no_atoms_today, own_cache  # noqa: F401

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]

from einsum_programs import KINDS, made, spelled  # noqa: E402
from random_einsums import Ways, wrong  # noqa: E402

pytestmark = no_atoms_today

SIZES = {"b": 3, "g": 5, "e": 40, "k": 17, "m": 19, "n": 33}
MATRIX = ("x86.amx", "aarch64.neon.bf16.i8mm", "hopper", "ampere", "cdna3", "xe")
"""Machines whose products have rows and columns."""
WITHOUT = ("k,nk->n", "km,k->m", "bk,bkn->bn", "ge,g->e", "k,k->", "bk,kb->b")
"""Products one of whose factors, or both, have no dimension of their own."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("loop", ["", "loop"])
@pytest.mark.parametrize("letters", WITHOUT)
def test_a_factor_may_lack_a_free_dimension(letters, loop):
    """Every row of a tile wrote its sum to the one that there is, and what the planner made of loops had no columns."""
    summed = next(
        c for c in letters if letters.partition("->")[0].count(c) == 2 and c not in letters.partition("->")[2]
    )
    at = WITHOUT.index(letters)
    kind = ("bf16", "i8", "f16", "f32")[at % 4]
    case = spelled(letters, kind, {c: SIZES[c] for c in set(letters) & set(SIZES)}, summed if loop else "")
    for row in (MATRIX[at], MATRIX[at - 3], "x86.avx2"):
        assert not wrong(case, "interpret", row), row
        assert not wrong(case, "loops", row), row
    assert not wrong(case, "native", "best")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", range(1, 5))
@pytest.mark.parametrize("kind", KINDS)
def test_random_einsums_are_exact(kind, number):
    case = made(kind, number, 1, work=800)
    for how, where in Ways(native=True).of(kind, number, 1):
        assert not wrong(case, how, where), f"{how} {where}: {case.words}"


@pytest.mark.parametrize("row", ["hopper", "ampere"])
def test_the_last_piece_of_a_loop_read_what_was_packed_along_the_other_dimension(row):
    """The last piece of K is one wide, and products step along J there: J and K of one extent were packed alike."""
    case = made("mixed", 169, 50)
    assert not wrong(case, "interpret", row)


def test_two_products_with_the_same_columns_had_atoms_of_different_widths():
    """One operand lies along N and takes an atom of 64 columns: the other product's 16 did not meet it in registers."""
    case = made("two", 8, 50)
    assert not wrong(case, "interpret", "hopper")
