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
        """Return the number of elements that one iteration of an elementwise loop computes: those of one vector
        register in the widest of the element types `dtypes`.

        On a CPU it is several vectors if one of the loop's `formulas` has a function (exp, sin, ...), so that their
        latencies overlap.
        """
        lanes = [self.vector_lanes(t) for t in dtypes]
        if self.here.lanes is not None or all(f.name not in FUNCTIONS for formula in formulas for f in formula.walk()):
            return min(lanes)
        return max(min(lanes), min(lanes) * self.here.limits.registers // IN_A_FUNCTION)

    @cached_property
    def touching(self) -> dict[Value, set[Op]]:
        """{tensor that is no view: set of the operations that use it, directly or through views}, for the whole block
        program. Views and bitcasts are not counted as uses.
        """
        ops_of: dict[Value, set[Op]] = {}
        for op in self.program.walk():
            for value in op.operands if op.name not in ("view", "bitcast") else ():
                ops_of.setdefault(self.chain.root(value), set()).add(op)
        return ops_of

    def is_own(self, value: Value, ops: set[Op]) -> bool:
        """True if an `alloc` of the program makes the tensor `value`, and no operation outside the set `ops` uses it.
        Views and arguments are not own; a tensor that nothing uses is.
        """
        maker = self.makers.get(value)
        return maker is not None and maker.name == "alloc" and self.touching.get(value, set()) <= ops

    @cached_property
    def _idle(self) -> set[Op]:
        """The operations of the block program that never run, because they are in loops without iterations for all open
        sizes (sizes known only at the call).
        """
        return never_runs(self.program)

    def answer(self, op: Op) -> Answer | None:
        """Return the Answer (atom and conditions) of the copy atom that the attribute `by` of the copy `op` names.

        Its conditions on open sizes (known only at the call) are also added to `self.guards`, which the program checks.
        Return None if `op` names no atom, if it never runs, or if there is no machine. Raise a ProgramError if the atom
        cannot do the copy.
        """
        if "by" not in op.attrs or self.machine is None or op in self._idle:
            return None
        answer_of_atom = answer(op, self.machine, self.chain, {s.name for s in self.open})
        self.guards |= dict.fromkeys(condition.that for condition in answer_of_atom.conditions)
        return answer_of_atom

    # -- the walk -----------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """Lower every operation of `block` in order: the loop operations go to the block being written. Subclasses
        override this.
        """
        for op in block.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        """Lower one block operation: call the rule for its name, which emits loop operations.

        Raise a ProgramError if there is no rule; a ProgramError of the rule gets the location of `op` if it has none. A
        `debug_log` is skipped with a warning.
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
        """Append a new loop operation `name` to the block being written, and return it. `operands`, `blocks` (nested
        blocks) and `attrs` are its parts; attributes that are None are left out. Subclasses override this.
        """
        self.count_operation()
        return self.builder.emit(name, operands, _without_none(attrs), blocks=blocks, loc=self.loc)

    def emitted(self, name: str, operands: tuple[Value, ...], blocks: tuple[Block, ...] = (), **attrs: Any) -> Op:
        """Return a new loop operation `name` with these operands, nested blocks and attributes, without appending it to
        any block. Attributes that are None are left out.
        """
        self.count_operation()
        return self.builder.create(name, operands, _without_none(attrs), blocks=blocks, loc=self.loc)

    def count_operation(self) -> None:
        """Add one to the number of loop operations made so far. Raise a ProgramError if that is more than a program may
        have.
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
        """Return a name that no symbol of the loop program has yet: `name` with a new number (`i` -> `i_7`)."""
        self.count += 1
        while f"{name}_{self.count}" in self.parameters:  # the only names that are not made here
            self.count += 1
        return f"{name}_{self.count}"

    def axis(self, name: str, extent: Size) -> Symbol:
        """Return a new symbol, named after `name`, with values from 0 to `extent` - 1. Nothing is emitted. An extent
        that is always below 1 counts as 1: no element uses the symbol then.
        """
        if isinstance(extent, Expr) and extent.hi >= 1:
            return index(self.fresh(name), extent)
        return index(self.fresh(name), max(1, int(extent)) if isinstance(extent, int) else 1)

    def register(self, dtype: DType, *shape: int, name: str | None = None) -> Value:
        """Emit the allocation of a register with elements of type `dtype`, and return it. `shape` are its extents
        (none: a scalar); `name` is the start of its name in the program.
        """
        kind = VectorType(dtype, tuple(as_expr(n) for n in shape))
        value = self.emit("alloc", type=kind).results[0]
        value.name = None if name is None else self.fresh(name)
        return value

    def scratch(self, dtype: DType, shape: tuple[int, ...], name: str = "scratch") -> PlacedMemory:
        """Emit the allocation of memory that only this worker uses, and return it as a packed tensor with this element
        type and shape. `name` is the start of its name in the program.
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
        elements of type `dtype`. Example: entry 3*u, u from 0 to 3 -> 0, 3, 6, 9. Its definition is inserted at the
        start of the outermost block. Equal calls return the same table.
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
        yield its variable. If `hi` - `lo` is 1, emit no loop and yield `lo`. `name` is the start of the variable's
        name.
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

        More than `few` full vectors are emitted as a loop, unless `self.straight` is set: it yields once, start is an
        expression of the loop variable, and code emitted until the next yield is its body. Otherwise each vector is
        yielded by itself.
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
        """Return the expression `e` with symbols of the block program replaced by what they mean in the loop program at
        this point.
        """
        return Substitution(self.meaning)(e) if self.meaning else e

    @contextmanager
    def means(self, meanings: Mapping[Symbol, Expr]) -> Iterator[None]:
        """Within this context, let `expr` replace each symbol in `meanings` by its expression; afterwards the meanings
        are as before.
        """
        before = self.meaning
        self.meaning = {**before, **meanings}
        try:
            yield
        finally:
            self.meaning = before

    def memory(self, value: Value) -> PlacedMemory | PlacedView:
        """Return the lowered form (buffer, strides, start) of a tensor that is in memory. Raise an AssertionError if
        `value` is in registers.
        """
        handle = self.handles[value]
        if isinstance(handle, PlacedMemory | PlacedView):
            return handle
        raise AssertionError(f"{value.name} is not in memory")

    def unlimited(self, name: str) -> Symbol:
        """Return a new symbol, named after `name`, whose value may be any integer."""
        return symbol(self.fresh(name))

    def symbol(self, name: str, lo: int, hi: int) -> Symbol:
        """Return a new symbol, named after `name`, for a number from `lo` to `hi` (inclusive). The caller emits the
        operation that reads the number at run time.
        """
        return symbol(self.fresh(name), lo, hi)


def _without_none(attrs: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the attributes `attrs` of an operation without those whose value is None."""
    return {name: value for name, value in attrs.items() if value is not None}


def memory_of(buffer: Value, kind: TensorType) -> PlacedMemory:
    """Return the lowered form of a tensor of type `kind` whose first element is the first element of `buffer`. Nothing
    is emitted.
    """
    return PlacedMemory(buffer, kind.dtype, sizes(kind.shape), sizes(kind.steps), kind.swizzle)


def let(low: LoopLowering, op: Op) -> None:
    """Lower `let`, which defines a symbol: record that the symbol now means its definition. Nothing is emitted."""
    name = op.attrs["symbol"]
    low.meaning = {**low.meaning, name: low.expr(name.definition)}
