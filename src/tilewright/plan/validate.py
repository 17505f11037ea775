"""Why a plan is impossible: registers, memory, divisibility, the atom's layouts, the length of the program."""

from __future__ import annotations

from tilewright.errors import ArgumentError
from tilewright.machine import Machine, MultiplyAtom, OpaqueOperand, RegisterOperand
from tilewright.plan import lanes, tiles, vectors
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.forms import LANES, Form, LaneForm, LaneUnit, TileForm, VectorForm, form_of, up
from tilewright.plan.model import Cost
from tilewright.plan.plan import Plan
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


def cost_of(c: Contraction, form: Form, machine: Machine) -> Cost:
    """What a form costs."""
    if isinstance(form, LaneForm):
        return lanes.lane_cost(c, form, machine)
    return tiles.tile_cost(c, form, machine) if isinstance(form, TileForm) else vectors.vector_cost(c, form, machine)


def impossible(c: Contraction, form: Form, machine: Machine) -> str | None:
    """Why a form cannot be done; None if it can."""
    if isinstance(form, LaneForm):
        return _of_lanes(c, form, machine)
    return _of_shape(c, form) or (
        _of_tiles(c, form, machine) if isinstance(form, TileForm) else _of_vectors(c, form, machine)
    )


def too_much(cost: Cost, machine: Machine) -> str | None:
    """Why a form that could be done is not: it needs too much memory, or too long a program."""
    limits = machine.limits
    room = machine.spaces["shared"].bytes or 2 * (limits.l2_bytes or 1 << 20)
    if cost.scratch > room:
        return f"a task stages {cost.scratch >> 10} KB; there is room for {room >> 10} KB"
    if cost.instructions > limits.instructions:
        return f"about {cost.instructions} instructions are written out; the budget is {limits.instructions}"
    return None


def _of_shape(c: Contraction, form: TileForm | VectorForm) -> str | None:
    if form.task_columns % form.columns:
        return f"a task's {form.task_columns} columns are no whole blocks of {form.columns}"
    if len(c.rows) == 1 and form.strip % form.rows:
        return f"a task's {form.strip} rows are no whole blocks of {form.rows}"
    last = c.depth[-1]
    chunk = form.depth if isinstance(form, TileForm) else form.group
    mine = [s.size for s in form.steps if s.digit == last.name]
    others = [s for s in form.steps if s.digit != last.name]
    if sorted(s.digit for s in others) != sorted(t.name for t in c.depth[:-1]) or any(s.size != 1 for s in others):
        return f"every digit of the depth before {last.name} is cut once, by 1"
    if not mine or mine[-1] != chunk:
        said = ", ".join(map(str, mine)) or "nothing"
        return f"the cuts of {last.name} leave {said}; the last leaves what the atom takes, {chunk}"
    deep = up(size(last), chunk)
    if len(mine) > 2 or (len(mine) == 2 and (mine[0] % chunk or deep % mine[0])):
        return f"steps of {mine[0]} do not divide the {deep} of {last.name} into whole products of {chunk}"
    return None


def _of_tiles(c: Contraction, form: TileForm, machine: Machine) -> str | None:
    m, n, _ = form.atom.shape
    last = c.depth[-1]
    used, there = tiles.registers(form.rows // m, form.columns // n), machine.limits.tile_registers
    if used > there:
        tall, wide = form.rows // m, form.columns // n
        return f"{tall} x {wide} tiles of sums and their factors take {used} tile registers of {there}"
    if form.stage == "place" and not is_direct(c, form.depth):
        return (
            f"rows cannot be read in place: they must lie at one stride, without padding, {last.name} side by side in "
            f"whole steps of {form.depth}"
        )
    if form.stage == "lines" and halo_of(c) is None:
        return "rows do not slide over two dimensions by one"
    two = [s for s in form.steps if s.digit == last.name]
    if len(two) == 2 and (form.steps[0] is not two[0] or two[0].written):
        return f"the larger step of {last.name} is the outermost of the depth, and a loop"
    return None


def _of_vectors(c: Contraction, form: VectorForm, machine: Machine) -> str | None:
    wide = form.columns // form.atom.shape[1]
    used, there = vectors.registers(form.rows, wide, form.atom), machine.limits.registers
    if used > there:
        return f"{form.rows} rows of {wide} vectors take {used} registers of {there}"
    most = vectors.most_picked(form.atom)
    if most and form.rows > most:
        there = form.atom.picks_from
        return f"{form.atom.name} picks from {there} registers, enough for {most} rows; here are {form.rows}"
    if form.rows > size(c.rows[-1]):
        return f"a block of {form.rows} rows is longer than a line of {size(c.rows[-1])}"
    if form.streams != "none":
        return "loads of vectors have no hint: keep"
    mine = [s for s in form.steps if s.digit == c.depth[-1].name]
    if len(mine) != 2 or mine[0].written or not mine[1].written or form.steps[-2:] != tuple(mine):
        return f"{c.depth[-1].name} is cut last, by a loop and then by what one product takes"
    return None


def _of_lanes(c: Contraction, form: LaneForm, machine: Machine) -> str | None:
    line = size(c.rows[-1])
    if form.task_width % form.width:
        return f"a task's {form.task_width} lanes are no whole blocks of {form.width}"
    if form.strip < line and form.strip % form.rows:
        return f"a task's {form.strip} rows are neither a line nor whole blocks of {form.rows}"
    if sorted(s.digit for s in form.steps) != sorted(t.name for t in c.depth) or any(s.size != 1 for s in form.steps):
        return "every digit of the depth is cut once, by 1"
    used, there = lanes.registers(form.rows, form.vectors), machine.limits.registers
    if used > there:
        return f"{form.rows} rows of {form.vectors} vectors take {used} registers of {there}"
    if form.rows > line:
        return f"a block of {form.rows} rows is longer than a line of {line}"
    return None


def _multiplies(name: str, c: Contraction, machine: Machine) -> MultiplyAtom | LaneUnit:
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
            raise ArgumentError(f"plan: {fault}") from None
        why = unfit(c, atom)
    if why is not None:
        raise ArgumentError(f"plan: atom {name}: {why}")
    return atom


def validate(plan: Plan, c: Contraction, machine: Machine) -> Form:
    """The form that a plan means; raises an ArgumentError that says why it is impossible on a machine."""
    if plan.open:
        raise ArgumentError(f"plan: {', '.join(sorted(plan.open))}: no size is open here")
    if plan.atom is None:
        raise ArgumentError("plan: no atom is named")
    if any(p.at is not None and p.form == "lines" for p in plan.placed) and halo_of(c) is None:
        raise ArgumentError(f"plan: `{plan.operand(c.a.name)}`: rows do not slide over two dimensions by one")
    form = form_of(c, plan, _multiplies(plan.atom, c, machine))
    why = impossible(c, form, machine) or too_much(cost_of(c, form, machine), machine)
    if why is not None:
        raise ArgumentError(f"plan: {why}")
    return form
