"""Tables of a host program: tensors of integers, filled by an expression of their coordinates."""

from __future__ import annotations

from math import prod

from tilewright.algebra.expr import as_expr
from tilewright.algebra.expr_rules import maximum
from tilewright.codegen.entry.plan import EntryPlan
from tilewright.codegen.entry.sizes import HostWriter, load_sizes
from tilewright.ir.core import Op


class TableFunction:
    """A function that fills a tensor by an expression of its coordinates; it gives whether a value does not fit."""

    def __init__(self, plan: EntryPlan, op: Op):
        self.plan, self.op, self.w = plan, op, HostWriter()

    def text(self, name: str) -> str:
        """The function."""
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
        rest = "%i"
        for s, extent in reversed(list(zip(self.op.attrs["over"], kind.shape, strict=True))):
            size = w.integer(maximum(as_expr(extent), 1))
            w.symbols[s] = (w.value(f"urem i64 {rest}, {size}"), 0)
            rest = w.value(f"udiv i64 {rest}, {size}")
        value = w.integer(as_expr(self.op.attrs["value"]))
        least, most = kind.dtype.limits
        low = w.value(f"icmp slt i64 {value}, {int(least)}")
        high = w.value(f"icmp sgt i64 {value}, {min(int(most), 2**63 - 1)}")
        outside = w.value(f"or i1 {low}, {high}")
        w.line(f"%worse = or i1 %wrong, {outside}")
        bits = 8 * kind.dtype.numpy.itemsize
        short = value if bits == 64 else w.value(f"trunc i64 {value} to i{bits}")
        slot = w.value(f"getelementptr i{bits}, ptr %to, i64 %i")
        w.line(f"store i{bits} {short}, ptr {slot}")
        w.line("%next = add i64 %i, 1")
        w.line("br label %head")
        self.plan.declared |= w.declared
        return (
            f"define internal i1 @{name}(ptr %to, ptr %sizes) nounwind {{\nentry:\n{w.text()}\n"
            "done:\n  ret i1 %wrong\n}"
        )
