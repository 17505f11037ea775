"""Loops and the values that they carry: plain accumulators, states that form a monoid, or neither.

A loop whose states form a monoid may have any tile size, and may be split over tasks: partial states merge.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.core import Op, Program, Value
from tilewright.ir.dtypes import f32
from tilewright.ir.tile import REDUCTIONS
from tilewright.plan.computed import GIVEN, SIMPLE

SUM, MAXIMUM, RESCALED = "sum", "max", "rescaled"
"""The ways a carried value merges: added, by its maximum, or added after rescaling to the common maximum."""
EXPONENTIALS = ("exp", "exp2")
"""Functions g with g(a - b) * g(b - c) = g(a - c)."""
SAME_ELEMENTS = ("broadcast", "permute")
"""Operations that only rename elements."""

_IN_PARTS = {*SIMPLE, *GIVEN, *REDUCTIONS, "read", "mma", "yield"}
"""Operations of loops that can be split over tasks."""


@dataclass(frozen=True)
class LoopFacts:
    """A loop: its dimension, the author's tile size, and the values that it carries, as node numbers of the graph.

    `merge` names how the carried values of two parts of the loop merge; None if they do not, and then its tile size
    changes the result. `source` is None if the program has no loop, but could have one.
    """

    axis: str
    merge: str | None
    tile: int | None
    states: tuple[int, ...] = ()
    source: Op | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class StateMerge:
    """How the values of one state (a carried value) from two parts of a loop merge; `kind` is SUM, MAXIMUM or RESCALED.

    `reduction` is the reduction that merges: "sum", "max" or "min". For a rescaled state, `power` is the exponential g
    by which it is rescaled, and `maximum` the place of its running maximum among the states.
    """

    kind: str
    reduction: str
    power: str = ""
    maximum: int = -1


def state_merges(loop: Op) -> tuple[StateMerge, ...] | None:
    """Return a tuple of StateMerges, one for each value that `loop` carries, in order; None if one cannot be merged.

    A StateMerge says how the values from two parts of the loop become one: by a sum, by a maximum or minimum, or by a
    sum after both are rescaled to the common maximum (online softmax).
    """
    carried = _CarriedValues(loop)
    merges = [carried.merge_of(arg, end) for arg, end in zip(carried.body.args, carried.ends, strict=True)]
    return tuple(merge for merge in merges if merge is not None) if all(merges) else None


def monoid_of(loop: Op) -> str | None:
    """Return how partial results of a loop merge: "sum", "max", "rescaled" or these joined by "+"; None if they cannot.

    They merge if every carried value is one of these (x, m as an iteration receives them, x', m' as it passes them on):
    - "sum": an accumulator, x' = acc(t, x), where t depends on no carried value;
    - "max": a running maximum or minimum, m' = max(t, m);
    - "rescaled", as in online softmax: x' = acc(h(t, m'), x * g(m - m')), with g = exp or exp2 and exactly one factor
      g(t - m') in h. Two parts merge as x1 * g(m1 - m) + x2 * g(m2 - m) with m = max(m1, m2).
    """
    merges = state_merges(loop)
    return None if merges is None else "+".join(sorted({merge.kind for merge in merges}))


def merging_loop(program: Program) -> Op | str:
    """Return the only loop of a program if workgroups can each compute a part of it and merge; or text: why not.

    The results of two parts must merge by a sum, a maximum or minimum, or as in online softmax. The loop must begin at
    0, and its body must only read, multiply and reduce. All MMAs must be in the loop. The values that it carries must
    be f32 and start from constants, sums from zero. The author's constraints may state only the loop's tile size.
    """
    loops = [op for op in program.walk() if op.name == "iterate"]
    if len(loops) != 1 or loops[0] not in program.body.ops or loops[0].attrs.get("start"):
        return "it has not one loop that begins at 0"
    (loop,) = loops
    (body,) = loop.blocks
    if any(op.name == "mma" for op in program.body.ops):
        return "products lie before or after its loop"
    if any(r.name != "tiling" or r.attrs["dim"] is not loop.attrs["axis"] or len(r.attrs) > 2 for r in program.records):
        return "its constraints say how it is cut"
    merges = state_merges(loop)
    if merges is None:
        return f"the states of parts of its loop over {loop.attrs['axis']} do not merge"
    if any(op.name not in _IN_PARTS or set(op.attrs) & {"lookups", "bounds"} for op in body.ops):
        return "its loop does more than read, multiply and reduce"
    makers = program.makers()
    initial = [makers.get(v) for v in loop.operands]
    for initial_op, merge, arg in zip(initial, merges, body.args, strict=True):
        if (
            initial_op is None
            or initial_op.name != "fill"
            or (merge.reduction == "sum" and initial_op.attrs["value"] != 0)
        ):
            return "a sum in its loop does not start from zero"
        if arg.type.dtype is not f32:
            return f"its loop carries {arg.type.dtype}; only f32 is merged"
    return loop


class _CarriedValues:
    """The values that a loop carries, and how its body changes them."""

    def __init__(self, loop: Op):
        (self.body,) = loop.blocks
        self.axis = loop.attrs["axis"]
        self.maker = {result: op for op in self.body.ops for result in op.results}
        self.carried_in: dict[Value, set[Value]] = {arg: {arg} for arg in self.body.args}
        for op in self.body.ops:
            for result in op.results:
                self.carried_in[result] = set().union(*(self.carried_in.get(v, set()) for v in op.operands))
        self.ends = self.body.ops[-1].operands
        self.maxima = self._running_maxima()

    def _accumulation(self, value: Value) -> tuple[Op, Value] | None:
        """Return (operation that computes `value`, its accumulator operand); None if `value` is not an accumulation.

        It is one if the operation is an mma that sums the loop's axis (a K dimension), or a reduction along the axis
        with an accumulator.
        """
        op = self.maker.get(value)
        if op is None:
            return None
        if op.name == "mma" and self.axis in op.operands[0].type.dims and self.axis not in op.operands[2].type.dims:
            return op, op.operands[2]
        if op.name in REDUCTIONS and op.attrs.get("acc") and op.attrs["dim"] is self.axis:
            return op, op.operands[-1]
        return None

    def _running_maxima(self) -> dict[Value, Value]:
        """Return the loop's running maxima and minima: {value as an iteration receives it: value that it passes on}.

        The value passed on is the maximum (or minimum) of the received value and of a tile that depends on no carried
        value.
        """
        maxima = {}
        for arg, end in zip(self.body.args, self.ends, strict=True):
            step = self._accumulation(end)
            if (
                step
                and step[0].name in ("max", "min")
                and step[1] is arg
                and not self._depends_on_carried(step[0].operands[0])
            ):
                maxima[arg] = end
        return maxima

    def _depends_on_carried(self, value: Value) -> bool:
        """True if `value` depends on a value that the loop carries from one iteration to the next."""
        return bool(self.carried_in.get(value))

    def merge_of(self, arg: Value, end: Value) -> StateMerge | None:
        """Return a StateMerge: how one carried state's values from two parts of the loop merge; None if they cannot.

        They merge by a sum, a maximum, a minimum, or a sum after rescaling (online softmax). `arg` is the state as an
        iteration receives it, `end` the value that the iteration passes on.
        """
        step = self._accumulation(end)
        if step is None:
            return None
        accumulate, before = step
        if arg in self.maxima:
            return StateMerge(MAXIMUM, accumulate.name)
        terms = [v for v in accumulate.operands[:-1] if self._depends_on_carried(v)]
        if accumulate.name not in ("mma", "sum"):
            return None
        if before is arg:
            return StateMerge(SUM, "sum") if not terms else None
        scaled = self.maker.get(before)
        if scaled is None or scaled.name != "mul":
            return None
        factors = [v for v in scaled.operands if v is not arg]
        rescaling = self._rescaling(factors[0]) if len(factors) == 1 else None
        if rescaling is None or len(terms) != 1 or not self._has_one_weight_factor(terms[0], *rescaling):
            return None
        maximum, power = rescaling
        return StateMerge(RESCALED, "sum", power, self.body.args.index(maximum))

    def _rescaling(self, value: Value) -> tuple[Value, str] | None:
        """Return (m, name of g) if `value` is g(m - m'), by which online softmax rescales old sums; else None.

        g is exp or exp2. m is a running maximum or minimum as an iteration receives it, m' the same as the iteration
        passes it on. `value` may be a broadcast or permuted copy of g(m - m').
        """
        op = self.maker.get(value)
        while op is not None and op.name in SAME_ELEMENTS:
            op = self.maker.get(op.operands[0])
        if op is None or op.name not in EXPONENTIALS:
            return None
        difference = self.maker.get(op.operands[0])
        if difference is None or difference.name != "sub":
            return None
        before, after = difference.operands
        return (before, op.name) if before in self.maxima and self.maxima[before] is after else None

    def _has_one_weight_factor(self, value: Value, maximum: Value, power: str) -> bool:
        """True if `value` is a product of one factor g(t - m') and of factors that depend on no carried value.

        g is exp or exp2, as `power` names it. `maximum` is a running maximum as an iteration receives it, m' the same
        as the iteration passes it on; t depends on no carried value. The product may be cast or broadcast.
        """
        op = self.maker.get(value)
        if op is None:
            return False
        if op.name == power:
            difference = self.maker.get(op.operands[0])
            if difference is None or difference.name != "sub":
                return False
            return difference.operands[1] is self.maxima[maximum] and not self._depends_on_carried(
                difference.operands[0]
            )
        if op.name in ("cast", "mul", *SAME_ELEMENTS):
            carrying = [v for v in op.operands if self._depends_on_carried(v)]
            return len(carrying) == 1 and self._has_one_weight_factor(carrying[0], maximum, power)
        return False
