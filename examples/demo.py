"""What Tilewright can do today, on this machine: `make demo`."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.rule import Rule

CONSOLE = Console(markup=False, highlight=False)
if __name__ == "__main__":  # said before what takes a second to import
    CONSOLE.print("Tilewright, in six parts; it takes about ten seconds. Importing it ...")

import ml_dtypes
import numpy as np

import tilewright
import tilewright.block as tb
from tilewright.algebra import ComposedLayout, Layout, Swizzle, View, extent
from tilewright.algebra.picture import layout_conflicts, layout_table
from tilewright.errors import ProgramError
from tilewright.problems import conv_forward, exact_data, parse_conv
from tilewright.targets.cpu.host import host_machine
from tilewright.wave.templates import get_igemm_conv2d


def convolution(console: Console) -> None:
    """The seed's convolution, for a non-square padded image: traced, printed, run and checked."""
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


def machine_code(console: Console) -> None:
    """A convolution as machine code for this CPU: its plan, its block program, its speed; checked exactly."""
    rng = np.random.default_rng(0)
    dtype = np.dtype(ml_dtypes.bfloat16) if "amx.bf16" in host_machine().multiply else np.dtype(np.float32)
    x = rng.integers(-2, 3, (1, 56, 52, 64)).astype(dtype)
    w = rng.integers(-1, 2, (64, 3, 3, 64)).astype(dtype)
    console.print(f"64 to 64 channels, 56x52, 3x3, {dtype}: planning and compiling ...")
    start = perf_counter()
    layer = tilewright.Conv2d(w, padding=1)
    kernel, y = layer.kernel(x)
    launch = layer.bind(x, y, kernel)
    console.print(f"compiled in {1000 * (perf_counter() - start):.0f} ms\n")
    console.print(kernel.explain() + "\n")
    console.print(kernel.text("block"))
    times = []
    for _ in range(200):
        start = perf_counter()
        launch()
        times.append(perf_counter() - start)
    operations = 2 * y.size * w[0].size
    console.print(f"run in {1e6 * min(times):.0f} us, {operations / min(times) / 1e9:.0f} GFLOP/s on this machine")
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    wanted = sum(
        padded[:, r : r + 56, s : s + 52] @ w[:, r, s].astype(np.float64).T for r in range(3) for s in range(3)
    )
    wrong = int((y.astype(np.float64) != np.asarray(wanted).astype(dtype).astype(np.float64)).sum())
    console.print(f"{y.size - wrong} of {y.size} results equal the float64 reference exactly")
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


PARTS = (
    ("Tile language: the seed's convolution", convolution),
    ("Machine code: a convolution on this CPU", machine_code),
    ("Block programs: one for Hopper, on the interpreter", faults),
    ("Block language: Composable Kernel's basic GEMM in Python", block_language),
    ("Accesses: 3x3, stride 2, padding 1, run-time sizes", accesses),
    ("Layouts: functions from coordinates to offsets", layouts),
)


def main() -> None:
    """Prints the demonstration."""
    start = perf_counter()
    for number, (title, part) in enumerate(PARTS, 1):
        CONSOLE.print(Rule(f"{number} of {len(PARTS)}. {title}"))
        part(CONSOLE)
    CONSOLE.print(Rule(f"all parts in {perf_counter() - start:.1f} s; README.md says where to go on"))


if __name__ == "__main__":
    main()
