"""Cycles of lanes: elementwise work between MMAs, computed operands, masks, and epilogues."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

from tilewright.ir.dtypes import bf16, i8
from tilewright.machine import Machine
from tilewright.plan.facts import Facts, ValueFacts
from tilewright.plan.facts.values import RENAMING, STATE, UNTIMED
from tilewright.plan.search.tiling import Loops, Tiling


class LaneCycles:
    """Cycles of a core's lanes for elementwise work: per iteration of each loop nest, and per task in the epilogue.

    Three dicts map a loop nest to cycles per iteration: `by_phase`, `masked` (additional cycles in partly masked tiles)
    and `serial` (cycles that overlap with no other work). `computing` is the set of loop nests in which lanes compute
    operands. `end` has the cycles of the epilogue; `reduces_at_end` is True if the epilogue reduces results.
    """

    def __init__(self, t: Tiling):
        self.t, self.facts = t, t.facts
        self.by_phase: dict[Loops, float] = defaultdict(float)
        self.masked: dict[Loops, float] = defaultdict(float)
        self.serial: dict[Loops, float] = defaultdict(float)
        self.end = 0.0
        self.reduces_at_end = False
        self.computing: set[Loops] = set()
        masks = {op for ops in self.facts.masks.values() for op in ops}
        conditions = {op.operands[0] for op in masks}
        self.after_product = _nodes_after_mmas(t.facts)
        feeding = {i for p in self.facts.products for x in (p.a, p.b) for i in x.between}
        for n in self.facts.nodes:
            if n.op in ("read", "write", STATE, "fill", "scalar", "self_index"):
                continue
            is_mask = n.source in masks or (n.source is not None and not conditions.isdisjoint(n.source.results))
            self._add_value(n, is_mask, n.id in feeding)

    def _add_value(self, n: ValueFacts, is_mask: bool, feeds_mma: bool) -> None:
        """Add the ALU cycles of the value `n` to at most one field of this object. The first case that applies decides:

        - `n` is computed in a loop, and has a dimension that is N of one MMA and K of the next: the cycles of an
          iteration go to `masked` if `is_mask` (the value is part of a mask), else to `by_phase`;
        - the operation takes no ALU cycles: nothing is added;
        - `n` is in a loop that carries it, or reduces a dimension that is N of one MMA and K of the next: nothing is
          added, as it has one element per row;
        - `feeds_mma` (an operand is computed from `n`): to `serial` if `n` depends on an MMA, else to `by_phase`; in
          the second case the loop nest is also noted in `self.computing`;
        - `n` is a reduction: nothing is added, but outside of loops `reduces_at_end` is set;
        - `n` has all dimensions of some accumulator: the cycles per workgroup go to `end`.
        """
        t, limits = self.t, self.t.machine.limits
        loops = t.phase(n)
        between = bool(n.dims & t.linking_dims)
        element_cycles = self.facts.lane_cycles(n, t.machine)
        if loops and between:  # every value between MMAs passes through registers once
            element_cycles = max(element_cycles, 1 / limits.lane_rate)
            (self.masked if is_mask else self.by_phase)[loops] += t.span(n.dims) * element_cycles
            return
        if n.op in UNTIMED or n.op in RENAMING:
            return
        if loops and (n.carried or n.reduces & t.linking_dims):
            return  # one element per row: reductions and rescaling factors are part of an iteration's latency
        if feeds_mma and n.id not in self.after_product:
            self.by_phase[loops] += t.span(n.dims) * (element_cycles + _cast_cycles(n, t.machine))
            self.computing.add(loops)
        elif feeds_mma:
            self.serial[loops] += t.span(n.space) * element_cycles
        elif n.reduces and n.op != "mma":
            self.reduces_at_end = self.reduces_at_end or not loops
        else:
            self.end += (
                t.span(n.dims) * element_cycles
                if any(n.dims >= self.facts.nodes[p.node].dims for p in self.facts.products)
                else 0.0
            )


def _cast_cycles(n: ValueFacts, machine: Machine) -> float:
    """Return the cycles that one core's lanes take per element of a cast `n`; 0 if `n` is another operation.

    i8 is cast to bf16 by simple operations (`widen` in the machine's table of functions), if the machine has an entry
    for it. Other casts have the rate of functions.
    """
    if n.op != "cast" or n.source is None:
        return 0.0
    old, new = n.source.operands[0].type.dtype, n.source.result.type.dtype
    if "widen" in machine.costs.functions and old is i8 and new is bf16:
        return machine.costs.functions["widen"] / machine.limits.lane_rate
    return 1 / machine.limits.function_rate


@lru_cache
def _nodes_after_mmas(facts: Facts) -> set[int]:
    """Return the node numbers of all MMAs and of all values computed from their results.

    The result is cached, as all tilings of the program `facts` ask for it.
    """
    after: set[int] = set()
    for n in facts.nodes:
        if n.op == "mma" or any(arg in after for arg in n.args):
            after.add(n.id)
    return after
