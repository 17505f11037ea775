"""Grid programs: the author's workgroups run one after another, in ascending id, the first grid dimension fastest.

    for w1 in 0..3 {
      for w0 in 0..2 {
        if (w0 <= 0) { ... }     workgroups with tiles of full width
        if (w0 >= 1) { ... }     the last ones, whose tile is ragged

A workgroup's part of a dimension must have a known width. Workgroups whose parts have equal widths are of one kind; the
program is emitted once for each kind, in a branch.

Memory that the program allocates belongs to one workgroup: it is filled with NaN anew for each.

If no workgroup accesses memory that another one writes, their order does not matter, and they are parallel tasks
(`independent`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from math import nan
from operator import mul
from typing import Any, TypeVar

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import Substitution, evaluate, number_or
from tilewright.analysis.flat_memory import Size
from tilewright.errors import ProgramError
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.attrs import Range, attr_symbols
from tilewright.ir.core import MemoryType, Op
from tilewright.ir.tile import is_mapped
from tilewright.lang.symbols import WORKGROUPS
from tilewright.lower.block.lazy_tiles import Part, Tile, pieces
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.memory import is_ordered
from tilewright.plan.boxes import WRITES, own_coordinate

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")

MOST = 24
"""The most kinds of workgroups for which the program's body is emitted."""


class Workgroups:
    """The workgroups of a grid program: which parts of dimensions they have, and the loops or tasks over their ids.

    `derived` maps symbols to the expressions of workgroup ids that they stand for.
    """

    def __init__(self, low: Lowering, derived: Mapping[Symbol, Expr]):
        self.low, self.derived = low, dict(derived)
        records = low.program.records
        _refuse_set_symbols(low)
        self.constraints = [r for r in records if r.name == "workgroup"]
        self.reorderings = [r for r in records if r.name == "reordering"]
        self.persistent = next((r for r in records if r.name == "grid"), None)
        self._plain = dict(low.scope.symbols)
        self.counts, self.opened = self._counts(), bool(low.scope.opened)
        if self.opened:
            self._require_plain_tiles()
            return
        shape = tuple(int(n) for n in reversed(self.counts))
        ids: list[Any] = list(reversed(np.ogrid[tuple(slice(0, n) for n in shape)]))
        self.shape = shape
        self.numbers = self._meanings(ids, evaluate)
        self.kinds, self.forms = self._kinds()

    def _kinds(self) -> tuple[Array, Array]:
        """Return (kinds, widths), two arrays of numbers.

        Workgroups are of one kind if each constraint gives them parts (ranges of a dimension) of equal widths. `kinds`
        has the kind of each workgroup, by workgroup id, the first grid dimension last. widths[kind, n] is the width of
        the part that constraint number n gives. Without workgroups there are no kinds; without constraints, one.
        """
        if 0 in self.shape:
            return np.zeros(self.shape, np.int64), np.zeros((0, len(self.constraints)), np.int64)
        widths = [np.broadcast_to(self._width(r), self.shape).reshape(-1) for r in self.constraints]
        if not widths:
            return np.zeros(self.shape, np.int64), np.zeros((1, 0), np.int64)
        widths_of_kinds, kinds = np.unique(np.stack(widths, axis=1), axis=0, return_inverse=True)
        return kinds.reshape(self.shape), widths_of_kinds

    def _counts(self) -> tuple[Size, ...]:
        """Return the number of workgroups along each dimension of the grid: ints, or expressions of open sizes (known
        only at the call).

        A negative number counts as 0. A persistent kernel has one grid dimension.
        """
        size = self.low.scope.size
        if self.persistent is not None:
            return (size(self.persistent.attrs["count"]),)
        sizes: dict[int, Size] = {}
        for record in self.constraints:
            attrs = record.attrs
            if attrs.get("primary", True):
                if "iters" in attrs:
                    sizes[attrs["grid"]] = size(attrs["iters"])
                else:
                    sizes[attrs["grid"]] = pieces(size(attrs["dim"]), self.low.scope.number(attrs["tile"]))
        counts = (sizes.get(i, 1) for i in range(max(sizes, default=0) + 1))
        return tuple(max(0, n) if isinstance(n, int) else n for n in counts)

    # -- sizes known only at the call -------------------------------------------------------------------------

    def _require_plain_tiles(self) -> None:
        """Raise a ProgramError unless workgroup w has the tile that starts at w * tile, along each dimension.

        It is called for programs with open sizes (known only at the call): with other tiles, a part might be empty.
        Constraints that reorder workgroups, state a number of workgroups or iterations, or are not primary (they follow
        the workgroups of another dimension), are refused too.
        """
        names = ", ".join(sorted(s.name for s in self.low.scope.opened.parameters))
        for record in self.low.program.records:
            attrs = record.attrs
            moved = record.name in ("grid", "reordering")
            if record.name == "workgroup":
                moved = "iters" in attrs or not attrs.get("primary", True) or not self.is_plain(record)
            if moved:
                what = f"{record.name} constraint on {attrs['dim']}" if "dim" in attrs else f"{record.name} constraint"
                raise ProgramError(
                    f"{self.low.program.name}: with {names} dynamic, its {what} has no native form: workgroups are to "
                    "have tiles side by side, from the first on; bind the size instead",
                    record.loc,
                )

    def is_plain(self, record: Op) -> bool:
        """True if workgroup number w gets the tile that starts at index w * tile, as without a stated start.

        `record` is the author's constraint, which states the tile size and perhaps a start.
        """
        plain = self.low.scope.number(record.attrs["tile"]) * WORKGROUPS[record.attrs["grid"]]
        return "start" not in record.attrs or self.low.scope.expr(record.attrs["start"]) is plain

    def _meanings(self, ids: Sequence[T], value: Callable[[Expr, Mapping[Symbol, Any]], T]) -> dict[Symbol, Any]:
        """Return {symbol: value in a workgroup} for sizes, for workgroup ids, and for symbols computed from workgroup
        ids.

        `ids` has the id along each grid dimension: expressions for one workgroup, or arrays with the ids of all
        workgroups. `value(e, known)` evaluates an expression e with the values `known`. A reordering constraint
        replaces the id along its grid dimension.
        """
        known: dict[Symbol, Any] = dict(self._plain)
        for i, s in enumerate(WORKGROUPS):
            known[s] = ids[i] if i < len(ids) else 0
        for s, e in self.derived.items():
            known[s] = value(e, known)
        reordered = {r.attrs["grid"]: value(r.attrs["value"], known) for r in self.reorderings}
        return {**known, **{WORKGROUPS[grid]: workgroup for grid, workgroup in reordered.items()}}

    def _first(
        self, record: Op, known: Mapping[Symbol, Any], value: Callable[[Expr, Mapping[Symbol, Any]], Any]
    ) -> Any:
        """Return the first index of a workgroup's part of the dimension that the author's constraint `record` splits.

        It is the start that the constraint states, else id * tile; in a persistent kernel without a stated start, 0.
        `known` is {symbol: value}: expressions for one workgroup, or arrays for all. `value(e, known)` evaluates an
        expression e.
        """
        if "start" in record.attrs:
            return value(record.attrs["start"], known)
        if self.persistent is not None:
            return 0 * known[WORKGROUPS[0]]  # the kernel itself adds where each of its tiles starts
        return known[WORKGROUPS[record.attrs["grid"]]] * self.low.scope.number(record.attrs["tile"])

    def _width(self, record: Op) -> Any:
        """Return an array: for each workgroup, the width of its part of the dimension that the constraint `record`
        splits.

        A part is a tile, cut off at the end of the dimension: for size 10 and tile 4 the widths are 4, 4, 2. Parts are
        not cut off in two cases. In the first, set_symbol sets the dimension's size. In the second, the constraint is
        not primary, tiles divide the size, and a mapping moves indices of the dimension into range. If parts may then
        go past the end, `low.scope.reach[dim]` is set to the end of the last part. Raise a ProgramError if a part
        starts below 0.
        """
        attrs, number = record.attrs, self.low.scope.number
        tile = number(attrs["tile"])
        first = np.asarray(self._first(record, self.numbers, evaluate))
        if first.min() < 0:
            raise ProgramError(f"a workgroup's part of {attrs['dim']} starts at {first.min()}", record.loc)
        if attrs["dim"] in _set_symbols(self.low):  # the full tile: elements past the end are masked
            self.low.scope.reach[attrs["dim"]] = int(first.max()) + tile
            return np.full_like(first, tile)
        size = number(attrs["dim"])
        if attrs.get("primary", True) or size % tile or not is_mapped(self.low.program, attrs["dim"]):
            return np.minimum(first + tile, size) - np.minimum(first, size)
        if int(first.max()) + tile > size:  # it follows another dimension; mappings move its indices into range
            self.low.scope.reach[attrs["dim"]] = int(first.max()) + tile
        return np.full_like(first, tile)

    # -- writing ----------------------------------------------------------------------------------------------

    def tasks(self) -> tuple[Range, ...]:
        """Return ranges of workgroup ids that can be parallel tasks, one for each grid dimension, the first grid
        dimension last.

        Return (), so that workgroups run in loops instead, if it is not proved that their order does not matter.
        Without open sizes, also return () if there is no workgroup or only one, or more than 24 (MOST) kinds of
        workgroups.
        """
        few = not self.opened and (0 in self.shape or max(self.shape) == 1 or len(self.forms) > MOST)
        if few or not independent(self):
            return ()
        return tuple(Range.of(self.low.writer.fresh(f"w{g}"), 0, n) for g, n in reversed(list(enumerate(self.counts))))

    def write(self, body: Callable[[], None], tasks: tuple[Range, ...] = ()) -> None:
        """Emit the program for all workgroups, in loops over their ids.

        With `tasks`, no loops are emitted: the ids are the symbols of these ranges, one for each grid dimension, the
        first grid dimension last. `body()` emits the program of one workgroup. There is a branch, with a call of
        `body()`, for each kind of workgroup (workgroups whose tiles have the same widths); raise a ProgramError if
        there are more than 24 (MOST) kinds. With open sizes (known only at the call), `body()` is called once, without
        branches or limit. Nothing is emitted if a grid dimension has 0 workgroups.
        """
        if 0 in self.counts:
            return
        if not self.opened and len(self.forms) > MOST:
            raise ProgramError(
                f"{self.low.program.name}: its workgroups have tiles of {len(self.forms)} different widths; natively "
                f"there are at most {MOST}",
                self.low.program.loc,
            )
        with ExitStack() as loops:
            ids: tuple[Expr, ...] = tuple(r.symbol for r in reversed(tasks))
            for g, n in reversed(list(enumerate(self.counts if not tasks else ()))):
                ids = (loops.enter_context(self.low.writer.loop(f"w{g}", n)), *ids)
            if self.opened:
                self._workgroup(body, ids)
                return
            for kind in range(len(self.forms)):
                with self.low.branch(self._is_of_kind(ids, kind)):
                    self._workgroup(body, self._clamped_ids(ids, kind), kind)

    def _clamped_ids(self, ids: tuple[Expr, ...], kind: int) -> tuple[Expr, ...]:
        """Return the workgroup `ids`, each clamped to the range of ids that workgroups of kind number `kind` have, so
        that the compiler knows their bounds.

        Workgroups are of one kind if their parts of dimensions have equal widths.
        """
        places = np.nonzero(self.kinds == kind)
        limits = [(int(p.min()), int(p.max())) for p in reversed(places)]
        return tuple(maximum(minimum(w, hi), lo) for w, (lo, hi) in zip(ids, limits, strict=True))

    def _is_of_kind(self, ids: tuple[Expr, ...], kind: int) -> Expr:
        """Return a condition, an expression of `ids`: true if the workgroup with these ids is of kind number `kind`.

        Workgroups are of one kind if their parts of dimensions have equal widths; the condition compares widths. It is
        1 if there is only one kind.
        """
        known, conditions = self._meanings(ids, _substituted), []
        for place, record in enumerate(self.constraints):
            if len(set(self.forms[:, place])) > 1:
                first = as_expr(self._first(record, known, _substituted))
                size, tile = self.low.scope.number(record.attrs["dim"]), self.low.scope.number(record.attrs["tile"])
                width, expected = minimum(first + tile, size) - minimum(first, size), int(self.forms[kind, place])
                conditions += [width >= expected, width <= expected]
        return reduce(mul, conditions, as_expr(1))

    def _workgroup(self, body: Callable[[], None], ids: tuple[Expr, ...], kind: int | None = None) -> None:
        """Describe the workgroup with the given `ids` in the scope, then call `body()`, which emits its program.

        The scope gets the values of symbols, and for each dimension with a constraint the part that the workgroup has:
        `scope.parts[dimension]` = (first index, width). `kind` is the number of the workgroup's kind; workgroups of one
        kind have parts of equal widths. None: sizes are open (known only at the call), and widths are expressions.
        """
        low, scope = self.low, self.low.scope
        known = self._meanings(ids, _substituted)
        scope.set_values(known)
        scope.parts.clear()
        for d in scope.reach.keys() & scope.symbols.keys() & _set_symbols(low):
            scope.ends[d] = Tile(dtypes.i64, (), {}, formulas.number(scope.number(d), dtypes.i64))
        for place, record in enumerate(self.constraints):
            first = as_expr(self._first(record, known, _substituted))
            width = self._open_width(record, first) if kind is None else int(self.forms[kind, place])
            scope.parts[record.attrs["dim"]] = first, width
        with low.nested():
            body()

    def _open_width(self, record: Op, first: Expr) -> Size:
        """Return the width of the part that begins at `first`: the tile, or fewer elements at the end of the dimension.

        `record` is the constraint that states dimension and tile. The size may be open (known only at the call); the
        result is then an expression.
        """
        tile, size = self.low.scope.number(record.attrs["tile"]), self.low.scope.size(record.attrs["dim"])
        return number_or(as_expr(tile if tile == 1 or size % tile in (0, as_expr(0)) else minimum(tile, size - first)))


def _substituted(e: Expr, known: Mapping[Symbol, Any]) -> Expr:
    """Return the expression `e` with each symbol in `known` replaced by its value."""
    return Substitution(known)(e)


def _set_symbols(low: Lowering) -> set[Symbol]:
    """Return the symbols whose values set_symbol sets while the program runs; not those set to a known scalar
    argument.
    """
    set_ops = [op for op in low.program.walk() if op.name == "set_symbol"]
    return {op.attrs["symbol"] for op in set_ops if not is_given(low, op)}


def is_given(low: Lowering, op: Op) -> bool:
    """True if the set_symbol `op` sets a symbol to a scalar argument of which the value is known already."""
    return op.operands[0] in low.program.args and op.attrs["symbol"] in low.scope.symbols


def _refuse_set_symbols(low: Lowering) -> None:
    """Raise a ProgramError if a constraint depends on a symbol that set_symbol sets while the program runs.

    Some uses are allowed. The symbol may be the dimension of a workgroup or tiling constraint; if it is the axis of a
    while loop, it may be the dimension of any constraint. A tiling constraint may use it in its start and its number of
    iterations, but not in its tile size.
    """
    set_here = _set_symbols(low)
    walked = {op.attrs["axis"] for op in low.program.walk() if op.name == "iterate" and op.attrs.get("start")}
    for record in low.program.records:
        if record.name in ("workgroup", "reordering", "grid", "tiling"):
            kinds = record.spec.attrs
            used = {s for name, value in record.attrs.items() for s in attr_symbols(kinds[name], value)}
            for s in sorted(used & set_here, key=lambda s: s.name):
                if record.attrs.get("dim") is s and (s in walked or record.name in ("workgroup", "tiling")):
                    continue
                if record.name == "tiling" and s not in record.attrs["tile"].symbols:
                    continue
                raise ProgramError(f"a constraint depends on {s}, which set_symbol gives a value: no native form yet")


# -- whether the order shows ----------------------------------------------------------------------------------


def independent(groups: Workgroups) -> bool:
    """True if it is proved that no workgroup accesses memory that another one writes, so that they can run in any
    order.

    Atomics of one kind, whose argument nothing reads, are allowed if nothing uses their results. For other writes, each
    grid dimension must split a dimension of which the index is, in all accesses, the same memory coordinate. Always
    False for persistent kernels, with logs, for programs that must run in order, and if two workgroups may have the
    same ids.
    """
    low, program = groups.low, groups.low.program
    if groups.persistent is not None or low.reports.logs is not None or is_ordered(program):
        return False
    if not groups.opened and not _have_distinct_ids(groups):
        return False
    split_dims = [_dim_split_by(groups, g) for g, count in enumerate(groups.counts) if count not in (0, 1)]
    if None in split_dims:
        return False
    ops = list(program.walk())
    for arg in program.args:
        writes = [op for op in ops if op.name in WRITES and op.operands[1] is arg]
        reads = [op for op in ops if op.name == "read" and op.operands[0] is arg]
        names = {op.name for op in writes}
        if not writes or ("write" not in names and len(names) == 1 and not reads):
            continue
        if names != {"write"} or not all(
            d is not None and _are_disjoint(low, d, (*writes, *reads)) for d in split_dims
        ):
            return False
    return True


def _have_distinct_ids(groups: Workgroups) -> bool:
    """True if no two workgroups have the same ids after the constraints that reorder workgroups."""
    ids = [np.broadcast_to(groups.numbers[WORKGROUPS[g]], groups.shape).reshape(-1) for g in range(len(groups.counts))]
    return len(np.unique(np.stack(ids, axis=1), axis=0)) == len(ids[0])


def _dim_split_by(groups: Workgroups, grid: int) -> Expr | None:
    """Return the dimension that workgroups along grid dimension number `grid` split into tiles; None if there is none.

    Workgroup w must have the tile that starts at w * tile, no tiling constraint may state a start for the dimension,
    and no other constraint may split it.
    """
    low = groups.low
    for record in groups.constraints:
        attrs = record.attrs
        d = attrs["dim"]
        if attrs["grid"] != grid or not attrs.get("primary", True):
            continue
        plain = groups.is_plain(record)
        alone = sum(r.attrs.get("dim") is d for r in groups.constraints) == 1
        moved = any(r.name == "tiling" and r.attrs["dim"] is d and "start" in r.attrs for r in low.program.records)
        if plain and alone and not moved and isinstance(d, Symbol):
            return d
    return None


def _are_disjoint(low: Lowering, dim: Expr, accesses: Sequence[Op]) -> bool:
    """True if it is proved that accesses with different indices along `dim` touch different memory.

    All `accesses` (reads and writes of one argument) must have one memory coordinate, at the same position and with the
    same stride and offset, that depends on no other dimension. That coordinate may have only iterators and sizes as
    symbols, none that set_symbol sets.
    """
    places = {own_coordinate(op, dim) for op in accesses}
    if len(places) != 1 or None in places:
        return False
    sizes = low.scope.symbols.keys() - _set_symbols(low)
    for op in accesses:
        if "at" in op.attrs:
            number, _ = own_coordinate(op, dim) or (0, None)
            if not op.attrs["at"][number].symbols <= {*op.attrs["over"], *sizes}:
                return False
    return True


# -- memory of a workgroup's own ------------------------------------------------------------------------------


def allocate(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Emit the allocation of one workgroup's memory for an `allocate`, filled with NaN (integers: 0); return ().

    The memory has the workgroup's part of each dimension; if some access has explicit coordinates, it has whole
    dimensions. `low.arguments` records its tensor; no Tile is recorded.
    """
    (memory,) = op.results
    kind: MemoryType = memory.type
    accesses = [o for o in low.program.walk() if memory in o.operands[: 2 if o.name in WRITES else 1]]
    has_coordinates = any("at" in o.attrs for o in accesses)
    parts: list[Part] = [(as_expr(0), low.scope.size(d)) if has_coordinates else low.scope.part(d) for d in kind.dims]
    shape = tuple(width for _, width in parts)
    tensor = low.writer.alloc(kind.dtype, [1 if n == 0 else n for n in shape], memory.name or "shared")
    if 0 not in shape:
        poison = formulas.number(nan if kind.dtype.is_float else 0, kind.dtype)
        low.writer.map(tensor, low.writer.axes(shape), poison, Substitution({}))
    low.arguments.hold(memory, tensor, shape, tuple(first for first, _ in parts))
    return ()
