"""Legality of blockings on a CPU: registers, memory, divisibility, the atom's layouts, the length of the program."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.algebra.expr import Symbol
from tilewright.errors import ArgumentError
from tilewright.machine import Machine, MultiplyAtom, OpaqueOperand, RegisterOperand
from tilewright.plan import lanes, tile_registers, vectors
from tilewright.plan.bind_contraction import bind_contraction
from tilewright.plan.block_size import why_too_large
from tilewright.plan.blocking import LANES, Blocking, LaneUnit, round_up
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Schedule, Split
from tilewright.plan.sliding import can_load_in_place, halo_of


def why_not_atom(contraction: Contraction, atom: MultiplyAtom) -> str | None:
    """Return text: why an atom cannot compute a contraction under any plan; None if it can.

    The operands and the accumulator must have the atom's types. With tile registers, the accumulator must start from
    zero. Any other atom must be a vector atom (of one row); if it adds several neighbours along K, their number must
    divide K, without bounds checks there.
    """
    if (atom.a.dtype, atom.b.dtype) != (contraction.a.dtype, contraction.b.dtype):
        return (
            f"it multiplies {atom.a.dtype} by {atom.b.dtype}, here are {contraction.a.dtype} and {contraction.b.dtype}"
        )
    if atom.c.dtype is not contraction.sum_dtype:
        return f"it adds up in {atom.c.dtype}, here the sum is {contraction.sum_dtype}"
    if isinstance(atom.c, OpaqueOperand):
        return "tiles start from zero only" if contraction.start != 0 else None
    if not isinstance(atom.c, RegisterOperand) or atom.shape[0] != 1:
        return "its operands have no strategy yet"
    return vectors.why_no_vectors(contraction, atom)


def why_illegal(contraction: Contraction, blocking: Blocking, machine: Machine) -> str | None:
    """Return text: why a blocking (tile sizes and loop order) of a contraction is illegal on a machine; else None.

    The bytes that a task stages, and the length of the code, are not checked here: `why_too_large` does.
    """
    if blocking.by_lanes:
        return _why_bad_lanes(contraction, blocking, machine)
    return _why_bad_shape(contraction, blocking) or (_why_bad_tiles if blocking.in_tiles else _why_bad_vectors)(
        contraction, blocking, machine
    )


def _lacks_unit_splits(steps: Sequence[Split], digits: Sequence[Symbol]) -> bool:
    """True unless `steps` has exactly one split for each digit in `digits`, all of size 1.

    `steps` are splits of K; `digits` are mixed-radix parts of K, such as filter taps.
    """
    return sorted(s.digit or "" for s in steps) != sorted(d.name for d in digits) or any(s.size != 1 for s in steps)


def _why_bad_shape(contraction: Contraction, blocking: Blocking) -> str | None:
    """Return text: why tasks (grid tiles) are not whole accumulator tiles, or splits of K are illegal; else None.

    Rows of a task are checked only if M is one digit (mixed-radix part). Each digit of K before the last must be split
    once, by 1. The last digit is split into atoms, or into loop tiles and then into atoms; loop tiles must be whole
    atoms and divide the digit, padded to whole atoms.
    """
    if blocking.task_columns % blocking.columns:
        return f"a task's {blocking.task_columns} columns are no whole blocks of {blocking.columns}"
    if len(contraction.rows) == 1 and blocking.strip % blocking.rows:
        return f"a task's {blocking.strip} rows are no whole blocks of {blocking.rows}"
    last, chunk = contraction.depth[-1], blocking.atom.shape[2]
    channel_steps = [s.size for s in blocking.steps if s.digit == last.name]
    tap_steps = [s for s in blocking.steps if s.digit != last.name]
    if _lacks_unit_splits(tap_steps, contraction.depth[:-1]):
        return f"every digit of the depth before {last.name} is cut once, by 1"
    if not channel_steps or channel_steps[-1] != chunk:
        given = ", ".join(map(str, channel_steps)) or "nothing"
        return f"the cuts of {last.name} leave {given}; the last leaves what the atom takes, {chunk}"
    k_padded = round_up(size(last), chunk)
    if len(channel_steps) > 2 or (
        len(channel_steps) == 2 and (channel_steps[0] % chunk or k_padded % channel_steps[0])
    ):
        return f"steps of {channel_steps[0]} do not divide the {k_padded} of {last.name} into whole products of {chunk}"
    return None


def _why_bad_tiles(contraction: Contraction, blocking: Blocking, machine: Machine) -> str | None:
    """Return text: why a blocking in tile registers is illegal (registers, staging of A, splits of K); else None.

    The accumulator tile and its operands must fit the tile registers. A must be readable in the way that `blocking`
    says: in place, or as image lines. Of two splits of K's last digit, the first must be the outermost loop.
    """
    m, _, depth = blocking.atom.shape
    last, row_tiles, column_tiles = contraction.depth[-1], blocking.rows // m, blocking.vectors
    needed, available = tile_registers.registers(row_tiles, column_tiles), machine.limits.tile_registers
    if needed > available:
        registers = f"{needed} tile registers of {available}"
        return f"{row_tiles} x {column_tiles} accumulator tiles and their operands take {registers}"
    if not blocking.stage and not can_load_in_place(contraction, depth):
        return (
            f"rows cannot be read in place: they must lie at one stride, without padding, {last.name} side by side in "
            f"whole steps of {depth}"
        )
    if blocking.stage == "strip" and halo_of(contraction) is None:
        return "rows do not slide over two dimensions by one"
    channel_steps = [s for s in blocking.steps if s.digit == last.name]
    if len(channel_steps) == 2 and (blocking.steps[0] is not channel_steps[0] or channel_steps[0].is_unrolled):
        return f"the larger step of {last.name} is the outermost of the depth, and a loop"
    return None


def _why_bad_vectors(contraction: Contraction, blocking: Blocking, machine: Machine) -> str | None:
    """Return text: why a blocking by vectors along N is illegal (registers, rows, hints, splits of K); else None.

    The accumulator tile must fit the vector registers, the atom's limit of rows, and a line of M. Loads must have no
    cache hint. K's last digit (mixed-radix part) must be split last: by a loop, then by the atom's K.
    """
    column_vectors, atom = blocking.vectors, blocking.atom
    assert isinstance(atom, MultiplyAtom)
    needed, available = vectors.registers(blocking.rows, column_vectors, atom), machine.limits.registers
    if needed > available:
        return f"{blocking.rows} rows of {column_vectors} vectors take {needed} registers of {available}"
    most_rows = vectors.max_picked_rows(atom)
    if most_rows and blocking.rows > most_rows:
        available = atom.picks_from
        return f"{atom.name} picks from {available} registers, enough for {most_rows} rows; here are {blocking.rows}"
    if blocking.rows > size(contraction.rows[-1]):
        return f"a block of {blocking.rows} rows is longer than a line of {size(contraction.rows[-1])}"
    if blocking.streams:
        return "loads of vectors have no hint: keep"
    channel_steps = [s for s in blocking.steps if s.digit == contraction.depth[-1].name]
    if (
        len(channel_steps) != 2
        or channel_steps[0].is_unrolled
        or not channel_steps[1].is_unrolled
        or blocking.steps[-2:] != tuple(channel_steps)
    ):
        return f"{contraction.depth[-1].name} is cut last, by a loop and then by what one product takes"
    return None


def _why_bad_lanes(contraction: Contraction, blocking: Blocking, machine: Machine) -> str | None:
    """Return text: why a blocking by vectors along a shared dimension is illegal; None if it is legal.

    A, B and the result share that dimension. Tasks, splits of K, registers and rows of a block (accumulator tile) are
    checked.
    """
    line = size(contraction.rows[-1])
    if blocking.task_columns % blocking.columns:
        return f"a task's {blocking.task_columns} lanes are no whole blocks of {blocking.columns}"
    if blocking.strip < line and blocking.strip % blocking.rows:
        return f"a task's {blocking.strip} rows are neither a line nor whole blocks of {blocking.rows}"
    if _lacks_unit_splits(blocking.steps, contraction.depth):
        return "every digit of the depth is cut once, by 1"
    needed, available = lanes.registers(blocking.rows, blocking.vectors), machine.limits.registers
    if needed > available:
        return f"{blocking.rows} rows of {blocking.vectors} vectors take {needed} registers of {available}"
    if blocking.rows > line:
        return f"a block of {blocking.rows} rows is longer than a line of {line}"
    return None


def atom_of_plan(name: str, contraction: Contraction, machine: Machine) -> MultiplyAtom | LaneUnit:
    """Return the unit that a plan's statement `atom` names: a MultiplyAtom, or the LaneUnit (SIMD unit).

    `name` is the unit's name; that of the LaneUnit begins with `lanes.`. Raise an ArgumentError if there is no such
    unit, or if it cannot compute the contraction.
    """
    atom: MultiplyAtom | LaneUnit
    if name.startswith(f"{LANES}."):
        why = lanes.why_no_lanes(contraction, machine)
        atom = lanes.lane_unit(contraction, machine)
        if why is None and atom.name != name:
            why = f"here the sum is {contraction.sum_dtype}"
    else:
        try:
            atom = machine.multiply_atom(name)
        except LookupError as fault:
            raise refused(f"atom {name}", str(fault)) from None
        why = why_not_atom(contraction, atom)
    if why is not None:
        raise refused(f"atom {name}", why)
    return atom


def validate(plan: Schedule, contraction: Contraction, machine: Machine) -> Blocking:
    """Check a plan for a contraction and return the Blocking (tile sizes, loop order, staging) that it states.

    Raise an ArgumentError with the reason in these cases: a statement breaks a rule; a size of the plan is open (known
    only at the call); the plan names no atom; or the blocking is illegal on the machine or too large for it.
    """
    if plan.open:
        raise ArgumentError(f"plan: {', '.join(sorted(plan.open))}: no size is open here")
    if plan.atom is None:
        raise ArgumentError("plan: no atom is named")
    strips = tuple(p for p in plan.values if p.at is not None and p.form == "strip")
    if strips and halo_of(contraction) is None:
        raise refused(strips, "rows do not slide over two dimensions by one")
    blocking = bind_contraction(contraction, plan, atom_of_plan(plan.atom, contraction, machine))
    why = why_illegal(contraction, blocking, machine) or why_too_large(contraction, blocking, machine)
    if why is not None:
        raise ArgumentError(f"plan: {why}")
    return blocking
