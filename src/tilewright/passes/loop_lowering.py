"""The state of a lowering from block to loop: what every rule of an operation is handed, and writes with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, as_expr, index, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.check.copies import Answer, answer, never_runs
from tilewright.check.places import Places
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
from tilewright.passes.places import PlacedMemory, PlacedView, Size, sizes

Rule = Callable[[Any, Op], None]
"""What writes an operation as loops: it takes the lowering, of the class that its table is for, and the operation."""
IN_A_FUNCTION = 8
"""Registers that a vector takes on its way through a function, with its share of the numbers that all need."""


class LoopLowering:
    """One walk over a program: what names mean, what values became, and the block that is being written.

    `rules` say what writes the loops of an operation, by its name. They come from the file that begins the walk, which
    knows the files of all rules; those know this class.
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
        self.loc: Any = None  # of the operation that is lowered
        self.count = 0
        self.made_so_far = 0  # operations of the loop level
        self.parameters = {s.name for s in parameters(program)}
        self.slow: dict[str, str] = {}
        self.tiles = 0  # tile registers in use
        self.tables: dict[tuple[Expr, Symbol, DType], Value] = {}
        self.straight = 0  # above zero: no loops, the operations are to be woven into others
        self.guards: dict[Expr, None] = {}  # what copy atoms ask of open sizes
        self.viewed = {self.chain.root(op.operands[0]) for op in program.walk() if op.name in ("view", "bitcast")}

    def available(self, atom: MultiplyAtom) -> bool:
        """Whether the machine that the program is to run on has an atom."""
        return atom.name in self.here.multiply

    def vector_lanes(self, dtype: DType) -> int:
        """The elements of a vector register."""
        return max(1, self.vector_bytes // dtype.numpy.itemsize)

    def interleaved(self, dtypes: Iterable[DType], formulas: Iterable[Formula]) -> int:
        """The elements that go through formulas at a time: a vector register of them or, since each step of a function
        waits for the one before, as many vectors as registers hold."""
        lanes = [self.vector_lanes(t) for t in dtypes]
        if self.here.lanes is not None or all(f.name not in FUNCTIONS for formula in formulas for f in formula.walk()):
            return min(lanes)
        return max(min(lanes), min(lanes) * self.here.limits.registers // IN_A_FUNCTION)

    @cached_property
    def touching(self) -> dict[Value, set[Op]]:
        """By tensor at the bottom of views: the operations that read or write it."""
        found: dict[Value, set[Op]] = {}
        for op in self.program.walk():
            for value in op.operands if op.name not in ("view", "bitcast") else ():
                found.setdefault(self.chain.root(value), set()).add(op)
        return found

    def is_own(self, value: Value, ops: set[Op]) -> bool:
        """Whether memory is the program's own, and no others than these operations look at it."""
        made = self.made.get(value)
        return made is not None and made.name == "alloc" and self.touching[value] <= ops

    @cached_property
    def _idle(self) -> set[Op]:
        """The operations that never run, whatever the sizes."""
        return never_runs(self.program)

    def answer(self, op: Op) -> Answer | None:
        """What the atom says that a copy names; None where it names none. What it asks of open sizes is kept."""
        if "by" not in op.attrs or self.machine is None or op in self._idle:
            return None
        found = answer(op, self.machine, self.chain, {s.name for s in self.open})
        self.guards |= dict.fromkeys(condition.that for condition in found.conditions)
        return found

    # -- the walk -----------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """Every operation of a block, one after another."""
        for op in block.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        """One operation."""
        if op.name == "debug_log":
            warnings.warn(f"{op_text(op)}: only the interpreter keeps logs", InterpreterOnlyWarning, stacklevel=2)
            return
        rule = self.rules.get(op.name)
        if rule is None:
            raise ProgramError(f"{op.name} has no form on {self.here.name} yet; target='interpreter' runs it", op.loc)
        around, self.loc = self.loc, op.loc
        try:
            rule(self, op)
        except ProgramError as fault:
            raise type(fault)(fault.what, fault.location or op.loc) from None
        finally:
            self.loc = around

    # -- writing --------------------------------------------------------------------------------------------

    def emit(self, name: str, operands: tuple[Value, ...] = (), blocks: tuple[Block, ...] = (), **attrs: Any) -> Op:
        """A loop operation at the end of the open block, at the line of the operation that is lowered."""
        self.another()
        return self.builder.emit(name, operands, _given(attrs), blocks=blocks, loc=self.loc)

    def emitted(self, name: str, operands: tuple[Value, ...], blocks: tuple[Block, ...] = (), **attrs: Any) -> Op:
        """A loop operation that is not written yet."""
        self.another()
        return self.builder.made(name, operands, _given(attrs), blocks=blocks, loc=self.loc)

    def another(self) -> None:
        """Counts an operation of the loop level: what would be unrolled without end is refused before it is."""
        self.made_so_far += 1
        if WRITTEN.refuses(self.made_so_far):
            raise ProgramError(f"{self.program.name}: {WRITTEN.rule}; unroll less, or cut into smaller tiles", self.loc)

    @property
    def blocks(self) -> list[Block]:
        """The blocks that are open, the innermost last."""
        return self.builder.blocks

    def writing(self, block: Block) -> AbstractContextManager[Block]:
        """Within it, operations are appended to this block."""
        return self.builder.into(block)

    def fresh(self, name: str) -> str:
        """A name that no symbol has."""
        self.count += 1
        while f"{name}_{self.count}" in self.parameters:  # the only names that stay as they were
            self.count += 1
        return f"{name}_{self.count}"

    def axis(self, name: str, extent: Size) -> Symbol:
        """A fresh symbol that runs from 0; where there is nothing to run over, nobody looks at it."""
        if isinstance(extent, Expr) and extent.hi >= 1:
            return index(self.fresh(name), extent)
        return index(self.fresh(name), max(1, int(extent)) if isinstance(extent, int) else 1)

    def register(self, dtype: DType, *shape: int, name: str | None = None) -> Value:
        """A fresh register."""
        kind = VectorType(dtype, tuple(as_expr(n) for n in shape))
        value = self.emit("alloc", type=kind).results[0]
        value.name = None if name is None else self.fresh(name)
        return value

    def scratch(self, dtype: DType, shape: tuple[int, ...], name: str = "scratch") -> PlacedMemory:
        """Fresh memory of the worker's own."""
        exprs = tuple(as_expr(n) for n in shape)
        size = 1
        for n in shape:
            size *= n
        value = self.emit("alloc", type=TensorType("shared", dtype, (as_expr(size),))).results[0]
        value.name = self.fresh(name)
        return PlacedMemory(value, dtype, shape, numbers(packed(exprs), name))

    def table(self, entry: Expr, over: Symbol, dtype: DType) -> Value:
        """A constant table at the beginning of the program; the same one for the same entries."""
        key = (entry, over, dtype)
        found = self.tables.get(key)
        if found is None:
            attrs = {"dtype": dtype, "over": (over,), "value": entry}
            op = self.builder.made("constant", (), attrs, names=(self.fresh("table"),))
            found = op.result
            self.blocks[0].ops.insert(0, op)
            self.tables[key] = found
        return found

    @contextmanager
    def loop(self, name: str, lo: Expr | int, hi: Expr | int, step: int = 1) -> Iterator[Expr]:
        """A loop; gives its variable. A loop of one round is written without one."""
        lo, hi = as_expr(lo), as_expr(hi)
        one = hi - lo
        if one is as_expr(1):
            yield lo
            return
        found = Range.of(self.fresh(name), lo, hi, step)
        inner = Block(())
        with self.writing(inner):
            yield found.symbol
        self.emit("for", ranges=(found,), blocks=(inner,))

    def vectors(self, size: int, lanes: int, few: int = 16) -> Iterator[tuple[Expr, int]]:
        """(start, elements) of the vectors along an axis: more than a few whole ones are a loop, others are unrolled.

        What is written while one is at hand stands in that loop.
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
        """What is written within happens only under a condition."""
        inner = Block(())
        with self.writing(inner):
            yield
        self.emit("if", when=condition, blocks=(inner,))

    # -- meaning --------------------------------------------------------------------------------------------

    def expr(self, e: Expr) -> Expr:
        """The expression in terms of the loop program's variables."""
        return Substitution(self.meaning)(e) if self.meaning else e

    @contextmanager
    def means(self, meanings: Mapping[Symbol, Expr]) -> Iterator[None]:
        """Within it, these symbols stand for expressions."""
        before = self.meaning
        self.meaning = {**before, **meanings}
        try:
            yield
        finally:
            self.meaning = before

    def memory(self, value: Value) -> PlacedMemory | PlacedView:
        """A value that is in memory by now."""
        found = self.handles[value]
        if isinstance(found, PlacedMemory | PlacedView):
            return found
        raise AssertionError(f"{value.name} is not in memory")

    def unlimited(self, name: str) -> Symbol:
        """A fresh symbol of which nothing is known."""
        return symbol(self.fresh(name))

    def symbol(self, name: str, lo: int, hi: int) -> Symbol:
        """A fresh symbol with limits, for a number that is read at run time."""
        return symbol(self.fresh(name), lo, hi)


def _given(attrs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attrs.items() if value is not None}


def memory_of(buffer: Value, kind: TensorType) -> PlacedMemory:
    """The tensor of that type at the start of a buffer."""
    return PlacedMemory(buffer, kind.dtype, sizes(kind.shape), sizes(kind.steps), kind.swizzle)


def let(low: LoopLowering, op: Op) -> None:
    """A name: expressions have what it stands for instead."""
    found = op.attrs["symbol"]
    low.meaning = {**low.meaning, found: low.expr(found.definition)}
