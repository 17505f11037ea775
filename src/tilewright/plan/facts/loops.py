"""Loops and what they carry: plain accumulators, states that form a monoid, or neither.

A loop whose state is a monoid may take any tile, and may be split over tasks: the states of its parts merge.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.core import Op, Value
from tilewright.ir.tile import REDUCTIONS

SUM, MAXIMUM, RESCALED = "sum", "max", "rescaled"
"""The ways a carried value merges: added, by its maximum, or added after rescaling to the common maximum."""
EXPONENTIALS = ("exp", "exp2")
"""Functions g with g(a - b) * g(b - c) = g(a - c)."""
SAME_ELEMENTS = ("broadcast", "permute")
"""Operations that only rename elements."""


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


def monoid_of(loop: Op) -> str | None:
    """Return how partial results of a loop merge: "sum", "max", "rescaled" or these joined by "+"; None if they cannot.

    They merge if every carried value is one of these (x, m as an iteration receives them, x', m' as it passes them on):
    - "sum": an accumulator, x' = acc(t, x), where t depends on no carried value;
    - "max": a running maximum or minimum, m' = max(t, m);
    - "rescaled", as in online softmax: x' = acc(h(t, m'), x * g(m - m')), with g = exp or exp2 and exactly one factor
      g(t - m') in h. Two parts merge as x1 * g(m1 - m) + x2 * g(m2 - m) with m = max(m1, m2).
    """
    return _CarriedValues(loop).merge_kinds()


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

    def merge_kinds(self) -> str | None:
        """Return the kinds of merge ("sum", "max", "rescaled") of all carried values, sorted and joined by "+".

        It is None if one of the values cannot be merged across parts of the loop.
        """
        kinds = [self._merge_kind(arg, end) for arg, end in zip(self.body.args, self.ends, strict=True)]
        return "+".join(sorted({kind for kind in kinds if kind})) if all(kinds) else None

    def _accumulation(self, value: Value) -> tuple[Op, Value] | None:
        """Return (operation that computes `value`, its accumulator operand); None if it does not accumulate.

        An operation accumulates if it is an mma with the loop's axis among its K dimensions, or a reduction along the
        axis with an accumulator.
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
        """Return {value as an iteration receives it: value as it passes it on} of the running maxima and minima.

        The new value is the maximum (or minimum) of the old value and of a tile that depends on no carried value.
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

    def _merge_kind(self, arg: Value, end: Value) -> str | None:
        """Return how one carried value merges across parts of the loop: "sum", "max" or "rescaled"; None if it cannot.

        `arg` is the value as an iteration receives it, `end` as the iteration passes it on. The kinds are explained at
        `monoid_of`.
        """
        if arg in self.maxima:
            return MAXIMUM
        step = self._accumulation(end)
        if step is None:
            return None
        accumulate, before = step
        terms = [v for v in accumulate.operands[:-1] if self._depends_on_carried(v)]
        if before is arg:
            return SUM if not terms else None
        scaled = self.maker.get(before)
        if scaled is None or scaled.name != "mul":
            return None
        factors = [v for v in scaled.operands if v is not arg]
        maximum = self._rescaling_maximum(factors[0]) if len(factors) == 1 else None
        if maximum is None or len(terms) != 1 or not self._has_one_weight_factor(terms[0], maximum):
            return None
        return RESCALED

    def _rescaling_maximum(self, value: Value) -> Value | None:
        """Return the running maximum m if `value` is g(m - m'), with g = exp or exp2; otherwise None.

        m is the maximum as an iteration receives it, m' as the iteration passes it on.
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
        return before if before in self.maxima and self.maxima[before] is after else None

    def _has_one_weight_factor(self, value: Value, maximum: Value) -> bool:
        """True if `value` has exactly one factor g(t - m'), with g = exp or exp2, and uses no other carried value.

        `maximum` is the running maximum m as an iteration receives it; m' is this maximum as the iteration passes it
        on.
        """
        op = self.maker.get(value)
        if op is None:
            return False
        if op.name in EXPONENTIALS:
            difference = self.maker.get(op.operands[0])
            if difference is None or difference.name != "sub":
                return False
            return difference.operands[1] is self.maxima[maximum] and not self._depends_on_carried(
                difference.operands[0]
            )
        if op.name in ("cast", "mul", *SAME_ELEMENTS):
            carrying = [v for v in op.operands if self._depends_on_carried(v)]
            return len(carrying) == 1 and self._has_one_weight_factor(carrying[0], maximum)
        return False
