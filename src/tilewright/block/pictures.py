"""Pictures of a block kernel's tensors: memory with offsets and banks, registers with their threads."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra import Layout
from tilewright.algebra.picture import layout_svg, layout_table, partition_svg, partition_table
from tilewright.algebra.picture.panels import LARGEST_AREA, LARGEST_SIDE
from tilewright.analysis.distribution import placement
from tilewright.analysis.views import Places
from tilewright.errors import ProgramError
from tilewright.ir.core import Program, Value
from tilewright.ir.tensors import RegisterType, TensorType, numbers
from tilewright.machine import Machine, MemoryOperand


@dataclass(frozen=True)
class TensorPicture:
    """A tensor ready to be drawn: a notebook displays it, `svg` is an SVG document, `table` is for a terminal.

    `layout` maps coordinates to offsets; if `shape` is given, it maps (thread, value) to an element of that shape.
    """

    title: str
    layout: Any
    shape: tuple[int, ...] | None = None
    element_bytes: int | None = None

    @property
    def svg(self) -> str:
        """The picture as an SVG document."""
        return str(self._drawn(layout_svg, partition_svg))

    @property
    def table(self) -> Any:
        """The picture as a table that the console of the package rich prints."""
        return self._drawn(layout_table, partition_table)

    def _repr_svg_(self) -> str:
        """Return the SVG document; notebooks call this."""
        return self.svg

    def _drawn(self, of_layout: Any, of_partition: Any) -> Any:
        """Return the picture as a drawing function returns it: text of an SVG, or a table.

        `of_layout` and `of_partition` are two drawing functions for the same output. `of_partition` draws register
        tensors of one or two dimensions. `of_layout` draws memory, and register tensors of more dimensions.
        """
        if self.shape is None:
            return of_layout(self.layout, element_bytes=self.element_bytes, title=self.title)
        if len(self.shape) <= 2:
            return of_partition(self.layout, (*self.shape, 1, 1)[:2], title=self.title)
        return of_layout(Layout(self.shape), threads=self.layout, title=self.title)


class _Offsets:
    """A table of offsets that can be called with coordinates, like a layout."""

    def __init__(self, table: Any):
        self.table = table
        self.shape = table.shape

    def __call__(self, *coordinate: Any) -> int:
        return int(self.table[tuple(int(c) for c in coordinate)])


def picture_in(program: Program, name: str, machine: Machine | None) -> TensorPicture:
    """Return the picture of the tensor called `name` in `program`, of which all parameters must be bound. `machine` has
    the atoms that the program names (None: no atoms).

    A view is drawn as the offset of each element in the memory tensor that it views, in the first iteration of all
    loops. Memory that is too large is cut to the first index along the leading dimensions, then to the first rows and
    columns. Raise a ProgramError if there is no such tensor, or if it is a view of registers.
    """
    tensors: dict[str, Value] = {}
    for value in (*program.args, *(result for op in program.walk() for result in op.results)):
        if isinstance(value.type, TensorType | RegisterType):
            tensors.setdefault(value.name or "", value)
    if name not in tensors:
        problem = f"{program.name} has no tensor {name}" if name else f"which tensor of {program.name} is to be drawn"
        raise ProgramError(f"{problem}; it has {', '.join(tensors)}")
    value = tensors[name]
    places = Places(program, program.makers())
    if isinstance(value.type, RegisterType):
        if value.type.distribution is None:
            root = places.root(value)
            raise ProgramError(f"%{name} is a view of registers; draw those, %{root.name}")
        distribution = placement(value.type, machine)
        return TensorPicture(f"%{name}: {value.type}", distribution.layout, distribution.shape)
    return _memory_picture(value, places)


def _memory_picture(value: Value, places: Places) -> TensorPicture:
    """Return the picture of `value`, a tensor or view in memory, as a table of the offsets of its elements, which
    `places` computes. A tensor that is too large is cut, and the title says so.
    """
    kind: TensorType = value.type
    shape = numbers(kind.shape, f"%{value.name}")
    dropped = 0
    while len(shape) - dropped > 2 and prod(shape[dropped:]) > LARGEST_AREA:
        dropped += 1
    shown = tuple(min(extent, LARGEST_SIDE) for extent in shape[dropped:]) or (1,)
    coordinates = [0] * dropped + list(np.indices(shown[: len(shape) - dropped] or (1,)))
    root, offsets = places.offsets(value, tuple(coordinates[: len(shape)]))
    offsets = np.broadcast_to(offsets, shown)
    table = _Offsets(offsets if root.swizzle is None else root.swizzle(offsets))
    suffix = "" if shown == shape else f", its first {' x '.join(map(str, shown))}"
    element_bytes = kind.dtype.numpy.itemsize if kind.space == "shared" else None
    return TensorPicture(f"%{value.name}: {kind}{suffix}", table, None, element_bytes)


def operand_picture(name: str, operand: Any) -> TensorPicture:
    """Return the picture, with the title `name`, of `operand`, an operand of an atom: which lane holds which element,
    or the layout of an operand in memory.
    """
    if isinstance(operand, MemoryOperand):
        return TensorPicture(name, operand.layout, None, operand.dtype.numpy.itemsize)
    return TensorPicture(name, operand.layout, (operand.rows, operand.columns))
