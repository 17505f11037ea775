"""The request of a compile: a program with its sizes, a machine, a pinned plan; nothing in it ever changes.

A pass that rewrites the program returns another request, with the rewritten program in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Flag, auto
from functools import cached_property

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Program, Value
from tilewright.machine import Machine
from tilewright.passes.places import Size
from tilewright.passes.tile.opened import CLOSED, OpenSizes
from tilewright.plan.boxes import numbers_of
from tilewright.plan.schedule import Schedule


@dataclass(frozen=True)
class SizedProgram:
    """A tile program, the extents of its dimensions, the shapes of its arguments, and those of its loops that are free.

    Extents and shapes are numbers, or expressions of the symbols that a call binds. A free loop gives the same result
    for every tile size.
    """

    program: Program
    extents: Mapping[Symbol, Size]
    shapes: Mapping[Value, tuple[Size, ...]]
    free: Collection[Op] = ()


class CompileOptions(Flag):
    """How a program is compiled: each is off unless it is asked for."""

    NONE = 0
    LOGS = auto()
    """Tasks write what debug_log is given."""
    LENIENT = auto()
    """Arguments may be longer than they say, and symbols that set_symbol sets outside their range."""
    NO_BLOCKS = auto()
    """No plan keeps accumulator tiles of one product in registers over all of K on a CPU."""


@dataclass(frozen=True)
class Request:
    """A request for the block programs of a tile program for a machine."""

    sized: SizedProgram
    machine: Machine
    opened: OpenSizes = CLOSED
    """The sizes that only a call tells, with the typical numbers for which the program is planned."""
    workgroups: Mapping[Symbol, Expr] | None = None
    """For a grid program, whose workgroups are part of its meaning: symbols that depend on their ids, and how."""
    pinned: Schedule | None = None
    """The plan that the author gives; without one, the best is chosen."""
    constant: Collection[str] = ()
    """Arguments that never change once they are bound: what depends on them alone is done then."""
    options: CompileOptions = CompileOptions.NONE

    @property
    def program(self) -> Program:
        """The tile program."""
        return self.sized.program

    @property
    def free(self) -> Collection[Op]:
        """Loops that give the same for every tile size."""
        return self.sized.free

    @property
    def logs(self) -> bool:
        """True if tasks write what debug_log is given."""
        return CompileOptions.LOGS in self.options

    @property
    def lenient(self) -> bool:
        """True if arguments may be longer than they say."""
        return CompileOptions.LENIENT in self.options

    @cached_property
    def sizes(self) -> dict[Symbol, int]:
        """{dimension: its extent as a number}, with typical numbers for open sizes."""
        numbers = Substitution(self.typical)
        return {s: int(numbers(e)) if isinstance(e, Expr) else e for s, e in self.sized.extents.items()}

    @property
    def typical(self) -> Mapping[Symbol, int]:
        """{symbol that a call binds, or that follows from such: its typical number}."""
        return self.opened.typical

    @property
    def open_extents(self) -> dict[Expr, Expr]:
        """{size: expression of the symbols that a call binds} of the sizes that stay open."""
        return {s: n for s, n in self.sized.extents.items() if isinstance(n, Expr)}

    @property
    def size(self) -> Callable[[Expr], int]:
        """A function that evaluates a dimension to an int, with typical numbers for open sizes."""
        return numbers_of({**self.sizes, **self.typical})

    def rewritten(
        self, program: Program, free: Collection[Op], extents: Mapping[Symbol, Size] | None = None
    ) -> Request:
        """Return the request for a program that means the same, its free loops, and its extents if others."""
        extents = self.sized.extents if extents is None else extents
        return replace(self, sized=replace(self.sized, program=program, free=free, extents=extents))

    def longer(self) -> str | None:
        """Return the name of an argument that is longer than its dimensions say; None if there is none."""
        images = Substitution(dict(self.sizes))
        for a in self.program.args if self.lenient else ():
            sizes = zip(getattr(a.type, "sizes", ()), self.sized.shapes[a], strict=True)
            if any(d is not None and images(d) is not as_expr(n) for d, n in sizes):
                return a.name
        return None
