"""What Tilewright can do today, on this machine: `make demo`."""

from __future__ import annotations

from rich.console import Console
from rich.rule import Rule

from tilewright.algebra import ComposedLayout, Layout, Swizzle, View, extent
from tilewright.algebra.picture import layout_conflicts, layout_table


def layouts(console: Console) -> None:
    """A tile in shared memory, as rows and swizzled, with its bank conflicts."""
    rows = Layout((8, 8), (8, 1))
    for title, layout in (("rows", rows), ("swizzled", ComposedLayout(Swizzle(3, 0, 3), 0, rows))):
        passes = layout_conflicts(layout, element_bytes=4, banks=8)
        console.print(f"{title}: {layout}, reading a column takes {passes.column} pass(es) with 8 banks")
        console.print(layout_table(layout, element_bytes=4, banks=8))


def convolution(console: Console) -> None:
    """A padded convolution as a chain of transforms, its normal form, and a cut of it."""
    H, W, C = extent("H"), extent("W"), extent("C")
    P = extent("P", definition=(H + 2 - 3) // 2 + 1)
    Q = extent("Q", definition=(W + 2 - 3) // 2 + 1)
    x = View.tensor({"n": 8, "h": H, "w": W, "c": C})
    x = x.pad("h", 1, 1).pad("w", 1, 1)
    x = x.embed("h", {"p": (P, 2), "r": (3, 1)}).embed("w", {"q": (Q, 2), "s": (3, 1)})
    x = x.merge("m", ("n", "p", "q")).merge("k", ("r", "s", "c")).permute("m", "k")
    console.print(str(x), highlight=False)
    access = x.access()
    console.print("\nas written, with // and %:")
    console.print(str(access), highlight=False)
    console.print("\nnormal form: digits, no division, and the bounds that can fail:")
    console.print(str(access.normalise()), highlight=False)
    console.print("\nthe channels cut by 32, the pixels by 64 through a table decoded once a task:")
    cut = access.normalise().cut("c", 32).cut(("n", "p", "q"), 64, how="table")
    console.print(str(cut), highlight=False)


def main() -> None:
    """Prints the demonstration."""
    console = Console()
    console.print(Rule("Layouts: functions from coordinates to offsets"))
    layouts(console)
    console.print(Rule("Accesses: a 3x3 convolution, stride 2, padding 1, sizes known only at run time"))
    convolution(console)


if __name__ == "__main__":
    main()
