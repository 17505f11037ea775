"""Which dimensions are cut into tasks, and how finely.

A dimension can be cut if the whole program is pointwise along it: every write has it and puts its coordinates to places
of their own, and nothing reduces, scans, loops, reshapes or looks up across it. Boxes divide the dimension, so that
none is ragged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr, index
from tilewright.algebra.expr_prove import is_nonneg
from tilewright.algebra.expr_use import Substitution, evaluate, linear_form
from tilewright.ir.core import MemoryType, Op, Program, TileType
from tilewright.ir.tile import REDUCTIONS, access_form, accessed
from tilewright.plan.microkernel import axes_in
from tilewright.plan.model import Size

WRITES = ("write", "atomic_add", "atomic_min", "atomic_max")
RUN = 16
"""Neighbours in memory that should stay together."""
ROWS = 16
"""Rows of a product that should stay together."""
TABLED = 1 << 22
"""Elements of a write whose places are worked out one by one, to see whether they differ."""

NO_LOOPS: Mapping[Expr, int] = {}
Opened: TypeAlias = Mapping[Expr, Expr]
"""Sizes that only a call tells, as expressions of those that it tells."""
NOTHING: Opened = {}


@dataclass(frozen=True)
class Room:
    """What a task should be like: how many are enough for the workers, and how many elements each may work on.

    Few where there are few in all, never more than it must. Where there are products, fewer tasks are enough, and
    values as large as the second cache holds: what a product reads is read once for all its rows.
    """

    tasks: int = 64
    elements: tuple[int, int] = (2 << 10, 16 << 10)
    product_tasks: int = 8
    product_elements: int = 64 << 10


ROOM = Room()


def boxes(
    program: Program,
    size: Size,
    room: Room = ROOM,
    logs: bool = False,
    loops: Mapping[Expr, int] = NO_LOOPS,
    opened: Opened = NOTHING,
) -> dict[Expr, int]:
    """The dimensions to cut, and the width of a task along each; with `logs`, what debug_log keeps is written too.

    `loops` are the tiles of axes that loops go over. Of sizes that are `opened` these are typical, and nothing is
    worked out by them that must hold for others.

    >>> from tilewright.ir.tile import parse_tile
    >>> program = parse_tile('''tile scaled(%x: global f32[M, N], %y: global f32[N, M])
    ...   symbols M, N
    ... {
    ...   %0 = read %x : f32[M, N]
    ...   write %0, %y
    ... }''')
    >>> boxes(program, lambda d: {"M": 1000, "N": 600}[str(d)])
    {<M>: 125, <N>: 60}
    """
    dims = cut_dims(program, size, logs, opened)
    if dims and any(op.name == "mma" for op in program.walk()):
        return _widths_of_products(program, dims, size, room, loops)
    return _widths(program, dims, size, room) if dims else {}


def cut_dims(program: Program, size: Size, logs: bool = False, opened: Opened = NOTHING) -> tuple[Expr, ...]:
    """The dimensions that tasks may cut; with `logs`, what debug_log keeps is written too."""
    dims = pointwise(program, size, opened)
    for op in program.walk() if logs else ():
        if op.name == "debug_log":
            dims = () if "at" in op.attrs else tuple(d for d in dims if d in _dims(op))
    return dims


def may_overrun(d: Expr, program: Program, size: Size) -> bool:
    """True if elements past the end of a dimension lie outside all that is written: a box may go past that end."""
    for op in (op for op in program.walk() if op.name in WRITES):
        own = dict(zip(op.operands[0].type.dims, op.attrs.get("over", ()), strict=False)).get(d)
        places = zip(op.attrs.get("at", ()), op.operands[1].type.dims, strict=False)
        if not any(e is own and size(n) == size(d) for e, n in places):
            return False
    return True


# -- which dimensions -------------------------------------------------------------------------------------


def pointwise(program: Program, size: Size, opened: Opened = NOTHING) -> tuple[Expr, ...]:
    """The dimensions along which the program is pointwise, in the order of its first write."""
    ops = list(program.walk())
    writes = [op for op in ops if op.name in WRITES]
    first = writes[0].operands[0].type.dims if writes else ()
    found = [d for d in first if isinstance(d, Symbol) and size(d) > 1]
    if any(op.name == "iterate" and op.attrs.get("start") for op in ops):
        return ()  # its condition is one for all
    crossed: set[Expr] = set()
    for op in ops:
        crossed |= _crossed(op)
    for value in [*program.args, *(r for op in ops for r in op.results)]:
        for d in value.type.dims:  # another dimension depends on it
            if not isinstance(d, Symbol):
                crossed |= d.symbols
    crossed |= {op.attrs["symbol"] for op in ops if op.name == "set_symbol"}
    kept: list[Expr] = [d for d in found if d not in crossed and all(d in _dims(op) for op in writes)]
    for arg in program.args:
        if isinstance(arg.type, MemoryType):
            touching = [op for op in ops if op.name in WRITES and op.operands[1] is arg]
            reads = [op for op in ops if op.name == "read" and op.operands[0] is arg]
            if touching:
                kept = _apart(kept, touching, reads, size, opened)
    return tuple(kept)


def _dims(op: Op) -> tuple[Expr, ...]:
    dims: tuple[Expr, ...] = op.operands[0].type.dims
    return dims


def _crossed(op: Op) -> set[Expr]:
    """The dimensions that an operation does not treat point by point."""
    if op.name in (*REDUCTIONS, "cumsum"):
        return {op.attrs["dim"]}
    if op.name == "topk":
        return {op.attrs["dim"], op.attrs["count"]}
    if op.name == "iterate":
        return {op.attrs["axis"], *op.attrs["axis"].symbols}
    if op.name == "mma":
        a, b, acc = (set(v.type.dims) for v in op.operands)
        return (a | b) - acc
    if op.name == "reshape":
        before, after = op.operands[0].type.dims, op.results[0].type.dims
        same = 0
        while same < min(len(before), len(after)) and before[same] is after[same]:
            same += 1
        return {*before[same:], *after[same:]}
    if op.name == "extract":
        return set(_dims(op))
    if op.name == "bitcast" and op.operands[0].type.dtype.bits != op.results[0].type.dtype.bits:
        return set(_dims(op)[-1:])
    if op.name == "read" or op.name in WRITES:
        return _looked_up(op)
    return set()


def _looked_up(op: Op) -> set[Expr]:
    """The dimensions of tiles that an access looks up elsewhere than at its own coordinates."""
    _, kind, extra = accessed(op)
    own = dict(zip(op.attrs.get("over", ()), kind.dims, strict=False))
    found: set[Expr] = set()
    for (_, at), value in zip(op.attrs.get("lookups", ()), extra, strict=True):
        found |= {d for d, e in zip(value.type.dims, at, strict=True) if own.get(e) is not d}
    return found


def _apart(dims: list[Expr], writes: list[Op], reads: list[Op], size: Size, opened: Opened) -> list[Expr]:
    """Those of the dimensions whose coordinates are written to places of their own."""
    names = {op.name for op in writes}
    if len(names) > 1:
        return []
    if names != {"write"} and not reads:
        return dims  # atomics meet where they will
    kept = []
    for d in dims:
        places = {place_of(op, d) for op in (*writes, *reads)}
        if len(places) == 1 and None not in places:
            kept.append(d)
    alike = len(writes) == 1 and all(access_form(op) == access_form(writes[0]) for op in reads)
    alone = len(kept) < len(dims) and alike  # what is read by the same access lies where it is written
    if alone and (_is_linear(writes[0], size, opened) or (not opened and _all_differ(writes[0], size))):
        return dims
    return kept


def place_of(op: Op, dim: Expr) -> tuple[int, object] | None:
    """The coordinate of memory that a dimension alone decides, and how; None if there is none."""
    memory, kind, _ = accessed(op)
    if "at" not in op.attrs:
        return (memory.type.dims.index(dim), (1, None)) if dim in memory.type.dims else None
    iterator = dict(zip(kind.dims, op.attrs["over"], strict=True)).get(dim)
    if iterator is None:
        return None
    others = {*op.attrs["over"], *(name for name, _ in op.attrs.get("lookups", ()))} - {iterator}
    for n, e in enumerate(op.attrs["at"]):
        if iterator in e.symbols and not e.symbols & others:
            form = linear_form(e, [iterator])
            if form is not None and form[0][iterator].is_constant:
                return n, (int(form[0][iterator]), form[1])
    return None


def _is_linear(op: Op, size: Size, opened: Opened) -> bool:
    """Whether a write with a mapping puts each element to a place of its own, because the place is a number written in
    digits of its coordinates: flat rows that are taken apart, such as [i//56, i%56, j], come together again.
    """
    memory: MemoryType = op.operands[1].type
    if "at" not in op.attrs or op.attrs.get("lookups") or None in memory.sizes:
        return False

    def extent(e: Expr) -> Expr:
        known = {s: as_expr(size(s)) for s in e.symbols if s not in opened}
        return Substitution({**known, **{s: opened[s] for s in e.symbols if s in opened}})(e)

    over = op.attrs["over"]
    numbers = {s: extent(s) for e in op.attrs["at"] for s in e.symbols if s not in over}
    extents = dict(zip(over, map(extent, _dims(op)), strict=True))
    axes = {s: index(f"place{n}", extents[s]) for n, s in enumerate(over) if extents[s].hi > 1}
    images, place = Substitution({**numbers, **dict.fromkeys(over, 0), **axes}), as_expr(0)
    for e, d in zip(op.attrs["at"], memory.sizes, strict=True):
        place = place * (extent(d) if d is not None else 1) + images(e)
    form = linear_form(place, list(axes.values()))
    if form is None or len(form[0]) < len(axes):
        return False
    return _are_digits([(step, extents[s]) for s, axis in axes.items() for step in (form[0][axis],)], as_expr(0))


def _are_digits(steps: Sequence[tuple[Expr, Expr]], reach: Expr) -> bool:
    """Whether numbers of so many steps each, of such sizes, are all different, and larger than `reach` but for 0: in
    some order, each step goes further than all before it together.

    >>> from tilewright.algebra.expr import symbol
    >>> f = symbol("F", 1)
    >>> _are_digits([(f, as_expr(9)), (as_expr(1), f)], as_expr(0)), _are_digits([(f, f), (f, f)], as_expr(0))
    (True, False)
    """
    return not steps or any(
        is_nonneg(step - reach - 1) and _are_digits([*steps[:n], *steps[n + 1 :]], reach + step * (extent - 1))
        for n, (step, extent) in enumerate(steps)
    )


def _all_differ(op: Op, size: Size) -> bool:
    """Whether a write with a mapping puts each element to a place of its own, by working out all of them."""
    if "at" not in op.attrs or op.attrs.get("lookups"):
        return False
    memory: MemoryType = op.operands[1].type
    shape = tuple(map(size, _dims(op)))
    if prod(shape) > TABLED or None in memory.sizes:
        return False
    iterators = set(op.attrs["over"])
    numbers = {s: size(s) for e in op.attrs["at"] for s in e.symbols if s not in iterators}
    grid = np.ogrid[tuple(slice(0, n) for n in shape)]
    known = {**numbers, **dict(zip(op.attrs["over"], grid, strict=True))}
    places = np.zeros(shape, np.int64)
    inside = np.ones(shape, bool)
    for e, d in zip(op.attrs["at"], memory.sizes, strict=True):
        coordinate, extent = np.asarray(evaluate(e, known)), size(d) if d is not None else 0
        inside &= (coordinate >= 0) & (coordinate < extent)
        places = places * extent + coordinate
    chosen = places[inside]
    return bool(np.unique(chosen).size == chosen.size)


def slides(program: Program, dim: Expr) -> bool:
    """Whether it depends on the place along a dimension, and on others, which elements of a read are there."""
    for op in program.walk():
        if op.name == "read" and "otherwise" in op.attrs and "at" in op.attrs:
            own = dict(zip(op.results[0].type.dims, op.attrs["over"], strict=True)).get(dim)
            if any(own in e.symbols and e is not own for e in op.attrs["at"]):
                return True
    return False


# -- how finely -------------------------------------------------------------------------------------------


def why_whole(program: Program, dim: Expr) -> str:
    """Why tasks do not cut a dimension."""
    for op in program.walk():
        if op.name == "iterate" and op.attrs.get("start"):
            return "a while loop has one condition for all"
        if dim in _crossed(op):
            return f"{op.name} goes along it"
    if not all(dim in _dims(op) for op in program.walk() if op.name in WRITES):
        return "not every write has it"
    return "what is written does not lie apart along it, or another size depends on it"


def _widths(program: Program, dims: tuple[Expr, ...], size: Size, room: Room) -> dict[Expr, int]:
    """Widths that divide the dimensions: first a run for each that is innermost in memory, then what fits."""
    spaces = [_space(op) for op in program.walk()]
    limits = room.elements

    def work(widths: Mapping[Expr, int]) -> int:
        return max(prod(max(1, widths.get(d) or size(d)) for d in space) for space in spaces)

    most = min(max(work({}) // room.tasks, limits[0]), limits[1])
    widths = dict.fromkeys(dims, 1)
    last = [d for d in dict.fromkeys(innermost(program)) if d in widths]
    for d in last:
        widths[d] = _divisor(size(d), RUN * 4 if len(last) > 1 else RUN, RUN)
    for d in (*last, *(d for d in reversed(dims) if d not in last)):
        left = most // max(1, work({**widths, d: 1}))
        widths[d] = max(widths[d], _divisor(size(d), left, 1))
        if widths[d] < size(d) and d in last[:1]:
            break
    return widths


def _widths_of_products(
    program: Program, dims: tuple[Expr, ...], size: Size, room: Room, loops: Mapping[Expr, int]
) -> dict[Expr, int]:
    """Widths where there are products: the widest for which there are enough tasks and values fit the second cache.

    Dimensions that some product lacks stay whole, if there are others: it would be done twice. Those that
    both factors and the sum have (a batch) are cut first, and as far as tasks are not too small, then those beside the
    blocks of sums (the lines of an image), then those along which blocks lie, which keep some rows. A width need not
    divide its dimension, but keeps the digits of flat indices whole where it can.
    """
    products = [op for op in program.walk() if op.name == "mma"]
    shared = [d for d in dims if all(d in _space(op) for op in products)]
    dims = tuple(shared) or dims
    batch = [d for d in dims if all(d in v.type.dims for op in products for v in op.operands)]
    values = [  # those that are held: a read that stays in bounds is not
        v.type.dims
        for op in program.walk()
        for v in op.results
        if isinstance(v.type, TileType) and (op.name != "read" or "otherwise" in op.attrs)
    ]
    widths = {d: size(d) for d in dims}

    def most(found: Mapping[Expr, int]) -> int:
        return max(prod(max(1, found.get(d) or loops.get(d) or size(d)) for d in value) for value in values)

    def tasks(found: Mapping[Expr, int]) -> int:
        return prod(-(-size(d) // n) for d, n in found.items())

    def enough(found: Mapping[Expr, int]) -> bool:
        return tasks(found) >= room.product_tasks and most(found) <= room.product_elements

    blocked = _blocked(products, size)
    around = [d for d in dims if d not in batch and d not in blocked]
    for d in (*batch, *around, *(d for d in dims if d in blocked and d not in batch)):
        for width in width_choices(size(d), radices(program, d, size)):
            if enough(widths) and (d not in batch or most(widths) <= room.elements[0]):
                break
            if d in blocked and width < ROWS:
                break
            widths[d] = width
    return widths


def _blocked(products: list[Op], size: Size) -> set[Expr]:
    """The dimensions along which products have blocks of sums: M and N of each."""
    found: set[Expr] = set()
    for op in products:
        axes = axes_in(op, size)
        if not isinstance(axes, str):
            found |= {axes.m, axes.n}
    return found


def width_choices(extent: int, radices: Collection[int]) -> list[int]:
    """Widths worth a thought, widest first, each about half of the one before it.

    Best are those that keep digits whole, then those with little beside whole blocks of rows, then those that divide
    the extent.

    >>> width_choices(1000, ()), width_choices(3136, (56,))
    ([1000, 500, 250, 125, 48, 16, 8, 4, 2, 1], [3136, 1568, 784, 392, 112, 56, 28, 14, 7, 4, 2, 1])
    """

    found = [extent]
    while found[-1] > 1:
        half = -(-found[-1] // 2)
        n = np.arange(max(1, half // 2 + 1), half + 1)
        kept = np.ones(n.shape, bool)
        for radix in radices:
            kept &= (n % radix == 0) | (radix % n == 0)
        in_rows, divides = (n % ROWS == 0) | (n > 6 * ROWS), extent % n == 0
        best = (2 * (2 * kept + in_rows) + divides)[::-1].argmax()  # of equally good ones the widest
        found.append(int(n[len(n) - 1 - best]))
    return found


def radices(program: Program, dim: Expr, size: Size) -> set[int]:
    """The numbers by which accesses divide a dimension's coordinate."""
    found: set[int] = set()
    for op in program.walk():
        if "at" not in op.attrs or not (op.name == "read" or op.name in WRITES):
            continue
        over = dict(zip(accessed(op)[1].dims, op.attrs["over"], strict=True))
        for node in (n for e in op.attrs["at"] for n in e.divisions(set()) if over.get(dim) in n.symbols):
            by = node.parts[1]
            if by.symbols.isdisjoint(op.attrs["over"]):
                found.add(size(by))
    return {r for r in found if r > 1}


def _space(op: Op) -> set[Expr]:
    """The dimensions of all that an operation works on."""
    values = (*op.results, *op.operands)
    tiles = [set(v.type.dims) for v in values if isinstance(v.type, TileType)]
    return set().union(*tiles)


def innermost(program: Program) -> list[Expr]:
    """The dimensions that lie side by side in some memory: those of writes first."""
    accesses = [op for op in program.walk() if op.name in WRITES] + [op for op in program.walk() if op.name == "read"]
    return [d for op in accesses for d in side_by_side(op)]


def side_by_side(op: Op) -> list[Expr]:
    """The dimensions of a read or a write that lie side by side in memory."""
    memory, kind, _ = accessed(op)
    if "at" not in op.attrs:
        return list(memory.type.dims[-1:])
    named = zip(kind.dims, op.attrs["over"], strict=True)
    return [d for d, iterator in named if op.attrs["at"] and iterator in op.attrs["at"][-1].symbols]


def _divisor(size: int, most: int, least: int) -> int:
    """The largest divisor up to `most`; if that is below `least`, the smallest from there on."""
    divisors = [n for n in range(1, int(size**0.5) + 1) if size % n == 0]
    divisors = sorted({*divisors, *(size // n for n in divisors)})
    fitting = [n for n in divisors if n <= max(1, most)]
    if fitting[-1] >= least:
        return fitting[-1]
    return next((n for n in divisors if n >= least), size)


def numbers_of(symbols: Mapping[Symbol, int]) -> Size:
    """The value of a dimension, where all symbols are bound."""
    images = Substitution(symbols)

    def size(e: Expr) -> int:
        return int(images(e))

    return size
