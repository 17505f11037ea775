"""Counts of work, without rates: of each iteration, of a task's epilogue, and of memory traffic in all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """The work of one iteration of a set of loops, on one core."""

    trips: float
    mma: float = 0.0
    """Cycles of the matrix units."""
    lanes: float = 0.0
    """Cycles of all lanes, for what lies between products or makes operands."""
    masked: float = 0.0
    """Cycles of lanes more, in iterations that a mask cuts."""
    shared: float = 0.0
    """Bytes of shared memory that are read beyond what the atoms' rate includes."""
    copied: float = 0.0
    """Bytes that copies bring."""
    l2: float = 0.0
    """Cycles of the L2 cache for those bytes with all cores at work, longer where rows are misaligned."""
    gather: float = 0.0
    """Cycles of lanes that copy by themselves."""
    is_dependent: bool = False
    """Whether a product waits for another of the same iteration."""
    first: float = 0.0
    """Cycles of one group of waves for its first product."""
    is_lone: bool = False
    """Whether one group of waves starts all products, with few of them in flight."""
    serial: float = 0.0
    """Cycles that nothing hides."""
    slabs: int = 1
    """Copies of one stage."""
    per_stage: int = 1
    """Iterations that a stage holds."""


@dataclass(frozen=True)
class TaskEnd:
    """The work of a task's epilogue: results that go through shared memory to global memory."""

    outputs: float
    """Elements of the result."""
    lanes: float
    """Cycles of lanes for what follows the products."""
    l2: float
    """Cycles of the L2 cache for the results."""
    narrow: float = 0.0
    """Bytes of result rows beyond the widest that a copy stores."""
    blocks: int = 1
    """Blocks of results, one after the other: products of the next wait for the end of this one."""
    reduces: bool = False
    """Whether lanes reduce results before anything is stored."""


@dataclass(frozen=True)
class Work:
    """The work of a kernel.

    `lengths` has (share of the trips, masked trips, tasks): several if masks make tasks uneven. `resident` are bytes
    that a task loads before its first iteration, `first` those loaded once for all tasks of a core; `moved` are the
    bytes of memory traffic in all. Tasks at edges load `outside` rows that are out of bounds, and a core has `edges` of
    them.
    """

    tasks: int
    phases: tuple[Phase, ...]
    end: TaskEnd = TaskEnd(0, 0, 0)
    lengths: tuple[tuple[float, float, int], ...] = ()
    l2_read: float = 0.0
    resident: float = 0.0
    moved: float = 0.0
    first: float = 0.0
    outside: float = 0.0
    edges: int = 0
    waits: float = 0.0
    """Cycles in which a core waits for what it reads and nothing else runs."""
    latency: float = 0.0
    """Cycles of a core's waves, of which only so many run at a time, with what each waits for."""
    at_a_time: int = 0
    """Tasks that a core has at a time, where each waits for memory and for its own waves; 0: that is not counted."""
    exchange: float = 0.0
    """Cycles of such a task for reductions whose row several waves share."""
    again: float = 0.0
    """Bytes that are moved again: those that find no register, or that lanes do not share evenly."""
    from_memory: bool = False
    """Whether bytes come from memory, although the L2 cache could hold them."""

    @property
    def brought(self) -> float:
        """The bytes that all tasks of this kernel copy to shared memory, over all iterations."""
        return self.tasks * sum(p.trips * p.copied for p in self.phases)
