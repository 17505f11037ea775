"""cp.async as text: a lane's run from global to shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.algebra.expr import Const
from tilewright.ir.core import Op
from tilewright.passes.places import swizzled
from tilewright.targets.gpu.memory import pointer

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter


def copy(e: Emitter, op: Op) -> None:
    """cp.async of a lane's run; bytes that the tensor does not have are not read, and arrive as zero."""
    tensor, shared = op.operands
    axes, size = op.attrs["over"], shared.type.dtype.numpy.itemsize
    count = int(axes[1].hi) + 1
    atom = e.machine.copy_atom(op.attrs["by"])
    when = op.attrs.get("when")

    def one() -> None:
        to = e.address(shared, swizzled(shared.type.swizzle, e.at_value(op.attrs["at"][0], axes, 0)), size)
        start = pointer(e, tensor, e.at_value(op.attrs["there"][0], axes, 0), size)
        cache = "cg" if atom.hint == "bypass" else "ca"
        read = _bytes_there(e, op, count, size)
        more = "" if read is None else ", $2"
        text = f"cp.async.{cache}.shared.global [$0], [$1], {count * size}{more};"
        operands = [f"i32 {to}", f"ptr addrspace(1) {start}", *([] if read is None else [f"i32 {read}"])]
        e.w.assembly(text, "r,l" + (",r" if more else ""), tuple(operands))

    if when is None:
        one()
        return
    with e.w.when(e.w.condition(e.at_value(when, axes, 0))):
        one()


def _bytes_there(e: Emitter, op: Op, count: int, size: int) -> str | None:
    """How many bytes of the run the tensor has, an i32; None: all."""
    if "inside" not in op.attrs:
        return None
    each = [e.at_value(op.attrs["inside"], op.attrs["over"], i) for i in range(count)]
    if all(isinstance(c, Const) and c.value for c in each):
        return None
    if all(c is each[0] for c in each):
        return e.w.value(f"select i1 {e.w.condition(each[0])}, i32 {count * size}, i32 0")
    total = "0"
    for c in each:
        more = e.w.value(f"select i1 {e.w.condition(c)}, i32 {size}, i32 0")
        total = e.w.value(f"add i32 {total}, {more}")
    return total
