"""Programs whose sizes a call tells: compiled once for a GPU, launched with several sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from assembler import assembled, ptxas
from test_driver import Told, loaded_on

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import compile_text, kernels
from tilewright.errors import ArgumentError, ProgramError
from tilewright.runtime.device_arrays import DeviceArray, packed_steps
from tilewright.targets.nvidia.backend import BACKEND

EXAMPLES = Path(__file__).parents[3] / "examples" / "block"


def opened(name: str, *changes: tuple[str, str]) -> str:
    """An example with some of its sizes left to calls."""
    text = (EXAMPLES / f"{name}.block").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


PRODUCT = (
    ("param M = 256, N = 256, K = 256", "param M in 1..65536, N in 1..65536, K in 1..65536"),
    ("min(GROUP, TM - first)", "max(1, min(GROUP, TM - first))"),
)
TEXTS = {
    "product": opened("gemm_hopper", *PRODUCT),
    "in turn": opened("gemm_hopper_pingpong", *PRODUCT),
    "convolution": opened(
        "conv_hopper", ("param N = 2, H = 14, W = 14,", "param N in 1..256, H in 1..128, W in 1..128\n  param")
    ),
    "attention": opened(
        "flash_hopper",
        ("param B = 2, T = 256, U = 256,", "param B in 1..256, T in 1..65536, U in 64..65536\n  param"),
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_open_sizes_cost_no_registers_in_memory(name: str) -> None:
    if ptxas() is None:
        pytest.skip("ptxas is not installed: the extra `ptxas` brings it")
    said = assembled(compile_text(TEXTS[name], "gpu:hopper").text("ptx"), "sm_90a")
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said
    assert "warning" not in said


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("product", [((136, 72), (40, 72), (136, 40)), ((5, 8), (136, 8), (5, 136))]),
        ("in turn", [((72, 72), (40, 72), (72, 40))]),
        (
            "convolution",
            [((2, 5, 7, 64), (64, 3, 3, 64), (2, 5, 7, 64)), ((1, 4, 3, 64), (64, 3, 3, 64), (1, 4, 3, 64))],
        ),
    ],
)
def test_the_lowered_program_is_right_for_several_sizes(name: str, shapes: list[tuple[tuple[int, ...], ...]]) -> None:
    lowered = compile_text(compile_text(TEXTS[name], "gpu:hopper").text("loop"), "interpreter")
    meant, chance = compile_text(TEXTS[name], "interpreter"), np.random.default_rng(3)
    for left, right, result in shapes:
        a, b = (chance.integers(-3, 4, s).astype(meant.main.args[0].type.dtype.numpy) for s in (left, right))
        wanted = meant(a, b)
        assert wanted.shape == result
        np.testing.assert_array_equal(lowered(a, b).astype(np.float64), wanted.astype(np.float64))


DEALT = """
block doubled(%x: in global f32 (M, N), %y: out global f32 (M, N))
  machine hopper
  param M in 1..1000, N in 1..100
  waves 1
{
  tasks m in 0..M, n in 0..ceildiv(N, 32) schedule dynamic {
    %r = alloc register f32 (1, 32) by (32,1):(1,0)
    %from = view %x (i 1, j 32) -> [m, 32*n + j ?]
    %to = view %y (i 1, j 32) -> [m, 32*n + j ?]
    copy %from -> %r else 0
    map %r = %r + %r
    copy %r -> %to
  }
}
"""


def test_tasks_that_are_drawn_are_as_many_as_a_call_says() -> None:
    run = compile_text(DEALT, "gpu:hopper")
    emitted = run._kernel.emitted
    assert (str(emitted.tasks), emitted.sizes, emitted.counters) == ("((N + 31)//32)*M", ("M", "N"), 1)
    lowered = compile_text(run.text("loop"), "interpreter")
    for shape in ((3, 70), (5, 7)):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        np.testing.assert_array_equal(lowered(x), 2 * x)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """A driver that a program can be launched on."""
    found = Told()
    monkeypatch.setattr(type(BACKEND), "why_not", lambda self, machine: None)
    monkeypatch.setattr(type(BACKEND), "loaded", lambda self, *_: loaded_on(found, "kernel"))
    return found


def launched(told: Told, run: Any, *shapes: tuple[int, ...], strides: Any = None) -> Any:
    """The program bound to arrays of these shapes on the device; packed, unless `strides` says how they lie."""
    kinds = [a.type.dtype.numpy for a in run.main.args]
    arrays = [
        DeviceArray(1 << 20 + i, s, packed_steps(s) if strides is None else strides[i], kind, None)
        for i, (s, kind) in enumerate(zip(shapes, kinds, strict=True))
    ]
    emitted = run._kernel.emitted
    told.mapped = len(emitted.parameters)
    told.parameters = len(arrays) + len(emitted.sizes) + told.mapped
    return run._launchable.launch(arrays, None, None)


def test_one_kernel_is_launched_with_the_sizes_of_each_call(told: Told) -> None:
    run = compile_text(TEXTS["product"], "gpu:hopper")
    for (m, n, k), grid in {(300, 520, 72): 15, (4096, 4096, 1024): 132}.items():
        told.calls.clear()
        launched(told, run, (m, k), (n, k), (m, n))()
        extents = [args[3] for name, args in told.calls if name == "cuTensorMapEncodeTiled"]
        strides = [args[4] for name, args in told.calls if name == "cuTensorMapEncodeTiled"]
        assert extents == [[k, m], [k, n], [n, m]]
        assert strides == [[2 * k], [2 * k], [2 * n]]
        assert told.calls[-1][1][0] == (grid, 1, 1)
        assert told.calls[-1][1][-1][:6] == [1 << 20, 1 << 21, 1 << 22, m, n, k]


def test_an_image_of_a_size_that_a_call_tells_is_walked_as_the_filter_stands(told: Told) -> None:
    run = compile_text(TEXTS["convolution"], "gpu:hopper", {"STRIDE": 2})
    launched(told, run, (2, 9, 7, 64), (64, 3, 3, 64), (2, 5, 4, 64))
    (args,) = [args for name, args in told.calls if name == "cuTensorMapEncodeIm2col"]
    _, rank, _, extents, strides, lower, upper, channels, pixels, steps, *_ = args
    assert (rank, extents, strides) == (4, [64, 7, 9, 2], [128, 896, 8064])
    assert (lower, upper, channels, pixels, steps) == ([-1, -1], [-1, -1], 64, 128, [1, 2, 2, 1])


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (((16, 12), (16, 12), (16, 16)), "a stride of K elements, .* a tensor map takes .* here K = 12"),
        (((16, 16), (16, 24), (16, 16)), "b: dimension 1 is 24, but dimension 1 of a says that K is 16"),
        (((70000, 8), (16, 8), (70000, 16)), "a: dimension 0 is 70000; gemm_hopper takes M in 1..65536"),
    ],
)
def test_sizes_that_the_kernel_is_not_for_are_refused_by_name(told: Told, shapes: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        launched(told, compile_text(TEXTS["product"], "gpu:hopper"), *shapes)
    assert told.calls == []


def test_an_open_parameter_is_a_number_of_32_bits() -> None:
    with pytest.raises(ProgramError, match="doubled: M may be 4294967295; an open parameter of a kernel is at most"):
        compile_text(DEALT.replace("M in 1..1000", f"M in 1..{1 << 32}"), "gpu:hopper")


def test_more_tasks_than_are_counted_are_refused(told: Told) -> None:
    run = compile_text(DEALT.replace("M in 1..1000", "M in 1..2000000000"), "gpu:hopper")
    with pytest.raises(
        ArgumentError, match="doubled: arrays of these sizes are 2999999700 tasks; the most is 2147483647"
    ):
        launched(told, run, (999999900, 70), (999999900, 70))


APART = (
    TEXTS["product"]
    .replace("bf16 (M, K),", "bf16 (M, K):(LD, 1),")
    .replace("1..65536, N", "1..65536, LD in 8..99999, N")
)
SHAPES = ((40, 24), (16, 24), (40, 16))


def test_the_stride_of_a_tensor_is_told_by_it(told: Told) -> None:
    launched(told, compile_text(APART, "gpu:hopper"), *SHAPES, strides=((64, 1), (24, 1), (16, 1)))()
    strides = [args[4] for name, args in told.calls if name == "cuTensorMapEncodeTiled"]
    assert strides == [[128], [48], [32]]
    assert told.calls[-1][1][-1][3:7] == [40, 64, 16, 24]


@pytest.mark.parametrize(
    ("text", "strides", "says"),
    [
        ("product", ((64, 1), (24, 1), (16, 1)), "a is not contiguous, and gemm_hopper takes .*, without gaps"),
        ("apart", ((24, 1), (32, 1), (16, 1)), "b is not contiguous"),
        ("apart", ((25, 1), (24, 1), (16, 1)), "a has a stride of LD elements.*; here LD = 25"),
        ("apart", ((1, 64), (24, 1), (16, 1)), "a: the stride of dimension 0 is 1; gemm_hopper takes LD in 8..99999"),
        ("fixed", ((64, 1), (24, 1), (16, 1)), r"a has the strides \(64, 1\); gemm_hopper takes \(32, 1\)"),
        ("over", ((24, 1), (24, 1), (8, 1)), "d is written, but its shape .* may make elements coincide"),
    ],
)
def test_strides_that_the_text_does_not_state_are_refused(told: Told, text: str, strides: Any, says: str) -> None:
    fixed = TEXTS["product"].replace("bf16 (M, K),", "bf16 (M, K):(32, 1),")
    over = TEXTS["product"].replace("bf16 (M, N))", "bf16 (M, N):(8, 1))")
    run = compile_text({"apart": APART, "fixed": fixed, "over": over, **TEXTS}[text], "gpu:hopper")
    with pytest.raises(ArgumentError, match=says):
        launched(told, run, *SHAPES, strides=strides)


def test_an_array_of_the_host_has_no_strides_on_the_device(told: Told) -> None:
    run = compile_text(APART, "gpu:hopper")
    kinds = [a.type.dtype.numpy for a in run.main.args]
    with pytest.raises(
        ArgumentError, match=r"a is an array of the host; gemm_hopper takes it with the strides \(64, 1\)"
    ):
        run.bind(*(np.zeros(s, kind) for s, kind in zip(SHAPES, kinds, strict=True)), params={"LD": 64})


ROWS, COLUMNS = tkl.sym.M, tkl.sym.N


@tkw.wave()
def doubled(
    x: tkl.Memory[ROWS, COLUMNS, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
    y: tkl.Memory[ROWS, COLUMNS, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
) -> None:
    tkw.write(tkw.read(x) + tkw.read(x), y)


@pytest.mark.parametrize(
    ("kernel", "dynamic", "typical", "shapes"),
    [
        (kernels.gemm("nt", "bf16", "bf16"), ["M"], {"M": 300, "N": 72, "K": 72}, [((70, 72), (72, 72))]),
        (
            kernels.gemm("nt", "bf16", "bf16"),
            ["M"],
            {"M": 3, "N": 136, "K": 72},
            [((n, 72), (136, 72)) for n in (1, 40)],
        ),
        (kernels.gemm("nt", "bf16", "bf16"), ["M", "N"], {"M": 4096, "N": 4096, "K": 64}, [((136, 64), (264, 64))]),
        (
            kernels.conv((3, 3), "bf16", padding=1),
            ["N"],
            {"N": 2, "H": 5, "W": 4, "C": 64, "F": 72},
            [((4, 5, 4, 64), (72, 3, 3, 64))],
        ),
        (doubled, ["M", "N"], {"M": 300, "N": 40}, [((7, 30),), ((3, 50),)]),
    ],
)
def test_dynamic_sizes_of_tile_kernels(kernel: Any, dynamic: list[str], typical: dict[str, int], shapes: Any) -> None:
    run = tilewright.compile(kernel, target="gpu:hopper", dynamic=dynamic)
    made = run.of_sizes(typical)
    assert made._launchable_main.kernel.emitted.sizes == tuple(dynamic)
    done, wanted = compile_text(made.text("host"), "interpreter"), tilewright.compile(kernel, target="executor")
    for each in shapes:
        chance = np.random.default_rng(4)
        arrays = [
            chance.integers(-3, 4, s).astype(a.type.dtype.numpy) for s, a in zip(each, run.program.args, strict=False)
        ]
        np.testing.assert_array_equal(done(*arrays).astype(np.float64), wanted(*arrays).astype(np.float64))


def test_what_is_summed_over_may_be_open() -> None:
    kernel = kernels.gemm("nt", "bf16", "bf16")
    made = tilewright.compile(kernel, target="gpu:hopper", dynamic=["K"]).of_sizes({"M": 64, "N": 64, "K": 64})
    assert "axis K = (K 64?): loop 64" in made.text("plan")
    assert "mma by wgmma" in made.text("plan")
    assert made._launchable_main.kernel.emitted.sizes == ("K",)
    wanted = tilewright.compile(kernel, target="executor")
    for k in (1, 63, 64, 65, 200):
        chance = np.random.default_rng(k)
        a, b = (chance.integers(-3, 4, (64, k)).astype(made.module.host.args[0].type.dtype.numpy) for _ in range(2))
        for level in ("block", "loop"):
            c = np.full((64, 64), np.nan, a.dtype)
            compile_text(made.text(level), "interpreter")(a, b, c)
            assert (c == wanted(a, b)).all(), (k, level)
