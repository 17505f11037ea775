"""One execution of a program: values, memory, what symbols stand for, which part of each dimension is current."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.algebra.expr_use import Substitution, evaluate
from tilewright.errors import (
    DivisionByZero,
    ExecutionError,
    ExpressionError,
    NotExact,
    OutOfRange,
    ProgramError,
    UnboundSymbol,
)
from tilewright.interpret.tiles import Array, TileValue, filled, spread
from tilewright.ir.core import Block, Op, Program, TileType, Value
from tilewright.ir.printer import op_text
from tilewright.ir.tile import is_mapped
from tilewright.lang.symbols import WORKGROUPS

Handler: TypeAlias = "Callable[[Run, Op], tuple[TileValue, ...]]"


@dataclass(eq=False)
class Run:
    """One execution: values, memory, what symbols stand for, and which part of each dimension is current."""

    program: Program
    handlers: Mapping[str, Handler]
    symbols: dict[Symbol, int]
    logs: dict[str, Any] | None
    derived: dict[Symbol, Expr]
    values: dict[Value, TileValue] = field(default_factory=dict)
    memory: dict[Value, Array] = field(default_factory=dict)
    parts: dict[Expr, tuple[int, int]] = field(default_factory=dict)
    """Dimensions of which only a part is current: first coordinate, one past the last."""
    bound: dict[Symbol, TileValue] = field(default_factory=dict)
    """What set_symbol made symbols stand for."""
    iteration: dict[Expr, int] = field(default_factory=dict)
    """How many tiles of each loop around have been run before."""
    walking: set[Expr] = field(default_factory=set)
    """The axes of the while loops around."""
    masks: list[TileValue] = field(default_factory=list)
    """The conditions of the conditionals around."""
    given: dict[Symbol, TileValue] = field(default_factory=dict)
    """What scalar arguments make symbols stand for, in every workgroup."""
    lenient: bool = False
    """Whether symbols that set_symbol sets may have values outside their range, as in Wave."""

    def number(self, e: Expr, at: Op | None = None) -> int:
        """An expression that has one value now."""
        try:
            known: dict[Any, Any] = dict(self.symbols)
            for s, tile in self.bound.items():
                if s in e.symbols:
                    known[s] = self.uniform(tile, str(s), at)
            return int(self.evaluate(e, known))
        except ExpressionError as fault:
            raise _run_time_fault(e, fault, at) from None

    def evaluate(self, e: Expr, values: Mapping[Any, Any]) -> Any:
        """The value of an expression; of symbols that were set, ranges are looked after only where that is wanted."""
        if self.lenient:
            loose = {s: symbol(s.name) for s in e.symbols if s in self.bound and s in values}
            if loose:
                return evaluate(Substitution(loose)(e), {**values, **{loose[s]: values[s] for s in loose}})
        return evaluate(e, values)

    def uniform(self, tile: TileValue, what: str, at: Op | None) -> Any:
        """The one value of a tile whose elements are all alike."""
        flat = tile.array.reshape(-1)
        if flat.size == 0 or not np.all(flat == flat[0]):
            raise ExecutionError(
                f"{what} must have one value here, but differs from element to element", at.loc if at else None
            )
        return flat[0].item()

    def part(self, dim: Expr) -> tuple[int, int]:
        """The current coordinates of a dimension: first, and one past the last."""
        current = self.bound.get(dim) if isinstance(dim, Symbol) else None
        if current is not None and dim in self.walking:  # the axis of a while loop is one wide
            place = int(self.uniform(current, str(dim), None))
            return place, place + 1
        found = self.parts.get(dim)
        if found is not None:
            if current is not None:  # set_symbol gave the dimension a size: it ends there
                size = int(self.uniform(current, str(dim), None))
                return min(found[0], size), min(found[1], size)
            return found
        cut = [s for s in dim.symbols if s in self.parts]
        if cut and not isinstance(dim, Symbol):
            (s,) = cut
            known: dict[Any, Any] = dict(self.symbols)
            first, last = self.parts[s]
            low = evaluate(dim, {**known, s: first})
            return int(low), int(evaluate(dim, {**known, s: last}))
        return 0, self.number(dim)

    def starts_and_shape(self, dims: tuple[Expr, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """First coordinates and widths of the current part of these dimensions."""
        parts = [self.part(d) for d in dims]
        return tuple(first for first, _ in parts), tuple(max(0, last - first) for first, last in parts)

    def workgroup(self, ids: tuple[int, ...] | None, together: Mapping[int, int]) -> None:
        """Makes one workgroup current: its ids, and its part of every constrained dimension.

        Along dimensions of the grid that `together` names, so many workgroups from this one on are current as one.
        """
        self.parts.clear()
        self.bound = dict(self.given)
        if ids is None:
            return
        for i, s in enumerate(WORKGROUPS):
            self.symbols[s] = ids[i] if i < len(ids) else 0
        for s, e in self.derived.items():
            self.symbols[s] = self.number(e)
        reordered = {
            r.attrs["grid"]: self.number(r.attrs["value"]) for r in self.program.records if r.name == "reordering"
        }
        for grid, value in reordered.items():
            self.symbols[WORKGROUPS[grid]] = value
        for record in self.program.records:
            if record.name != "workgroup":
                continue
            attrs = record.attrs
            tile = self.number(attrs["tile"])
            own = reordered.get(attrs["grid"], ids[attrs["grid"]] if attrs["grid"] < len(ids) else 0)
            if any(r.name == "grid" for r in self.program.records):
                own = 0  # the kernel itself adds where each of its tiles starts
            first = self.number(attrs["start"]) if "start" in attrs else own * tile
            if not attrs["dim"].symbols <= self.symbols.keys() | self.bound.keys():
                self.parts[attrs["dim"]] = (first, first + tile)  # set_symbol will say where it ends
                continue
            size = self.number(attrs["dim"])
            tile *= together.get(attrs["grid"], 1)
            if attrs.get("primary", True) or size % tile or not is_mapped(self.program, attrs["dim"]):
                self.parts[attrs["dim"]] = (min(first, size), min(first + tile, size))
            else:  # it goes along with another dimension, and mappings bring it into range
                self.parts[attrs["dim"]] = (first, first + tile)
        self.memory = {v: array for v, array in self.memory.items() if v.type.space != "shared"}

    def block(self, block: Block) -> tuple[TileValue, ...]:
        """Runs the operations; gives what the block yields."""
        for op in block.ops:
            if op.name == "yield":
                return tuple(self.values[v] for v in op.operands)
            try:
                results = self.op(op)
            except ProgramError:
                raise
            except (ArithmeticError, IndexError, ValueError, FloatingPointError) as fault:
                raise ExecutionError(f"{op_text(op)}: {fault}", op.loc) from fault
            for value, result in zip(op.results, results, strict=op.name != "allocate"):  # memory is no tile
                self.values[value] = result
        return ()

    def op(self, op: Op) -> tuple[TileValue, ...]:
        """What the operation makes."""
        with np.errstate(all="ignore"):
            return self.handlers[op.name](self, op)

    def tiles(self, op: Op) -> list[TileValue]:
        """The operands."""
        return [self.values[v] for v in op.operands]

    def made(self, kind: TileType, parts: dict[Expr, tuple[int, int]], array: Array) -> TileValue:
        """A new tile over these parts; the array broadcasts to them."""
        shape = tuple(parts[d][1] - parts[d][0] for d in kind.dims)
        return TileValue(kind.dtype, kind.dims, tuple(parts[d][0] for d in kind.dims), np.broadcast_to(array, shape))

    def filled(self, kind: TileType, parts: dict[Expr, tuple[int, int]], number: Array) -> TileValue:
        """A new tile of one number over these parts."""
        shape = tuple(parts[d][1] - parts[d][0] for d in kind.dims)
        return filled(kind, tuple(parts[d][0] for d in kind.dims), shape, number)

    def conform(self, tile: TileValue, dims: tuple[Expr, ...], at: Op) -> TileValue:
        """The tile over other dimensions: those left out or added must be one coordinate wide now."""
        if set(tile.dims) == set(dims):
            return tile
        array, wide = tile.data, tile.wide
        kept = [i for i, d in enumerate(tile.dims) if d in dims]
        for i in reversed(range(len(tile.dims))):
            if i not in kept:
                if array.shape[i] != 1:
                    raise ExecutionError(
                        f"{at.name}: {tile.dims[i]} is left out, but is {array.shape[i]} wide here", at.loc
                    )
                array = array.squeeze(i)
                wide = None if wide is None else wide.squeeze(i)
        added = [d for d in dims if d not in tile.dims]
        starts = [tile.starts[i] for i in kept]
        for d in added:
            first, last = self.part(d)
            if last - first != 1:
                raise ExecutionError(f"{at.name}: {d} is added, but is {last - first} wide here", at.loc)
            starts.append(first)
        shape = (*array.shape, *[1] * len(added))
        found = (*(tile.dims[i] for i in kept), *added)
        return TileValue(
            tile.dtype, found, tuple(starts), array.reshape(shape), None if wide is None else wide.reshape(shape)
        )

    def on_grid(
        self,
        e: Expr,
        dims: tuple[Expr, ...],
        parts: Mapping[Expr, tuple[int, int]],
        known: Mapping[Symbol, Any],
        at: Op,
    ) -> Array:
        """An expression at every element of a tile over `dims`; symbols set from tiles take their element's value."""
        values: dict[Any, Any] = {**self.symbols, **known}
        for s in e.symbols:
            tile = self.bound.get(s)
            if tile is None or s in known:
                continue
            if all(d in dims for d in tile.dims):
                values[s] = spread(tile, dims, dict(parts), tile.array).astype(np.int64)
            else:
                values[s] = self.uniform(tile, str(s), at)
        try:
            return np.asarray(self.evaluate(e, values))
        except ExpressionError as fault:
            raise _run_time_fault(e, fault, at) from None

    @contextmanager
    def masked_by(self, condition: TileValue) -> Iterator[None]:
        """Within it, writes happen only where the condition holds."""
        self.masks.append(condition)
        try:
            yield
        finally:
            self.masks.pop()


def _run_time_fault(e: Expr, fault: ExpressionError, at: Op | None) -> ProgramError:
    """Why an expression has no value now: a symbol without one, or with one that it must not have."""
    kind = ExecutionError if isinstance(fault, OutOfRange | NotExact | DivisionByZero) else UnboundSymbol
    why = str(fault)
    return kind(why if why.startswith(f"{e}: ") else f"{e}: {why}", at.loc if at else None)
