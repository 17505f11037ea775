"""How long index algebra takes: 1,000 random im2col addresses built, simplified, normalised and cut.

    python benchmarks/index_algebra.py

The sizes are drawn so that Q and C do not divide the tiles. Each step is run three times; the first run, with
nothing remembered from before, and the best are printed. Budgets are those of the project's design.
"""

from __future__ import annotations

import random
import subprocess
import sys
from time import perf_counter

from rich.console import Console
from rich.table import Table

from tilewright.algebra import Access, Expr, extent, index

COUNT = 1000
Problem = dict[str, int]


def problems() -> list[Problem]:
    """Random convolutions of which neither Q nor C divides the tiles."""
    rng = random.Random(7)
    found: list[Problem] = []
    while len(found) < COUNT:
        p = {name: rng.choice(choices) for name, choices in CHOICES.items()}
        p["P"] = (p["H"] + 2 * p["pad"] - p["dilation"] * (p["R"] - 1) - 1) // p["stride"] + 1
        p["Q"] = (p["W"] + 2 * p["pad"] - p["dilation"] * (p["S"] - 1) - 1) // p["stride"] + 1
        if p["P"] > 0 and p["Q"] > 0 and p["Q"] % p["tile_m"] and p["C"] % p["tile_k"]:
            found.append(p)
    return found


CHOICES = {
    "N": [1, 2, 8, 32],
    "C": [3, 5, 20, 33, 65, 100, 127, 250],
    "H": list(range(7, 120)),
    "W": list(range(7, 120)),
    "R": [1, 2, 3, 5, 7],
    "S": [1, 2, 3, 5, 7],
    "stride": [1, 2],
    "dilation": [1, 1, 2],
    "pad": [0, 0, 1, 2, 3],
    "tile_m": [32, 64, 128],
    "tile_k": [16, 32, 64],
}


def address(p: Problem) -> tuple[Expr, Expr, Expr]:
    """Offset, row and column of im2col, by // and % of tiled flat indices."""
    m = index("bm", -(-p["N"] * p["P"] * p["Q"] // p["tile_m"])) * p["tile_m"] + index("tm", p["tile_m"])
    k = index("bk", -(-p["R"] * p["S"] * p["C"] // p["tile_k"])) * p["tile_k"] + index("tk", p["tile_k"])
    n, row, column = m // (p["P"] * p["Q"]), m % (p["P"] * p["Q"]) // p["Q"], m % p["Q"]
    r, s, c = k // (p["S"] * p["C"]), k % (p["S"] * p["C"]) // p["C"], k % p["C"]
    h = row * p["stride"] + r * p["dilation"] - p["pad"]
    w = column * p["stride"] + s * p["dilation"] - p["pad"]
    return ((n * p["H"] + h) * p["W"] + w) * p["C"] + c, h, w


def written(p: Problem, *, symbolic: bool) -> Access:
    """The access with flat m and k; with symbolic sizes H, W, C are known only at run time."""
    if symbolic:
        H, W, C = extent("H", p["R"] * p["dilation"]), extent("W", p["S"] * p["dilation"]), extent("C")
        P = extent("P", definition=(H + 2 * p["pad"] - p["dilation"] * (p["R"] - 1) - 1) // p["stride"] + 1)
        Q = extent("Q", definition=(W + 2 * p["pad"] - p["dilation"] * (p["S"] - 1) - 1) // p["stride"] + 1)
    else:
        H, W, C, P, Q = (p[name] for name in "HWCPQ")
    m, k = index("m", p["N"] * P * Q), index("k", p["R"] * p["S"] * C)
    n, row, column = m // (P * Q), (m // Q) % P, m % Q
    r, s, c = k // (p["S"] * C), (k // C) % p["S"], k % C
    h = row * p["stride"] + r * p["dilation"] - p["pad"]
    w = column * p["stride"] + s * p["dilation"] - p["pad"]
    return Access.of((n, h, w, c), axes=(m, k), shape=(p["N"], H, W, C))


def normalised_and_cut(access: Access, p: Problem) -> Access:
    """The normal form with c cut as a box and the digits of m by one of the three ways."""
    normal = access.normalise()
    digits = [a.name for a in normal.axes if a in normal.indices[0][1].symbols]
    channels = [a.name for a in normal.axes if a in normal.indices[1][1].symbols][-1]
    cut = normal.cut(channels, p["tile_k"])
    how = ("table", "box", "extend")[p["W"] % 3]
    return cut.cut(digits if how == "table" else digits[-1], p["tile_m"], how)


def timed(work: object) -> tuple[float, float]:
    """Seconds of the first run and of the best of three."""
    times = []
    for _ in range(3):
        start = perf_counter()
        kept = work()  # type: ignore[operator]
        times.append(perf_counter() - start)
        del kept
    return times[0], min(times)


def import_cost() -> float:
    """Milliseconds that `import tilewright, tilewright.algebra` takes over numpy's own import, best of seven."""

    def best(program: str) -> float:
        runs = []
        for _ in range(7):
            code = f"from time import perf_counter as t; s = t(); {program}; print(t() - s)"
            runs.append(float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout))
        return min(runs)

    return 1000 * (best("import numpy, tilewright, tilewright.algebra") - best("import numpy"))


def main() -> None:
    """Prints the table."""
    chosen = problems()
    table = Table("step", "first s", "best s", "budget s", title=f"{COUNT} random im2col addresses")
    table.add_row("build and simplify", *[f"{t:.3f}" for t in timed(lambda: [address(p) for p in chosen])], "0.4")
    for symbolic in (False, True):
        kind = "symbolic H, W, C" if symbolic else "bound sizes"

        def write(symbolic: bool = symbolic) -> list[Access]:
            return [written(p, symbolic=symbolic) for p in chosen]

        accesses = write()

        def work(accesses: list[Access] = accesses) -> list[Access]:
            done = [normalised_and_cut(access, p) for access, p in zip(accesses, chosen, strict=True)]
            assert not any(access.divisions for access in done)
            return done

        table.add_row(f"write the access: {kind}", *[f"{t:.3f}" for t in timed(write)], "")
        table.add_row(f"normalise and cut: {kind}", *[f"{t:.3f}" for t in timed(work)], "2.0")
    console = Console()
    console.print(table)
    console.print(f"import tilewright and its algebra: {import_cost():.0f} ms over numpy (budget 60)")


if __name__ == "__main__":
    main()
