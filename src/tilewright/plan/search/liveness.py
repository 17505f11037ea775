"""Live registers of a lane: in loops, with one MMA ahead of another, and in the epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilewright.plan.facts import Facts
from tilewright.plan.search.tiling import Loops, Tiling
from tilewright.plan.search.unit import MmaTile


@dataclass(frozen=True)
class Liveness:
    """The largest numbers of live registers per lane: `loop` in loops, `end` in the epilogue.

    `ahead` is the number in loops if MMAs start one iteration ahead. `results` are the MMAs (node numbers) of which the
    accumulators are written; `dependent` are the MMAs that wait for another MMA of the same iteration.
    """

    loop: float
    ahead: float
    end: float
    results: tuple[int, ...]
    dependent: frozenset[int]


def liveness(t: Tiling, mmas: tuple[MmaTile, ...], phases: dict[int, Loops]) -> Liveness:
    """Return a Liveness: the maximum number of live registers per lane, for accumulators and operands A in registers.

    It has three numbers: in loops, in loops if MMAs start one iteration ahead, and in the epilogue. It also has the
    MMAs of which the accumulators are written, and the MMAs that wait for another MMA of the same iteration. `t` (a
    Tiling) has the tile sizes, `mmas` are the MMA tiles, at least one; `phases` maps each MMA (node number) to the
    loops around it.
    """
    facts = t.facts
    lanes, word = mmas[0].atom.c.lanes, t.machine.register_file.word_bytes
    held = {m.node: t.batch * m.rows * m.columns / t.groups * m.atom.c.dtype.bits / 8 / (word * lanes) for m in mmas}
    operand = {m.node: operand_registers(t, m) if m.oriented.a_in_registers else 0.0 for m in mmas}
    into = {p.node: p.into for p in facts.products if p.into is not None}
    order = [m.node for m in mmas]
    loop = 0.0
    for n, node in enumerate(order):
        alive = _live_accumulators(facts, order, n, into)
        carried = {q for q in order if q not in alive and q not in into.values() and _is_carried(t, phases, q, node)}
        total = sum(held[q] for q in alive | carried if into.get(q) not in alive)
        loop = max(loop, total + operand[node])
    ahead = sum(count for q, count in held.items() if q not in into) + sum(operand.values())
    results = _last_mmas(facts, order, into)
    made_of = {m.node: {*m.oriented.a.products, *m.oriented.b.products} for m in mmas}
    dependent = frozenset(
        node for node, before in made_of.items() if any(phases[q] == phases[node] != frozenset() for q in before)
    )
    return Liveness(loop, ahead, sum(held[q] for q in results), results, dependent)


def operand_registers(t: Tiling, m: MmaTile) -> float:
    """Return the number of registers per lane that operand A of the MMA `m` takes in one iteration.

    The number is doubled if lanes compute A from reads alone. `t` (a Tiling) has the kernel's tile sizes.
    """
    bytes_of_a = m.rows / t.down * m.depth * m.atom.a.dtype.bits / 8
    twice = 2 if m.oriented.a.reads and not m.oriented.a.products and m.oriented.a_in_registers else 1
    return twice * bytes_of_a / (t.machine.register_file.word_bytes * m.atom.c.lanes)


def _live_accumulators(facts: Facts, order: list[int], n: int, into: dict[int, int]) -> set[int]:
    """Return the MMAs (node numbers) whose accumulators are live while MMA number `n` of `order` runs.

    `order` has all MMAs in program order. MMA number `n` is live itself. An earlier MMA is live if its result is
    written, or if an MMA after number `n` reads its result or adds to it. `into` maps an MMA to the MMA whose
    accumulator it adds to; both may be in the result, though they share registers. `facts` is the analysed program.
    """
    later = [p for p in facts.products if p.node in order[n + 1 :]]
    written = {x for w in facts.writes for x in facts.behind(w.args[0], ("read", "mma")) if facts.nodes[x].op == "mma"}
    needed = written.union(*({*p.a.products, *p.b.products, p.into} for p in later))
    return {q for q in order[: n + 1] if q in needed or q == order[n]}


def _is_carried(t: Tiling, phases: dict[int, Loops], q: int, node: int) -> bool:
    """True if the accumulator of MMA `q` stays live while MMA `node` runs, because a loop around both carries it.

    It does if both MMAs (given by node number) are in the same loops, and one of these loops reduces K of `q`. `phases`
    maps each MMA to the loops around it. `t` (a Tiling) has the kernel's tile sizes.
    """
    loops = phases[node]
    return phases[q] == loops and bool(t.loops_over(t.facts.nodes[q].reduces) & loops)


def _last_mmas(facts: Facts, order: list[int], into: dict[int, int]) -> tuple[int, ...]:
    """Return the MMAs (node numbers) whose accumulators are written and used by no other MMA, in the order of `order`.

    Another MMA uses an accumulator if it computes an operand from it, or adds to it. `order` has all MMAs; `into` maps
    an MMA to the MMA whose accumulator it adds to. `facts` is the analysed program.
    """
    inner = {q for p in facts.products for q in (*p.a.products, *p.b.products)}
    behind = _nodes_behind_writes(facts)
    return tuple(q for q in order if q in behind and q not in inner and q not in into.values())


@lru_cache
def _nodes_behind_writes(facts: Facts) -> set[int]:
    """Return the node numbers of all values that any write of the program depends on.

    The result is cached, as all tilings of the program `facts` ask for it.
    """
    return {q for w in facts.writes for q in facts.behind(w.args[0], ("read",))}
