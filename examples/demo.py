"""What Tilewright can do today, on this machine: `make demo`."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from rich.console import Console
from rich.rule import Rule

import tilewright
from tilewright.algebra import ComposedLayout, Layout, Swizzle, View, extent
from tilewright.algebra.picture import layout_conflicts, layout_table
from tilewright.problems import conv_forward, exact_data, parse_conv
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
    conv = tilewright.compile(kernel, symbols, strict=True)
    console.print(f"traced and compiled for the executor in {1000 * (perf_counter() - start):.1f} ms:\n")
    console.print(conv.text())
    x, weights = exact_data(problem, "bf16", np.random.default_rng(0), result="f32")
    start = perf_counter()
    y = conv(x, weights)
    elapsed = perf_counter() - start
    wanted = conv_forward(problem, x, weights)
    wrong = int((y.astype(np.float64) != wanted).sum())
    console.print(f"run in {elapsed:.3f} s; {y.size - wrong} of {y.size} results equal the float64 reference exactly")
    if wrong:
        raise SystemExit("the convolution is wrong")


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


def main() -> None:
    """Prints the demonstration."""
    console = Console(markup=False, highlight=False)
    console.print(Rule("Tile language: the seed's convolution"))
    convolution(console)
    console.print(Rule("Accesses: 3x3, stride 2, padding 1, run-time sizes"))
    accesses(console)
    console.print(Rule("Layouts: functions from coordinates to offsets"))
    layouts(console)


if __name__ == "__main__":
    main()
