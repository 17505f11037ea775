"""The tasks of a program, and the pieces by which each goes over its dimensions.

tasks t_M in 0..4 {                       tasks of 32 rows
  for b_M in 0..2 { ... }                 pieces of 14
  ...                                     what is left
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from math import gcd

from tilewright.algebra.expr import Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import number_or
from tilewright.ir.attrs import Range
from tilewright.ir.core import Block, Op, TileType, Value
from tilewright.passes.places import Size
from tilewright.passes.tile import inplace
from tilewright.passes.tile.grid import Workgroups
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.product.task import TiledTask
from tilewright.passes.tile.rewriting import within
from tilewright.passes.tile.values import Part, divided, most, pieces
from tilewright.plan.boxes import WRITES
from tilewright.plan.schedule import REVERSED

Case = tuple[Expr, Part, Expr]
"""(dimension, the part of it that a task has, the condition under which it has it)."""


class Tasks:
    """The tasks of a program: the part of every dimension that each has, and the pieces by which it goes over it."""

    def __init__(self, low: Lowering, workgroups: Workgroups | None = None, tiled: TiledTask | None = None):
        """`workgroups` are those of a grid program, `tiled` is the task of one product in tile registers."""
        self.low, self.w, self.task = low, low.writer, low.task
        self.bound, self.plan = low.bound, low.plan
        self.workgroups, self.tiled = workgroups, tiled
        self.ranges: list[Range] = []

    def write(self) -> Block:
        """Return the program's body: operations before the first task, then the tasks."""
        body, inner = Block(()), Block(())
        cases, counts = self._cut()
        with self.w.inside(inner):
            if self.plan.pipeline is not None:
                self.ranges = self._equal_tasks(counts)
            if self.workgroups is None:
                for chosen in product(*cases):
                    self._task(list(chosen))
            else:
                self.workgroups.write(lambda: self.pieces(list(self.bound.blocks)), tuple(self.ranges))
        with self.w.inside(body):
            self.w.loc = None
            body.ops.extend(self.task.before.ops)
            schedule = None if self.plan.order in ("cyclic", REVERSED) else self.plan.order
            ranges = tuple(self.ranges) or (Range.of("t", 0, 1),)
            self.w.emit("tasks", ranges=ranges, schedule=schedule, blocks=(inner,))
        return body

    # -- which part each has ------------------------------------------------------------------------------

    def _cut(self) -> tuple[list[list[Case]], dict[Expr, Size]]:
        """Set each task's part of every dimension; return (cases of parts by dimension, number of equal tasks by
        dimension).

        A dimension that tasks do not divide evenly has two cases: full tasks, and the last one. In a program in roles
        (warp-specialised) all tasks are equal, and counted instead.
        """
        scope, cases, counts = self.low.scope, list[list[Case]](), dict[Expr, Size]()
        if self.workgroups is not None:
            self.ranges = list(self.workgroups.tasks())
        for d, width in self.bound.padded.items() if self.plan.pipeline is not None else ():
            scope.parts[d] = as_expr(0), width
            scope.past[d] = scope.number(d)  # columns past the end change nothing
        for d, width in self.bound.widths.items():
            if (walk := self.task.walks.get(d)) is not None:
                count = walk.extent // walk.width
                self.task.begins[d] = walk.width * self._number(d, count) if count > 1 else as_expr(0)
                scope.parts[d] = self.task.begins[d], walk.walked
                continue
            if self.plan.pipeline is None and (block := self.bound.blocks.get(d)) is not None and width % block == 0:
                self._deal(d, width // block)
                continue
            size = scope.size(d)
            full, rest = divided(size, width)
            if self.plan.pipeline is not None:
                scope.parts[d], counts[d] = (as_expr(0), width), number_or(as_expr(pieces(size, width)))
                self.task.shared.append(d)
            elif (full, rest) == (1, 0):  # whole: nothing to count
                continue
            elif isinstance(size, Expr):  # where it ends, only a call tells
                first = width * self._number(d, (size + width - 1) // width)
                scope.parts[d] = first, 1 if width == 1 else minimum(width, size - first)
            else:
                last = full + bool(rest) - 1
                number = self._number(d, last + 1)
                t: Expr = number if self.plan.order != REVERSED else last - number
                if rest:  # the last task has less to do
                    place = width * minimum(t, full - 1), width  # where this holds it is the same, and in bounds
                    cases.append([(d, place, t < full), (d, (as_expr(width * full), rest), t >= full)])
                else:
                    scope.parts[d] = width * t, width
        return cases, counts

    def _number(self, dim: Expr, count: Expr | Size) -> Symbol:
        """Return a task's index along a dimension, of `count`."""
        self.ranges.append(Range.of(self.w.fresh(f"t_{dim}"), 0, count))
        self.low.task.shared.append(dim)
        return self.ranges[-1].symbol

    def _equal_tasks(self, counts: Mapping[Expr, Size]) -> list[Range]:
        """Return the ranges of tasks of equal extent, and set where each begins, as a named symbol.

        With a raster group, the last two dimensions are one number: `group` tasks along the first of them, then on
        along the other, so that operands stay in the shared cache.
        """
        places: dict[Expr, Expr] = {}
        group = self.plan.raster
        if self.plan.order == "dynamic":
            ranges_of_rows = self._longest_first(counts, places)
            return self._set_begins(counts, places, ranges_of_rows)
        ranges = {d: Range.of(self.w.fresh(f"t_{d}"), 0, n) for d, n in counts.items()}
        places |= {d: r.symbol for d, r in ranges.items()}
        if group > 1:
            m, n = list(counts)[-2:]
            tall, wide = counts[m], counts[n]
            del ranges[m]
            ranges[n] = Range.of(self.w.fresh("t"), 0, tall * wide)
            t = ranges[n].symbol
            first = self._named("first", t // (group * wide) * group)
            here = minimum(as_expr(group), tall - first)
            if isinstance(tall, Expr) or isinstance(wide, Expr):  # what divides is shown to be a number from 1 on
                here = maximum(here, 1)
            places[m] = first + t % (group * wide) % here
            places[n] = t % (group * wide) // here
        return self._set_begins(counts, places, ranges.values())

    def _set_begins(
        self, counts: Mapping[Expr, Size], places: Mapping[Expr, Expr], ranges: Iterable[Range]
    ) -> list[Range]:
        """Set named first indices of a task along each dimension; return the ranges with more than one task."""
        for d, place in places.items():
            width, count = most(self.low.scope.parts[d][1]), counts[d]
            begin = self._named(f"first_{d}", place * width) if count != 1 else as_expr(0)
            self.low.scope.parts[d] = begin, width
        return [r for r in ranges if r.hi is not as_expr(1)]

    def _longest_first(self, counts: Mapping[Expr, Size], places: dict[Expr, Expr]) -> list[Range]:
        """Return the ranges of tasks that are taken one by one, rows from last to first, as their loops are the longest
        first.

        `places` gets {dimension: index of the task along it}. Of the dimensions before the rows, `group` tasks in all
        run together, the last dimension fastest.
        """
        assert self.w.home is not None
        row, dims, ranges = self.w.home.row, list(counts), list[Range]()
        around, behind = dims[: dims.index(row)], dims[dims.index(row) + 1 :]
        inner, left = dict.fromkeys(around, 1), self.plan.raster
        for d in reversed(around):
            inner[d] = gcd(left, int(counts[d])) if left > 1 else 1
            left //= inner[d]
        assert left == 1, "binding has refused groups that are no whole tasks of these"

        def counted(name: str, count: Size) -> Expr:
            ranges.append(Range.of(self.w.fresh(name), 0, count))
            return ranges[-1].symbol if count != 1 else as_expr(0)

        for d in around:
            whole = inner[d] == 1
            places[d] = inner[d] * counted(f"t_{d}" if whole else "group", counts[d] // inner[d])
        places[row] = counts[row] - 1 - counted("back", counts[row])
        for d in around:
            if inner[d] > 1:
                places[d] = places[d] + counted(f"t_{d}", inner[d])
        for d in behind:
            places[d] = counted(f"t_{d}", counts[d])
        return ranges

    def _named(self, name: str, e: Expr) -> Symbol:
        """Emit `let name = e`, and return the symbol."""
        name_symbol = symbol(self.w.fresh(name), definition=e)
        self.w.emit("let", symbol=name_symbol)
        return name_symbol

    def _task(self, chosen: list[Case]) -> None:
        """Emit a task for one combination of cases of dimensions that tasks do not divide evenly."""
        if chosen:
            (dim, part, condition), *rest = chosen
            with self.low.scope.at(dim, part), self.low.branch(condition):
                self._task(rest)
        else:
            self.pieces(list(self.bound.blocks) if self.tiled is None else self.tiled.one_by_one)

    # -- piece by piece -----------------------------------------------------------------------------------

    def _deal(self, dim: Expr, per: int) -> None:
        """Give every task `per` pieces (blocks) of a dimension; a smaller piece at the end goes to the last task."""
        full, tail = self._counted(dim, self.low.scope.size(dim))
        count = number_or(maximum(as_expr(pieces(full + self._rest_is_piece(dim, tail), per)), 1))
        if count != 1:
            self.task.dealt[dim] = self._number(dim, count), per, count

    def _counted(self, dim: Expr, length: Size) -> tuple[Size, Size]:
        """Return (whole pieces, rest) of `length` elements of a dimension; a piece is a block that a task goes over.

        The length is first rounded up to the unit that the plan says.
        """
        width, unit = self.bound.blocks[dim], self.bound.padded.get(dim, 1)
        return divided(length if unit == 1 else number_or(as_expr(pieces(length, unit)) * unit), width)

    def _rest_is_piece(self, dim: Expr, tail: Size) -> int:
        """Return 1 if the rest of a dimension is dealt out as a piece (block of a task); 0 if the last task does it
        besides.
        """
        return int(tail != 0 and dim in self.bound.padded)

    def pieces(self, dims: list[Expr], ops: list[Op] | None = None) -> None:
        """Emit what a task does, piece by piece along `dims`; the last pieces may be smaller.

        If the index decides which elements of an operand are in bounds, the first and the last piece (block of a task),
        and the rest, are emitted separately; they are peeled off the loop if they have the same operations. In roles,
        whose values stay in registers, operations that do not depend on the pieces come before them.
        """
        low = self.low
        left = low.program.body.ops if ops is None else ops
        if not dims and self.tiled is not None:
            self.tiled.write()
            return
        if not dims:
            with low.nested():
                low.block(Block((), left))
            return
        dim, *rest = dims
        if self.plan.pipeline is not None and ops is None:
            before = _independent(left, dim)
            with low.nested():
                low.block(Block((), before))
                self.pieces(dims, [op for op in left if op not in before])
            return
        width, edge = self.bound.blocks[dim], self.task.edge
        first, length = low.scope.part(dim)
        full, tail = self._counted(dim, length)
        slides = width > 1 and inplace.slides(low, dim)

        def one(n: Expr | Size, at_edge: bool, wide: Size = width) -> None:
            self.task.edge = at_edge if slides else edge
            with low.scope.at(dim, (first + width * n, wide)):
                self.pieces(rest, left)
            self.task.edge = edge

        def loop(start: Expr | int, end: Expr | int, at_edge: bool, peel: tuple[int, int] | None = None) -> None:
            with self.w.loop(f"b_{dim}" if str(dim).isidentifier() else "b", end, start, peel=peel) as n:
                one(n, at_edge)

        ends = isinstance(full, Expr) and dim in self.bound.padded  # somewhere in the last piece
        ahead, behind = self.bound.peeled.get(dim, (1, 1) if slides and full not in (0, 1) else (0, int(ends)))
        last: Expr = as_expr(1)
        if dim in self.task.dealt:
            task, per, count = self.task.dealt[dim]
            last, end = task >= count - 1, per * (task + 1)
            behind = 0 if slides else behind
            even = full % per == 0 == behind + self._rest_is_piece(dim, tail)
            loop(per * task, end if even else minimum(end, as_expr(full) - behind), True)
            if behind:
                with low.branch(last):
                    loop(full - 1, full, True)
        elif slides and isinstance(full, int) and full > 1 and inplace.are_alike(low, dim):
            loop(0, full, True, (ahead, behind))
        else:
            for start, stop, at_edge in _peeled_loops(full, ahead, behind):
                if isinstance(full, Expr) and at_edge and ahead == 1 and start == 0:
                    with low.branch(full >= 1):
                        one(0, True)
                elif isinstance(full, Expr) and at_edge and behind == 1 and stop is full:
                    with low.branch(full >= ahead + 1):
                        one(full - 1, True)
                else:
                    loop(start, stop, at_edge)
        if tail != 0:
            with low.branch(last * (as_expr(tail) >= 1)):
                one(full, True, tail)


def _independent(ops: list[Op], dim: Expr) -> list[Op]:
    """Return the operations that do not depend on the index along a dimension, and do not write."""
    independent: list[Op] = []
    dependent: set[Value] = set()
    for op in ops:
        values = [v for x in (op, *within(op)) for v in (*x.operands, *x.results)]
        along = any(isinstance(v.type, TileType) and dim in v.type.dims for v in values)
        if along or op.name in WRITES or not dependent.isdisjoint(values):
            dependent |= set(op.results)
        else:
            independent.append(op)
    return independent


def _peeled_loops(full: Size, ahead: int, behind: int) -> list[tuple[Expr | int, Expr | int, bool]]:
    """Return loops over `full` pieces as (from, to, True if at an edge): `ahead` and `behind` pieces at the ends are
    peeled.

    >>> _peeled_loops(5, 1, 1), _peeled_loops(2, 1, 1), _peeled_loops(4, 0, 0)
    ([(0, 1, True), (1, 4, False), (4, 5, True)], [(0, 1, True), (1, 2, True)], [(0, 4, True)])
    """
    if isinstance(full, Expr):
        first: list[tuple[Expr | int, Expr | int, bool]] = [(0, minimum(ahead, full), True)] if ahead else []
        last = [(maximum(ahead, full - behind), full, True)] if behind else []
        return [*first, (ahead, full - behind, not (ahead or behind)), *last]
    between = [(ahead, full - behind, not (ahead or behind))] if full > ahead + behind else []
    peeled = [*range(min(ahead, full))], [*range(max(ahead, full - behind), full)]
    return [*((n, n + 1, True) for n in peeled[0]), *between, *((n, n + 1, True) for n in peeled[1])]
