"""What has no elements is not computed: empty results without a launch, and sums of nothing, on every machine."""

from __future__ import annotations

from typing import Any

import fused_families
import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import compile_text, kernels
from tilewright.compiler.kernels import resolve
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.targets.registry import machine

IMAGE = {"N": 1, "H": 4, "W": 5, "C": 4, "F": 6}
PRODUCT = {"M": 4, "N": 5, "K": 6}
ATTENTION = {"B": 1, "H": 1, "M": 3, "N": 4, "D": 4, "E": 4}

EMPTY: dict[str, tuple[Any, dict[str, int]]] = {
    "no images": (kernels.conv((3, 3), "f32", padding=1), {**IMAGE, "N": 0}),
    "no filters": (kernels.conv((3, 3), "bf16", padding=1), {**IMAGE, "F": 0}),
    "no line fits": (kernels.conv((3, 3), "f32"), {**IMAGE, "H": 2}),
    "no column fits": (kernels.conv((1, 3), "bf16", stride=2), {**IMAGE, "W": 2}),
    "no filters in groups": (kernels.conv((3, 3), "f32", groups=2), {"N": 1, "H": 4, "W": 5, "CG": 2, "F": 0}),
    "three axes": (kernels.conv((3, 3, 3), "f32"), {**IMAGE, "D": 2}),
    "no rows": (kernels.gemm("nt", "bf16"), {**PRODUCT, "M": 0}),
    "no products": (kernels.gemm("nn", "f32", batched=True), {"B": 0, **PRODUCT}),
    "no queries": (kernels.attention(32, "bf16"), {**ATTENTION, "M": 0}),
    "softmax of nothing": (kernels.softmax(), {"M": 3, "N": 0}),
    "columns of nothing": (kernels.im2col((3, 3), "f32"), {"N": 1, "H": 4, "W": 4, "C": 0}),
    "no layers": (fused_families.two_layers(), {"M": 0, "N": 4, "K": 4, "F": 4}),
}
SUMS: dict[str, tuple[Any, dict[str, int]]] = {
    "no channels": (kernels.conv((3, 3), "f32", padding=1, bias=True), {**IMAGE, "C": 0}),
    "no channels in groups": (kernels.conv((3,), "bf16", groups=2), {"N": 1, "W": 5, "CG": 0, "F": 6}),
    "an image of nothing but zeros around it": (kernels.conv((3, 3), "bf16", padding=2), {**IMAGE, "H": 0}),
    "no depth": (kernels.gemm("nt", "bf16", "bf16", bias=True), {**PRODUCT, "K": 0}),
    "nothing between products": (fused_families.two_layers(), {"M": 3, "N": 4, "K": 4, "F": 0}),
    "queries without channels": (kernels.attention(32, "f32", scale=1.0), {**ATTENTION, "D": 0}),
    "a sum over no rows": (kernels.reduction("sum", "rows"), {"M": 0, "N": 4}),
}


def arguments(kernel: Any, sizes: dict[str, int]) -> list[np.ndarray]:
    """A kernel's arguments, of ones; what it writes is poisoned."""
    program = kernel.trace()
    symbols = {s for a in program.args for d in a.type.dims for s in d.symbols}
    known = resolve({**program.bindings, **{s: sizes[s.name] for s in symbols if s.name in sizes}})
    made = [np.ones([int(known.get(d, d)) for d in a.type.dims], a.type.dtype.numpy) for a in program.args]
    made[-1][...] = 77
    return made


def wanted(kernel: Any, sizes: dict[str, int]) -> np.ndarray:
    args = arguments(kernel, sizes)
    tilewright.compile(kernel, target="executor")(*args)
    return args[-1]


def bound(made: Any, args: list[np.ndarray]) -> np.ndarray:
    made.bind({a.name: x for a, x in zip(made.module.host.args, args, strict=True)})()
    return args[-1]


@pytest.mark.parametrize("name", EMPTY)
def test_what_is_empty_is_not_launched(name: str) -> None:
    kernel, sizes = EMPTY[name]
    result = wanted(kernel, sizes)
    assert result.size == 0
    for target, on in (("cpu", None), ("gpu:hopper", None), ("interpreter", "hopper"), ("interpreter", "x86.amx")):
        made = kernel_for(kernel, sizes, target=target, machine=None if on is None else machine(on))
        assert "launch " not in made.text("host").partition("block ")[0]
        assert "nothing is written: nothing is launched" in made.explain()
        if target != "gpu:hopper":
            assert bound(made, arguments(kernel, sizes)).shape == result.shape
            given = arguments(kernel, sizes)[:-1]
            assert compile_text(made.text("host"), "interpreter")(*given).shape == result.shape


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_of_nothing_is_what_it_starts_from(name: str) -> None:
    kernel, sizes = SUMS[name]
    result = wanted(kernel, sizes)
    assert result.size
    kernel_for(kernel, sizes, target="gpu:hopper").text("asm")
    for target, on in (("cpu", None), ("interpreter", "hopper"), ("interpreter", "x86.amx")):
        made = kernel_for(kernel, sizes, target=target, machine=None if on is None else machine(on))
        assert np.array_equal(bound(made, arguments(kernel, sizes)), result)


@pytest.mark.parametrize("target", ["cpu", "gpu:hopper"])
@pytest.mark.parametrize(
    ("kernel", "sizes", "dynamic"),
    [
        (kernels.conv((3, 3), "f32"), {**IMAGE, "H": 2}, ["H"]),  # it is planned for an image that a filter fits
        (kernels.conv((3, 3), "f32", padding=1), {**IMAGE, "C": 0}, ["N", "H", "W"]),
        (kernels.conv((3, 3), "bf16", padding=1), {**IMAGE, "N": 0}, ["N"]),
        (kernels.gemm("nt", "bf16"), {**PRODUCT, "K": 0}, ["M"]),
        (kernels.gemm("nt", "bf16"), {**PRODUCT, "M": 0, "K": 0}, ["M", "K"]),
    ],
)
def test_sizes_beside_open_ones_may_be_nothing(kernel: Any, sizes: Any, dynamic: list[str], target: str) -> None:
    made = kernel_for(kernel, sizes, target=target, dynamic=dynamic)
    if target == "cpu":
        assert np.array_equal(bound(made, arguments(kernel, sizes)), wanted(kernel, sizes))


def test_a_loop_that_writes_is_kept_where_nothing_needs_what_it_carries() -> None:
    m, n, k, place = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.GLOBAL_ADDRESS_SPACE

    @tkw.wave([tkw.TilingConstraint(n, 2)])
    def sums(
        x: tkl.Memory[m, n, place, tkl.f32],
        nothing: tkl.Memory[k, place, tkl.f32],
        also: tkl.Memory[k, place, tkl.f32],
        y: tkl.Memory[m, n, place, tkl.f32],
    ) -> None:
        @tkw.iterate(n, init_args=[tkl.Register[m, tkl.f32](0)])
        def walk(before: Any) -> Any:
            values = tkw.read(x)
            tkw.write(tkw.cumsum(values, before, dim=n), y)
            return tkw.sum(values, before, dim=n)

        tkw.write(tkw.read(nothing), also)

    x, empty = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(0, np.float32)
    for target in ("executor", "cpu"):
        y = np.full_like(x, 77)
        tilewright.compile(sums, target=target)(x, empty, empty, y)
        assert np.array_equal(y, x.cumsum(1))


def test_a_negative_size_is_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match="conv: P comes out as -1; it must be at least 0"):
        kernel_for(kernels.conv((3, 3), "f32"), {**IMAGE, "H": 1})


def test_the_largest_of_nothing_is_refused_as_the_executor_does() -> None:
    for target in ("executor", "cpu"):
        with pytest.raises(tilewright.errors.ExecutionError, match="max over N: there is nothing to combine"):
            tilewright.compile(kernels.reduction("max"), target=target)(np.ones((3, 0), np.float32))
