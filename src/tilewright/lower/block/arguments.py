"""The arguments of a block program: tensors for the arguments of the tile program, and packed copies of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilewright.algebra.expr import Expr, as_expr
from tilewright.analysis.flat_memory import Size
from tilewright.ir.core import MemoryType, Program, Value
from tilewright.ir.in_place import is_changed_in_place
from tilewright.ir.tensors import TensorType
from tilewright.lower.block.argument_roles import role_of
from tilewright.lower.block.lazy_tiles import Load
from tilewright.lower.block.packed_orders import Order, Pack
from tilewright.lower.block.scope import TileScope
from tilewright.lower.block.writer import BlockWriter
from tilewright.plan.tile_register_tasks import LineLayout


class ArgumentTensors:
    """The block program's tensors for the arguments of a tile program, and for memory that it allocates.

    `written` are arguments that are known to be written completely; `walks` maps dimensions that run along image lines
    to their LineLayout. In a grid program (`in_grid`) an argument may be written in part.
    """

    def __init__(
        self,
        program: Program,
        shapes: Mapping[Value, tuple[Size, ...]],
        written: Collection[Value],
        walks: Mapping[Expr, LineLayout],
        in_grid: bool,
    ):
        self.program, self.shapes = program, dict(shapes)
        self.written, self.walks, self.in_grid = set(written), walks, in_grid
        self.in_place = {a for a in program.args if not in_grid and is_changed_in_place(program, a)}
        """Arguments whose elements are read only where they are written, so that the old ones need no copy."""
        self.origins: dict[Value, tuple[Expr, ...]] = {}
        """{memory that each workgroup allocates: the coordinates of its first element}."""
        self.packs: dict[tuple[Load, tuple[Expr, ...], Order], Pack] = {}
        """{(load of an operand, its dimensions, packed order): the Pack that runs before the program}."""
        self._tensors: dict[Value, Value] = {}

    def tensor(self, arg: Value, scope: TileScope, writer: BlockWriter) -> Value:
        """Return the block program's tensor for `arg`, a value of the tile program; the first call creates it.

        An argument gets the role "in" if it is never written, "out" if the program writes all of it and never reads it,
        else "inout". An argument in `self.written` gets "out", whatever the program does with it. In a grid program,
        and if an extent is not exactly the dimension's size, "inout" replaces "out". A scalar has rank 0 and the role
        "in". For memory that the program allocates, return the tensor that `hold` recorded.
        """
        tensor = self._tensors.get(arg)
        if tensor is None:
            if isinstance(arg.type, MemoryType):
                shape, role = self.shapes[arg], role_of(self.program, arg, self.walks, scope.numbers)
                role = "out" if arg in self.written else role
                is_exact = all(scope.numbers(d) is as_expr(n) for d, n in zip(arg.type.dims, shape, strict=True))
                is_complete = not self.in_grid and is_exact
                if role == "out" and not is_complete:  # what is written need not be all of it
                    role = "inout"
            else:
                shape, role = (), "in"
            strides = getattr(arg.type, "strides", None)
            steps = None if strides is None else tuple(map(as_expr, strides))
            kind = TensorType("global", arg.type.dtype, tuple(as_expr(n) for n in shape), steps, role=role)
            tensor = self._tensors[arg] = Value(kind, arg.name or writer.fresh("argument"))
        return tensor

    def source(self, tensor: Value) -> Value | None:
        """Return the argument of the tile program of which `tensor` is the block program's tensor; None if there is
        none, as for allocated memory.
        """
        return next((a for a in self.program.args if self._tensors.get(a) is tensor), None)

    def hold(self, memory: Value, tensor: Value, shape: tuple[Size, ...], origin: tuple[Expr, ...]) -> None:
        """Record that `tensor`, of extents `shape`, is the block program's tensor for `memory`, which the tile program
        allocates.

        `origin` is the first element's index along each dimension of `memory`.
        """
        self._tensors[memory], self.shapes[memory], self.origins[memory] = tensor, shape, origin

    def used(self, tensors: Collection[Value]) -> list[Value]:
        """Return the tile program's arguments whose block tensors are among `tensors`, in the order of the tile
        program.
        """
        return [a for a in self.program.args if self._tensors.get(a) in tensors]
