"""The state of one execution of a tile program: values, memory, symbols, and the current part of each dimension."""

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
    """One execution of a tile program: values, memory, symbols, and the current part of each dimension."""

    program: Program
    handlers: Mapping[str, Handler]
    symbols: dict[Symbol, int]
    logs: dict[str, Any] | None
    derived: dict[Symbol, Expr]
    values: dict[Value, TileValue] = field(default_factory=dict)
    memory: dict[Value, Array] = field(default_factory=dict)
    parts: dict[Expr, tuple[int, int]] = field(default_factory=dict)
    """The current part of each restricted dimension: (first coordinate, one past the last)."""
    bound: dict[Symbol, TileValue] = field(default_factory=dict)
    """The tiles to which set_symbol bound symbols."""
    iteration: dict[Expr, int] = field(default_factory=dict)
    """The current iteration number of each enclosing loop, by axis."""
    walking: set[Expr] = field(default_factory=set)
    """The axes of the enclosing while loops."""
    masks: list[TileValue] = field(default_factory=list)
    """The conditions of the enclosing conditionals."""
    given: dict[Symbol, TileValue] = field(default_factory=dict)
    """The symbols that scalar arguments bind, for every workgroup."""
    lenient: bool = False
    """Whether symbols that set_symbol sets may have values outside their range, as in Wave."""

    def number(self, e: Expr, at: Op | None = None) -> int:
        """Return the current value of the integer expression `e`.

        Raise UnboundSymbol if a symbol has no value. Raise ExecutionError if a symbol has different values for
        different elements, or if the value is not allowed (a division by 0, for example). The error is located at the
        operation `at`.
        """
        try:
            symbol_values: dict[Any, Any] = dict(self.symbols)
            for s, tile in self.bound.items():
                if s in e.symbols:
                    symbol_values[s] = self.uniform(tile, str(s), at)
            return int(self.evaluate(e, symbol_values))
        except ExpressionError as fault:
            raise _run_time_fault(e, fault, at) from None

    def evaluate(self, e: Expr, values: Mapping[Any, Any]) -> Any:
        """Return the value of the expression `e` for `values`, {symbol: int or array}. Raise an ExpressionError if it
        cannot be evaluated.

        If `self.lenient` is set, a symbol that set_symbol bound may have a value outside its range.
        """
        if self.lenient:
            without_range = {s: symbol(s.name) for s in e.symbols if s in self.bound and s in values}
            if without_range:
                return evaluate(
                    Substitution(without_range)(e), {**values, **{without_range[s]: values[s] for s in without_range}}
                )
        return evaluate(e, values)

    def uniform(self, tile: TileValue, what: str, at: Op | None) -> Any:
        """Return the value that all elements of `tile` have, as a Python number.

        Raise ExecutionError at the operation `at` if elements differ or there are none; `what` names the tile in the
        message.
        """
        flat = tile.array.reshape(-1)
        if flat.size == 0 or not np.all(flat == flat[0]):
            raise ExecutionError(
                f"{what} must have one value here, but differs from element to element", at.loc if at else None
            )
        return flat[0].item()

    def part(self, dim: Expr) -> tuple[int, int]:
        """Return (first, end): the coordinates of the dimension `dim` to which loops and the workgroup restrict it now;
        `end` is one past the last.

        Without a restriction they are (0, extent). The axis of a while loop has only its current coordinate. A size
        that set_symbol gave to a restricted dimension limits both numbers. An expression of a restricted symbol, such
        as K/32, is evaluated at the limits of the symbol. Raise UnboundSymbol if the extent has no value.
        """
        bound_value = self.bound.get(dim) if isinstance(dim, Symbol) else None
        if bound_value is not None and dim in self.walking:  # the axis of a while loop is one wide
            position = int(self.uniform(bound_value, str(dim), None))
            return position, position + 1
        current_part = self.parts.get(dim)
        if current_part is not None:
            if bound_value is not None:  # set_symbol gave the dimension a size: it ends there
                size = int(self.uniform(bound_value, str(dim), None))
                return min(current_part[0], size), min(current_part[1], size)
            return current_part
        restricted = [s for s in dim.symbols if s in self.parts]
        if restricted and not isinstance(dim, Symbol):
            (s,) = restricted
            symbol_values: dict[Any, Any] = dict(self.symbols)
            first, last = self.parts[s]
            low = evaluate(dim, {**symbol_values, s: first})
            return int(low), int(evaluate(dim, {**symbol_values, s: last}))
        return 0, self.number(dim)

    def starts_and_shape(self, dims: tuple[Expr, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (starts, shape): the first coordinate and the number of coordinates of each of `dims` now, as two
        tuples.

        Loops and the workgroup restrict the dimensions; see `part`.
        """
        parts = [self.part(d) for d in dims]
        return tuple(first for first, _ in parts), tuple(max(0, last - first) for first, last in parts)

    def workgroup(self, ids: tuple[int, ...] | None, merged: Mapping[int, int]) -> None:
        """Make the workgroup `ids` current: set the symbols of its ids, and restrict each constrained dimension to its
        tile.

        Shared memory of the previous workgroup is removed. `merged` is {grid dimension: number of workgroups that run
        as one}; a dimension without an entry has 1. If `ids` is None, the program has no workgroups, and nothing is
        restricted.
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
            workgroup_id = reordered.get(attrs["grid"], ids[attrs["grid"]] if attrs["grid"] < len(ids) else 0)
            if any(r.name == "grid" for r in self.program.records):
                workgroup_id = 0  # the kernel itself adds where each of its tiles starts
            first = self.number(attrs["start"]) if "start" in attrs else workgroup_id * tile
            if not attrs["dim"].symbols <= self.symbols.keys() | self.bound.keys():
                self.parts[attrs["dim"]] = (first, first + tile)  # set_symbol will say where it ends
                continue
            size = self.number(attrs["dim"])
            tile *= merged.get(attrs["grid"], 1)
            if attrs.get("primary", True) or size % tile or not is_mapped(self.program, attrs["dim"]):
                self.parts[attrs["dim"]] = (min(first, size), min(first + tile, size))
            else:  # it goes along with another dimension, and mappings bring it into range
                self.parts[attrs["dim"]] = (first, first + tile)
        self.memory = {v: array for v, array in self.memory.items() if v.type.space != "shared"}

    def block(self, block: Block) -> tuple[TileValue, ...]:
        """Execute the operations of `block`, store their results in `self.values`, and return the values that the block
        yields; () if it yields none.

        Errors of numpy and of Python's arithmetic become an ExecutionError at the operation's line.
        """
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
        """Execute the operation `op` by its handler and return its results, a tuple. The results are not stored."""
        with np.errstate(all="ignore"):
            return self.handlers[op.name](self, op)

    def tiles(self, op: Op) -> list[TileValue]:
        """Return a list of the tiles to which the operands of `op` are bound."""
        return [self.values[v] for v in op.operands]

    def new_tile(self, kind: TileType, parts: dict[Expr, tuple[int, int]], array: Array) -> TileValue:
        """Return a new tile of type `kind` with the elements `array`, which broadcasts to the tile's shape.

        The tile covers `parts`, {dimension: (first, end)}.
        """
        shape = tuple(parts[d][1] - parts[d][0] for d in kind.dims)
        return TileValue(kind.dtype, kind.dims, tuple(parts[d][0] for d in kind.dims), np.broadcast_to(array, shape))

    def filled(self, kind: TileType, parts: dict[Expr, tuple[int, int]], number: Array) -> TileValue:
        """Return a new tile of type `kind` in which every element is `number`; it covers `parts`, {dimension: (first,
        end)}.
        """
        shape = tuple(parts[d][1] - parts[d][0] for d in kind.dims)
        return filled(kind, tuple(parts[d][0] for d in kind.dims), shape, number)

    def conform(self, tile: TileValue, dims: tuple[Expr, ...], at: Op) -> TileValue:
        """Return `tile` with the dimensions `dims`: other dimensions are dropped, missing dimensions are added. If
        `tile` has exactly these dimensions, in any order, return it unchanged.

        Raise ExecutionError at the operation `at` if a dimension that is dropped or added has several coordinates now.
        """
        if set(tile.dims) == set(dims):
            return tile
        array, wide = tile.data, tile.wide
        kept_axes = [i for i, d in enumerate(tile.dims) if d in dims]
        for i in reversed(range(len(tile.dims))):
            if i not in kept_axes:
                if array.shape[i] != 1:
                    raise ExecutionError(
                        f"{at.name}: {tile.dims[i]} is left out, but is {array.shape[i]} wide here", at.loc
                    )
                array = array.squeeze(i)
                wide = None if wide is None else wide.squeeze(i)
        added = [d for d in dims if d not in tile.dims]
        starts = [tile.starts[i] for i in kept_axes]
        for d in added:
            first, last = self.part(d)
            if last - first != 1:
                raise ExecutionError(f"{at.name}: {d} is added, but is {last - first} wide here", at.loc)
            starts.append(first)
        shape = (*array.shape, *[1] * len(added))
        new_dims = (*(tile.dims[i] for i in kept_axes), *added)
        return TileValue(
            tile.dtype, new_dims, tuple(starts), array.reshape(shape), None if wide is None else wide.reshape(shape)
        )

    def on_grid(
        self,
        e: Expr,
        dims: tuple[Expr, ...],
        parts: Mapping[Expr, tuple[int, int]],
        known: Mapping[Symbol, Any],
        at: Op,
    ) -> Array:
        """Return the value of the expression `e` for every element of a tile, as an array that broadcasts over the
        tile.

        The tile covers `parts`, {dimension: (first, end)}, of `dims`. `known` is {symbol: value or array}. A symbol
        that set_symbol bound to a tile has the value of that tile's element. Raise UnboundSymbol if a value is missing
        and ExecutionError if a value is not allowed, located at the operation `at`.
        """
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
        """Context manager: inside it, writes happen only where the bool tile `condition` is True."""
        self.masks.append(condition)
        try:
            yield
        finally:
            self.masks.pop()


def _run_time_fault(e: Expr, fault: ExpressionError, at: Op | None) -> ProgramError:
    """Return the error to raise at the operation `at` if its expression `e` could not be evaluated because of `fault`.

    It is an ExecutionError if a value is not allowed (a division by 0, for example), otherwise an UnboundSymbol.
    """
    kind = ExecutionError if isinstance(fault, OutOfRange | NotExact | DivisionByZero) else UnboundSymbol
    text = str(fault)
    return kind(text if text.startswith(f"{e}: ") else f"{e}: {text}", at.loc if at else None)
