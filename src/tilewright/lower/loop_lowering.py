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
        self.made = program.makers()
        self.chain = Places(program, self.made)
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
        """True if the machine that runs the program has the MMA atom."""
        return atom.name in self.here.multiply

    def vector_lanes(self, dtype: DType) -> int:
        """Return the number of elements of a type that a vector register holds, at least 1."""
        return max(1, self.vector_bytes // dtype.numpy.itemsize)

    def interleaved(self, dtypes: Iterable[DType], formulas: Iterable[Formula]) -> int:
        """Return the number of elements that are computed at once: those of one vector register, or of several if a
        formula has a function (exp, sin, ...), whose steps wait for each other. `dtypes` are the element types in use.
        """
        lanes = [self.vector_lanes(t) for t in dtypes]
        if self.here.lanes is not None or all(f.name not in FUNCTIONS for formula in formulas for f in formula.walk()):
            return min(lanes)
        return max(min(lanes), min(lanes) * self.here.limits.registers // IN_A_FUNCTION)

    @cached_property
    def touching(self) -> dict[Value, set[Op]]:
        """{tensor that is no view: operations that read or write it, directly or through views}."""
        ops_of: dict[Value, set[Op]] = {}
        for op in self.program.walk():
            for value in op.operands if op.name not in ("view", "bitcast") else ():
                ops_of.setdefault(self.chain.root(value), set()).add(op)
        return ops_of

    def is_own(self, value: Value, ops: set[Op]) -> bool:
        """True if `value` is allocated by the program, and no operation outside `ops` uses it."""
        maker = self.made.get(value)
        return maker is not None and maker.name == "alloc" and self.touching[value] <= ops

    @cached_property
    def _idle(self) -> set[Op]:
        """The operations that never run, whatever the open sizes are."""
        return never_runs(self.program)

    def answer(self, op: Op) -> Answer | None:
        """Return what the copy atom that `op` names says about this copy; None if `op` names no atom, or never runs.
        The conditions on open sizes under which the atom can copy are added to `guards`.
        """
        if "by" not in op.attrs or self.machine is None or op in self._idle:
            return None
        answer_of_atom = answer(op, self.machine, self.chain, {s.name for s in self.open})
        self.guards |= dict.fromkeys(condition.that for condition in answer_of_atom.conditions)
        return answer_of_atom

    # -- the walk -----------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """Lower every operation of a block, one after another."""
        for op in block.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        """Lower one operation by its rule; a ProgramError without a location gets that of the operation. A `debug_log`
        is skipped with a warning; an operation without a rule raises a ProgramError.
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
        """Append a loop operation to the block being written and return it; attributes that are None are left out."""
        self.count_operation()
        return self.builder.emit(name, operands, _without_none(attrs), blocks=blocks, loc=self.loc)

    def emitted(self, name: str, operands: tuple[Value, ...], blocks: tuple[Block, ...] = (), **attrs: Any) -> Op:
        """Return a new loop operation that is not appended to any block; attributes that are None are left out."""
        self.count_operation()
        return self.builder.made(name, operands, _without_none(attrs), blocks=blocks, loc=self.loc)

    def count_operation(self) -> None:
        """Count one more loop operation; raise a ProgramError if there are more than a program may have."""
        self.made_so_far += 1
        if WRITTEN.refuses(self.made_so_far):
            raise ProgramError(f"{self.program.name}: {WRITTEN.rule}; unroll less, or cut into smaller tiles", self.loc)

    @property
    def blocks(self) -> list[Block]:
        """The blocks that are being written, the innermost last."""
        return self.builder.blocks

    def writing(self, block: Block) -> AbstractContextManager[Block]:
        """Append the operations emitted within this context to `block`."""
        return self.builder.into(block)

    def fresh(self, name: str) -> str:
        """Return `name` with a number, so that no symbol has this name yet."""
        self.count += 1
        while f"{name}_{self.count}" in self.parameters:  # the only names that are not made here
            self.count += 1
        return f"{name}_{self.count}"

    def axis(self, name: str, extent: Size) -> Symbol:
        """Return a new symbol, named after `name`, that runs from 0 to `extent`; an empty extent counts as 1, because
        nothing uses its symbol.
        """
        if isinstance(extent, Expr) and extent.hi >= 1:
            return index(self.fresh(name), extent)
        return index(self.fresh(name), max(1, int(extent)) if isinstance(extent, int) else 1)

    def register(self, dtype: DType, *shape: int, name: str | None = None) -> Value:
        """Return a newly allocated register of this element type and shape."""
        kind = VectorType(dtype, tuple(as_expr(n) for n in shape))
        value = self.emit("alloc", type=kind).results[0]
        value.name = None if name is None else self.fresh(name)
        return value

    def scratch(self, dtype: DType, shape: tuple[int, ...], name: str = "scratch") -> PlacedMemory:
        """Return newly allocated memory of this element type and shape that only this worker uses."""
        exprs = tuple(as_expr(n) for n in shape)
        size = 1
        for n in shape:
            size *= n
        value = self.emit("alloc", type=TensorType("shared", dtype, (as_expr(size),))).results[0]
        value.name = self.fresh(name)
        return PlacedMemory(value, dtype, shape, numbers(packed(exprs), name))

    def table(self, entry: Expr, over: Symbol, dtype: DType) -> Value:
        """Return a constant table, allocated at the start of the program, that has the value of `entry` for each value
        of the symbol `over`. Equal tables are shared.
        """
        key = (entry, over, dtype)
        table = self.tables.get(key)
        if table is None:
            attrs = {"dtype": dtype, "over": (over,), "value": entry}
            op = self.builder.made("constant", (), attrs, names=(self.fresh("table"),))
            table = op.result
            self.blocks[0].ops.insert(0, op)
            self.tables[key] = table
        return table

    @contextmanager
    def loop(self, name: str, lo: Expr | int, hi: Expr | int, step: int = 1) -> Iterator[Expr]:
        """Emit a loop around the operations written within this context, and yield its variable; a loop of one
        iteration is omitted.
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
        """Yield (start, elements) of the vectors of `lanes` elements along an axis of `size` elements, the shorter last
        one too. More than `few` full vectors become a loop, others are unrolled; code emitted between two yields is in
        that loop.
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
        """Emit the operations written within this context under a condition."""
        inner = Block(())
        with self.writing(inner):
            yield
        self.emit("if", when=condition, blocks=(inner,))

    # -- meaning --------------------------------------------------------------------------------------------

    def expr(self, e: Expr) -> Expr:
        """Return the expression with the block program's symbols replaced by the loop program's."""
        return Substitution(self.meaning)(e) if self.meaning else e

    @contextmanager
    def means(self, meanings: Mapping[Symbol, Expr]) -> Iterator[None]:
        """Replace symbols by the expressions in `meanings` within this context."""
        before = self.meaning
        self.meaning = {**before, **meanings}
        try:
            yield
        finally:
            self.meaning = before

    def memory(self, value: Value) -> PlacedMemory | PlacedView:
        """Return the lowered form of a value that is in memory; any other value is an internal error."""
        handle = self.handles[value]
        if isinstance(handle, PlacedMemory | PlacedView):
            return handle
        raise AssertionError(f"{value.name} is not in memory")

    def unlimited(self, name: str) -> Symbol:
        """Return a new symbol, named after `name`, of whose value nothing is known."""
        return symbol(self.fresh(name))

    def symbol(self, name: str, lo: int, hi: int) -> Symbol:
        """Return a new symbol, named after `name`, with values from `lo` to `hi`, for a number that is read at run
        time.
        """
        return symbol(self.fresh(name), lo, hi)


def _without_none(attrs: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that are not None."""
    return {name: value for name, value in attrs.items() if value is not None}


def memory_of(buffer: Value, kind: TensorType) -> PlacedMemory:
    """Return the tensor of type `kind` that begins at the start of a buffer."""
    return PlacedMemory(buffer, kind.dtype, sizes(kind.shape), sizes(kind.steps), kind.swizzle)


def let(low: LoopLowering, op: Op) -> None:
    """Lower `let`: from here on, its symbol means its definition."""
    name = op.attrs["symbol"]
    low.meaning = {**low.meaning, name: low.expr(name.definition)}
