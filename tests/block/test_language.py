"""The block language: every operation has a Python form, sugar is what it says, mistakes point at the author's line."""

from __future__ import annotations

import copy
import pickle
import random
import re

import numpy as np
import pytest

import tilewright
import tilewright.block as tb
from tilewright.algebra import Layout, local_partition
from tilewright.algebra.expr import symbol
from tilewright.block import cdiv
from tilewright.errors import (
    ArgumentError,
    DimensionMismatch,
    DtypeMismatch,
    LayoutError,
    NotPicklable,
    ProgramError,
    PythonControlFlow,
    RaceFault,
    UninitialisedFault,
)
from tilewright.ir.binding import bind
from tilewright.ir.block import BLOCK, parse_block

LANES = Layout((8, 1), (1, 0))


def body(kernel, **params) -> list[str]:
    """The lines of a kernel's body."""
    text = str(kernel.trace(params))
    return [line.strip() for line in text[text.index("{") + 1 : text.rindex("}")].strip().splitlines()]


# -- a form for every operation -----------------------------------------------------------------------------------


@tb.kernel("hopper")
def everything(x: tb.In("f32", 8), w: tb.In("i32", 8), y: tb.InOut("f32", 8), n: tb.InOut("i32", 8)):
    stage = tb.shared("f32", (2, 8))
    ring = tb.ring(stage, producer="one", consumer="two")
    with tb.role("one", waves=1):
        for t in tb.tasks(2):
            m = tb.let(t // 2)
            with ring.fill() as free:
                tb.copy(x, free)
            with tb.if_(m < 1):
                tb.barrier()
                tb.edge()
            with tb.else_():
                tb.debug_log("never", x)
    with tb.role("two", waves=1):
        a, b = tb.registers("f32", (8,), LANES), tb.registers("f32", (8,), LANES)
        total = tb.registers("f32", (), Layout((32, 1), (0, 0)))
        flag = tb.registers("i32", (), Layout((32, 1), (0, 0)))
        mma = tb.Mma("mma.m16n8k16.f16")
        fa, fb, fc = mma.a(16, 16), mma.b(16, 8), mma.c(16, 8)
        for _ in tb.tasks(2):
            with ring.take() as full:
                tb.fill(a, 0)
                tb.map(a, full * 2)
                tb.convert_layout(a, b)
                tb.reduce(b, total, 0, "sum")
                tb.scan(full, y, 0, "sum")
                tb.broadcast(total, a, 0)
                tb.gather(y, x, lambda i: w.at(i))
                tb.scatter(y, x.bitcast("f32") if False else y, lambda i: 7 - i)
                tb.atomic("add", w, n, lambda i: w.at(i))
                bits = y.bitcast("i32")
                half = bits[0:4]
                tb.fill(half, 0)
                mma(fc, fa, fb)
                for k in tb.steps(3):
                    tb.fill(y[k], 0)
                with tb.while_(flag):
                    tb.fill(flag, 0)


def test_every_operation_has_a_python_form():
    used = {op.name for op in everything.trace().walk()}
    assert used == set(BLOCK.ops)


def test_every_attribute_can_be_said():
    @tb.kernel()
    def attributes(x: tb.In("f32", 8), y: tb.Out("f32", 8)):
        s = tb.shared("f32", (8,), size=64)
        for t in tb.tasks(2, schedule="dynamic", overlap="none"):
            tb.copy(x.view((8,), lambda i: tb.maybe(i + t)), s, otherwise=0, stream=1)
            tb.map(s, lambda i: tb.cast(i, "f32") + s, stream=1)
            tb.map(s, tb.select(s > 0, s + s, s), rare=True)
            for k in tb.steps((1, 8, 2), lambda k: k, unroll=True, peel=(1, 1), overlap="defer"):
                tb.scan(s, s, 0, "max", exclusive=True)
                with tb.finally_():
                    tb.reduce(s, y[t], 0, "prod", accumulate=True)

    said = {f"{op.name}.{key}" for op in (*attributes.trace().walk(), *everything.trace().walk()) for key in op.attrs}
    wanted = {f"{spec.name}.{key}" for spec in BLOCK.ops.values() for key in spec.attrs}
    # those of copies and products are said by the seven programs of examples/block, roles' registers too
    assert wanted - said == {
        "channel.apart",
        "copy.by",
        "copy.multicast",
        "mma.skip",
        "role.registers",
        "gather.otherwise",
        "scatter.where",
    }


# -- the text a call makes ------------------------------------------------------------------------------------------


def test_views_are_written_out():
    @tb.kernel()
    def views(x: tb.In("f32", "M", "K"), y: tb.Out("f32", "M", "K"), *, M=100, K=24):
        padded = x.pad(32, None)
        for m in tb.tasks(cdiv(M, 32)):
            whole = padded.tile((32, 8), (m, 2))
            first = padded.tile((32, 8), (0, 1))
            projected = padded.tile((32, 99, None), (m, 7, None), proj=(1, None, 1))
            row = x[m, 3:-1]
            split = x.unmerge(1, (3, 8), (1, 0, 2))
            flat = x.merge((1, 0))
            turned = x.T

    assert body(views)[1:-1] == [
        "%whole = view %x (i 32, j 8) -> [32*m + i ?, j + 16]",
        "%first = view %x (i 32, j 8) -> [i, j + 8]",  # it lies inside: nothing is marked
        "%projected = view %x (i 32, j 24) -> [32*m + i ?, j]",
        "%row = view %x (i 20) -> [m, i + 3]",
        "%split = view %x (i 3, j 100, k 8) -> [j, 8*i + k]",
        "%flat = view %x (i 2400) -> [i%100, i//100]",
        "%turned = view %x (i 24, j 100) -> [j, i]",
    ]


def test_a_tensor_is_seen_through_a_nested_layout_with_open_sizes():
    @tb.kernel()
    def columns(x: tb.In("f32", "(H*W)*C"), y: tb.Out("f32", "(H - 2)*(W - 1)", "C*6"), *, H: tb.Size(3, 99), W=5, C=2):
        taps = x.through(((W - 1, H - 2), (C, 2, 3)), ((C, W * C), (1, C, W * C)))
        for m in tb.tasks((H - 2) * (W - 1)):
            tb.copy(taps[m, :], y[m, :])

    taps, *_ = [line for line in body(columns) if "= view" in line]
    assert taps.startswith("%taps = view %x (i 4*H - 8, j 12) -> [")
    x = np.arange(7 * 5 * 2, dtype=np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x.reshape(7, 5, 2), (3, 2), (0, 1))  # (5, 4, 2, 3, 2)
    wanted = windows.transpose(0, 1, 3, 4, 2).reshape(20, 12)
    assert (tilewright.compile(columns, {"H": 7}, target="interpreter")(x) == wanted).all()
    assert (
        tilewright.compile(columns, target="interpreter").bind(x, found := np.zeros_like(wanted), params={"H": 7})()
        is None
    )
    assert (found == wanted).all()


@pytest.mark.parametrize(
    ("shape", "strides"), [(((2, 2), 4), ((1, 2), (4, 8))), ((4, 8), (1,)), ((4, (2, 4)), (2, 1)), ((4, 8), None)]
)
def test_layouts_whose_strides_do_not_fit_are_refused(shape, strides):
    @tb.kernel()
    def wrong(x: tb.In("f32", 32)):
        x.through(shape, strides)

    with pytest.raises(DimensionMismatch, match="differ"):
        wrong.trace()


def test_padded_shapes_are_rounded_up():
    @tb.kernel()
    def padded(x: tb.In("f32", "M", 67), *, M: tb.Size(1, 1000)):
        assert x.pad(None, 16).shape[1] == 80
        assert str(x.pad(128, None).shape[0]) == "128*((M + 127)//128)"

    padded.trace()


def test_formulas_are_those_of_the_text():
    @tb.kernel()
    def formulas(x: tb.In("f32", 4, 8), y: tb.Out("f32", 4, 8), b: tb.Out("bf16", 4, 8)):
        y[...] = -x * 2 + tb.maximum(x, 0.5) / (1 - x)
        y[...] = tb.select((x < 1) & (x != 0), tb.fma(x, x, y), abs(x))
        b[...] = (y + y).to("bf16")
        y[...] = lambda i, j: tb.select(i >= j, x, 0)
        y[0, :] = 1
        y[...] += x

    assert body(formulas) == [
        "map %y = -%x*2 + maximum(%x, 0.5)/(1 - %x)",
        "map %y = select(and_(%x < 1, %x != 0), fma(%x, %x, %y), abs(%x))",
        "map %b = bf16(%y + %y)",
        "map over (i 4, j 8) %y = select([j <= i], %x, 0)",
        "%y_part = view %y (i 8) -> [0, i]",
        "map %y_part = 1",
        "map %y = %y + %x",
    ]


def test_combining_functions_are_those_of_the_text():
    @tb.kernel()
    def best(x: tb.In("f32", 2, 5), index: tb.In("i32", 2, 5), most: tb.Out("f32", 2), where: tb.Out("i32", 2)):
        for _ in tb.tasks(1):
            tb.reduce(
                (x, index),
                (most, where),
                1,
                lambda a0, a1, b0, b1: (tb.select(a0 >= b0, a0, b0), tb.select(a0 >= b0, a1, b1)),
            )

    assert body(best)[1] == (
        "reduce %x, %index -> %most, %where along 1 with (select(a0 >= b0, a0, b0), select(a0 >= b0, a1, b1))"
    )
    x = np.array([[1, 7, 2, 7, 0], [3, 1, 4, 1, 5]], np.float32)
    most, where = tilewright.compile(best, target="interpreter")(x, np.tile(np.arange(5, dtype=np.int32), (2, 1)))
    assert most.tolist() == [7, 5]
    assert where.tolist() == [1, 4]


def test_places_that_are_data():
    @tb.kernel()
    def places(table: tb.In("f32", "V", 2), which: tb.In("i32", "M"), rows: tb.Out("f32", "M", 2), *, V=3, M=4):
        for _ in tb.tasks(1):
            tb.gather(rows, table, lambda i, j: (tb.maybe(which.at(i)), j), otherwise=-1)

    assert body(places)[1] == "gather %rows (i 4, j 2), %table where v = %which[i] -> [v ?, j] else -1"
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    rows = tilewright.compile(places, target="interpreter")(table, np.array([2, 0, 9, 1], np.int32))
    assert rows.tolist() == [[4, 5], [0, 1], [-1, -1], [2, 3]]


def test_a_traced_program_prints_and_reads_back():
    program = everything.trace()
    assert parse_block(str(program)) == program


def test_loop_variables_with_one_value_are_numbers_as_after_binding():
    @tb.kernel()
    def one(x: tb.In("f32", "M", 4), y: tb.Out("f32", "M", 4), *, M=1):
        for m in tb.tasks(M):
            tb.copy(x[m, :], y[m, :])

    text = """block one(%x: in global f32 (M, 4), %y: out global f32 (M, 4))
      param M = 1
    { tasks m in 0..M {
        %a = view %x (i 4) -> [m, i]
        %b = view %y (i 4) -> [m, i]
        copy %a -> %b
    } }"""
    assert bind(one.trace()) == bind(parse_block(text))


def test_names_are_the_authors_and_differ():
    @tb.kernel()
    def named(x: tb.In("f32", 8), y: tb.Out("f32", 8)):
        for m in tb.tasks(2):
            a, b = tb.shared("f32", (8,)), tb.shared("f32", (8,))
            for k in tb.steps(2):
                a_part = x.view((2,), lambda k: k)  # k is taken: the coordinate has another name
            for k in tb.steps(3):
                tb.fill(tb.shared("f32", (2,)), 0)

    assert body(named) == [
        "tasks m in 0..2 {",
        "%a = alloc shared f32 (8)",
        "%b = alloc shared f32 (8)",
        "for k in 0..2 {",
        "%a_part = view %x (k_2 2) -> [k_2]",
        "}",
        "for k in 0..3 {",
        "%shared = alloc shared f32 (2)",
        "fill %shared 0",
        "}",
        "}",
    ]


def test_names_are_made_up_where_the_source_is_not_there():
    scope = {"tb": tb}
    exec(
        "def f(x: tb.In('f32', 4)):\n    for m in tb.tasks(3):\n        part = x[m]\n        tb.debug_log('x', part)",
        scope,
    )
    assert body(tb.kernel()(scope["f"])) == [
        "tasks i in 0..3 {",
        "%x_part = view %x () -> [i]",
        'debug_log "x" %x_part',
        "}",
    ]


# -- partitions ----------------------------------------------------------------------------------------------------


def test_partition_is_local_partition_for_every_element_of_every_thread():
    chance = random.Random(13)
    for _ in range(150):
        rank = chance.randint(1, 3)
        counts = [chance.choice([1, 2, 3]) for _ in range(rank)]
        per = [chance.choice([1, 2, 4]) for _ in range(rank)]
        order = chance.sample(range(rank), rank)
        strides, running = [0] * rank, 1
        for d in order:
            strides[d], running = running, running * counts[d]
        extents = tuple(c * p for c, p in zip(counts, per, strict=True))
        threads = Layout(tuple(counts), tuple(strides))
        mode = chance.choice(["block", "cyclic"])
        found = tb.partition(extents, threads, mode)
        for thread in range(running):
            mine = local_partition(Layout(extents), threads, thread, mode)
            values = np.arange(mine.layout.size())
            assert (np.asarray(found(thread, values)) == np.asarray(mine(values))).all()
        vector = chance.randrange(rank)
        turned = tb.partition(extents, threads, mode, vector)
        every = np.indices((running, found[1].size()))
        assert (np.sort(np.asarray(found(*every))) == np.sort(np.asarray(turned(*every)))).all()
        step = 1
        for d in range(vector):
            step *= extents[d]
        if per[vector] > 1:
            assert turned(0, 1) - turned(0, 0) == step * (1 if mode == "block" else counts[vector])


@pytest.mark.parametrize(
    ("extents", "threads", "options", "said"),
    [
        ((6, 8), Layout((4, 4)), {}, "dimension 0 has 6 elements, which 4 threads do not share evenly; pad it to 8"),
        ((8, 9), Layout((4, 4)), {"mode": "cyclic"}, "dimension 1 has 9 elements"),
        ((8, 8), Layout((4, 4), (4, 4)), {}, "does not number its 16 threads"),
        ((8, 8), Layout((4, 4), (2, 8)), {}, "does not number its 16 threads"),
        ((2, 2, 2), Layout((2, 2, 2), (1, 1, 5)), {}, "does not number its 8 threads"),
        ((8, 8), Layout(16), {}, "has 1 modes; the tile (8, 8) has 2"),
        ((8, 8), Layout((4, 4)), {"mode": "turns"}, "partition mode 'turns'"),
        ((8, 8), Layout((4, 4)), {"vector": 2}, "vector=2, but the tile (8, 8) has 2 dimensions"),
    ],
)
def test_partitions_in_which_an_element_has_no_single_owner_are_refused(extents, threads, options, said):
    with pytest.raises(LayoutError) as found:
        tb.partition(extents, threads, **options)
    assert said in str(found.value)
    assert shown(found.value)[1] == "tb.partition(extents, threads, **options)"


# -- running -------------------------------------------------------------------------------------------------------


@tb.kernel("cdna3", waves=2)
def staged(x: tb.In("f32", "M", 64), y: tb.Out("f32", "M", 64), *, M: tb.Size(1, 4096), barriers=2, width=None):
    x, y = x.pad(4, None), y.pad(4, None)
    owners = tb.partition((4, 64), Layout((2, 64), (64, 1)), "block", vector=0)
    turned = tb.partition((4, 64), Layout((4, 32), (1, 4)), "block", vector=1)
    for m in tb.tasks(cdiv(M, 4)):
        tile = tb.shared("f32", (4, 64))
        a, b = tb.registers("f32", (4, 64), owners), tb.registers("f32", (4, 64), turned)
        tb.copy(x.tile((4, 64), (m, 0)), a, otherwise=0)
        tb.copy(a, tile)
        if barriers > 0:
            tb.barrier()
        tb.copy(tile, b)
        if barriers > 1:
            tb.barrier()
        tb.copy(b, y.tile((4, 64), (m, 0)))


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_open_sizes_are_told_by_the_call(target):
    run = tilewright.compile(staged, target=target)
    assert run.parameters() == {"M": range(1, 4096)}
    for m in (1, 7, 12):
        x = np.random.default_rng(m).random((m, 64)).astype(np.float32)
        assert (run(x) == x).all()
    fixed = tilewright.compile(staged, {"M": 5}, target=target)
    assert fixed(np.ones((5, 64), np.float32)).sum() == 320


def test_programs_with_roles_run_on_the_interpreter_and_are_refused_elsewhere():
    @tb.kernel("hopper")
    def handed(x: tb.In("f32", 64), y: tb.Out("f32", 64)):
        ring = tb.ring(tb.shared("f32", (1, 64)), producer="one", consumer="two")
        with tb.role("one", waves=1), ring.fill() as free:
            tb.copy(x, free, by="tma.load")
        with tb.role("two", waves=1), ring.take() as full:
            tb.copy(full, y)

    x = np.arange(64, dtype=np.float32)
    assert (tilewright.compile(handed, target="interpreter")(x) == x).all()
    with pytest.raises(ProgramError, match=r"handed has several roles \(one, two\); .* target='interpreter' all"):
        tilewright.compile(handed)
    assert tilewright.compile(staged).target == "cpu"


def test_schedules_and_workers():
    x = np.random.default_rng(0).random((9, 64)).astype(np.float32)
    for seed in range(5):
        assert (tilewright.compile(staged, target="interpreter", workers=seed + 1, seed=seed)(x) == x).all()


# -- mistakes: each at the author's line ----------------------------------------------------------------------------


def shown(fault: BaseException) -> tuple[str, str]:
    """The author's line that a message shows, and what its carets stand under."""
    *_, line, carets = str(fault).splitlines()
    begin = carets.index("^")
    return line.strip(), line[begin : carets.rindex("^") + 1].strip()


def test_a_missing_barrier_is_reported_at_the_authors_line():
    x = np.ones((8, 64), np.float32)
    with pytest.raises((RaceFault, UninitialisedFault)) as found:
        tilewright.compile(staged, {"barriers": 0}, target="interpreter", workers=1)(x)
    assert shown(found.value)[1] in ("tb.copy(tile, b)", "tb.copy(a, tile)")


def test_shared_memory_too_small_by_a_row_is_refused():
    @tb.kernel()
    def short(x: tb.In("f32", 8, 8), y: tb.Out("f32", 8, 8)):
        for _ in tb.tasks(1):
            s = tb.shared("f32", (7, 8))
            tb.copy(x, s)

    with pytest.raises(DimensionMismatch, match=r"the shapes \(8, 8\) and \(7, 8\) differ") as found:
        short.trace()
    assert shown(found.value) == ("tb.copy(x, s)", "tb.copy(x, s)")


def test_a_row_that_is_never_written_is_reported():
    @tb.kernel()
    def short(x: tb.In("f32", 7, 8), y: tb.Out("f32", 8, 8)):
        for _ in tb.tasks(1):
            s = tb.shared("f32", (8, 8))
            tb.copy(x, s[0:7, :])
            tb.copy(s, y)

    with pytest.raises(UninitialisedFault, match="reads element 56 of %s") as found:
        tilewright.compile(short, target="interpreter")(np.ones((7, 8), np.float32))
    assert shown(found.value)[0] == "tb.copy(s, y)"


def test_a_swapped_lane_is_refused():
    @tb.kernel("cdna3", waves=1)
    def swapped(a: tb.In("f16", 32, 8), b: tb.In("f16", 8, 32), c: tb.Out("f32", 32, 32)):
        mma = tb.Mma("mfma.32x32x8.f16")
        for _ in tb.tasks(1):
            fa = tb.registers("f16", (32, 8), Layout(((2, 32), 4), ((128, 1), 32)))  # halves and rows changed places
            fb, acc = mma.b(8, 32), mma.c(32, 32)
            tb.copy(a, fa)
            tb.copy(b, fb)
            tb.clear(acc)
            mma(acc, fa, fb)
            tb.copy(acc, c)

    with pytest.raises(ProgramError, match="thread 1 holds element") as found:
        tilewright.compile(swapped, target="interpreter")
    assert shown(found.value)[0] == "mma(acc, fa, fb)"


def test_interleaved_factors_belong_to_an_interleaved_sum():
    @tb.kernel("cdna3", waves=4)
    def mixed(a: tb.In("f16", 128, 8), b: tb.In("f16", 8, 128), c: tb.Out("f32", 128, 128), *, both=True):
        mma, other = tb.Mma("mfma.32x32x8.f16", (2, 2), interleaved=True), tb.Mma("mfma.32x32x8.f16", (2, 2))
        for _ in tb.tasks(1):
            fa, fb, acc = mma.a(128, 8), (mma if both else other).b(8, 128), mma.c(128, 128)
            tb.copy(a, fa)
            tb.copy(b, fb)
            tb.clear(acc)
            mma(acc, fa, fb)
            tb.copy(acc, c)

    a, b = (
        np.random.default_rng(s).integers(-3, 4, shape).astype(np.float16)
        for s, shape in ((0, (128, 8)), (1, (8, 128)))
    )
    assert (tilewright.compile(mixed, target="interpreter")(a, b) == a.astype(np.float32) @ b.astype(np.float32)).all()
    with pytest.raises(ProgramError, match="convert_layout is the only way") as found:
        tilewright.compile(mixed, {"both": False}, target="interpreter")
    assert shown(found.value)[0] == "mma(acc, fa, fb)"


def test_a_loop_left_by_break_is_an_error():
    @tb.kernel()
    def leaves(x: tb.In("f32", 8)):
        for _ in tb.tasks(2):
            for k in tb.steps(4):
                tb.debug_log("x", x[k])
                break

    with pytest.raises(ProgramError, match="left by break") as found:
        leaves.trace()
    assert shown(found.value) == ("for k in tb.steps(4):", "tb.steps(4)")


def test_a_loop_left_by_return_is_an_error():
    @tb.kernel()
    def leaves(x: tb.In("f32", 8)):
        for _ in tb.tasks(2):
            return

    with pytest.raises(ProgramError, match="left by break, return"):
        leaves.trace()


def test_a_loop_is_walked_once():
    @tb.kernel()
    def twice(x: tb.In("f32", 8)):
        rounds = tb.tasks(8)
        for k in rounds:
            tb.debug_log("x", x[k])
        for k in rounds:
            tb.debug_log("x", x[k])

    with pytest.raises(ProgramError, match="this loop was walked before") as found:
        twice.trace()
    assert shown(found.value)[0] == "for k in rounds:"


def test_a_loop_variable_has_no_value_after_its_loop():
    @tb.kernel()
    def after(x: tb.In("f32", 8)):
        for k in tb.tasks(8):
            pass
        part = x[k]

    with pytest.raises(ProgramError, match="k has no value here") as found:
        after.trace()
    assert shown(found.value) == ("part = x[k]", "x[k]")


def test_a_tensor_of_a_loop_is_not_known_after_it():
    @tb.kernel()
    def after(x: tb.In("f32", 8)):
        for k in tb.tasks(8):
            part = x[k]
        tb.debug_log("x", part)

    with pytest.raises(ProgramError, match="is not defined before it") as found:
        after.trace()
    assert shown(found.value)[0] == 'tb.debug_log("x", part)'


def test_nothing_follows_finally():
    @tb.kernel()
    def follows(x: tb.In("f32", 8)):
        for k in tb.tasks(8):
            with tb.finally_():
                tb.debug_log("x", x)
            tb.barrier()

    with pytest.raises(ProgramError, match="nothing may follow") as found:
        follows.trace()
    assert shown(found.value)[1] == "tb.barrier()"


def test_python_cannot_ask_elements():
    @tb.kernel()
    def asks(x: tb.In("f32", 8)):
        if x > 0:
            pass

    with pytest.raises(PythonControlFlow, match=r"tb.select") as found:
        asks.trace()
    assert shown(found.value)[0] == "if x > 0:"


def test_an_exception_leaves_the_builder_as_it_was():
    @tb.kernel()
    def catches(x: tb.In("f32", 8), y: tb.Out("f32", 8)):
        for _ in tb.tasks(1):
            try:
                with tb.if_(True):
                    tb.copy(x, y[0:4])
            except DimensionMismatch:
                tb.copy(x, y)

    assert body(catches) == ["tasks _ in 0..1 {", "copy %x -> %y", "}"]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"MM": 3}, "staged has no parameter MM; it has M, barriers, width; did you mean M?"),
        ({"M": 5000}, r"M = 5000; staged takes M in 1..4096"),
        ({"M": 2.5}, r"M = 2.5; staged takes M in 1..4096"),
    ],
)
def test_parameters_are_checked(params, said):
    with pytest.raises(ArgumentError) as found:
        staged.trace(params)
    assert said in str(found.value)


def test_parameters_without_a_value_are_named():
    @tb.kernel()
    def needs(x: tb.In("f32", "M"), *, M):
        pass

    with pytest.raises(ArgumentError, match="needs needs a value for M"):
        needs.trace()


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (1.9, "for: a step is 1.9; it must be an integer"),
        ("two", "for: a step is 'two'; it must be an integer"),
        (0, "for: the step is 0; it must be a known integer of at least 1"),
        (-2, "for: the step is -2; it must be"),
        (symbol("N", 1), "for: the step is N; it must be"),
    ],
    ids=str,
)
def test_a_step_that_is_no_positive_integer_is_neither_rounded_nor_kept(step, said):
    @tb.kernel()
    def strided(x: tb.Out("f32", 8)):
        for i in tb.steps((0, 8, step)):
            x.view((1,), lambda j: (i + j,)).fill(1)

    with pytest.raises(ProgramError, match=f"(?s){re.escape(said)}.*tb.steps"):
        strided.trace()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x, y: x.view((2, 2), 3), "view: at is 3; it must be a function"),
        (lambda x, y: x.view((np.ones(2),), lambda i: i), "view: an extent is array"),
        (lambda x, y: tb.gather(y, x, at=(0, 0)), "gather: at is (0, 0); it must be a function"),
        (lambda x, y: tb.reduce(x, y, 0, 5), "reduce: how is 5; it must be a function"),
        (lambda x, y: tb.copy(x, y, by=("a", "b")), "copy: the attribute by is ('a', 'b'), which is no dotted"),
        (lambda x, y: tb.shared("f32", (8, 8), strides=2), "shared: 1 strides for 2 dimensions"),
        (lambda x, y: tb.shared("f32", (8, 8), swizzle=(1, 2)), "shared: swizzle=(1, 2) is no swizzle or (bits,"),
        (lambda x, y: tb.steps(4, peel=1), "steps: peel=1 is no pair (first, last)"),
        (lambda x, y: tb.require(2), "require: 2 is no text"),
        (lambda x, y: tb.partition("ab", LANES), "partition: extents='ab' are no known integers"),
        (lambda x, y: tb.partition((8, 8), (4, 4)), "partition: threads=(4, 4) is no layout"),
        (lambda x, y: tb.blockwise_copy(x, "y", LANES), "blockwise_copy takes a tensor, not 'y'"),
        (lambda x, y: tb.blockwise_copy(x, y, LANES, 4), "blockwise_copy: vector=4 is no pair (dimension, elements)"),
    ],
)
def test_an_argument_of_the_wrong_kind_was_an_error_of_python(call, said):
    @tb.kernel()
    def wrong(x: tb.In("f32", 8, 8), y: tb.Out("f32", 8, 8)):
        call(x, y)

    with pytest.raises(ProgramError, match=re.escape(said)):
        wrong.trace()


def test_requirements_are_checked_or_left_to_the_call():
    @tb.kernel()
    def whole(x: tb.In("f32", "M"), y: tb.Out("f32", "M"), *, M: tb.Size(1, 100), B=4):
        tb.require("B % 2 == 0")
        tb.require("M % 8 == 0")
        for m in tb.tasks(M // 8):
            tb.copy(x[8 * m : 8 * m + 8], y[8 * m : 8 * m + 8])

    with pytest.raises(ArgumentError, match="requires B % 2 == 0; here B = 3"):
        whole.trace(B=3)
    run = tilewright.compile(whole, target="interpreter")
    assert run(np.ones(16, np.float32)).sum() == 16
    with pytest.raises(ArgumentError, match="requires"):
        run(np.ones(12, np.float32))


def test_operations_need_a_kernel():
    with pytest.raises(ProgramError, match="barrier only has a meaning inside a kernel"):
        tb.barrier()
    with pytest.raises(ProgramError, match="is not compiled"):
        staged(np.ones((1, 64)))


def test_numbers_of_numpy_are_numbers():
    @tb.kernel()
    def numbers(x: tb.InOut("f32", 8), n: tb.InOut("i32", 8), *, size):
        tb.fill(x.tile(size, 1), np.float32(0.5))
        n[...] = n + np.int32(3)
        tb.copy(x.view(8, lambda i: tb.maybe(i + 1)), tb.shared("f32", 8), otherwise=np.float32(2))

    assert body(numbers, size=np.int64(4)) == [
        "%x_part = view %x (i 4) -> [i + 4]",
        "fill %x_part 0.5",
        "map %n = %n + 3",
        "%x_part_2 = view %x (i 8) -> [i + 1 ?]",
        "%shared = alloc shared f32 (8)",
        "copy %x_part_2 -> %shared else 2.0",
    ]


def test_attributes_of_a_wrong_kind_are_named_at_the_line():
    @tb.kernel()
    def wrong(x: tb.InOut("i32", 8)):
        tb.fill(x, "zero")

    with pytest.raises(ProgramError, match="the attribute value is 'zero', which is no number") as found:
        wrong.trace()
    assert shown(found.value)[1] == 'tb.fill(x, "zero")'


def test_kernels_go_by_their_names():
    assert pickle.loads(pickle.dumps(staged)) is staged
    assert copy.deepcopy(staged) is staged

    @tb.kernel()
    def local(x: tb.In("f32", 8)):
        pass

    with pytest.raises(NotPicklable, match="the kernel local is not"):
        pickle.dumps(local)


def test_wrong_arguments_are_named():
    @tb.kernel()
    def wrong(x: tb.In("f32", 8), n: int):
        pass

    with pytest.raises(ProgramError, match="argument n of the kernel wrong has the type"):
        wrong.trace()

    @tb.kernel()
    def formula(x: tb.In("f32", 8)):
        x[...] = "text"

    with pytest.raises(DtypeMismatch, match="map takes tensors, numbers and"):
        formula.trace()


def test_plans_are_for_tile_kernels():
    with pytest.raises(ArgumentError, match="the block kernel staged says itself how it is done"):
        tilewright.compile(staged, plan="anything")
    with pytest.raises(ArgumentError, match="for block kernels"):
        tilewright.compile("tile x() {}", seed=1)


# -- pictures -------------------------------------------------------------------------------------------------------


def test_pictures_say_who_holds_what():
    picture = staged.draw("a")
    assert picture.title == "%a: register f32 (4, 64) by ((64,2),(2,1)):((4,2),(1,4))"
    assert picture.shape == (4, 64)
    assert ">T127<" in picture._repr_svg_()
    assert staged.draw("mfma.32x32x8.f16.a").shape == (32, 8)


def test_pictures_of_views_show_where_their_elements_lie():
    @tb.kernel()
    def views(x: tb.In("f32", 8, 8)):
        s = tb.shared("f32", (2, 8, 8), swizzle=(3, 0, 3))
        for t in tb.tasks(2):
            part = s.view((4, 8), lambda i, j: (t, j, 2 * i))

    layout = views.draw("part").layout
    swizzle = tb.Swizzle(3, 0, 3)
    assert [[layout(i, j) for j in range(8)] for i in range(4)] == [
        [swizzle(8 * j + 2 * i) for j in range(8)] for i in range(4)
    ]
    assert views.draw("s").element_bytes == 4
    assert views.draw("x").element_bytes is None


def test_what_cannot_be_drawn_is_named():
    with pytest.raises(ProgramError, match="staged has no tensor q; it has x, y, tile, a, b, x_part, y_part"):
        staged.draw("q")
