"""Plans that are chosen or listed are bound: given back as text, they make the same kernels as before."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from grid_programs import grid_sum

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.cli.workload import Workload, read_problem, read_types
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.targets.registry import machine

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]
from plans_given_back import SAME, outcomes  # noqa: E402

K, N, GLOBAL = tkl.sym.K, tkl.sym.N, tkl.GLOBAL_ADDRESS_SPACE
ROWS = ["hopper", "cdna3", "x86.amx", "aarch64.neon"]

FEW_CHANNELS = (
    "mb2ic3id5ih6iw9oc5kd2kh3kw2pd1ph1pw0sd2",
    "mb1ic3ih20iw18oc9kh7kw7sh2sw2ph3pw3",
    "g3mb2ic15ih9iw7oc9kh3kw2ph1pw0",
)


@pytest.mark.parametrize("row", ["x86.amx", "x86.avx512", "x86.avx2", "aarch64.neon.dotprod"])
@pytest.mark.parametrize("dt", ["bf16", "s8"])
@pytest.mark.parametrize("problem", FEW_CHANNELS)
def test_units_that_take_k_as_it_is_were_listed_with_a_padded_k(problem: str, dt: str, row: str) -> None:
    """K is padded for atoms that add neighbours. Plans of tile registers with such a K were listed, and refused."""
    work = Workload(read_problem(problem), read_types(dt))
    kernel = work.planned(machine(row))
    listed = {(p.plan.atom, p.plan.values[0].form): p for p in kernel.choice.candidates[::-1] if p.plan.in_blocks}
    for candidate in listed.values():
        given = work.planned(machine(row), str(candidate.plan))
        assert given.plan == candidate.plan
    given = work.planned(machine(row), kernel.text("plan"))
    assert given.text("block") == kernel.text("block")
    assert given.choice.cycles == kernel.choice.cycles


@tkw.wave()
def twice(x: tkl.Memory[tkl.GLOBAL_ADDRESS_SPACE, tkl.f32], y: tkl.Memory[tkl.GLOBAL_ADDRESS_SPACE, tkl.f32]) -> None:
    """y = 2 * x, of a single number."""
    tkw.write(tkw.read(x) + tkw.read(x), y)


@pytest.mark.parametrize("row", ROWS)
def test_the_plan_of_a_program_without_dimensions_was_refused(row: str) -> None:
    kernel = kernel_for(twice, {}, machine=machine(row))
    given = kernel_for(twice, {}, machine=machine(row), plan=kernel.text("plan"))
    assert "axis" not in given.text("plan")
    assert (given.text("plan"), given.text("block")) == (kernel.text("plan"), kernel.text("block"))


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("text", ["", "mma by loops"])
def test_a_plan_without_axes_is_for_programs_without_dimensions(text: str, row: str) -> None:
    for make, sizes in ((kernels.gemm("nt", "f32"), {"M": 30, "N": 40, "K": 50}), (grid_sum(32, 6), {"M": 70})):
        with pytest.raises(ArgumentError, match="it has no axis; without plan="):
            kernel_for(make, sizes, machine=machine(row), plan=text)


@pytest.mark.parametrize("row", ROWS)
def test_a_loop_over_the_tile_of_a_workgroup_was_an_axis_said_twice(row: str) -> None:
    kernel = kernel_for(grid_sum(32, 6), {"M": 70}, machine=machine(row))
    text = kernel.text("plan")
    given = kernel_for(grid_sum(32, 6), {"M": 70}, machine=machine(row), plan=text)
    assert text.startswith("axis M = (M 70): task 32\naxis M = (M 70): ")
    assert (given.text("plan"), given.text("block")) == (text, kernel.text("block"))


@pytest.mark.parametrize("row", ROWS)
def test_only_grid_programs_have_two_axes_of_a_dimension(row: str) -> None:
    gemm, sizes = kernels.gemm("nt", "f32"), {"M": 300, "N": 136, "K": 100}
    text = "axis M = (M 300): task 8; axis M = (M 300): whole; axis N = (N 136): whole; axis K = (K 100): whole; grid M"
    with pytest.raises(ArgumentError, match=r"`axis M = .*`, `axis M = .*`: M is said twice"):
        kernel_for(gemm, sizes, machine=machine(row), plan=text)


@tkw.wave()
def two_products(
    x: tkl.Memory[K, GLOBAL, tkl.f32],
    w: tkl.Memory[N, K, GLOBAL, tkl.f32],
    v: tkl.Memory[K, N, GLOBAL, tkl.f32],
    y: tkl.Memory[N, GLOBAL, tkl.f32],
) -> None:
    """y is the product of two matrix-vector products, which one loop over K computes."""

    @tkw.iterate(K, init_args=[tkl.Register[N, tkl.f32](2.0), tkl.Register[N, tkl.f32](0.0)])
    def totals(left: Any, right: Any) -> Any:
        row = tkw.read(x) + tkw.scalar(1, tkl.f32)
        return tkw.mma(row, tkw.read(w), left), tkw.mma(row, tkw.read(v), right)

    tkw.write(totals[0] * totals[1], y)


def test_a_given_plan_kept_a_loop_that_was_removed_when_it_was_chosen() -> None:
    """The loop of both products was removed before the search, and each product got a loop of its own."""
    sizes = {"N": 2048, "K": 500}
    kernel = kernel_for(two_products, sizes, machine=machine("x86.amx"))
    assert "axis K = (K 500): loop 64\n" in kernel.text("plan")
    given = kernel_for(two_products, sizes, machine=machine("x86.amx"), plan=kernel.text("plan"))
    assert (given.text("plan"), given.text("block")) == (kernel.text("plan"), kernel.text("block"))


@pytest.mark.filterwarnings("ignore")  # of slow plans, and of products without atoms
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("kind", "number"), [(k, n) for k in ("einsum", "two", "products", "language") for n in (*range(4), 70, 115)]
)
def test_plans_of_random_programs_are_given_back(kind: str, number: int) -> None:
    """A few; `benchmarks/plans_given_back.py` gives back as many as are wanted."""
    assert {outcome.verdict for outcome in outcomes(kind, number, 0)} <= {SAME, "not planned"}
