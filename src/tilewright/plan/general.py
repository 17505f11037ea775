"""Plans for programs that are no single contraction: which dimensions tasks cut, and how far loops go at once.

axis M = (M 1000): task 8
axis N = (N 512): whole
axis K = (K 900): loop 256
grid M
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.core import Op, Program, TileType
from tilewright.ir.tile import ELEMENTWISE
from tilewright.machine import Machine
from tilewright.plan.boxes import NOTHING, Opened, Room, boxes, cut_dims, slides, why_whole
from tilewright.plan.fixed import tiles_of
from tilewright.plan.limiting import Predicted, limiting
from tilewright.plan.microkernel import LaneKernel, Microkernel, as_plan, axes_in, products_of
from tilewright.plan.model import Size, cores, us
from tilewright.plan.planner import Refusal
from tilewright.plan.predicting import predicted
from tilewright.plan.ranked import ranked
from tilewright.plan.schedule import Axis, Digit, Pipeline, Schedule, Split
from tilewright.plan.tiled import Depth, Tiled, Walk

WHOLE, CHOSEN = 512, 256
"""The longest axis that a loop which may choose takes at once, and the tile that it takes of a longer one."""
DEEPEST = 4096
"""The same of a loop that only adds products: what they read is not held."""
ALIKE = {
    *(*ELEMENTWISE, "select", "cast", "fill", "scalar", "broadcast", "permute"),
    *("mma", "read", "write", "yield", "iterate"),
}
"""Operations that treat all coordinates of a dimension alike, a loop those of others than its axis."""


@dataclass(frozen=True)
class Cuts:
    """What a plan says of a program, as the lowering reads it."""

    widths: dict[Expr, int] = field(default_factory=dict)
    """The width of a task along each dimension that tasks cut."""
    blocks: dict[Expr, int] = field(default_factory=dict)
    """How wide the pieces are by which a task goes over dimensions, the outermost first."""
    tiles: dict[Op, int] = field(default_factory=dict)
    """The tile of each loop that gives the same for all tiles."""
    products: dict[Op, Microkernel | None] = field(default_factory=dict)
    """How each product is done: by an atom and blocks of sums, or, None, by loops."""
    roles: Pipeline | None = None
    """Who loads and who multiplies; None: all waves do both. Tasks then all have the same width: those at the edges
    compute more than there is, and what is too much is not stored."""
    group: int = 1
    """How many tasks along the first of their dimensions are walked together."""
    extended: dict[Expr, int] = field(default_factory=dict)
    """Dimensions whose last piece has whole units of such a size; what is past the end is computed, never stored."""
    apart: dict[Expr, tuple[int, int]] = field(default_factory=dict)
    """How many pieces at the ends of a dimension are written apart; by itself one at each where a factor slides out of
    its tensor, and the last where only a call tells where the dimension ends."""
    lanes: dict[Op, LaneKernel] = field(default_factory=dict)
    """Products by vectors along a dimension that both factors and the sum keep."""
    depth: tuple[Depth, ...] = ()
    """The loops over what a product sums, the outermost first; none: as the lowering sees fit."""
    schedule: str = "cyclic"
    """Which tasks a worker takes."""
    waves: int = 1
    """How many waves do a task together, where products do not say so."""
    halo: int | None = None
    """Where factor A is brought as a halo tile: how many offsets a stage of B has; 0: all of B is brought before the
    first task; None: A is brought step by step, as B is."""
    walk: Walk | None = None
    """Where rows of a halo tile, or those that a task stages, run on from line to line: how."""
    overlap: str = "none"
    """What runs beside other work: `ahead`, the first product of a loop's next round; `defer`, what becomes of a block
    of sums, beside the next one."""
    packed: bool = False
    """Whether the factors B that are arguments are packed before the program runs, wherever they could be read."""
    tiled: Tiled | None = None
    """How the one product of a program is done in tile registers; None: as the lowering sees fit."""
    terms: int | None = None
    """Where lanes do products term by term: up to how many terms of a sum are written out; None: atoms do them."""
    lane_box: tuple[Expr, ...] = ()
    """Dimensions of which every lane has all, where it does: what results next to each other read is brought once."""

    @property
    def summed(self) -> dict[Expr, Depth]:
        """The outermost loop over each dimension that is summed."""
        return {s.dim: s for s in reversed(self.depth)}


@dataclass(frozen=True)
class GeneralChoice:
    """The plan of a program on the general path, what it should take, and why it is no other."""

    machine: Machine
    name: str
    plan: Schedule
    cycles: float
    bound: float
    refused: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    candidates: tuple[Schedule, ...] = ()
    """Plans that fit, the one that should be fastest first, where there are several."""
    predicted: Predicted | None = field(default=None, compare=False, repr=False)
    """What the model says of this plan on a machine with other rates, where it says more than bytes and operations."""
    costs: tuple[float, ...] = ()
    """The cycles that each of them should take."""
    parts: tuple[GeneralChoice, ...] = ()
    """The choices of the programs that it is done as, one after the other, where it is more than one."""
    widths: Mapping[Expr, int] = field(default_factory=dict, compare=False, repr=False)
    """The width of a task along each dimension, where all waves do the same."""
    jobs: object = field(default=None, compare=False, repr=False)
    """The jobs of the programs that it is done as, where these are planned already."""

    def explain(self) -> str:
        """The choice in words."""
        took, least = us(self.cycles, self.machine), us(self.bound, self.machine)
        if self.parts:
            sums = " + ".join(us(part.cycles, self.machine) for part in self.parts)
            return "\n".join(
                [
                    f"{self.name} on {self.machine.name} as two kernels, split after {self.plan.split_after}: "
                    f"predicted {took} us, {sums}",
                    *self.notes,
                    *(f"refused  {r}" for r in self.refused),
                    *(part.explain() for part in self.parts),
                ]
            )
        by = "" if self.machine.lanes is not None else ", by memory"
        way = "by the general path" if self.plan.pipeline is None else "in roles"
        return "\n".join(
            [
                f"{self.name} on {self.machine.name} with {cores(self.machine)} workers, {way}",
                *("  " + line for line in self.plan.lines()),
                *([f"predicted {took} us; roofline {least} us{by}"] if self.cycles else []),
                *([] if self.predicted is None else limiting(self.machine, self.plan, self.predicted)),
                *self.notes,
                *(f"refused  {r}" for r in self.refused),
            ]
        )


def room_of(machine: Machine) -> Room:
    """What tasks should be like on a machine: some for each core, each within the caches."""
    limits = machine.limits
    least, most = limits.l1_bytes // 24, limits.l2_bytes // 128
    values = limits.l2_bytes // 16
    return Room(max(16, 16 * cores(machine)), (least, max(least, most)), 2 * cores(machine), values)


def blocks_of(products: Mapping[Op, Microkernel | None], dims: tuple[Expr, ...], width: Size) -> dict[Expr, int]:
    """The pieces by which a task goes over a program with one product: blocks of sums, which then stay in registers.

    Blocks of N come first: what a block reads of B is read again for the next rows.
    """
    ((op, how),) = products.items()
    axes = axes_in(op, width)
    if how is None or isinstance(axes, str) or axes.m not in dims or axes.n not in dims:
        return {}
    return {axes.n: how.columns, axes.m: how.rows, **{d: 1 for d in axes.around if d in dims and width(d) > 1}}


def only_adds(op: Op) -> bool:
    """Whether a loop's body only multiplies what it reads, and adds that to what it carries."""
    (body,) = op.blocks
    return all(inner.name in ("read", "mma", "yield") for inner in body.ops)


def _tile(op: Op, extent: int, tilings: Mapping[str, int], opened: Collection[Expr]) -> int:
    """The tile of a loop that gives the same for all: what a constraint says; else all of the axis where it only adds
    products of what is read.
    """
    stated = tilings.get(str(op.attrs["axis"]))
    if stated is not None:
        return stated
    if only_adds(op):
        return extent if op.attrs["axis"] in opened else min(extent, DEEPEST)
    return extent if extent <= WHOLE else CHOSEN


def plan_general(
    program: Program,
    sizes: Mapping[Symbol, int],
    size: Size,
    machine: Machine,
    free: Collection[Op],
    logs: bool = False,
    ordered: bool = False,
    opened: Opened = NOTHING,
) -> GeneralChoice:
    """The plan of a logical program for these sizes on a CPU; constraints say parts of it.

    `ordered`: elements are worked on one after another, in one task. Of sizes that are `opened` these are typical.
    """
    dims = () if ordered else cut_dims(program, size, logs, opened)
    whole = [d for d in dims_of(program) if d not in dims and d.symbols <= set(sizes)]
    loops = {op: size(op.attrs["axis"]) for op in program.walk() if op.name == "iterate" and op.attrs["axis"] in whole}
    workgroups, tilings = tiles_of(program, sizes)
    tiles = {op: _tile(op, extent, tilings, opened) for op, extent in loops.items() if op in free}
    looped = {(d := op.attrs["axis"]): tiles.get(op) or tilings.get(str(d)) or n for op, n in loops.items()}
    wide = boxes(program, size, room_of(machine), logs, looped, opened) if dims else {}
    widths = {d: wide.get(d, size(d)) for d in dims}
    widths |= {d: min(workgroups[str(d)], size(d)) for d in dims if str(d) in workgroups}

    def width(d: Expr) -> int:
        return widths.get(d) or looped.get(d) or size(d)

    products, blocks = products_of(program, machine, width, size, opened), dict[Expr, int]()
    if len(products) == 1:  # its sums may stay in registers, whatever a task takes
        alone = products_of(program, machine, lambda d: (size if d in dims else width)(d), size, opened)
        products = alone if (blocks := blocks_of(alone, dims, width)) else products
        best = ranked(program, blocks, size, machine) if blocks and not (workgroups or opened or logs) else None
        if best is not None:
            widths |= {d: n for d, n in best[0].items() if d in dims}
            blocks, products = best[1], dict.fromkeys(products, best[2])
    _widened(program, widths, blocks, size, opened, workgroups)

    cut = {d: tuple(Split(role, of[d]) for role, of in (("task", widths), ("loop", blocks)) if d in of) for d in dims}
    cut |= {d: (Split("loop", n),) if (n := looped.get(d, size(d))) < size(d) else () for d in whole}
    plan = replace(drafted((*dims, *whole), size, cut, widths), products=as_plan(products, program))
    cycles, bound = predicted(program, sizes, size, machine, widths)
    return GeneralChoice(
        machine, program.name, plan, cycles, bound, _whole(program, whole, size, ordered), widths=widths
    )


def _widened(
    program: Program,
    widths: dict[Expr, int],
    blocks: Mapping[Expr, int],
    size: Size,
    opened: Collection[Expr],
    fixed: Collection[str],
) -> None:
    """Makes tasks as wide as whole blocks, but for dimensions whose tasks a constraint says."""
    for d, n in blocks.items():
        most = widths[d] + n if d in opened else size(d)
        widths[d] = min(most, -(-widths[d] // n) * n) if str(d) not in fixed else widths[d]
    for d in [d for d in blocks if d in opened and slides(program, d) and str(d) not in fixed]:
        del widths[d]  # a task goes along whole lines: where they end, blocks are others


def _whole(program: Program, dims: list[Expr], size: Size, ordered: bool) -> tuple[Refusal, ...]:
    """Why tasks do not cut some dimensions."""
    why = "elements are worked on in order" if ordered else None
    return tuple(Refusal(f"tasks over {d}", why or why_whole(program, d)) for d in dims if size(d) > 1)


def dims_of(program: Program) -> list[Expr]:
    """All dimensions of a program's tiles that are symbols, in the order in which they occur."""
    found: dict[Expr, None] = {}
    for op in program.walk():
        for value in (*op.operands, *op.results):
            if isinstance(value.type, TileType):
                found |= dict.fromkeys(d for d in value.type.dims if isinstance(d, Symbol))
    return list(found)


def words_for(dims: Iterable[str]) -> dict[str, str]:
    """What a plan calls dimensions: names of their own, also for those that are expressions.

    >>> words_for(["M", "2*M", "dim_2_M", "2 + M"])
    {'M': 'M', '2*M': 'dim_2_M2', 'dim_2_M': 'dim_2_M', '2 + M': 'dim_2_M3'}
    """
    found: dict[str, str] = {}
    for text in (every := list(dims)):
        if text.isidentifier():
            found[text] = text
    for text in every:
        if text in found:
            continue
        base, count = "dim_" + re.sub(r"\W+", "_", text).strip("_"), 1
        word = base
        while word in found.values():
            count += 1
            word = f"{base}{count}"
        found[text] = word
    return {text: found[text] for text in every}


def drafted(
    dims: Sequence[Expr], size: Size, cuts: Mapping[Expr, tuple[Split, ...]], tasks: Iterable[Expr]
) -> Schedule:
    """A plan whose axes are these dimensions, cut so, and whose tasks go over some of them."""
    words = words_for(map(str, dims))
    axes = tuple(axis_of(words[str(d)], size(d), cuts.get(d, ())) for d in dims)
    return Schedule(axes, tuple(words[str(d)] for d in tasks))


def axis_of(word: str, extent: int, cuts: tuple[Split, ...]) -> Axis:
    """An axis of one digit."""
    return Axis(word, (Digit(word, max(1, extent), max(1, extent)),), cuts)
