"""Sizes that only a call tells, through the general lowering: one kernel, exact at sizes that it has never seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.kernels import resolve
from tilewright.errors import ArgumentError, ProgramError
from tilewright.lang.global_symbols import WORKGROUP_0, WORKGROUP_1
from tilewright.targets.registry import machine

SIZES = ((20, 70), (1, 1), (7, 33), (64, 1000), (300, 5), (3, 128))
FEW = ((20, 70), (1, 1), (33, 130))


def numbers(kernel: Any, sizes: Mapping[str, int], seed: int, limit: int = 4) -> list[np.ndarray]:
    """A kernel's arguments but the last, filled with small integers."""
    rng, program = np.random.default_rng(seed), kernel.trace()
    known = resolve({**program.bindings, **{s: sizes[s.name] for s in _symbols(program) if s.name in sizes}})
    made = []
    for arg in program.args[:-1]:
        shape = [int(known.get(d, d)) for d in arg.type.dims]
        low = 0 if arg.name == "index" else -limit + 1
        made.append(rng.integers(low, limit, shape).astype(arg.type.dtype.numpy))
    return made


def _symbols(program: Any) -> set[Any]:
    return {s for a in program.args for d in a.type.dims for s in d.symbols}


def check(kernel: Any, dynamic: str, calls: list[dict[str, int]], bound: float = 0, on: str | None = None) -> Any:
    """One kernel of the general path runs all calls: exactly, or within a bound. `on` a machine: by the interpreter."""
    run = tilewright.compile(kernel, target="cpu", dynamic=dynamic.split())
    run.path = "general"
    if on is not None:
        run.target, run._machine = "interpreter", machine(on)
    meaning = tilewright.compile(kernel, target="executor")
    for seed, sizes in enumerate(calls):
        args = numbers(kernel, sizes, seed)
        got, wanted = run(*args), meaning(*args)
        assert got.shape == wanted.shape
        if bound:
            np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=bound, atol=bound)
        else:
            assert np.array_equal(got, wanted), sizes
    assert len(run._kernels) == 1
    return run


def fixed(dynamic: str, usual: dict[str, int], calls: Any) -> list[dict[str, int]]:
    """Calls in which only dynamic sizes are others than usual."""
    found = [dict(zip(usual, sizes, strict=True)) for sizes in (tuple(usual.values()), *calls)]
    return [{name: n if name in dynamic.split() else usual[name] for name, n in sizes.items()} for sizes in found]


ROWWISE = {
    "relu": (kernels.activation("relu"), 0),
    "gelu": (kernels.activation("gelu"), 1e-6),
    "softmax": (kernels.softmax(), 1e-6),
    "online softmax": (kernels.online_softmax(32), 1e-6),
    "layer norm": (kernels.layer_norm(), 1e-5),
    "rms norm": (kernels.rms_norm(), 1e-6),
    "sum": (kernels.reduction("sum"), 0),
    "largest of columns": (kernels.reduction("max", "rows"), 0),
    "product of bytes": (kernels.reduction("prod", "rows", "i8", "i32"), 0),
    "running sum": (kernels.running_sum(), 0),
    "running sum by tiles": (kernels.tiled_running_sum(16), 0),
    "gather": (kernels.gather_rows(), 0),
}


@pytest.mark.parametrize(
    ("name", "dynamic"), [*((name, "M N") for name in ROWWISE), ("softmax", "M"), ("softmax", "N"), ("gather", "N")]
)
def test_rows_and_columns_are_open(name: str, dynamic: str) -> None:
    kernel, bound = ROWWISE[name]
    sizes = [{"ROWS": 9, **each} for each in fixed(dynamic, {"M": 20, "N": 70}, SIZES)]
    check(kernel, dynamic, sizes, bound)


@pytest.mark.parametrize("name", ROWWISE)
def test_rows_and_columns_are_open_on_the_interpreter(name: str) -> None:
    kernel, bound = ROWWISE[name]
    check(kernel, "M N", [{"ROWS": 9, "M": m, "N": n} for m, n in FEW], bound, "x86.avx512")


@pytest.mark.parametrize("dynamic", ["D0", "D1", "D0 D1 D2"])
def test_a_transpose_is_open(dynamic: str) -> None:
    calls = fixed(dynamic, {"D0": 20, "D1": 30, "D2": 4}, ((1, 1, 1), (7, 100, 3), (130, 17, 9)))
    check(kernels.transpose((2, 0, 1)), dynamic, calls)


def test_places_that_data_decide_are_open() -> None:
    rng = np.random.default_rng(0)
    scatter = tilewright.compile(kernels.scatter_rows(), target="cpu", dynamic=["M", "N", "ROWS"])
    for m, n, rows in ((10, 40, 20), (1, 1, 1), (30, 7, 33)):
        x, index = rng.random((m, n), np.float32), rng.permutation(rows)[:m].astype(np.int32)
        table = np.zeros((rows, n), np.float32)
        scatter(x, index, table)
        wanted = np.zeros((rows, n), np.float32)
        wanted[index] = x
        assert np.array_equal(table, wanted)
    histogram = tilewright.compile(kernels.histogram(), target="cpu", dynamic=["M", "BINS"])
    for m, bins in ((100, 20), (1, 1), (3000, 33)):
        x, counts = rng.integers(-2, bins + 2, m).astype(np.int32), np.zeros(bins, np.int32)
        histogram(x, counts)
        assert np.array_equal(counts, np.bincount(x[(x >= 0) & (x < bins)], minlength=bins))
    assert len(scatter._kernels) == len(histogram._kernels) == 1


def test_an_index_outside_an_open_table_is_an_error() -> None:
    run = tilewright.compile(kernels.gather_rows(), target="cpu", dynamic=["M", "N", "ROWS"])
    run(np.zeros((9, 4), np.float32), np.zeros(3, np.int32))
    with pytest.raises(ProgramError, match="read leaves its tensor"):
        run(np.zeros((2, 5), np.float32), np.array([0, 2], np.int32))


# -- products -------------------------------------------------------------------------------------------------

PRODUCTS = ((1, 1, 1), (7, 33, 5), (130, 200, 64), (33, 5, 300))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dynamic", ["M", "N", "K", "M N K"])
@pytest.mark.parametrize(("transposes", "dt"), [("nn", "f32"), ("nt", "f32"), ("nt", "bf16"), ("nn", "i8")])
def test_a_product_is_open(transposes: str, dt: str, dynamic: str) -> None:
    kernel = kernels.gemm(transposes, dt)
    check(kernel, dynamic, fixed(dynamic, {"M": 20, "N": 70, "K": 40}, PRODUCTS))


@pytest.mark.parametrize("dynamic", ["M", "N K"])
@pytest.mark.parametrize(("dt", "atom"), [("bf16", "amx.bf16"), ("i8", "amx.s8")])
def test_a_product_in_tile_registers_is_open(dt: str, atom: str, dynamic: str) -> None:
    calls = fixed(dynamic, {"M": 40, "N": 70, "K": 96}, ((1, 1, 1), (33, 5, 300)))
    run = check(kernels.gemm("nt", dt, bias=True, activation="relu"), dynamic, calls, on="x86.amx")
    assert [p.atom for p in run._last.plan.products] == [atom]


@pytest.mark.parametrize("machine_name", ["aarch64.neon", "x86.avx2", "cdna3"])
def test_a_product_is_open_on_other_machines(machine_name: str) -> None:
    calls = fixed("M", {"M": 20, "N": 24, "K": 16}, ((1, 0, 0), (33, 0, 0)))
    check(kernels.gemm("nn", "f32"), "M", calls, on=machine_name)


@pytest.mark.parametrize("dynamic", ["B", "B M N K"])
@pytest.mark.parametrize("transposes", ["nn", "tt"])
def test_a_batched_product_is_open(transposes: str, dynamic: str) -> None:
    calls = fixed(dynamic, {"B": 3, "M": 20, "N": 70, "K": 40}, ((1, 1, 1, 1), (5, 7, 33, 5), (2, 130, 20, 64)))
    check(kernels.gemm(transposes, "f32", batched=True), dynamic, calls)


ATTENTION = ((1, 1, 1, 1, 1, 1), (1, 2, 40, 33, 8, 5), (3, 1, 7, 130, 32, 20))


@pytest.mark.parametrize("dynamic", ["M N", "D", "B H"])
def test_attention_is_open(dynamic: str) -> None:
    calls = fixed(dynamic, {"B": 2, "H": 3, "M": 20, "N": 70, "D": 16, "E": 16}, ATTENTION)
    check(kernels.attention(32, "f32", causal=True), dynamic, calls, 1e-5)


def test_attention_in_tile_registers_is_open() -> None:
    dynamic = "B M N"
    calls = fixed(dynamic, {"B": 1, "H": 1, "M": 40, "N": 70, "D": 32, "E": 32}, ((2, 1, 7, 33, 32, 32),))
    run = check(kernels.attention(32, "bf16"), dynamic, calls, 1e-2, on="x86.amx")
    assert [p.atom for p in run._last.plan.products] == ["amx.bf16", "amx.bf16"]


# -- convolutions ---------------------------------------------------------------------------------------------

FORMS: dict[str, dict[str, Any]] = {
    "3x3": {"filter_size": (3, 3), "C": 8, "F": 20, "padding": 1},
    "1x1": {"filter_size": (1, 1), "C": 16, "F": 33},
    "strided and uneven": {
        "filter_size": (3, 2),
        "C": 5,
        "F": 17,
        "stride": (2, 1),
        "padding": ((0, 2), (1, 0)),
        "dilation": (1, 2),
    },
    "without padding": {"filter_size": (3, 3), "C": 4, "F": 16},
    "groups": {"filter_size": (3, 3), "CG": 4, "F": 6, "groups": 2, "padding": 1},
    "one axis": {"filter_size": (5,), "C": 3, "F": 9, "padding": 2},
    "three axes": {"filter_size": (2, 2, 3), "C": 3, "F": 5, "padding": 1},
}
IMAGES = ((1, 5, 9, 7), (2, 7, 4, 31), (1, 8, 20, 3), (1, 3, 3, 64))


def convolutions(form: str, dynamic: str) -> tuple[Any, str, list[dict[str, int]]]:
    """A convolution, which of its sizes are open, and calls of it."""
    options = dict(FORMS[form])
    sizes = {name: options.pop(name) for name in ("C", "CG", "F") if name in options}
    rank = len(options["filter_size"])
    names = ["N", *"DHW"[3 - rank :]]
    opened = "N" if dynamic == "batch" else " ".join(names)
    calls = [dict(zip(names, (n, *extents[3 - rank :]), strict=True)) for n, *extents in IMAGES]
    return (
        kernels.conv(**options),
        opened,
        [{**sizes, **each} for each in fixed(opened, calls[0], map(dict.values, calls))],
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dynamic", ["batch", "image"])
@pytest.mark.parametrize("form", FORMS)
def test_a_convolution_is_open(form: str, dynamic: str) -> None:
    check(*convolutions(form, dynamic))


@pytest.mark.parametrize("form", ["3x3", "without padding"])
def test_a_convolution_is_open_on_the_interpreter(form: str) -> None:
    kernel, opened, calls = convolutions(form, "image")
    check(kernel, opened, calls[:3], on="x86.avx512")


def test_an_image_is_open_in_tile_registers() -> None:
    kernel = kernels.conv((3, 3), "bf16", "f32", padding=1)
    calls = [{"N": n, "H": h, "W": w, "C": 32, "F": 20} for n, h, w in ((1, 5, 9), (2, 4, 17), (1, 1, 1))]
    run = check(kernel, "N H W", calls, on="x86.amx")
    assert [p.atom for p in run._last.plan.products] == ["amx.bf16"]


def test_taps_of_an_odd_number_of_channels_are_copied_where_an_atom_takes_pairs() -> None:
    kernel = kernels.conv((3, 2), "bf16", "f32", stride=(2, 1), padding=((0, 2), (1, 0)))
    calls = [{"N": n, "H": h, "W": w, "C": 5, "F": 17} for n, h, w in ((1, 9, 7), (2, 4, 11))]
    check(kernel, "N H W", calls, on="x86.amx")


def test_im2col_is_open() -> None:
    kernel = kernels.im2col((3, 2), "f32", padding=(1, 1), stride=(2, 1))
    check(kernel, "N H W", [{"N": n, "H": h, "W": w, "C": 3} for n, _, h, w in IMAGES])


# -- grid programs --------------------------------------------------------------------------------------------

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
GLOBAL, SHARED = tkl.GLOBAL_ADDRESS_SPACE, tkl.SHARED_ADDRESS_SPACE


def grid_product(dtype: Any, rows: int, columns: int, depth: int) -> Any:
    """A product in tiles, which says which workgroup it is."""

    @tkw.wave(
        [
            tkw.WorkgroupConstraint(M, rows, 0),
            tkw.WorkgroupConstraint(N, columns, 1),
            tkw.TilingConstraint(K, depth),
        ]
    )
    def product(
        a: tkl.Memory[M, K, GLOBAL, dtype], b: tkl.Memory[N, K, GLOBAL, dtype], c: tkl.Memory[M, N, GLOBAL, tkl.f32]
    ) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        tkw.write(total + tkw.scalar(WORKGROUP_0 + 100 * WORKGROUP_1, tkl.f32), c)

    return product


@pytest.mark.parametrize("dynamic", ["M", "M N K"])
def test_a_grid_program_is_open(dynamic: str) -> None:
    check(grid_product(tkl.f32, 32, 48, 16), dynamic, fixed(dynamic, {"M": 40, "N": 70, "K": 40}, PRODUCTS))


def test_a_grid_program_is_open_in_tile_registers() -> None:
    calls = fixed("M N", {"M": 40, "N": 40, "K": 64}, ((1, 1, 1), (33, 5, 1)))
    run = check(grid_product(tkl.bf16, 32, 32, 32), "M N", calls, on="x86.amx")
    assert [p.atom for p in run._last.plan.products] == ["amx.bf16"]


def test_shared_memory_of_workgroups_is_open() -> None:
    @tkw.wave([tkw.WorkgroupConstraint(M, 16, 0)])
    def centred(x: tkl.Memory[M, N, GLOBAL, tkl.f32], y: tkl.Memory[M, N, GLOBAL, tkl.f32]) -> None:
        held = tkw.allocate((M, N), (M, N), tkl.f32)
        tkw.write(tkw.read(x) + tkw.scalar(WORKGROUP_0, tkl.f32), held)
        tkw.write(tkw.read(held) - tkw.max(tkw.read(held), dim=N), y)

    check(centred, "M N", [{"M": m, "N": n} for m, n in SIZES])


def test_workgroups_that_do_not_lie_side_by_side_are_refused_by_name() -> None:
    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0), tkw.ReorderingConstraint(WORKGROUP_0 + 1, 0)])
    def moved(x: tkl.Memory[M, GLOBAL, tkl.f32], y: tkl.Memory[M, GLOBAL, tkl.f32]) -> None:
        tkw.write(tkw.read(x) + tkw.scalar(WORKGROUP_0, tkl.f32), y)

    run = tilewright.compile(moved, target="cpu", dynamic=["M"])
    with pytest.raises(ProgramError, match="with M dynamic, its reordering constraint has no native form"):
        run(np.ones(8, np.float32))


def test_what_numbers_elements_along_a_dynamic_size_is_refused_by_name() -> None:
    text = """tile flat(%x: global f32[M, N], %y: global f32[M*N])
  symbols M, N
{
  %0 = read %x : f32[M, N]
  %1 = reshape %0 to=[M*N] : f32[M*N]
  write %1, %y
}"""
    run = tilewright.compile(text, target="cpu", dynamic=["M"])
    with pytest.raises(ProgramError, match="it numbers elements along M, which is dynamic"):
        run(np.ones((3, 4), np.float32))
    assert np.array_equal(tilewright.compile(text, target="cpu")(np.ones((3, 4), np.float32)), np.ones(12))


# -- calls ----------------------------------------------------------------------------------------------------


def test_a_size_that_no_open_kernel_takes_has_its_own() -> None:
    run = tilewright.compile(kernels.gemm("nn", "f32"), target="cpu", dynamic=["M", "K"])
    run.path = "general"
    one = np.ones((3, 4), np.float32)
    assert np.array_equal(run(one, one.T), one @ one.T)
    empty = run(np.ones((3, 0), np.float32), np.ones((0, 3), np.float32))
    assert np.array_equal(empty, np.zeros((3, 3), np.float32))


def test_a_plan_says_which_sizes_are_open_and_is_taken_again() -> None:
    kernel = kernels.gemm("nt", "f32")
    run = tilewright.compile(kernel, target="cpu", dynamic=["M", "N"])
    run.path = "general"
    a, b = (np.ones((40, 16), np.float32) for _ in range(2))
    run(a, b)
    plan = run.text("plan")
    assert "axis M = (M 40?): task" in plan
    assert "axis K = (K 16): whole" in plan
    again = tilewright.compile(kernel, target="cpu", dynamic=["M", "N"], plan=plan)
    again.path = "general"
    assert np.array_equal(again(a, b), a @ b.T)
    assert again.text("plan") == plan
    with pytest.raises(ArgumentError, match="open here are M, N"):
        tilewright.compile(kernel, target="cpu", dynamic=["M", "N"], plan=plan.replace("?", ""))(a, b)


def test_bf16_is_held_in_memory_of_open_sizes() -> None:
    run = tilewright.compile(kernels.softmax("bf16"), target="cpu", dynamic=["M", "N"])
    for m, n in ((5, 40), (1, 1), (30, 700)):
        y = run(np.zeros((m, n), ml_dtypes.bfloat16))
        assert np.array_equal(y, np.full((m, n), 1 / n).astype(ml_dtypes.bfloat16))
