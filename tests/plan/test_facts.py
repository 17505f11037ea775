"""Facts: programs that mean the same give equal facts, and what follows from them."""

from __future__ import annotations

import pytest
import search_programs as programs
from search_programs import facts

from tilewright.kernels import gemm
from tilewright.plan.facts import signature

SIZES = {"M": 4200, "N": 320, "K": 192}


def _signed(kernel, **sizes):
    return signature(facts(kernel, **sizes))


@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        (programs.unlooped, SIZES),
        (programs.exchanged, SIZES),
        (programs.renamed, {"L": 4200, "D": 320, "F": 192}),
        (programs.split_m, {"M1": 7, "M2": 600, "N": 320, "K": 192}),
        (programs.split_n, {"M": 4200, "N1": 5, "N2": 64, "K": 192}),
        (programs.split_k, {"M": 4200, "N": 320, "K1": 3, "K2": 64}),
        (programs.unit_batch, {"U": 1, **SIZES}),
    ],
    ids=["no loop", "operands exchanged", "other names", "M split", "N split", "K split", "unit batch"],
)
def test_programs_that_mean_the_same_have_equal_facts(kernel, sizes):
    assert _signed(kernel, **sizes) == _signed(programs.looped, **SIZES)


def test_programs_that_differ_have_other_facts():
    whole = _signed(programs.looped, **SIZES)
    assert _signed(programs.looped, M=4200, N=192, K=320) != whole
    assert _signed(gemm("nn", "bf16", "bf16"), **SIZES) != whole


def test_sides_of_a_product_are_sets_of_dimensions():
    (p,) = facts(programs.split_m, M1=7, M2=600, N=320, K=192).products
    assert (p.m, p.n, p.k, p.batch) == ({"M1", "M2"}, {"N"}, {"K"}, set())
    assert p.a.is_read
    assert p.b.is_read


def test_a_product_without_rows_has_no_dimension_there():
    (p,) = facts(programs.matrix_vector, N=300, K=200).products
    assert (p.m, p.n, p.k) == ({"N"}, set(), {"K"})


def test_the_state_of_attention_is_a_monoid():
    (loop,) = facts(programs.attention(), B=1, KV=2, GQ=3, M=200, N=300, D=64, E=64).loops.values()
    assert loop.merge == "max+rescaled"
    assert loop.tile == 128


def test_a_loop_that_only_accumulates_is_dissolved():
    found = facts(programs.looped, **SIZES)
    assert found.loops == {}
    assert {d for n in found.nodes for d in n.reduces} == {"K"}


def test_masks_of_masks_bound_both_ends_of_a_loop():
    sizes = {"B": 1, "KV": 1, "GQ": 2, "M": 1024, "N": 1024, "D": 64, "E": 64}
    causal = facts(programs.attention(), **sizes).trips("N", 128, {"M": 128})
    assert causal == {(n, 1): 1 for n in range(1, 9)}
    window = facts(programs.attention(window=256), **sizes).trips("N", 128, {"M": 128})
    assert window == {(1, 1): 1, (2, 1): 1, (3, 2): 6}


def test_equal_reads_are_one():
    found = facts(programs.gated, M=64, N=64, K=64)
    assert [r.place.memory for r in found.reads] == ["x", "w", "u"]


def test_dimensions_that_accesses_divide_are_digits():
    from tilewright.kernels import conv

    found = facts(conv((3, 3), "bf16", padding=1), N=2, H=14, W=12, C=64, F=32)
    (p,) = found.products
    assert found.digits["M"] == ("M_2", "M_1", "M_0")
    assert [found.extents[d] for d in ("M_2", "M_1", "M_0")] == [2, 14, 12]
    assert {len(w) for r in found.reads for w in r.place.windows if r.place.memory == "x"} == {2}
    assert len(p.m) == 3
