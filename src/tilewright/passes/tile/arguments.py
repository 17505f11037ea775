"""The arguments of a block program: what stands for those of the tile program, and what is packed before it runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilewright.algebra.expr import Expr, as_expr
from tilewright.ir.core import MemoryType, Program, Value
from tilewright.ir.in_place import is_changed_in_place
from tilewright.ir.tensors import TensorType
from tilewright.passes.places import Size
from tilewright.passes.tile.orders import Order, Pack
from tilewright.passes.tile.roles import role_of
from tilewright.passes.tile.scope import TileScope
from tilewright.passes.tile.values import Load
from tilewright.passes.tile.writer import BlockWriter
from tilewright.plan.tiled import Walk


class ArgumentTensors:
    """The tensors of the block program for the arguments of a tile program, and for memory that it allocates.

    `written` are arguments that are known to be written completely, `walks` dimensions that run along image lines. In a
    grid program (`in_grid`) an argument may be written in part.
    """

    def __init__(
        self,
        program: Program,
        shapes: Mapping[Value, tuple[Size, ...]],
        written: Collection[Value],
        walks: Mapping[Expr, Walk],
        in_grid: bool,
    ):
        self.program, self.shapes = program, dict(shapes)
        self.written, self.walks, self.in_grid = set(written), walks, in_grid
        self.in_place = {a for a in program.args if not in_grid and is_changed_in_place(program, a)}
        """Arguments whose elements are read where they are written, and need not be kept before that."""
        self.origins: dict[Value, tuple[Expr, ...]] = {}
        """Coordinates of the first element of memory that each workgroup allocates."""
        self.packs: dict[tuple[Load, tuple[Expr, ...], Order], Pack] = {}
        """Arguments that are packed before the program runs, by what is read, over which dimensions, in which order."""
        self._tensors: dict[Value, Value] = {}

    def tensor(self, arg: Value, scope: TileScope, writer: BlockWriter) -> Value:
        """Return the block program's tensor for an argument of the tile program; the first call creates it."""
        tensor = self._tensors.get(arg)
        if tensor is None:
            if isinstance(arg.type, MemoryType):
                shape, role = self.shapes[arg], role_of(self.program, arg, self.walks, scope.numbers)
                role = "out" if arg in self.written else role
                exact = all(scope.numbers(d) is as_expr(n) for d, n in zip(arg.type.dims, shape, strict=True))
                whole = not self.in_grid and exact
                if role == "out" and not whole:  # what is written need not be all of it
                    role = "inout"
            else:
                shape, role = (), "in"
            strides = getattr(arg.type, "strides", None)
            steps = None if strides is None else tuple(map(as_expr, strides))
            kind = TensorType("global", arg.type.dtype, tuple(as_expr(n) for n in shape), steps, role=role)
            tensor = self._tensors[arg] = Value(kind, arg.name or writer.fresh("argument"))
        return tensor

    def source(self, tensor: Value) -> Value | None:
        """Return the tile program's argument that a tensor stands for; None for memory that the program allocates."""
        return next((a for a in self.program.args if self._tensors.get(a) is tensor), None)

    def hold(self, memory: Value, tensor: Value, shape: tuple[Size, ...], origin: tuple[Expr, ...]) -> None:
        """Let a tensor stand for memory that the program allocates; `origin` are the coordinates of its first
        element.
        """
        self._tensors[memory], self.shapes[memory], self.origins[memory] = tensor, shape, origin

    def used(self, tensors: Collection[Value]) -> list[Value]:
        """Return the arguments of the tile program whose tensors are in `tensors`, in order."""
        return [a for a in self.program.args if self._tensors.get(a) in tensors]
