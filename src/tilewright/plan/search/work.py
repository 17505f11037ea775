"""Counts of a kernel's work, from which the cost model predicts its time.

They are counts of each loop iteration, of the epilogue, and of memory traffic in all. A task is one workgroup's tile of
the grid (on a CPU one thread's); cycles of MMA units and lanes are those of one core, bytes have no rate yet.
"""

from __future__ import annotations

from typing import NamedTuple


class Phase(NamedTuple):
    """The work of one iteration of a phase (loop nest) on one core; `trips` is its number of iterations per task."""

    trips: float
    mma: float = 0.0
    """Cycles of the core's MMA units."""
    lanes: float = 0.0
    """Cycles of the core's lanes (ALUs) for elementwise work between MMAs, or that computes operands."""
    masked: float = 0.0
    """Additional cycles of lanes in iterations over a partly masked tile."""
    shared: float = 0.0
    """Bytes read from shared memory, without reads that the atoms' cycles include."""
    copied: float = 0.0
    """Bytes that are copied to shared memory."""
    l2: float = 0.0
    """Cycles of L2 for the copied bytes with all cores at work; more if rows are misaligned."""
    alone: float = 0.0
    """Copied bytes that no other core reads at about the same time."""
    strewn: float = 0.0
    """Copied bytes of a kernel whose workgroups do not start one after the other, because it is launched early."""
    rewritten: float = 0.0
    """Copied bytes of a kernel whose operands the launch before wrote, whichever tasks are neighbours."""
    gather: float = 0.0
    """Cycles of lanes that copy operands themselves, without bulk copies; on a CPU those of its reads."""
    sharpness: float = 0.0
    """Exponent of the p-norm that joins MMAs and reads on a CPU (0: the longer of both)."""
    is_dependent: bool = False
    """True if an MMA needs the result of another MMA of the same iteration."""
    computed: int = 0
    """Blocks of an atom's rows for which each wave group computes an operand of an MMA; 0: none is computed."""
    first: float = 0.0
    """Cycles of one wave group for its first MMA."""
    is_lone: bool = False
    """True if one wave group issues all MMAs, with few of them in flight."""
    serial: float = 0.0
    """Cycles that overlap with no other work."""
    slabs: int = 1
    """Slabs (rows of shared memory along K) per pipeline stage."""
    per_stage: int = 1
    """Iterations whose operands one pipeline stage holds; 0: only halo tiles (input patches) have stages, if any."""
    per_halo_stage: int = 1
    """Iterations that use one halo tile: one per filter tap."""
    is_skipped: bool = False
    """True if masks skip iterations of this phase's MMA."""
    late: float = 0.0
    """Cycles of a CPU's vectors for results that are stored during the next MMAs."""


class TaskEnd(NamedTuple):
    """The work of a task's epilogue: elementwise work on results, and stores through shared to global memory."""

    outputs: float
    """Elements of the result per task."""
    lanes: float
    """Cycles of the core's lanes for elementwise work after the MMAs."""
    l2: float
    """Cycles of L2 to store the results."""
    narrow: float = 0.0
    """Additional bytes that count because rows of the result are narrower than the widest store."""
    blocks: int = 1
    """Accumulator tiles of a task, one after the other: the MMAs of a tile wait for the epilogue of the tile before."""
    reduces: bool = False
    """True if lanes reduce results before anything is stored."""
    by_lanes: float = 0.0
    """Cycles of the core's lanes to store results that no bulk copy can store."""


class Work(NamedTuple):
    """The work of a kernel with `tasks` tasks: its `phases` (loop nests), its epilogue `end`, and its memory traffic.

    `lengths` is a tuple of (fraction of the iterations that masks do not skip, partly masked iterations, number of such
    tasks), with several entries if masks make tasks uneven. `l2_read` are the cycles of L2 per task. `resident` are the
    bytes that a task loads before its first iteration, `first` the bytes that a core loads once for all its tasks,
    `moved` the bytes of memory traffic of all tasks. A task at an edge of C loads `outside` out-of-bounds rows per K
    step; the busiest core has `edges` such tasks.
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
    """Cycles in which a core waits for loads, and no other work overlaps."""
    latency: float = 0.0
    """Cycles of a core for all of its waves with their waits for memory, if only some of them run at a time."""
    at_a_time: int = 0
    """Tasks (workgroups) that a core runs at a time, each with waits of its own; 0: not counted."""
    exchange: float = 0.0
    """Cycles per task in which waves combine their parts of reductions, if several waves share a row."""
    again: float = 0.0
    """Bytes that are moved again: spilled registers, rows that lanes share unevenly, rows that are read again."""
    starts: float = 0.0
    """Cycles in which the machine starts the workgroups of all tasks, one after the other."""
    from_memory: bool = False
    """True if all bytes come from memory, even if L2 could hold them from an earlier launch."""

    @property
    def copied_bytes(self) -> float:
        """The number of bytes that all workgroups copy to shared memory, summed over all iterations of all phases."""
        return self.tasks * sum(p.trips * p.copied for p in self.phases)
