"""The tasks of a program, and the loops over blocks by which each task iterates over its dimensions.

tasks t_M in 0..4 {                       tasks of 32 rows
  for b_M in 0..2 { ... }                 blocks of 14
  ...                                     the ragged rest
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from math import gcd

from tilewright.algebra.expr import Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import number_or
from tilewright.analysis.flat_memory import Size
from tilewright.ir.attrs import Range
from tilewright.ir.core import Block, Op, TileType, Value
from tilewright.lower.block import in_place
from tilewright.lower.block.grid import Workgroups
from tilewright.lower.block.lazy_tiles import Part, divided, most, pieces
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.mma.shared import with_shared_operands
from tilewright.lower.block.mma.task import TiledTask
from tilewright.plan.boxes import WRITES
from tilewright.plan.schedule import REVERSED
from tilewright.rewrite.rewriter import within

Case = tuple[Expr, Part, Expr]
"""(dimension, its part in a task, condition on the task's index under which the task has this part)."""


class Tasks:
    """Emits the tasks of a program: the part of every dimension that a task has, and its loops over blocks of it."""

    def __init__(self, low: Lowering, workgroups: Workgroups | None = None, tiled: TiledTask | None = None):
        """`workgroups` are those of a grid program; `tiled` emits a task with MMAs in tile registers. None: neither."""
        self.low, self.w, self.task = low, low.writer, low.task
        self.bound, self.plan = low.bound, low.plan
        self.workgroups, self.tiled = workgroups, tiled
        self.ranges: list[Range] = []

    def write(self) -> Block:
        """Emit all tasks; return the program's body: operations before the first task, then one `tasks` operation."""
        body, inner = Block(()), Block(())
        cases, counts = self._split_dims()
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

    def _split_dims(self) -> tuple[list[list[Case]], dict[Expr, Size]]:
        """Set a task's part (first index, extent) of each dimension in the scope; return (cases, counts).

        Without a pipeline, `cases` has an entry for each dimension of which the last task has less: [(dimension, part,
        condition) of full tasks, the same of the last task]. `counts` is {} then. With a pipeline, all tasks have equal
        parts, `cases` is [], and `counts` is {dimension: number of tasks along it}. Ranges of task indices are added to
        `self.ranges`. A dimension that one task has all of is not split.
        """
        scope, cases, counts = self.low.scope, list[list[Case]](), dict[Expr, Size]()
        if self.workgroups is not None:
            self.ranges = list(self.workgroups.tasks())
        for d, width in self.bound.padded.items() if self.plan.pipeline is not None else ():
            scope.parts[d] = as_expr(0), width
            scope.past[d] = scope.number(d)  # padding columns change nothing
        for d, width in self.bound.widths.items():
            if (walk := self.task.walks.get(d)) is not None:
                count = walk.extent // walk.width
                self.task.begins[d] = walk.width * self._task_index(d, count) if count > 1 else as_expr(0)
                scope.parts[d] = self.task.begins[d], walk.computed_rows
                continue
            if self.plan.pipeline is None and (block := self.bound.blocks.get(d)) is not None and width % block == 0:
                self._distribute_blocks(d, width // block)
                continue
            size = scope.size(d)
            full, ragged = divided(size, width)
            if self.plan.pipeline is not None:
                scope.parts[d], counts[d] = (as_expr(0), width), number_or(as_expr(pieces(size, width)))
                self.task.shared.append(d)
                if size == 1 < width:  # the program may reduce it, though tasks split it
                    scope.past[d] = 1
            elif (full, ragged) == (1, 0):  # one task has all of it
                continue
            elif isinstance(size, Expr):  # an open size: the last task may be smaller
                first = width * self._task_index(d, (size + width - 1) // width)
                scope.parts[d] = first, 1 if width == 1 else minimum(width, size - first)
            else:
                last = full + bool(ragged) - 1
                task_index = self._task_index(d, last + 1)
                t: Expr = task_index if self.plan.order != REVERSED else last - task_index
                if ragged:  # the last task is smaller
                    full_part = width * minimum(t, full - 1), width  # the minimum shows that it is in bounds
                    cases.append([(d, full_part, t < full), (d, (as_expr(width * full), ragged), t >= full)])
                else:
                    scope.parts[d] = width * t, width
        return cases, counts

    def _task_index(self, dim: Expr, count: Expr | Size) -> Symbol:
        """Add a range of `count` tasks along `dim` to `self.ranges`; return the symbol of the range, the index of a
        task.

        `dim` is also added to the dimensions that tasks split (`self.task.shared`).
        """
        self.ranges.append(Range.of(self.w.fresh(f"t_{dim}"), 0, count))
        self.low.task.shared.append(dim)
        return self.ranges[-1].symbol

    def _equal_tasks(self, counts: Mapping[Expr, Size]) -> list[Range]:
        """Return the ranges of task indices, for tasks with equal parts, and set a task's first index along each
        dimension in the scope.

        `counts` is {dimension: number of tasks along it}. With a raster group, the last two dimensions share one range:
        `self.plan.raster` tasks along the first of them, then as many at the next index of the second, so that operands
        stay in the shared cache. In the order "dynamic", tasks with the longest loops come first instead.
        """
        task_index_of: dict[Expr, Expr] = {}
        group = self.plan.raster
        if self.plan.order == "dynamic":
            ranges_of_rows = self._longest_first(counts, task_index_of)
            return self._set_begins(counts, task_index_of, ranges_of_rows)
        ranges = {d: Range.of(self.w.fresh(f"t_{d}"), 0, n) for d, n in counts.items()}
        task_index_of |= {d: r.symbol for d, r in ranges.items()}
        if group > 1:
            m, n = list(counts)[-2:]
            rows, columns = counts[m], counts[n]
            del ranges[m]
            ranges[n] = Range.of(self.w.fresh("t"), 0, rows * columns)
            t = ranges[n].symbol
            first = self._named("first", t // (group * columns) * group)
            group_rows = minimum(as_expr(group), rows - first)
            if isinstance(rows, Expr) or isinstance(columns, Expr):  # a divisor must be known to be at least 1
                group_rows = maximum(group_rows, 1)
            task_index_of[m] = first + t % (group * columns) % group_rows
            task_index_of[n] = t % (group * columns) // group_rows
        return self._set_begins(counts, task_index_of, ranges.values())

    def _set_begins(
        self, counts: Mapping[Expr, Size], places: Mapping[Expr, Expr], ranges: Iterable[Range]
    ) -> list[Range]:
        """Set the first index of a task's part along each dimension in the scope: (index of the task there) * (extent
        of the part).

        `counts` is {dimension: number of tasks along it}, `places` is {dimension: index of the current task along it}.
        The first index is emitted as a `let`; it is 0 if there is one task. Return a list of those of `ranges` that
        have more than one task.
        """
        for d, place in places.items():
            width, count = most(self.low.scope.parts[d][1]), counts[d]
            begin = self._named(f"first_{d}", place * width) if count != 1 else as_expr(0)
            self.low.scope.parts[d] = begin, width
        return [r for r in ranges if r.hi is not as_expr(1)]

    def _longest_first(self, counts: Mapping[Expr, Size], places: dict[Expr, Expr]) -> list[Range]:
        """Return the ranges of task indices, outermost first, such that tasks with long loops come first: with a causal
        mask, those are the last rows.

        The order is: dimensions before the rows (batch dimensions), rows from last to first, then the other dimensions.
        A raster group is a number of tasks along the batch dimensions that run together; its dimensions come right
        after the rows. `counts` is {dimension: number of tasks along it}; `places` gets {dimension: index of the
        current task along it}.
        """
        assert self.w.fragment_layout is not None
        row, dims, ranges = self.w.fragment_layout.row, list(counts), list[Range]()
        batch_dims, column_dims = dims[: dims.index(row)], dims[dims.index(row) + 1 :]
        inner, remaining = dict.fromkeys(batch_dims, 1), self.plan.raster
        for d in reversed(batch_dims):
            inner[d] = gcd(remaining, int(counts[d])) if remaining > 1 else 1
            remaining //= inner[d]
        assert remaining == 1, "binding has refused groups that are no whole tasks of these"

        def counted(name: str, count: Size) -> Expr:
            """Add a range of `count` tasks called `name` to the ranges, and return the index of a task in it: 0 if
            there is one task.
            """
            ranges.append(Range.of(self.w.fresh(name), 0, count))
            return ranges[-1].symbol if count != 1 else as_expr(0)

        for d in batch_dims:
            is_ungrouped = inner[d] == 1
            places[d] = inner[d] * counted(f"t_{d}" if is_ungrouped else "group", counts[d] // inner[d])
        places[row] = counts[row] - 1 - counted("back", counts[row])
        for d in batch_dims:
            if inner[d] > 1:
                places[d] = places[d] + counted(f"t_{d}", inner[d])
        for d in column_dims:
            places[d] = counted(f"t_{d}", counts[d])
        return ranges

    def _named(self, name: str, e: Expr) -> Symbol:
        """Emit `let name = e`, with `name` made unique, and return the symbol that it defines."""
        name_symbol = symbol(self.w.fresh(name), definition=e)
        self.w.emit("let", symbol=name_symbol)
        return name_symbol

    def _task(self, chosen: list[Case]) -> None:
        """Emit the body of a task, in nested branches on the conditions in `chosen`.

        `chosen` has (dimension, part, condition) for dimensions that tasks do not divide evenly; in the branch, the
        task has this part, (first index, extent).
        """
        if chosen:
            (dim, part, condition), *rest = chosen
            with self.low.scope.at(dim, part), self.low.branch(condition):
                self._task(rest)
        else:
            self.pieces(list(self.bound.blocks) if self.tiled is None else self.tiled.one_by_one)

    # -- piece by piece -----------------------------------------------------------------------------------

    def _distribute_blocks(self, dim: Expr, per: int) -> None:
        """Distribute the blocks of `dim` to tasks, `per` blocks to each: 10 blocks with `per` 4 give 3 tasks.

        The range of task indices is added to `self.ranges`, and `self.task.task_splits[dim]` becomes (index of the
        task, `per`, number of tasks). Elements behind the full blocks belong to the last task, or count as one more
        block (`_counts_as_block`). If there is only one task, nothing is set.
        """
        full, tail = self._count_blocks(dim, self.low.scope.size(dim))
        count = number_or(maximum(as_expr(pieces(full + self._counts_as_block(dim, tail), per)), 1))
        if count != 1:
            self.task.task_splits[dim] = self._task_index(dim, count), per, count

    def _count_blocks(self, dim: Expr, length: Size) -> tuple[Size, Size]:
        """Return (number of full blocks, elements behind them) of `length` elements of the dimension `dim`.

        The block size is the plan's. If the plan pads the dimension to a multiple, `length` is first rounded up to that
        multiple.
        """
        width, unit = self.bound.blocks[dim], self.bound.padded.get(dim, 1)
        return divided(length if unit == 1 else number_or(as_expr(pieces(length, unit)) * unit), width)

    def _counts_as_block(self, dim: Expr, tail: Size) -> int:
        """Return 1 if the `tail` elements behind the full blocks of `dim` are distributed to tasks like a block, else
        0.

        They are if there are any and the plan pads `dim`. Otherwise the last task computes them besides its own blocks.
        """
        return int(tail != 0 and dim in self.bound.padded)

    def pieces(self, dims: list[Expr], ops: list[Op] | None = None) -> None:
        """Emit the operations of a task in nested loops over blocks of the dimensions `dims`; a smaller last block has
        code of its own.

        `ops` are the operations; None: those of the program. With MMAs in tile registers (`self.tiled`), the innermost
        code is that of TiledTask, whatever `ops` are. Operands B that blocks share, and in a pipeline all operations
        that do not depend on the blocks, come before the loops.
        """
        low = self.low
        task_ops = low.program.body.ops if ops is None else ops
        if not dims and self.tiled is not None:
            self.tiled.write()
            return
        if not dims:
            with low.nested():
                low.block(Block((), task_ops))
            return
        dim, *rest = dims
        if self.plan.pipeline is not None and ops is None:
            hoisted = _independent(task_ops, dim)
            with low.nested():
                low.block(Block((), hoisted))
                self.pieces(dims, [op for op in task_ops if op not in hoisted])
            return
        if most(low.scope.part(dim)[1]) <= self.bound.blocks[dim]:
            self._blocks(dim, rest, task_ops)
            return
        with low.nested():
            self._blocks(dim, rest, with_shared_operands(low, task_ops, dims))

    def _blocks(self, dim: Expr, rest: list[Expr], task_ops: list[Op]) -> None:
        """Emit the operations `task_ops` of a task in a loop over blocks of `dim`, with loops over blocks of the
        dimensions `rest` inside.

        If the block's index decides which elements of an operand are in bounds, the first and last block are peeled, or
        emitted separately if their operations differ from those of inner blocks.
        """
        low = self.low
        width, outer_edge = self.bound.blocks[dim], self.task.edge
        first, length = low.scope.part(dim)
        full, tail = self._count_blocks(dim, length)
        slides = width > 1 and in_place.slides(low, dim)

        def one(n: Expr | Size, at_edge: bool, wide: Size = width) -> None:
            """Emit block number `n`, with `wide` elements. `at_edge` is True if operands may be out of bounds there."""
            self.task.edge = at_edge if slides else outer_edge
            with low.scope.at(dim, (first + width * n, wide)):
                self.pieces(rest, task_ops)
            self.task.edge = outer_edge

        def loop(start: Expr | int, end: Expr | int, at_edge: bool, peel: tuple[int, int] | None = None) -> None:
            """Emit a loop over the blocks from `start` up to, and without, `end`. `at_edge` is True if operands may be
            out of bounds there; `peel` is (first blocks, last blocks) to peel.
            """
            with self.w.loop(f"b_{dim}" if str(dim).isidentifier() else "b", end, start, peel=peel) as n:
                one(n, at_edge)

        ends = isinstance(full, Expr) and dim in self.bound.padded  # the end is in the last block
        ahead, behind = self.bound.peeled.get(dim, (1, 1) if slides and full not in (0, 1) else (0, int(ends)))
        last: Expr = as_expr(1)
        if dim in self.task.task_splits:
            task, per, count = self.task.task_splits[dim]
            last, end = task >= count - 1, per * (task + 1)
            behind = 0 if slides else behind
            even = full % per == 0 == behind + self._counts_as_block(dim, tail)
            loop(per * task, end if even else minimum(end, as_expr(full) - behind), True)
            if behind:
                with low.branch(last):
                    loop(full - 1, full, True)
        elif slides and isinstance(full, int) and full > 1 and in_place.edge_blocks_match_interior(low, dim):
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
    """Return the operations of `ops` that do not depend on the index along `dim`: they have no value with that
    dimension, write no memory, and use only results of such operations and values from outside `ops`.
    """
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
    """Return [(first, end, True if its blocks may be at an edge), ...]: loops that together iterate over `full` blocks.

    `end` is not included. Each of the first `ahead` and the last `behind` blocks is peeled to a loop of its own; if
    `full` is an expression, the first ones are one loop, and the last ones another. If none is peeled, the one loop has
    the edges.

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
