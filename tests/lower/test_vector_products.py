"""Products without rows or columns: sums over lanes on a GPU, exactly, on Hopper's interpreter; sums on CPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

GLOBAL, bf16, f32, i8, i32 = tkl.GLOBAL_ADDRESS_SPACE, tkl.bf16, tkl.f32, tkl.i8, tkl.i32
B, H, K, M, N, R = (getattr(tkl.sym, s) for s in "BHKMNR")
HOPPER = machine("hopper")


def matrix_vector(data: Any = bf16, total: Any = f32, *, first: bool = False) -> Any:
    """y = w x, the vector as the first or the second operand, in a loop over K."""

    @tkw.wave()
    def matrix_vector(
        w: tkl.Memory[N, K, GLOBAL, data], x: tkl.Memory[K, GLOBAL, data], y: tkl.Memory[N, GLOBAL, total]
    ) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[N, total](0)])
        def sums(acc: Any) -> Any:
            operands = (tkw.read(x), tkw.read(w)) if first else (tkw.read(w), tkw.read(x))
            return tkw.mma(*operands, acc)

        tkw.write(sums, y)

    return matrix_vector


def batched_and_more() -> Any:
    """y[b] = x[b] w[b] + 3, a vector by a matrix for each b: the sum starts from 3."""

    @tkw.wave()
    def batched_and_more(
        x: tkl.Memory[B, K, GLOBAL, bf16], w: tkl.Memory[B, K, N, GLOBAL, bf16], y: tkl.Memory[B, N, GLOBAL, f32]
    ) -> None:
        tkw.write(tkw.mma(tkw.read(x), tkw.read(w), tkl.Register[B, N, f32](3.0)), y)

    return batched_and_more


def depthwise() -> Any:
    """y[n, h] = the sum over r of x[n, h + r - 1] * w[n, r]."""
    n, h, r = (tkw.IndexMapping.iterator(i) for i in range(3))
    window = tkw.IndexMapping(3, inputs={N: n, H: h + r - 1}, outputs={N: n, H: h, R: r})

    @tkw.wave()
    def depthwise(
        x: tkl.Memory[N, H, GLOBAL, bf16], w: tkl.Memory[N, R, GLOBAL, bf16], y: tkl.Memory[N, H, GLOBAL, f32]
    ) -> None:
        image = tkw.read(x, mapping=window, otherwise=0)
        tkw.write(tkw.mma(image, tkw.read(w), tkl.Register[N, H, f32](0)), y)

    return depthwise


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        (matrix_vector(), {"N": 200, "K": 333}),
        (matrix_vector(first=True), {"N": 33, "K": 1000}),
        (matrix_vector(i8, i32), {"N": 70, "K": 264}),
        (batched_and_more(), {"B": 5, "K": 77, "N": 130}),
        (depthwise(), {"N": 37, "H": 55, "R": 3}),
    ],
    ids=["matrix by vector", "vector by matrix", "bytes", "batch", "depthwise"],
)
def test_a_product_without_rows_ran_on_a_matrix_unit(kernel: Any, sizes: dict[str, int]):
    made = kernel_for(kernel, sizes, machine=HOPPER)
    assert made.plan is not None
    assert not made.plan.products
    rng = np.random.default_rng(sum(sizes.values()))
    *given, result = made.module.host.args
    arrays = [rng.integers(-3, 4, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy) for a in given]
    wanted = tilewright.compile(kernel, target="executor")(*arrays)
    y = np.zeros([int(n) for n in result.type.shape], wanted.dtype)
    made.executor.bind([*arrays, y])()
    assert np.array_equal(y, wanted)


def test_a_plan_that_names_an_atom_is_still_read():
    sizes = {"N": 40, "K": 64}
    plan = "axis N = (N 40): task 8; axis unit = (unit 1): whole; axis K = (K 64): whole; grid N"
    made = kernel_for(matrix_vector(), sizes, machine=HOPPER, plan=f"{plan}; mma by mma.m16n8k16.bf16, tile 16x8")
    assert made.plan is not None
    assert [line.atom for line in made.plan.products] == ["mma.m16n8k16.bf16"]


@pytest.mark.parametrize(
    ("kernel", "sizes", "matrix", "sums"),
    [
        (matrix_vector(f32), {"N": 45, "K": 333}, "w", True),
        (matrix_vector(f32, first=True), {"N": 200, "K": 64}, "w", True),
        (kernels.gemm("nt", "f32", "f32"), {"M": 1, "N": 77, "K": 130}, "b", True),
        (kernels.gemm("nt", "i8", "i32"), {"M": 1, "N": 33, "K": 100}, "b", True),
        (kernels.gemm("tt", "f32", "f32"), {"M": 77, "N": 1, "K": 130}, "a", False),
    ],
    ids=["matrix by vector", "vector by matrix", "one row", "bytes", "not along K"],
)
def test_a_cpu_sums_along_the_rows_of_a_matrix_that_is_not_constant(
    kernel: Any, sizes: dict[str, int], matrix: str, sums: bool
):
    """An MMA would transpose the matrix first, at every launch."""
    made = kernel_for(kernel, sizes, target="cpu")
    packed = kernel_for(kernel, sizes, target="cpu", constant=[matrix])
    assert [not each.plan.products and each.plan.atom is None for each in (made, packed)] == [sums, False]
    rng = np.random.default_rng(sum(sizes.values()))
    *given, result = made.module.host.args
    arrays = [rng.integers(-3, 4, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy) for a in given]
    wanted = tilewright.compile(kernel, sizes, target="executor")(*arrays)
    for each in (made, packed):
        y = np.full([int(n) for n in result.type.shape], 77, wanted.dtype)
        each.bind(dict(zip([a.name for a in (*given, result)], [*arrays, y], strict=True)))()
        assert np.array_equal(y, wanted)


@pytest.mark.parametrize("order", ["nn", "nt"])
def test_few_rows_read_a_matrix_that_is_not_constant_in_place(order: str):
    """Packing it at every launch took ten times as long as the product."""
    sizes, row = {"M": 4, "N": 4096, "K": 4096}, machine("x86.avx512")
    kernel = kernels.gemm(order, "f32", "f32")
    programs = [kernel_for(kernel, sizes, machine=row, constant=names).module.programs for names in ((), ("b",))]
    assert [any(name.startswith("pack") for name in each) for each in programs] == [False, True]
