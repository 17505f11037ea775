"""A tile program that becomes one kernel: its sizes, machine, dimensions, loops and MMAs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.core import Op, Program, Value
from tilewright.machine import Machine
from tilewright.plan.boxes import Opened, cut_dims, numbers_of
from tilewright.plan.fixed import tiles_of
from tilewright.plan.general import dims_of, words_for
from tilewright.plan.microkernel import mmas_by_name
from tilewright.plan.simt_boxes import SimtProduct


@dataclass(frozen=True, eq=False)
class KernelProgram:
    """A tile program that becomes one kernel, with the numbers of its sizes and the machine that it is for.

    `free` are the loops whose tile size does not change the result. Sizes that are `opened` are known only at the call;
    `typical` has numbers for them. With `logs`, results of debug_log count as writes. If `ordered`, elements are
    computed in order, in one task.
    """

    program: Program
    sizes: Mapping[Symbol, int]
    machine: Machine
    free: Collection[Op] = ()
    opened: Opened = field(default_factory=dict)
    typical: Mapping[Symbol, int] | None = None
    logs: bool = False
    ordered: bool = False
    in_grid: bool = False
    """True for a grid program: the author's workgroups are its tasks."""
    simt: SimtProduct | None = None
    """The program's single MMA if lanes compute it without an MMA atom (SIMT); None if not."""

    @cached_property
    def size(self) -> Callable[[Expr], int]:
        """A function `size(d)` that evaluates the extent of a dimension d to a number.

        For sizes known only at the call it uses the typical number.
        """
        return numbers_of({**self.sizes, **(self.typical or {})})

    @cached_property
    def dims(self) -> dict[str, Expr]:
        """{name in a plan: dimension}, for each dimension of this program's tiles whose extent `sizes` determines.

        In a grid program (its author gives the workgroup tiles), only the dimensions that constraints name are listed.
        """
        if self.in_grid:  # the author's constraints name them
            loops = {str(d): d for d in self.loops.values()}
            named = {**loops, **{str(d): d for d in dims_of(self.program)}}
            words = words_for([name for tiles in tiles_of(self.program, self.sizes) for name in tiles])
            return {word: named[name] for name, word in words.items() if name in named}
        known = [d for d in dims_of(self.program) if d.symbols <= set(self.sizes)]
        words = words_for(map(str, known))
        return {words[str(d)]: d for d in known}

    @cached_property
    def parallel(self) -> tuple[Expr, ...]:
        """The dimensions of this program that the grid may split; () if elements must be computed in order.

        In a grid program (its author gives the workgroup tiles), they are the dimensions with a workgroup tile. In a
        SIMT product (lanes multiply, without an atom) with boxes of results per lane, the product lists them.
        """
        if self.in_grid:
            tasks, _ = tiles_of(self.program, self.sizes)
            return tuple(d for d in dims_of(self.program) if str(d) in tasks)
        if self.simt is not None and self.simt.grid_dims:
            return self.simt.grid_dims
        return () if self.ordered else cut_dims(self.program, self.size, self.logs, self.opened)

    @cached_property
    def loops(self) -> dict[Op, Expr]:
        """{loop operation: dimension that it iterates over}, for every loop of this program."""
        return {op: op.attrs["axis"] for op in self.program.walk() if op.name == "iterate"}

    @cached_property
    def makers(self) -> Mapping[Value, Op]:
        """{value: the operation whose result it is}, for every value of this program that an operation computes."""
        return self.program.makers()

    @cached_property
    def author_loop_tiles(self) -> dict[str, int]:
        """{dimension name: loop tile in elements}, for each dimension whose loop tile the author's constraints give."""
        return tiles_of(self.program, self.sizes)[1]

    @cached_property
    def products(self) -> dict[str, Op]:
        """{name in a plan (mma, mma2 and so on): mma operation}, for every MMA of this program."""
        return mmas_by_name(self.program)
