"""The host program is what runs: its text, parsed back, does what the kernel does; its names are nobody else's."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError, ExecutionError
from tilewright.ir.host import parse_host
from tilewright.kernels import gather_rows, gemm, running_sum
from tilewright.kernels.conv import conv

M, N, K, B = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.B
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def whole(shape, dtype=np.float32, seed=0):
    return np.asarray(np.random.default_rng((seed, *shape)).integers(-3, 4, shape), dtype)


def programs(text):
    """The names of a module's programs: the host program's first."""
    return re.findall(r"^(?:host|block) (\w+)", text, re.MULTILINE)


@tkw.wave()
def scaled(x: tkl.Memory[M, N, GLOBAL, tkl.f32], factor: tkl.f32, y: tkl.Memory[M, N, GLOBAL, tkl.f32]):
    tkw.write(tkw.read(x) * factor, y)


@tkw.wave()
def chained(
    a: tkl.Memory[M, K, GLOBAL, tkl.f32],
    b: tkl.Memory[N, K, GLOBAL, tkl.f32],
    d: tkl.Memory[B, N, GLOBAL, tkl.f32],
    c: tkl.Memory[M, B, GLOBAL, tkl.f32],
):
    first = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0))
    tkw.write(tkw.mma(first, tkw.read(d), tkl.Register[M, B, tkl.f32](0.0)), c)


F16 = np.float16
KERNELS = {
    "packed": (gemm("nn", "f32"), [(5, 7), (7, 19)], np.float32, ()),
    "converted and packed": (gemm("nt", "f16", "f32"), [(5, 7), (19, 7)], F16, ()),
    "batched": (gemm("nn", "f32", batched=True), [(2, 5, 7), (2, 7, 3)], np.float32, ()),
    "with a bias": (gemm("nn", "f32", bias=True, activation="relu"), [(5, 7), (7, 19), (19,)], np.float32, ()),
    "open rows": (gemm("nn", "f32"), [(5, 7), (7, 19)], np.float32, ("M",)),
    "open rows, converted": (gemm("nn", "f16", "f32"), [(5, 7), (7, 19)], F16, ("M",)),
    "convolution": (conv((3, 3), "f32", "f32", padding=1), [(1, 5, 6, 3), (4, 3, 3, 3)], np.float32, ()),
    "1x1, digits joined": (conv((1, 1), "f32", "f32"), [(2, 5, 6, 3), (4, 1, 1, 3)], np.float32, ()),
    "depthwise": (conv((3, 3), "f32", "f32", padding=1, groups=6), [(1, 5, 7, 6), (6, 3, 3, 1)], np.float32, ()),
    "open image": (conv((3, 2), "f32", "f32", padding=1), [(2, 5, 6, 3), (4, 3, 2, 3)], np.float32, ("N", "H", "W")),
    "open image, strided": (conv((3, 3), "f16", "f32", stride=2), [(2, 7, 9, 3), (4, 3, 3, 3)], F16, ("H", "W")),
    "not packed": (running_sum(), [(5, 7)], np.float32, ()),
    "scalar argument": (scaled, [(5, 7), ()], np.float32, ()),
}


def case(name):
    kernel, shapes, dtype, dynamic = KERNELS[name]
    run = tilewright.compile(kernel, dynamic=dynamic)
    return run, [whole(shape, dtype, n) for n, shape in enumerate(shapes)]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("target", ["cpu", "interpreter"])
@pytest.mark.parametrize("name", KERNELS)
def test_the_text_of_the_host_program_does_what_the_kernel_does(name, target):
    run, arrays = case(name)
    wanted = run(*arrays)
    text = run.text("host")
    again = tilewright.compile_text(text, target)
    assert again.text() == text
    assert np.array_equal(again(*arrays), wanted)
    dynamic = KERNELS[name][3]
    header = text.partition("{")[0]
    assert sorted(re.findall(r"(\w+) in \d+\.\.1048576", header)) == sorted(dynamic)


@pytest.mark.parametrize("name", ["open rows, converted", "open image", "open image, strided"])
def test_the_text_of_an_open_kernel_serves_other_sizes(name):
    run, (x, w) = case(name)
    run(x, w)
    again = tilewright.compile_text(run.text("host"))
    for more in (1, 4):
        larger = whole((*(n + more for n in x.shape[:-1]), x.shape[-1]), x.dtype)
        if name == "open image, strided":
            larger = np.ascontiguousarray(larger[: x.shape[0]])
        assert np.array_equal(again(larger, w), run(larger, w))


GEMM = """tile NAME(%A: global f16[M, K], %B: global f16[K, N], %C: global f32[M, N])
  symbols K, M, N
{
  %0 = fill value=0 : f32[M, N]
  %1 = iterate %0 axis=(K) (%2: f32[M, N]) {
    %3 = read %A : f16[M, K]
    %4 = read %B : f16[K, N]
    %5 = mma %3, %4, %2 : f32[M, N]
    yield %5
  } : f32[M, N]
  write %1, %C
}
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["cpu", "interpreter"])
@pytest.mark.parametrize(
    ("name", "a", "b", "c"),
    [
        ("pack", "a", "b", "c"),
        ("widen_a", "a", "b", "c"),
        ("pack_host", "a", "b", "c"),
        ("pack_2", "packed_", "b", "c"),
        ("gemm", "a", "packed_", "a_wide_"),
        ("host", "narrow", "wide", "bind"),
        ("launch", "a_shaped_", "a", "a_wide__shaped_"),
    ],
)
def test_names_of_the_compilers_never_meet_the_authors(name, a, b, c, target):
    """A kernel called `pack` or `widen` met the program that packs or converts."""
    text = GEMM.replace("NAME", name)
    for old, new in (("%A", f"%{a}"), ("%B", f"%{b}"), ("%C", f"%{c}")):
        text = text.replace(old, new)
    x, y = whole((5, 7), F16), whole((7, 3), F16)
    for dynamic in ((), ("M",)):
        run = tilewright.compile(text, dynamic=dynamic)
        assert np.array_equal(run(x, y), x.astype(np.float32) @ y.astype(np.float32))
        shown = run.text("host")
        assert len(set(programs(shown))) == len(programs(shown))
        again = tilewright.compile_text(shown, target)
        assert [v.name for v in again.main.args] == [a, b, c]
        assert np.array_equal(again(x, y), run(x, y))


def test_an_open_size_may_have_the_name_of_a_parameter_of_the_compilers():
    text = GEMM.replace("NAME", "gemm").replace("%A", "%a").replace("%B", "%b").replace("%C", "%c")
    run = tilewright.compile(re.sub(r"\bM\b", "COUNT", text), dynamic=["COUNT"])
    x, y = whole((5, 7), F16), whole((7, 3), F16)
    assert np.array_equal(run(x, y), x.astype(np.float32) @ y.astype(np.float32))
    assert np.array_equal(tilewright.compile_text(run.text("host"))(x, y), run(x, y))


def test_constant_arguments_are_packed_when_they_are_bound_and_others_at_every_launch():
    x, w, y = whole((5, 7)), whole((7, 3)), np.empty((5, 3), np.float32)
    for constant in ((), ("b",)):
        made = kernel_for(gemm("nn", "f32"), {"M": 5, "N": 3, "K": 7}, constant=constant)
        host = parse_host(made.text("host").partition("\nblock")[0])
        assert [op.name for op in host.body.ops] == (
            ["bind", "launch"] if constant else ["workspace", "launch", "launch"]
        )
        held = w.copy()
        launch = made.bind({"a": x, "b": held, "c": y})
        held += 1
        launch()
        assert np.array_equal(y, x @ (w if constant else w + 1))


def test_what_is_packed_is_kept_for_other_arguments_of_an_open_kernel():
    made = kernel_for(gemm("nn", "f32"), {"M": 5, "N": 3, "K": 7}, dynamic=["M"], constant=["b"])
    w = whole((7, 3))
    kept = made.keep({"a": whole((2, 7)), "b": w, "c": np.empty((2, 3), np.float32)})
    for rows in (1, 6):
        x, y = whole((rows, 7)), np.full((rows, 3), np.nan, np.float32)
        made.bind({"a": x, "b": np.full_like(w, np.nan), "c": y}, kept)()
        assert np.array_equal(y, x @ w)


def test_programs_with_several_products_pack_what_tasks_share_by_their_host_program():
    sizes, shapes = {"M": 70, "N": 9, "K": 20, "B": 33}, [(70, 20), (9, 20), (33, 9)]
    a, b, d = (whole(shape, seed=n) for n, shape in enumerate(shapes))
    wanted = a @ b.T @ d.T
    for constant in ((), ("b", "d")):
        made = kernel_for(chained, sizes, constant=constant)
        text = made.text("host")
        assert ("launch pack_b(%b, %packed_b)" in text) == ("bind {" in text) == bool(constant)
        found = np.full((70, 33), np.nan, np.float32)
        made.bind({"a": a, "b": b, "d": d, "c": found})()
        assert np.array_equal(found, wanted)
        assert np.array_equal(tilewright.compile_text(text)(a, b, d), wanted)


@pytest.mark.parametrize("name", ["packed", "not packed"])
def test_arrays_that_lie_elsewhere_are_copied_around_each_launch(name):
    run, arrays = case(name)
    wanted = run(*arrays)
    apart = [np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)[..., ::2] for a in arrays]
    raw = np.zeros(wanted.nbytes + 1, np.uint8)[1:]
    out = raw.view(wanted.dtype).reshape(wanted.shape)  # not at a multiple of its element size
    launch = run.bind(*apart, out)
    for held, array in zip(apart, arrays, strict=True):
        held[...] = array
    launch()
    assert np.array_equal(out, wanted)


@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_what_a_program_reports_is_checked_by_its_host_program(target):
    run = tilewright.compile(gather_rows())
    table, rows = whole((4, 3)), np.array([3, 0], np.int32)
    wanted = run(table, rows)
    again = tilewright.compile_text(run.text("host"), target)
    assert "check %faults 0 else " in run.text("host")
    assert np.array_equal(again(table, rows), wanted)
    with pytest.raises(ExecutionError) as found:
        run(table, np.array([3, 4], np.int32))
    with pytest.raises(ExecutionError) as same:
        again(table, np.array([3, 4], np.int32))
    assert same.value.what == found.value.what
    assert np.array_equal(again(table, rows), wanted)  # what was reported is forgotten


def test_threads_that_share_a_bound_kernel_take_turns():
    """Its workspaces are one caller's at a time."""
    run = tilewright.compile(gemm("nn", "f16", "f32"))
    x, w, y = whole((33, 40), F16), whole((40, 20), F16), np.empty((33, 20), np.float32)
    launch = run.bind(x, w, y)
    threads = [threading.Thread(target=lambda: [launch() for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(y, x.astype(np.float32) @ w.astype(np.float32))


def test_arrays_that_a_host_program_does_not_take_are_refused():
    run, arrays = case("packed")
    run(*arrays)
    again = tilewright.compile_text(run.text("host"))
    with pytest.raises(
        ArgumentError, match=r"b is float32 of shape \(7, 18\); gemm_host takes in global f32 \(7, 19\)"
    ):
        again(arrays[0], whole((7, 18)))
    with pytest.raises(ArgumentError, match=r"a is float64 of shape \(5, 7\)"):
        again(arrays[0].astype(np.float64), arrays[1])
