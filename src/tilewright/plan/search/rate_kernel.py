"""Turn a given plan with a pipeline into a kernel: orientation, tiles, atoms, pipeline."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.machine import Machine
from tilewright.plan.facts import Facts
from tilewright.plan.schedule import Pipeline, ProductUnit, Schedule
from tilewright.plan.search.kernel import KernelSchedule, candidate_of, work_of
from tilewright.plan.search.orientation import Orientation, OrientedProduct, orient
from tilewright.plan.search.pipeline import KernelPipeline
from tilewright.plan.search.plan_axes import PlanAxes
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.rate_tiles import PlanTiles, program_dims_of
from tilewright.plan.search.split_k import split_work
from tilewright.plan.search.tiling import Tiling
from tilewright.plan.search.unit import MmaTile, padded_k


def rate_pipeline(
    facts: Facts, machine: Machine, plan: Schedule, pipeline: Pipeline, axes: PlanAxes, batch: int
) -> PlanCandidate | str:
    """Predict the time of a plan with a pipeline; return a PlanCandidate with cycles, or text: why it cannot be timed.

    `facts` is the analysed program, `pipeline` the plan's pipeline, `axes` has the plan's axis of each program
    dimension. `batch` is the number of GEMMs per tile, the blocks of a block-diagonal B; 1 if B is not block-diagonal.
    Text is returned in these cases: the program has no MMA; an MMA has no statement with an atom of the machine; the
    stated atoms or bulk copies cannot take the operands; or the kernel's work cannot be counted.
    """
    statement_of = {line.name: line for line in plan.products}
    statements = [statement_of.get(p.name) for p in facts.products]
    if (
        not statements
        or None in statements
        or any(line is not None and line.atom not in machine.multiply for line in statements)
    ):
        return f"`{pipeline}` needs a line with an atom for each product"
    units = [line for line in statements if line is not None]
    o = _orientation(facts, machine, units, pipeline)
    if isinstance(o, str):
        return o
    taps = plan.loops[1:] if pipeline.halo_stages else ()
    t = Tiling(o, PlanTiles(o, axes, units, batch, taps).tiles(), _wave_groups(machine, units, pipeline, batch))
    mmas = tuple(_mma_tile(t, p, line) for p, line in zip(o.products, units, strict=True))
    kernel_pipeline = KernelPipeline(
        pipeline, plan.overlap, _keeps_a_in_registers(t, units), _taps_per_stage(plan, pipeline)
    )
    kernel = KernelSchedule(t, mmas, kernel_pipeline, None, plan.raster, plan.order, _columns_first(facts, plan, axes))
    work = work_of(kernel)
    if work is None:
        return f"`{units[-1]}`: nothing that is written follows from it, or a box of rows has no halo tile"
    if axes.parts is None:
        return candidate_of(kernel, work)
    split, merge = split_work(kernel, work, axes.parts)
    return candidate_of(replace(kernel, parts=axes.parts), split, merge)


def _orientation(facts: Facts, machine: Machine, units: list[ProductUnit], pipeline: Pipeline) -> Orientation | str:
    """Return the Orientation (M or N on the atom's rows) that a plan's `mma` statements `units` give; or text: why not.

    Text is returned in three cases. No atom takes the operands in that orientation. The stated atom does not take them.
    Or bulk copies cannot load the operands, though `pipeline` has a single producer wave, which issues bulk copies.
    (The lanes of several producer waves load operands themselves.) `facts` is the analysed program.
    """
    ranking = Ranking()
    o = orient(facts, machine, tuple(line.transposed for line in units), ranking)
    if o is None:
        return "; ".join(f"{what}: {why}" for what, why in ranking.rejected.items())
    for p, line in zip(o.products, units, strict=True):
        if line.atom not in {x.name for x in (*p.atoms, *p.kept_atoms)}:
            return f"`{line}`: the atom does not take operands that lie so"
    if pipeline.producer[0] == 1 and o.by_threads:
        return f"`{pipeline}`: one wave copies in bulk; {o.by_threads}"
    return o if o.by_threads or pipeline.producer[0] == 1 else replace(o, by_threads="the plan says so")


def _wave_groups(machine: Machine, units: list[ProductUnit], pipeline: Pipeline, batch: int) -> tuple[int, int]:
    """Return (wave groups along the rows, wave groups along the columns) of a workgroup's tile in a given plan.

    A wave group, such as a warpgroup, has the waves of one atom. `units` are the plan's `mma` statements, `pipeline` is
    its pipeline. If `batch`, the number of GEMMs per tile, is above 1, all wave groups lie along the rows. With
    ping-pong, only the half of the wave groups that works on one tile counts.
    """
    atoms = [machine.multiply[line.atom or ""] for line in units]
    waves = atoms[0].c.lanes // (machine.lanes or 1)
    groups = max(1, pipeline.consumer[0] // waves // (2 if pipeline.pingpong else 1))
    if groups == 1 or batch > 1:
        return groups, 1
    widths = [line.rows if line.transposed else line.columns for line in units]
    across = max(width // atom.shape[1] for width, atom in zip(widths, atoms, strict=True))
    return max(1, groups // across), min(groups, across)


def _mma_tile(t: Tiling, p: OrientedProduct, line: ProductUnit) -> MmaTile:
    """Return the MmaTile (atom, and extents in elements) of the MMA `p` that the statement `line` of a plan describes.

    Usually the MmaTile has the statement's atom. If that atom takes A from registers although A is read from memory,
    the MmaTile has an atom of the same shape that reads A from shared memory, or the first of the MMA's atoms if none
    has that shape. `t` (a Tiling) has the plan's tile sizes.
    """
    rows, columns = (line.columns, line.rows) if line.transposed else (line.rows, line.columns)
    stated = t.machine.multiply[line.atom or ""]
    atom = stated if stated in p.atoms else next((x for x in p.atoms if x.shape == stated.shape), p.atoms[0])
    return MmaTile(p, atom, rows, columns // t.batch, padded_k(t, p, atom))


def _keeps_a_in_registers(t: Tiling, units: list[ProductUnit]) -> bool:
    """True if a plan loads A of some MMA once per workgroup and keeps it in registers during the loop.

    That is so if one of `units` (the plan's `mma` statements) names an atom that takes A from registers, though A is
    read from memory. `t` (a Tiling) has the MMAs and the plan's tile sizes.
    """
    pairs = zip(t.o.products, units, strict=True)
    return any(line.atom not in {x.name for x in p.atoms} for p, line in pairs)


def _columns_first(facts: Facts, plan: Schedule, axes: PlanAxes) -> bool:
    """True if a plan's grid has all dimensions of N of the last MMA before all of its dimensions of M.

    False if the grid has no dimension of M, or none of N. `facts` is the analysed program, `axes` has the plan's axis
    of each program dimension.
    """
    n, m = (
        [
            plan.grid.index(axis.name)
            for d in program_dims_of(facts, tuple(dims))
            if (axis := axes.axes[d]).name in plan.grid
        ]
        for dims in (facts.products[-1].n, facts.products[-1].m)
    )
    return bool(m and n) and max(n) < min(m)


def _taps_per_stage(plan: Schedule, pipeline: Pipeline) -> int | None:
    """Return the number of filter taps per pipeline stage of B in a plan with halo tiles of A.

    A halo tile is an input patch of a convolution; `pipeline` is the plan's pipeline. 0 means that all of B is resident
    in shared memory. None means that the plan has no halo tiles, or no statement that places B in shared memory.
    """
    panel = next((line for line in plan.values if line.form == "panel"), None)
    if panel is None or not pipeline.halo_stages:
        return None
    if panel.at == "start":
        return 0
    inner = plan.loops[plan.loops.index(panel.at) + 1 :] if panel.at in plan.loops else ()
    splits = [plan.axis(name).split("loop") for name in inner]
    extents = [plan.axis(name).padded_extent for name in inner]
    return prod(extent if s is None else s.size for s, extent in zip(splits, extents, strict=True))
