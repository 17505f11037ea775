"""The state of the lowering from tile to block programs, and the table of its rules (one for each operation).

A rule emits block operations for one tile operation. It takes the Lowering: the program and its plan, the scope, the
storage, the writer. Rules do not import each other to lower the operations inside of an operation: `block` and `lower`
look them up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.analysis.flat_memory import Size
from tilewright.errors import ExpressionError, ProgramError
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.printer import op_text
from tilewright.lower.block.arguments import ArgumentTensors
from tilewright.lower.block.lazy_tiles import Load, Tile
from tilewright.lower.block.mma.registers import TaskRegisters
from tilewright.lower.block.packed_orders import BlockOrder
from tilewright.lower.block.reports import Reports
from tilewright.lower.block.scope import TileScope
from tilewright.lower.block.storage import Storage
from tilewright.lower.block.writer import BlockWriter
from tilewright.machine import Machine
from tilewright.plan.bound import BoundKernel
from tilewright.plan.schedule import Schedule
from tilewright.plan.tile_register_tasks import LineLayout

Rule: TypeAlias = "Callable[[Lowering, Op], tuple[Tile, ...]]"
"""A function that lowers an operation: it emits block operations, and returns a Tile for each result."""


@dataclass(frozen=True)
class Rules:
    """{operation name: its rule}, and the function that lowers a block and returns the tiles that the block yields."""

    operations: Mapping[str, Rule]
    block: Callable[[Lowering, Block], tuple[Tile, ...]]


@dataclass
class CurrentTask:
    """Facts about the task that is being emitted, beside the current part of each dimension."""

    walks: Mapping[Expr, LineLayout]
    """Dimensions that run along image lines (strips) which a task stages in shared memory."""
    shared: list[Expr]
    """Dimensions that tasks split: operands without such a dimension are loaded by several tasks."""
    task_splits: dict[Expr, tuple[Symbol, int, Size]] = field(default_factory=dict)
    """{dimension whose blocks are distributed to tasks: (index of the task, blocks of each, number of tasks)}."""
    begins: dict[Expr, Expr] = field(default_factory=dict)
    """{dimension along image lines: first position of the task}."""
    edge: bool = True
    """True if elements of an operand may be out of bounds in the current block (at an edge of the tensor)."""
    overhanging: set[Expr] = field(default_factory=set)
    """Dimensions whose current block goes past their end, beside those that the plan pads."""
    before: Block = field(default_factory=lambda: Block(()))
    """Operations that run once, before the first task."""
    registers: dict[Op, TaskRegisters] = field(default_factory=dict)
    """{MMA in tile registers: the registers that the task holds for it, for all of its blocks}."""
    packed: dict[Op, tuple[Value, BlockOrder]] = field(default_factory=dict)
    """{MMA: its operand B, packed before the loop over the blocks that share it, and its order}."""
    operands: dict[Op, Load | None] = field(default_factory=dict)
    """{read of operand A of an MMA in `registers`: Load of an element of the staged rows; None: read in place}."""


@dataclass
class Lowering:
    """The lowering of a tile program with its plan (`bound`): the rules, and the state that they share.

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
    fallback_mmas: dict[Op, str] = field(default_factory=dict)
    """{MMA that is done by scalar loops, without an atom: the reason}."""

    def __post_init__(self) -> None:
        self.users = self.program.users()

    @property
    def plan(self) -> Schedule:
        """The plan of the kernel as a Schedule; its axes are the dimensions of the tile program."""
        return self.bound.plan

    @property
    def writer(self) -> BlockWriter:
        """The BlockWriter to which block operations are emitted."""
        return self.storage.writer

    @property
    def in_grid(self) -> bool:
        """True for a grid program: its author states the workgroups, and its operations run once for each workgroup."""
        return self.arguments.in_grid

    def block(self, block: Block) -> tuple[Tile, ...]:
        """Emit the code of `block`, a block of the tile program; return the lazy Tiles of the operands of its `yield`,
        () if it has no `yield`. `self.storage.env` gets the Tiles of the results of its operations.
        """
        return self.rules.block(self, block)

    def lower(self, op: Op) -> tuple[Tile, ...]:
        """Lower one tile operation by the rule for its name, which emits block operations; return the Tiles of its
        results.

        There is one Tile for each result; `allocate`, whose result is memory, gives (). Raise a ProgramError, with the
        author's source line, if the operation has no rule, if its rule refuses it, or if it needs all elements along a
        dimension with a data-dependent start or end. An ExecutionError of the rule is passed on.
        """
        rule = self.rules.operations.get(op.name)
        if rule is None:
            raise ProgramError(f"{op.name} has no native form yet: {op_text(op)}", op.loc)
        try:
            self.scope.refuse_data_dependent(op)
            return rule(self, op)
        except ProgramError as fault:
            raise type(fault)(fault.what, fault.location or op.loc) from None
        except ExpressionError as fault:
            raise ProgramError(f"{op_text(op)}: {fault}", op.loc) from None

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Context manager: at its end, the Tiles of values that were set within it are forgotten.

        Values that set_symbol set, and data-dependent ends of dimensions, are those from before it again.
        """
        with self.storage.nested(), self.scope.nested():
            yield

    @contextmanager
    def branch(self, condition: Expr) -> Iterator[None]:
        """Context manager: emit an `if` on `condition` around the operations that are emitted within it.

        `condition` is an expression of loop variables, workgroup ids and sizes; proofs within the context may use it.
        No `if` is emitted if `condition` is a constant other than 0, or if nothing is emitted within it. Range checks
        of symbols that are emitted in the `if` do not count as done after it (`self.reports.required`).
        """
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
        """Return a context manager: operations that are emitted within it run once, before the first task."""
        return self.writer.inside(self.task.before)
