"""Rows of a product's A that share sets of the first cache: blocks of sums have no more of them than it keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from grid_programs import grid_gemm

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.machine import Machine
from tilewright.plan.microkernel import axes_in, mmas_by_name, row_stride_of_a
from tilewright.plan.model import stays_in_l1
from tilewright.plan.vectors import step_cycles
from tilewright.targets.registry import machine

AMX, NEON = machine("x86.amx"), machine("aarch64.neon")
M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K


def block(row: Machine, kernel: Any, k: int) -> tuple[int, int]:
    """The block of sums of the one product of a kernel."""
    (product,) = kernel_for(kernel, {"M": 1024, "N": 1024, "K": k}, target="interpreter", machine=row).plan.products
    return product.rows, product.columns


def with_ways(row: Machine, ways: int) -> Machine:
    return replace(row, limits=replace(row.limits, l1_ways=ways))


@pytest.mark.parametrize("row", [AMX, NEON], ids=lambda row: row.name)
def test_rows_that_lie_all_sets_apart_have_one_set(row: Machine) -> None:
    limits = row.limits
    line, ways = limits.line_bytes, limits.l1_ways or 0
    apart = (limits.l1_bytes or 0) // ways
    for far in (apart, 2 * apart, 16 * apart):
        assert stays_in_l1(limits, ways // 2, line, far)
        assert not stays_in_l1(limits, ways + 1, line, far)
    assert stays_in_l1(limits, 2 * ways // 2, line, apart // 2)
    assert stays_in_l1(limits, 16 * ways, line, apart + line)


@pytest.mark.parametrize("row", [AMX, NEON], ids=lambda row: row.name)
def test_lines_that_come_again_take_time(row: Machine) -> None:
    atom = next(x for x in row.multiply.values() if x.a.dtype is x.c.dtype and str(x.c.dtype) == "f32")
    apart = (row.limits.l1_bytes or 0) // (row.limits.l1_ways or 1)
    few, many = (row.limits.l1_ways or 0) // 2, 2 * (row.limits.l1_ways or 0)
    assert step_cycles(row, atom, few, 1, apart) == step_cycles(row, atom, few, 1, 0)
    assert step_cycles(row, atom, many, 1, apart) > step_cycles(row, atom, many, 1, apart + row.limits.line_bytes)


def test_blocks_of_a_grid_program_have_rows_that_the_first_cache_keeps() -> None:
    """Rows of 1024 elements of f32 lie 4096 bytes apart: on a cache of 64 sets each of 64 bytes they share one."""
    kernel = grid_gemm(128)
    rows, columns = block(AMX, kernel, 1024)
    assert stays_in_l1(AMX.limits, rows, AMX.limits.line_bytes, 4096)
    assert 128 % columns == 0  # what a workgroup reads of B is packed with the others'
    assert rows <= AMX.limits.l1_ways
    assert block(with_ways(AMX, 48), kernel, 1024) == block(AMX, kernel, 1040)


@pytest.mark.parametrize("row", [AMX, NEON], ids=lambda row: row.name)
@pytest.mark.parametrize("tile", [48, 64, 96])
def test_blocks_divide_what_a_workgroup_has_of_n(row: Machine, tile: int) -> None:
    """What all workgroups read of B is then packed once, before them."""
    _, columns = block(row, grid_gemm(tile), 1000)
    assert tile % columns == 0
    text = kernel_for(grid_gemm(tile), {"M": 192, "N": 192, "K": 40}, target="interpreter", machine=row).text("host")
    assert "launch pack_b(" in text


def test_logical_programs_and_grids_have_the_same_blocks() -> None:
    for row, k in ((AMX, 1024), (AMX, 2048)):
        plan = kernel_for(kernels.gemm("nt"), {"M": 1024, "N": 1024, "K": k}, target="interpreter", machine=row).plan
        (rows,), (columns,) = ([c.size for c in plan.axis(a).splits if c.level == "loop"] for a in ("rows", "columns"))
        assert (rows, columns) == block(row, grid_gemm(128), k)


def read_through(at: Any) -> Any:
    """c[M, N] = sum over K of x[at] * w[N, K], of x with 8 lines of 16 places of 32 elements."""
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    h, w, e = tkl.sym.H, tkl.sym.W, tkl.sym.E
    space = tkl.GLOBAL_ADDRESS_SPACE
    mapping = tkw.IndexMapping(
        num_iterators=2, inputs=dict(zip((h, w, e), at(i, j), strict=True)), outputs={M: i, K: j}
    )

    @tkw.wave([])
    def product(
        x: tkl.Memory[h, w, e, space, tkl.f32], y: tkl.Memory[N, K, space, tkl.f32], z: tkl.Memory[M, N, space, tkl.f32]
    ) -> None:
        factor = tkw.read(x, mapping=mapping, otherwise=0)
        tkw.write(tkw.mma(factor, tkw.read(y), tkl.Register[M, N, tkl.f32](0.0)), z)

    return product.bound({h: 8, w: 16, e: 32})


@pytest.mark.parametrize(
    ("at", "bytes_apart"),
    [
        (lambda i, j: (i, j // 32, j % 32), 4 * 16 * 32),
        (lambda i, j: (3, 2 * i - 1, j), 4 * 2 * 32),
        (lambda i, j: (0, j, i), 4),
        (lambda i, j: (i // 16, i % 16, j), 0),
    ],
)
def test_how_far_rows_lie_apart_is_read_off_the_access(at: Any, bytes_apart: int) -> None:
    program = read_through(at).trace()
    (op,) = mmas_by_name(program).values()
    sizes = {"M": 8, "N": 4, "K": 32, "H": 8, "W": 16, "E": 32}
    axes = axes_in(op, lambda d: sizes[str(d)])
    assert not isinstance(axes, str)
    assert row_stride_of_a(program, op, axes, lambda d: sizes[str(d)]) == bytes_apart
