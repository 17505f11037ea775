"""What must hold of a block program while parameters are open: what is a number, and what lies within its tensor.

Tensors in memory, limits of loops and coordinates may depend on open parameters; what is held in registers may not, nor
shared memory where the machine has so much of it and no more. A coordinate that is not marked with ? must be shown to
lie inside for all values.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.algebra.expr import Const, Exact, Expr, FloorDiv, Mod, Symbol
from tilewright.algebra.expr_prove import is_nonneg
from tilewright.algebra.expr_use import Substitution
from tilewright.check.inside import fails, holds, shown
from tilewright.errors import ProgramError
from tilewright.ir.attrs import kind_of
from tilewright.ir.binding import open_parameters
from tilewright.ir.block import shape_text
from tilewright.ir.core import Block, Op, Program
from tilewright.ir.printer import op_text
from tilewright.ir.tensors import TensorType
from tilewright.machine import Machine

WHOLE = ("fill", "copy", "map", "view", "bitcast", "debug_log", "reduce", "scan", "gather", "scatter", "atomic")
"""The operations that take tensors whose sizes are open."""


def check_open(program: Program, machine: Machine | None = None) -> None:
    """Raises a ProgramError at the first thing that must not depend on an open parameter.

    >>> from tilewright.ir.block import parse_block
    >>> check_open(parse_block('''block f(%x: in global f32 (M))
    ...   param M in 1..100
    ... {
    ...   %row = alloc register f32 (M) by (1,8):(0,1)
    ... }'''))
    Traceback (most recent call last):
        ...
    tilewright.errors.ProgramError: %row: its shape (M) depends on the open parameter M; what lies in registers has a
    size that is a number: bind M when the text is compiled
      line 4:
        %row = alloc register f32 (M) by (1,8):(0,1)
               ^
    """
    _Check(program, machine).run()


def check_divisors(program: Program) -> None:
    """Raises a ProgramError where a divisor may be zero for some value of an open parameter."""
    _Check(program, None).divisors()


class _Check:
    def __init__(self, program: Program, machine: Machine | None):
        self.program = program
        self.scarce = machine is not None and machine.spaces["shared"].bytes is not None
        self.open = {s.name for s in open_parameters(program)}
        self.lets: dict[Symbol, Expr] = {}
        self.facts: list[Expr] = []

    def run(self) -> None:
        for record in self.program.records:
            if record.name == "let":
                self._let(record)
            if record.name == "waves":
                self._numbers(record, (record.attrs["count"],), "waves")
            if record.name == "require":  # a call is refused where it does not hold
                self.facts += holds(self._expanded(record.attrs["that"]))
        self.divisors()
        self._block(self.program.body)

    def divisors(self) -> None:
        """A divisor is at least one for all values: quotients are worked out also where nobody looks at them."""
        for arg in self.program.args:
            self._divisors(arg.type.expressions(), f"%{arg.name}", None)
        for op in (*self.program.records, *self.program.walk()):
            for name, value in op.attrs.items():
                self._divisors(kind_of(op.spec.attrs[name]).expressions(value), op_text(op), op)

    def _block(self, block: Block) -> None:
        before = self.lets
        for op in block.ops:
            self._op(op)
            if op.name == "if":
                when, facts = self._expanded(op.attrs["when"]), self.facts
                for inner, more in zip(op.blocks, (holds(when), fails(when)), strict=False):
                    self.facts = [*facts, *more]
                    self._block(inner)
                self.facts = facts
                continue
            if any(self._never(r.lo, r.hi) for r in op.attrs.get("ranges", ())):
                continue
            for inner in op.blocks:
                self._block(inner)
        self.lets = before

    def _never(self, lo: Expr, hi: Expr) -> bool:
        """Whether a loop has no rounds, whatever the values."""
        return (self._expanded(hi) - self._expanded(lo)).hi <= 0

    def _let(self, op: Op) -> None:
        found = op.attrs["symbol"]
        self.lets = {**self.lets, found: self._expanded(found.definition)}

    def _expanded(self, e: Expr) -> Expr:
        """The expression with lets written out."""
        return Substitution(self.lets)(e) if self.lets else e

    def _named(self, exprs: Iterable[Expr]) -> str:
        """The open parameters that expressions depend on, themselves or by their symbols' limits.

        They are known by their names: in the name of an atom a parameter stands without its range.
        """
        found: set[Symbol] = set()
        stack = [self._expanded(e) for e in exprs]
        while stack:
            for s in stack.pop().symbols - found:
                found.add(s)
                stack += [e for e in (s.lower, s.upper, s.definition) if e is not None]
        return ", ".join(sorted({s.name for s in found} & self.open))

    # -- numbers --------------------------------------------------------------------------------------

    def _op(self, op: Op) -> None:
        for name, value in op.attrs.items():
            kind = op.spec.attrs[name].rstrip("?")
            exprs = tuple(kind_of(kind).expressions(value))
            if kind in ("count", "dotted") or name == "peel":
                self._numbers(op, exprs, f"{op_text(op)}: {name}")
        if op.name == "let":
            self._let(op)
        elif op.name == "alloc":
            self._alloc(op)
        elif op.name in ("reduce", "scan"):
            self._along(op)
        elif op.name not in WHOLE:
            self._sizes(op)
        if op.name == "tasks":
            self._tasks(op)
        if "at" in op.attrs and op.name in ("view", "gather", "scatter", "atomic"):
            self._coordinates(op)

    def _numbers(self, op: Op, exprs: Iterable[Expr], what: str) -> None:
        names = self._named(exprs)
        if names:
            raise ProgramError(f"{what} must be a number; it depends on the open parameter {names}", op.loc)

    def _alloc(self, op: Op) -> None:
        kind = op.attrs["type"]
        names, value = self._named(kind.expressions()), f"%{op.results[0].name}: its shape {shape_text(kind.shape)}"
        if names and (self.scarce or not isinstance(kind, TensorType)):
            where = "shared memory" if isinstance(kind, TensorType) else "registers"
            raise ProgramError(
                f"{value} depends on the open parameter {names}; what lies in {where} has a size that is a number: "
                f"bind {names} when the text is compiled",
                op.loc,
            )
        for s in self._expanded_symbols(kind.expressions()):
            if s.name not in self.open:
                raise ProgramError(f"{value} depends on {s.name}; memory has one size for all rounds", op.loc)

    def _expanded_symbols(self, exprs: Iterable[Expr]) -> set[Symbol]:
        return {s for e in exprs for s in self._expanded(e).symbols}

    def _along(self, op: Op) -> None:
        """What is combined along a dimension starts from its first element."""
        length = self._expanded(op.operands[0].type.shape[op.attrs["along"]])
        if not shown(length - 1, self.facts):
            raise ProgramError(
                f"{op_text(op)}: the extent {length} cannot be shown to be at least 1 for all values of "
                f"{self._named((length,))}",
                op.loc,
            )

    def _sizes(self, op: Op) -> None:
        """Only work that goes over elements takes tensors of open sizes."""
        for value in (v for v in op.operands if hasattr(v.type, "shape")):
            shape = value.type.shape
            names = self._named(shape)
            if names:
                raise ProgramError(
                    f"{op.name}: the shape {shape_text(shape)} of %{value.name} depends on the open parameter {names}; "
                    "view a part of it, of a size that is a number",
                    op.loc,
                )

    def _divisors(self, exprs: Iterable[Expr], what: str, op: Op | None) -> None:
        for e in exprs:
            for node in e.walk():
                if not isinstance(node, FloorDiv | Mod | Exact) or isinstance(node.right, Const):
                    continue
                names = self._named((node.right,))
                if names and not is_nonneg(node.right - 1):
                    raise ProgramError(
                        f"{what}: the divisor {node.right} may be zero or less; its parameters ({names}) need ranges "
                        "in which it is not",
                        None if op is None else op.loc,
                    )

    def _tasks(self, op: Op) -> None:
        own = {r.symbol for r in op.attrs["ranges"]}
        for r in op.attrs["ranges"]:
            for e in (r.lo, r.hi):
                if self._expanded(e).symbols & own:
                    raise ProgramError(
                        f"tasks: the limit {e} of {r.symbol.name} depends on another task variable; tasks are counted "
                        "before the first is done",
                        op.loc,
                    )

    # -- coordinates ----------------------------------------------------------------------------------

    def _shown(self, e: Expr, expanded: Expr) -> bool:
        """Whether an expression is never negative, with names for what follows from sizes or with these written out:
        products of names stay factors, and only what is written out meets facts."""
        return any(shown(each, self.facts) for each in dict.fromkeys((expanded, e)))

    def _coordinates(self, op: Op) -> None:
        base = op.operands[0 if op.name == "view" else 1]
        if not isinstance(base.type, TensorType):
            return
        data = {s for s, _ in op.attrs.get("where", ())}
        for dim, ((e, loose), size) in enumerate(zip(op.attrs["at"], base.type.shape, strict=True)):
            if loose or e.symbols & data or not self._named((e, size)):
                continue
            place, most = self._expanded(e), self._expanded(size)
            below, above = self._shown(e, place), self._shown(size - 1 - e, most - 1 - place)
            if not (below and above):
                end = f"at least 0{'' if above else f' and below {size}'}" if not below else f"below {size}"
                raise ProgramError(
                    f"{op_text(op)}: coordinate {dim}, {e}, cannot be shown to be {end} for all values of "
                    f"{self._named((e, size))}; if it may lie outside, mark it with ?",
                    op.loc,
                )
