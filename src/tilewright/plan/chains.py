"""Several products in one kernel: plans in which what lies between them stays in registers.

All products have the same rows, which tasks cut; groups of waves have rows of their own, one atom each. What one
product makes is dealt out to lanes as the atom has its sum, and stays so while maps and reductions along rows change
it, until it is the factor A of the next, from registers. Factors that are arguments are brought by a role of its own:
those that a loop goes over through rings, the others once a task; or step by step of K, as the one product of a program
is, where all of K is too much for shared memory.

    axis M = (M 4096): task 128
    axis N = (N 4096): loop 128
    mma by matrix.m64n128k16.bf16, tile 128x128
    mma2 by matrix.m64n128k16.bf16.ra.tb, tile 128x128
    producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 2, epilogue stages 1
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, prod

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.core import Op, Program
from tilewright.ir.tile import REDUCTIONS
from tilewright.machine import Machine
from tilewright.plan.blocking import up
from tilewright.plan.boxes import WRITES
from tilewright.plan.chain_costs import ChainedProducts, chain_cycles
from tilewright.plan.chained import chained_axes, chained_task_dims, is_read, loop_tiles
from tilewright.plan.computed import ComputedFactor, computed_factor
from tilewright.plan.epilogue import following
from tilewright.plan.fixed import tiles_of
from tilewright.plan.general import GeneralChoice, dims_of, drafted
from tilewright.plan.hiding import uneven
from tilewright.plan.microkernel import (
    Microkernel,
    as_plan,
    precision_of,
    shared_atoms,
    types_of,
)
from tilewright.plan.model import Size, element_bytes, l2
from tilewright.plan.pipelined import is_contiguous_along
from tilewright.plan.planner import Refusal
from tilewright.plan.ring_costs import ENOUGH, row_bytes
from tilewright.plan.rings import GROUPS, MOST, SHOWN, bound_by_memory, registers_of
from tilewright.plan.schedule import Pipeline, Split

WAITING = ((2, 2), (2, 1), (1, 2), (1, 1))
"""Stages of what is brought once a task, and in which results wait to leave: what fits, the best first. With two of the
former the next task begins at once."""
BLOCKS = (256, 128, 64)
"""Columns of its last product that a task may have at a time: whole rows of shared memory."""
FEWEST = 2
"""Stages of the ring of each factor, at least."""


@dataclass(frozen=True)
class ProductChain:
    """A candidate: how each product is done, the roles, and the cycles it should take."""

    products: dict[Op, Microkernel]
    roles: Pipeline
    overlap: str
    cycles: float

    @property
    def rows(self) -> int:
        """The rows of a task."""
        return next(iter(self.products.values())).rows


def plan_chained(
    program: Program,
    sizes: Mapping[Symbol, int],
    size: Size,
    machine: Machine,
    free: Collection[Op],
    gathered: str = "",
    opened: bool = False,
) -> GeneralChoice | str:
    """The plan of a program with several products, whose values stay in registers; or why it has none.

    `free` are the loops that give the same for every tile size. `gathered` says why the waves that load copy
    themselves; where it is empty, the machine does that. Where some sizes are `opened`, these are typical.
    """
    found = chained_products(program, sizes, size, machine, free)
    if isinstance(found, str):
        return found
    candidates = sorted(_candidates(found, gathered != ""), key=lambda x: (round(x.cycles), -x.rows))
    workgroups, _ = tiles_of(program, sizes)
    rows = workgroups.get(str(found.row))
    fitting = [x for x in candidates if rows in (None, x.rows)]
    if not fitting:
        return "no rows of its sums fit registers and shared memory" if not candidates else "none fits the constraints"
    made = [_choice(x, found, sizes, opened) for x in fitting]
    best = made[0]
    others = [
        Refusal(f"{x.rows} rows a task, overlap {x.overlap}", f"{x.cycles / best.cycles:.2f} of the time")
        for x in fitting[1 : SHOWN + 1]
    ]
    return replace(best, refused=tuple(others), candidates=tuple(x.plan for x in made))


def chained_products(
    program: Program, sizes: Mapping[Symbol, int], size: Size, machine: Machine, free: Collection[Op]
) -> ChainedProducts | str:
    """The products and their dimensions; or why their values do not stay in registers."""
    axes = chained_axes(program, sizes, size, free)
    if isinstance(axes, str):
        return axes
    looped, row, makers = loop_tiles(program, sizes, free), next(iter(axes.values())).m, program.makers()
    assert not isinstance(looped, str)
    held = {op: not is_read(x.factors(op)[0], makers) for op, x in axes.items()}
    factors = {op: computed_factor(program, x.factors(op)[0]) for op, x in axes.items()}
    computed = {op: x for op, x in factors.items() if isinstance(x, ComputedFactor)}
    dims = chained_task_dims(program, size)
    return ChainedProducts(program, machine, size, axes, held, computed, looped, row, dims)


def _candidates(found: ChainedProducts, gathered: bool) -> Iterator[ProductChain]:
    """Those for which registers and shared memory are enough: with so many groups of waves, and products that go over K
    step by step, or have all of it at once."""
    program, machine = found.program, found.machine
    shared = machine.spaces["shared"].bytes
    if shared is None or machine.lanes is None or not any(a.asynchronous for a in machine.copies.values()):
        return
    bits = max(w.operands[1].type.dtype.bits for w in program.walk() if w.name in WRITES)
    keeping = (True, False) if found.looped else (False,)
    for groups, kept, stepped, wide in product(GROUPS, keeping, _stepping(found), _blocked(found)):
        products = _microkernels(found, groups, kept, stepped, wide)
        if products is None:
            continue
        if kept and not any(how.held_a and not found.held[op] for op, how in products.items()):
            continue
        roles = _roles(found, products, shared, bits, gathered)
        for overlap in _overlaps(found, products) if roles is not None else ():
            assert roles is not None
            yield ProductChain(products, roles, overlap, chain_cycles(found, products, roles, overlap))


def _microkernels(
    found: ChainedProducts, groups: int, kept: bool, stepped: set[Op], wide: int | None
) -> dict[Op, Microkernel] | None:
    """The microkernel of every product, the last with so many columns at a time; None where one has none.

    Products that share their columns have the widest atom of them: what they give meets in the same registers.
    """
    products: dict[Op, Microkernel] = {}
    for op in found.axes:
        columns = wide if op is list(found.axes)[-1] else None
        how = _microkernel(op, found, groups, kept, op in stepped, columns)
        if how is None:
            return None
        products[op] = how
    for op, how in products.items():
        widest = max(x.columns for other, x in products.items() if found.axes[other].n is found.axes[op].n)
        wider = how if how.columns == widest else _microkernel(op, found, groups, kept, op in stepped, widest)
        if wider is None:
            return None
        products[op] = wider
    return products


def _stepping(found: ChainedProducts) -> list[set[Op]]:
    """The products that may go over K step by step, those of one K together; none of them first."""
    deep = list(dict.fromkeys(x.k for x in found.axes.values() if x.k not in found.looped))
    return [
        {op for op, x in found.axes.items() if x.k in deep and each[deep.index(x.k)]}
        for each in product((False, True), repeat=len(deep))
    ]


def _blocked(found: ChainedProducts) -> list[int | None]:
    """How many columns of its last product a task may have at a time; None: all of them."""
    n = list(found.axes.values())[-1].n
    return [None, *(count for count in BLOCKS if n in found.cut and not found.looped and count < found.size(n))]


def _overlaps(found: ChainedProducts, products: Mapping[Op, Microkernel]) -> tuple[str, ...]:
    """How products may run beside other work. One that goes over K step by step is not started ahead of another."""
    if not found.looped or len(products) < 2 or not all(how.at_once for how in products.values()):
        return ("none",)
    return ("mma ahead", "ordered", "none") if next(iter(products.values())).groups > 1 else ("mma ahead", "none")


def _microkernel(
    op: Op, found: ChainedProducts, groups: int, kept: bool, stepped: bool, columns: int | None
) -> Microkernel | None:
    """The narrowest atom that has all columns of a product, or so many; just as many, where another product sums them,
    or a loop goes over them.

    With `kept`, A is in registers too where it is read and every round of a loop multiplies by it. With `stepped`, K is
    gone over step by step.
    """
    axes, size, machine = found.axes[op], found.size, found.machine
    factors = axes.factors(op)
    a, b = (is_contiguous_along(factor, axes.k, found.program) for factor in factors)
    along_k = a, b
    held = found.held[op] or (kept and all(along_k) and not set(found.looped) & set(factors[0].type.dims))
    if (stepped and held and not found.held[op]) or (not stepped and any(size(d) > 1 for d in axes.deep)):
        return None
    known = shared_atoms(machine, types_of(op, axes.swapped, machine), along_k, precision_of(op), held)
    atoms = [x for x in known if x.asynchronous]  # lanes that multiply need their registers for that
    wanted = columns or found.looped.get(axes.n) or size(axes.n)
    summed = {x.k for x in found.axes.values()}
    past = columns is None and (axes.n in found.cut or not (found.looped or axes.n in summed))
    fitting = [x for x in atoms if x.shape[1] == wanted or (past and x.shape[1] > wanted)]
    across = 1
    if not fitting and len(found.axes) == 1 and not (found.looped or held):
        # groups of waves then have columns of the same rows; a factor in registers would be each group's in part
        across, fitting = groups, [x for x in atoms if x.shape[1] * groups >= wanted]
    if not fitting:
        return None
    atom = min(fitting, key=lambda x: x.shape[1])
    rows, columns = groups // across * atom.shape[0], across * atom.shape[1]
    how = Microkernel(atom, rows, columns, groups, at_once=not stepped)
    depth = found.depth(op)
    made = op in found.made and not found.looped  # from what is brought step by step
    if stepped and depth <= how.deep(depth) and not made:  # it is one step
        return how if any(size(d) > 1 for d in axes.deep) else None
    if made and not stepped:
        return None
    exact = found.held[op] or axes.k in found.looped  # what is computed has no zeros past its end, nor has a tile
    return how if not exact or depth % how.deep(depth) == 0 else None


def _roles(
    found: ChainedProducts, products: Mapping[Op, Microkernel], shared: int, bits: int, gathered: bool
) -> Pipeline | None:
    """The roles, if registers hold what is alive at a time, and shared memory enough stages."""
    how = next(iter(products.values()))
    lanes, machine, size = how.atom.c.lanes, found.machine, found.size
    assert machine.lanes is not None
    spare, own = registers_of(machine, how, gathered)
    working = machine.register_file.loop_registers if found.looped else machine.limits.working_registers
    if _alive(found, products) + working > own:
        return None
    once, staged = 0, 0
    turning = [d for d, tile in found.looped.items() if size(d) > tile]
    stepped = not all(x.at_once for x in products.values())
    blocks = max(found.blocks(op, x) for op, x in products.items())
    fewest = FEWEST if turning or stepped or blocks > 1 else 1
    for op, each in products.items():
        axes = found.axes[op]
        deep = each.deep(found.depth(op))
        tiles = [(each.columns, (axes.n, axes.k)), (ceil(found.rows(op, each)), (axes.m, axes.k))]
        deep = -(-deep // (each.slab or 1)) * (each.slab or 1)  # tiles there have whole rows
        for count, dims in tiles:
            inner = not each.at_once if stepped or blocks > 1 else not turning or any(d in turning for d in dims)
            inner = inner or (blocks > 1 and found.blocks(op, each) > 1)
            filled = count * deep * each.atom.a.dtype.bits // 8
            staged, once = (staged + filled, once) if inner else (staged, once + filled)
    last = list(products.values())[-1]
    row = row_bytes(last) * bits // last.atom.a.dtype.bits * last.waves[1]
    left = shared - (2 * len(products) + 1) * machine.spaces["shared"].alignment  # each begins at a multiple
    if how.waves[1] > 1:  # what groups of waves tell each other of their rows
        told = [op.results[0].type.dtype for op in found.program.walk() if op.name in REDUCTIONS]
        left -= sum(map(element_bytes, told)) * how.rows * lanes // how.atom.shape[0] * how.groups
    room = {(n, stored): (left - n * once - stored * last.rows * row) // max(1, staged) for n, stored in WAITING}
    # what goes on to registers at once needs no second stage
    moved_on = any(how.held_a and not found.held[op] for op, how in products.items())
    waiting = [x for x in WAITING if x[0] == 1 or not moved_on]
    deepest = max(waiting, key=lambda x: min(ENOUGH, room[x])) if stepped else WAITING[-1]
    count, stored = next((x for x in waiting if room[x] >= (ENOUGH if stepped else fewest)), deepest)
    if room[count, stored] < fewest:
        return None
    waves, stages = lanes // machine.lanes, min(MOST, room[count, stored])
    load = waves if gathered else 1
    load_, multiply = (load, spare), (waves * how.groups, own)
    return Pipeline(
        load_, multiply, stages, stored, resident_stages=count if once else 1, per_group_store=how.waves[0] > 1
    )


def _alive(found: ChainedProducts, products: Mapping[Op, Microkernel]) -> int:
    """Registers of a lane for sums, and for factors in registers, where most of them are alive.

    What a loop carries is alive all the time. Outside of loops a sum is, until the last product whose factor is made of
    it begins, and turns into that factor; or until the end, where what is written needs it as it is.
    """
    sums, word = {op: how.atom.c.values for op, how in products.items()}, found.machine.register_file.word_bits
    factors = {
        op: how.atom.shape[0] * up(found.depth(op), how.deep(1)) * how.atom.a.dtype.bits // (word * how.atom.c.lanes)
        for op, how in products.items()
        if how.held_a
    }
    if found.looped:
        return sum(sums.values()) + sum(factors.values())
    order, most = list(products), 0
    last = {op: _last_use(found.program, op, order) for op in order}
    for n, op in enumerate(order):
        kept = sum(sums[x] for x in order[:n] if last[x] > n)
        made_of = sum(sums[x] for x in order[:n] if last[x] == n)
        most = max(most, kept + max(made_of, factors.get(op, 0) + sums[op]))
    return most


def _last_use(program: Program, product_: Op, order: list[Op]) -> int:
    """The number of the last product whose factor is made of a sum; as many as there are, where a write needs it."""
    found = 0
    for op in following(program, product_, order):
        if op in order:
            found = max(found, order.index(op))
        elif op.name in WRITES:
            return len(order)
    return found


def _together(chain: ProductChain, found: ChainedProducts) -> int:
    """How many of what stands before the rows to walk together, where tasks differ in length.

    What they read stays in the cache of all cores, if they are few; but so many that a round of them, the longest tasks
    first, keeps all cores busy for as long as the longest takes: twice as many tasks as cores, if lengths run from
    none to the longest. Otherwise cores wait for the longest tasks of the last round.
    """
    around, machine, size = found.cut[: found.cut.index(found.row)], found.machine, found.size
    moved = bound_by_memory(found.program, size, machine) * machine.limits.far_rate * (machine.limits.cores or 1)
    each = moved / prod(map(size, around))
    counts = [1]
    for d in reversed(around):
        counts += [counts[-1] * n for n in range(2, size(d) + 1) if size(d) % n == 0]
    enough = 2 * (machine.limits.cores or 1) / ceil(size(found.row) / chain.rows)
    kept = max((n for n in counts if n * each <= l2(machine.limits) / 2), default=1)
    return max(kept, next((n for n in counts if n >= enough), counts[-1]))


def _choice(chain: ProductChain, found: ChainedProducts, sizes: Mapping[Symbol, int], opened: bool) -> GeneralChoice:
    """The plan of a candidate."""
    program, machine, size, dims = found.program, found.machine, found.size, found.cut
    columns = {found.axes[op].n: how.columns for op, how in chain.products.items()}
    blocks = {found.axes[op].n: found.blocks(op, how) for op, how in chain.products.items()}
    widths = {d: chain.rows if d is found.row else columns.get(d, 1) * blocks.get(d, 1) for d in dims}
    whole = [d for d in dims_of(program) if d not in dims and d.symbols <= set(sizes)]
    cut: dict[Expr, tuple[Split, ...]] = {d: (Split("task", widths[d]),) for d in dims}
    cut |= {d: (*cut[d], Split("loop", columns[d])) for d in dims if blocks.get(d, 1) > 1}
    cut |= {d: (Split("loop", tile),) for d, tile in found.looped.items()}
    for op, how in chain.products.items():
        if not how.at_once:
            cut |= {d: (Split("loop", 1),) for d in found.axes[op].deep}
            cut |= {found.axes[op].k: (Split("loop", how.deep(1)),)}
    plan = drafted((*dims, *whole), size, cut, dims)
    plan = replace(plan, products=as_plan(chain.products, program), pipeline=chain.roles, overlap=chain.overlap)
    if uneven(program, found.row):
        together = 1 if opened else _together(chain, found)  # it divides the tasks that there are
        plan = replace(plan, order="dynamic", raster=together)
    bound = bound_by_memory(program, size, machine)
    return GeneralChoice(machine, program.name, plan, max(chain.cycles, bound), bound)
