"""Storage of a program's values: formulas over memory, registers, arguments."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.passes.tile.scope import TileScope
from tilewright.passes.tile.values import Load, Parts, Tile, load, most, only_load
from tilewright.passes.tile.writer import BlockWriter


class Storage:
    """The Tiles of a tile program's values, and the tensors that hold them."""

    def __init__(self, scope: TileScope, writer: BlockWriter):
        self.scope, self.writer = scope, writer
        self.env: ChainMap[Value, Tile] = ChainMap()
        """The Tile of each value of the tile program."""
        self.sums: dict[Value, tuple[Expr, ...]] = {}
        """Tensors in registers, and the dimensions they hold: a block of a product's sum has M and N; of others the
        current part is one wide."""
        self.holds_sums = True
        """True if registers hold an accumulator tile of every product at once; else finished tiles go to memory."""
        self.padded: dict[Value, tuple[Expr, ...]] = {}
        """Sums in memory that are longer than what they hold, because atoms are whole, and how wide that is."""
        self.loose: dict[Load, tuple[bool, ...]] = {}
        """Loads that products read where they lie, though some of their coordinates may be out of bounds: which may."""
        self.early: dict[Op, Tile] = {}
        """Reads of a loop that are done before it, for all of its rounds."""
        self.going_on: dict[Value, Value] = {}
        """Values that a loop carries, and sums that went on in their tensor: nothing else has looked at it."""
        self.brought: dict[Op, str] = {}
        """Copies of tiles from arguments to shared memory: each step of a product (`ring`), halo tiles (`halo`), or
        what is brought before the first task (`start`)."""
        self.taken: list[Op] = []
        """Copies of results from shared memory to arguments."""

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Forget values defined within this context at its end."""
        before, self.env = self.env, self.env.new_child()
        try:
            yield
        finally:
            self.env = before

    def axes(
        self, dims: tuple[Expr, ...], parts: Parts, tensor: Value | None = None
    ) -> tuple[tuple[Symbol, ...], Substitution]:
        """Return (axes of an operation over these parts, the substitution of coordinates by them).

        If `tensor` is in registers, the axes are those it holds; its other dimensions have one element.
        """
        held = dims if tensor is None else self.sums.get(tensor, dims)
        over = self.writer.axes([parts[d][1] for d in held])
        along = dict(zip(held, over, strict=True))
        return over, Substitution({self.scope.coordinate(d): parts[d][0] + along.get(d, as_expr(0)) for d in dims})

    def viewed(self, source: Load, dims: tuple[Expr, ...], parts: Parts) -> Value:
        """Return a view of a load's elements over these parts."""
        return self.writer.viewed(source, *self.axes(dims, parts))

    def held(self, tensor: Value, dims: tuple[Expr, ...], parts: Parts) -> Tile:
        """Return the Tile that a tensor over these parts holds."""
        at = tuple(self.scope.coordinate(d) - parts[d][0] for d in self.sums.get(tensor, dims))
        return Tile(tensor.type.dtype, dims, parts, load(tensor, *at))

    def put(
        self, tensor: Value, dims: tuple[Expr, ...], parts: Parts, formula: Formula, whole: Parts | None = None
    ) -> None:
        """Emit the computation of a formula into a tensor over these parts; `whole`: the parts that the tensor has."""
        over, images = self.axes(dims, parts, tensor)
        first = {d: parts[d][0] - whole[d][0] for d in dims} if whole is not None else {}
        held = zip(self.sums.get(tensor, dims), over, strict=True)
        at = [(first.get(d, as_expr(0)) + i, False) for d, i in held]
        self.writer.map(self.writer.view(tensor, over, at), over, formula, images)  # it may be longer: atoms are whole

    def stored(
        self,
        tile: Tile,
        dims: tuple[Expr, ...] | None = None,
        as_type: tuple[DType, Formula] | None = None,
        name: str | None = None,
    ) -> Tile:
        """Return the tile stored in memory or registers, with its dimensions in the order `dims`, as type and formula
        `as_type`.
        """
        dims = tile.dims if dims is None else dims
        dtype, formula = (tile.dtype, tile.formula) if as_type is None else as_type
        parts = {d: tile.parts[d] for d in dims}
        sizes = tuple(parts[d][1] for d in dims)
        if 0 in sizes:  # nobody will look
            return Tile(dtype, dims, parts, Formula.cast(dtype, Formula.number(0)))
        tensor = self.room(dtype, dims, parts, f"v{name}" if name is not None and name.isdigit() else name or "v")
        self.put(tensor, dims, parts, formula)
        return self.held(tensor, dims, parts)

    def room(self, dtype: DType, dims: tuple[Expr, ...], parts: Parts, name: str) -> Value:
        """Return a new tensor for a value over these parts: registers if the value is distributed over lanes, else
        memory.
        """
        axes = None if self.writer.home is None else self.writer.home.axes(dims, parts)
        if axes is None:
            return self.writer.alloc(dtype, [parts[d][1] for d in dims], name)
        registers = self.writer.dealt(dtype, [most(parts[d][1]) for d in axes], name)
        self.sums[registers] = axes
        return registers

    def room_of(self, tensor: Value) -> tuple[Expr, ...]:
        """Return the extents that a tensor may hold along each dimension, without padding."""
        return self.padded.get(tensor) or tensor.type.shape

    def load_of(self, tile: Tile, dtype: DType | None = None) -> tuple[Tile, Load]:
        """Return (the tile as one load, this Load), stored first if it is computed, or has another type than
        `dtype`.
        """
        source = only_load(tile.formula)
        if source is not None and dtype in (None, tile.dtype):
            return tile, source
        kind = dtype or tile.dtype
        stored = self.stored(tile, as_type=(kind, formulas.converted(tile.formula, tile.dtype, kind)))
        stored_load = only_load(stored.formula)
        assert stored_load is not None
        return stored, stored_load
