"""Why a plan is impossible: registers, memory, divisibility, the atom's layouts, the length of the program."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.algebra.expr import Symbol
from tilewright.errors import ArgumentError
from tilewright.machine import Machine, MultiplyAtom, OpaqueOperand, RegisterOperand
from tilewright.plan import lanes, tiles, vectors
from tilewright.plan.bind_contraction import bind_contraction
from tilewright.plan.blocking import LANES, Blocking, LaneUnit, up
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.model import Cost
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Schedule, Split
from tilewright.plan.sliding import halo_of, is_direct


def unfit(c: Contraction, atom: MultiplyAtom) -> str | None:
    """Why an atom cannot do a contraction, whatever the plan."""
    if (atom.a.dtype, atom.b.dtype) != (c.a.dtype, c.b.dtype):
        return f"it multiplies {atom.a.dtype} by {atom.b.dtype}, here are {c.a.dtype} and {c.b.dtype}"
    if atom.c.dtype is not c.sum_dtype:
        return f"it adds up in {atom.c.dtype}, here the sum is {c.sum_dtype}"
    if isinstance(atom.c, OpaqueOperand):
        return "tiles start from zero only" if c.start != 0 else None
    if not isinstance(atom.c, RegisterOperand) or atom.shape[0] != 1:
        return "its operands have no strategy yet"
    return vectors.why_no_vectors(c, atom)


def cost_of(c: Contraction, how: Blocking, machine: Machine) -> Cost:
    """What a blocking costs."""
    cost = lanes.lane_cost if how.by_lanes else tiles.tile_cost if how.in_tiles else vectors.vector_cost
    return cost(c, how, machine)


def impossible(c: Contraction, how: Blocking, machine: Machine) -> str | None:
    """Why a blocking cannot be done; None if it can."""
    if how.by_lanes:
        return _of_lanes(c, how, machine)
    return _of_shape(c, how) or (_of_tiles if how.in_tiles else _of_vectors)(c, how, machine)


def too_much(cost: Cost, machine: Machine) -> str | None:
    """Why a blocking that could be done is not: it needs too much memory, or too long a program."""
    limits = machine.limits
    room = machine.spaces["shared"].bytes or 2 * limits.l2_bytes
    if cost.scratch > room:
        return f"a task stages {cost.scratch >> 10} KB; there is room for {room >> 10} KB"
    if cost.instructions > limits.instructions:
        return f"about {cost.instructions} instructions are written out; the budget is {limits.instructions}"
    return None


def _not_one_by_one(steps: Sequence[Split], digits: Sequence[Symbol]) -> bool:
    """Whether steps are not one for each digit, by 1."""
    return sorted(s.digit or "" for s in steps) != sorted(d.name for d in digits) or any(s.size != 1 for s in steps)


def _of_shape(c: Contraction, how: Blocking) -> str | None:
    if how.task_columns % how.columns:
        return f"a task's {how.task_columns} columns are no whole blocks of {how.columns}"
    if len(c.rows) == 1 and how.strip % how.rows:
        return f"a task's {how.strip} rows are no whole blocks of {how.rows}"
    last, chunk = c.depth[-1], how.atom.shape[2]
    mine = [s.size for s in how.steps if s.digit == last.name]
    others = [s for s in how.steps if s.digit != last.name]
    if _not_one_by_one(others, c.depth[:-1]):
        return f"every digit of the depth before {last.name} is cut once, by 1"
    if not mine or mine[-1] != chunk:
        said = ", ".join(map(str, mine)) or "nothing"
        return f"the cuts of {last.name} leave {said}; the last leaves what the atom takes, {chunk}"
    deep = up(size(last), chunk)
    if len(mine) > 2 or (len(mine) == 2 and (mine[0] % chunk or deep % mine[0])):
        return f"steps of {mine[0]} do not divide the {deep} of {last.name} into whole products of {chunk}"
    return None


def _of_tiles(c: Contraction, how: Blocking, machine: Machine) -> str | None:
    m, _, depth = how.atom.shape
    last, tall, wide = c.depth[-1], how.rows // m, how.vectors
    used, there = tiles.registers(tall, wide), machine.limits.tile_registers
    if used > there:
        return f"{tall} x {wide} tiles of sums and their factors take {used} tile registers of {there}"
    if not how.stage and not is_direct(c, depth):
        return (
            f"rows cannot be read in place: they must lie at one stride, without padding, {last.name} side by side in "
            f"whole steps of {depth}"
        )
    if how.stage == "strip" and halo_of(c) is None:
        return "rows do not slide over two dimensions by one"
    two = [s for s in how.steps if s.digit == last.name]
    if len(two) == 2 and (how.steps[0] is not two[0] or two[0].written):
        return f"the larger step of {last.name} is the outermost of the depth, and a loop"
    return None


def _of_vectors(c: Contraction, how: Blocking, machine: Machine) -> str | None:
    wide, atom = how.vectors, how.atom
    assert isinstance(atom, MultiplyAtom)
    used, there = vectors.registers(how.rows, wide, atom), machine.limits.registers
    if used > there:
        return f"{how.rows} rows of {wide} vectors take {used} registers of {there}"
    most = vectors.most_picked(atom)
    if most and how.rows > most:
        there = atom.picks_from
        return f"{atom.name} picks from {there} registers, enough for {most} rows; here are {how.rows}"
    if how.rows > size(c.rows[-1]):
        return f"a block of {how.rows} rows is longer than a line of {size(c.rows[-1])}"
    if how.streams:
        return "loads of vectors have no hint: keep"
    mine = [s for s in how.steps if s.digit == c.depth[-1].name]
    if len(mine) != 2 or mine[0].written or not mine[1].written or how.steps[-2:] != tuple(mine):
        return f"{c.depth[-1].name} is cut last, by a loop and then by what one product takes"
    return None


def _of_lanes(c: Contraction, how: Blocking, machine: Machine) -> str | None:
    line = size(c.rows[-1])
    if how.task_columns % how.columns:
        return f"a task's {how.task_columns} lanes are no whole blocks of {how.columns}"
    if how.strip < line and how.strip % how.rows:
        return f"a task's {how.strip} rows are neither a line nor whole blocks of {how.rows}"
    if _not_one_by_one(how.steps, c.depth):
        return "every digit of the depth is cut once, by 1"
    used, there = lanes.registers(how.rows, how.vectors), machine.limits.registers
    if used > there:
        return f"{how.rows} rows of {how.vectors} vectors take {used} registers of {there}"
    if how.rows > line:
        return f"a block of {how.rows} rows is longer than a line of {line}"
    return None


def multiplies(name: str, c: Contraction, machine: Machine) -> MultiplyAtom | LaneUnit:
    """What a plan names as its atom; raises an ArgumentError where it cannot do the contraction."""
    atom: MultiplyAtom | LaneUnit
    if name.startswith(f"{LANES}."):
        why = lanes.why_no_lanes(c, machine)
        atom = lanes.lane_unit(c, machine)
        if why is None and atom.name != name:
            why = f"here the sum is {c.sum_dtype}"
    else:
        try:
            atom = machine.multiply_atom(name)
        except LookupError as fault:
            raise refused(f"atom {name}", str(fault)) from None
        why = unfit(c, atom)
    if why is not None:
        raise refused(f"atom {name}", why)
    return atom


def validate(plan: Schedule, c: Contraction, machine: Machine) -> Blocking:
    """The blocking that a plan means; raises an ArgumentError that says why it is impossible on a machine."""
    if plan.open:
        raise ArgumentError(f"plan: {', '.join(sorted(plan.open))}: no size is open here")
    if plan.atom is None:
        raise ArgumentError("plan: no atom is named")
    if any(p.at is not None and p.form == "strip" for p in plan.values) and halo_of(c) is None:
        raise refused(plan.operand(c.a.name), "rows do not slide over two dimensions by one")
    how = bind_contraction(c, plan, multiplies(plan.atom, c, machine))
    why = impossible(c, how, machine) or too_much(cost_of(c, how, machine), machine)
    if why is not None:
        raise ArgumentError(f"plan: {why}")
    return how
