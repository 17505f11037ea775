"""One walk over a tile program: what its rules share, and the table by which they are found.

A rule says what an operation becomes. It takes the lowering: the program and its plan, the scope, the storage, the
writer. Rules do not import each other to go on with what lies inside of an operation: `block` and `done` find them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.errors import ExpressionError, ProgramError
from tilewright.ir.core import Block, Op, Program
from tilewright.ir.printer import op_text
from tilewright.machine import Machine
from tilewright.passes.places import Size
from tilewright.passes.tile.arguments import ArgumentTensors
from tilewright.passes.tile.product.registers import TaskRegisters
from tilewright.passes.tile.reports import Reports
from tilewright.passes.tile.scope import TileScope
from tilewright.passes.tile.storage import Storage
from tilewright.passes.tile.values import Load, Tile
from tilewright.passes.tile.writer import BlockWriter
from tilewright.plan.bound import BoundKernel
from tilewright.plan.schedule import Schedule
from tilewright.plan.tiled import Walk

Rule: TypeAlias = "Callable[[Lowering, Op], tuple[Tile, ...]]"
"""A function that lowers an operation: it emits block operations, and returns a Tile for each result."""


@dataclass(frozen=True)
class Rules:
    """The rules of operations, by name, and the rule of a block, which returns the tiles that the block yields."""

    operations: Mapping[str, Rule]
    block: Callable[[Lowering, Block], tuple[Tile, ...]]


@dataclass
class CurrentTask:
    """Facts about the task that is being emitted, beside the current part of each dimension."""

    walks: Mapping[Expr, Walk]
    """Dimensions that go along lines which a task stages."""
    shared: list[Expr]
    """Dimensions of which there are several parts: what does not depend on one is used by all of them."""
    dealt: dict[Expr, tuple[Symbol, int, Size]] = field(default_factory=dict)
    """Dimensions whose pieces tasks share: a task's number, the pieces of each, and how many tasks there are."""
    begins: dict[Expr, Expr] = field(default_factory=dict)
    """By dimension: the first line (image row) of the task."""
    edge: bool = True
    """True if elements of an operand may be out of bounds in the current pieces (an edge of the tensor)."""
    overhanging: set[Expr] = field(default_factory=set)
    """Dimensions whose current piece goes past their end, beside those that are always extended."""
    before: Block = field(default_factory=lambda: Block(()))
    """Operations that run once, before the first task."""
    registers: dict[Op, TaskRegisters] = field(default_factory=dict)
    """Products in tile registers that the task keeps for all of its blocks."""
    operands: dict[Op, Load | None] = field(default_factory=dict)
    """Reads of operands A of these products: the Load of an element of the staged rows; None: it is read in place."""


@dataclass
class Lowering:
    """The walk over a tile program with its plan (`bound`): the rules, and the state that they share.

    `free` are loops with the same result for every tile size.
    """

    program: Program
    machine: Machine
    bound: BoundKernel
    free: Collection[Op]
    rules: Rules
    scope: TileScope
    storage: Storage
    arguments: ArgumentTensors
    reports: Reports
    task: CurrentTask
    lost: dict[Op, str] = field(default_factory=dict)
    """Products that are done by loops, and why."""

    def __post_init__(self) -> None:
        self.users = self.program.users()

    @property
    def plan(self) -> Schedule:
        """The schedule of the kernel, whose axes are the dimensions of the program."""
        return self.bound.plan

    @property
    def writer(self) -> BlockWriter:
        """The BlockWriter that emits the block program."""
        return self.storage.writer

    @property
    def in_grid(self) -> bool:
        """True for a grid program, whose workgroups run one after another."""
        return self.arguments.in_grid

    def block(self, block: Block) -> tuple[Tile, ...]:
        """Emit the operations of a block; return the tiles that it yields."""
        return self.rules.block(self, block)

    def done(self, op: Op) -> tuple[Tile, ...]:
        """Emit one operation by its rule; return the tiles of its results."""
        rule = self.rules.operations.get(op.name)
        if rule is None:
            raise ProgramError(f"{op.name} has no native form yet: {op_text(op)}", op.loc)
        try:
            self.scope.refuse_moved(op)
            return rule(self, op)
        except ProgramError as fault:
            raise type(fault)(fault.what, fault.location or op.loc) from None
        except ExpressionError as fault:
            raise ProgramError(f"{op_text(op)}: {fault}", op.loc) from None

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Restore values and symbols at the end of this context: what is defined within stays inside."""
        with self.storage.nested(), self.scope.nested():
            yield

    @contextmanager
    def branch(self, condition: Expr) -> Iterator[None]:
        """Emit what is written within under a condition on loops and workgroups; no `if` is emitted around nothing."""
        if isinstance(condition, Const) and condition.value:
            yield
            return
        inner, required = Block(()), set(self.reports.required)
        with self.scope.given(condition), self.writer.inside(inner):
            yield
        self.reports.required = required
        if inner.ops:
            self.writer.emit("if", when=condition, blocks=(inner,))

    def before_tasks(self) -> AbstractContextManager[None]:
        """Emit operations within this context once, before the first task."""
        return self.writer.inside(self.task.before)
