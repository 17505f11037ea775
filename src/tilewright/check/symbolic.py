"""Checks of a block program with open parameters: what must be a constant, and which coordinates must be in bounds.

Tensors in memory, loop limits and coordinates may depend on open parameters. Register tensors may not, nor shared
memory on machines where its size is limited. A coordinate that is not marked with ? must be proved in bounds for all
values.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.algebra.expr import Const, Exact, Expr, FloorDiv, Mod, Symbol
from tilewright.algebra.expr_prove import is_nonneg
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.in_bounds import facts_if_false, facts_if_true, is_proved
from tilewright.errors import ProgramError
from tilewright.ir.attrs import kind_of
from tilewright.ir.binding import open_parameters
from tilewright.ir.block import shape_text
from tilewright.ir.core import Block, Op, Program
from tilewright.ir.printer import op_text
from tilewright.ir.tensors import TensorType
from tilewright.machine import Machine

WHOLE = ("fill", "copy", "map", "view", "bitcast", "debug_log", "reduce", "scan", "gather", "scatter", "atomic")
"""The operations that take tensors whose extents depend on open parameters."""


def check_open(program: Program, machine: Machine | None = None) -> None:
    """Raise a ProgramError at the first error that open parameters (sizes known only at the call) cause in `program`.

    Sizes of registers, counts and the extents of some operands must not depend on an open parameter. Nor may sizes of
    shared memory, if `machine` limits it. Divisors must be proved positive, and unmarked coordinates in bounds, for all
    values of the parameters.

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
    """Raise a ProgramError if a divisor in `program` depends on an open parameter (a size known only at the call) and
    is not proved to be at least 1 for all values of the parameter.
    """
    _Check(program, None).divisors()


class _Check:
    """The checks of one program with open parameters; `lets` and `facts` hold at the operation being checked."""

    def __init__(self, program: Program, machine: Machine | None):
        self.program = program
        self.scarce = machine is not None and machine.spaces["shared"].bytes is not None
        self.open = {s.name for s in open_parameters(program)}
        self.lets: dict[Symbol, Expr] = {}
        self.facts: list[Expr] = []

    def run(self) -> None:
        """Check the records, the divisors and all operations of the program. Raise a ProgramError at the first error.

        Add the values of `let` records to `self.lets`, and the conditions of `require` records, which proofs use, to
        `self.facts`.
        """
        for record in self.program.records:
            if record.name == "let":
                self._add_let(record)
            if record.name == "waves":
                self._require_constants(record, (record.attrs["count"],), "waves")
            if record.name == "require":  # a call is refused where it does not hold
                self.facts += facts_if_true(self._expanded(record.attrs["that"]))
        self.divisors()
        self._block(self.program.body)

    def divisors(self) -> None:
        """Raise a ProgramError if a divisor in an argument's type or an operation's attribute depends on an open
        parameter and is not proved to be at least 1. Operations that never run are checked too.
        """
        for arg in self.program.args:
            self._check_positive_divisors(arg.type.expressions(), f"%{arg.name}", None)
        for op in (*self.program.records, *self.program.walk()):
            for name, value in op.attrs.items():
                self._check_positive_divisors(kind_of(op.spec.attrs[name]).expressions(value), op_text(op), op)

    def _block(self, block: Block) -> None:
        """Check the operations of `block` and its inner blocks; raise a ProgramError at the first error.

        Proofs in the first block of an `if` use the condition as a fact, proofs in the second block use the negated
        condition. Bodies of loops without iterations are skipped. Names that `let` defines in `block` are removed from
        `self.lets` at the end.
        """
        outer_lets = self.lets
        for op in block.ops:
            self._check_op(op)
            if op.name == "if":
                condition, outer_facts = self._expanded(op.attrs["when"]), self.facts
                for inner_block, branch_facts in zip(
                    op.blocks, (facts_if_true(condition), facts_if_false(condition)), strict=False
                ):
                    self.facts = [*outer_facts, *branch_facts]
                    self._block(inner_block)
                self.facts = outer_facts
                continue
            if any(self._has_no_iterations(loop_range.lo, loop_range.hi) for loop_range in op.attrs.get("ranges", ())):
                continue
            for inner_block in op.blocks:
                self._block(inner_block)
        self.lets = outer_lets

    def _has_no_iterations(self, lo: Expr, hi: Expr) -> bool:
        """True if a loop from `lo` to `hi` has no iterations, whatever the values of open parameters (sizes known only
        at the call).
        """
        return (self._expanded(hi) - self._expanded(lo)).hi <= 0

    def _add_let(self, op: Op) -> None:
        """Add {name: value} of `op`, a `let` operation or record, to `self.lets`. In the value, names that are already
        in `self.lets` are replaced by their values.
        """
        name = op.attrs["symbol"]
        self.lets = {**self.lets, name: self._expanded(name.definition)}

    def _expanded(self, e: Expr) -> Expr:
        """Return the expression `e` with names in `self.lets` replaced by their values."""
        return Substitution(self.lets)(e) if self.lets else e

    def _open_names(self, exprs: Iterable[Expr]) -> str:
        """Return the names of the open parameters (known only at the call) on which `exprs` depend, as text such as "M,
        N"; "" if there are none.

        An expression also depends on the limits and definitions of its symbols. Parameters are compared by name.
        """
        visited: set[Symbol] = set()
        pending = [self._expanded(e) for e in exprs]
        while pending:
            for variable in pending.pop().symbols - visited:
                visited.add(variable)
                pending += [e for e in (variable.lower, variable.upper, variable.definition) if e is not None]
        return ", ".join(sorted({variable.name for variable in visited} & self.open))

    # -- constants ------------------------------------------------------------------------------------

    def _check_op(self, op: Op) -> None:
        """Raise a ProgramError if the operation `op` is not valid for all values of the open parameters (sizes known
        only at the call). Nested operations are not checked. If `op` is a `let`, add its name to `self.lets`.

        Counts must be constants. Depending on the operation, the sizes of allocations, reduced extents, operand shapes,
        limits of `tasks` loops, and coordinates are checked.
        """
        for name, value in op.attrs.items():
            kind = op.spec.attrs[name].rstrip("?")
            exprs = tuple(kind_of(kind).expressions(value))
            if kind in ("count", "dotted") or name == "peel":
                self._require_constants(op, exprs, f"{op_text(op)}: {name}")
        if op.name == "let":
            self._add_let(op)
        elif op.name == "alloc":
            self._check_alloc(op)
        elif op.name in ("reduce", "scan"):
            self._check_reduced_extent(op)
        elif op.name not in WHOLE:
            self._check_operand_extents(op)
        if op.name == "tasks":
            self._check_task_limits(op)
        if "at" in op.attrs and op.name in ("view", "gather", "scatter", "atomic"):
            self._check_coordinates(op)

    def _require_constants(self, op: Op, exprs: Iterable[Expr], what: str) -> None:
        """Raise a ProgramError, at the line of `op`, if one of `exprs` depends on an open parameter (a size known only
        at the call). `what` names the expressions in the message.
        """
        names = self._open_names(exprs)
        if names:
            raise ProgramError(f"{what} must be a number; it depends on the open parameter {names}", op.loc)

    def _check_alloc(self, op: Op) -> None:
        """Raise a ProgramError if the shape in the `alloc` operation `op` depends on a variable that it must not depend
        on.

        A shape may depend only on open parameters (sizes known only at the call), not for instance on a loop variable.
        The shape of a register tensor must be constant; that of shared memory too, if the machine limits shared memory.
        """
        kind = op.attrs["type"]
        names, shape = (
            self._open_names(kind.expressions()),
            f"%{op.results[0].name}: its shape {shape_text(kind.shape)}",
        )
        if names and (self.scarce or not isinstance(kind, TensorType)):
            memory = "shared memory" if isinstance(kind, TensorType) else "registers"
            raise ProgramError(
                f"{shape} depends on the open parameter {names}; what lies in {memory} has a size that is a number: "
                f"bind {names} when the text is compiled",
                op.loc,
            )
        for variable in self._expanded_symbols(kind.expressions()):
            if variable.name not in self.open:
                raise ProgramError(f"{shape} depends on {variable.name}; memory has one size for all rounds", op.loc)

    def _expanded_symbols(self, exprs: Iterable[Expr]) -> set[Symbol]:
        """Return the set of symbols on which `exprs` depend, after names defined by `let` are replaced by
        their values.
        """
        return {variable for e in exprs for variable in self._expanded(e).symbols}

    def _check_reduced_extent(self, op: Op) -> None:
        """Raise a ProgramError if the extent along which `op`, a `reduce` or `scan`, reduces is not proved to be at
        least 1: a reduction starts from the first element.
        """
        length = self._expanded(op.operands[0].type.shape[op.attrs["along"]])
        if not is_proved(length - 1, self.facts):
            raise ProgramError(
                f"{op_text(op)}: the extent {length} cannot be shown to be at least 1 for all values of "
                f"{self._open_names((length,))}",
                op.loc,
            )

    def _check_operand_extents(self, op: Op) -> None:
        """Raise a ProgramError if an operand of the operation `op` has an extent that depends on an open parameter (a
        size known only at the call). Not called for the operations in `WHOLE`, which accept such operands.
        """
        for value in (v for v in op.operands if hasattr(v.type, "shape")):
            shape = value.type.shape
            names = self._open_names(shape)
            if names:
                raise ProgramError(
                    f"{op.name}: the shape {shape_text(shape)} of %{value.name} depends on the open parameter {names}; "
                    "view a part of it, of a size that is a number",
                    op.loc,
                )

    def _check_positive_divisors(self, exprs: Iterable[Expr], what: str, op: Op | None) -> None:
        """Raise a ProgramError if a divisor in `exprs` depends on an open parameter (a size known only at the call) and
        is not proved to be at least 1.

        `what` says in the message where the expressions are. The error is at the line of `op`; None: at no line.
        """
        for e in exprs:
            for node in e.walk():
                if not isinstance(node, FloorDiv | Mod | Exact) or isinstance(node.right, Const):
                    continue
                names = self._open_names((node.right,))
                if names and not is_nonneg(node.right - 1):
                    raise ProgramError(
                        f"{what}: the divisor {node.right} may be zero or less; its parameters ({names}) need ranges "
                        "in which it is not",
                        None if op is None else op.loc,
                    )

    def _check_task_limits(self, op: Op) -> None:
        """Raise a ProgramError if a limit of the `tasks` loop `op` depends on a variable of the same loop: tasks are
        counted before the first task starts.
        """
        task_variables = {r.symbol for r in op.attrs["ranges"]}
        for r in op.attrs["ranges"]:
            for e in (r.lo, r.hi):
                if self._expanded(e).symbols & task_variables:
                    raise ProgramError(
                        f"tasks: the limit {e} of {r.symbol.name} depends on another task variable; tasks are counted "
                        "before the first is done",
                        op.loc,
                    )

    # -- coordinates ----------------------------------------------------------------------------------

    def _is_nonnegative(self, e: Expr, expanded: Expr) -> bool:
        """True if e >= 0 is proved from `self.facts`. `expanded` is `e` with names defined by `let` replaced by their
        values.

        A proof for `e` or for `expanded` suffices. In `e` a name may stand for a product, which is easier to prove;
        facts match `expanded`.
        """
        return any(is_proved(form, self.facts) for form in dict.fromkeys((expanded, e)))

    def _check_coordinates(self, op: Op) -> None:
        """Raise a ProgramError if a coordinate of `op` (a view, gather, scatter or atomic) depends on an open parameter
        (a size known only at the call) and is not proved in bounds for all values of the parameter.

        Coordinates that are marked with ?, or that depend on values read from memory, are skipped. Tensors in registers
        are skipped too.
        """
        base = op.operands[0 if op.name == "view" else 1]
        if not isinstance(base.type, TensorType):
            return
        fetched_symbols = {variable for variable, _ in op.attrs.get("where", ())}
        for dim, ((e, masked), size) in enumerate(zip(op.attrs["at"], base.type.shape, strict=True)):
            if masked or e.symbols & fetched_symbols or not self._open_names((e, size)):
                continue
            position, extent = self._expanded(e), self._expanded(size)
            above_zero, below_end = (
                self._is_nonnegative(e, position),
                self._is_nonnegative(size - 1 - e, extent - 1 - position),
            )
            if not (above_zero and below_end):
                bounds = f"at least 0{'' if below_end else f' and below {size}'}" if not above_zero else f"below {size}"
                raise ProgramError(
                    f"{op_text(op)}: coordinate {dim}, {e}, cannot be shown to be {bounds} for all values of "
                    f"{self._open_names((e, size))}; if it may lie outside, mark it with ?",
                    op.loc,
                )
