"""What Tilewright can do today, on this machine, on two screens: `make demo`; all parts with `--all`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import getsource
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.rule import Rule

CONSOLE = Console(markup=False, highlight=False, soft_wrap=True)
if __name__ == "__main__":  # said before what takes a second to import
    CONSOLE.print("Tilewright, on two screens; it takes about ten seconds. Importing it ...")

import ml_dtypes
import numpy as np

import tilewright
import tilewright.block as tb
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.algebra import ComposedLayout, Layout, Swizzle, View, extent
from tilewright.algebra.picture import layout_conflicts, layout_table
from tilewright.cli.peak import peak_of
from tilewright.compiler.native import kernel_for
from tilewright.errors import ProgramError
from tilewright.problems import conv_forward, exact_data, parse_conv
from tilewright.targets.cpu.host import host_machine
from tilewright.wave.templates import get_igemm_conv2d

N, H, W, C, F, R, S, P, Q = (getattr(tkl.sym, name) for name in "NHWCFRSPQ")
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
SIZES = {"N": 1, "H": 56, "W": 52, "C": 64, "F": 64, "R": 3, "S": 3}
AMX = "amx.bf16" in host_machine().multiply
ROUNDS = 100
"""Samples of a launch and of the peak beside it; the fastest of both count."""


@contextmanager
def progress(console: Console, text: str) -> Iterator[None]:
    """Say what is being done, and how long it took when it is done; a terminal shows that something moves."""
    start = perf_counter()
    with console.status(f"{text} ..."):
        yield
    console.print(f"{text}: {perf_counter() - start:.2f} s")


# -- two screens ------------------------------------------------------------------------------------------------------


def convolution_of(dtype: tkl.DataType) -> Any:
    """The convolution, for an element type."""
    n, p, q, r, s, c = (tkw.IndexMapping.iterator(i) for i in range(6))
    pixels = {N: n, H: p + r - 1, W: q + s - 1, C: c}
    taps = tkw.IndexMapping(6, inputs=pixels, outputs={N: n, P: p, Q: q, R: r, S: s, C: c})

    @tkw.wave()
    def conv(
        x: tkl.Memory[N, H, W, C, GLOBAL, dtype],
        w: tkl.Memory[F, R, S, C, GLOBAL, dtype],
        y: tkl.Memory[N, P, Q, F, GLOBAL, tkl.f32],
    ):
        acc = tkl.Register[N, P, Q, F, tkl.f32](0)
        tkw.write(tkw.mma(tkw.read(x, mapping=taps, otherwise=0), tkw.read(w), acc), y)

    return conv.bound({P: H, Q: W})


def on_this_cpu(console: Console) -> None:
    """The convolution on this CPU: its text, its plan, exact results, its share of the measured peak."""
    dtype = tkl.bf16 if AMX else tkl.f32
    lines = getsource(convolution_of).splitlines()[2:-2]
    console.print("\n".join(line[4:] for line in lines if line) + "\n")
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (1, 56, 52, 64)).astype(dtype.numpy)
    w = rng.integers(-1, 2, (64, 3, 3, 64)).astype(dtype.numpy)
    y = np.full((1, 56, 52, 64), np.nan, np.float32)
    with progress(console, f"64 to 64 channels, 56x52, {dtype}: planned, compiled for {host_machine().name}"):
        kernel = kernel_for(convolution_of(dtype), SIZES, constant=["w"])
        launch = kernel.bind({"x": x, "w": w, "y": y})
        launch()
    console.print(kernel.text("plan").rstrip())
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = ((r, s) for r in range(3) for s in range(3))
    wanted = sum(padded[:, r : r + 56, s : s + 52] @ w[:, r, s].astype(np.float64).T for r, s in taps)
    right = int((y == wanted).sum())
    console.print(f"{right} of {y.size} results equal the float64 reference exactly")
    if right != y.size:
        raise SystemExit("the convolution is wrong")
    peak, time, rate = peak_of(dtype, dtype), float("inf"), 0.0
    for _ in range(ROUNDS):
        rate = max(rate, peak.rate(5))
        start = perf_counter()
        launch()
        time = min(time, perf_counter() - start)
    done = 2 * y.size * w[0].size / time
    console.print(f"{1e6 * time:.0f} us, {done / 1e9:.0f} GFLOP/s: {share_of_peak(done, rate, peak.atom)}")


def share_of_peak(done: float, rate: float, atom: str) -> str:
    """The share as text; a peak that is lower than what was done was measured on a busy machine, and is no peak."""
    if done > 1.05 * rate:
        return f"above {rate / 1e9:.0f} GFLOP/s, which others on this machine left of the peak of {atom}"
    return f"{100 * done / rate:.0f} % of {rate / 1e9:.0f} GFLOP/s, the peak of {atom} measured beside"


def on_hopper(console: Console) -> None:
    """The same program, planned for a GPU that need not be there."""
    sizes = {**SIZES, "N": 32}
    with progress(console, "the same program, 32 images in bf16: planned and compiled to PTX for Hopper"):
        kernel = kernel_for(convolution_of(tkl.bf16), sizes, target="gpu:hopper")
        ptx = kernel.text("asm")
    console.print(kernel.text("plan").rstrip())
    told = [line for line in kernel.explain().splitlines() if line.startswith(("predicted", "limited"))]
    console.print("\n".join(told))
    console.print(f"{len(ptx.splitlines())} lines of PTX; {ptx.count('wgmma.mma_async')} wgmma instructions")


@tb.kernel("cdna3", waves=2)
def reverse(x: tb.InOut("f32", 128)):
    """Reverse 128 elements in place, by two waves, by way of shared memory."""
    for _ in tb.tasks(1):
        tile = tb.shared("f32", (128,))
        tb.copy(x.view((128,), lambda i: 127 - i), tile)
        tb.copy(tile, x)  # tb.barrier() is missing before this line


def race(console: Console) -> None:
    """A kernel without its barrier: the interpreter names the line."""
    console.print(getsource(reverse.function))
    try:
        tilewright.compile(reverse, target="interpreter")(np.arange(128, dtype=np.float32))
    except ProgramError as fault:
        console.print(f"{type(fault).__name__}: {fault}")
        return
    raise SystemExit("the race was not found")


# -- the rest ---------------------------------------------------------------------------------------------------------


def convolution(console: Console) -> None:
    """A template's convolution, for a non-square padded image: traced, printed, run in numpy and checked."""
    problem = parse_conv("mb2_ic20ih28iw35oc24oh14ow33kh3kw5sh2sw1ph1pw1")
    console.print(f"problem {problem}: {problem.ops / 1e6:.1f} million operations")
    n, c, h, w = problem.x_shape
    f, _, hf, wf = problem.w_shape
    start = perf_counter()
    kernel, symbols = get_igemm_conv2d(
        *("nchw_fchw", n, h, w, c, hf, wf, f, problem.s), "bf16", "f32", padding=problem.p, dilation=problem.dilation
    )
    conv = tilewright.compile(kernel, symbols, strict=True, target="executor")
    console.print(f"traced and compiled for the executor in {1000 * (perf_counter() - start):.1f} ms:\n")
    console.print(conv.text())
    x, weights = exact_data(problem, "bf16", np.random.default_rng(0), result="f32")
    console.print("running it in numpy, and beside it a reference in float64 ...")
    start = perf_counter()
    y = conv(x, weights)
    elapsed = perf_counter() - start
    wanted = conv_forward(problem, x, weights)
    wrong = int((y.astype(np.float64) != wanted).sum())
    console.print(f"run in {elapsed:.3f} s; {y.size - wrong} of {y.size} results equal the float64 reference exactly")
    if wrong:
        raise SystemExit("the convolution is wrong")


def faults(console: Console) -> None:
    """A block program for Hopper on the interpreter; then with one line taken away."""
    text = (Path(__file__).parent / "block" / "gemm_hopper.block").read_text()
    params = {"M": 72, "N": 64, "K": 128, "BN": 64}
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, s).astype(ml_dtypes.bfloat16) for s in ((72, 128), (64, 128)))
    console.print("interpreting a warp-specialised matrix product, TMA, wgmma, 9 waves ...")
    d = tilewright.compile_text(text, params=params, target="interpreter")(a, b)
    equal = np.array_equal(d.astype(np.float64), (a.astype(np.float64) @ b.astype(np.float64).T))
    console.print(f"72x64x128: {'exact' if equal else 'WRONG'}")
    try:
        tilewright.compile_text(text.replace("        commit %out\n", "", 1), params=params, target="interpreter")(a, b)
    except ProgramError as fault:
        console.print(f"without its `commit %out`:\n{fault}")


@tb.kernel("cdna3", waves=4)
def block_gemm(a: tb.In("f16", "M", "K"), b: tb.In("f16", "N", "K"), c: tb.Out("f16", "M", "N"), *,
               M: tb.Size(1, 999), N: tb.Size(1, 999), K: tb.Size(1, 999), tile=64, deep=32, second=True):  # fmt: skip
    """The basic GEMM of Composable Kernel's tutorial; that has no `second` barrier."""
    a, b, c = a.pad(tile, deep), b.pad(tile, deep), c.pad(tile, tile)
    mma, threads = tb.Mma("mfma.32x32x8.f16", waves=(2, 2)), Layout((64, 4), (4, 1))
    for m, n in tb.tasks(tb.cdiv(M, tile), tb.cdiv(N, tile)):
        sa, sb, acc = tb.shared("f16", (tile, deep)), tb.shared("f16", (tile, deep)), mma.c(tile, tile)
        tb.clear(acc)
        for k in tb.steps(tb.cdiv(K, deep)):
            tb.blockwise_copy(a.tile((tile, deep), (m, k)), sa, threads, otherwise=0)
            tb.blockwise_copy(b.tile((tile, deep), (n, k)), sb, threads, otherwise=0)
            tb.barrier()
            mma.gemm(acc, sa, sb)
            if second:
                tb.barrier()
        c.tile((tile, tile), (m, n))[...] = acc.to("f16")


def block_language(console: Console) -> None:
    """A block kernel in Python, on the interpreter; then with the barrier that CK's program lacks left out."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, s).astype(np.float16) for s in ((70, 100), (65, 100)))
    console.print(str(block_gemm.trace(M=70, N=65, K=100)))
    c = tilewright.compile(block_gemm, target="interpreter")(a, b)
    equal = np.array_equal(c.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64).T)
    console.print(f"70x65x100, ragged in every direction: {'exact' if equal else 'WRONG'}")
    try:
        tilewright.compile(block_gemm, {"second": False}, target="interpreter")(a, b)
    except ProgramError as fault:
        console.print(f"without its second barrier:\n{fault}")


def accesses(console: Console) -> None:
    """A padded convolution as a chain of transforms, its normal form, and a cut of it."""
    H, W, C = extent("H"), extent("W"), extent("C")
    P = extent("P", definition=(H + 2 - 3) // 2 + 1)
    Q = extent("Q", definition=(W + 2 - 3) // 2 + 1)
    x = View.tensor({"n": 8, "h": H, "w": W, "c": C})
    x = x.pad("h", 1, 1).pad("w", 1, 1)
    x = x.embed("h", {"p": (P, 2), "r": (3, 1)}).embed("w", {"q": (Q, 2), "s": (3, 1)})
    x = x.merge("m", ("n", "p", "q")).merge("k", ("r", "s", "c")).permute("m", "k")
    console.print(str(x))
    access = x.access()
    console.print("\nas written, with // and %:")
    console.print(str(access))
    console.print("\nnormal form: digits, no division, and the bounds that can fail:")
    console.print(str(access.normalise()))
    console.print("\nthe channels cut by 32, the pixels by 64 through a table decoded once a task:")
    console.print(str(access.normalise().cut("c", 32).cut(("n", "p", "q"), 64, how="table")))


def layouts(console: Console) -> None:
    """A tile in shared memory, as rows and swizzled, with its bank conflicts."""
    rows = Layout((8, 8), (8, 1))
    for title, layout in (("rows", rows), ("swizzled", ComposedLayout(Swizzle(3, 0, 3), 0, rows))):
        passes = layout_conflicts(layout, element_bytes=4, banks=8)
        console.print(f"{title}: reading a column takes {passes.column} pass(es) with 8 banks")
        console.print(layout_table(layout, element_bytes=4, banks=8))


SCREENS = (
    ("A convolution in ten lines, on this CPU", on_this_cpu),
    ("The same program for Hopper", on_hopper),
    ("A race, found at its line", race),
)
REST = (
    ("Tile language: a convolution from a template, in numpy", convolution),
    ("Block programs: one for Hopper, on the interpreter", faults),
    ("Block language: Composable Kernel's basic GEMM in Python", block_language),
    ("Accesses: 3x3, stride 2, padding 1, run-time sizes", accesses),
    ("Layouts: functions from coordinates to offsets", layouts),
)


def main() -> None:
    """Print the demonstration."""
    every = "--all" in sys.argv[1:]
    parts = (*SCREENS, *REST) if every else SCREENS
    start = perf_counter()
    for number, (title, part) in enumerate(parts, 1):
        CONSOLE.print(Rule(f"{number} of {len(parts)}. {title}"))
        part(CONSOLE)
    more = "README.md says where to go on" if every else "more: python examples/demo.py --all; then README.md"
    CONSOLE.print(Rule(f"done in {perf_counter() - start:.1f} s; {more}"))


if __name__ == "__main__":
    main()
