"""cp.async: each lane copies a run of elements from global to shared memory, as PTX text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.algebra.expr import Const
from tilewright.analysis.flat_memory import swizzled
from tilewright.ir.core import Op
from tilewright.targets.gpu.memory import pointer

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter


def copy(e: Emitter, op: Op) -> None:
    """Emit the cp.async instruction of the operation `op`: each lane copies its contiguous elements from global to
    shared memory. Elements for which the attribute `inside` of `op` is false are not read and become zero. Lanes for
    which the condition `when` of `op` is false copy nothing.
    """
    tensor, shared = op.operands
    axes, size = op.attrs["over"], shared.type.dtype.numpy.itemsize
    count = int(axes[1].hi) + 1
    atom = e.machine.copy_atom(op.attrs["by"])
    when = op.attrs.get("when")

    def copy_run() -> None:
        """Emit the cp.async instruction without the condition `when` of the operation."""
        target = e.address(shared, swizzled(shared.type.swizzle, e.at_value(op.attrs["at"][0], axes, 0)), size)
        start = pointer(e, tensor, e.at_value(op.attrs["there"][0], axes, 0), size)
        cache = "cg" if atom.hint == "bypass" else "ca"
        in_bounds = _bytes_in_bounds(e, op, count, size)
        size_operand = "" if in_bounds is None else ", $2"
        text = f"cp.async.{cache}.shared.global [$0], [$1], {count * size}{size_operand};"
        operands = [f"i32 {target}", f"ptr addrspace(1) {start}", *([] if in_bounds is None else [f"i32 {in_bounds}"])]
        e.w.assembly(text, "r,l" + (",r" if size_operand else ""), tuple(operands))

    if when is None:
        copy_run()
        return
    with e.w.when(e.w.condition(e.at_value(when, axes, 0))):
        copy_run()


def _bytes_in_bounds(e: Emitter, op: Op, count: int, size: int) -> str | None:
    """Emit the number of bytes in bounds of the tensor of those that the lane copies, and return it as an i32. The lane
    copies `count` elements of `size` bytes. Emit nothing and return None if all are known to be in bounds.
    """
    if "inside" not in op.attrs:
        return None
    conditions = [e.at_value(op.attrs["inside"], op.attrs["over"], i) for i in range(count)]
    if all(isinstance(c, Const) and c.value for c in conditions):
        return None
    if all(c is conditions[0] for c in conditions):
        return e.w.value(f"select i1 {e.w.condition(conditions[0])}, i32 {count * size}, i32 0")
    total = "0"
    for c in conditions:
        element_bytes = e.w.value(f"select i1 {e.w.condition(c)}, i32 {size}, i32 0")
        total = e.w.value(f"add i32 {total}, {element_bytes}")
    return total
