"""Software pipelining of MMAs: the first MMA of an iteration is started before the last one of the iteration before.

Asynchronous MMAs then run while the operations between MMAs are computed.

    for k in 0..5 {                        mma %s = q * k(0)
      mma %s = q * k                       ... %p from %s
      ... %p from %s, %acc scaled          for k in 1..5 {
      mma %acc += %p * v                     mma %s = q * k
    }                                        mma %acc += %p * v        of the iteration before
                                             ... %p from %s, %acc scaled
                                           }
                                           mma %acc += %p * v

Both orders have the same result as long as operations that move past each other have no value in common; otherwise the
loop stays as it is. A branch that is taken from some iteration on, such as a causal mask, makes two loops of it. If the
last MMA takes long, half of the f32 values that %p is rounded from are computed before it is waited for; an `edge`
operation marks that place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.algebra.expr import ONE, AtLeastZero, Const, Expr, Symbol, index
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.analysis.in_bounds import is_proved
from tilewright.ir.attrs import Range, kind_of
from tilewright.ir.core import Block, Op, Program, Value, building, walk_block
from tilewright.ir.dtypes import f32
from tilewright.ir.tensors import RegisterType, numbers
from tilewright.ir.verifier import verify
from tilewright.machine import Machine
from tilewright.transform.new_ops import Inserting

_EARLY = ("alloc", "fill", "wait", "view", "let", "mma", "release")
"""Operations before or right after the first MMA that may be moved with it."""


def pipeline_mmas(program: Program, machine: Machine, turns: bool = False) -> Program:
    """Software-pipeline the loops of a block program that have two or more MMAs, in place, and return the program: the
    first MMA of an iteration is started before the last MMA of the iteration before. Loops for which that is not
    possible stay as they are.

    With `turns`, the pipelined loops get the attribute `overlap turns`: groups of waves start the MMAs of an iteration
    one after the other.
    """
    with building():
        new = Inserting(program)
        for op in list(program.walk()):
            for block in op.blocks:
                for loop in [x for x in block.ops if x.name == "for"]:
                    rotated = _Rotation(loop, new, machine, turns).run()
                    if rotated is not None:
                        place = block.ops.index(loop)
                        block.ops[place : place + 1] = rotated
        verify(program)
    return program


@dataclass
class _Parts:
    """The operations of a loop body, divided into those up to the first MMA, those after it, the last MMA with
    operations that only it needs, and the release of the stage that it reads.
    """

    first: list[Op]
    rest: list[Op]
    last: list[Op]
    release: list[Op]
    held: list[Op]
    """Allocations of registers that the last MMA reads; they move before the loop."""


class _Rotation:
    """Rotates (software-pipelines) one loop with several MMAs."""

    def __init__(self, loop: Op, new: Inserting, machine: Machine, turns: bool):
        self.loop, self.new, self.machine, self.turns = loop, new, machine, turns
        self.conditions: dict[Op, bool] = {}
        """{branch: True if it is taken} for branches whose condition is known in the iterations being written."""
        self.roots: dict[Value, Value] = {}
        for op in loop.blocks[0].ops:
            for result in op.results:
                inner = op.operands[0] if op.name == "view" else result
                self.roots[result] = self.roots.get(inner, inner)

    def run(self) -> list[Op] | None:
        """Return the operations that replace the loop, or None if it cannot be pipelined.

        They are the allocations of registers that the last MMA reads; the first iteration without its last MMA; a loop
        in which each further iteration does the last MMA of the iteration before; and the last MMA of the last
        iteration. None if the loop has several ranges, a step other than 1, `unroll` or `peel`, if it may have no
        iteration, or if its operations cannot be reordered (see `_parts`).
        """
        ranges: tuple[Range, ...] = self.loop.attrs["ranges"]
        if len(ranges) != 1 or self.loop.attrs.get("unroll") or self.loop.attrs.get("peel") or ranges[0].step != 1:
            return None
        (loop,) = ranges
        parts = self._parts()
        if parts is None or not is_proved(loop.hi - loop.lo - 1):
            return None
        ops = list(parts.held)
        ops += self._clone_ops([*parts.first, *parts.rest], {loop.symbol: loop.lo})
        if loop.hi - loop.lo is not ONE:
            ops += self._rotated_loops(parts, Range.of(loop.symbol.name, loop.lo + 1, loop.hi))
        return ops + self._clone_ops([*parts.last, *parts.release], {loop.symbol: loop.hi - 1})

    def _rotated_loops(self, parts: _Parts, following: Range) -> list[Op]:
        """Return a list of the pipelined loops over the iterations in the range `following`. `parts` are the parts of
        the original body.

        There are two loops if the body has a branch that is taken from some iteration on, such as a causal mask: one
        over the iterations before, without the branch, and one over the others, in which the branch is always taken.
        Otherwise there is one.
        """
        (loop,) = self.loop.attrs["ranges"]
        branch = _late_branch(parts.rest, loop.symbol)
        if branch is None:
            return [self._rotated_loop(parts, following, {})]
        op, first = branch
        middle = minimum(maximum(first, following.lo), following.hi)
        ranges = (following.lo, middle, False), (middle, following.hi, True)
        return [
            self._rotated_loop(parts, Range.of(loop.symbol.name, lo, hi), {op: is_taken}) for lo, hi, is_taken in ranges
        ]

    def _rotated_loop(self, parts: _Parts, iterations: Range, conditions: dict[Op, bool]) -> Op:
        """Return one pipelined loop over the range `iterations`: each iteration also does the last MMA of the iteration
        before. `parts` are the parts of the original body. `conditions` is {branch: True if it is taken} for branches
        whose condition is known in this range.
        """
        (loop,) = self.loop.attrs["ranges"]
        now, before = {loop.symbol: iterations.symbol}, {loop.symbol: iterations.symbol - 1}
        values: dict[Value, Value] = {}
        self.conditions = conditions
        body = self._clone_ops(parts.first, now, values)
        body += self._clone_ops(parts.last, before)
        used_by_last = {v for op in parts.last for v in op.operands}
        wait = next((n for n, op in enumerate(parts.rest) if used_by_last & set(_operands_within(op))), len(parts.rest))
        f32_source = _source_of_a(parts, wait) if self._takes_long(parts.last[-1]) else None
        maps_to_source = [
            n for n, op in enumerate(parts.rest[:wait]) if op.name == "map" and op.operands[0] is f32_source
        ]
        early_end = maps_to_source[-1] + 1 if maps_to_source else wait
        body += self._clone_ops(parts.rest[:early_end], now, values)
        body += [] if f32_source is None else self._edge(values[f32_source])
        body += self._clone_ops(parts.rest[early_end:wait], now, values)
        body += self._clone_ops(parts.release, before)
        body += self._clone_ops(parts.rest[wait:], now, values)
        self.conditions = {}
        attrs = {**self.loop.attrs, "ranges": (iterations,)} | ({"overlap": "turns"} if self.turns else {})
        return Op(self.loop.spec, (), attrs, (), (Block((), body),), self.loop.loc)

    def _parts(self) -> _Parts | None:
        """Return the loop's body divided into _Parts, or None if it cannot be pipelined. Nothing is changed.

        `last` is the last MMA, after the wait for its operand B and the views of the stage of B. `release` is the
        release of this stage. `held` is the allocation of its operand A. Of the other operations, `first` are those
        before the first that is no alloc, fill, wait, view, let, mma or release; `rest` are the remaining ones.

        None in these cases: there are fewer than two MMAs; a branch contains a loop, MMA, wait or barrier; B is not
        from a wait with one result that is released exactly once; A is not a whole register tensor allocated in the
        body; an operation after the last MMA uses its accumulator, A or B; `first` has no MMA, or uses the accumulator
        or A; another operation uses B.
        """
        ops = self.loop.blocks[0].ops
        mma_positions = [n for n, op in enumerate(ops) if op.name == "mma"]
        inside = [op for op in ops for b in op.blocks for op in walk_block(b)]
        if len(mma_positions) < 2 or any(op.name in ("for", "mma", "wait", "barrier") for op in inside):
            return None
        last_mma = ops[mma_positions[-1]]
        stage = self.roots.get(last_mma.operands[2])
        wait = next((op for op in ops if op.name == "wait" and stage in op.results), None)
        if wait is None or len(wait.results) > 1:
            return None
        last = [wait, *(op for op in ops if op.name == "view" and self.roots[op.result] is stage), last_mma]
        release = [op for op in ops if op.name == "release" and op.operands == wait.operands]
        accumulator, operand_a = last_mma.operands[0], self.roots.get(last_mma.operands[1], last_mma.operands[1])
        others = [op for op in ops if op not in last and op not in release]
        allocations = [op for op in others if op.name == "alloc" and op.result is operand_a]
        others = [op for op in others if op not in allocations]
        if (
            not isinstance(operand_a.type, RegisterType)
            or not allocations
            or len(release) != 1
            or last_mma.operands[1] is not operand_a
        ):
            return None
        if any(
            {accumulator, operand_a, stage} & set(_operands_within(op))
            for op in ops[mma_positions[-1] + 1 :]
            if op not in release
        ):
            return None
        count = 0
        while count < len(others) and others[count].name in _EARLY:
            count += 1
        first = others[:count]
        if not any(op.name == "mma" for op in first) or any(
            {accumulator, operand_a} & set(_operands_within(op)) for op in first
        ):
            return None
        if any({stage} & set(_operands_within(op)) for op in others):
            return None
        return _Parts(first, others[count:], last, release, allocations)

    def _takes_long(self, mma: Op) -> bool:
        """True if the MMA operation `mma` takes at least as many cycles as lanes need to evaluate a function (exp, ...)
        for every element of its operand A.
        """
        atom, limits = self.machine.multiply_atom(mma.attrs["atom"]), self.machine.limits
        rows, k = numbers(mma.operands[1].type.shape, "mma")
        return rows / atom.shape[0] * k / atom.shape[2] * atom.cycles >= rows * k / limits.function_rate

    def _edge(self, value: Value) -> list[Op]:
        """Return [view, edge], two new operations: a view of the left half of the columns of the matrix `value`, and an
        `edge` on this view, which keeps computations of this half before it and later ones after it. They are not
        inserted into the program.
        """
        rows, columns = value.type.shape
        over = (index("i0", rows), index("i1", columns // 2))
        half = self.new.op("view", (value,), "early", over=over, at=tuple((e, False) for e in over))
        return [half, self.new.op("edge", (half.result,))]

    def _clone_ops(
        self, ops: Iterable[Op], meanings: Mapping[Symbol, Expr], values: dict[Value, Value] | None = None
    ) -> list[Op]:
        """Return clones of `ops` with symbols replaced by `meanings` and with new result names. Operands are replaced
        by `values`, {result: its clone}, and the new results are added to `values` (None: a new dictionary). An `if` is
        replaced by clones of the operations in the block that is taken, if its condition is constant or in
        `self.conditions`.
        """
        images, known = Substitution(dict(meanings)), {} if values is None else values
        clones: list[Op] = []
        for op in ops:
            attrs = {n: kind_of(op.spec.attrs[n]).mapped(v, images) for n, v in op.attrs.items() if n != "over"}
            attrs |= {n: v for n, v in op.attrs.items() if n == "over"}
            attrs = {n: attrs[n] for n in op.attrs}
            blocks = [self._clone_ops(b.ops, meanings, known) for b in op.blocks]
            if op in self.conditions or (op.name == "if" and isinstance(attrs["when"], Const)):
                is_taken = self.conditions[op] if op in self.conditions else attrs["when"].value
                clones += blocks[0] if is_taken else blocks[1] if len(blocks) > 1 else []
                continue
            new = Op(op.spec, tuple(known.get(v, v) for v in op.operands), attrs, (), (), op.loc)
            new.results = tuple(Value(r.type, self.new.fresh(r.name)) for r in op.results)
            new.blocks = tuple(Block((), b) for b in blocks)
            known |= zip(op.results, new.results, strict=True)
            clones.append(new)
        return clones


def _late_branch(ops: list[Op], loop_variable: Symbol) -> tuple[Op, Expr] | None:
    """Return (branch, first iteration in which it is taken) if exactly one `if` among `ops` depends on `loop_variable`.
    The condition must be linear in the variable with a positive coefficient: 2*k - 5 >= 0 -> first iteration 3.

    Return None for any other condition, if no or several `if` depend on the variable, or if the `if` has an else block.
    """
    branches = [op for op in ops if op.name == "if" and loop_variable in op.attrs["when"].symbols]
    when = branches[0].attrs["when"] if len(branches) == 1 else None
    form = linear_form(when.operand, [loop_variable]) if isinstance(when, AtLeastZero) else None
    step = None if form is None else form[0].get(loop_variable)
    if form is None or not isinstance(step, Const) or step.value < 1 or len(branches[0].blocks) > 1:
        return None
    return branches[0], -(form[1] // step.value)


def _source_of_a(parts: _Parts, wait: int) -> Value | None:
    """Return the f32 register matrix that maps among the first `wait` operations of `parts.rest` compute, and from
    which later maps compute operand A of the last MMA. Return None if there is no such matrix with an even number of
    columns, or more than one.
    """
    operand_a = next(op.result for op in parts.held)
    maps_to_a = [op for op in parts.rest[wait:] if op.name == "map" and op.operands[0] is operand_a]
    computed = {op.operands[0] for op in parts.rest[:wait] if op.name == "map"}
    sources = [v for op in maps_to_a for v in op.operands[1:] if v in computed and _has_halves(v)]
    return sources[0] if len(sources) == 1 else None


def _has_halves(value: Value) -> bool:
    """True if `value` is a matrix of f32 in registers with a constant and even number of columns."""
    kind = value.type
    if not isinstance(kind, RegisterType) or kind.dtype is not f32 or len(kind.shape) != 2:
        return False
    return isinstance(kind.shape[1], Const) and kind.shape[1].value % 2 == 0


def _operands_within(op: Op) -> Iterable[Value]:
    """Yield the operands of `op`, then those of all operations inside its blocks."""
    yield from op.operands
    for block in op.blocks:
        for inner in walk_block(block):
            yield from inner.operands
