"""Several products in one kernel: plans in which what lies between them stays in registers.

All products have the same rows, which tasks cut; groups of waves have rows of their own, one atom each. What one
product makes is dealt out to lanes as the atom has its sum, and stays so while maps and reductions along rows change
it, until it is the factor A of the next, from registers. Factors that are arguments are brought by a role of its own:
those that a loop goes over through rings, the others once a task.

    axis M = (M 4096): task 128
    axis N = (N 4096): loop 128
    mma by matrix.m64n128k16.bf16, block 128x128
    mma2 by matrix.m64n128k16.bf16.ra.tb, block 128x128
    roles load 1 wave 40 registers, multiply 8 waves 232 registers, ring 2, stored 1
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, prod

from tilewright.algebra.expr import Expr, Symbol
from tilewright.errors import ArgumentError
from tilewright.ir.core import Op, Program, TileType, Value
from tilewright.ir.tile import UNARY_FLOAT
from tilewright.machine import Machine
from tilewright.plan.boxes import WRITES, cut_dims
from tilewright.plan.fixed import tiles_of
from tilewright.plan.general import Cuts, GeneralChoice, axis_of, dims_of, words_for
from tilewright.plan.hiding import hiding, rounds_of_tasks, uneven
from tilewright.plan.microkernel import (
    Axes,
    Microkernel,
    as_plan,
    axes_of,
    names_of,
    precision_of,
    shared_atoms,
    types_of,
)
from tilewright.plan.model import l2
from tilewright.plan.pinned import pinned
from tilewright.plan.plan import Cut, Plan, Roles
from tilewright.plan.planner import Refusal
from tilewright.plan.ring_costs import row_bytes
from tilewright.plan.rings import GROUPS, MOST, SHOWN, bound_by_memory, is_along, registers_of

Size = Callable[[Expr], int]
WORKING = 32
"""Registers of a lane beside sums and factors: addresses, counters, what rows have."""
WAITING = ((2, 2), (2, 1), (1, 2), (1, 1))
"""Stages of what is brought once a task, and in which results wait to leave: what fits, the best first. With two of the
former the next task begins at once."""
FEWEST = 2
"""Stages of the ring of each factor, at least."""


@dataclass(frozen=True)
class ProductChain:
    """A candidate: how each product is done, the roles, and the cycles it should take."""

    products: dict[Op, Microkernel]
    roles: Roles
    overlap: str
    cycles: float

    @property
    def rows(self) -> int:
        """The rows of a task."""
        return next(iter(self.products.values())).rows


@dataclass(frozen=True)
class _Found:
    """The products of a program, by what their dimensions are, and how wide those are that tasks and loops cut."""

    axes: dict[Op, Axes]
    held: dict[Op, bool]
    """Whether A is computed, so that it is in registers."""
    looped: dict[Expr, int]
    """The axes that loops go over, and their tiles."""
    row: Expr
    cut: tuple[Expr, ...]
    """The dimensions that tasks may cut."""


def plan_chained(
    program: Program,
    sizes: Mapping[Symbol, int],
    size: Callable[[Expr], int],
    machine: Machine,
    given: Plan | None = None,
    gathered: str = "",
) -> GeneralChoice | str:
    """The plan of a program with several products, whose values stay in registers; or why it has none.

    `gathered` says why the waves that load copy themselves; where it is empty, the machine does that.
    """
    found = _products(program, sizes, size)
    if isinstance(found, str):
        return found
    candidates = sorted(
        _candidates(program, found, size, machine, gathered != ""), key=lambda x: (round(x.cycles), -x.rows)
    )
    workgroups, _ = tiles_of(program, sizes)
    rows = workgroups.get(str(found.row))
    fitting = [x for x in candidates if rows in (None, x.rows)]
    if given is not None:
        fitting = [_pinned(given, x, machine) for x in fitting if _is(given, x, program)]
        if not fitting:
            raise ArgumentError(
                f"plan: `{given.roles}` with `{'; '.join(map(str, given.products))}` fits none of {machine.name}'s"
            )
    if not fitting:
        return "no rows of its sums fit registers and shared memory" if not candidates else "none fits the constraints"
    made = [_choice(x, found, program, sizes, size, machine) for x in fitting]
    best = made[0]
    others = [
        Refusal(f"{x.rows} rows a task, overlap {x.overlap}", f"{x.cycles / best.cycles:.2f} of the time")
        for x in fitting[1 : SHOWN + 1]
    ]
    return replace(best, refused=tuple(others), candidates=tuple(x.plan for x in made))


def _is(given: Plan, chain: ProductChain, program: Program) -> bool:
    """Whether a plan is a candidate, perhaps with other registers and stages."""
    said, own = given.roles, chain.roles
    assert said is not None
    waves = (said.load[0], said.multiply[0]) == (own.load[0], own.multiply[0]) and not (said.pingpong or said.halo)
    return waves and (chain.overlap, as_plan(chain.products, program)) == (given.overlap, given.products)


def _pinned(given: Plan, chain: ProductChain, machine: Machine) -> ProductChain:
    """A candidate with the registers and stages that a plan says."""
    roles = pinned(given, next(iter(chain.products.values())), machine)
    if roles.together and chain.overlap != "none":
        raise ArgumentError(f"plan: `{roles}`: what products use one ahead of the other is not handed over together")
    return replace(chain, roles=roles)


def _products(program: Program, sizes: Mapping[Symbol, int], size: Callable[[Expr], int]) -> _Found | str:
    """The products and their dimensions; or why their values do not stay in registers."""
    if not names_of(program):
        return "it has no product"
    dims, (_, tilings) = cut_dims(program, size), tiles_of(program, sizes)
    if any(x.name in WRITES and (x.name != "write" or x.attrs.get("lookups")) for x in program.walk()):
        return "it writes where data say: what tasks at the edges compute too much would go there as well"
    looped: dict[Expr, int] = {}
    for op in program.walk():
        if op.name == "iterate":
            tile = tilings.get(str(op.attrs["axis"]))
            if op.attrs.get("start") or tile is None:
                return "a loop of it has no tile size that is a number"
            looped[op.attrs["axis"]] = tile

    def width(d: Expr) -> int:
        return looped.get(d) or (1 if d in dims and d not in across else size(d))

    across: set[Expr] = {d for op in names_of(program).values() for d in op.operands[2].type.dims[-1:]}
    made = {r: op for op in program.walk() for r in op.results}
    axes: dict[Op, Axes] = {}
    held: dict[Op, bool] = {}
    for op in names_of(program).values():
        across |= {d for d in op.operands[0].type.dims if d not in op.operands[1].type.dims}
        dims_a, dims_b, dims_c = (v.type.dims for v in op.operands)
        each = axes_of(dims_a, dims_b, dims_c, width)
        if isinstance(each, str):
            return each
        if each.m is None or each.m not in dims:
            return "tasks cannot cut the rows of its sums"
        if any(width(d) > 1 for d in (*each.around, *each.deep)):
            return "its sums have more dimensions than rows and columns"
        a, b = op.operands[:2][::-1] if each.swapped else op.operands[:2]
        if not _is_read(b, made):
            return "a factor B is computed"
        axes[op], held[op] = each, not _is_read(a, made)
    if not axes:
        return "it has no product"
    (row, *others) = {x.m for x in axes.values()}
    if others:
        return "its products have rows of different dimensions"
    assert row is not None
    if _wide(program, row, dims, looped, size):
        return "a value between its products has more than rows and columns"
    return _Found(axes, held, looped, row, dims)


def _is_read(value: Value, made: Mapping[Value, Op]) -> bool:
    op = made.get(value)
    return op is not None and op.name == "read" and not op.attrs.get("lookups")


def _wide(
    program: Program, row: Expr, dims: Collection[Expr], looped: Mapping[Expr, int], size: Callable[[Expr], int]
) -> bool:
    """Whether a value that is neither an argument's nor a number has two dimensions beside the rows."""
    for op in program.walk():
        for value in op.results if op.name not in ("read", "fill", "scalar") else ():
            kind = value.type
            if isinstance(kind, TileType) and sum(size(d) > 1 and d is not row for d in kind.dims) > 1:
                others = [d for d in kind.dims if d is not row and size(d) > 1 and d not in dims]
                if len(others) > 1:
                    return True
    return False


def _candidates(
    program: Program, found: _Found, size: Callable[[Expr], int], machine: Machine, gathered: bool
) -> Iterator[ProductChain]:
    """One for each number of groups of waves for which registers and shared memory are enough."""
    shared = machine.spaces["shared"].bytes
    if shared is None or machine.lanes is None or not any(a.asynchronous for a in machine.copies.values()):
        return
    bits = max(w.operands[1].type.dtype.bits for w in program.walk() if w.name in WRITES)
    for groups, kept in product(GROUPS, (True, False) if found.looped else (False,)):
        products: dict[Op, Microkernel] = {}
        for op, axes in found.axes.items():
            how = _microkernel(op, axes, found, groups, size, machine, program, kept)
            if how is not None:
                products[op] = how
        if len(products) < len(found.axes):
            continue
        if kept and not any(how.held_a and not found.held[op] for op, how in products.items()):
            continue
        roles = _roles(machine, products, found, size, shared, bits, gathered)
        for overlap in _overlaps(found, products) if roles is not None else ():
            assert roles is not None
            yield ProductChain(products, roles, overlap, _cycles(machine, products, found, size, program, overlap))


def _overlaps(found: _Found, products: Mapping[Op, Microkernel]) -> tuple[str, ...]:
    """How products may run beside other work."""
    if not found.looped or len(products) < 2:
        return ("none",)
    return ("ahead", "turns", "none") if next(iter(products.values())).groups > 1 else ("ahead", "none")


def _microkernel(
    op: Op,
    axes: Axes,
    found: _Found,
    groups: int,
    size: Callable[[Expr], int],
    machine: Machine,
    program: Program,
    kept: bool,
) -> Microkernel | None:
    """The narrowest atom that has all columns of a product; just as many, where tasks do not cut them.

    With `kept`, A is in registers too where it is read and every round of a loop multiplies by it.
    """
    factors = op.operands[:2][::-1] if axes.swapped else op.operands[:2]
    along_k = is_along(factors[0], axes.k, program), is_along(factors[1], axes.k, program)
    held = found.held[op] or (kept and all(along_k) and not set(found.looped) & set(factors[0].type.dims))
    atoms = shared_atoms(machine, types_of(op, axes.swapped, machine), along_k, precision_of(op), held)
    wanted = found.looped.get(axes.n) or size(axes.n)
    fitting = [x for x in atoms if x.shape[1] == wanted or (axes.n in found.cut and x.shape[1] > wanted)]
    if not fitting:
        return None
    atom = min(fitting, key=lambda x: x.shape[1])
    how = Microkernel(atom, groups * atom.shape[0], atom.shape[1], groups, at_once=True)
    depth = _depth(axes, found, size)
    exact = found.held[op] or axes.k in found.looped  # what is computed has no zeros past its end, nor has a tile
    return how if not exact or how.deep(depth) == depth else None


def _depth(axes: Axes, found: _Found, size: Callable[[Expr], int]) -> int:
    return found.looped.get(axes.k) or size(axes.k)


def _roles(
    machine: Machine,
    products: Mapping[Op, Microkernel],
    found: _Found,
    size: Callable[[Expr], int],
    shared: int,
    bits: int,
    gathered: bool,
) -> Roles | None:
    """The roles, if registers hold what is alive at a time, and shared memory enough stages."""
    how = next(iter(products.values()))
    lanes = how.atom.c.lanes
    assert machine.lanes is not None
    spare, own = registers_of(machine, how, gathered)
    live = sum(x.atom.c.values for x in products.values())
    once, staged = 0, 0
    turning = [d for d, tile in found.looped.items() if size(d) > tile]
    fewest = FEWEST if turning else 1
    for op, each in products.items():
        axes = found.axes[op]
        deep = each.deep(_depth(axes, found, size))
        width = each.atom.a.dtype.bits // 8
        if each.held_a:
            live += each.atom.shape[0] * deep * width // 4 // lanes
        tiles = [(each.columns, (axes.n, axes.k))] + ([] if found.held[op] else [(each.rows, (axes.m, axes.k))])
        deep = -(-deep // (each.slab or 1)) * (each.slab or 1)  # tiles there have whole rows
        for count, dims in tiles:
            if not turning or any(d in turning for d in dims):
                staged += count * deep * width
            else:
                once += count * deep * width
    if live + WORKING > own:
        return None
    last = list(products.values())[-1]
    row = row_bytes(last) * bits // last.atom.a.dtype.bits
    left = shared - (2 * len(products) + 1) * machine.spaces["shared"].alignment  # each begins at a multiple
    room = {(n, stored): (left - n * once - stored * last.rows * row) // max(1, staged) for n, stored in WAITING}
    # what goes on to registers at once needs no second stage
    moved_on = any(how.held_a and not found.held[op] for op, how in products.items())
    waiting = [x for x in WAITING if x[0] == 1 or not moved_on]
    count, stored = next((x for x in waiting if room[x] >= fewest), WAITING[-1])
    if room[count, stored] < fewest:
        return None
    waves, stages = lanes // machine.lanes, min(MOST, room[count, stored])
    load = waves if gathered else 1
    load_, multiply = (load, spare), (waves * how.groups, own)
    return Roles(load_, multiply, stages, stored, once=count if once else 1, apart=how.groups > 1)


def _cycles(
    machine: Machine, products: Mapping[Op, Microkernel], found: _Found, size: Size, program: Program, overlap: str
) -> float:
    """Cycles of all tasks: each round costs products, arithmetic between them, and what of one hides no other."""
    limits = machine.limits
    how = next(iter(products.values()))
    rows, groups = how.rows, how.groups
    columns = sum(tile for tile in found.looped.values())
    deep = {op: x.deep(_depth(found.axes[op], found, size)) for op, x in products.items()}
    each = [deep[op] / x.atom.shape[2] * x.atom.cycles for op, x in products.items()]  # of one group
    multiplied = groups * sum(each)
    filled = sum(x.columns * deep[op] * x.atom.b.dtype.bits / 8 / limits.l2_rate for op, x in products.items())
    between, masking = (rows * columns * x for x in _between(program, found, machine))
    step = max(multiplied, between, filled) + limits.round_latency / groups**2
    step += 0.0 if overlap != "none" else min(multiplied, between) / groups
    step += limits.copy_shown * filled + (limits.turn_latency if overlap == "turns" else 0)
    rest = limits.copy_latency + rows * columns * 4 / limits.shared_rate
    around = prod(size(d) for d in found.cut if d is not found.row and d not in _across(found))
    fixed, cores = limits.copy_latency + limits.launch_cycles, limits.cores or 1
    rounds = _rounds(program, found, rows, size)
    if uneven(program, found.row):  # whoever is done takes the next task, and the last ones are the shortest
        tasks = [n * step + m * masking + rest for n, m in rounds]
        return around * sum(tasks) / cores + min(tasks) + fixed
    if overlap != "turns":  # groups begin a task at the same time, and wait for one another's first products
        rest += (groups - 1) / 2 * each[0]
    return ceil(around * len(rounds) / cores) * (rounds[0][0] * step + rest) + fixed


def _between(program: Program, found: _Found, machine: Machine) -> tuple[float, float]:
    """Cycles of a core for an element of a round's scores, between products, and of those tiles that are masked."""
    limits, masking = machine.limits, hiding(program, found.row)
    every = masked = 0.0
    for op in program.walk():
        along = any(isinstance(v.type, TileType) and set(found.looped) & set(v.type.dims) for v in op.results)
        if along and op.name not in ("read", "fill", "self_index", "scalar"):
            each = 1 / (limits.function_rate if op.name in UNARY_FLOAT else limits.lane_rate)
            every, masked = (every, masked + each) if op in masking else (every + each, masked)
    return every, masked


def _rounds(program: Program, found: _Found, rows: int, size: Size) -> list[tuple[int, int]]:
    """(rounds of its loops, those of them that are masked) of each task of so many rows."""
    counts = [(1, 0)] * ceil(size(found.row) / rows)
    for op in program.walk():
        if op.name == "iterate":
            each = rounds_of_tasks(program, op, found.row, rows, found.looped[op.attrs["axis"]], size)
            counts = [(m * n, masked + some) for (m, masked), (n, some) in zip(counts, each, strict=True)]
    return counts


def _together(chain: ProductChain, program: Program, found: _Found, size: Size, machine: Machine) -> int:
    """How many of what stands before the rows to walk together, where tasks differ in length.

    What they read stays in the cache of all cores, if they are few; but so many that a round of them, the longest tasks
    first, keeps all cores busy for as long as the longest takes: twice as many tasks as cores, if lengths run from
    none to the longest. Otherwise cores wait for the longest tasks of the last round.
    """
    around = found.cut[: found.cut.index(found.row)]
    moved = bound_by_memory(program, size, machine) * machine.limits.far_rate * (machine.limits.cores or 1)
    each = moved / prod(map(size, around))
    counts = [1]
    for d in reversed(around):
        counts += [counts[-1] * n for n in range(2, size(d) + 1) if size(d) % n == 0]
    enough = 2 * (machine.limits.cores or 1) / ceil(size(found.row) / chain.rows)
    kept = max((n for n in counts if n * each <= l2(machine.limits) / 2), default=1)
    return max(kept, next((n for n in counts if n >= enough), counts[-1]))


def _across(found: _Found) -> set[Expr]:
    """Dimensions that are the columns of a sum."""
    return {x.n for x in found.axes.values()}


def _choice(
    chain: ProductChain,
    found: _Found,
    program: Program,
    sizes: Mapping[Symbol, int],
    size: Callable[[Expr], int],
    machine: Machine,
) -> GeneralChoice:
    """The plan of a candidate."""
    dims = found.cut
    columns = {found.axes[op].n: how.columns for op, how in chain.products.items()}
    widths = {d: chain.rows if d is found.row else columns.get(d, 1) for d in dims}
    whole = [d for d in dims_of(program) if d not in dims and d.symbols <= set(sizes)]
    words = words_for(map(str, [*dims, *whole]))
    cut: dict[Expr, Cut] = {d: Cut("task", widths[d]) for d in dims}
    cut |= {d: Cut("loop", tile) for d, tile in found.looped.items()}
    plan = Plan(
        tuple(axis_of(words[str(d)], size(d), (cut[d],) if d in cut else ()) for d in (*dims, *whole)),
        tuple(words[str(d)] for d in dims),
        products=as_plan(chain.products, program),
        roles=chain.roles,
        overlap=chain.overlap,
    )
    if uneven(program, found.row):
        plan = replace(plan, schedule="dynamic", group=_together(chain, program, found, size, machine))
    bound = bound_by_memory(program, size, machine)
    tiles = {op: found.looped[op.attrs["axis"]] for op in program.walk() if op.name == "iterate"}
    cuts = Cuts(
        widths, {}, tiles, dict(chain.products), chain.roles, plan.group, schedule=plan.schedule, overlap=chain.overlap
    )
    return GeneralChoice(machine, program.name, plan, cuts, max(chain.cycles, bound), bound, ())
