"""The state of a lowering from block to loop level; every lowering rule gets it and emits operations through it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, as_expr, index, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import PlacedMemory, PlacedView, Size, sizes
from tilewright.analysis.views import Places
from tilewright.check.copies import Answer, answer, never_runs
from tilewright.errors import InterpreterOnlyWarning, ProgramError
from tilewright.ir.attrs import Range
from tilewright.ir.binding import open_parameters, parameters
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import FUNCTIONS, Formula
from tilewright.ir.loop import LOOP
from tilewright.ir.loop_types import VectorType
from tilewright.ir.printer import op_text
from tilewright.ir.tensors import TensorType, numbers, packed
from tilewright.limits import WRITTEN
from tilewright.machine import Machine, MultiplyAtom

Rule = Callable[[Any, Op], None]
"""A lowering rule: a function of the lowering and a block operation that emits loop operations."""
IN_A_FUNCTION = 8
"""Registers that a vector takes while a function (exp, sin, ...) is evaluated, with its share of the constants."""


class LoopLowering:
    """The lowering of a block program: meanings of symbols, handles (lowered forms) of values, and the block being
    written.

    `rules` maps the name of an operation to the function that lowers it. The file that begins the lowering passes them:
    it imports the files of all rules, and those import this class.
    """

    def __init__(self, program: Program, machine: Machine | None, here: Machine, rules: Mapping[str, Rule]):
        self.program, self.machine, self.here = program, machine, here
        self.rules = rules
        self.vector_bytes = here.limits.vector_bytes or 16
        self.open = frozenset(open_parameters(program))
        self.makers = program.makers()
        self.chain = Places(program, self.makers)
        self.handles: dict[Value, Any] = {}
        self.meaning: dict[Symbol, Expr] = {}
        self.builder = Builder(LOOP)
        self.loc: Any = None  # of the operation being lowered
        self.count = 0
        self.made_so_far = 0  # operations of the loop level
        self.parameters = {s.name for s in parameters(program)}
        self.slow: dict[str, str] = {}
        self.tiles = 0  # tile registers in use
        self.tables: dict[tuple[Expr, Symbol, DType], Value] = {}
        self.straight = 0  # above zero: emit no loops, because the operations will be interleaved with others
        self.guards: dict[Expr, None] = {}  # conditions of copy atoms on open sizes
        self.viewed = {self.chain.root(op.operands[0]) for op in program.walk() if op.name in ("view", "bitcast")}

    def available(self, atom: MultiplyAtom) -> bool:
        """True if the machine that runs the program, `self.here`, has the MMA atom `atom`."""
        return atom.name in self.here.multiply

    def vector_lanes(self, dtype: DType) -> int:
        """Return the number of elements of type `dtype` in a vector register of the machine, at least 1. A register has
        16 bytes if the machine states no width.
        """
        return max(1, self.vector_bytes // dtype.numpy.itemsize)

    def interleaved(self, dtypes: Iterable[DType], formulas: Iterable[Formula]) -> int:
        """Return the number of elements that one iteration of an elementwise loop computes: one vector register of the
        widest element type in `dtypes`.

        On a CPU it is one vector for every 8 registers of the machine if one of the loop's `formulas` has a function
        (exp, sin, ...): the latencies of the functions then overlap.
        """
        lanes = [self.vector_lanes(t) for t in dtypes]
        if self.here.lanes is not None or all(f.name not in FUNCTIONS for formula in formulas for f in formula.walk()):
            return min(lanes)
        return max(min(lanes), min(lanes) * self.here.limits.registers // IN_A_FUNCTION)

    @cached_property
    def touching(self) -> dict[Value, set[Op]]:
        """{tensor below all views: set of the operations that have the tensor or a view of it as an operand}, for the
        whole block program. Views and bitcasts are not counted as operations.
        """
        ops_of: dict[Value, set[Op]] = {}
        for op in self.program.walk():
            for value in op.operands if op.name not in ("view", "bitcast") else ():
                ops_of.setdefault(self.chain.root(value), set()).add(op)
        return ops_of

    def is_used_only_by(self, value: Value, ops: set[Op]) -> bool:
        """True if an `alloc` of the program makes the tensor `value`, and no operation outside the set `ops` has it or
        a view of it as an operand. True also for an allocation that nothing uses; false for views and arguments.
        """
        maker = self.makers.get(value)
        return maker is not None and maker.name == "alloc" and self.touching.get(value, set()) <= ops

    @cached_property
    def _idle(self) -> set[Op]:
        """The operations of the block program that never run: for all values of the open sizes (sizes known only at the
        call), they are inside a loop without iterations.
        """
        return never_runs(self.program)

    def answer(self, op: Op) -> Answer | None:
        """Return the Answer (atom and conditions) of the copy atom that the attribute `by` of the copy `op` names. The
        conditions on open sizes (known only at the call) are also added to `self.guards`: the loop program will require
        them.

        Return None if `op` names no atom, if `op` never runs, or if `self.machine` is None. Raise a ProgramError if the
        atom cannot do the copy.
        """
        if "by" not in op.attrs or self.machine is None or op in self._idle:
            return None
        answer_of_atom = answer(op, self.machine, self.chain, {s.name for s in self.open})
        self.guards |= dict.fromkeys(condition.that for condition in answer_of_atom.conditions)
        return answer_of_atom

    # -- the walk -----------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """Lower every operation of `block`, in order. The loop operations are appended to the block being written.
        Subclasses override this.
        """
        for op in block.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        """Lower the block operation `op`: call the rule for its name (`self.rules`), which emits loop operations. A
        `debug_log` is skipped with an InterpreterOnlyWarning.

        Raise a ProgramError if there is no rule. A ProgramError that a rule raises gets the location of `op` if it has
        none.
        """
        if op.name == "debug_log":
            warnings.warn(f"{op_text(op)}: only the interpreter keeps logs", InterpreterOnlyWarning, stacklevel=2)
            return
        rule = self.rules.get(op.name)
        if rule is None:
            raise ProgramError(f"{op.name} has no form on {self.here.name} yet; target='interpreter' runs it", op.loc)
        outer_loc, self.loc = self.loc, op.loc
        try:
            rule(self, op)
        except ProgramError as fault:
            raise type(fault)(fault.what, fault.location or op.loc) from None
        finally:
            self.loc = outer_loc

    # -- writing --------------------------------------------------------------------------------------------

    def emit(self, name: str, operands: tuple[Value, ...] = (), blocks: tuple[Block, ...] = (), **attrs: Any) -> Op:
        """Append a new loop operation `name` with these operands, nested blocks and attributes to the block being
        written, and return it. Attributes that are None are left out. Raise a ProgramError if the program gets too
        long. Subclasses override this.
        """
        self.count_operation()
        return self.builder.emit(name, operands, _without_none(attrs), blocks=blocks, loc=self.loc)

    def emitted(self, name: str, operands: tuple[Value, ...], blocks: tuple[Block, ...] = (), **attrs: Any) -> Op:
        """Return a new loop operation `name` with these operands, nested blocks and attributes, without appending it to
        any block. Attributes that are None are left out. Raise a ProgramError if the program gets too long.
        """
        self.count_operation()
        return self.builder.create(name, operands, _without_none(attrs), blocks=blocks, loc=self.loc)

    def count_operation(self) -> None:
        """Add one to the number of loop operations created so far. Raise a ProgramError if it exceeds the limit for a
        program (`limits.WRITTEN`).
        """
        self.made_so_far += 1
        if WRITTEN.refuses(self.made_so_far):
            raise ProgramError(f"{self.program.name}: {WRITTEN.rule}; unroll less, or cut into smaller tiles", self.loc)

    @property
    def blocks(self) -> list[Block]:
        """The stack of blocks that are being written: the outermost first, the innermost last."""
        return self.builder.blocks

    def writing(self, block: Block) -> AbstractContextManager[Block]:
        """Return a context manager: operations emitted within it are appended to `block`."""
        return self.builder.into(block)

    def fresh(self, name: str) -> str:
        """Return a name that no symbol of the loop program has yet: `name` with a new number (`i` -> `i_7`). The number
        is used up.
        """
        self.count += 1
        while f"{name}_{self.count}" in self.parameters:  # the only names that are not made here
            self.count += 1
        return f"{name}_{self.count}"

    def axis(self, name: str, extent: Size) -> Symbol:
        """Return a new symbol, named after `name`, with values from 0 to `extent` - 1. Nothing is emitted. An extent
        that is always below 1 counts as 1, because symbols need a value.
        """
        if isinstance(extent, Expr) and extent.hi >= 1:
            return index(self.fresh(name), extent)
        return index(self.fresh(name), max(1, int(extent)) if isinstance(extent, int) else 1)

    def register(self, dtype: DType, *shape: int, name: str | None = None) -> Value:
        """Emit the allocation of a register with elements of type `dtype`, and return it. `shape` are its extents
        (none: a scalar). The name of the register begins with `name` (None: no name).
        """
        kind = VectorType(dtype, tuple(as_expr(n) for n in shape))
        value = self.emit("alloc", type=kind).results[0]
        value.name = None if name is None else self.fresh(name)
        return value

    def scratch(self, dtype: DType, shape: tuple[int, ...], name: str = "scratch") -> PlacedMemory:
        """Emit the allocation of memory that only this worker uses, and return it as a packed tensor with this element
        type and shape. The name of the memory begins with `name`.
        """
        exprs = tuple(as_expr(n) for n in shape)
        size = 1
        for n in shape:
            size *= n
        value = self.emit("alloc", type=TensorType("shared", dtype, (as_expr(size),))).results[0]
        value.name = self.fresh(name)
        return PlacedMemory(value, dtype, shape, numbers(packed(exprs), name))

    def table(self, entry: Expr, over: Symbol, dtype: DType) -> Value:
        """Return a constant table with the value of the expression `entry` for each value of the symbol `over`, as
        elements of type `dtype`. Example: entry 3*u, u from 0 to 3 -> 0, 3, 6, 9. The `constant` operation of the table
        is inserted at the start of the outermost block. Equal calls return the same table.
        """
        key = (entry, over, dtype)
        table = self.tables.get(key)
        if table is None:
            attrs = {"dtype": dtype, "over": (over,), "value": entry}
            op = self.builder.create("constant", (), attrs, names=(self.fresh("table"),))
            table = op.result
            self.blocks[0].ops.insert(0, op)
            self.tables[key] = table
        return table

    @contextmanager
    def loop(self, name: str, lo: Expr | int, hi: Expr | int, step: int = 1) -> Iterator[Expr]:
        """Emit a loop from `lo` to `hi` (exclusive) by `step` around the operations written within this context, and
        yield the loop variable. Emit no loop and yield `lo` if `hi` - `lo` is the constant 1. The name of the variable
        begins with `name`.
        """
        lo, hi = as_expr(lo), as_expr(hi)
        count = hi - lo
        if count is as_expr(1):
            yield lo
            return
        loop_range = Range.of(self.fresh(name), lo, hi, step)
        inner = Block(())
        with self.writing(inner):
            yield loop_range.symbol
        self.emit("for", ranges=(loop_range,), blocks=(inner,))

    def vectors(self, size: int, lanes: int, few: int = 16) -> Iterator[tuple[Expr, int]]:
        """Yield (start index, number of elements) of vectors that cover an axis of `size` elements: full ones of
        `lanes` elements, then a shorter one for the rest.

        If there are more than `few` full vectors, they are yielded once, within an emitted loop: the start index is
        then an expression of the loop variable, and the code that the caller emits until the next yield is the loop
        body. With `self.straight` there is no loop.
        """
        full, tail = divmod(size, lanes)
        if self.straight or full <= few:
            for block in range(full):
                yield as_expr(block * lanes), lanes
        else:
            with self.loop("v", 0, full) as i:
                yield lanes * i, lanes
        if tail:
            yield as_expr(full * lanes), tail

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """Emit the operations written within this context inside an `if` operation with this condition. Subclasses
        override this.
        """
        inner = Block(())
        with self.writing(inner):
            yield
        self.emit("if", when=condition, blocks=(inner,))

    # -- meaning --------------------------------------------------------------------------------------------

    def expr(self, e: Expr) -> Expr:
        """Return the expression `e` with each symbol replaced by its expression in `self.meaning`: symbols of the block
        program become expressions of the loop program.
        """
        return Substitution(self.meaning)(e) if self.meaning else e

    @contextmanager
    def means(self, meanings: Mapping[Symbol, Expr]) -> Iterator[None]:
        """Within this context, let `expr` replace each symbol in `meanings` by its expression. Afterwards the meanings
        are as before the context.
        """
        before = self.meaning
        self.meaning = {**before, **meanings}
        try:
            yield
        finally:
            self.meaning = before

    def memory(self, value: Value) -> PlacedMemory | PlacedView:
        """Return the buffer, strides and start of the tensor `value`, which an earlier operation has put into memory,
        as a PlacedMemory, or as a PlacedView if it is a view. Raise an AssertionError if `value` is in registers.
        """
        handle = self.handles[value]
        if isinstance(handle, PlacedMemory | PlacedView):
            return handle
        raise AssertionError(f"{value.name} is not in memory")

    def unlimited(self, name: str) -> Symbol:
        """Return a new symbol, named after `name`, that may have any integer value."""
        return symbol(self.fresh(name))

    def symbol(self, name: str, lo: int, hi: int) -> Symbol:
        """Return a new symbol, named after `name`, for a number from `lo` to `hi` (inclusive). The caller emits the
        operation that reads the number at run time.
        """
        return symbol(self.fresh(name), lo, hi)


def _without_none(attrs: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `attrs`, {name of an attribute: value}, without the attributes that are None."""
    return {name: value for name, value in attrs.items() if value is not None}


def memory_of(buffer: Value, kind: TensorType) -> PlacedMemory:
    """Return the PlacedMemory (buffer, shape, strides, swizzle) of a tensor of type `kind` that begins at the first
    element of `buffer`. Nothing is emitted.
    """
    return PlacedMemory(buffer, kind.dtype, sizes(kind.shape), sizes(kind.steps), kind.swizzle)


def let(low: LoopLowering, op: Op) -> None:
    """Lower `let`, which defines a symbol: `low.expr` replaces this symbol by its definition from here on. Nothing is
    emitted.
    """
    name = op.attrs["symbol"]
    low.meaning = {**low.meaning, name: low.expr(name.definition)}
