"""Pictures of a block kernel's tensors: shared memory with its banks, registers with the threads that hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.algebra import ComposedLayout, Layout
from tilewright.algebra.picture import layout_svg, partition_svg
from tilewright.check.distribution import placement
from tilewright.errors import ProgramError
from tilewright.ir.core import Program, Value
from tilewright.ir.location import author_location
from tilewright.ir.tensors import RegisterType, TensorType, numbers
from tilewright.machine import Machine


@dataclass(frozen=True)
class TensorPicture:
    """A tensor, drawn: a notebook shows it, and `svg` is the document."""

    name: str
    svg: str

    def _repr_svg_(self) -> str:
        return self.svg


def picture_of(value: Value, machine: Machine | None) -> TensorPicture:
    """The picture of a tensor: who holds which element, or at which offset and in which bank it lies."""
    kind: Any = value.type
    name = value.name or "tensor"
    if isinstance(kind, RegisterType):
        if kind.distribution is None:
            raise ProgramError(f"%{name} is a view of registers; draw the registers themselves", author_location())
        found = placement(kind, machine)
        if len(found.shape) > 2:
            raise ProgramError(f"%{name} has {len(found.shape)} dimensions; a partition of one or two is drawn")
        return TensorPicture(name, partition_svg(found.layout, (*found.shape, 1, 1)[:2]))
    if not isinstance(kind, TensorType):
        raise ProgramError(f"%{name} is {kind}, which is not drawn; tensors are", author_location())
    shape, steps = numbers(kind.shape, f"%{name}"), numbers(kind.steps, f"%{name}")
    layout: Any = Layout(shape, steps)
    if kind.swizzle is not None:
        layout = ComposedLayout(kind.swizzle, 0, layout)
    element_bytes = kind.dtype.numpy.itemsize if kind.space == "shared" else None
    return TensorPicture(name, layout_svg(layout, element_bytes=element_bytes))


def picture_in(program: Program, name: str, machine: Machine | None) -> TensorPicture:
    """The picture of a program's tensor by its name, which is what the author calls it."""
    found = {v.name: v for v in program.args}
    for op in program.walk():
        for result in op.results:
            found.setdefault(result.name, result)
    if name not in found:
        names = ", ".join(n for n, v in found.items() if n and isinstance(v.type, TensorType | RegisterType))
        raise ProgramError(f"{program.name} has no tensor {name}; it has {names}")
    return picture_of(found[name], machine)
