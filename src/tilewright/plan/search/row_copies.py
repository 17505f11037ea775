"""Kernels that repack operands before the main kernel: what they move, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod

from tilewright.machine import Machine
from tilewright.plan.facts import AccessFacts, Facts, ValueFacts
from tilewright.plan.search.cost import SAME_WAVES, kernel_time, launch_cycles
from tilewright.plan.search.ranking import PlanCandidate, Rewrite
from tilewright.plan.search.work import Phase, Work


@dataclass(frozen=True)
class RowCopy:
    """A copy of an operand: its elements before (`given`) and after, bytes per element, elements that one
    access moves.
    """

    memory: str
    given: int
    elements: int
    bytes: int
    word: int
    is_view: bool = False
    """True if the operand has this shape already: nothing is copied."""

    def work(self, machine: Machine) -> Work:
        """Return the Work of the kernel that makes this copy: ALU cycles per core, and bytes of memory traffic."""
        limits, cores = machine.limits, machine.limits.cores or 1
        lanes = limits.placing / limits.lane_rate / self.word * self.elements / cores
        moved = (self.given + self.elements) * self.bytes
        return Work(cores, (Phase(1, lanes=lanes),), moved=moved, waits=limits.copy_latency)


@dataclass(frozen=True)
class Repacked:
    """A program on repacked operands, and the cycles of repacking."""

    rewrite: Rewrite
    facts: Facts
    cycles: float
    only_blocks: bool = False
    """True if only tiles with several GEMMs of a batch count: B is then repacked to block-diagonal form."""


def copy_cycles(machine: Machine, copies: list[RowCopy]) -> float:
    """Return the cycles of one launch that makes all `copies` before a kernel; 0 if nothing is copied.

    The copies share one wait for memory. If kernels can launch early (programmatic dependent launch), it is at least
    the cycles of a launch; else the cycles of a launch are added.
    """
    copies = [c for c in copies if not c.is_view]
    if not copies:
        return 0.0
    alone = (kernel_time(machine, c.work(machine), SAME_WAVES).cycles - launch_cycles(machine) for c in copies)
    total = sum(alone) - (len(copies) - 1) * machine.limits.copy_latency
    early = "programmatic" in machine.launches
    return max(total, launch_cycles(machine)) if early else total + launch_cycles(machine)


def with_copies(candidate: PlanCandidate, repacked: Repacked) -> PlanCandidate:
    """Return the candidate with the cycles of `repacked` (operands copied first) added.

    The repacking becomes its only rewrite.
    """
    cycles = candidate.cycles + repacked.cycles
    return replace(candidate, cycles=cycles, rewrites=(repacked.rewrite,), key=(round(cycles), *candidate.key[1:]))


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row-major strides of a contiguous tensor, in elements.

    >>> strides((4, 3, 8))
    (24, 8, 1)
    """
    return tuple(prod(shape[n + 1 :]) for n in range(len(shape)))


def row_copy_of(n: ValueFacts, packed: tuple[int, ...], machine: Machine) -> RowCopy:
    """Return a RowCopy (what the cost model times): the tensor that `n` reads, copied to the shape `packed`."""
    place = n.place
    word = gcd(machine.lane_access.vector_bytes // place.bytes, place.shape[-1], packed[-1])
    return RowCopy(place.memory, prod(place.shape), prod(packed), place.bytes, max(1, word), packed == place.shape)


def with_accesses(facts: Facts, accesses: dict[int, AccessFacts]) -> tuple[ValueFacts, ...]:
    """Return the program's nodes, with some accesses replaced; `accesses` maps node numbers to new accesses."""
    return tuple(replace(n, access=accesses[n.id]) if n.id in accesses else n for n in facts.nodes)
