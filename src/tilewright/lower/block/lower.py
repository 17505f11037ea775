"""The lowering of a tile program to a block program: the table of rules, and the tasks around.

%0 = read %x : f32[M, N]                  tasks m in 0..25 {
%1 = mul %0, %0 : f32[M, N]                 %sum = alloc shared f32 (4)
%2 = sum %1 dim=(N) : f32[M]                ... views of rows 4*m to 4*m + 3, map, reduce
write %2, %y                                copy %sum -> %y_view
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.analysis.flat_memory import Size
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Block, MemoryType, Op, Program, Value, building, walk_block
from tilewright.ir.tile import ELEMENTWISE, REDUCTIONS, SCANS
from tilewright.ir.verifier import verify
from tilewright.lower.block import (
    elementwise,
    grid,
    loops,
    masks,
    memory,
    reduce,
    row_fusion,
    scans,
    streamed_reductions,
)
from tilewright.lower.block.arguments import ArgumentTensors
from tilewright.lower.block.lazy_tiles import Tile, load
from tilewright.lower.block.lowering import CurrentTask, Lowering, Rule, Rules
from tilewright.lower.block.materialise import kept
from tilewright.lower.block.mma.rule import mma
from tilewright.lower.block.mma.task import TiledTask
from tilewright.lower.block.packed_orders import Pack
from tilewright.lower.block.register_layouts import fragment_layout_of
from tilewright.lower.block.reports import Fault, Log, Reports
from tilewright.lower.block.scope import TileScope
from tilewright.lower.block.storage import Storage
from tilewright.lower.block.symbolic_shapes import CLOSED, OpenSizes
from tilewright.lower.block.tasks import Tasks
from tilewright.lower.block.writer import BlockWriter
from tilewright.machine import Machine
from tilewright.plan.bound import BoundKernel
from tilewright.plan.microkernel import hold_accumulators, waves_of


@dataclass(frozen=True)
class Lowered:
    """A block program, the arguments of the tile program that it takes, in order, and its run-time reports."""

    program: Program
    arguments: tuple[Value, ...]
    logs: tuple[Log, ...]
    """Tensors of debug_log: arguments after those of `packs`, to be filled with NaN (integers: 0) before a run."""
    faults: tuple[Fault, ...]
    """Run-time errors; the last argument has a number for each, which is not 0 after the error occurred."""
    fallback_mmas: Mapping[Op, str]
    """{MMA that is done by scalar loops, without an atom: the reason}."""
    packs: tuple[Pack, ...] = ()
    """Programs that pack arguments before each run; the packed tensors follow the arguments of the tile program."""
    loads: Mapping[Op, str] = field(default_factory=dict)
    """{copy from an argument to shared memory, which may be issued early: what it copies}: "ring" for K steps, "halo"
    for halo tiles, "start" for operands that are copied before the first task.
    """
    stores: frozenset[Op] = frozenset()
    """Copies of results from shared memory to arguments."""
    before: tuple[Lowered, ...] = ()
    """Programs that run before `program`. They write workspaces, which `program` takes as further arguments."""
    unpadded: Mapping[str, tuple[Size, ...]] = field(default_factory=dict)
    """The arguments that are copied with zeros after K: {name: extents without the zeros}."""


def _nothing(low: Lowering, op: Op) -> tuple[Tile, ...]:
    """Emit nothing for `op`, a `barrier` of the tile program; return (), as it has no results."""
    return ()


RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise.elementwise),
    **dict.fromkeys(REDUCTIONS, reduce.reduce),
    **dict.fromkeys(SCANS, scans.scan),
    **dict.fromkeys(("broadcast", "permute"), elementwise.broadcast),
    **dict.fromkeys(("atomic_add", "atomic_min", "atomic_max"), memory.atomic),
    "fill": elementwise.fill,
    "scalar": elementwise.scalar,
    "self_index": elementwise.self_index,
    "apply": elementwise.apply,
    "set_symbol": elementwise.set_symbol,
    "cast": elementwise.cast,
    "bitcast": elementwise.bitcast,
    "reshape": elementwise.reshape,
    "repeat": elementwise.repeat,
    "select": elementwise.select,
    "extract": elementwise.extract,
    "read": memory.read,
    "write": memory.write,
    "mma": mma,
    "topk": scans.topk,
    "iterate": loops.iterate,
    "conditional": loops.conditional,
    "allocate": grid.allocate,
    "barrier": _nothing,
    "debug_log": memory.debug_log,
}


def _block(low: Lowering, block: Block) -> tuple[Tile, ...]:
    """Emit the code of the operations in `block`, a block of the tile program. Return the lazy Tiles (formulas) of the
    operands of its `yield`, () if it has no `yield`.

    Operations along the same rows are fused into one loop where that pays. `low.storage.env` gets {result: Tile} for
    the results of the operations, except for memory that `allocate` returns. If it is cheaper than computing a result
    at each use, the result is stored in memory or registers, and its Tile loads from there. If `masks.hide_end` chose
    an operation, its result is -inf past the end of the loop's axis.
    """
    env = low.storage.env
    for step in row_fusion.steps(low, block.ops):
        low.writer.loc = None
        if isinstance(step, row_fusion.FusedRows):
            row_fusion.write(low, step)
            continue
        if isinstance(step, streamed_reductions.StreamedReductions):
            streamed_reductions.write(low, step)
            continue
        if step.name == "yield":
            return tuple(env[v] for v in step.operands)
        for value, tile in zip(step.results, low.lower(step), strict=step.name != "allocate"):  # memory is no tile
            env[value] = kept(low, step, value, masks.mask_tail(low, step, tile))
    return ()


def lower_tiles(
    program: Program,
    symbols: Mapping[Symbol, Size],
    shapes: Mapping[Value, tuple[Size, ...]],
    machine: Machine,
    bound: BoundKernel,
    free: Collection[Op] = (),
    *,
    logs: bool = False,
    workgroups: Mapping[Symbol, Expr] | None = None,
    lenient: bool = False,
    opened: OpenSizes = CLOSED,
    written: Collection[Value] = (),
) -> Lowered:
    """Lower a tile program to a block program; return it with its arguments, run-time reports and packing programs
    (Lowered).

    `symbols` is {size: value}, `shapes` is {argument: extents}: numbers, or expressions of the sizes in `opened` (known
    only at the call), which become parameters. `bound` is the program with its plan. `free` are the loops whose result
    does not depend on the tile size. With `logs`, each debug_log label gets an extra argument; otherwise debug_log
    emits nothing. `workgroups` is for a grid program: {symbol that depends on workgroup ids: its expression}. With
    `lenient`, symbols that set_symbol sets may have values outside their range. `written` are arguments that the caller
    knows to be written completely. Raise a ProgramError for what cannot be compiled, and an ExecutionError for a fault
    that every call would have, such as a read out of bounds.

    >>> from tilewright.ir.tile import parse_tile
    >>> from tilewright.plan.kernel import KernelProgram
    >>> from tilewright.plan.text import parse_plan
    >>> from tilewright.targets.registry import machine
    >>> tile = parse_tile('''tile double(%x: global f32[M], %y: global f32[M])
    ...   symbols M
    ... {
    ...   %0 = read %x : f32[M]
    ...   %1 = add %0, %0 : f32[M]
    ...   write %1, %y
    ... }''')
    >>> (m,) = tile.args[0].type.dims
    >>> shapes, row = {a: (5000,) for a in tile.args}, machine("portable")
    >>> plan = parse_plan("axis M = (M 5000): task 1250; grid M")
    >>> bound = BoundKernel(KernelProgram(tile, {m: 5000}, row), plan)
    >>> print(lower_tiles(tile, {m: 5000}, shapes, row, bound).program)
    block double(%x: in global f32 (5000), %y: out global f32 (5000))
      machine portable
    {
      tasks t_M in 0..4 {
        %y_view = view %y (i0 1250) -> [1250*t_M + i0]
        %x_view = view %x (i0 1250) -> [1250*t_M + i0]
        map %y_view = %x_view + %x_view
      }
    }
    <BLANKLINE>
    """
    waves = max(bound.plan.waves, waves_of(machine, bound.products.values()))
    writer = BlockWriter(None if machine.lanes is None else waves * machine.lanes, opened.symbols, machine.limits)
    for s in opened.symbols:
        writer.fresh(s.name)
    for arg in program.args:
        writer.fresh(arg.name or "argument")
    scope = TileScope(symbols, opened)
    if bound.plan.pipeline is not None:
        writer.fragment_layout = fragment_layout_of(bound.products, machine, lambda dim: _task_width(bound, scope, dim))
    walks = {tiled.axes.m: tiled.walk for tiled in bound.tiled.values() if tiled.walk is not None}
    storage = Storage(scope, writer)
    storage.holds_sums = machine.lanes is not None or hold_accumulators(bound.products.values(), machine)
    low = Lowering(
        program,
        machine,
        bound,
        set(free),
        Rules(RULES, _block),
        scope,
        storage,
        ArgumentTensors(program, shapes, written, walks, in_grid=workgroups is not None),
        Reports(storage, logs, lenient),
        CurrentTask(walks, list(bound.blocks)),
    )
    groups = None if workgroups is None else grid.Workgroups(low, workgroups)
    tiled = TiledTask(low) if bound.tiled else None
    with building():
        return _lowered(low, Tasks(low, groups, tiled), waves)


def _task_width(bound: BoundKernel, scope: TileScope, dim: Expr) -> int:
    """Return the number of elements of `dim` that one task has, as an int: the plan's, or all of `dim` if the plan
    states none.

    If `dim` is not split and its size is known only at the call, return 2, which stands for "more than 1".
    """
    size = bound.widths.get(dim) or scope.size(dim)
    return size if isinstance(size, int) else 2


def _lowered(low: Lowering, tasks: Tasks, waves: int) -> Lowered:
    """Emit the whole block program, its tasks by `tasks`; verify the program, and return it as a Lowered.

    `low` collects the arguments, reports, packing programs and copies while tasks are emitted. `waves` is the number of
    waves of a workgroup; the program records it if it is more than 1.
    """
    arguments, reports = low.arguments, low.reports
    for arg in low.program.args:
        if not isinstance(arg.type, MemoryType):
            tensor = arguments.tensor(arg, low.scope, low.writer)
            low.storage.env[arg] = Tile(arg.type.dtype, (), {}, load(tensor))
    body = tasks.write()
    used_arguments = arguments.used({v for op in walk_block(body) for v in op.operands})
    packs = tuple(arguments.packs.values())
    tensors = [arguments.tensor(a, low.scope, low.writer) for a in used_arguments]
    args = (*tensors, *(pack.packed for pack in packs), *reports.arguments())
    program = Program(BLOCK, low.program.name, args, body, low.scope.opened.records())
    if waves > 1:
        program.records.append(Op(BLOCK.records["waves"], (), {"count": as_expr(waves)}))
    program.records.append(Op(BLOCK.records["machine"], (), {"name": low.machine.name}))
    verify(program)
    logs = tuple(log for log, _ in (reports.logs or {}).values())
    copies = dict(low.storage.shared_loads), frozenset(low.storage.shared_stores)
    return Lowered(program, tuple(used_arguments), logs, tuple(reports.faults), low.fallback_mmas, packs, *copies)
