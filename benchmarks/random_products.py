"""Random tile programs with one to three products: exact natively, and on the interpreter for described machines.

    python benchmarks/random_products.py N [--seed S] [--first I] [--most 100] [--jobs J] [--types bf16,f16,i8]
        [--rows x86.amx] [--by hopper:wgmma,cdna3:mfma,xe:dpas]

Products stand one after another, in a loop over what the first sums, or all in a loop over what the first leaves, which
carries a running maximum, as attention does; some with arithmetic on a factor, with maps, reductions and broadcasts
between them; factors are f32, bf16, f16, i8, or u8 and i8; sizes are ragged. Data are small integers, and what goes
into a product is clamped, so every result must be equal to the executor's. Number I of seed S is the same program in
every run. `--rows` interprets the plans that are chosen for machines; `--by` those in which every product is done by
such atoms: the chosen one where it has them, and otherwise edited to have them. The exit code is 1 if a result
differs, a product runs without an atom that the machine has, or a race is reported; plans that are refused are counted
by reason.
"""

from __future__ import annotations

import argparse
import inspect
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError, FastPathLost, MissingAtomWarning, ProgramError
from tilewright.machine import Machine
from tilewright.plan.schedule import ProductUnit, Schedule
from tilewright.plan.text import parse_plan
from tilewright.targets.registry import machine

SIZES = (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 40, 48, 64, 65, 70, 96, 100, 128, 136)
TYPES = {"f32": ("f32", "f32"), "bf16": ("bf16", "bf16"), "f16": ("f16", "f16"), "i8": ("i8", "i8"), "u8": ("u8", "i8")}
DIMS = (tkl.sym.N, tkl.sym.P, tkl.sym.Q)
ROWS = (
    *("x86.avx2", "x86.avx512", "x86.amx", "aarch64.neon", "aarch64.neon.fullfp16.dotprod", "aarch64.neon.bf16.i8mm"),
    *("cdna3", "xe", "hopper"),
)
BY = {"hopper": "wgmma", "cdna3": "mfma", "xe": "dpas"}
"""The matrix atoms of machines of many lanes."""
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


@dataclass
class Made:
    """A program, its inputs, and what it is in words."""

    kernel: Any
    inputs: list[np.ndarray]
    sizes: dict[str, int]
    words: str


@dataclass(frozen=True)
class Shape:
    """What a program is made of, drawn at random."""

    types: tuple[str, str]
    count: int
    batch: tuple[Any, ...]
    between: tuple[str, ...]
    """What becomes of the sum before it is the next product's factor, and at the end."""
    factor: str
    loop: str
    """`whole`: none; `deep`: over what the first product sums; `wide`: over the columns that it leaves."""
    turned: tuple[bool, ...]
    """Whether B lies as [K, N]."""
    starts: tuple[int, ...]
    reduced: str | None
    """What is written beside the result: a reduction of its rows."""

    @staticmethod
    def drawn(rng: random.Random, types: tuple[str, ...]) -> Shape:
        """A random one, of these types of factors."""
        count = rng.choice([1, 2, 2, 3])
        return Shape(
            TYPES[rng.choice(types)],
            count,
            (tkl.sym.B,) if rng.random() < 0.3 else (),
            tuple(rng.choice(list(_BETWEEN)) for _ in range(count)),
            rng.choice(["plain", "plain", "negated", "shifted"]),
            rng.choice(["whole", "deep"] if count == 1 else ["whole", "deep", "wide"]),
            tuple(rng.random() < 0.4 for _ in range(count)),
            tuple(rng.choice((0, 0, 2)) for _ in range(count)),
            rng.choice([None, None, "max", "sum"]),
        )

    def weights(self, n: int) -> tuple[Any, ...]:
        """The dimensions of the n-th product's second factor."""
        deep = (tkl.sym.K, *DIMS)
        dims = (deep[n], deep[n + 1]) if self.turned[n] else (deep[n + 1], deep[n])
        return (*self.batch, *dims)


def made(number: int, seed: int = 0, most: int = 100, types: tuple[str, ...] = tuple(TYPES)) -> Made:
    """Program number so and so, whose sizes are at most this."""
    rng = random.Random(f"{seed} {number}")
    shape = Shape.drawn(rng, types)
    left, right = (getattr(tkl, name) for name in shape.types)
    M, K = tkl.sym.M, tkl.sym.K
    sizes = {s.name: rng.choice([n for n in SIZES if n <= most]) for s in (M, K, *DIMS[: shape.count])}
    sizes |= {b.name: rng.choice((1, 2, 3)) for b in shape.batch}
    tile = rng.choice((1, 4, 7, 16, 32, 64, 200))
    dims = {"x": ((*shape.batch, M, K), left)}
    dims |= {f"w{n}": (shape.weights(n), right) for n in range(shape.count)}
    dims["y"] = (*shape.batch, M, DIMS[shape.count - 1]), left.accumulator
    if shape.reduced is not None:
        dims["rows"] = (*shape.batch, M), left.accumulator
    memory = {name: tkl.Memory[(*of, GLOBAL, kind)] for name, (of, kind) in dims.items()}
    axis = {"whole": None, "deep": K, "wide": DIMS[0]}[shape.loop]
    constraints = [] if axis is None else [tkw.TilingConstraint(axis, tkl.sym.BLOCK)]
    kernel = kernel_of(constraints, memory, partial(_body, shape))
    if axis is not None:
        kernel = kernel.bound({tkl.sym.BLOCK: tile})
    data = np.random.default_rng((seed, number))
    inputs = []
    for of, kind in [dims[name] for name in dims if name not in ("y", "rows")]:
        low = 0 if kind is tkl.u8 else -2
        inputs.append(data.integers(low, 3, [sizes[d.name] for d in of]).astype(kind.numpy))
    words = f"{shape.count} products of {' by '.join(shape.types)}, {shape.factor}, loop {shape.loop} by {tile}, "
    words += f"between {list(shape.between)}, turned {list(shape.turned)}, rows {shape.reduced}, sizes {sizes}"
    return Made(kernel, inputs, sizes, words)


def kernel_of(constraints: list[Any], memory: dict[str, Any], body: Callable[[dict[str, Any]], None]) -> Any:
    """The kernel with arguments of these names and types, as many as there are."""

    def program(*args: Any) -> None:
        body(dict(zip(memory, args, strict=True)))

    order = inspect.Parameter.POSITIONAL_OR_KEYWORD
    program.__annotations__ = dict(memory)
    program.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, order, annotation=kind) for name, kind in memory.items()]
    )
    return tkw.wave(constraints)(program)


def _body(shape: Shape, args: dict[str, Any]) -> None:
    """The operations of a program."""
    M, K = tkl.sym.M, tkl.sym.K
    kind = getattr(tkl, shape.types[0])
    wide = kind.accumulator

    def start(n: int) -> Any:
        return tkl.Register[(*shape.batch, M, DIMS[n], wide)](shape.starts[n])

    def first(acc: Any) -> Any:
        x = tkw.read(args["x"])
        x = -x if shape.factor == "negated" and kind is not tkl.u8 else x
        x = x + tkw.scalar(1, kind) if shape.factor == "shifted" else x
        return tkw.mma(x, tkw.read(args["w0"]), acc)

    def next_factor(total: Any, n: int, high: Any = None) -> Any:
        """The sum of a product as a factor of the next."""
        total = _BETWEEN[shape.between[n]](total, DIMS[n], wide)
        if high is not None:
            total = tkw.minimum(total, high)
        low = tkw.scalar(0 if kind is tkl.u8 else -3, wide)
        return tkw.cast(tkw.minimum(tkw.maximum(total, low), tkw.scalar(3, wide)), kind)

    done = 1
    if shape.loop == "wide":

        @tkw.iterate(DIMS[0], init_args=[tkl.Register[(*shape.batch, M, wide)](-9), start(1)])
        def total(high: Any, acc: Any) -> Any:
            scores = first(start(0))
            high = tkw.maximum(high, tkw.max(scores, dim=DIMS[0]))
            return high, tkw.mma(next_factor(scores, 0, high), tkw.read(args["w1"]), acc)

        high, found = total
        found, done = found + high, 2
    elif shape.loop == "deep":

        @tkw.iterate(K, init_args=[start(0)])
        def found(acc: Any) -> Any:
            return first(acc)
    else:
        found = first(start(0))
    for n in range(done, shape.count):
        found = tkw.mma(next_factor(found, n - 1), tkw.read(args[f"w{n}"]), start(n))
    found = _BETWEEN[shape.between[-1]](found, DIMS[shape.count - 1], wide)
    tkw.write(found, args["y"])
    if shape.reduced is not None:
        tkw.write(getattr(tkw, shape.reduced)(found, dim=DIMS[shape.count - 1]), args["rows"])


_BETWEEN: dict[str, Callable[[Any, Any, Any], Any]] = {
    "nothing": lambda t, dim, kind: t,
    "relu": lambda t, dim, kind: tkw.maximum(t, tkw.scalar(0, kind)),
    "less its largest": lambda t, dim, kind: t - tkw.max(t, dim=dim),
    "and its sum": lambda t, dim, kind: t + tkw.minimum(tkw.sum(t, dim=dim), tkw.scalar(2, kind)),
    "chosen": lambda t, dim, kind: tkw.select(t > tkw.scalar(1, kind), t, tkw.scalar(1, kind) - t),
    "by place": lambda t, dim, kind: t + tkw.cast(tkw.self_index(dim), kind) % tkw.scalar(3, kind),
}


# -- run ---------------------------------------------------------------------------------------------------


def interpreted(case: Made, row: str, wanted: tuple[np.ndarray, ...], plan: str | None = None) -> tuple[bool, Schedule]:
    """(whether a machine's block program gives what is wanted, its plan); a race is an error."""
    names = [a.name for a in case.kernel.trace().args]
    results = [np.full(x.shape, -77, x.dtype) for x in wanted]
    kernel = kernel_for(case.kernel, case.sizes, machine=machine(row), plan=plan)
    kernel.bind(dict(zip(names, [*case.inputs, *results], strict=True)))()
    return all(map(np.array_equal, results, wanted)), parse_plan(kernel.text("plan"))


def with_atoms(plan: Schedule, row: Machine, family: str) -> str:
    """The plan with every product by an atom of a family: of those with its types, the narrowest that has its columns.

    Its tasks stay. Their loops follow the atoms' tiles, so that no line states them. Raises where the machine has no
    such atom, and where a plan's own words leave none.
    """
    products = []
    for each in plan.products:
        if each.atom is None:
            raise ArgumentError(f"plan: {each}: it has no atom to be replaced")
        if each.atom.startswith(f"{family}."):
            products.append(each)
            continue
        own = row.multiply_atom(each.atom)
        types = [x.dtype for x in (own.a, own.b, own.c)]
        fitting = sorted(
            (
                x
                for x in row.multiply.values()
                if re.fullmatch(rf"{family}\.m\d+n\d+k\d+\.\w+", x.name) and [x.a.dtype, x.b.dtype, x.c.dtype] == types
            ),
            key=lambda x: x.shape[1],
        )
        if not fitting:
            raise ArgumentError(f"plan: {row.name} has no {family} for {types[0]} by {types[1]}")
        atom = next((x for x in fitting if x.shape[1] >= each.columns), fitting[-1])
        products.append(ProductUnit(each.name, atom.name, atom.shape[0], atom.shape[1]))
    axes = tuple(
        replace(axis, splits=tuple(x for x in axis.splits if x.level != "loop")) if axis.split("task") else axis
        for axis in plan.axes
    )
    then = None if plan.then is None else parse_plan(with_atoms(plan.then, row, family))
    return str(replace(plan, axes=axes, products=tuple(products), then=then))


def by_atoms(case: Made, row: str, family: str, wanted: tuple[np.ndarray, ...]) -> str:
    """What a machine gives where every product is done by such an atom: `exact`, `WRONG`, or why it is refused."""
    try:
        chosen = kernel_for(case.kernel, case.sizes, machine=machine(row)).plan
        assert isinstance(chosen, Schedule)
        text = with_atoms(chosen, machine(row), family)
        right, plan = interpreted(case, row, wanted, text)
    except ArgumentError as fault:
        return f"refused: {fault}"
    except ProgramError as fault:
        return f"WRONG: {fault}"
    roles = ", in roles" if plan.pipeline is not None else ""
    return f"exact, {'chosen' if text == str(chosen) else 'edited'}{roles}" if right else f"WRONG: {plan}"


def natively(case: Made, wanted: tuple[np.ndarray, ...]) -> str:
    """What this CPU gives: `exact`, or what is wrong; a product without an atom that the CPU has is wrong too."""
    with warnings.catch_warnings():
        for category in (FastPathLost, MissingAtomWarning):
            warnings.simplefilter("error", category)
        try:
            got = tilewright.compile(case.kernel)(*case.inputs)
        except (FastPathLost, MissingAtomWarning) as fault:
            return f"WRONG: {fault}"
    got = got if isinstance(got, tuple) else (got,)
    return "exact" if all(map(np.array_equal, got, wanted)) else "WRONG"


def wrong(number: int, seed: int, rows: tuple[str, ...] = (), most: int = 100) -> list[str]:
    """What is wrong with a program: natively, and on the interpreter for these machines."""
    said = outcomes(number, seed, rows, {}, most)
    return [f"{number}: {where}: {what}" for where, what in said if not what.startswith("exact")]


def outcomes(
    number: int,
    seed: int,
    rows: tuple[str, ...] = (),
    by: dict[str, str] | None = None,
    most: int = 100,
    types: tuple[str, ...] = tuple(TYPES),
) -> list[tuple[str, str]]:
    """(where, what came of it) of a program: natively, on the interpreter for machines, and there by their atoms."""
    case = made(number, seed, most, types)
    wanted = tilewright.compile(case.kernel, target="executor")(*case.inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    found = [("natively", natively(case, wanted))]
    for row in rows:
        right, plan = interpreted(case, row, wanted)
        found.append((row, "exact" if right else f"WRONG: {plan}"))
    for row, family in (by or {}).items():
        found.append((f"{row} by {family}", by_atoms(case, row, family, wanted)))
    return [(where, what + (f": {case.words}" if what.startswith("WRONG") else "")) for where, what in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--most", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--rows", default="")
    parser.add_argument("--by", default="", help="such as hopper:wgmma,cdna3:mfma,xe:dpas")
    options = parser.parse_args()
    rows = tuple(options.rows.split(",")) if options.rows else ()
    by = dict(each.split(":") for each in options.by.split(",")) if options.by else {}
    numbers = range(options.first, options.first + options.count)
    one = partial(
        outcomes, seed=options.seed, rows=rows, by=by, most=options.most, types=tuple(options.types.split(","))
    )
    counts: Counter[tuple[str, str]] = Counter()
    with ProcessPoolExecutor(options.jobs) as pool:
        for number, said in zip(numbers, pool.map(one, numbers), strict=True):
            for where, what in said:
                counts[where, re.sub(r"WRONG.*", "WRONG", what, flags=re.DOTALL)] += 1
                if not what.startswith("exact"):
                    print(f"{number}: {where}: {what}", flush=True)
    for (where, what), count in sorted(counts.items()):
        print(f"{count:4} {where}: {what}")
    sys.exit(any(what.startswith("WRONG") for _, what in counts))


if __name__ == "__main__":
    main()
