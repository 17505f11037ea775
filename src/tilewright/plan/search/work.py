"""Counts of work, without rates: of each iteration, of a task's epilogue, and of memory traffic in all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """The work of one iteration of a phase (loop nest) of a task, on one core; `trips` are its iterations per task."""

    trips: float
    mma: float = 0.0
    """Cycles of the core's MMA units."""
    lanes: float = 0.0
    """Cycles of the core's lanes for elementwise work between MMAs, or that computes operands."""
    masked: float = 0.0
    """Further cycles of lanes, only in iterations over a partly masked tile."""
    shared: float = 0.0
    """Bytes of shared memory that are read beyond what the atoms' rate includes."""
    copied: float = 0.0
    """Bytes that are copied to shared memory."""
    l2: float = 0.0
    """Cycles of the L2 cache for those bytes with all cores at work, longer where rows are misaligned."""
    alone: float = 0.0
    """Those of the copied bytes that no other core reads at about the same time."""
    strewn: float = 0.0
    """Copied bytes of a kernel whose workgroups do not begin next to each other."""
    gather: float = 0.0
    """Cycles of lanes that copy operands themselves, without bulk copies."""
    is_dependent: bool = False
    """True if an MMA waits for another of the same iteration."""
    first: float = 0.0
    """Cycles of one wave group for its first MMA."""
    is_lone: bool = False
    """True if one wave group issues all MMAs, with few of them in flight."""
    serial: float = 0.0
    """Cycles that nothing hides."""
    slabs: int = 1
    """Slabs (rows of shared memory along K) that one stage has."""
    per_stage: int = 1
    """Iterations that a stage holds; 0: no operand has stages, beside halo tiles (input patches)."""
    per_halo_stage: int = 1
    """Iterations for which a halo tile is used: its filter taps."""
    is_skipped: bool = False
    """True if masks skip iterations of its MMA."""


@dataclass(frozen=True)
class TaskEnd:
    """The work of a task's epilogue: results that go through shared memory to global memory."""

    outputs: float
    """Elements of the result that a task has."""
    lanes: float
    """Cycles of the core's lanes for elementwise work after the MMAs."""
    l2: float
    """Cycles of the L2 cache for the results."""
    narrow: float = 0.0
    """Bytes by which rows narrower than the widest store cost more."""
    blocks: int = 1
    """Accumulator tiles of a task, one after the other: MMAs of the next wait for the epilogue of this one."""
    reduces: bool = False
    """True if lanes reduce results before anything is stored."""
    by_lanes: float = 0.0
    """Cycles of the core's lanes to store results that no bulk copy can store."""


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
    """Cycles of a core for all of its waves, with what each waits for, if only some of them run at a time."""
    at_a_time: int = 0
    """Tasks that a core has at a time, where each waits for memory and for its own waves; 0: that is not counted."""
    exchange: float = 0.0
    """Cycles of such a task for reductions whose row several waves share."""
    again: float = 0.0
    """Bytes that are moved again: those of spilled registers, or of rows that lanes do not share evenly."""
    starts: float = 0.0
    """Cycles in which the machine starts the workgroups of all tasks, one after the other."""
    from_memory: bool = False
    """True if bytes come from memory, although the L2 cache could hold them."""

    @property
    def copied_bytes(self) -> float:
        """Return the number of bytes that all workgroups copy to shared memory, summed over all iterations."""
        return self.tasks * sum(p.trips * p.copied for p in self.phases)
