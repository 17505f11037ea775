"""Rings and roles: plans for machines that copy tiles to shared memory by themselves and multiply them from there.

One wave brings steps of A and B to a ring of stages; groups of waves multiply what has arrived, each with rows of its
own; the result leaves through shared memory. Candidates differ in the tile of C that a task has, and in whether the
atom's rows go along the rows of C or along its columns: few rows of C are better the columns of an atom, which may be
as few. `ring_costs` has what they should take.

    axis M = (M 4096): task 128
    axis N = (N 4096): task 256
    axis K = (K 4096): loop 64
    grid M, N
    raster 8
    mma by matrix.m64n256k16.bf16, tile 128x256
    producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 4, epilogue stages 2
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil, gcd, prod

from tilewright.algebra.expr import ONE, Expr, Symbol, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import MemoryType, Op, Program, Value
from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.boxes import NOTHING, WRITES, Opened
from tilewright.plan.computed import ComputedFactor, computed_factor
from tilewright.plan.epilogue import after_product
from tilewright.plan.fixed import tiles_of, wave_parts
from tilewright.plan.general import GeneralChoice, axis_of, dims_of, words_for
from tilewright.plan.microkernel import Axes, Microkernel, as_plan
from tilewright.plan.model import element_bytes, moving
from tilewright.plan.pipelined import atoms_of, product_of, task_dims
from tilewright.plan.planner import Refusal
from tilewright.plan.ring_costs import ENOUGH, RingWork, columns_of, cycles, is_boxed, row_bytes
from tilewright.plan.schedule import Pipeline, Schedule, Split

GROUPS, ATOMS = (1, 2, 3), (1, 2, 3, 4)
"""Groups of waves that multiply, and the atoms that each has one below the other."""
STORED = (2, 1)
"""Stages in which results wait to leave: one is written while another leaves, unless the ring needs the room."""
FEWEST, MOST = 3, 8
"""Stages of a ring: at least, and at most, unless what these hold together is less than what is under way while as much
arrives."""
TOGETHER = (1, 2, 4, 8, 16)
"""Tasks along M that may be walked together."""
SHOWN = 4
"""Candidates that `explain` names beside the best."""


@dataclass(frozen=True)
class RingCandidate:
    """A candidate: the microkernel whose block is a task's tile of C, the roles, the cycles it should take, and the
    bytes that all of its tasks bring."""

    how: Microkernel
    roles: Pipeline
    cycles: float
    brought: float


def plan_with_roles(
    program: Program,
    sizes: Mapping[Symbol, int],
    size: Callable[[Expr], int],
    machine: Machine,
    free: Collection[Op],
    gathered: str = "",
    alone: bool = False,
    opened: Opened = NOTHING,
) -> GeneralChoice | str:
    """The plan of a program with one product, in two roles; or why it has none.

    `gathered` says why the waves that load copy themselves; where it is empty, the machine does that. Plans are made of
    all candidates, or of the best `alone`. Of sizes that are `opened` these are typical.
    """
    found = product_of(program, size, free)
    if isinstance(found, str):
        return found
    op, axes = found
    dims = task_dims(program, op, size, opened)
    if axes.m not in dims or axes.n not in dims:
        return "tasks cannot cut both dimensions of its sum"
    oriented = [_of_orientation(program, machine, size, op, axes, turned, gathered != "") for turned in (False, True)]
    every = [x for own in oriented if not isinstance(own, str) for x in own]
    if isinstance(oriented[0], str) and not every:
        return oriented[0]
    for d, place in ((axes.m, 0), (axes.n, 1)):
        if not _ends(program, d, sizes, size):  # all that a tile has must be there
            every = [x for x in every if size(d) % x.how.tile[place] == 0]
    if not every:
        return "no tile of its sum fits registers and shared memory"
    bound = bound_by_memory(program, size, machine)
    least = bound + machine.limits.launch_cycles
    extents = size(axes.m), size(axes.n)
    ordered = sorted(every, key=lambda x: _good(x, least, *extents))
    candidates = [replace(x, cycles=max(x.cycles, least)) for x in ordered]
    workgroups, _ = tiles_of(program, sizes)
    fixed = [workgroups.get(str(d)) for d in (axes.m, axes.n)]
    fitting = [x for x in candidates if all(n in (None, m) for n, m in zip(fixed, x.how.tile, strict=True))]
    if not fitting:
        return "none fits the constraints"
    if parts := wave_parts(program, sizes):
        fitting = [x for x in fitting if _shared(x, axes) == {d: n for d, n in parts.items() if n > 1}] or fitting
    made = _choices(fitting[: 1 if alone else None], op, axes, dims, program, sizes, size, machine, bound)
    best = made[0]
    others = [Refusal(str(x.how), f"{x.cycles / best.cycles:.2f} of the time") for x in fitting[1 : SHOWN + 1]]
    if gathered:
        others.append(Refusal("a wave that only starts copies", gathered))
    plans, costs = tuple(x.plan for x in made), tuple(x.cycles for x in made)
    return replace(best, refused=tuple(others), candidates=plans, costs=costs)


def _shared(x: RingCandidate, axes: Axes) -> dict[str, int] | None:
    """In how many parts the waves of a candidate share its rows; None where they share its columns too."""
    columns = x.how.tile[0 if x.how.transposed else 1]
    waves = x.roles.consumer[0] // (2 if x.roles.pingpong else 1)
    return None if columns > x.how.atom.shape[1] else {str(axes.n if x.how.transposed else axes.m): waves}


def _ends(program: Program, d: Expr, sizes: Mapping[Symbol, int], size: Callable[[Expr], int]) -> bool:
    """Whether what lies past the end of a dimension lies outside whatever is written."""
    for op in (op for op in program.walk() if op.name in WRITES and "at" in op.attrs):
        own = dict(zip(op.operands[0].type.dims, op.attrs["over"], strict=True)).get(d)
        if own is not None:
            past = Substitution({**sizes, own: symbol("past", size(d))})
            places = zip(map(past, op.attrs["at"]), op.operands[1].type.dims, strict=True)
            if not any((e >= size(n)) is ONE for e, n in places):
                return False
    return True


def _choices(
    fitting: list[RingCandidate],
    op: Op,
    axes: Axes,
    dims: tuple[Expr, ...],
    program: Program,
    sizes: Mapping[Symbol, int],
    size: Callable[[Expr], int],
    machine: Machine,
    bound: float,
) -> list[GeneralChoice]:
    """The plans of candidates, whose tasks cut these dimensions."""
    whole = [d for d in dims_of(program) if d not in dims and d.symbols <= set(sizes)]
    words = words_for(map(str, [*dims, *whole]))
    named = [(d, words[str(d)]) for d in (*dims, *whole)]
    found = []
    for ring in fitting:
        how, limited = ring.how, ring.cycles <= bound + machine.limits.launch_cycles
        group = _together(machine, how, size(axes.m), size(axes.n))
        walked = _walked(program, dims) if limited and how.tile[1] >= size(axes.n) else dims
        widths = {d: dict(zip((axes.m, axes.n), how.tile, strict=True)).get(d, 1) for d in walked}
        cut: dict[Expr, Split] = {d: Split("task", widths[d]) for d in dims}
        cut |= {d: Split("loop", 1) for d in axes.deep} | {axes.k: Split("loop", how.slab or 1)}
        plan = Schedule(
            tuple(axis_of(word, size(d), (cut[d],) if d in cut else ()) for d, word in named),
            tuple(words[str(d)] for d in walked),
            products=as_plan({op: how}, program),
            pipeline=ring.roles,
            raster=group,
        )
        found.append(GeneralChoice(machine, program.name, plan, ring.cycles, bound))
    return found


def _walked(program: Program, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Dimensions in the order in which what is written lies along them, the furthest apart first: tasks that run at a
    time then read and write whole rows of memory, where several of them share a row. That counts where memory limits;
    elsewhere those that share a factor should run at a time."""
    (op, *_) = (op for op in program.walk() if op.name in WRITES)
    written: tuple[Expr, ...] = op.operands[0].type.dims
    if "at" not in op.attrs:
        places = {d: op.operands[1].type.dims.index(d) for d in written}
    else:
        over = dict(zip(written, op.attrs["over"], strict=True))
        places = {d: next((n for n, e in enumerate(op.attrs["at"]) if over[d] in e.symbols), 0) for d in written}
    return tuple(sorted(dims, key=lambda d: places.get(d, -1)))


def _good(ring: RingCandidate, least: float, m: int, n: int) -> tuple[float, ...]:
    """Of those that take the same time one in which nobody takes turns, deep rings, the largest tile of what there is,
    which reads least, and fewest waves.

    Where memory limits, what else is to be done counts after that: how long it takes, times the bytes that are brought
    meanwhile, since cores that read the same share what brings it.
    """
    how, roles = ring.how, ring.roles
    deep = -min(roles.stages, ENOUGH), -roles.epilogue_stages
    rows, columns = how.tile
    took = round(max(ring.cycles, least)), roles.pingpong
    return (
        *took,
        *deep,
        round(ring.cycles * ring.brought),
        -min(rows, m) * min(columns, n),
        rows * columns,
        how.transposed,
        how.groups,
    )


def pitch_of(factor: Value, program: Program, size: Callable[[Expr], int]) -> int:
    """How many bytes rows lie apart where a factor is read, or what that is a multiple of; 0: it is computed."""
    op = next((x for x in program.walk() if factor in x.results), None)
    if op is None or op.name != "read":
        return 0
    memory: MemoryType = op.operands[0].type
    apart = size(memory.dims[-1]) if memory.strides is None else gcd(*memory.strides[:-1])
    return apart * element_bytes(memory.dtype)


def result_pitch(program: Program, size: Callable[[Expr], int]) -> int:
    """How many bytes rows of what is written lie apart, or what that is a multiple of; 0: only single numbers are."""
    written = [op.operands[1].type for op in program.walk() if op.name in WRITES]
    return gcd(*(size(kind.dims[-1]) * element_bytes(kind.dtype) for kind in written if kind.dims))


def overlaps(factor: Value, program: Program, size: Callable[[Expr], int]) -> bool:
    """Whether rows begin within the ones before them where a factor is read."""
    op = next((x for x in program.walk() if factor in x.results and x.name == "read"), None)
    memory: MemoryType | None = None if op is None else op.operands[0].type
    if memory is None or memory.strides is None:
        return False
    steps = [step for d, step in zip(memory.dims[:-1], memory.strides, strict=False) if size(d) > 1]
    return min(steps, default=size(memory.dims[-1])) < size(memory.dims[-1])


def bound_by_memory(program: Program, size: Callable[[Expr], int], machine: Machine) -> float:
    """Cycles that moving the arguments takes: all of each, or what is read and written of it, where that is less."""
    moved = 0
    for arg in (a for a in program.args if isinstance(a.type, MemoryType)):
        tiles = [op.results[0].type for op in program.walk() if op.name == "read" and op.operands[0] is arg]
        tiles += [op.operands[0].type for op in program.walk() if op.name in WRITES and op.operands[1] is arg]
        touched = sum(prod(map(size, kind.dims)) for kind in tiles)
        moved += min(_elements(arg.type, size), touched) * element_bytes(arg.type.dtype)
    return moving(machine, moved)


def _elements(memory: MemoryType, size: Callable[[Expr], int]) -> int:
    """The elements of an argument, those once that several of its places are."""
    if memory.strides is None:
        return prod(map(size, memory.dims))
    return 1 + sum((size(d) - 1) * step for d, step in zip(memory.dims, memory.strides, strict=True))


def _together(machine: Machine, how: Microkernel, m: int, n: int) -> int:
    """How many tasks along M to walk together: those that run at a time then read least of A and B.

    Where all run at a time, neighbours share what is longer: few tiles along M are walked first. 256x4096x4096 takes
    13.7 us so on an H200, and 17.0 us with N first; 2048x512x4096 takes 13.5 us with N first, and 21.1 us with M first.
    """
    rows, each = how.tile
    tall, wide = ceil(m / rows), ceil(n / each)
    running = min(machine.limits.cores or 1, tall * wide)

    def read(group: int) -> tuple[int, int]:
        columns = min(wide, ceil(running / min(group, tall)))
        return ceil(running / columns) * rows + columns * each, -group if tall < wide else group

    choices = {g for g in TOGETHER if g <= tall} | ({tall} if tall <= TOGETHER[-1] else set())
    return min(choices, key=read)


def _of_orientation(
    program: Program,
    machine: Machine,
    size: Callable[[Expr], int],
    op: Op,
    axes: Axes,
    transposed: bool,
    gathered: bool,
) -> list[RingCandidate] | str:
    """The candidates with the atom's rows along M, or along N; or that no atom multiplies what lies so."""
    if transposed and op.attrs.get("blocks", 1) > 1:
        return "blocks on a diagonal lie along the columns of an atom"
    axes = axes.transposed if transposed else axes
    atoms = atoms_of(program, machine, op, axes)
    if isinstance(atoms, str):
        return atoms
    work = ring_work(program, machine, size, op, axes, atoms, gathered)
    return work if isinstance(work, str) else list(_rings(machine, tuple(atoms), work, gathered, transposed))


def ring_work(
    program: Program,
    machine: Machine,
    size: Callable[[Expr], int],
    op: Op,
    axes: Axes,
    atoms: Sequence[MultiplyAtom],
    gathered: bool,
) -> RingWork | str:
    """The work of a product as atoms have it; or why A is not computed in registers."""
    along = zip(axes.factors(op), (axes.m, axes.n), strict=True)
    left, each = computed_factor(program, axes.factors(op)[0]), element_bytes(atoms[0].a.dtype)
    thin = 1.0
    if isinstance(left, ComputedFactor):
        thin = left.bytes(axes, atoms[0].slab or 1) / each
        if thin > 1 or gathered or any(size(axes.k) % (atom.slab or 1) for atom in atoms):
            return "what A is computed from is wider than it, is copied by waves, or ends within a step of K"
    return RingWork(
        (size(axes.m), size(axes.n), size(axes.k)),
        prod(size(d) for d in axes.deep),
        prod(size(d) for d in axes.around),
        max(w.operands[1].type.dtype.bits for w in program.walk() if w.name in WRITES),
        tuple(not gathered and is_boxed(factor, d, program) for factor, d in along),
        after_product(program, op, machine),
        tuple(pitch_of(factor, program, size) for factor in axes.factors(op)),
        tuple(overlaps(factor, program, size) for factor in axes.factors(op)),
        result_pitch(program, size),
        gathered,
        thin,
        left.cycles(machine) if isinstance(left, ComputedFactor) else 0.0,
        op.attrs.get("blocks", 1),
    )


@lru_cache
def _rings(
    machine: Machine, atoms: tuple[MultiplyAtom, ...], work: RingWork, gathered: bool, transposed: bool
) -> tuple[RingCandidate, ...]:
    """The candidates for some work, kept: the same work is planned again for another state of the program."""
    return tuple(rings(machine, list(atoms), work, gathered, transposed))


def rings(
    machine: Machine, atoms: Iterable[MultiplyAtom], work: RingWork, gathered: bool, transposed: bool
) -> Iterator[RingCandidate]:
    """The candidates for some work. Nobody takes turns where no core has a second task."""
    shared, cores, bulk = machine.spaces["shared"].bytes, machine.limits.cores or 1, machine.bulk_copy
    if shared is None or machine.lanes is None or not any(a.asynchronous for a in machine.copies.values()):
        return
    for atom in atoms:
        for groups, each, turns in product(GROUPS, ATOMS, (False, True)):
            rows = groups * each * atom.shape[0]
            columns = columns_of(atom, work.blocks, *work.sizes[1:])
            if atom.slab is None or columns is None or rows > bulk.box_extent or (turns and (groups > 1 or gathered)):
                continue
            how = Microkernel(atom, rows, columns, groups, transposed=transposed, blocks=work.blocks)
            roles = _roles(machine, how, shared, gathered, turns, work.thin)
            if roles is not None and (how.tile[1] * work.bits // 8) % bulk.row_bytes == 0:
                m, n, _ = work.sizes
                tiles = work.count * ceil(m / how.rows) * ceil(n / how.columns)
                if turns and tiles <= cores:
                    continue
                filled = work.filled(machine, how, work.steps(how))
                yield RingCandidate(how, roles, ring_cycles(machine, work, how, roles), tiles * filled)


def ring_cycles(machine: Machine, work: RingWork, how: Microkernel, roles: Pipeline) -> float:
    """The cycles of some work by a microkernel and its roles."""
    m, n, _ = work.sizes
    tiles = work.count * ceil(m / how.rows) * ceil(n / how.columns)
    steps = work.steps(how)
    return cycles(
        machine,
        how,
        roles,
        tiles,
        steps,
        work.filled(machine, how, steps),
        computed=work.computed,
        surplus=work.surplus(machine, how, ceil(tiles / (machine.limits.cores or 1))),
        gathered=work.gathered(machine, how, roles, steps),
        served=work.served(machine, how, tiles),
        made=steps * how.rows * (how.slab or 1) * work.making,
    )


def registers_of(machine: Machine, how: Microkernel, gathered: bool, groups: int | None = None) -> tuple[int, int]:
    """Registers of a lane that loads, and of one that multiplies, of so many groups of waves."""
    limits, registers, groups = machine.limits, machine.spaces["register"].bytes, groups or how.groups
    assert registers is not None
    sharing = groups + 1  # who loads is a group too, and all begin alike
    file, unit = machine.register_file, machine.register_file.role_unit
    each = registers // file.word_bytes // how.atom.c.lanes // sharing // unit * unit * sharing  # of a lane of each
    # one that loads has two units fewer for each group
    spare = limits.gathering_registers if gathered else limits.loading_registers - 2 * unit * groups
    return spare, min((limits.registers - file.role_reserved) // unit * unit, (each - spare) // groups // unit * unit)


def waves_of_roles(
    machine: Machine, how: Microkernel, *, gathered: bool, turns: bool = False
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """(waves, registers of a lane) of the role that loads and of the one that multiplies, if they hold its sums.

    Those who take tasks in `turns` are twice as many. Lanes that multiply by themselves do not: a group of them
    multiplies while another loads its factors.
    """
    if not how.atom.asynchronous and (turns or how.groups == 1):
        return None
    groups = 2 * how.groups if turns else how.groups
    assert machine.lanes is not None
    spare, own = registers_of(machine, how, gathered, groups)
    sums = how.sums
    if how.held_a:  # a step of it, beside what it is computed from
        word = machine.register_file.word_bytes
        sums += 2 * how.rows * row_bytes(how) // (word * how.groups * how.atom.c.lanes)
    if sums + machine.limits.working_registers > own:
        return None
    waves = how.atom.c.lanes // machine.lanes
    return (waves if gathered else 1, spare), (waves * groups, own)


def _roles(
    machine: Machine, how: Microkernel, shared: int, gathered: bool, turns: bool, thin: float
) -> Pipeline | None:
    """The roles of a block, if registers hold its sums and shared memory enough stages."""
    found = waves_of_roles(machine, how, gathered=gathered, turns=turns)
    if found is None:
        return None
    row, halves = row_bytes(how), 1 + turns
    left, stage = shared - halves * machine.spaces["shared"].alignment, int((thin * how.rows + how.columns) * row)
    room = {n: (left - halves * n * how.rows * row) // stage for n in STORED}
    stored = next((n for n in STORED if room[n] >= ENOUGH), STORED[0])
    under_way = 2 * machine.limits.copy_latency * machine.limits.l2_rate / stage
    stages = ceil(min(max(MOST, under_way), room[stored]))
    return None if stages < FEWEST else Pipeline(*found, stages, stored, pingpong=turns)
