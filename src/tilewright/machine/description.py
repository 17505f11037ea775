"""The description of a machine: memory spaces, limits, costs, atoms. The machines themselves are rows in `targets/`.

>>> small = Machine("toy", lanes=4, waves=2, spaces=spaces_of(shared=1024), multiply={}, copies={})
>>> small.spaces["shared"].bytes
1024
>>> small.copy_atom("load")
Traceback (most recent call last):
tilewright.machine.description.UnknownName: toy has no copy atom 'load'; it has none
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property

from tilewright.errors import TilewrightError
from tilewright.machine.copy import CopyAtom
from tilewright.machine.costs import Costs
from tilewright.machine.multiply import MultiplyAtom
from tilewright.machine.request import SPACES
from tilewright.machine.resources import BulkCopy, LaneAccess, RegisterFile, RowTasks, SharedMemory


class UnknownName(TilewrightError, LookupError):
    """Raised for a name that a machine's table lacks; the message lists similar names."""

    def __init__(self, where: str, what: str, name: str, known: Iterable[str]):
        names = list(known)
        near = get_close_matches(name, names, n=6, cutoff=0.4) or names[:12]
        more = ", ..." if len(near) < len(names) else ""
        super().__init__(f"{where} has no {what} {name!r}; it has {', '.join(near) + more if near else 'none'}")


@dataclass(frozen=True)
class Space:
    """A memory space. `bytes` is what a workgroup has of it (None: no limit that matters); `alignment` is that of
    allocations.
    """

    name: str
    bytes: int | None
    alignment: int


@dataclass(frozen=True)
class Limits:
    """Limits and rates of a machine that the planner uses. None: unknown, because it differs between machines of this
    kind.

    The defaults belong to no machine: one byte or element a cycle, zero cycles, zero registers. A "factor" multiplies a
    time. "Groups" are groups of waves that issue an MMA together, such as warpgroups.

    Registers. `registers`: vector registers of a thread, or 32-bit registers of a lane. `tile_registers`: tile
    registers of a thread. `vector_bytes`: width of a vector register. `working_registers`: registers of a lane beside
    its accumulators (addresses, counters, epilogue values); `loading_registers`: of a lane that only starts copies;
    `gathering_registers`: of a lane that copies by itself.

    Cores and caches. `cores`: the number of cores, each of which runs workgroups. `clock_ghz`: clock rate. `l1_bytes`,
    `l2_bytes`: cache of one core, and the cache behind it; `l1_ways`: associativity of L1; `l2_share`: share of L2 that
    data of a kernel can use. `line_bytes`: cache line; `sector_bytes`: L2 sector. `conflict_bytes`: rows with a stride
    that is a multiple of it share L1 sets (None: not modelled). `l2_parts`: parts of L2, each of which fetches a row
    for its own cores. `results_kept`, `operands_kept`: (low, high) shares of L2: below low all data stay in L2, above
    high none do, for results beside a stream of reads, and for operands until the next launch.

    Rates, in bytes per cycle. `l2_rate`, `far_rate`: a core's reads from L2, and from memory behind it, with all cores
    active. `copy_rate`: a core's copies. `shared_rate`: a core's reads of shared memory. `lane_rate`: elements per
    cycle that a core's lanes compute with a simple operation; `function_rate`: with a function such as e^x.

    Factors on reads. `far_alone`: speed-up of a core's reads from memory if other cores are idle. `warm`: speed-up if
    L2 holds the data from an earlier launch. `crossing`: slow-down of L2 for rows that do not begin at a multiple of
    their width. `misaligned_row`, `misaligned_row_tail`: slow-down for rows whose stride is no multiple of a sector,
    and for a last part that ends within a sector. `overlapping`: slow-down for rows that begin within the row before.
    `alone`: slow-down of L2 for rows that no other core reads at about the same time; `strewn`: the same for a kernel
    whose workgroups do not start one after the other, because it is launched early; `rewritten`: the same for operands
    that the launch before copied to another layout. `far_users`: slow-down of copies if all tasks run at once and tasks
    that read the same data are not neighbours. `read_power`: exponent by which reads above those of the best raster
    slow copies.

    Latencies, in cycles. `latency`: a multiply-add of the vector unit. `load_cycles`: time between two vector loads.
    `run_cycles`: each contiguous run of an operand that a CPU core reads from memory behind L2. `copy_latency`: a copy
    to shared memory; `far_latency`: the addition to it if L2 holds no operand. `launch_cycles`: a launch;
    `following_cycles`: a launch that overlaps the end of the previous one and needs its results. `sharing_cycles`: what
    a launch on a CPU takes longer if several workers share its tasks. `uneven`: how much longer than the average, as a
    share of it, the slowest core of a CPU may take for a task, if other programs or threads use the cores too.
    `start_cycles`: time between the starts of two workgroups. `task_cycles`: time between the copies of one task and
    those of a core's next; `next_task`: between the products of both. `outside_row`: each out-of-bounds row of a box
    copy. `leaving_row`: each row of a result that is stored. `lone_store`: a task that waits because it has one buffer
    for results. `meeting`: a workgroup barrier between iterations of a K loop. `gather_cycles`: a load or store of one
    word by a lane that copies by itself; `gather_latency`: the addition for a word that is in bounds.

    Pipelined MMA loops. `copy_shown`: exposed share of copies that overlap other work. `shallow_ring`: factor if too
    few stages are in flight. `lone_group`: factor on MMAs that a single group issues with few in flight; `lone_lanes`:
    on arithmetic of a single group between its MMAs. `round_latency`: exposed cycles of an iteration with a single
    group, divided by the square of the number of groups. `group_latency`, `lane_latency`: cycles added to MMAs for each
    group, and to arithmetic, divided by the number of groups; `turn_latency`: added to both if groups take turns;
    `operand_latency`: added to an iteration for each block of an atom's rows that a group multiplies, if lanes compute
    an operand: they wait for copies, MMAs for lanes. `lone_shown`: exposed share of the shorter of MMAs and arithmetic
    with a single group. `least_step`: minimum cycles of an iteration, in which waves wait for a stage, multiply and
    release it; `group_step`: addition for each further group. `last_store`: factor on the L2 rate for results of the
    last task; `epilogue_latency`: the cycles of an epilogue beside its arithmetic, stores and waits. `sharpness`:
    exponent of the p-norm that joins the own time of a chain of MMAs, or of a kernel with halo tiles, and that of its
    memory traffic (0: the longer of both, for all kernels).

    Code. `placing`: simple operations needed to address an element by division; `lane_store`: to store a result from a
    lane. `prefetch_bytes`: distance ahead at which packed operands are prefetched (0: no prefetch). `instructions`: the
    longest program, in instructions, that compiles in acceptable time.
    """

    registers: int
    tile_registers: int = 0
    vector_bytes: int | None = None
    l1_bytes: int = 0
    l1_ways: int | None = None
    l2_bytes: int = 0
    l2_share: float = 1.0
    cores: int | None = None
    clock_ghz: float = 1.0
    results_kept: tuple[float, float] = (0.0, 0.0)
    l2_rate: float = 1.0
    crossing: float = 1.0
    far_rate: float = 1.0
    far_alone: float = 1.0
    warm: float = 1.0
    copy_rate: float = 1.0
    shared_rate: float = 1.0
    copy_latency: int = 0
    copy_shown: float = 0.0
    far_users: float = 1.0
    read_power: float = 0.0
    shallow_ring: float = 1.0
    lone_group: float = 1.0
    sector_bytes: int = 1
    misaligned_row: float = 1.0
    misaligned_row_tail: float = 1.0
    leaving_row: float = 0.0
    task_cycles: float = 0.0
    outside_row: float = 0.0
    overlapping: float = 1.0
    lane_rate: int = 1
    function_rate: int = 1
    placing: float = 0.0
    round_latency: int = 0
    group_latency: float = 0.0
    lane_latency: float = 0.0
    lone_shown: float = 1.0
    turn_latency: int = 0
    operand_latency: float = 0.0
    epilogue_latency: float = 0.0
    sharpness: float = 0.0
    working_registers: int = 0
    loading_registers: int = 0
    gathering_registers: int = 0
    gather_cycles: float = 0.0
    gather_latency: float = 0.0
    latency: int = 1
    load_cycles: float = 1.0
    run_cycles: float = 0.0
    line_bytes: int = 1
    conflict_bytes: int | None = None
    prefetch_bytes: int = 0
    launch_cycles: int = 0
    following_cycles: int = 0
    sharing_cycles: int = 0
    uneven: float = 0.0
    start_cycles: float = 0.0
    l2_parts: int = 1
    alone: float = 1.0
    strewn: float = 1.0
    rewritten: float = 1.0
    least_step: float = 0.0
    group_step: float = 0.0
    lone_lanes: float = 1.0
    lane_store: float = 0.0
    operands_kept: tuple[float, float] = (0.0, 0.0)
    far_latency: float = 0.0
    lone_store: float = 0.0
    last_store: float = 0.0
    next_task: float = 0.0
    meeting: float = 0.0
    instructions: int = 0


@dataclass(frozen=True, eq=False)
class Machine:
    """The description of a target; there is one object for each name.

    `lanes` is the number of lanes of a wave; None if it is the width of the vector that an instruction uses. `waves` is
    the most that a workgroup has. `spaces` are global, shared and register; a tile register is a register tensor of an
    `OpaqueOperand`. `features` are all CPU or GPU features that the atoms need. `masked` holds the element sizes, in
    bytes, for which a vector load or store can be masked at run time; `predicated` says whether every vector
    instruction takes such a mask. `fused` says whether a multiply-add is one instruction, rounded once, `nan_maximum`
    whether one instruction gives the larger of two numbers, or NaN if one is NaN, `rounds_bf16` whether one rounds f32
    to bf16, `scales` whether one multiplies a vector by powers of two. `cluster` is the largest number of workgroups
    that run together and write to each other's shared memory. `launches` are the launch modes beyond one kernel after
    the other. `costs` are constants for ranking plans. `register_file`, `lane_access`, `shared_memory`, `bulk_copy` and
    `row_tasks` are the resources of waves of many lanes.
    """

    name: str
    lanes: int | None
    waves: int
    spaces: Mapping[str, Space]
    multiply: Mapping[str, MultiplyAtom]
    copies: Mapping[str, CopyAtom]
    features: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=lambda: Limits(registers=16))
    masked: frozenset[int] = frozenset()
    predicated: bool = False
    fused: bool = True
    nan_maximum: bool = False
    rounds_bf16: bool = False
    scales: bool = False
    cluster: int = 1
    launches: frozenset[str] = frozenset()
    costs: Costs = field(default_factory=Costs)
    register_file: RegisterFile = field(default_factory=RegisterFile)
    lane_access: LaneAccess = field(default_factory=LaneAccess)
    shared_memory: SharedMemory = field(default_factory=SharedMemory)
    bulk_copy: BulkCopy = field(default_factory=BulkCopy)
    row_tasks: RowTasks = field(default_factory=RowTasks)

    def __post_init__(self) -> None:
        if set(self.spaces) != set(SPACES):
            raise ValueError(f"{self.name}: the spaces of a machine are {', '.join(SPACES)}, not {list(self.spaces)}")
        needs = {atom.name: atom.features for atom in self.multiply.values()}
        needs |= {atom.name: atom.features for atom in self.copies.values()}
        for name, features in needs.items():
            missing = sorted(set(features) - self.features)
            if missing:
                raise ValueError(f"{self.name}: atom {name} needs {', '.join(missing)}")

    def multiply_atom(self, name: str) -> MultiplyAtom:
        """Return the machine's multiplication atom (MMA instruction) called `name`; raise UnknownName if there
        is none.
        """
        atom = self.multiply.get(name)
        if atom is None:
            raise UnknownName(self.name, "multiplication atom", name, self.multiply)
        return atom

    def copy_atom(self, name: str) -> CopyAtom:
        """Return the machine's copy atom (copy instruction) called `name`; raise UnknownName if there is none."""
        atom = self.copies.get(name)
        if atom is None:
            raise UnknownName(self.name, "copy atom", name, self.copies)
        return atom

    def copies_between(self, source: str, target: str) -> tuple[CopyAtom, ...]:
        """Return the copy atoms from memory space `source` to memory space `target`, in the order of the machine's
        table.

        A space is "global", "shared" or "register". An atom for global memory also counts for the spaces that it lists
        as `alike`.
        """

        def reaches(atom: CopyAtom, atom_space: str, wanted: str) -> bool:
            return wanted == atom_space or (atom_space == "global" and wanted in atom.alike)

        return tuple(a for a in self.copies.values() if reaches(a, a.source, source) and reaches(a, a.target, target))

    @cached_property
    def bulk_store(self) -> CopyAtom | None:
        """Return the first asynchronous copy atom of boxes from shared to global memory in the machine's table; None if
        there is none.

        An atom copies boxes if its field `rows` is not empty.
        """
        every = self.copies_between("shared", "global")
        return next((a for a in every if a.asynchronous and a.rows), None)


def spaces_of(shared: int | None, registers: int | None = None, alignment: int = 16) -> dict[str, Space]:
    """Return the three memory spaces of a machine, as {"global": Space, "shared": Space, "register": Space}.

    `shared` and `registers` are the bytes that a workgroup has (None: no limit). `alignment` is the alignment of
    allocations in global and shared memory, in bytes; registers are aligned to 4 bytes.

    >>> spaces_of(shared=None)["global"]
    Space(name='global', bytes=None, alignment=16)
    """
    sizes = {"global": None, "shared": shared, "register": registers}
    return {name: Space(name, sizes[name], 4 if name == "register" else alignment) for name in SPACES}
