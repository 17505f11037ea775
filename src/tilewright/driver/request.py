"""The request of a compile: a program with its sizes, a machine, and a pinned plan; a request never changes.

A pass that rewrites the program returns another request, with the rewritten program in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Flag, auto
from functools import cached_property

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import Size
from tilewright.ir.core import Op, Program, Value
from tilewright.lower.block.symbolic_shapes import CLOSED, OpenSizes
from tilewright.machine import Machine
from tilewright.plan.boxes import numbers_of
from tilewright.plan.schedule import Schedule


@dataclass(frozen=True)
class SizedProgram:
    """A tile program, the extents of its dimensions, the shapes of its arguments, and its free loops (with the same
    result for every tile size).

    Extents and shapes are numbers, or expressions of the symbols that a call binds.
    """

    program: Program
    extents: Mapping[Symbol, Size]
    shapes: Mapping[Value, tuple[Size, ...]]
    free: Collection[Op] = ()


class CompileOptions(Flag):
    """Options of a compile; all are off by default."""

    NONE = 0
    LOGS = auto()
    """Tasks write the values of debug_log."""
    LENIENT = auto()
    """Arguments may be longer than they say, and symbols that set_symbol sets outside their range."""
    NO_BLOCKS = auto()
    """No plan keeps accumulator tiles of one product in registers over all of K on a CPU."""


@dataclass(frozen=True)
class Request:
    """A request to compile a tile program to block programs for a machine."""

    sized: SizedProgram
    machine: Machine
    opened: OpenSizes = CLOSED
    """The sizes that are known only at a call, with the typical numbers for which the program is planned."""
    workgroups: Mapping[Symbol, Expr] | None = None
    """For a grid program, whose workgroups are part of its meaning: {symbol: expression of workgroup ids}."""
    pinned: Schedule | None = None
    """The plan that the author gives; None: the best one is chosen."""
    constant: Collection[str] = ()
    """Names of arguments that never change once they are bound: work on them alone is done at bind."""
    options: CompileOptions = CompileOptions.NONE

    @property
    def program(self) -> Program:
        """Return the tile program to be compiled."""
        return self.sized.program

    @property
    def free(self) -> Collection[Op]:
        """Return the program's free loops: those with the same result for every tile size."""
        return self.sized.free

    @property
    def logs(self) -> bool:
        """True if tasks write the values that the program logs with debug_log."""
        return CompileOptions.LOGS in self.options

    @property
    def lenient(self) -> bool:
        """True if arguments may be longer than their dimensions say, and set_symbol may set a symbol to a value outside
        its range."""
        return CompileOptions.LENIENT in self.options

    @cached_property
    def sizes(self) -> dict[Symbol, int]:
        """Return {dimension: its extent as an int}, with typical numbers for sizes that are known only at the call."""
        numbers = Substitution(self.typical)
        return {s: int(numbers(e)) if isinstance(e, Expr) else e for s, e in self.sized.extents.items()}

    @property
    def typical(self) -> Mapping[Symbol, int]:
        """Return {symbol: its typical number} of the symbols that a call binds, and of those that follow from them."""
        return self.opened.typical

    @property
    def open_extents(self) -> dict[Expr, Expr]:
        """Return {dimension: its extent, an expression of symbols} of the dimensions with an extent that only a call
        tells."""
        return {s: n for s, n in self.sized.extents.items() if isinstance(n, Expr)}

    @property
    def size(self) -> Callable[[Expr], int]:
        """Return a function that takes a dimension or an expression of dimensions, and returns its value as an int.

        Sizes known only at the call have typical numbers.
        """
        return numbers_of({**self.sizes, **self.typical})

    def with_open_marked(self, plan: Schedule) -> Schedule:
        """Return `plan` with exactly those sizes marked as open that are known only at the call.

        A CPU plan with the axes `rows`, `columns` and `depth` names no sizes; it is returned unchanged.
        """
        return plan if plan.in_blocks else plan.with_open({str(s) for s in self.open_extents})

    def rewritten(
        self, program: Program, free: Collection[Op], extents: Mapping[Symbol, Size] | None = None
    ) -> Request:
        """Return this request with `program`, another program of the same meaning; this request is not changed.

        `free` are the loops of `program` with the same result for every tile size. `extents` is {dimension: extent} of
        its dimensions; None: the extents of this request.
        """
        extents = self.sized.extents if extents is None else extents
        return replace(self, sized=replace(self.sized, program=program, free=free, extents=extents))

    def longer(self) -> str | None:
        """Return the name of the first argument that is longer than its dimensions say; None if there is none.

        Return None also if arguments must fit exactly (`lenient` is off): nothing is compared then.
        """
        images = Substitution(dict(self.sizes))
        for a in self.program.args if self.lenient else ():
            sizes = zip(getattr(a.type, "sizes", ()), self.sized.shapes[a], strict=True)
            if any(d is not None and images(d) is not as_expr(n) for d, n in sizes):
                return a.name
        return None
