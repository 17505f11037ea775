"""Products anywhere in a program: a sample of `benchmarks/random_products.py`, taps in place, digits, registers."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from pinned_plans import copied_by_waves, planned_as
from tile_checks import own_cache  # noqa: F401

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.plan.microkernel import best_microkernel
from tilewright.plan.text import parse_plan
from tilewright.targets.registry import machine

_SPEC = importlib.util.spec_from_file_location(
    "random_products", Path(__file__).parents[2] / "benchmarks" / "random_products.py"
)
random_products = importlib.util.module_from_spec(_SPEC)
sys.modules["random_products"] = random_products
_SPEC.loader.exec_module(random_products)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(12))
def test_random_products_are_exact(number):
    assert not random_products.wrong(number, 1)


@pytest.mark.parametrize("row", random_products.ROWS)
def test_random_products_are_exact_on_every_machine(row):
    assert not random_products.wrong(random_products.ROWS.index(row), 2, (row,), 17)


MATRIX = ("bf16", "f16", "i8")
"""The types that all three machines have matrix atoms for."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(40, 44))
@pytest.mark.parametrize("row", random_products.BY)
def test_random_products_are_exact_by_the_matrix_atoms_of_machines(row, number):
    case = random_products.made(number, 3, 65, MATRIX)
    wanted = tilewright.compile(case.kernel, target="executor")(*case.inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    said = random_products.by_atoms(case, row, random_products.BY[row], wanted)
    assert said.startswith("exact")


def test_loops_of_a_task_follow_an_edited_atom():
    """A loop of 32 columns stayed for an atom of 64, and the second of two kernels kept its atoms."""
    case = random_products.made(41, 3, 65, MATRIX)
    chosen = kernel_for(case.kernel, case.sizes, machine=machine("hopper")).plan
    edited = parse_plan(random_products.with_atoms(chosen, machine("hopper"), "wgmma"))
    assert str(edited.axis("N")) == "axis N = (N 48): task 32"
    assert {p.atom.split(".")[0] for p in (*edited.products, *edited.then.products)} == {"wgmma"}
    wanted = tilewright.compile(case.kernel, target="executor")(*case.inputs)
    assert random_products.interpreted(case, "hopper", wanted, str(edited))[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [28, 24])
def test_a_step_of_k_ends_where_a_loops_tile_does(number):
    """A tile of 16 was multiplied in steps of 64 or 128: what follows it was added too, again and again."""
    case = random_products.made(number, 0, 136, MATRIX)
    wanted = tilewright.compile(case.kernel, target="executor")(*case.inputs)
    assert random_products.by_atoms(case, "hopper", "wgmma", wanted).startswith("exact")


def test_tasks_are_smaller_where_shared_memory_does_not_hold_their_values():
    """Two products of 16 rows took more than a machine of 64 KB has: it was found out when the program was made."""
    kernel, sizes = random_products.made(56, 0, 136, MATRIX).kernel, {"M": 100, "N": 600, "K": 40, "P": 30}
    text = kernel_for(kernel, sizes, machine=machine("cdna3")).text("plan")
    assert "axis M = (M 100): task 1\n" in text
    with pytest.raises(ArgumentError, match=r"plan: `axis M .*: task 64`.*: shared memory: \d+ bytes are needed"):
        kernel_for(kernel, sizes, machine=machine("cdna3"), plan=text.replace("task 1\n", "task 64\n"))


def test_a_plan_whose_waves_copy_themselves_may_be_pinned():
    """It was tried as one in which the machine copies, and refused."""
    kernel, sizes = kernels.gemm("nt", "bf16"), {"M": 1, "N": 1000, "K": 333}
    text = planned_as(kernel, sizes, machine("hopper"), copied_by_waves).text("plan")
    assert "producer 4 waves" in text
    assert kernel_for(kernel, sizes, machine=machine("hopper"), plan=text).text("plan") == text


SMALL = {
    "gemm": (kernels.gemm("nt", "bf16"), {"M": 37, "N": 45, "K": 50}),
    "conv": (kernels.conv((3, 3), "bf16", padding=1), {"N": 1, "H": 6, "W": 7, "C": 20, "F": 24}),
    "attention": (kernels.attention(32, "bf16"), {"B": 1, "H": 1, "M": 33, "N": 40, "D": 20, "E": 24}),
}
LARGE = {
    "gemm": (SMALL["gemm"][0], {"M": 130, "N": 140, "K": 200}),
    "attention": (kernels.attention(64, "bf16"), {"B": 1, "H": 1, "M": 48, "N": 100, "D": 64, "E": 72}),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("row", "atom", "programs", "name"),
    [
        *((row, atom, SMALL, n) for row, atom in (("cdna3", "mfma"), ("xe", "dpas"), ("hopper", "mma")) for n in SMALL),
        *(("hopper", "wgmma", LARGE, n) for n in LARGE),
    ],
)
def test_machines_of_many_lanes_multiply_by_their_atoms(row, atom, programs, name):
    """One lowering for all: their block programs are exact on the interpreter, which finds no race."""
    kernel, sizes = programs[name]
    made = kernel_for(kernel, sizes, machine=machine(row))
    args = {a.name: np.array([int(n) for n in a.type.shape]) for a in made.module.host.args}
    *inputs, result = args
    arrays = {n: integers(*args[n]).astype(tkl.bf16.numpy) for n in inputs}
    wanted = tilewright.compile(kernel, target="executor")(*arrays.values())
    found = np.full(wanted.shape, np.nan, wanted.dtype)
    made.bind({**arrays, result: found})()
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))
    assert re.search(rf"using \w*{atom}\.", made.text("block"))


def integers(*shape):
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


def generally(kernel, *inputs):
    """The kernel by the lowering of all programs, not as a single contraction."""
    run = tilewright.compile(kernel)
    run.path = "general"
    found = run(*inputs)
    np.testing.assert_array_equal(found, tilewright.compile(kernel, target="executor")(*inputs))
    return run


IMAGES = [(2, 8, 10, 16, 32), (1, 5, 31, 3, 17), (1, 1, 1, 4, 20), (3, 7, 2, 5, 64)]
FILTERS = [(1, 1, 1), (2, 1, 1), (1, 2, 2), (1, 0, 1)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("shape", "stride", "padding", "dilation"),
    [
        (shape, stride, padding, dilation)
        for shape in IMAGES
        for stride, padding, dilation in FILTERS
        if min(shape[1:3]) + 2 * padding >= 2 * dilation + 1  # three taps fit
    ],
)
def test_taps_are_read_where_they_lie(shape, stride, padding, dilation):
    n, h, w, c, f = shape
    kernel = kernels.conv((3, 3), "f32", stride=stride, padding=padding, dilation=dilation)
    text = generally(kernel, integers(n, h, w, c), integers(f, 3, 3, c)).text("block")
    assert "x_part" not in text
    assert re.search(r"mma %\w+ \+= %x_view", text)


@pytest.mark.parametrize("shape", IMAGES)
def test_taps_that_count_down_were_a_condition_of_every_product(shape):
    """Only loops over taps whose coordinate grows had limits: the gradient of an image took 2.5 times as long."""
    n, h, w, f, c = shape
    kernel = kernels.conv_image_gradient((3, 3), "f32", padding=1)
    dy, weight, dx = integers(n, h, w, f), integers(f, 3, 3, c), np.empty((n, h, w, c), np.float32)
    expected = np.empty_like(dx)
    tilewright.compile(kernel, target="executor")(dy, weight, expected)
    run = tilewright.compile(kernel)
    run(dy, weight, dx)
    np.testing.assert_array_equal(dx, expected)
    assert not re.search(r"%dy\[[^]]*k_r_0[^]]*\] if", run.text("loop"))


def test_every_block_of_a_convolution_inside_a_program_ends_where_the_image_does():
    """Only the first block's loop over taps had limits: the others read what lies before the image."""
    H, W, C, M, F, G, K = (getattr(tkl.sym, name) for name in ("H", "W", "C", "M", "F", "G", "K"))
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    image = tkw.IndexMapping(2, {H: i // W + j // C // 3 - 1, W: i % W + j // C % 3 - 1, C: j % C}, {M: i, K: j})
    GLOBAL = tkl.GLOBAL_ADDRESS_SPACE

    @tkw.wave()
    def two(
        x: tkl.Memory[H, W, C, GLOBAL, tkl.f32],
        w1: tkl.Memory[F, K, GLOBAL, tkl.f32],
        w2: tkl.Memory[G, F, GLOBAL, tkl.f32],
        y: tkl.Memory[M, G, GLOBAL, tkl.f32],
    ):
        between = tkw.mma(tkw.read(x, mapping=image, otherwise=0), tkw.read(w1), tkl.Register[M, F, tkl.f32](0.0))
        tkw.write(tkw.mma(between, tkw.read(w2), tkl.Register[M, G, tkl.f32](0.0)), y)

    kernel = two.bound({H: 9, W: 30, C: 4, M: 270})
    generally(kernel, integers(9, 30, 4), integers(40, 36), integers(50, 40))


def test_a_flat_index_becomes_digits_and_its_loop_goes():
    kernel = kernels.conv((3, 3), "f32", padding=1)
    run = generally(kernel, integers(1, 6, 9, 4), integers(8, 3, 3, 4))
    assert "axis M_0 = (M_0 9)" in run.text("plan")
    assert "axis K_0 = (K_0 4)" in run.text("plan")
    assert "//" not in run.text("block").split("machine")[1].replace("//16", "").replace("//8", "").replace("//4", "")


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (7, 33, 5), (40, 64, 16), (65, 100, 70)])
def test_sums_stay_in_registers_until_they_are_written(m, n, k):
    kernel = kernels.gemm("nt", "f32", bias=True, activation="relu")
    text = generally(kernel, integers(m, k), integers(n, k), integers(n)).text("block")
    if n % 16 == 0:
        assert re.search(r"map %c_view\w* = relu\(%sums", text)
        assert "%acc" not in text


def test_a_register_that_is_also_reduced_stays_one():
    """Its parts were looked at in place, and the product ran as plain loops."""
    M, N, K, GLOBAL = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.GLOBAL_ADDRESS_SPACE

    @tkw.wave()
    def largest(
        a: tkl.Memory[M, K, GLOBAL, tkl.f32], b: tkl.Memory[N, K, GLOBAL, tkl.f32], y: tkl.Memory[M, GLOBAL, tkl.f32]
    ):
        total = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0))
        tkw.write(tkw.max(total, dim=N), y)

    generally(largest, integers(5, 7), integers(32, 7))  # a MissingAtomWarning would be an error here


def test_what_several_tasks_read_is_packed_before_they_run():
    plan = """axis B = (B 1): whole
axis H = (H 2): task 1
axis M = (M 96): task 48
axis E = (E 16): task 16
axis D = (D 8): whole
axis N = (N 96): loop 48
grid H, M, E"""
    run = tilewright.compile(kernels.attention(48, "f32"), plan=plan)  # panels of 8, 12 and 16 columns divide 48
    q, k, v = integers(1, 2, 96, 8), integers(1, 2, 96, 8), integers(1, 2, 96, 16)
    np.testing.assert_allclose(
        run(q, k, v), tilewright.compile(kernels.attention(48, "f32"), target="executor")(q, k, v), rtol=2e-5, atol=2e-5
    )
    assert "launch pack_k" in run.text("host")


def test_the_microkernel_follows_the_machine_and_the_sizes():
    f32, bf16 = tkl.f32, tkl.bf16
    chosen = {
        ("x86.avx2", f32, (128, 64, 64)): "avx2.f32",
        ("x86.avx512", f32, (128, 64, 64)): "avx512.f32",
        ("x86.avx512", bf16, (128, 64, 64)): "avx512.bf16",
        ("x86.amx", bf16, (128, 64, 64)): "amx.bf16, tile 32x32",
        ("x86.amx", bf16, (1, 512, 64)): "avx512.bf16, tile 1x",  # a tile would be fifteen sixteenths empty
        ("aarch64.neon", f32, (128, 64, 64)): "neon.f32",
        ("aarch64.neon", bf16, (128, 64, 64)): "neon.f32",  # converted: it has none for bf16
    }
    for (row, kind, sizes), wanted in chosen.items():
        assert str(best_microkernel(machine(row), (kind, kind, f32), sizes)).startswith(wanted)
    assert best_microkernel(machine("x86.amx"), (tkl.i64,) * 3, (8, 8, 8)) is None


def test_a_sum_is_added_to_what_the_output_holds():
    """C = A * B + C in one array was defined twice as an argument."""
    M, N, K, G = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.GLOBAL_ADDRESS_SPACE

    @tkw.wave()
    def added(a: tkl.Memory[M, K, G, tkl.f32], b: tkl.Memory[K, N, G, tkl.f32], c: tkl.Memory[M, N, G, tkl.f32]):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def total(acc):
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        tkw.write(total + tkw.read(c), c)

    a, b, c = integers(5, 6), integers(6, 7), integers(5, 7)
    wanted = a @ b + c
    run = tilewright.compile(added, target="cpu")
    run(a, b, c)
    np.testing.assert_array_equal(c, wanted)
    assert "it reads c, which it writes" in run.explain()


@pytest.mark.parametrize(
    ("sizes", "packed"), [((512, 512, 1024), True), ((4, 512, 1024), False), ((64, 32, 48), False)]
)
def test_a_factor_whose_rows_lie_far_apart_is_packed(sizes, packed):
    """Blocks read 32 of 512 columns: rows of them 2 KB apart took four times as long as packed ones."""
    m, n, k = sizes
    run = tilewright.compile(kernels.gemm("nn", "f32"), target="cpu:x86.avx512")
    run.path = "general"
    assert ("packed_b" in run.text("block", {"M": m, "N": n, "K": k})) is packed
