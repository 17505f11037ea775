"""A machine, described: its spaces, its limits, its atoms. The rows stand with the targets.

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

from tilewright.errors import TilewrightError
from tilewright.machine.copy import CopyAtom
from tilewright.machine.costs import Costs
from tilewright.machine.multiply import MultiplyAtom
from tilewright.machine.request import SPACES
from tilewright.machine.resources import BulkCopy, LaneAccess, RegisterFile, RowTasks, SharedMemory


class UnknownName(TilewrightError, LookupError):
    """A name that a machine's table does not hold; the message lists near names."""

    def __init__(self, where: str, what: str, name: str, known: Iterable[str]):
        names = list(known)
        near = get_close_matches(name, names, n=6, cutoff=0.4) or names[:12]
        more = ", ..." if len(near) < len(names) else ""
        super().__init__(f"{where} has no {what} {name!r}; it has {', '.join(near) + more if near else 'none'}")


@dataclass(frozen=True)
class Space:
    """Where elements can lie: `bytes` a workgroup has of it (None: no limit worth planning by), and how its
    allocations are aligned, in bytes.
    """

    name: str
    bytes: int | None
    alignment: int


@dataclass(frozen=True)
class Limits:
    """What a planner counts. None: the row does not say, because it differs between machines of this kind.

    A default is no machine's: one byte or element a cycle, no time, no register. A row says what it is planned by.

    `registers` are the vector registers of a thread, or 32-bit registers of a lane; `vector_bytes` is the width of a
    vector register, where there are any; `cores` run workgroups at the same time; the caches are those of one core, and
    the one behind it; a line of memory has `l1_ways` places in the first. `l2_rate` and `far_rate` are the bytes that a
    core reads in a cycle from the second cache and from what lies behind it, all cores at a time; `far_alone` how many
    times as much it reads from there while some cores read nothing; `crossing` how many times as long the second cache
    takes for rows that begin anywhere, not at a multiple of their width; rows that lie
    no multiple of `sector_bytes` apart take `askew` times as long again, and those that end within a sector
    `askew_partial` times. `leaving_row` are the cycles that it takes for a row of a result, `task_cycles` what lies
    between the copies of a task and those of the next of a core. `copy_rate` are the bytes that a core copies;
    `latency` is how many cycles a product of the vector unit takes, `load_cycles` how many lie between two loads of
    vectors.
    `instructions` is what a program may have before compiling it takes too long; `launch_cycles` what starting one
    takes, `following_cycles` one that begins while another ends and needs what that wrote. `warm` is how many times as
    fast all cores together read what the second cache still holds, since a launch before, as what lies behind it.
    `shared_rate` are the bytes that a core reads in a cycle from the memory that its threads share, `copy_latency`
    the cycles that a copy to it takes to arrive. `copy_shown` is what shows of the time of copies that run beside other
    work, `far_users` how many times as long copies take where all tasks run at a time and those that read the same
    are not next to each other, `read_power` the power of what a raster reads more than the best one by which they take
    longer, `shallow_ring` how much longer steps take that too few copies run ahead of, `lone_group`
    how much longer products take that one group of waves starts alone, with few of them under way. `outside_row` are
    the cycles that a copy of a box takes for each of its rows that lies outside the tensor. Rows that begin within the
    ones before them share lines with those, and take `overlapping` times as long as others that lie as far apart.
    `lane_rate` is how many elements a core's lanes compute in a cycle, of the simplest kind, `function_rate` of a
    function such as e^x; `placing` are as many of the simplest as it takes to read an element whose place divides its
    number. `round_latency` are the cycles of a round of products and what lies between them that nothing hides where
    one group of waves does it, by its square fewer where there are more; in such a round,
    matrix units take `group_latency` longer for each group of waves, lanes `lane_latency` by the number of groups, and
    both `turn_latency` where groups take turns; `lone_shown` is the share of the shorter of both that shows where one
    group does them, with products ahead.
    `working_registers` are those of a lane beside its sums (addresses, counters, what an epilogue computes),
    `loading_registers` those of one that only starts copies, `gathering_registers` of one that copies itself. Such a
    lane takes `gather_cycles` for each load and store, of one word that lies within one row, and `gather_latency`
    more for each that finds something.
    `results_kept` are the shares of the second cache between which results stay there while what is read passes by.
    `start_cycles` are those from the start of one workgroup to that of the next.
    The second cache has `l2_parts`, each of which brings a row for its own cores; `alone` is how many times as long
    it takes for rows that no other core reads at about the same time, `strewn` for those of a kernel whose workgroups
    do not begin next to each other: one that is launched early after a shorter one.
    `operands_kept` are the shares of the second cache that a kernel may read for all, and for none, of what it reads to
    be there still when it is launched again; `far_latency` how much longer a copy takes to arrive if none is.
    `next_task` are the cycles between the products of a task and those of the next of a core.
    `least_step` are the cycles of an iteration of waves that multiply, at least: they wait for a stage, multiply, and
    pass it on; `group_step` what each further group of them adds. `lone_lanes` is how much longer lanes take for what
    one group of waves computes between its products. `lane_store` are as many of the simplest elements as it takes a
    lane to store one of a result. `lone_store` are the cycles of a task that has one buffer for results, and waits for
    it; `last_store` how many times as long as by the second cache's own rate results of the last task take to leave.
    `meeting` are the cycles in which all waves of a workgroup wait for each other, between iterations of a K loop.
    `line_bytes` is what memory is moved by: what two cores write lies at least so far apart. Rows that lie a multiple
    of `conflict_bytes` apart meet in the same lines of the first cache; None: that is not counted. Products of vectors
    ask for the lines of a packed operand that lie `prefetch_bytes` after those that they load; 0: they ask for none.
    `l2_share` is the share of the second cache that data of a kernel can use.
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
    askew: float = 1.0
    askew_partial: float = 1.0
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
    working_registers: int = 0
    loading_registers: int = 0
    gathering_registers: int = 0
    gather_cycles: float = 0.0
    gather_latency: float = 0.0
    latency: int = 1
    load_cycles: float = 1.0
    line_bytes: int = 1
    conflict_bytes: int | None = None
    prefetch_bytes: int = 0
    launch_cycles: int = 0
    following_cycles: int = 0
    start_cycles: float = 0.0
    l2_parts: int = 1
    alone: float = 1.0
    strewn: float = 1.0
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
    """What a target can do, as data; there is one object for each name.

    `lanes` are those of a wave; None where the width is that of whichever vector an instruction uses. `waves` is the
    most a workgroup has. `spaces` are global, shared and register; a tile register is a register tensor of an
    `OpaqueOperand`. `features` are all that the atoms ask for. `masked` holds the sizes of elements, in bytes, of which
    a vector can be loaded or stored in part by a mask that is worked out at run time; `predicated` says whether every
    vector instruction takes such a mask. `fused` says whether a product and a sum are one instruction, rounded once,
    `nan_maximum` whether one instruction gives the larger of two numbers, or NaN where one is none, `rounds_bf16`
    whether one rounds f32 to bf16, `scales` whether one multiplies a vector by powers of two. `cluster` is how many
    workgroups may run together and write to one another's shared memory. `launches` are the ways in which a kernel may
    be launched beyond one after the other. `costs` are what plans are ranked by beside the limits and the atoms.
    `register_file`, `lane_access`, `shared_memory`, `bulk_copy` and `row_tasks` are what waves of many lanes work with.
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
        """The multiplication atom of that name."""
        found = self.multiply.get(name)
        if found is None:
            raise UnknownName(self.name, "multiplication atom", name, self.multiply)
        return found

    def copy_atom(self, name: str) -> CopyAtom:
        """The copy atom of that name."""
        found = self.copies.get(name)
        if found is None:
            raise UnknownName(self.name, "copy atom", name, self.copies)
        return found

    def copies_between(self, source: str, target: str) -> tuple[CopyAtom, ...]:
        """The copy atoms from one space to another, in the order of the table."""

        def reaches(atom: CopyAtom, mine: str, wanted: str) -> bool:
            return wanted == mine or (mine == "global" and wanted in atom.alike)

        return tuple(a for a in self.copies.values() if reaches(a, a.source, source) and reaches(a, a.target, target))


def spaces_of(shared: int | None, registers: int | None = None, alignment: int = 16) -> dict[str, Space]:
    """The three spaces: bytes of shared memory and of registers that a workgroup has, alignment of allocations.

    >>> spaces_of(shared=None)["global"]
    Space(name='global', bytes=None, alignment=16)
    """
    sizes = {"global": None, "shared": shared, "register": registers}
    return {name: Space(name, sizes[name], 4 if name == "register" else alignment) for name in SPACES}
