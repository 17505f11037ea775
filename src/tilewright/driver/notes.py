"""The notes that `explain` prints on a bound plan."""

from __future__ import annotations

from tilewright.driver.bound_plan import Kernels, OneKernel, RepackedKernels
from tilewright.driver.request import Request
from tilewright.plan.accumulator_type import f16_accumulator_note
from tilewright.plan.boxes import WRITES
from tilewright.plan.followed import not_followed
from tilewright.plan.model import microseconds
from tilewright.plan.schedule import Schedule
from tilewright.transform.launch_order import can_be_early, launch_cycles


def notes_on(request: Request, kernels: Kernels, plan: Schedule) -> tuple[str, ...]:
    """Return the notes that `explain` prints on a bound plan, as a tuple of texts; () if there are none.

    There are notes if nothing is written, on operands that are repacked, on constraints of the author that the plan
    does not follow, and on accumulators in f16. `kernels` are the plan's kernels.
    """
    program, machine = request.program, request.machine
    nothing = () if any(op.name in WRITES for op in program.walk()) else ("nothing is written: nothing is launched",)
    is_grid = request.workgroups is not None
    dims = kernels.dims if isinstance(kernels, OneKernel) else None
    aside = not_followed(program, plan, machine, request.sizes, dims, is_grid)
    copied = _repacking_notes(request, kernels) if isinstance(kernels, RepackedKernels) else ()
    return (*nothing, *copied, *aside, *f16_accumulator_note(program, machine))


def _repacking_notes(request: Request, kernels: RepackedKernels) -> tuple[str, ...]:
    """Return a tuple of texts, one for each operand that `kernels` repack: its new layout, and the time of the copy in
    us.

    For a constant argument the text has "when it is bound" instead of the time.
    """
    machine, notes = request.machine, []
    repeated = kernels.runs_at_every_launch(request.constant)
    for copy, words, at_every_launch in zip(kernels.copies, kernels.notes, repeated, strict=True):
        cycles = max(0.0, copy.choice.cycles - launch_cycles(machine, can_be_early(machine)))  # one launch for all
        duration = f"{microseconds(cycles, machine):.1f} us"
        notes.append(f"{words}: {duration if at_every_launch else 'when it is bound'}")
    return tuple(notes)
