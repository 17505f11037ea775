"""Random tile programs with one to three products: exact natively, and on the interpreter for described machines.

    python benchmarks/random_products.py N [--seed S] [--first I] [--rows x86.amx,cdna3,xe]

Products stand one after another or in a loop, some with arithmetic on a factor, with maps, reductions and broadcasts
between them; factors are f32, bf16, f16, i8, or u8 and i8; sizes are ragged. Data are small integers, and what goes
into a product is clamped, so every result must be equal to the executor's. Number I of seed S is the same program in
every run; the exit code is 1 if a result differs or a product runs without an atom that the machine has.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.errors import FastPathLost, MissingAtomWarning
from tilewright.targets.registry import machine

SIZES = (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 40, 48, 64, 65, 70, 96, 100)
TYPES = {"f32": ("f32", "f32"), "bf16": ("bf16", "bf16"), "f16": ("f16", "f16"), "i8": ("i8", "i8"), "u8": ("u8", "i8")}
DIMS = (tkl.sym.N, tkl.sym.P, tkl.sym.Q)
ROWS = (
    *("x86.avx2", "x86.avx512", "x86.amx", "aarch64.neon", "aarch64.neon.fullfp16.dotprod", "aarch64.neon.bf16.i8mm"),
    *("cdna3", "xe", "hopper"),
)


@dataclass
class Made:
    """A program, its inputs, and what it is in words."""

    kernel: Any
    inputs: list[np.ndarray]
    sizes: dict[str, int]
    words: str


def made(number: int, seed: int = 0, most: int = 100) -> Made:
    """Program number so and so, whose sizes are at most this."""
    rng = random.Random(f"{seed} {number}")
    left, right = TYPES[rng.choice(list(TYPES))]
    a_type, b_type = getattr(tkl, left), getattr(tkl, right)
    wide = a_type.accumulator
    count = rng.choice([1, 2, 2, 3])
    B, M, K, GLOBAL = tkl.sym.B, tkl.sym.M, tkl.sym.K, tkl.GLOBAL_ADDRESS_SPACE  # noqa: N806
    batched = rng.random() < 0.4
    batch = (B,) if batched else ()
    between = [rng.choice(list(_BETWEEN)) for _ in range(count)]
    factor = rng.choice(["plain", "negated", "shifted"])
    looped = rng.random() < 0.5
    turned = [rng.random() < 0.4 for _ in range(count)]  # B lies as [K, N]
    sizes = {s.name: rng.choice([n for n in SIZES if n <= most]) for s in (M, K, *DIMS[:count])}
    if batched:
        sizes["B"] = rng.choice((1, 2, 3))
    tile = rng.choice((1, 4, 7, 16, 32, 200))
    deep = [K, *DIMS]

    def weights(n: int) -> Any:
        dims = (deep[n], deep[n + 1]) if turned[n] else (deep[n + 1], deep[n])
        return tkl.Memory[(*batch, *dims, GLOBAL, b_type)]

    def factor_of(x: Any) -> Any:
        x = -x if factor == "negated" and left != "u8" else x
        return x + tkw.scalar(1, a_type) if factor == "shifted" else x

    def body(x: Any, w: tuple[Any, ...], y: Any, sums: Any) -> None:
        zero = tkl.Register[(*batch, M, deep[1], wide)](0)
        if looped:

            @tkw.iterate(K, init_args=[zero])
            def total(acc: Any) -> Any:
                return tkw.mma(factor_of(tkw.read(x)), tkw.read(w[0]), acc)
        else:
            total = tkw.mma(factor_of(tkw.read(x)), tkw.read(w[0]), zero)
        found = total
        for n in range(1, count):
            found = _BETWEEN[between[n]](found, deep[n], wide)
            found = tkw.minimum(tkw.maximum(found, tkw.scalar(0 if left == "u8" else -3, wide)), tkw.scalar(3, wide))
            start = tkl.Register[(*batch, M, deep[n + 1], wide)](rng_start[n])
            found = tkw.mma(tkw.cast(found, a_type), tkw.read(w[n]), start)
        tkw.write(found, y)
        tkw.write(tkw.max(found, dim=deep[count]), sums)

    rng_start = [rng.choice((0, 0, 2)) for _ in range(count)]
    X = tkl.Memory[(*batch, M, K, GLOBAL, a_type)]
    Y = tkl.Memory[(*batch, M, deep[count], GLOBAL, wide)]
    S = tkl.Memory[(*batch, M, GLOBAL, wide)]
    constraints = [tkw.TilingConstraint(K, tkl.sym.BLOCK_K)] if looped else []
    W = [weights(n) for n in range(count)]
    kernel = _kernel(constraints, count, X, W, Y, S, body)
    if looped:
        kernel = kernel.bound({tkl.sym.BLOCK_K: tile})
    data = np.random.default_rng((seed, number))

    def numbers(dims: tuple[Any, ...], kind: Any) -> np.ndarray:
        low = 0 if kind is tkl.u8 else -2
        return data.integers(low, 3, [sizes[d.name] for d in dims]).astype(kind.numpy)

    inputs = [numbers((*batch, M, K), a_type)]
    for n in range(count):
        dims = (deep[n], deep[n + 1]) if turned[n] else (deep[n + 1], deep[n])
        inputs.append(numbers((*batch, *dims), b_type))
    words = f"{count} products of {left} and {right}, {factor}, {'looped by ' + str(tile) if looped else 'whole'}, "
    return Made(kernel, inputs, sizes, words + f"between {between[1:]}, turned {turned}, sizes {sizes}")


_BETWEEN: dict[str, Callable[[Any, Any, Any], Any]] = {
    "nothing": lambda t, dim, kind: t,
    "relu": lambda t, dim, kind: tkw.maximum(t, tkw.scalar(0, kind)),
    "less its largest": lambda t, dim, kind: t - tkw.max(t, dim=dim),
    "chosen": lambda t, dim, kind: tkw.select(t > tkw.scalar(1, kind), t, tkw.scalar(1, kind) - t),
    "by place": lambda t, dim, kind: t + tkw.cast(tkw.self_index(dim), kind) % tkw.scalar(3, kind),
}


def _kernel(constraints: list[Any], count: int, X: Any, W: list[Any], Y: Any, S: Any, body: Any) -> Any:
    """The kernel of so many products: their number of arguments is fixed."""
    W = [*W, *W][:3]
    W0, W1, W2 = W if len(W) == 3 else [*W, W[0]]  # noqa: N806
    if count == 1:

        @tkw.wave(constraints)
        def one(x: X, w0: W0, y: Y, sums: S) -> None:
            body(x, (w0,), y, sums)

        return one
    if count == 2:

        @tkw.wave(constraints)
        def two(x: X, w0: W0, w1: W1, y: Y, sums: S) -> None:
            body(x, (w0, w1), y, sums)

        return two

    @tkw.wave(constraints)
    def three(x: X, w0: W0, w1: W1, w2: W2, y: Y, sums: S) -> None:
        body(x, (w0, w1, w2), y, sums)

    return three


def wrong(number: int, seed: int, rows: tuple[str, ...] = (), most: int = 100) -> list[str]:
    """What is wrong with a program: natively, and on the interpreter for these machines."""
    case = made(number, seed, most)
    wanted = tilewright.compile(case.kernel, target="executor")(*case.inputs)
    found = []
    with warnings.catch_warnings():
        for category in (FastPathLost, MissingAtomWarning):
            warnings.simplefilter("error", category)
        got = tilewright.compile(case.kernel)(*case.inputs)
    if not all(map(np.array_equal, got, wanted)):
        found.append(f"{number}: natively: {case.words}")
    names = [a.name for a in case.kernel.trace().args]
    for row in rows:
        results = [np.full(x.shape, -77, x.dtype) for x in wanted]
        kernel = kernel_for(case.kernel, case.sizes, machine=machine(row))
        kernel.bind(dict(zip(names, [*case.inputs, *results], strict=True)))()
        if not all(map(np.array_equal, results, wanted)):
            found.append(f"{number}: {row}: {case.words}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rows", default="")
    options = parser.parse_args()
    rows = tuple(options.rows.split(",")) if options.rows else ()
    faults: list[str] = []
    for number in range(options.first, options.first + options.count):
        faults += wrong(number, options.seed, rows)
        print(f"\r{number + 1 - options.first} programs, {len(faults)} wrong", end="", flush=True)
    print("", *faults, sep="\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
