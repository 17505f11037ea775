"""GEMMs instead of matrix-vector products: an operand without a free dimension gets one of extent 1.

    %0 = read %x : bf16[K]                          %0 = read %x over=[u, k] at=[k] : bf16[unit, K]
    %1 = read %w : bf16[N, K]                       %1 = read %w : bf16[N, K]
    %2 = mma %0, %1, %acc : f32[N]                  %2 = mma %0, %1, %acc : f32[unit, N]
    write %2, %y                                    write %2, %y over=[u, n] at=[n]

A machine's MMA has rows and columns. Planners and lowerings then always find both, and none of them needs a rule for a
product that has one row. Everything that is computed from the result has the dimension too, up to what is written.

A product whose operands both lack a free dimension is a dot product: it is summed without an MMA, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.ir.core import Block, Op, Program, TileType, Value, building
from tilewright.ir.printer import program_symbols
from tilewright.ir.tile import ELEMENTWISE, REDUCTIONS, SCANS, TILE, accessed
from tilewright.ir.verifier import verify
from tilewright.rewrite.rewriter import places, without_unused

ALONG = frozenset({*ELEMENTWISE, *REDUCTIONS, "cast", "select", "not_", *SCANS, "topk", "broadcast", "permute"})
"""Operations that do the same along every dimension that they do not name."""
CLONED = frozenset({*ELEMENTWISE, "cast", "select", "not_", "broadcast"})
"""Operations that are done again with the unit dimension, so that a product's operand is still a read."""


def with_unit_rows(program: Program, free: Collection[Op]) -> tuple[Program, Collection[Op], Symbol] | None:
    """Give each matrix-vector MMA a unit dimension (of extent 1) as its missing M or N.

    Return (new program, counterparts of the loops `free` in it, unit dimension); None if there is no matrix-vector MMA.
    Dot products, which lack both M and N, stay. `free` holds the loops that give the same result for every tile size.

    >>> from tilewright.ir.tile import parse_tile
    >>> program = parse_tile('''tile product(%x: global f32[K], %w: global f32[N, K], %y: global f32[N])
    ...   symbols K, N
    ... {
    ...   %0 = fill value=0 : f32[N]
    ...   %1 = read %x : f32[K]
    ...   %2 = read %w : f32[N, K]
    ...   %3 = mma %1, %2, %0 : f32[N]
    ...   write %3, %y
    ... }''')
    >>> for op in with_unit_rows(program, ())[0].walk():
    ...     print(op.name, *(v.type for v in op.results))
    fill f32[unit, N]
    read f32[unit, K]
    read f32[N, K]
    mma f32[unit, N]
    write
    """
    if not any(op.name == "mma" and _lacks_rows(op) for op in program.walk()):
        return None
    used_names, name = {s.name for s in program_symbols(program)}, "unit"
    while name in used_names:
        name += "_"
    unit = symbol(name, 0)
    with building():
        rewrite = _UnitRows(program, unit)
        rewritten = replace(program, body=rewrite.run())
        verify(rewritten)
    return rewritten, {rewrite.loops[op] for op in free if op in rewrite.loops}, unit


def _free_dims(op: Op) -> tuple[int, int]:
    """Return (number of dimensions of M, number of dimensions of N) of the MMA `op`.

    M has the dimensions of the result that only operand A has, N those that only operand B has.
    """
    a, b, acc = (set(v.type.dims) for v in op.operands)
    return len((a - b) & acc), len((b - a) & acc)


def _lacks_rows(op: Op) -> bool:
    """True if the MMA `op` is a matrix-vector product: it lacks M or N, but not both."""
    return (0 in (counts := _free_dims(op))) and counts != (0, 0)


class _UnitRows:
    """Rewrites a program with the dimension `unit`; `units` are the values that have it afterwards.

    `lifts` are values that some operations need with this dimension, and others without it.
    """

    def __init__(self, program: Program, unit: Symbol):
        self.program, self.unit = program, unit
        self.makers = program.makers()
        self.units = self._with_unit()
        self.lifts = self._needed_with_unit()
        self.values: dict[Value, Value] = {}
        self.lifted: dict[Value, Value] = {}
        self.loops: dict[Op, Op] = {}
        self.ops: list[Op] = []

    def run(self) -> Block:
        """Return the body of the rewritten program, in which every matrix-vector MMA has the unit dimension (of extent
        1).

        Operations without used results are left out, unless they write. Call it once: it appends to `self.ops`.
        """
        for op in self.program.body.ops:
            self._op(op)
        return without_unused(Block((), self.ops))

    # -- which values have the dimension -----------------------------------------------------------------------

    def _with_unit(self) -> set[Value]:
        """Return the set of values that get the unit dimension (the added dimension of extent 1).

        They are the results of matrix-vector MMAs, all values computed from them, and values that loops carry with
        them.
        """
        units = {v for op in self.program.walk() if op.name == "mma" and _lacks_rows(op) for v in op.results}
        before = -1
        while before < len(units):
            before = len(units)
            for op in self.program.walk():
                for results, sources in _carried(op):
                    units |= set(results) if not units.isdisjoint((*results, *sources)) else set()
                if op.name in ALONG or (op.name == "mma" and _free_dims(op) != (0, 0)):
                    units |= set(op.results) if not units.isdisjoint(op.operands) else set()
        return units

    def _needed_with_unit(self) -> set[Value]:
        """Return the set of values outside `self.units` that are also needed in a version with the unit dimension.

        They are operands that must have this dimension, and values from which these operands are computed.
        """
        needed: set[Value] = set()
        for op in self.program.walk():
            needed |= set(self._lifted_operands(op))
            needed |= {v for results, sources in _carried(op) if results[0] in self.units for v in sources}
        pending = [v for v in needed if v not in self.units]
        lifts = set(pending)
        while pending:
            maker = self.makers.get(pending.pop())
            if maker is not None and maker.name in CLONED:
                lifts.add(_widest(maker))
                pending.append(_widest(maker))
        return lifts - self.units

    def _lifted_operands(self, op: Op) -> Sequence[Value]:
        """Return the operands of `op` that must have the unit dimension (of extent 1) after the rewrite; () if none
        must.

        Elementwise operations need none, since they broadcast.
        """
        if op.name == "mma" and op.results[0] in self.units:
            a, b, acc = op.operands
            rows, columns = _free_dims(op)
            if rows and columns:  # either operand may have the unit dimension beside its own
                return (acc,) if {a, b} & self.units else (a, acc)
            return (b if rows else a), acc
        if op.name in ALONG - CLONED and not self.units.isdisjoint(op.operands):
            return op.operands
        return ()

    def _dims(self, value: Value) -> tuple[Expr, ...]:
        """Return the dimensions of the tile `value`, with the unit dimension before them."""
        return (self.unit, *value.type.dims)

    # -- operations with it ------------------------------------------------------------------------------------

    def _op(self, op: Op) -> None:
        """Append the rewritten form of `op` to `self.ops`, and record its results in `self.values`.

        If a result is also needed with the unit dimension, append operations that compute this version, and record it
        in `self.lifted`.
        """
        attrs = dict(op.attrs)
        blocks: tuple[Block, ...] = ()
        if op.name in ("iterate", "conditional"):
            operands, blocks = self._nested(op)
        elif op.name == "mma" and op.results[0] in self.units:
            lifted = self._lifted_operands(op)
            plain = self._plain if _lacks_rows(op) else self._of
            operands = tuple(self._lift(v) if any(v is x for x in lifted) else plain(v) for v in op.operands)
        elif op.name in ALONG:
            lifted = self._lifted_operands(op)
            operands = tuple(self._lift(v) if v in lifted else self._of(v) for v in op.operands)
            if "to" in attrs and not self.units.isdisjoint(op.operands):
                attrs["to"] = (self.unit, *attrs["to"])
        elif op.name == "write" and op.operands[0] in self.units and _has_all_coordinates(op):
            operands = (self._of(op.operands[0]), *map(self._plain, op.operands[1:]))
            attrs |= self._access(op)
        else:
            operands = tuple(map(self._plain, op.operands))
        rewritten = self._emit(op, operands, attrs, blocks)
        self.values |= {v: self._in_order(v, new) for v, new in zip(op.results, rewritten.results, strict=True)}
        if op.blocks:
            self.loops[op] = rewritten
        for value in op.results:
            if value in self.lifts:
                self.lifted[value] = self._clone(op, value)

    def _nested(self, op: Op) -> tuple[tuple[Value, ...], tuple[Block, ...]]:
        """Return (rewritten operands, rewritten blocks) of `op`, a loop or conditional.

        A carried value that gets the unit dimension has it as operand, as block argument and in the `yield`.
        """
        has_unit = [v in self.units for v in op.results]
        first = len(op.operands) - len(has_unit)
        starts = [self._lift(v) if unit else self._of(v) for v, unit in zip(op.operands[first:], has_unit, strict=True)]
        operands = (*map(self._plain, op.operands[:first]), *starts)
        (block,) = op.blocks
        args = tuple(Value(v.type, arg.name) for v, arg in zip(starts, block.args, strict=False))
        self.values |= dict(zip(block.args, args, strict=True))
        outer, self.ops = self.ops, []
        for inner in block.ops:
            if inner.name == "yield":
                yielded = [
                    self._lift(v) if unit else self._of(v) for v, unit in zip(inner.operands, has_unit, strict=True)
                ]
                self._emit(inner, tuple(yielded), {}, ())
            else:
                self._op(inner)
        rewritten, self.ops = Block(args, self.ops), outer
        return operands, (rewritten,)

    def _emit(self, op: Op, operands: tuple[Value, ...], attrs: dict[str, Any], blocks: tuple[Block, ...] = ()) -> Op:
        """Append an operation like `op`, with these `operands`, `attrs` ({name: value}) and `blocks`, to `self.ops`;
        return it.

        Its result types are inferred from the operands if the operation has such a rule; otherwise they are those of
        `op`.
        """
        rewritten = Op(op.spec, operands, attrs, (), blocks, op.loc)
        types = op.spec.result_types(rewritten) if op.spec.result_types else tuple(v.type for v in op.results)
        rewritten.results = tuple(Value(t, v.name) for t, v in zip(types, op.results, strict=True))
        self.ops.append(rewritten)
        return rewritten

    def _access(self, op: Op) -> dict[str, Any]:
        """Return {"over": iterators, "at": memory coordinates} of the read or write `op` for a tile with the unit
        dimension first.

        Coordinates do not change: memory does not have this dimension.
        """
        _, over, at = places(op)
        return {"over": (symbol(f"at_{self.unit}", 0), *over), "at": at}

    # -- values with and without it ----------------------------------------------------------------------------

    def _of(self, value: Value) -> Value:
        """Return the value that replaces `value` in the rewritten program; `value` itself if nothing replaces it."""
        return self.values.get(value, value)

    def _lift(self, value: Value) -> Value:
        """Return the version of `value` in the rewritten program with the unit dimension (of extent 1).

        If there is none yet, append a broadcast to `self.ops`, and return its result.
        """
        if value in self.units:
            return self._of(value)
        return self.lifted.get(value) or self._append("broadcast", self._of(value), to=self._dims(value))

    def _plain(self, value: Value) -> Value:
        """Return the version of `value` in the rewritten program without the unit dimension (of extent 1).

        If `value` has this dimension, append a maximum along it to `self.ops`, and return its result.
        """
        rewritten = self._of(value)
        return self._append("max", rewritten, dim=self.unit) if value in self.units else rewritten

    def _clone(self, op: Op, value: Value) -> Value:
        """Append operations to `self.ops` that compute `value`, the result of `op`, with the unit dimension; return the
        new result.

        A fill, read or elementwise operation is done a second time with the unit dimension. Any other result is
        broadcast.
        """
        if op.name == "fill" or (op.name == "read" and _has_all_coordinates(op)):
            attrs = {**op.attrs, **(self._access(op) if op.name == "read" else {})}
            result = Value(TileType(value.type.dtype, self._dims(value)), value.name)
            self.ops.append(Op(op.spec, tuple(map(self._plain, op.operands)), attrs, (result,), (), op.loc))
            return result
        if op.name in CLONED:
            widest = _widest(op)
            operands = tuple(self._lift(v) if v is widest else self._of(v) for v in op.operands)
            to = {"to": (self.unit, *op.attrs["to"])} if "to" in op.attrs else {}
            return self._in_order(value, self._emit(op, operands, {**op.attrs, **to}).result)
        return self._append("broadcast", self._of(value), to=self._dims(value))

    def _in_order(self, value: Value, rewritten: Value) -> Value:
        """Return `rewritten`, a new version of `value`, with the unit dimension first and the others in the order of
        `value`.

        If its dimensions have another order, append a permute to `self.ops`. Without the unit dimension, `rewritten` is
        returned unchanged.
        """
        dims = rewritten.type.dims if isinstance(rewritten.type, TileType) else ()
        if self.unit not in dims or dims == self._dims(value):
            return rewritten
        return self._append("permute", rewritten, to=self._dims(value))

    def _append(self, name: str, operand: Value, **attrs: Any) -> Value:
        """Append the operation called `name` on `operand`, with the attributes `attrs`, to `self.ops`; return its
        result.
        """
        op = Op(TILE.ops[name], (operand,), attrs)
        assert op.spec.result_types is not None
        (kind,) = op.spec.result_types(op)
        op.results = (Value(kind),)
        self.ops.append(op)
        return op.result


def _has_all_coordinates(op: Op) -> bool:
    """True if the read or write `op` states its memory coordinates, or its tile has the same dimensions as memory.

    Otherwise, in a grid program, a workgroup id may give the coordinate of a dimension that the tile lacks.
    """
    memory, kind, _ = accessed(op)
    return "at" in op.attrs or set(kind.dims) == set(memory.type.dims)


def _widest(op: Op) -> Value:
    """Return the operand of `op` that has the most dimensions; the first of several."""
    return max(op.operands, key=lambda v: len(v.type.dims))


def _carried(op: Op) -> Sequence[tuple[tuple[Value, ...], tuple[Value, Value]]]:
    """Return [(values that hold a result, (initial value, yielded value))] for each result of `op`, a loop or
    conditional.

    The values that hold a result are the result itself and, in a loop, the argument of the body. The initial value of a
    conditional is its `else` value. Return [] if `op` is neither, or has no results.
    """
    if op.name not in ("iterate", "conditional") or not op.results:
        return []
    (block,) = op.blocks
    held = list(zip(op.results, block.args, strict=True)) if block.args else [(r,) for r in op.results]
    sources = zip(op.operands[-len(op.results) :], block.ops[-1].operands, strict=True)
    return list(zip(held, sources, strict=True))
