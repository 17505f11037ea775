"""Emission of a host program's tables: functions that fill tensors of integers by an expression of coordinates."""

from __future__ import annotations

from math import prod

from tilewright.algebra.expr import as_expr
from tilewright.algebra.expr_rules import maximum
from tilewright.codegen.entry.plan import EntryPlan
from tilewright.codegen.entry.sizes import HostWriter, load_sizes
from tilewright.ir.core import Op


class TableFunction:
    """Emits the function that fills the tensor of a `table` operation; it returns an i1.

    The i1 is set if a value does not fit the tensor's element type.
    """

    def __init__(self, plan: EntryPlan, op: Op):
        self.plan, self.op, self.w = plan, op, HostWriter()

    def text(self, name: str) -> str:
        """Return the LLVM text of a function `name` that fills the tensor of the `table` operation.

        The function evaluates the operation's expression at each coordinate. It returns an i1, which is set if a value
        does not fit the element type. Also add the intrinsics that it needs to `self.plan.declared`.
        """
        w, kind = self.w, self.op.operands[0].type
        load_sizes(w, self.plan.sizes)
        count = w.integer(prod((as_expr(e) for e in kind.shape), start=as_expr(1)))
        w.line("br label %head")
        w.label("head")
        w.line("%i = phi i64 [0, %entry], [%next, %body]")
        w.line("%wrong = phi i1 [false, %entry], [%worse, %body]")
        w.line(f"%more = icmp slt i64 %i, {count}")
        w.line("br i1 %more, label %body, label %done")
        w.label("body")
        linear_index = "%i"
        for s, extent in reversed(list(zip(self.op.attrs["over"], kind.shape, strict=True))):
            size = w.integer(maximum(as_expr(extent), 1))
            w.symbols[s] = (w.value(f"urem i64 {linear_index}, {size}"), 0)
            linear_index = w.value(f"udiv i64 {linear_index}, {size}")
        value = w.integer(as_expr(self.op.attrs["value"]))
        lowest, highest = kind.dtype.limits
        low = w.value(f"icmp slt i64 {value}, {int(lowest)}")
        high = w.value(f"icmp sgt i64 {value}, {min(int(highest), 2**63 - 1)}")
        out_of_range = w.value(f"or i1 {low}, {high}")
        w.line(f"%worse = or i1 %wrong, {out_of_range}")
        bits = 8 * kind.dtype.numpy.itemsize
        truncated = value if bits == 64 else w.value(f"trunc i64 {value} to i{bits}")
        slot = w.value(f"getelementptr i{bits}, ptr %to, i64 %i")
        w.line(f"store i{bits} {truncated}, ptr {slot}")
        w.line("%next = add i64 %i, 1")
        w.line("br label %head")
        self.plan.declared |= w.declared
        return (
            f"define internal i1 @{name}(ptr %to, ptr %sizes) nounwind {{\nentry:\n{w.text()}\n"
            "done:\n  ret i1 %wrong\n}"
        )
