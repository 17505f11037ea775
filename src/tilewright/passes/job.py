"""The job that passes from tile to block work on: what is known so far of one program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Program, Value
from tilewright.ir.module import Module
from tilewright.machine import Machine
from tilewright.passes.places import Size
from tilewright.passes.tile.general import Lowered
from tilewright.passes.tile.opened import CLOSED, OpenSizes
from tilewright.passes.tile.patches import Patched
from tilewright.passes.tile.rewriting import Halves
from tilewright.plan.boxes import numbers_of
from tilewright.plan.general import Cuts, GeneralChoice
from tilewright.plan.planner import Choice, Refusal
from tilewright.plan.schedule import Schedule, ValuePlacement
from tilewright.plan.search import PlanCandidate, Ranking


@dataclass(frozen=True)
class InRows:
    """A program on factors that lie in rows which the machine's copies can read: what copies them, and what it is."""

    copies: tuple[Job, ...]
    main: Job
    placed: tuple[ValuePlacement, ...]
    notes: tuple[str, ...]

    def often(self, constant: Collection[str]) -> list[Job]:
        """Return the jobs that copy operands at every launch: those whose argument is not in `constant`."""
        return [job for job in self.copies if job.program.args[0].name not in constant]


@dataclass(frozen=True)
class BlockedProgram:
    """A product with what follows it, over digits (mixed-radix parts) of its dimensions, as a plan of blocks says it.

    `dims` are the dimensions of the job's program that are M, those that are N, and the last one of K.
    """

    program: Program
    sizes: Mapping[Symbol, Size]
    shapes: Mapping[Value, tuple[Size, ...]]
    dims: tuple[tuple[str, ...], tuple[str, ...], str]


@dataclass
class Job:
    """The state of one program on its way to block programs: each pass reads it and adds to it."""

    machine: Machine
    program: Program
    sizes: Mapping[Symbol, int]
    """Its sizes; of those that stay open, typical ones, for which it is planned."""
    shapes: Mapping[Value, tuple[Size, ...]]
    free: Collection[Op] = ()
    """Loops that give the same for every tile size."""
    logs: bool = False
    given: Schedule | None = None
    general_only: bool = False
    workgroups: Mapping[Symbol, Expr] | None = None
    """For a grid program, whose workgroups are part of its meaning: symbols that depend on their ids, and how."""
    lenient: bool = False
    """True if arguments may be longer than they say, and symbols that set_symbol sets outside their range."""
    extents: Mapping[Symbol, Size] = field(default_factory=dict)
    """If sizes stay open: {size: its value, a number or an expression of the symbols that a call binds}."""
    opened: OpenSizes = CLOSED
    arguments: tuple[Value, ...] | None = None
    """The arguments of the host program, tensors as a caller passes them; without them there is none."""
    constant: Collection[str] = ()
    """Arguments that never change once they are bound: what depends on them alone is done then."""
    blocked: BlockedProgram | None = None
    """Its product over digits, where a plan keeps accumulator tiles in registers over all of K on a CPU."""
    whole: Program | None = None
    """The program with what has no elements, and is not computed."""
    choice: Choice | GeneralChoice | None = None
    ranked: RankedPlans | None = None
    """The plans that the search ranked, where a plan is chosen for a GPU."""
    plan: Schedule | None = None
    split: Halves | None = None
    """The program in two halves, where parts of its sum are added up by a program of their own."""
    merge: Job | None = None
    """The job of that second program."""
    single: bool = False
    """True if it stays one kernel: it is the first of two, and its plan has no word for more."""
    between: str = ""
    """The argument that the kernel before writes, where it is the second of two programs."""
    parts: tuple[Job, Job] | None = None
    """The jobs of two programs, where a value goes through memory from the first to the second."""
    looped: Program | None = None
    """The program with a loop over what lies between its products, where that is gone over tile by tile."""
    patched: Patched | None = None
    """The program over boxes of positions, where what they read is brought as halo tiles."""
    aligned: InRows | None = None
    """The jobs that copy factors to rows which the machine's copies can read, and the one that works on those."""
    undivided: tuple[Program, Collection[Op]] | None = None
    """The program, and its free loops, before its dimensions were written as digits."""
    cuts: Cuts | None = None
    """The parameters that the lowering of its one kernel reads, bound from the plan."""
    lowered: Lowered | None = None
    module: Module | None = None
    """The host program with its block programs: what the job comes to."""

    @property
    def open_extents(self) -> dict[Expr, Expr]:
        """{size: expression of the symbols that a call binds} of the sizes that stay open."""
        return {s: n for s, n in self.extents.items() if isinstance(n, Expr)}

    @property
    def typical(self) -> dict[Symbol, int]:
        """{symbol that a call binds: its typical number}."""
        return {e: self.sizes[s] for s, e in self.extents.items() if isinstance(e, Symbol) and s in self.sizes}

    @property
    def size(self) -> Callable[[Expr], int]:
        """A function that evaluates a dimension to an int, with typical numbers for open sizes."""
        return numbers_of({**self.sizes, **self.typical})

    def take(self, sizes: Mapping[Symbol, Size]) -> None:
        """Set the job's sizes; open ones also get typical numbers."""
        numbers = Substitution(self.typical)
        self.sizes = {s: self.sizes.get(s) or int(numbers(as_expr(e))) for s, e in sizes.items()}
        self.extents = sizes if self.opened else {}

    def longer(self) -> str | None:
        """Return the name of an argument that is longer than its dimensions say; None if there is none."""
        images = Substitution(dict(self.sizes))
        for a in self.program.args if self.lenient else ():
            sizes = zip(getattr(a.type, "sizes", ()), self.shapes[a], strict=True)
            if any(d is not None and images(d) is not as_expr(n) for d, n in sizes):
                return a.name
        return None

    def shown(self) -> tuple[str, Callable[[], str]]:
        """Return (kind of text, function that writes it) of the last thing that a pass made.

        The function is called only if the text is wanted: writing a program costs as much as some passes.
        """
        lowered, plan, choice = self.lowered, self.plan, self.choice
        if self.module is not None:
            return "host", self.module.__str__
        if lowered is not None:
            return "block", lambda: str(lowered.program)
        if plan is not None and choice is not None:
            return "plan", lambda: "\n".join([*plan.lines(), "", choice.explain(), ""])
        return "tile", self.program.__str__


Pass = Callable[[Job], None]
"""A pass over a job, such as the one that plans it, or the one that lowers it."""


@dataclass
class RankedPlans:
    """The plans of a job that are left to be tried, the best first, and the refusals of those that were."""

    choose: Pass
    rankings: list[Ranking] = field(default_factory=list)
    left: Iterator[tuple[PlanCandidate, Schedule]] = field(default_factory=lambda: iter(()))
    refused: list[Refusal] = field(default_factory=list)
    overflowing: tuple[PlanCandidate, Schedule] | None = None
    """The best plan that is lowered, but for what shared memory does not hold."""
    tried: tuple[PlanCandidate, Schedule] | None = None
    """The plan that the job has now."""
    start: Job | None = None
    """The job before any plan was bound."""
