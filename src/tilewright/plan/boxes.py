"""Find the dimensions that a grid may split, and choose task widths along them.

A task is one tile of the grid; its width is its extent along one dimension. A dimension is parallel if the whole
program is pointwise along it: every write has it and writes separate elements, and nothing reduces, scans, loops,
reshapes or gathers across it. Widths divide the dimension, so that no tile is ragged.
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
from tilewright.ir.tile import REDUCTIONS, SCANS, access_form, accessed
from tilewright.plan.model import Size
from tilewright.plan.writes import TABLED, coordinates_by_digits

WRITES = ("write", "atomic_add", "atomic_min", "atomic_max")
RUN = 16
"""The least number of contiguous elements that a task should have."""
ROWS = 16
"""The least number of rows of an MMA that a task should have."""
WIDTHS_AT_ONCE, ALL_PREFERRED = 4096, 7
"""The number of extents of a task that are compared at once, and the score of one with every preferred property."""

Opened: TypeAlias = Mapping[Expr, Expr]
"""Sizes known only at a call, as expressions of the symbols that the call binds."""
NOTHING: Opened = {}


@dataclass(frozen=True)
class Room:
    """Goals for the size of tasks: how many tasks keep the workers busy, and how many elements each may compute.

    `elements` are the least and the most elements of a task. Programs with MMAs need fewer, larger tasks
    (`product_tasks`, `product_elements`): an operand is then read once for all rows of a task.
    """

    tasks: int = 64
    elements: tuple[int, int] = (2 << 10, 16 << 10)
    product_tasks: int = 8
    product_elements: int = 64 << 10


ROOM = Room()


def choose_task_widths(
    program: Program, size: Size, room: Room = ROOM, logs: bool = False, opened: Opened = NOTHING
) -> dict[Expr, int]:
    """Choose the tile of a task of a program without MMAs: return {dimension that the grid splits: elements}.

    The result is {} if the grid can split no dimension. A task is one tile of the grid, which one worker computes.
    `size(d)` evaluates the extent of a dimension d; for `opened` sizes (known only at the call) it is a typical number.
    `room` (a Room) has goals for the number and size of tasks. With `logs`, results of debug_log count as writes.

    >>> from tilewright.ir.tile import parse_tile
    >>> program = parse_tile('''tile scaled(%x: global f32[M, N], %y: global f32[N, M])
    ...   symbols M, N
    ... {
    ...   %0 = read %x : f32[M, N]
    ...   write %0, %y
    ... }''')
    >>> choose_task_widths(program, lambda d: {"M": 1000, "N": 600}[str(d)])
    {<M>: 125, <N>: 60}
    """
    dims = cut_dims(program, size, logs, opened)
    return _widths_without_products(program, dims, size, room) if dims else {}


def cut_dims(program: Program, size: Size, logs: bool = False, opened: Opened = NOTHING) -> tuple[Expr, ...]:
    """Return the dimensions that the grid may split, in the order of the first write; () if there are none.

    A dimension may be split if no operation mixes elements along it and all writes along it are separate: see
    `pointwise_dims`. `logs` says that debug_log is on: its results then count as writes, and a debug_log with explicit
    coordinates forbids all splits. `opened` are sizes known only at the call; no proof relies on their numbers.
    `size(d)` evaluates the extent of a dimension d.
    """
    dims = pointwise_dims(program, size, opened)
    for op in program.walk() if logs else ():
        if op.name == "debug_log":
            dims = () if "at" in op.attrs else tuple(d for d in dims if d in _first_operand_dims(op))
    return dims


def may_overrun(d: Expr, program: Program, size: Size) -> bool:
    """True if a task (tile of the grid) may compute elements past the end of `d`, because no write would store them.

    Each write must have an explicit coordinate that is exactly the index of `d`, in a memory dimension with the extent
    of `d`: elements out of bounds are then dropped. `size(d)` evaluates the extent of a dimension d.
    """
    for op in (op for op in program.walk() if op.name in WRITES):
        iterator = dict(zip(op.operands[0].type.dims, op.attrs.get("over", ()), strict=False)).get(d)
        coordinates = zip(op.attrs.get("at", ()), op.operands[1].type.dims, strict=False)
        if not any(e is iterator and size(n) == size(d) for e, n in coordinates):
            return False
    return True


# -- which dimensions -------------------------------------------------------------------------------------


def pointwise_dims(program: Program, size: Size, opened: Opened = NOTHING) -> tuple[Expr, ...]:
    """Return the dimensions along which the program is pointwise, in the order of its first write; () if none.

    Pointwise means: every write has the dimension, different coordinates along it write different elements, no
    operation mixes elements along it, and no size depends on it. Dimensions of extent 1 are left out. A program with a
    while loop has none. `size(d)` evaluates the extent of a dimension d; for `opened` sizes (known only at the call) it
    is a typical number.
    """
    ops = list(program.walk())
    writes = [op for op in ops if op.name in WRITES]
    first = writes[0].operands[0].type.dims if writes else ()
    candidates = [d for d in first if isinstance(d, Symbol) and size(d) > 1]
    if any(op.name == "iterate" and op.attrs.get("start") for op in ops):
        return ()  # all elements share its condition
    crossed: set[Expr] = set()
    for op in ops:
        crossed |= _mixed_dims(op)
    for value in [*program.args, *(r for op in ops for r in op.results)]:
        for d in value.type.dims:  # a size depends on them
            if not isinstance(d, Symbol):
                crossed |= d.symbols
    crossed |= {op.attrs["symbol"] for op in ops if op.name == "set_symbol"}
    parallel: list[Expr] = [
        d for d in candidates if d not in crossed and all(d in _first_operand_dims(op) for op in writes)
    ]
    for arg in program.args:
        if isinstance(arg.type, MemoryType):
            arg_writes = [op for op in ops if op.name in WRITES and op.operands[1] is arg]
            reads = [op for op in ops if op.name == "read" and op.operands[0] is arg]
            if arg_writes:
                parallel = _separately_written_dims(parallel, arg_writes, reads, size, opened)
    return tuple(parallel)


def _first_operand_dims(op: Op) -> tuple[Expr, ...]:
    """Return the dimensions of the first operand of `op`, outermost first."""
    dims: tuple[Expr, ...] = op.operands[0].type.dims
    return dims


def _mixed_dims(op: Op) -> set[Expr]:
    """Return the dimensions along which `op` combines elements or needs all of them; an empty set if there are none.

    Reductions, scans, MMAs, gathers, reshapes, loops, topk, extract and bitcasts to another width have such dimensions;
    elementwise operations have none.
    """
    if op.name in (*REDUCTIONS, *SCANS):
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
        return set(_first_operand_dims(op))
    if op.name == "bitcast" and op.operands[0].type.dtype.bits != op.results[0].type.dtype.bits:
        return set(_first_operand_dims(op)[-1:])
    if op.name == "read" or op.name in WRITES:
        return _gathered_dims(op)
    return set()


def _gathered_dims(op: Op) -> set[Expr]:
    """Return the dimensions of index tiles that the read or write `op` needs whole, because it gathers from them.

    An index tile holds data from which `op` computes its coordinates. A dimension of it is left out if `op` uses, for
    each element, only the index at the same coordinate. The set is empty if `op` uses no index tile.
    """
    _, kind, extra = accessed(op)
    dim_of = dict(zip(op.attrs.get("over", ()), kind.dims, strict=False))
    dims: set[Expr] = set()
    for (_, at), value in zip(op.attrs.get("lookups", ()), extra, strict=True):
        dims |= {d for d, e in zip(value.type.dims, at, strict=True) if dim_of.get(e) is not d}
    return dims


def _separately_written_dims(
    dims: list[Expr], writes: list[Op], reads: list[Op], size: Size, opened: Opened
) -> list[Expr]:
    """Return those of `dims` along which different coordinates write different elements of one memory argument.

    `writes` and `reads` are all accesses of that argument. The first rule that applies gives the result:

    - [] if the writes are of several kinds (write, atomic add and so on);
    - all of `dims` if the writes are atomics and there is no read;
    - all of `dims` if there is one write, all reads have its coordinates, and its elements are proved to have different
      addresses;
    - otherwise each dimension that alone indexes one memory coordinate, in the same way in all writes and reads.

    `size(d)` evaluates the extent of a dimension d; sizes in `opened` are known only at the call.
    """
    names = {op.name for op in writes}
    if len(names) > 1:
        return []
    if names != {"write"} and not reads:
        return dims  # atomic updates may hit one element
    separate = []
    for d in dims:
        coordinates = {own_coordinate(op, d) for op in (*writes, *reads)}
        if len(coordinates) == 1 and None not in coordinates:
            separate.append(d)
    same_access = len(writes) == 1 and all(access_form(op) == access_form(writes[0]) for op in reads)
    one_form = len(separate) < len(dims) and same_access  # reads by the same access read what is written
    if one_form and (
        _strides_prove_distinct(writes[0], size, opened)
        or (not opened and _coordinates_prove_distinct(writes[0], size))
        or (not opened and _enumeration_proves_distinct(writes[0], size))
    ):
        return dims
    return separate


def own_coordinate(op: Op, dim: Expr) -> tuple[int, object] | None:
    """Return (position, (stride, rest)) of the first memory coordinate that `dim` alone indexes; None if there is none.

    `op` is the read or write, `position` the number of the memory dimension. The coordinate is stride * index + rest,
    with the index of `dim`, a constant stride and no other index in it: in [j, 3*i + 1] the dimension of i gives (1,
    (3, 1)). If `op` has no explicit coordinates, stride is 1 and rest is None.
    """
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


def _strides_prove_distinct(op: Op, size: Size, opened: Opened) -> bool:
    """True if the strides prove that the write `op` stores all its elements at different addresses.

    The flat address must be a sum of stride * index. Ordered by size, each stride must exceed the largest value of the
    terms with smaller strides: 10*i + j with j below 10 is proved. Divisions of a flat index may cancel: [i//56, i%56,
    j] is linear in i and j. False if coordinates depend on data or a memory extent is not known. Sizes in `opened`
    (known only at the call) stay expressions; `size(d)` evaluates the extent of any other dimension d.
    """
    memory: MemoryType = op.operands[1].type
    if "at" not in op.attrs or op.attrs.get("lookups") or None in memory.sizes:
        return False

    def extent(e: Expr) -> Expr:
        """Return the expression of sizes `e` with each known size replaced by its number.

        A size known only at the call is replaced by its expression in `opened`.
        """
        known = {s: as_expr(size(s)) for s in e.symbols if s not in opened}
        return Substitution({**known, **{s: opened[s] for s in e.symbols if s in opened}})(e)

    over = op.attrs["over"]
    numbers = {s: extent(s) for e in op.attrs["at"] for s in e.symbols if s not in over}
    extents = dict(zip(over, map(extent, _first_operand_dims(op)), strict=True))
    axes = {s: index(f"place{n}", extents[s]) for n, s in enumerate(over) if extents[s].hi > 1}
    images, offset = Substitution({**numbers, **dict.fromkeys(over, 0), **axes}), as_expr(0)
    for e, d in zip(op.attrs["at"], memory.sizes, strict=True):
        offset = offset * (extent(d) if d is not None else 1) + images(e)
    form = linear_form(offset, list(axes.values()))
    if form is None or len(form[0]) < len(axes):
        return False
    return _strides_exceed_reach(
        [(step, extents[s]) for s, axis in axes.items() for step in (form[0][axis],)], as_expr(0)
    )


def _coordinates_prove_distinct(op: Op, size: Size) -> bool:
    """True if the coordinates of the write `op` prove that different indices write different elements.

    Each index with several values must follow from one coordinate alone. It does if that coordinate is a mixed-radix
    number of indices, or of digits of an index, such as 2*(i%56) + p with p below 2. An example is [i//56, 2*(i%56) +
    p, c]. Elements out of bounds count too. False if coordinates depend on data. `size(d)` evaluates the extent of a
    dimension d.
    """
    if "at" not in op.attrs or op.attrs.get("lookups"):
        return False
    at, extents = coordinates_by_digits(op, size)
    determined: set[Symbol] = set()
    for e in at:
        form = linear_form(e, list(extents))
        if form is None or not all(step.is_constant for step in form[0].values()):
            continue
        steps = [(as_expr(abs(int(step))), as_expr(extents[d])) for d, step in form[0].items() if extents[d] > 1]
        if _strides_exceed_reach(steps, as_expr(0)):
            determined |= form[0].keys()
    return all(d in determined for d, extent in extents.items() if extent > 1)


def _strides_exceed_reach(steps: Sequence[tuple[Expr, Expr]], reach: Expr) -> bool:
    """True if all sums of stride * index differ: in some order, each stride exceeds the largest sum before it.

    `steps` has (stride, extent) of each index that is not yet ordered. `reach` is the largest sum of stride * index
    over the indices that are already ordered; 0 at first.

    >>> from tilewright.algebra.expr import symbol
    >>> f = symbol("F", 1)
    >>> _strides_exceed_reach([(f, as_expr(9)), (as_expr(1), f)], as_expr(0))
    True
    >>> _strides_exceed_reach([(f, f), (f, f)], as_expr(0))
    False
    """
    return not steps or any(
        is_nonneg(step - reach - 1)
        and _strides_exceed_reach([*steps[:n], *steps[n + 1 :]], reach + step * (extent - 1))
        for n, (step, extent) in enumerate(steps)
    )


def _enumeration_proves_distinct(op: Op, size: Size) -> bool:
    """True if computing every address shows that the write `op` stores all its elements at different addresses.

    Only elements in bounds count. False without a computation in four cases: `op` has more than TABLED (4 Mi) elements;
    a memory extent is not known; coordinates depend on data; or `op` has no explicit coordinates. `size(d)` evaluates
    the extent of a dimension d.
    """
    if "at" not in op.attrs or op.attrs.get("lookups"):
        return False
    memory: MemoryType = op.operands[1].type
    shape = tuple(map(size, _first_operand_dims(op)))
    if prod(shape) > TABLED or None in memory.sizes:
        return False
    iterators = set(op.attrs["over"])
    numbers = {s: size(s) for e in op.attrs["at"] for s in e.symbols if s not in iterators}
    grid = np.ogrid[tuple(slice(0, n) for n in shape)]
    known = {**numbers, **dict(zip(op.attrs["over"], grid, strict=True))}
    offsets = np.zeros(shape, np.int64)
    inside = np.ones(shape, bool)
    for e, d in zip(op.attrs["at"], memory.sizes, strict=True):
        coordinate, extent = np.asarray(evaluate(e, known)), size(d) if d is not None else 0
        inside &= (coordinate >= 0) & (coordinate < extent)
        offsets = offsets * extent + coordinate
    written = np.sort(offsets[inside], kind="stable")  # fast, because it has long sorted runs
    return bool((written[1:] > written[:-1]).all())


def reads_sliding_window(program: Program, dim: Expr) -> bool:
    """True if a read with bounds checks has a coordinate, such as h + r, with the index of `dim` and something else.

    A coordinate that is the index alone does not count.
    """
    for op in program.walk():
        if op.name == "read" and "otherwise" in op.attrs and "at" in op.attrs:
            iterator = dict(zip(op.results[0].type.dims, op.attrs["over"], strict=True)).get(dim)
            if any(iterator in e.symbols and e is not iterator for e in op.attrs["at"]):
                return True
    return False


# -- how finely -------------------------------------------------------------------------------------------


def why_whole(program: Program, dim: Expr) -> str:
    """Return text: why the grid cannot split `dim`, a dimension along which the program must not be pointwise.

    It is the first reason that applies: a while loop; an operation that mixes elements along `dim`; a write without
    `dim`. If none applies, it says that writes are not separate along `dim`, or that another size depends on `dim`.
    """
    for op in program.walk():
        if op.name == "iterate" and op.attrs.get("start"):
            return "a while loop has one condition for all"
        if dim in _mixed_dims(op):
            return f"{op.name} goes along it"
    if not all(dim in _first_operand_dims(op) for op in program.walk() if op.name in WRITES):
        return "not every write has it"
    return "what is written does not lie apart along it, or another size depends on it"


def _widths_without_products(program: Program, dims: tuple[Expr, ...], size: Size, room: Room) -> dict[Expr, int]:
    """Choose the tile of a task of a program without MMAs: return {dimension in `dims`: extent in elements}.

    A task is one tile of the grid; its extents divide the dimensions. First, contiguous dimensions get at least RUN
    (16) elements. Then the dimensions grow one after the other, contiguous ones first, as far as `room` (a Room: goals
    for the number and size of tasks) allows. If a task cannot have all of the first contiguous dimension, no other
    dimension grows after it. `size(d)` evaluates the extent of a dimension d.
    """
    spaces = [_tile_dims(op) for op in program.walk()]
    limits = room.elements

    def work(widths: Mapping[Expr, int]) -> int:
        """Return the number of elements of the largest operation in one task; `widths` has the task's extents.

        A dimension that `widths` lacks counts in full.
        """
        return max(prod(max(1, widths.get(d) or size(d)) for d in space) for space in spaces)

    max_elements = min(max(work({}) // room.tasks, limits[0]), limits[1])
    widths = dict.fromkeys(dims, 1)
    contiguous = [d for d in dict.fromkeys(innermost_dims(program)) if d in widths]
    for d in contiguous:
        widths[d] = _divisor(size(d), RUN * 4 if len(contiguous) > 1 else RUN, RUN)
    for d in (*contiguous, *(d for d in reversed(dims) if d not in contiguous)):
        room_left = max_elements // max(1, work({**widths, d: 1}))
        widths[d] = max(widths[d], _divisor(size(d), room_left, 1))
        if widths[d] < size(d) and d in contiguous[:1]:
            break
    return widths


def width_choices(extent: int, radices: Collection[int]) -> list[int]:
    """Return the extents of a task (tile of the grid) to try along a dimension of `extent` elements, largest first.

    The first is `extent`, the last is 1, and each is a quarter to a half of the one before. In that range an extent is
    chosen by four preferences, the strongest first: it keeps the digits (such as i//56, i%56) of the dimension's index
    i whole; it is a multiple of ROWS (16) or far above it; it divides `extent`; it is large. `radices` are the numbers
    by which accesses divide i.

    >>> width_choices(1000, ()), width_choices(3136, (56,))
    ([1000, 500, 250, 125, 48, 16, 8, 4, 2, 1], [3136, 1568, 784, 392, 112, 56, 28, 14, 7, 4, 2, 1])
    """

    widths = [extent]
    while widths[-1] > 1:
        half = -(-widths[-1] // 2)
        widths.append(_best_width(max(1, half // 2 + 1), half, extent, radices))
    return widths


def _best_width(least: int, most: int, extent: int, radices: Collection[int]) -> int:
    """Return the extent of a task (tile of the grid), from `least` to `most`, that has the best properties.

    See `width_choices` for the properties. Of equally good extents, the largest is returned. `extent` is the extent of
    the dimension that tasks split; `radices` are the numbers by which accesses divide the dimension's index.
    """
    best, best_score = most, -1
    for top in range(most, least - 1, -WIDTHS_AT_ONCE):
        n = np.arange(top, max(least, top - WIDTHS_AT_ONCE + 1) - 1, -1)
        keeps_digits = np.ones(n.shape, bool)
        for radix in radices:
            keeps_digits &= (n % radix == 0) | (radix % n == 0)
        in_rows, divides = (n % ROWS == 0) | (n > 6 * ROWS), extent % n == 0
        scores = 2 * (2 * keeps_digits + in_rows) + divides
        position = int(scores.argmax())
        if scores[position] > best_score:
            best, best_score = int(n[position]), int(scores[position])
        if best_score == ALL_PREFERRED:
            break
    return best


def radices(program: Program, dim: Expr, size: Size) -> set[int]:
    """Return the numbers above 1 by which reads and writes divide the index of `dim`, such as 56 in [i//56, i%56].

    Divisors that depend on an index are left out. `size(d)` evaluates the extent of a dimension d.
    """
    divisors: set[int] = set()
    for op in program.walk():
        if "at" not in op.attrs or not (op.name == "read" or op.name in WRITES):
            continue
        over = dict(zip(accessed(op)[1].dims, op.attrs["over"], strict=True))
        for node in (n for e in op.attrs["at"] for n in e.divisions(set()) if over.get(dim) in n.symbols):
            divisor = node.parts[1]
            if divisor.symbols.isdisjoint(op.attrs["over"]):
                divisors.add(size(divisor))
    return {r for r in divisors if r > 1}


def _tile_dims(op: Op) -> set[Expr]:
    """Return the set of all dimensions of the tiles that are operands or results of `op`; empty if it has no tile."""
    values = (*op.results, *op.operands)
    tiles = [set(v.type.dims) for v in values if isinstance(v.type, TileType)]
    return set().union(*tiles)


def innermost_dims(program: Program) -> list[Expr]:
    """Return the dimensions in the innermost memory coordinate of each write, then of each read: the contiguous ones.

    Accesses are in program order. A dimension is repeated for each access that has it there.
    """
    accesses = [op for op in program.walk() if op.name in WRITES] + [op for op in program.walk() if op.name == "read"]
    return [d for op in accesses for d in contiguous_dims(op)]


def contiguous_dims(op: Op) -> list[Expr]:
    """Return the dimensions along which the read or write `op` is contiguous: those in its innermost coordinate.

    There are several if that memory coordinate adds several indices, and none if it has no index.
    """
    memory, kind, _ = accessed(op)
    if "at" not in op.attrs:
        return list(memory.type.dims[-1:])
    named = zip(kind.dims, op.attrs["over"], strict=True)
    return [d for d, iterator in named if op.attrs["at"] and iterator in op.attrs["at"][-1].symbols]


def _divisor(size: int, most: int, least: int) -> int:
    """Return the largest divisor of `size` up to `most`; if it is below `least`, the smallest divisor from `least` on.

    If no divisor is at least `least`, it is `size`.

    >>> _divisor(600, 64, 16), _divisor(600, 10, 16)
    (60, 20)
    """
    divisors = [n for n in range(1, int(size**0.5) + 1) if size % n == 0]
    divisors = sorted({*divisors, *(size // n for n in divisors)})
    fitting = [n for n in divisors if n <= max(1, most)]
    if fitting[-1] >= least:
        return fitting[-1]
    return next((n for n in divisors if n >= least), size)


def numbers_of(symbols: Mapping[Symbol, int]) -> Size:
    """Return a function `size(e)` that evaluates an expression of sizes, such as a dimension's extent, to an int.

    `symbols` maps size symbols to numbers; it must have every symbol of the expressions.
    """
    images = Substitution(symbols)

    def size(e: Expr) -> int:
        """Return the number that `e`, an expression of sizes, evaluates to."""
        return int(images(e))

    return size
