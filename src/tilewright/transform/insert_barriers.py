"""Inserts barriers between operations of a task that access the same argument, if one writes what another accesses.

copy %x_view -> %y_view                   copy %x_view -> %y_view
map %y = %y + %z                          barrier
                                          map %y = %y + %z

Operations on shared memory are followed by barriers as they are emitted. Most arguments are written by one operation,
and need none: an operation gives no element to two waves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.views import Places, written
from tilewright.ir.attrs import Range
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.tensors import TensorType

NAMING = ("alloc", "view", "bitcast", "let")
"""Operations that read and write no element."""


def in_order(program: Program) -> None:
    """Insert a barrier, in place, wherever an operation of a block program accesses an argument that an earlier one may
    have written, or writes one that it may have read. Arguments that are only read get none.

    >>> from tilewright.ir.block import parse_block
    >>> program = parse_block('''block f(%x: in global f32 (64), %y: out global f32 (64))
    ...   waves 2
    ... {
    ...   tasks t in 0..1 {
    ...     copy %x -> %y
    ...     %back = view %y (i 64) -> [63 - i]
    ...     map %back = %x
    ...   }
    ... }''')
    >>> in_order(program)
    >>> [op.name for op in program.body.ops[0].blocks[0].ops]
    ['copy', 'view', 'barrier', 'map']
    """
    _Ordering(program).run(program.body)


@dataclass
class _AccessedSinceBarrier:
    """Operations that have read and written a tensor since the last barrier."""

    read: set[Op] = field(default_factory=set)
    written: set[Op] = field(default_factory=set)


class _Ordering:
    """Inserts barriers into a program; it tracks which operations have read and written each argument since the last
    one.
    """

    def __init__(self, program: Program):
        self._chain = Places(program, program.makers())
        arguments = {a for a in program.args if isinstance(a.type, TensorType)}
        changed = {self._chain.root(v) for op in program.walk() for v in written(op)}
        self._shared = arguments & changed
        """Arguments that are written; arguments that are only read need no barriers."""
        self._touched: dict[Value, _AccessedSinceBarrier] = {}

    def run(self, block: Block) -> None:
        """Insert the barriers into `block`, the program's body, in place. Do nothing if the program writes
        no argument.
        """
        if self._shared:
            self._block(block, ())

    def _block(self, block: Block, loops: tuple[Range, ...]) -> None:
        """Insert barriers into `block` and the blocks inside it, in place, in program order, and record the accesses in
        `_touched`. `loops` are the ranges of the loops around `block` that are visited for the second time: an access
        is then also ordered with accesses of the previous iteration.
        """
        place = 0
        while place < len(block.ops):
            op = block.ops[place]
            if op.name == "barrier":
                self._touched.clear()
            elif op.name not in NAMING and not op.blocks and self._must_follow(op, loops):
                block.ops.insert(place, Op(BLOCK.ops["barrier"], (), {}, loc=op.loc))
                self._touched.clear()
                place += 1
            self._note(op)
            self._inner(op, loops)
            place += 1

    def _inner(self, op: Op, loops: tuple[Range, ...]) -> None:
        """Insert barriers into the blocks of `op`, in place. A block may run or not: afterwards, `_touched` has the
        accesses from before `op` and those at the end of each block. `loops` are the ranges of the loops around `op`
        that are visited a second time.

        The body of a `for` or `while` is visited twice, so that accesses of one iteration are ordered with those of the
        next.
        """
        before = dict(self._touched)
        ranges = tuple(op.attrs.get("ranges", ()))
        repeated = op.name in ("for", "while")
        accesses_at_end = []
        for inner in op.blocks:
            self._touched = _copied(before)
            self._block(inner, loops)
            if repeated:  # accesses of one iteration precede those of the next
                self._block(inner, (*loops, *ranges))
            accesses_at_end.append(self._touched)
        if op.blocks:
            self._touched = _copied(before)
            for end in accesses_at_end:
                for tensor, touched in end.items():
                    merged = self._touched.setdefault(tensor, _AccessedSinceBarrier())
                    merged.read |= touched.read
                    merged.written |= touched.written

    def _must_follow(self, op: Op, loops: tuple[Range, ...]) -> bool:
        """True if a barrier is needed before `op`. Since the last barrier, another operation has written an argument
        that `op` uses, or read one that `op` writes; or `op` itself has written an argument in another iteration of
        `loops`, and `_is_disjoint_between_iterations` is false. `loops` are the ranges of the loops around `op` that
        are visited for the second time.
        """
        changed = {self._chain.root(v) for v in written(op)}
        for tensor in {self._chain.root(v) for v in op.operands} & self._shared:
            touched = self._touched.get(tensor, _AccessedSinceBarrier())
            if touched.written - {op} or (tensor in changed and touched.read - {op}):
                return True
            if op in touched.written and not self._is_disjoint_between_iterations(op, tensor, loops):
                return True
        return False

    def _is_disjoint_between_iterations(self, op: Op, tensor: Value, loops: tuple[Range, ...]) -> bool:
        """True if it is proved that in `op` no wave accesses an element of `tensor` that another wave wrote in another
        iteration of `loops`. False for coordinates that are data.

        For each loop, each view of the tensor must have either no coordinate with the loop's variable, so that a wave
        accesses the same elements in all iterations, or a coordinate with values that do not overlap in consecutive
        iterations.
        """
        if "where" in op.attrs:
            return False
        views = [v for v in op.operands if self._chain.root(v) is tensor]
        for loop in loops:
            for value in views:
                over, at = self._coordinates(value)
                if not any(loop.symbol in e.symbols for e in at):
                    continue
                later = {s: symbol(f"{s.name}_later", s.lower, s.upper) for s in over}
                moved = Substitution({**later, loop.symbol: loop.symbol + loop.step})
                if not any((moved(e) - e).lo > 0 or (e - moved(e)).lo > 0 for e in at):
                    return False
        return True

    def _coordinates(self, value: Value) -> tuple[tuple[Symbol, ...], tuple[Expr, ...]]:
        """Return (iterators, coordinates) of the view `value`: `coordinates` are those in the tensor below all views,
        as expressions of the symbols `iterators`, the axes of the view. Return ((), ()) if `value` is no view.
        """
        op = self._chain.makers.get(value)
        if op is None or op.name not in ("view", "bitcast"):
            return (), ()
        if op.name == "bitcast":
            return self._coordinates(op.operands[0])
        over, at = op.attrs["over"], tuple(e for e, _ in op.attrs["at"])
        axes, below = self._coordinates(op.operands[0])
        if not below:
            return over, at
        images = Substitution(dict(zip(axes, at, strict=True)))
        return over, tuple(map(images, below))

    def _note(self, op: Op) -> None:
        """Record in `_touched` the accesses of `op` to the arguments that the program writes: `op` becomes a writer of
        the arguments that it writes, and a reader of its other operands. Operations that access no element (such as
        `view` and `alloc`) and operations with blocks are skipped.
        """
        if op.name in NAMING or op.blocks:
            return
        changed = {self._chain.root(v) for v in written(op)}
        for tensor in {self._chain.root(v) for v in op.operands} & self._shared:
            touched = self._touched.setdefault(tensor, _AccessedSinceBarrier())
            (touched.written if tensor in changed else touched.read).add(op)


def _copied(touched: dict[Value, _AccessedSinceBarrier]) -> dict[Value, _AccessedSinceBarrier]:
    """Return a copy of `touched`, {tensor: operations that have accessed it}, with copies of the sets of operations."""
    return {
        tensor: _AccessedSinceBarrier(set(operations.read), set(operations.written))
        for tensor, operations in touched.items()
    }
