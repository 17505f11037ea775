"""Binding of SIMT plans (without an MMA atom) in which each lane computes a box of M (rows) split into digits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.algebra.expr import Expr, Symbol
from tilewright.driver.request import Request
from tilewright.ir.core import Op, Program
from tilewright.plan.bind_lane_boxes import BoxedRows
from tilewright.plan.boxes import cut_dims, may_overrun, numbers_of
from tilewright.plan.fixed import tiles_of
from tilewright.plan.microkernel import mmas_by_name
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Digit, Schedule
from tilewright.plan.simt import SimtMatch
from tilewright.plan.simt_boxes import SimtProduct, with_window
from tilewright.rewrite.box_tile import ProgramInBoxes, in_boxes, inner_of, outer_of
from tilewright.rewrite.digits import digits_of


@dataclass(frozen=True)
class LaneRows:
    """The rows (M) of an MMA split into digits (mixed-radix parts), of which each lane may compute a box, and the
    program over these digits.
    """

    terms: SimtProduct
    name: str
    program: Program
    """The program over digits of M."""
    sizes: dict[Symbol, int]
    digits: tuple[Symbol, ...]
    cut: tuple[Expr, ...]
    """The dimensions that may be split into tasks."""
    read: Op
    """The read of the operand that has M."""
    free: set[Op]
    """Loops with the same result for every tile size."""

    @classmethod
    def of(cls, request: Request, product: SimtMatch) -> LaneRows | str:
        """Return the LaneRows of an MMA, with M split into digits from which boxes can be made; or text: why that is
        impossible.

        It is impossible if M is not exactly one dimension, if the author states tiles, if M has no digits (mixed-radix
        parts), or if the grid cannot split a digit of several elements. `product` is the MMA as lanes compute it. The
        program of `request` must be over whole dimensions.
        """
        program, free = request.program, request.free
        if len(product.rows) != 1:
            return "its accumulator has no rows, or several dimensions of rows"
        if tiles_of(program, request.sizes)[0]:
            return "its tiles are stated"
        (row,) = product.rows
        counted = digits_of(program, request.sizes, free, row, alone=True)
        if counted is None:
            return f"{row} does not count in digits"
        over, sizes, digits, loops = counted
        factors = [v for op in mmas_by_name(over).values() for v in op.operands[:2]]
        operands = [v for v in factors if digits[-1] in v.type.dims]
        (read,) = (op for op in over.walk() if op.name == "read" and op.result in operands)
        size = numbers_of(sizes)
        cut = cut_dims(over, size)
        if any(d not in cut for d in digits if size(d) > 1):
            return f"tasks do not cut {row}"
        return cls(product.terms, str(row), over, sizes, digits, cut, read, loops)

    def bound(self, plan: Schedule, box: dict[str, int]) -> tuple[SimtProduct, ProgramInBoxes, Schedule]:
        """Return (how lanes compute the MMA, the program over boxes of M, the plan of that program).

        `box` is {digit (mixed-radix part) of M: extent of a lane's box}; a digit without an entry has the extent 1.
        Raise an ArgumentError if `box` names an unknown digit, if an extent is longer than its digit, or if the last
        box extends past the end of a digit and writes do not drop the results there.
        """
        axis = plan.axis(self.name)
        unknown = [d for d in box if d not in map(str, self.digits)]
        sizes = tuple(box.get(str(d), 1) for d in self.digits)
        size = numbers_of(self.sizes)
        if unknown:
            raise refused(axis, f"there is no digit {unknown[0]}")
        for d, n in zip(self.digits, sizes, strict=True):
            if n > size(d):
                raise refused(axis, f"a lane's box of {n} is longer than {d}, which has {size(d)}")
            if size(d) % n and not may_overrun(d, self.program, size):
                raise refused(axis, f"{d} ends within a box, and what lies past it is not outside the result")
        loop = plan.axis(str(self.terms.k)).split("loop")
        terms = replace(self.terms, box_extents=sizes, k_step=size(self.terms.k) if loop is None else loop.size)
        terms = with_window(terms, self.read, self.digits, size)
        boxes, boxed = self.over_boxes(terms)
        return self.with_dims(terms), boxes, boxed.to_boxed_plan(plan)

    def over_boxes(self, terms: SimtProduct) -> tuple[ProgramInBoxes, BoxedRows]:
        """Return (the program with M in boxes, the names and extents of the boxed rows for the plan).

        A box is the rectangle of results that one lane computes; `terms` has its extents.
        """
        boxes = in_boxes(
            self.program, self.sizes, self.name, self.digits, terms.box_extents, one_dim_per_digit=True, free=self.free
        )
        digits = tuple(Digit(str(d), self.sizes[d], self.sizes[d]) for d in self.digits)
        boxed = BoxedRows(self.name, digits, terms.box_extents, str(boxes.outer), tuple(map(str, boxes.inner)))
        return replace(boxes, sizes={**self.sizes, **boxes.sizes}), boxed

    def with_dims(self, terms: SimtProduct) -> SimtProduct:
        """Return `terms` (how lanes compute the MMA) with `box_dims` and `grid_dims` set for the program over boxes of
        M.

        `box_dims` are the dimensions within a box. `grid_dims` are the dimensions that the grid may split: in place of
        the digits (mixed-radix parts) of M, they have the dimension that counts boxes and the dimensions within a box.
        """
        cut, inner = [d for d in self.cut if d not in self.digits], tuple(inner_of(self.digits, terms.box_extents))
        first = next((n for n, d in enumerate(self.cut) if d in self.digits), len(cut))
        return replace(terms, box_dims=inner, grid_dims=(*cut[:first], outer_of(self.name), *inner, *cut[first:]))
