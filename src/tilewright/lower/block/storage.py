"""Storage of a program's values: formulas over memory, registers and arguments."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ProgramError
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import RegisterType
from tilewright.lower.block.lazy_tiles import Load, Parts, Tile, load, most, only_load
from tilewright.lower.block.scope import TileScope
from tilewright.lower.block.writer import BlockWriter


class Storage:
    """The Tile of each value of a tile program, and the tensors that hold computed values."""

    def __init__(self, scope: TileScope, writer: BlockWriter):
        self.scope, self.writer = scope, writer
        self.env: ChainMap[Value, Tile] = ChainMap()
        """The Tile of each value of the tile program."""
        self.sums: dict[Value, tuple[Expr, ...]] = {}
        """{register tensor: the dimensions that it has}; the value's current part has extent 1 along all others.
        An accumulator tile has M and N."""
        self.holds_sums = True
        """True if registers hold an accumulator tile of every product at once; else finished tiles go to memory."""
        self.padded: dict[Value, tuple[Expr, ...]] = {}
        """{accumulator in memory that is padded to whole atoms: its extents without padding}."""
        self.marks_of_load: dict[Load, tuple[bool, ...]] = {}
        """{load that MMAs do in place: for each coordinate, True if it may be out of bounds}."""
        self.early: dict[Op, Tile] = {}
        """{read in a loop: its Tile}, for reads that were hoisted out of the loop for all of its iterations."""
        self.carried_tensors: dict[Value, Value] = {}
        """{value: its tensor} of loop-carried values, and of results that were written over them in the same tensor."""
        self.shared_loads: dict[Op, str] = {}
        """{copy from an argument to shared memory: its kind}: "ring" for K steps, "halo" for halo tiles, "start" for
        operands that are loaded before the first task."""
        self.shared_stores: list[Op] = []
        """Copies of results from shared memory to arguments."""

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Context manager: at its end, Tiles that were added to `self.env` within it are forgotten, also after an
        error.
        """
        before, self.env = self.env, self.env.new_child()
        try:
            yield
        finally:
            self.env = before

    def axes(
        self, dims: tuple[Expr, ...], parts: Parts, tensor: Value | None = None
    ) -> tuple[tuple[Symbol, ...], Substitution]:
        """Return (iterators, substitution) for an operation over a tile with the dimensions `dims`; the substitution
        replaces each dimension's coordinate symbol by an expression of the iterators.

        `parts` is {dimension: (first index, extent)}, the part that the operation covers. For M with (128, 32), an
        iterator i0 runs over 0..31, and M's coordinate becomes 128 + i0. If `tensor` is in registers, it may lack some
        of `dims`: these get no iterator, and their coordinate becomes the first index.
        """
        held = dims if tensor is None else self.sums.get(tensor, dims)
        over = self.writer.axes([parts[d][1] for d in held])
        along = dict(zip(held, over, strict=True))
        return over, Substitution({self.scope.coordinate(d): parts[d][0] + along.get(d, as_expr(0)) for d in dims})

    def viewed(self, source: Load, dims: tuple[Expr, ...], parts: Parts) -> Value:
        """Emit a view of the elements that `source` loads for the dimensions `dims`, and return the view.

        `parts` is {dimension: (first index, extent)}, the part that the view has. If the tensor of `source` has just
        these elements in the same order, emit nothing, and return that tensor.
        """
        return self.writer.viewed(source, *self.axes(dims, parts))

    def held(self, tensor: Value, dims: tuple[Expr, ...], parts: Parts) -> Tile:
        """Return a lazy Tile over the dimensions `dims` that loads its elements from `tensor`; emit nothing.

        `parts` is {dimension: (first index, extent)}, the part that the tensor has: with (128, 32), index 130 loads
        element 2. If the tensor is in registers that lack a dimension, all indices along that dimension load the same
        element.
        """
        at = tuple(self.scope.coordinate(d) - parts[d][0] for d in self.sums.get(tensor, dims))
        return Tile(tensor.type.dtype, dims, parts, load(tensor, *at))

    def put(
        self, tensor: Value, dims: tuple[Expr, ...], parts: Parts, formula: Formula, whole: Parts | None = None
    ) -> None:
        """Emit the computation of `formula`, the element of a tile over the dimensions `dims`, into `tensor`.

        `parts` is {dimension: (first index, extent)}, the part to compute. `whole` is the same for the part that the
        tensor has; None: `parts`. Raise a ProgramError if `tensor` is in registers and has other elements than `parts`.
        """
        over, images = self.axes(dims, parts, tensor)
        first = {d: parts[d][0] - whole[d][0] for d in dims} if whole is not None else {}
        held = zip(self.sums.get(tensor, dims), over, strict=True)
        at = [(first.get(d, as_expr(0)) + i, False) for d, i in held]
        target = self.writer.view(tensor, over, at)  # a view: the tensor may be padded
        if target is not tensor and isinstance(tensor.type, RegisterType):
            raise ProgramError(f"registers %{tensor.name} are written in parts, which no atom's layout has")
        self.writer.map(target, over, formula, images)

    def stored(
        self,
        tile: Tile,
        dims: tuple[Expr, ...] | None = None,
        as_type: tuple[DType, Formula] | None = None,
        name: str | None = None,
    ) -> Tile:
        """Emit the computation of `tile` into a new tensor, in memory or registers; return a Tile that loads from that
        tensor.

        `dims` is the order of dimensions in the tensor; None: as in the tile. `as_type` is (element type, formula) to
        store instead of the tile's. `name` is the tensor's name. If an extent is 0, nothing is emitted, and the formula
        of the result is the number 0.
        """
        dims = tile.dims if dims is None else dims
        dtype, formula = (tile.dtype, tile.formula) if as_type is None else as_type
        parts = {d: tile.parts[d] for d in dims}
        sizes = tuple(parts[d][1] for d in dims)
        if 0 in sizes:  # there are no elements to store
            return Tile(dtype, dims, parts, Formula.cast(dtype, Formula.number(0)))
        tensor = self.room(dtype, dims, parts, f"v{name}" if name is not None and name.isdigit() else name or "v")
        self.put(tensor, dims, parts, formula)
        return self.held(tensor, dims, parts)

    def room(self, dtype: DType, dims: tuple[Expr, ...], parts: Parts, name: str) -> Value:
        """Emit the allocation of a tensor called `name` for a value of type `dtype` over the dimensions `dims`; return
        the tensor.

        `parts` is {dimension: (first index, extent)}. The tensor is in registers if values of this shape are
        distributed over lanes as accumulators are (`self.writer.fragment_layout`), else in memory. For registers,
        `self.sums[tensor]` is set to the dimensions that they have.
        """
        axes = None if self.writer.fragment_layout is None else self.writer.fragment_layout.axes(dims, parts)
        if axes is None:
            return self.writer.alloc(dtype, [parts[d][1] for d in dims], name)
        registers = self.writer.distributed(dtype, [most(parts[d][1]) for d in axes], name)
        self.sums[registers] = axes
        return registers

    def room_of(self, tensor: Value) -> tuple[Expr, ...]:
        """Return the extents of `tensor` without padding to whole atoms: the recorded ones of a padded accumulator,
        else its shape.
        """
        return self.padded.get(tensor) or tensor.type.shape

    def load_of(self, tile: Tile, dtype: DType | None = None) -> tuple[Tile, Load]:
        """Return (Tile, Load): a tile with the elements of `tile` whose formula is one load, and this load.

        `tile` is returned unchanged if its formula is one load already, and `dtype` is None or its element type.
        Otherwise code is emitted that computes it, converted to `dtype`, into a new tensor. `tile` must have elements
        then.
        """
        source = only_load(tile.formula)
        if source is not None and dtype in (None, tile.dtype):
            return tile, source
        kind = dtype or tile.dtype
        stored = self.stored(tile, as_type=(kind, formulas.converted(tile.formula, tile.dtype, kind)))
        stored_load = only_load(stored.formula)
        assert stored_load is not None
        return stored, stored_load
