"""Contractions in tile registers, planned for a machine that has them: exact on the interpreter, without races."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from ml_dtypes import bfloat16
from tile_checks import own_cache  # noqa: F401

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.cli.workload import Workload, read_problem, read_types
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
WHOLE = machine("x86.amx")
TILES = replace(WHOLE, multiply={name: atom for name, atom in WHOLE.multiply.items() if name.startswith("amx.")})
"""A machine that multiplies by tiles alone, also what vectors would do faster."""

PROBLEMS = {
    "rows that end within a block": ("70x64:64x40", "bf16"),
    "fewer rows than a block": ("5x96:96x33", "bf16"),
    "an odd depth": ("40x50:50x70", "bf16"),
    "a batch": ("2x33x64:2x64x20", "s8"),
    "a pointwise convolution": ("mb2ic32ih5iw7oc40kh1kw1", "bf16"),
    "lines with padding": ("mb2ic20ih6iw9oc20kh3kw3ph1pw1", "bf16"),
    "lines that are dilated": ("mb1ic33ih8iw7oc9kh3kw3ph2pw2dh1dw1", "bf16"),
    "padding before only": ("mb1ic17ih5iw33oc18oh5ow33kh1kw2pw1", "s8"),
    "strides": ("mb1ic20ih9iw11oc17kh3kw3sh2sw2ph1pw1", "s8"),
    "few channels and their taps": ("mb1ic3ih9iw10oc20kh5kw5sh2sw2ph2pw2", "bf16"),
    "groups": ("g2mb1ic40ih5iw6oc34kh3kw3ph1pw1", "bf16"),
    "one axis": ("mb2ic20iw21oc18kw3pw1", "bf16"),
    "three axes": ("mb1ic9id3ih4iw5oc18kd3kh3kw2pd1ph1", "bf16"),
}


def problem(name):
    text, types = PROBLEMS[name]
    return Workload(read_problem(text), read_types(types))


def kind_of(plan):
    """The digits of a plan, the order of its loops, and how A is staged: by these few plans differ in their code."""
    names = tuple(digit.name for axis in plan.axes for digit in axis.digits)
    return names, plan.loops, plan.values[0].form


def exact(work, plan=None):
    """The kernel of a problem under a plan, after it was found exact."""
    kernel, sizes = work.kernel
    made = kernel_for(kernel, sizes, machine=TILES, plan=plan)
    arrays = work.arrays(np.random.default_rng(1), exact=True)
    made.bind(arrays)()
    *_, out = arrays.values()
    np.testing.assert_array_equal(out.astype(np.float64), work.reference(arrays).astype(out.dtype).astype(np.float64))
    return made


@pytest.mark.parametrize("name", PROBLEMS)
def test_contractions_in_tile_registers_are_exact(name):
    """Under the best plan, others that stage rows otherwise or have another order, and without deferred stores."""
    work = problem(name)
    made = exact(work)
    seen = {kind_of(made.plan)}
    plans = {str(made.plan).replace("overlap delayed store", "overlap none")}
    for other in made.choice.candidates:
        kind = kind_of(other.plan)
        if kind not in seen:
            seen.add(kind)
            plans.add(str(other.plan))
    for plan in plans:
        exact(work, plan)


@pytest.mark.parametrize(("m", "n", "k"), [(100, 256, 100), (100, 77, 33), (333, 64, 50)])
def test_an_epilogue_read_rows_past_the_end_of_its_tensor(m, n, k):
    """Where rows of a staged A ended within a task, what was added to the result was read beyond its tensor."""

    @tkw.wave()
    def with_residual(
        x: tkl.Memory[M, K, GLOBAL, tkl.bf16],
        w: tkl.Memory[N, K, GLOBAL, tkl.bf16],
        r: tkl.Memory[M, N, GLOBAL, tkl.f32],
        y: tkl.Memory[M, N, GLOBAL, tkl.f32],
    ):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0)])
        def total(acc):
            return tkw.mma(tkw.read(x), tkw.read(w), acc)

        tkw.write(total + tkw.read(r), y)

    rng = np.random.default_rng(m)
    x, w, r = (rng.integers(-3, 4, shape) for shape in ((m, k), (n, k), (m, n)))
    made = kernel_for(with_residual, {"M": m, "N": n, "K": k}, machine=machine("x86.amx"))
    assert "x panel at task" in made.text("plan")
    assert "%y: out" in made.text("block")
    y = np.full((m, n), np.nan, np.float32)
    made.bind({"x": x.astype(bfloat16), "w": w.astype(bfloat16), "r": r.astype(np.float32), "y": y})()
    np.testing.assert_array_equal(y, x @ w.T + r)


def test_lines_are_staged_once_for_all_blocks_and_results_are_stored_a_round_later():
    text = exact(problem("lines with padding")).text("block")
    staging, loop = text.index("copy %x_view -> "), text.index("overlap defer")
    assert text.count("copy %x_view") == 1
    assert staging < loop < text.index("} finally {") < text.index("map %y_view")


def test_a_read_in_place_is_copied_only_where_its_rows_end():
    text = exact(problem("rows that end within a block")).text("block")
    assert len(re.findall(r"copy %a_view\w* -> %left", text)) == len(re.findall(r"copy %a_view\w* -> %step", text)) == 1


def test_the_first_round_of_a_loop_over_k_is_written_out_where_results_are_deferred():
    """They are stored between its products; a loop over K is no place for them."""
    work = Workload(read_problem("64x512:512x64"), read_types("bf16"))
    made = exact(work, str(exact(work).plan).replace("unit k_0 32", "loop k_0 128, unit k_0 32"))
    first, again = r"for e in 0\.\.4 unroll \{", r"for k in 1\.\.4 \{\n *for e_1 in 0\.\.4 unroll"
    assert re.search(f"{first}.*{again}", made.text("block"), re.DOTALL)
    later = exact(work, str(made.plan).replace("overlap delayed store", "overlap none"))
    assert re.search(r"for k in 0\.\.4 \{\n *for e in 0\.\.4 unroll", later.text("block"))


N, H, W, C, F, M, K = (getattr(tkl.sym, name) for name in "NHWCFMK")
i, j = (tkw.IndexMapping.iterator(n) for n in range(2))
PIXEL, TAP = {N: i // (H * W), H: i // W % H, W: i % W}, {tkl.sym.R: j // (3 * C), tkl.sym.S: j // C % 3, C: j % C}
AT_X = tkw.IndexMapping(
    num_iterators=2,
    inputs={N: PIXEL[N], H: PIXEL[H] + TAP[tkl.sym.R] - 1, W: PIXEL[W] + TAP[tkl.sym.S] - 1, C: TAP[C]},
    outputs={M: i, K: j},
)
AT_W = tkw.IndexMapping(num_iterators=2, inputs={F: i, **TAP}, outputs={F: i, K: j})
AT_RESIDUAL = tkw.IndexMapping(num_iterators=2, inputs={**PIXEL, F: j}, outputs={M: i, F: j})
AT_Y = tkw.IndexMapping(num_iterators=2, inputs={M: i, F: j}, outputs={**PIXEL, F: j})
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


@tkw.wave()
def residual(
    x: tkl.Memory[N, H, W, C, GLOBAL, tkl.bf16],  # type: ignore[valid-type]
    w: tkl.Memory[F, tkl.sym.R, tkl.sym.S, C, GLOBAL, tkl.bf16],  # type: ignore[valid-type]
    bias: tkl.Memory[F, GLOBAL, tkl.f32],  # type: ignore[valid-type]
    before: tkl.Memory[N, H, W, F, GLOBAL, tkl.bf16],  # type: ignore[valid-type]
    y: tkl.Memory[N, H, W, F, GLOBAL, tkl.bf16],  # type: ignore[valid-type]
):
    added = tkw.read(bias) + tkw.cast(tkw.read(before, mapping=AT_RESIDUAL), tkl.f32)

    @tkw.iterate(K, init_args=[tkl.Register[M, F, tkl.f32](0.0)])
    def total(acc):
        return tkw.mma(tkw.read(x, mapping=AT_X, otherwise=0), tkw.read(w, mapping=AT_W), acc)

    tkw.write(tkw.cast(tkw.relu(total + added), tkl.bf16), y, mapping=AT_Y)


KERNEL = residual.bound({M: N * H * W, K: 9 * C, tkl.sym.R: 3, tkl.sym.S: 3})


def results(kernel, sizes, made):
    """(what the compiled kernel gives on small integers, what the executor does)."""
    rng = np.random.default_rng(2)
    n, h, w, c, f = (sizes[name] for name in "NHWCF")
    shapes = [(n, h, w, c), (f, 3, 3, c), (f,), (n, h, w, f)]
    kinds = [tkl.bf16, tkl.bf16, tkl.f32, tkl.bf16]
    x, k, b, before = (rng.integers(-2, 3, shape).astype(kind.numpy) for shape, kind in zip(shapes, kinds, strict=True))
    given = {"x": x, "w": k, "bias": b, "before": before} if kernel is KERNEL else {"x": x, "w": k}
    wanted = tilewright.compile(kernel, target="executor")(*given.values())
    found = np.full(wanted.shape, np.nan, wanted.dtype)
    made.bind({**given, "y": found})()
    return found.astype(np.float64), wanted.astype(np.float64)


@pytest.mark.parametrize(("h", "w"), [(3, 33), (9, 4)])
def test_what_is_added_to_a_sum_along_lines_lies_where_its_row_does(h, w):
    sizes = {"N": 2, "H": h, "W": w, "C": 33, "F": 20}
    made = kernel_for(KERNEL, sizes, machine=TILES)
    np.testing.assert_array_equal(*results(KERNEL, sizes, made))
    plans = {other.plan.operand("x").form: str(other.plan) for other in reversed(made.choice.candidates)}
    assert sorted(plans) == ["panel", "strip"]
    for plan in plans.values():
        np.testing.assert_array_equal(*results(KERNEL, sizes, kernel_for(KERNEL, sizes, machine=TILES, plan=plan)))


def test_one_kernel_serves_all_batches():
    """Its images are staged whole, whatever their number."""
    kernel = kernels.conv((3, 3), "bf16", padding=1)
    sizes = {"N": 1, "H": 6, "W": 7, "C": 40, "F": 33}
    made = kernel_for(kernel, sizes, machine=TILES, dynamic=["N"])
    assert "param N in" in made.text("block")
    assert made.plan.atom == "amx.bf16"
    assert all(line in made.explain() for line in made.plan.lines())  # the open size was not marked there
    for batch in (1, 2, 5):
        np.testing.assert_array_equal(*results(kernel, {**sizes, "N": batch}, made))
