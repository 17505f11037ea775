"""Grid programs: workgroups one after another, in ascending id, the first grid dimension fastest.

    for w1 in 0..3 {
      for w0 in 0..2 {
        if (w0 <= 0) { ... }     workgroups with tiles of full width
        if (w0 >= 1) { ... }     the last ones, whose tile is ragged

A workgroup's part of a dimension must have a width that is known. Workgroups whose parts are equally wide are of one
kind; there is a branch for each kind.

Memory that the program allocates is the workgroup's own: it is poisoned anew for each.

If no workgroup touches memory that another one writes, their order does not show, and they are tasks (`independent`).
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
from tilewright.errors import ProgramError
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.attrs import Range, attr_symbols
from tilewright.ir.core import MemoryType, Op
from tilewright.ir.tile import is_mapped
from tilewright.lang.symbols import WORKGROUPS
from tilewright.passes.places import Size
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.memory import is_ordered
from tilewright.passes.tile.values import Part, Tile, pieces
from tilewright.plan.boxes import WRITES, own_coordinate

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")

MOST = 24
"""Copies of the program's body, at most."""


class Workgroups:
    """The workgroups of a grid program: their ids as numbers, all at once, and as expressions, one run at a time."""

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
            self._refuse_moved()
            return
        shape = tuple(int(n) for n in reversed(self.counts))
        ids: list[Any] = list(reversed(np.ogrid[tuple(slice(0, n) for n in shape)]))
        self.shape = shape
        self.numbers = self._meanings(ids, evaluate)
        self.kinds, self.forms = self._kinds()

    def _kinds(self) -> tuple[Array, Array]:
        """Return (kind of each workgroup, extents of its parts by kind and constraint); a kind has parts of equal
        extents.
        """
        if 0 in self.shape:
            return np.zeros(self.shape, np.int64), np.zeros((0, len(self.constraints)), np.int64)
        widths = [np.broadcast_to(self._width(r), self.shape).reshape(-1) for r in self.constraints]
        if not widths:
            return np.zeros(self.shape, np.int64), np.zeros((1, 0), np.int64)
        forms, kinds = np.unique(np.stack(widths, axis=1), axis=0, return_inverse=True)
        return kinds.reshape(self.shape), forms

    def _counts(self) -> tuple[Size, ...]:
        """Return the number of workgroups along each dimension of the grid."""
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

    # -- sizes that only a call tells -------------------------------------------------------------------------

    def _refuse_moved(self) -> None:
        """Raise a ProgramError unless workgroups have tiles side by side from 0 on: with open sizes others could be
        empty.
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
        """True if the tile of workgroup w starts at w * tile."""
        plain = self.low.scope.number(record.attrs["tile"]) * WORKGROUPS[record.attrs["grid"]]
        return "start" not in record.attrs or self.low.scope.expr(record.attrs["start"]) is plain

    def _meanings(self, ids: Sequence[T], value: Callable[[Expr, Mapping[Symbol, Any]], T]) -> dict[Symbol, Any]:
        """Return {symbol: its value} in workgroups of these ids; `value` evaluates an expression."""
        known: dict[Symbol, Any] = dict(self._plain)
        for i, s in enumerate(WORKGROUPS):
            known[s] = ids[i] if i < len(ids) else 0
        for s, e in self.derived.items():
            known[s] = value(e, known)
        moved = {r.attrs["grid"]: value(r.attrs["value"], known) for r in self.reorderings}
        return {**known, **{WORKGROUPS[grid]: workgroup for grid, workgroup in moved.items()}}

    def _first(
        self, record: Op, known: Mapping[Symbol, Any], value: Callable[[Expr, Mapping[Symbol, Any]], Any]
    ) -> Any:
        """Return the first index of a workgroup's part of a dimension; `value` evaluates an expression of `known`
        symbols.
        """
        if "start" in record.attrs:
            return value(record.attrs["start"], known)
        if self.persistent is not None:
            return 0 * known[WORKGROUPS[0]]  # the kernel itself adds where each of its tiles starts
        return known[WORKGROUPS[record.attrs["grid"]]] * self.low.scope.number(record.attrs["tile"])

    def _width(self, record: Op) -> Any:
        """Return the extent of each workgroup's part of a dimension; `scope.reach` notes a part past the dimension's
        end.
        """
        attrs, number = record.attrs, self.low.scope.number
        tile = number(attrs["tile"])
        first = np.asarray(self._first(record, self.numbers, evaluate))
        if first.min() < 0:
            raise ProgramError(f"a workgroup's part of {attrs['dim']} starts at {first.min()}", record.loc)
        if attrs["dim"] in _set_symbols(self.low):  # as wide as it may be: what is past its end does not count
            self.low.scope.reach[attrs["dim"]] = int(first.max()) + tile
            return np.full_like(first, tile)
        size = number(attrs["dim"])
        if attrs.get("primary", True) or size % tile or not is_mapped(self.low.program, attrs["dim"]):
            return np.minimum(first + tile, size) - np.minimum(first, size)
        if int(first.max()) + tile > size:  # it goes along with another dimension, and mappings bring it into range
            self.low.scope.reach[attrs["dim"]] = int(first.max()) + tile
        return np.full_like(first, tile)

    # -- writing ----------------------------------------------------------------------------------------------

    def tasks(self) -> tuple[Range, ...]:
        """Return ranges of ids that may be parallel tasks, the first grid dimension last; () if their order may
        show.
        """
        few = not self.opened and (0 in self.shape or max(self.shape) == 1 or len(self.forms) > MOST)
        if few or not independent(self):
            return ()
        return tuple(Range.of(self.low.writer.fresh(f"w{g}"), 0, n) for g, n in reversed(list(enumerate(self.counts))))

    def write(self, body: Callable[[], None], tasks: tuple[Range, ...] = ()) -> None:
        """Emit the program for all workgroups, in order, or for the ids of a task; `body` emits it for one."""
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
        """Return the ids clamped to the range that workgroups of a kind have, so that their bounds are known."""
        places = np.nonzero(self.kinds == kind)
        limits = [(int(p.min()), int(p.max())) for p in reversed(places)]
        return tuple(maximum(minimum(w, hi), lo) for w, (lo, hi) in zip(ids, limits, strict=True))

    def _is_of_kind(self, ids: tuple[Expr, ...], kind: int) -> Expr:
        """Return the condition that the workgroup of these ids is of a kind."""
        known, conditions = self._meanings(ids, _substituted), []
        for place, record in enumerate(self.constraints):
            if len(set(self.forms[:, place])) > 1:
                first = as_expr(self._first(record, known, _substituted))
                size, tile = self.low.scope.number(record.attrs["dim"]), self.low.scope.number(record.attrs["tile"])
                width, wanted = minimum(first + tile, size) - minimum(first, size), int(self.forms[kind, place])
                conditions += [width >= wanted, width <= wanted]
        return reduce(mul, conditions, as_expr(1))

    def _workgroup(self, body: Callable[[], None], ids: tuple[Expr, ...], kind: int | None = None) -> None:
        """Emit the program for workgroups of one kind; `kind` is None if sizes are open."""
        low, scope = self.low, self.low.scope
        known = self._meanings(ids, _substituted)
        scope.means(known)
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
        """Return the extent of a part that begins at `first`, of a dimension whose size may be open."""
        tile, size = self.low.scope.number(record.attrs["tile"]), self.low.scope.size(record.attrs["dim"])
        return number_or(as_expr(tile if tile == 1 or size % tile in (0, as_expr(0)) else minimum(tile, size - first)))


def _substituted(e: Expr, known: Mapping[Symbol, Any]) -> Expr:
    """Return the expression with known symbols replaced."""
    return Substitution(known)(e)


def _set_symbols(low: Lowering) -> set[Symbol]:
    """Return the symbols that get their value while the program runs."""
    set_ops = [op for op in low.program.walk() if op.name == "set_symbol"]
    return {op.attrs["symbol"] for op in set_ops if not is_given(low, op)}


def is_given(low: Lowering, op: Op) -> bool:
    """True if a set_symbol only repeats a scalar argument whose value is known already."""
    return op.operands[0] in low.program.args and op.attrs["symbol"] in low.scope.symbols


def _refuse_set_symbols(low: Lowering) -> None:
    """Raise a ProgramError if a constraint depends on a value that is known only when the program runs."""
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
    """True if no workgroup accesses memory that another one writes, other than by atomics whose results nothing uses.

    That is so if each dimension of the grid splits a dimension, and every access to written memory has that dimension's
    coordinate at the same memory coordinate.
    """
    low, program = groups.low, groups.low.program
    if groups.persistent is not None or low.reports.logs is not None or is_ordered(program):
        return False
    if not groups.opened and not _have_distinct_ids(groups):
        return False
    cut = [_cut_by(groups, g) for g, count in enumerate(groups.counts) if count not in (0, 1)]
    if None in cut:
        return False
    ops = list(program.walk())
    for arg in program.args:
        writes = [op for op in ops if op.name in WRITES and op.operands[1] is arg]
        reads = [op for op in ops if op.name == "read" and op.operands[0] is arg]
        names = {op.name for op in writes}
        if not writes or ("write" not in names and len(names) == 1 and not reads):
            continue
        if names != {"write"} or not all(d is not None and _are_disjoint(low, d, (*writes, *reads)) for d in cut):
            return False
    return True


def _have_distinct_ids(groups: Workgroups) -> bool:
    """True if no two workgroups have the same ids after the constraints that reorder them."""
    ids = [np.broadcast_to(groups.numbers[WORKGROUPS[g]], groups.shape).reshape(-1) for g in range(len(groups.counts))]
    return len(np.unique(np.stack(ids, axis=1), axis=0)) == len(ids[0])


def _cut_by(groups: Workgroups, grid: int) -> Expr | None:
    """Return the dimension of which workgroups along a grid dimension have tiles side by side; None if there is
    none.
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
    """True if all accesses have the coordinate of `dim` alone at the same memory coordinate, without any other
    symbol.
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
    """Lower `allocate`: memory of one workgroup, filled with NaN (floats) or 0, with its part of each dimension.

    It has whole dimensions if an access has coordinates of its own.
    """
    (memory,) = op.results
    kind: MemoryType = memory.type
    touching = [o for o in low.program.walk() if memory in o.operands[: 2 if o.name in WRITES else 1]]
    whole = any("at" in o.attrs for o in touching)
    parts: list[Part] = [(as_expr(0), low.scope.size(d)) if whole else low.scope.part(d) for d in kind.dims]
    shape = tuple(width for _, width in parts)
    tensor = low.writer.alloc(kind.dtype, [1 if n == 0 else n for n in shape], memory.name or "shared")
    if 0 not in shape:
        poison = formulas.number(nan if kind.dtype.is_float else 0, kind.dtype)
        low.writer.map(tensor, low.writer.axes(shape), poison, Substitution({}))
    low.arguments.hold(memory, tensor, shape, tuple(first for first, _ in parts))
    return ()
