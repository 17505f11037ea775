"""Dynamic sizes of the kernels that a GPU does without roles, or by products of one wave: compiled, and exact."""

from __future__ import annotations

from typing import Any

import fused_families
import numpy as np
import pytest

import tilewright
from tilewright import compile_text, kernels
from tilewright.algebra.expr import index, symbol
from tilewright.algebra.expr_rules import minimum
from tilewright.analysis.in_bounds import facts_if_true, is_proved
from tilewright.compiler.kernels import resolve
from tilewright.compiler.native import kernel_for
from tilewright.errors import ProgramError
from tilewright.targets.registry import machine

IMAGE = {"N": 2, "H": 5, "W": 7, "C": 8, "F": 20}
PRODUCT = {"M": 70, "N": 72, "K": 40}
ATTENTION = {"B": 1, "H": 2, "M": 40, "N": 70, "D": 16, "E": 16}


def check(
    kernel: Any, dynamic: str, usual: dict[str, int], *others: dict[str, int], bound: float = 0, loops: bool = False
) -> None:
    """The kernel for Hopper with open sizes has machine code, and its programs give what the executor does; with
    `loops`, those of the loop level."""
    run, opened = tilewright.compile(kernel, target="gpu:hopper", dynamic=dynamic.split()), dynamic.split()
    made = run.of_sizes(usual)
    assert ".visible .entry" in made.text("asm")
    text = made.text("host")
    if loops:
        lowered = [made.executor.prepared(name, {})[0].kernel.loop for name in made.module.programs]
        text = "\n".join(map(str, (made.module.host, *lowered)))
    done, meant = compile_text(text, "interpreter"), tilewright.compile(kernel, target="executor")
    for sizes in ({**usual, **{n: x for n, x in other.items() if n in opened}} for other in others):
        symbols = {s for a in run.program.args for d in a.type.dims for s in d.symbols}
        known = resolve({**run.program.bindings, **{s: sizes[s.name] for s in symbols if s.name in sizes}})
        rng = np.random.default_rng(5)
        args = [
            rng.integers(-3, 4, [int(known.get(d, d)) for d in a.type.dims]).astype(a.type.dtype.numpy)
            for a in run.program.args[:-1]
        ]
        got, wanted = (f(*args).astype(np.float64) for f in (done, meant))
        np.testing.assert_allclose(got, wanted, rtol=bound, atol=bound, err_msg=str(sizes))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dynamic", ["N", "N H W"])
@pytest.mark.parametrize(
    "options",
    [{"padding": 1}, {}, {"stride": 2, "padding": 1}],
    ids=["with padding", "without padding", "strided"],
)
def test_a_convolution_of_f32_is_open(options: dict[str, Any], dynamic: str) -> None:
    check(kernels.conv((3, 3), "f32", **options), dynamic, IMAGE, {"N": 1, "H": 4, "W": 3}, {"N": 3, "H": 9, "W": 8})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", ["M", "N", "M N K"])
@pytest.mark.parametrize(("transposes", "dtype"), [("nt", "f32"), ("tn", "bf16")])
def test_every_size_of_a_product_is_open(transposes: str, dtype: str, dynamic: str) -> None:
    others = {"M": 1, "N": 1, "K": 1}, {"M": 53, "N": 140, "K": 33}
    check(kernels.gemm(transposes, dtype), dynamic, PRODUCT, *others)


@pytest.mark.parametrize(
    ("kernel", "usual", "other", "bound"),
    [
        (kernels.conv((3, 3), "f32", padding=1), IMAGE, {"N": 3, "H": 9, "W": 8}, 0),
        (kernels.gemm("nt", "f32"), PRODUCT, {"M": 53, "N": 140, "K": 33}, 0),
        (kernels.gemm("tn", "bf16"), PRODUCT, {"M": 53, "N": 140, "K": 33}, 0),
        (kernels.attention(32, "bf16", causal=True), ATTENTION, {"B": 1, "H": 1, "M": 7, "N": 33}, 2e-2),
    ],
)
def test_lowered_programs_of_open_sizes_are_right(kernel: Any, usual: Any, other: Any, bound: float) -> None:
    check(kernel, " ".join(other), usual, other, bound=bound, loops=True)


def test_tasks_of_an_open_product_are_whole_blocks() -> None:
    made = kernel_for(kernels.gemm("nt", "f64"), {"M": 200, "N": 136, "K": 64}, target="gpu:hopper", dynamic=["M", "N"])
    cuts = {axis.name: (axis.split("task"), axis.split("loop")) for axis in made.plan.axes}
    for name in "MN":
        task, loop = cuts[name]
        assert task is not None
        assert loop is not None
        assert task.size == loop.size > 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", ["N", "B H M N D E"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_keys_of_attention_are_open(dtype: str, dynamic: str) -> None:
    others = {"B": 2, "H": 1, "M": 7, "N": 33, "D": 16, "E": 8}
    check(kernels.attention(32, dtype, causal=True), dynamic, ATTENTION, others, bound=2e-2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["aarch64.neon", "x86.avx2", "x86.avx512", "x86.amx", "cdna3", "hopper"])
def test_attention_is_open_on_every_machine(name: str) -> None:
    for dynamic, dtype in ((["M", "N"], "bf16"), (["M", "N", "D", "E"], "f32")):
        kernel_for(kernels.attention(32, dtype), ATTENTION, machine=machine(name), dynamic=dynamic)


def test_what_follows_for_all_values_of_an_open_size() -> None:
    n = symbol("N", 1, 1 << 20)
    i, j = index("i", 64), index("j", 32)
    pieces, whole = (49 * n + 15) // 16, 49 * n // 16
    last = 64 * pieces - 1 - (64 * whole + i)
    assert is_proved(last, facts_if_true(49 * n % 16 >= 1))
    assert not is_proved(last)  # without a piece that is not whole there is none
    assert not is_proved(last - 1, facts_if_true(49 * n % 16 >= 1))
    part = index("part", n // 32 % 2)
    assert is_proved(n % 64 - 1 - (32 * part + j))
    assert not is_proved(n % 64 - 2 - (32 * part + j))
    both = (n % 8 >= 1) * (n % 3 >= 1)
    assert is_proved((n + 7) // 8 - 1 - n // 8, facts_if_true(both))
    q = symbol("Q", 1, 1 << 20)
    row = index("row", (n * q + 1) // 2)
    flat = 2 * row + index("i", minimum(2, n * q - 2 * row))
    assert is_proved(n - 1 - flat // q)  # the image of a pixel
    assert not is_proved(n - 2 - flat // q)
    last = (64 * (q // 4) + minimum(16 * (q % 4) - 1, i)) // (4 * q)
    assert is_proved(3 - last)
    assert not is_proved(2 - last)


@pytest.mark.parametrize(
    ("options", "sizes", "dynamic"),
    [
        ({"filter_size": (3,), "groups": 2}, {"N": 1, "W": 3, "CG": 1, "F": 2}, ["N", "W"]),
        ({"filter_size": (3, 3, 3), "stride": 2}, {"N": 1, "D": 9, "H": 9, "W": 9, "C": 8, "F": 16}, ["D"]),
        ({"filter_size": (3, 3, 3), "stride": 2}, {"N": 1, "D": 9, "H": 9, "W": 9, "C": 8, "F": 16}, ["W"]),
    ],
)
def test_odd_images_without_padding_are_open(options: dict[str, Any], sizes: Any, dynamic: list[str]) -> None:
    kernel_for(kernels.conv(dtype="f32", **options), sizes, target="gpu:hopper", dynamic=dynamic)


@pytest.mark.parametrize("target", ["cpu:aarch64.neon", "gpu:hopper"])
def test_a_size_that_follows_from_an_open_one_is_bound(target: str) -> None:
    kernel, sizes = fused_families.widened("i8", 32), {"M": 40, "N": 24, "K": 64}
    for dynamic, below in (("K", "2"), ("S", "S")):
        with pytest.raises(ProgramError, match=rf"1, K//32, cannot .* below {below} .*: bind a size .*, or add otherw"):
            kernel_for(kernel, {**sizes, "S": 2}, target=target, dynamic=[dynamic])
    bound = kernel.bound({fused_families.S: (fused_families.K + 31) // 32})
    made = kernel_for(bound, sizes, target=target, dynamic=["M", "K"])
    assert "s: bf16[24, (K + 31)//32]" in repr(made)
