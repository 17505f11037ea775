"""The choice of a plan for a contraction: all that fit the machine are listed and ranked by a model of its time.

The model is simple and says what it counts: products at the rate of the machine's atoms, elements staged and
results stored at vector speed, weights that do not fit the second cache at the speed of what lies behind it, and how
evenly tasks fall on workers. It ranks; it does not promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilewright.ir.dtypes import DType
from tilewright.machine import Machine, MultiplyAtom, OpaqueOperand, RegisterOperand
from tilewright.plan.contraction import Contraction, joined, joined_depth, size
from tilewright.plan.plans import COLUMNS, ROWS, TilePlan, VectorPlan, halo_of, is_direct, plan_text

Plan = TilePlan | VectorPlan

CYCLES_OF_TILE_PRODUCT = 16
VECTOR_PRODUCTS_A_CYCLE = 2
STAGED_BYTES_A_CYCLE = 16
FAR_BYTES_A_CYCLE = 8
CYCLES_OF_A_BLOCK = 60
CYCLES_OF_A_LAUNCH = 3000
KEPT_BYTES = 40 << 10
"""What of the weights may stay in the first cache beside everything else."""


@dataclass(frozen=True)
class Candidate:
    """A plan, the contraction it is for (its digits perhaps joined), and the cycles that the model gives it."""

    plan: Plan
    contraction: Contraction
    cycles: float

    def __str__(self) -> str:
        return f"{self.cycles:.0f} cycles: {plan_text(self.plan)}"


@dataclass(frozen=True)
class Choice:
    """The plans for a contraction, best first, and why other atoms were refused."""

    candidates: tuple[Candidate, ...]
    refused: tuple[str, ...]

    @property
    def best(self) -> Candidate | None:
        """The first."""
        return self.candidates[0] if self.candidates else None

    def explain(self) -> str:
        """The choice in words: what was chosen, what came next, what was refused and why."""
        lines = [f"chosen: {self.best}"] if self.best else ["no plan fits"]
        lines += [f"next:   {c}" for c in self.candidates[1:4]]
        return "\n".join([*lines, *(f"refused: {why}" for why in self.refused)])


def choose(
    c: Contraction, machine: Machine, workers: int, available: Callable[[MultiplyAtom], bool] = lambda _: True
) -> Choice:
    """The plans for a contraction on a machine, ranked."""
    c = joined(c)
    found: list[Candidate] = []
    refused: list[str] = []
    if len(c.columns) != 1:
        return Choice((), (f"columns have {len(c.columns)} digits; one is handled",))
    for atom in machine.multiply.values():
        why = _unfit(c, atom, available)
        if why is not None:
            refused.append(f"{atom.name}: {why}")
            continue
        plans: Callable[..., Iterator[tuple[Plan, float]]] = _vector_plans
        of = c
        if isinstance(atom.c, OpaqueOperand):
            few = 2 * size(c.depth[-1]) <= atom.shape[2]  # channels that would fill a tile's depth with zeros
            plans, of = _tile_plans, joined_depth(c) if few else c
        made = [Candidate(p, of, cycles) for p, cycles in plans(of, atom, machine, workers)]
        if not made:
            refused.append(f"{atom.name}: no cut of this problem fits it")
        found += made
    return Choice(tuple(sorted(found, key=lambda x: x.cycles)), tuple(refused))


def _unfit(c: Contraction, atom: MultiplyAtom, available: Callable[[MultiplyAtom], bool]) -> str | None:
    if (atom.a.dtype, atom.b.dtype) != (c.a.dtype, c.b.dtype):
        return f"it multiplies {atom.a.dtype} by {atom.b.dtype}, here are {c.a.dtype} and {c.b.dtype}"
    if atom.c.dtype is not c.sum_dtype:
        return f"it adds up in {atom.c.dtype}, here the sum is {c.sum_dtype}"
    if not available(atom):
        return "this CPU lacks it"
    if isinstance(atom.c, OpaqueOperand) and c.start != 0:
        return "tiles start from zero only"
    if not isinstance(atom.c, RegisterOperand) or (not isinstance(atom.c, OpaqueOperand) and atom.shape[0] != 1):
        return "its shape has no strategy yet"
    return None


def _shared_among(tasks: int, workers: int) -> int:
    """The tasks that the busiest worker has."""
    return -(-tasks // workers)


def _tile_plans(c: Contraction, atom: MultiplyAtom, machine: Machine, workers: int) -> Iterator[tuple[TilePlan, float]]:
    depth = atom.shape[2]
    group = depth // 16
    last = c.depth[-1]
    (column,) = c.columns
    chunks = -(-size(last) // depth)
    taps = c.extent(c.depth[:-1])
    steps = taps * chunks
    blocks = -(-size(column) // COLUMNS)
    weights = blocks * steps * 2048
    panel = steps * 2048
    stream_rows = panel <= KEPT_BYTES
    if any(e.symbols & set(c.rows) for x in c.extras for e in x.coordinates) and len(c.rows) > 1:
        return
    far = weights > (machine.limits.l2_bytes or 1 << 20) // 2
    stages = []
    if is_direct(c, depth):
        stages.append("direct")
    elif len(c.rows) > 1 and halo_of(c) is not None:
        stages.append("halo")
    if "direct" not in stages:
        stages.append("panel")
    splits = [s for s in sorted({1, 2, workers, 2 * workers}) if s <= blocks]
    for stage in stages:
        for split in splits:
            for strip, outer, rows, staged in _strips(c, stage, depth, taps, chunks, workers):
                if staged > 1 << 22:
                    continue
                row_blocks = -(-rows // ROWS)
                columns = -(-blocks // split)
                products = row_blocks * columns * (steps * 4 * CYCLES_OF_TILE_PRODUCT + CYCLES_OF_A_BLOCK)
                copied = staged / STAGED_BYTES_A_CYCLE
                read = columns * panel / FAR_BYTES_A_CYCLE if far else 0.0
                if staged > (machine.limits.l2_bytes or 1 << 20) // 4:  # read anew for each block of columns
                    read += columns * staged / FAR_BYTES_A_CYCLE
                most = _shared_among(outer * split * c.extent(c.batch), workers)
                cycles = most * (max(products, read) + copied) + CYCLES_OF_A_LAUNCH
                yield TilePlan(atom.name, depth, group, stage, strip, split, 72, stream_rows), cycles


def _strips(
    c: Contraction, stage: str, depth: int, taps: int, chunks: int, workers: int
) -> Iterator[tuple[int, int, int, int]]:
    """(strip, tasks, rows of a task, bytes staged) for every strip worth a thought."""
    last, each = c.rows[-1], _bytes(c.a.dtype)
    if stage == "direct" or len(c.rows) == 1:
        blocks = max(1, size(last) // ROWS)
        for parts in sorted({1, workers, 2 * workers, 4 * workers}):
            strip = -(-blocks // parts)
            count = -(-blocks // strip)
            rows = strip * ROWS
            staged = 0 if stage == "direct" else rows * chunks * taps * depth * each
            yield (strip if stage == "direct" else rows), count, rows, staged
        return
    lines = c.rows[-2]
    outer = c.extent(c.rows[:-2])
    halo = halo_of(c) if stage == "halo" else None
    for parts in range(1, min(size(lines), 8 * workers) + 1):
        strip = -(-size(lines) // parts)
        if -(-size(lines) // strip) != parts:
            continue
        if halo is not None:
            line = halo.line(c.a.shape[halo.column_dim])
            more = 0 if halo.line_taps is None else (size(halo.line_taps) - 1) * halo.line_step
            yield strip, outer * parts, strip * line, (strip + more) * line * chunks * depth * each
        else:
            rows = strip * size(last)
            yield strip, outer * parts, rows, rows * taps * chunks * depth * each


def _vector_plans(
    c: Contraction, atom: MultiplyAtom, machine: Machine, workers: int
) -> Iterator[tuple[VectorPlan, float]]:
    lanes, group = atom.shape[1], atom.shape[2]
    last, line = c.depth[-1], c.rows[-1]
    (column,) = c.columns
    if size(last) % group or (group > 1 and any(last in x.symbols for _, x in c.a.conditions())):
        return
    steps = max(d for d in (1, 2, 3, 4) if size(last) % (d * group) == 0)
    depth = c.extent(c.depth)
    outer = c.extent((*c.batch, *c.rows[:-1]))
    registers = machine.limits.registers
    weights = size(column) * depth * _bytes(c.b.dtype)
    far = weights > (machine.limits.l2_bytes or 1 << 20)
    for vectors in (1, 2, 3, 4):
        if vectors > 1 and (vectors - 1) * lanes >= size(column):
            continue
        blocks = -(-size(column) // (lanes * vectors))
        for rows in range(1, min(size(line), (registers - vectors - 1) // vectors) + 1):
            full, tail = divmod(size(line), rows)
            for split in sorted({1, 2, workers}):
                if split > blocks:
                    continue
                flat = outer == 1
                parts = 1 if not flat else min(max(1, full), 4 * workers)
                group_blocks = -(-full // parts) if full else 1
                tasks = outer * max(1, -(-full // group_blocks)) * split
                a_block = depth * (rows * vectors / VECTOR_PRODUCTS_A_CYCLE + 0.5 * vectors + 0.25 * rows) / group
                a_tail = depth * (tail * vectors / VECTOR_PRODUCTS_A_CYCLE + 0.5 * vectors + 0.25 * tail) / group
                few = 4.0 * depth / group if rows * vectors < 8 else 0.0  # too few sums to hide a product's latency
                per_line = full * (a_block + few + 30) + (a_tail + few + 30 if tail else 0)
                total = outer * per_line * blocks
                read = weights / split / FAR_BYTES_A_CYCLE if far else 0.0
                share = _shared_among(tasks, workers) / tasks
                yield (
                    VectorPlan(atom.name, lanes, group, rows, vectors, steps, split, group_blocks),
                    max(total * share, read) + CYCLES_OF_A_LAUNCH,
                )


def _bytes(dtype: DType) -> int:
    return max(1, dtype.bits // 8)
