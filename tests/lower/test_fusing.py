"""Rows that go through maps and reductions together, and copies that are turned in registers."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from tile_checks import own_cache  # noqa: F401

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.ir import dtypes
from tilewright.ir.block import parse_block
from tilewright.ir.formula import Formula
from tilewright.ir.tile import parse_tile
from tilewright.ir.tile_formulas import call, number
from tilewright.lower.cpu.lower import WorkerLowering
from tilewright.targets.registry import machine
from tilewright.targets.registry import native as cpu_target

M, N, K, D = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.D
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def rowwise(dtype, tile):
    """Numbers that stay exact through a product, a maximum, a difference, a sum and a product."""

    @tkw.wave([tkw.TilingConstraint(N, tile)])
    def rowwise(
        q: tkl.Memory[M, K, GLOBAL, dtype],
        k: tkl.Memory[N, K, GLOBAL, dtype],
        v: tkl.Memory[N, D, GLOBAL, dtype],
        out: tkl.Memory[M, D, GLOBAL, tkl.f32],
        sums: tkl.Memory[M, GLOBAL, tkl.f32],
    ):
        start = tkl.Register[M, tkl.f32](-100.0)

        @tkw.iterate(N, init_args=[start, tkl.Register[M, tkl.f32](0.0), tkl.Register[M, D, tkl.f32](0.0)])
        def walk(highest, total, mean):
            scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[M, N, tkl.f32](0.0)) * 2.0
            higher = tkw.max(scores, highest, dim=N)
            less = tkw.select(scores - higher < -6.0, 1.0, scores - higher)
            total = tkw.sum(less, total * 2.0, dim=N)
            return higher, total, tkw.mma(tkw.cast(less, dtype), tkw.read(v), mean * 2.0)

        tkw.write(walk[2], out)
        tkw.write(walk[1] + walk[0], sums)

    return rowwise


def arguments(sizes, kind):
    rng = np.random.default_rng(3)
    m, n, k, d = sizes
    inputs = [rng.integers(-1, 2, shape).astype(kind) for shape in ((m, k), (n, k), (n, d))]
    return inputs, [np.full((m, d), np.nan, np.float32), np.full(m, np.nan, np.float32)]


def tasks_of_16_rows(sizes):
    """A plan of both programs: rows of 512 scores that the first cache does not hold."""
    m, n, k, d = sizes
    lines = f"axis M = (M {m}): task 16", f"axis D = (D {d}): whole", f"axis K = (K {k}): whole"
    return "\n".join([*lines, f"axis N = (N {n}): loop 512", "grid M"])


@pytest.mark.parametrize("sizes", [(70, 1040, 5, 7), (64, 1024, 3, 16)])
def test_rows_that_do_not_fit_the_first_cache_go_a_few_at_a_time(sizes):
    inputs, results = arguments(sizes, np.float32)
    run = tilewright.compile(rowwise(tkl.f32, 512), plan=tasks_of_16_rows(sizes))
    run(*inputs, *results)
    text = run.text("block")
    assert re.search(r"for r in 0\.\.\d+ \{", text)
    rows = re.search(r"alloc shared f32 \((\d+), 512\):\(528, 1\)", text[text.index("for r in") :])
    assert int(rows[1]) <= 8  # what is made among these operations is a few rows
    wanted = tilewright.compile(rowwise(tkl.f32, 512), target="executor")(*inputs)
    for mine, theirs in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def looked_at(again):
    """Rows whose differences may lie where the scores did, unless something looks at those again."""

    @tkw.wave([tkw.TilingConstraint(N, 512)])
    def looked_at(
        q: tkl.Memory[M, K, GLOBAL, tkl.f32],
        k: tkl.Memory[N, K, GLOBAL, tkl.f32],
        v: tkl.Memory[N, D, GLOBAL, tkl.f32],
        out: tkl.Memory[M, D, GLOBAL, tkl.f32],
        sums: tkl.Memory[M, GLOBAL, tkl.f32],
    ):
        @tkw.iterate(N, init_args=[tkl.Register[M, tkl.f32](0.0), tkl.Register[M, D, tkl.f32](0.0)])
        def walk(total, mean):
            scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[M, N, tkl.f32](0.0))
            less = scores * 2.0 - tkw.max(scores, tkl.Register[M, tkl.f32](-100.0), dim=N)
            if again == "among them":
                total = tkw.sum(less + scores, total, dim=N)
            mean = tkw.mma(less, tkw.read(v), mean)
            if again == "after them":
                total = tkw.sum(scores, total, dim=N)
            return total, mean

        tkw.write(walk[1], out)
        tkw.write(walk[0], sums)

    return looked_at


@pytest.mark.sampled(4)
@pytest.mark.parametrize("again", ["never", "among them", "after them"])
@pytest.mark.parametrize("sizes", [(70, 1040, 5, 7), (64, 1024, 3, 16)])
def test_what_is_spent_is_written_over(again, sizes):
    inputs, results = arguments(sizes, np.float32)
    run = tilewright.compile(looked_at(again), plan=tasks_of_16_rows(sizes))
    run(*inputs, *results)
    body = run.text("block").split("for r in")[0]
    assert len(re.findall(r"alloc shared f32 \(\d+, 512\)", body)) == (1 if again == "never" else 2)
    wanted = tilewright.compile(looked_at(again), target="executor")(*inputs)
    for mine, theirs in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_rows_go_together_on_machines_with_tiles():
    sizes = (70, 600, 40, 20)
    inputs, results = arguments(sizes, ml_dtypes.bfloat16)
    made = tilewright.compile(rowwise(tkl.bf16, 512), target="cpu:x86.amx")
    text = made.text("host", dict(zip("MNKD", sizes, strict=True)))
    assert re.search(r"for r in 0\.\.\d+ \{", text)
    tilewright.compile_text(text, "interpreter")(*inputs, *results)
    wanted = tilewright.compile(rowwise(tkl.bf16, 512), target="executor")(*inputs)
    for mine, theirs in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


LOOKED_UP = """tile looked_up(%x: global f32[M, N], %i: global i32[M], %y: global f32[M, N])
  symbols M, N, it0, it1, row
{
  %0 = read %x : f32[M, N]
  %1 = max %0 dim=(N) : f32[M]
  %2 = sub %0, %1 : f32[M, N]
  %3 = read %i : i32[M]
  %4 = cast %3 dtype=i32 : i32[M]
  %5 = read %x, %4 over=[it0, it1] lookups=[row: [it0]] at=[row, it1] otherwise=5 : f32[M, N]
  %6 = add %2, %5 : f32[M, N]
  write %6, %y
}
"""


def test_a_read_waits_for_a_cast_that_changes_nothing():
    """The cast was put off until the rows were done, the read was not: a KeyError."""
    rng = np.random.default_rng(5)
    x, i = rng.integers(-3, 4, (40, 4096)).astype(np.float32), rng.integers(0, 41, 40).astype(np.int32)
    program = parse_tile(LOOKED_UP)
    run = tilewright.compile(program, target="cpu")
    found = run(x, i)
    assert "for r in" in run.text("block")
    np.testing.assert_array_equal(found, tilewright.compile(program, target="executor")(x, i))


def test_few_rows_go_as_they_did():
    inputs, results = arguments((6, 40, 5, 7), np.float32)
    run = tilewright.compile(rowwise(tkl.f32, 32))
    run(*inputs, *results)
    assert "for r in" not in run.text("block")


def test_what_needs_a_cast_that_changes_nothing_was_done_before_it():
    """The cast waits until after the rows; a broadcast of what it gives may not come before them."""

    @tkw.wave([tkw.WorkgroupConstraint(M, 64, 0)])
    def kept(
        x: tkl.Memory[M, N, GLOBAL, tkl.i32],
        y: tkl.Memory[M, N, GLOBAL, tkl.i32],
        z: tkl.Memory[M, GLOBAL, tkl.i32],
    ):
        value = tkw.read(x)
        some = tkw.cast(tkw.sum(value, dim=N) > tkl.Register[M, tkl.i32](0), tkl.bool)
        chosen = tkw.select(tkw.broadcast(some, [M, N]), value, tkl.Register[M, N, tkl.i32](7))
        tkw.write(chosen, y)
        tkw.write(tkw.max(chosen, dim=N), z)

    x = np.random.default_rng(5).integers(-3, 4, (70, 5000)).astype(np.int32)
    wanted = np.where(x.sum(1, keepdims=True) > 0, x, 7)
    y, z = tilewright.compile(kept)(x)
    np.testing.assert_array_equal(y, wanted)
    np.testing.assert_array_equal(z, wanted.max(1))


def test_numbers_are_folded_as_machines_round_them():
    third = call("div", number(1, dtypes.f32), number(3, dtypes.f32))
    assert third == number(float(np.float32(1) / np.float32(3)), dtypes.f32)
    assert call("rsqrt", number(3, dtypes.f64)) == number(1 / np.sqrt(np.float64(3)), dtypes.f64)
    assert call("exp", number(1, dtypes.f32)).name == "exp"  # two machines may differ in the last bit
    assert call("add", number(1, dtypes.bf16), number(3, dtypes.bf16)).name == "add"
    assert call("mul", Formula.argument("x"), number(3, dtypes.f32)).name == "mul"


# -- maps and reductions that share a loop --------------------------------------------------------------------

JOINED = {
    # what is done to %x (4, 64), and whether one loop does all of it
    "forwarded": (
        "map %v = %x + 1.0; reduce %v -> %t along 1 with sum; map %y = %v*2.0; map %s = %t",
        True,
    ),
    "in another type": (
        "map %v = %x + 1.0; %b = bitcast %v i32; map %y = f32(%b); map %s = 1.0",
        False,
    ),
    "a neighbour": (
        "map %v = %x + 1.0; %n = view %v (i0 4, i1 64) -> [i0, 63 - i1]; map %w = %n*2.0; map %y = %w; map %s = 1.0",
        False,
    ),
    "changed between": (
        "map %v = %x + 1.0; map %w = %v*2.0; map %v = %v + 5.0; reduce %v -> %t along 1 with max; map %y = %w - %v; "
        "map %s = %t",
        True,
    ),
    "what a reduction gave": (
        "map %v = %x + 1.0; reduce %v -> %t along 1 with min; %n = view %t (i0 4, i1 64) -> [i0]; map %w = %v - %n; "
        "reduce %w -> %u along 1 with sum; map %y = %w; map %s = %u",
        True,
    ),
}


@pytest.mark.parametrize("name", JOINED)
def test_operations_that_share_a_loop_give_the_same(name):
    body, shares = JOINED[name]
    lines = [
        *(f"%{n} = alloc shared f32 (4, 64)" for n in "vw"),
        *(f"%{n} = alloc shared f32 (4)" for n in "tu"),
        *body.split("; "),
    ]
    text = (
        "block joined(%x: in global f32 (4, 64), %y: out global f32 (4, 64), %s: out global f32 (4))\n{\n"
        "  tasks t in 0..1 {\n    " + "\n    ".join(lines) + "\n  }\n}\n"
    ).replace("tasks t ", "tasks q ")
    x = np.random.default_rng(6).integers(-9, 9, (4, 64)).astype(np.float32)
    results = []
    for target in ("cpu", "interpreter"):
        run = tilewright.compile_text(text, target)
        y, s = np.zeros((4, 64), np.float32), np.zeros(4, np.float32)
        run(x, y, s)
        results.append((y, s))
        if target == "cpu":
            loop = run.text("loop")
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    totals = re.search(r"fill %\d+ (0|-?inf)$", loop, re.M)  # those of a reduction that shares its loop
    assert (totals is not None) == shares


# -- copies that are turned -----------------------------------------------------------------------------------

TURNED = {
    # (program, what it does in numpy)
    "transposed": (
        "block turn(%x: in global KIND (48, 80), %y: out global KIND (80, 48))\n{\n  tasks t in 0..1 {\n"
        "    %v = view %x (i0 80, i1 48) -> [i1, i0]\n    copy %v -> %y\n  }\n}\n",
        lambda x: x.T,
    ),
    "pairs": (
        "block turn(%x: in global KIND (64, 96), %y: out global KIND (48, 64, 2))\n{\n  tasks t in 0..1 {\n"
        "    %v = view %x (i0 48, i1 64, i2 2) -> [i1, 2*i0 + i2]\n    copy %v -> %y\n  }\n}\n",
        lambda x: x.reshape(64, 48, 2).transpose(1, 0, 2),
    ),
    "interleaved": (
        "block turn(%x: in global KIND (6, 2, 64), %y: out global KIND (6, 64, 2))\n{\n  tasks t in 0..6 {\n"
        "    %v = view %x (i0 64, i1 2) -> [t, i1, i0]\n    %w = view %y (i0 64, i1 2) -> [t, i0, i1]\n"
        "    copy %v -> %w\n  }\n}\n",
        lambda x: x.transpose(0, 2, 1),
    ),
    "narrow": (
        "block turn(%x: in global KIND (16, 4), %y: out global KIND (4, 16))\n{\n  tasks t in 0..1 {\n"
        "    %v = view %x (i0 4, i1 16) -> [i1, i0]\n    copy %v -> %y\n  }\n}\n",
        lambda x: x.T,
    ),
    "ragged": (
        "block turn(%x: in global KIND (19, 80), %y: out global KIND (80, 19))\n{\n  tasks t in 0..1 {\n"
        "    %v = view %x (i0 80, i1 19) -> [i1, i0]\n    copy %v -> %y\n  }\n}\n",
        lambda x: x.T,
    ),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", ["f32", "bf16", "f16", "i8", "f64"])
@pytest.mark.parametrize("name", TURNED)
def test_copies_across_are_turned_in_registers(name, kind):
    text, meaning = TURNED[name]
    text = text.replace("KIND", kind)
    dtype = dtypes.dtype(kind).numpy
    shape = tuple(map(int, re.search(r"in global \w+ \(([^)]*)\)", text)[1].split(",")))
    x = np.random.default_rng(4).integers(-100, 100, shape).astype(dtype)
    wanted = np.ascontiguousarray(meaning(x))
    for target in ("cpu", "cpu:x86.avx2", "cpu:aarch64.neon"):
        run, found = tilewright.compile_text(text, target), cpu_target(target)
        together = found.machine.limits.vector_bytes // dtype.itemsize  # pairs are vectors of 2 as they lie
        assert ("transpose" in run.text("loop")) == (name != "ragged" and (name, together) != ("pairs", 2))
        if found.runs:
            y = np.zeros_like(wanted)
            run(x, y)
            np.testing.assert_array_equal(y, wanted)
        again = np.zeros_like(wanted).reshape(-1)
        tilewright.compile_text(run.text("loop"), "interpreter")(x.reshape(-1), again)
        np.testing.assert_array_equal(again.reshape(wanted.shape), wanted)


# -- halo tiles -----------------------------------------------------------------------------------------------


def two_convolutions(size, channels, stride):
    """relu(3x3 convolution) . w2: the rows of its first product are those of a line, padded by one."""
    H, W, C, F, G, R = (getattr(tkl.sym, name) for name in ("H", "W", "C", "F", "G", "R"))
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    out = (size + stride - 1) // stride
    image = tkw.IndexMapping(
        num_iterators=2,
        inputs={H: i // out * stride + j // C // 3 - 1, W: i % out * stride + j // C % 3 - 1, C: j % C},
        outputs={M: i, R: j},
    )

    @tkw.wave([])
    def two_convolutions(
        x: tkl.Memory[H, W, C, GLOBAL, tkl.bf16],
        w1: tkl.Memory[F, R, GLOBAL, tkl.bf16],
        w2: tkl.Memory[G, F, GLOBAL, tkl.bf16],
        y: tkl.Memory[M, G, GLOBAL, tkl.f32],
    ):
        rows = tkw.read(x, mapping=image, otherwise=0)
        between = tkw.mma(rows, tkw.read(w1), tkl.Register[M, F, tkl.f32](0.0))
        between = tkw.cast(tkw.maximum(between, tkl.Register[M, F, tkl.f32](0.0)), tkl.bf16)
        tkw.write(tkw.mma(between, tkw.read(w2), tkl.Register[M, G, tkl.f32](0.0)), y)

    return two_convolutions.bound({H: size, W: size, C: channels}), out * out


@pytest.mark.parametrize(("size", "stride"), [(9, 1), (18, 1), (11, 2)])
def test_tiles_read_taps_from_a_halo_tile(size, stride):
    channels, f, g = 32, 20, 18
    kernel, rows = two_convolutions(size, channels, stride)
    rng = np.random.default_rng(5)
    shapes = ((size, size, channels), (f, 9 * channels), (g, f))
    inputs = [rng.integers(-1, 2, shape).astype(ml_dtypes.bfloat16) for shape in shapes]
    result = np.full((rows, g), np.nan, np.float32)
    lines = (size + stride - 1) // stride
    plan = f"""axis M_1 = (M_1 {lines}): task {max(1, lines // 5)}
axis M_0 = (M_0 {lines}): task {lines}
axis G = (G {g}): task {g}
axis R_2 = (R_2 3): whole
axis R_1 = (R_1 3): whole
axis R_0 = (R_0 {channels}): whole
axis F = (F {f}): whole
grid M_1, M_0, G"""  # two kernels are chosen
    sizes = {"M": rows, "F": f, "R": 9 * channels, "G": g}
    text = kernel_for(kernel, sizes, machine=machine("x86.amx"), plan=plan).text("host")
    staged = re.search(r"%x_part = alloc shared bf16 \((\d+), (\d+), 32\)", text)
    assert (staged is not None) == (stride == 1)  # elsewhere, nine taps for every pixel are less than whole lines
    assert staged is None or int(staged[2]) >= size + 2
    tilewright.compile_text(text, "interpreter")(*inputs, result)
    wanted = np.full_like(result, np.nan)
    tilewright.compile(kernel, target="executor")(*inputs, wanted)
    np.testing.assert_array_equal(result, wanted)


def test_a_tensor_that_nothing_uses_was_a_key_error_instead_of_own():
    text = """block f(%x: in global f32 (16), %y: out global f32 (16))
{
  %idle = alloc shared f32 (16)
  %sum = alloc shared f32 (16)
  map %sum = %x + 1.0
  map %y = %sum + %sum
}"""
    program, avx512 = parse_block(text), machine("x86.avx512f.avx512vnni")
    idle, total, add, double = program.body.ops
    low = WorkerLowering(program, avx512, avx512)
    assert low.is_used_only_by(idle.results[0], set())  # nothing uses it, so nothing outside does
    assert low.is_used_only_by(total.results[0], {add, double})
    assert not low.is_used_only_by(total.results[0], {add})
    assert not low.is_used_only_by(program.args[0], {add})
