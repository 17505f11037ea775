"""The walk over a tile program: what each operation becomes, and the tasks around it.

%0 = read %x : f32[M, N]                  tasks m in 0..25 {
%1 = mul %0, %0 : f32[M, N]                 %sum = alloc shared f32 (4)
%2 = sum %1 dim=(N) : f32[M]                ... views of rows 4*m to 4*m + 3, map, reduce
write %2, %y                                copy %sum -> %y_view
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, prod

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution, symbol_range
from tilewright.errors import ExpressionError, ProgramError
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Block, MemoryType, Op, Program, Value, building, walk_block
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.in_place import is_changed_in_place
from tilewright.ir.printer import op_text
from tilewright.ir.tensors import TensorType
from tilewright.ir.tile import ELEMENTWISE, REDUCTIONS
from tilewright.ir.verifier import verify
from tilewright.machine import Machine
from tilewright.passes.places import Size
from tilewright.passes.tile import combining, forming, fusing, grid, loops, masks, memory, moving, roles
from tilewright.passes.tile.homes import home_of
from tilewright.passes.tile.opened import CLOSED, OpenSizes
from tilewright.passes.tile.orders import Order, Pack
from tilewright.passes.tile.reports import Fault, Log
from tilewright.passes.tile.scope import TileScope
from tilewright.passes.tile.tasks import Tasks
from tilewright.passes.tile.tiled import TiledTask
from tilewright.passes.tile.values import Load, Parts, Tile, load, loads, most, only_load, weight
from tilewright.passes.tile.writer import BlockWriter
from tilewright.plan.general import Cuts
from tilewright.plan.microkernel import waves_of

HEAVY = 8
"""The weight from which an element is better kept than computed twice."""
LONG = 60
"""The weight from which a formula is cut in two."""
SIMPLE = ("add", "sub", "mul", "neg", "abs", "cast")
"""Operations whose results are computed again for each use."""


@dataclass(frozen=True)
class Lowered:
    """A block program; which arguments of the tile program are its arguments, in order; what it reports."""

    program: Program
    arguments: tuple[Value, ...]
    logs: tuple[Log, ...]
    """The arguments that follow those and `packs`, to be filled with NaN, or with 0 where they hold integers."""
    faults: tuple[Fault, ...]
    """Its last argument, if there are any: one number for each, which is not 0 after it happened."""
    lost: Mapping[Op, str]
    """Products that are done by loops, without an atom, and why."""
    packs: tuple[Pack, ...] = ()
    """What is packed before each run: the arguments that follow those of the tile program."""
    loads: Mapping[Op, str] = field(default_factory=dict)
    """Copies of tiles from arguments to shared memory, which may go ahead of what uses them: by `ring`, `halo`, or at
    the `start`."""
    stores: frozenset[Op] = frozenset()
    """Copies of results from shared memory to arguments."""
    before: tuple[Lowered, ...] = ()
    """What runs before it, and writes arguments of it that no caller has."""


class Lowering:
    """One walk over a tile program: what values became, which part of each dimension is current, what symbols mean.

    It is for these sizes and shapes of arguments: numbers, or expressions of sizes that are `opened`, which become
    parameters that calls tell. `cuts` are what a plan says of tasks, loops and products. `free` are the loops that give
    the same for every tile size. With `logs`, debug_log writes to arguments of its own. `workgroups` is given for a
    grid program: the symbols that depend on workgroup ids, and how. With `lenient`, symbols that set_symbol sets may
    have values outside their range. `written` are arguments that are known to be written completely, beside those that
    are seen to be.

    >>> from tilewright.ir.tile import parse_tile
    >>> from tilewright.targets.registry import machine
    >>> tile = parse_tile('''tile double(%x: global f32[M], %y: global f32[M])
    ...   symbols M
    ... {
    ...   %0 = read %x : f32[M]
    ...   %1 = add %0, %0 : f32[M]
    ...   write %1, %y
    ... }''')
    >>> (m,) = tile.args[0].type.dims
    >>> shapes = {a: (5000,) for a in tile.args}
    >>> print(Lowering(tile, {m: 5000}, shapes, machine("portable"), Cuts({m: 1250})).run().program)
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

    def __init__(
        self,
        program: Program,
        symbols: Mapping[Symbol, Size],
        shapes: Mapping[Value, tuple[Size, ...]],
        machine: Machine,
        cuts: Cuts,
        free: Collection[Op] = (),
        *,
        logs: bool = False,
        workgroups: Mapping[Symbol, Expr] | None = None,
        lenient: bool = False,
        opened: OpenSizes = CLOSED,
        written: Collection[Value] = (),
    ):
        self.scope, self.written = TileScope(symbols, opened), set(written)
        self.lenient, self.machine, self.cuts = lenient, machine, cuts
        self.shared: list[Expr] = list(self.cuts.blocks)
        """Dimensions of which there are several parts: what does not depend on one is used by all of them."""
        self.sums: dict[Value, tuple[Expr, ...]] = {}
        """Tensors in registers, and the dimensions they hold: a block of a product's sum has M and N; of others the
        current part is one wide."""
        self.padded: dict[Value, tuple[Expr, ...]] = {}
        """Sums in memory that are longer than what they hold, because atoms are whole, and how wide that is."""
        self.loose: dict[Load, tuple[bool, ...]] = {}
        """Loads that products read where they lie, though some of their coordinates may be out of bounds: which may."""
        self.lost: dict[Op, str] = {}
        """Products that are done by loops, and why."""
        self.early: dict[Op, Tile] = {}
        """Reads of a loop that are done before it, for all of its rounds."""
        self.brought: dict[Op, str] = {}
        """Copies of tiles from arguments to shared memory: each step of a product (`ring`), halo tiles (`halo`), or
        what is brought before the first task (`start`)."""
        self.taken: list[Op] = []
        """Copies of results from shared memory to arguments."""
        self.program, self.free = program, set(free)
        self.shapes = dict(shapes)
        self.waves = max(self.cuts.waves, waves_of(machine, self.cuts.products.values()))
        lanes = None if machine.lanes is None else self.waves * machine.lanes
        self.w = BlockWriter(lanes, opened.symbols, machine.limits)
        for s in opened.symbols:
            self.w.fresh(s.name)
        for arg in program.args:
            self.w.fresh(arg.name or "argument")
        self.env: ChainMap[Value, Tile] = ChainMap()
        self.users = program.users()
        self.going_on: dict[Value, Value] = {}
        """Values that a loop carries, and sums that went on in their tensor: nothing else has looked at it."""
        self.logs: dict[str, tuple[Log, Value]] | None = {} if logs else None
        self.faults: list[Fault] = []
        self.origins: dict[Value, tuple[Expr, ...]] = {}
        """Where memory of a workgroup's own starts along each of its dimensions."""
        if self.cuts.roles is not None:
            self.w.home = home_of(self.cuts.products, machine, self._task_width)
        self.workgroups = None if workgroups is None else grid.Workgroups(self, workgroups)
        logical = workgroups is None
        self.in_place = {a for a in program.args if logical and is_changed_in_place(program, a)}
        """Arguments whose elements are read where they are written, and need not be kept before that."""
        self.overhanging: set[Expr] = set()
        """Dimensions whose current piece goes past their end, beside those that are always extended."""
        self.packs: dict[tuple[Load, tuple[Expr, ...], Order], Pack] = {}
        """Arguments that are packed before the program runs, by what is read, over which dimensions, in which order."""
        self._arguments: dict[Value, Value] = {}
        self._faults: Value | None = None
        tiled, walk = self.cuts.tiled, self.cuts.walk
        self.walks = {} if tiled is None or walk is None else {tiled.axes.m: walk}
        """Dimensions that go along lines which a task stages."""
        self.tiled = None if tiled is None else TiledTask(self, tiled)
        """The one product of the program, where it is done in tile registers by a plan."""
        self.tasks = Tasks(self)
        self.required: set[tuple[Symbol, Tile]] = set()
        """Symbols whose range is looked after already, with what they stand for."""

    def _task_width(self, dim: Expr) -> int:
        """How wide a task is along a dimension: one that stays open is wider than 1."""
        size = self.cuts.widths.get(dim) or self.scope.size(dim)
        return size if isinstance(size, int) else 2

    def run(self) -> Lowered:
        """The block program."""
        with building():
            return self._run()

    def _run(self) -> Lowered:
        for arg in self.program.args:
            if not isinstance(arg.type, MemoryType):
                self.env[arg] = Tile(arg.type.dtype, (), {}, load(self.argument(arg)))
        body = self.tasks.write()
        used = {v for op in walk_block(body) for v in op.operands}
        taken = [a for a in self.program.args if self._arguments.get(a) in used]
        packs = tuple(self.packs.values())
        args = [*(self._arguments[a] for a in taken), *(pack.packed for pack in packs)]
        logs = tuple((self.logs or {}).values())
        args += [value for _, value in logs]
        if self._faults is not None:
            kind = TensorType("global", dtypes.i32, (as_expr(len(self.faults)),), role="inout")
            self._faults.type = kind
            args.append(self._faults)
        made = Program(BLOCK, self.program.name, tuple(args), body, self.scope.opened.records())
        if self.waves > 1:
            made.records.append(Op(BLOCK.records["waves"], (), {"count": as_expr(self.waves)}))
        made.records.append(Op(BLOCK.records["machine"], (), {"name": self.machine.name}))
        verify(made)
        copies = dict(self.brought), frozenset(self.taken)
        return Lowered(made, tuple(taken), tuple(log for log, _ in logs), tuple(self.faults), self.lost, packs, *copies)

    # -- the walk -----------------------------------------------------------------------------------------

    def block(self, block: Block) -> tuple[Tile, ...]:
        """The operations of a block; gives what it yields."""
        for step in fusing.steps(self, block.ops):
            self.w.loc = None
            if isinstance(step, fusing.FusedRows):
                fusing.write(self, step)
                continue
            if step.name == "yield":
                return tuple(self.env[v] for v in step.operands)
            for value, tile in zip(step.results, self.done(step), strict=step.name != "allocate"):  # memory is no tile
                self.env[value] = self.kept(step, value, masks.ended(self, step, tile))
        return ()

    def done(self, op: Op) -> tuple[Tile, ...]:
        """One operation; gives what it makes."""
        rule = RULES.get(op.name)
        if rule is None:
            raise ProgramError(f"{op.name} has no native form yet: {op_text(op)}", op.loc)
        try:
            self.scope.refuse_moved(op)
            return rule(self, op)
        except ProgramError as fault:
            raise type(fault)(fault.what, fault.location or op.loc) from None
        except ExpressionError as fault:
            raise ProgramError(f"{op_text(op)}: {fault}", op.loc) from None

    def kept(self, op: Op, value: Value, tile: Tile) -> Tile:
        """The tile, in memory if it is used often and dear, or has grown long."""
        if len(set(tile.dims)) != len(tile.dims):
            raise ProgramError(f"{op_text(op)}: a dimension occurs twice, which has no native form yet", op.loc)
        cost = weight(tile.formula)
        if not self.fits(tile.sizes):
            return tile
        if self.is_row(tile) and only_load(tile.formula) is None and any(loads(tile.formula)):
            return self.stored(tile, name=value.name)  # lanes would compute it again for each of their elements
        if (len(self.users.get(value, ())) > 1 and cost >= HEAVY and any(loads(tile.formula))) or cost >= LONG:
            return self.stored(tile, name=value.name)
        return tile

    def is_row(self, tile: Tile) -> bool:
        """Whether a tile is held in registers with an element for each row."""
        axes = None if self.w.home is None else self.w.home.axes(tile.dims, tile.parts)
        return axes is not None and len(axes) == 1

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Within it, what is defined stays inside."""
        before, self.env = self.env, self.env.new_child()
        try:
            with self.scope.nested():
                yield
        finally:
            self.env = before

    @contextmanager
    def branch(self, condition: Expr) -> Iterator[None]:
        """Within it, all happens only where a condition on loops and workgroups holds; nothing is left of none."""
        if isinstance(condition, Const) and condition.value:
            yield
            return
        inner, required = Block(()), set(self.required)
        with self.scope.given(condition), self.w.inside(inner):
            yield
        self.required = required
        if inner.ops:
            self.w.emit("if", when=condition, blocks=(inner,))

    # -- sizes and coordinates ----------------------------------------------------------------------------

    def axes(
        self, dims: tuple[Expr, ...], parts: Parts, tensor: Value | None = None
    ) -> tuple[tuple[Symbol, ...], Substitution]:
        """The axes of an operation over these parts, and coordinates as expressions of them.

        Sums in registers, if the tensor is such, have two dimensions; the others are one coordinate wide.
        """
        held = dims if tensor is None else self.sums.get(tensor, dims)
        over = self.w.axes([parts[d][1] for d in held])
        along = dict(zip(held, over, strict=True))
        return over, Substitution({self.scope.coordinate(d): parts[d][0] + along.get(d, as_expr(0)) for d in dims})

    def viewed(self, found: Load, dims: tuple[Expr, ...], parts: Parts) -> Value:
        """The elements of a load over these parts."""
        return self.w.viewed(found, *self.axes(dims, parts))

    # -- memory -------------------------------------------------------------------------------------------

    def argument(self, arg: Value) -> Value:
        """The block program's argument for one of the tile program's."""
        found = self._arguments.get(arg)
        if found is None:
            if isinstance(arg.type, MemoryType):
                shape, role = self.shapes[arg], roles.role_of(self.program, arg, self.walks, self.scope.numbers)
                role = "out" if arg in self.written else role
                exact = all(self.scope.numbers(d) is as_expr(n) for d, n in zip(arg.type.dims, shape, strict=True))
                whole = self.workgroups is None and exact
                if role == "out" and not whole:  # what is written need not be all of it
                    role = "inout"
            else:
                shape, role = (), "in"
            given = getattr(arg.type, "strides", None)
            steps = None if given is None else tuple(map(as_expr, given))
            kind = TensorType("global", arg.type.dtype, tuple(as_expr(n) for n in shape), steps, role=role)
            found = self._arguments[arg] = Value(kind, arg.name or self.w.fresh("argument"))
        return found

    def argument_of(self, tensor: Value) -> Value | None:
        """The tile program's argument that a tensor is; None if it is memory of the program's own."""
        return next((a for a in self.program.args if self._arguments.get(a) is tensor), None)

    def hold(self, memory: Value, tensor: Value, shape: tuple[Size, ...], origin: tuple[Expr, ...]) -> None:
        """Makes a tensor stand for memory that the program allocates, from the coordinates `origin` on."""
        self._arguments[memory], self.shapes[memory], self.origins[memory] = tensor, shape, origin

    def fault(self, what: str, op: Op) -> tuple[Value, int]:
        """The tensor of faults, and the place of a new one."""
        if self._faults is None:
            kind = TensorType("global", dtypes.i32, (as_expr(1 << 16),), role="inout")
            self._faults = Value(kind, self.w.fresh("faults"))
        self.faults.append(Fault(what, op))
        return self._faults, len(self.faults) - 1

    def report(self, wrong: Tile, what: str, op: Op) -> None:
        """Notes at run time that a tile of bools holds somewhere; the call then raises."""
        wrong = Tile(dtypes.i32, wrong.dims, wrong.parts, Formula.cast(dtypes.i32, wrong.formula))
        if 0 in wrong.sizes:
            return
        faults, place = self.fault(what, op)
        made, found = self.load_of(wrong)
        view = self.viewed(found, made.dims, made.parts)
        if all(isinstance(n, int) for n in made.sizes):
            (flat,) = self.w.axes([prod(made.sizes)])
            view = self.w.viewed(found, (flat,), Substitution(forming.digits(self, made, flat)))
        while view.type.shape:
            left = self.w.alloc(dtypes.i32, made.sizes[: len(view.type.shape) - 1], "wrong")
            goal = self.w.part(left, made.sizes[: len(view.type.shape) - 1])
            self.w.combine("reduce", view, goal, len(view.type.shape) - 1, "max")
            view = goal
        self.w.emit("atomic", (view, faults), how="max", over=(), at=((as_expr(place), False),))

    def require_range(self, s: Symbol, op: Op) -> None:
        """Notes at run time that a symbol stands for a number that it cannot be."""
        tile = self.scope.bound[s]
        if self.lenient or (s, tile) in self.required or (s.lo == -inf and s.hi == inf):
            return
        self.required.add((s, tile))
        value = formulas.converted(tile.formula, tile.dtype, dtypes.i64)
        wrong = formulas.number(0, dtypes.bool_)
        for name, limit in (("lt", s.lo), ("gt", s.hi)):
            if abs(limit) != inf:
                step = formulas.call(name, value, formulas.number(limit, dtypes.i64))
                wrong = Formula("or_", (wrong, step))
        self.report(
            Tile(dtypes.bool_, tile.dims, tile.parts, wrong), f"{s} is outside its range: {symbol_range(s)}", op
        )

    def stored(
        self,
        tile: Tile,
        dims: tuple[Expr, ...] | None = None,
        as_type: tuple[DType, Formula] | None = None,
        name: str | None = None,
    ) -> Tile:
        """The tile in memory of the worker's own: its dimensions in an order, its elements of a type."""
        dims = tile.dims if dims is None else dims
        dtype, formula = (tile.dtype, tile.formula) if as_type is None else as_type
        parts = {d: tile.parts[d] for d in dims}
        sizes = tuple(parts[d][1] for d in dims)
        if 0 in sizes:  # nobody will look
            return Tile(dtype, dims, parts, Formula.cast(dtype, Formula.number(0)))
        tensor = self.room(dtype, dims, parts, f"v{name}" if name is not None and name.isdigit() else name or "v")
        self.put(tensor, dims, parts, formula)
        return self.held(tensor, dims, parts)

    def room(self, dtype: DType, dims: tuple[Expr, ...], parts: Parts, name: str) -> Value:
        """Room for a value over these parts: in registers, where it is dealt out to lanes, or in memory."""
        axes = None if self.w.home is None else self.w.home.axes(dims, parts)
        if axes is None:
            return self.w.alloc(dtype, [parts[d][1] for d in dims], name)
        found = self.w.dealt(dtype, [most(parts[d][1]) for d in axes], name)
        self.sums[found] = axes
        return found

    def put(
        self, tensor: Value, dims: tuple[Expr, ...], parts: Parts, formula: Formula, whole: Parts | None = None
    ) -> None:
        """Makes a tensor over these parts, or the `whole` of which they are parts, hold what the formula computes."""
        over, images = self.axes(dims, parts, tensor)
        first = {d: parts[d][0] - whole[d][0] for d in dims} if whole is not None else {}
        held = zip(self.sums.get(tensor, dims), over, strict=True)
        at = [(first.get(d, as_expr(0)) + i, False) for d, i in held]
        self.w.map(self.w.view(tensor, over, at), over, formula, images)  # it may be longer: atoms are whole

    def room_of(self, tensor: Value) -> tuple[Expr, ...]:
        """How wide what a tensor holds may be along each dimension."""
        return self.padded.get(tensor) or tensor.type.shape

    def held(self, tensor: Value, dims: tuple[Expr, ...], parts: Parts) -> Tile:
        """What a tensor over these parts holds."""
        at = tuple(self.scope.coordinate(d) - parts[d][0] for d in self.sums.get(tensor, dims))
        return Tile(tensor.type.dtype, dims, parts, load(tensor, *at))

    def simple(self, value: Value, light: int = 2) -> Tile:
        """The value's tile, whose formula may stand in a formula several times: a load, a number, what is light."""
        tile = self.env[value]
        if weight(tile.formula) > light and any(loads(tile.formula)):
            self.env[value] = tile = self.stored(tile, name=value.name)
        return tile

    def fits(self, sizes: Sequence[Size], values: int | None = None) -> bool:
        """Whether a task's lanes have room for a tile, so many values each, or all that they may have.

        They always have where a plan says no waves.
        """
        values = self.machine.row_tasks.most_values if values is None else values
        if self.cuts.waves == 1 or self.w.lanes is None:
            return True
        return prod(map(most, sizes)) <= values * self.w.lanes

    def near(self, value: Value) -> Tile:
        """The value's tile, in memory of the worker's own where others use it too."""
        tile, found = self.env[value], only_load(self.env[value].formula)
        there = tile.filled or tile.wide is not None or (found is not None and found.tensor.type.space == "shared")
        tasks = self.machine.row_tasks
        most = tasks.values if self._is_reduced_twice(value) else tasks.most_values
        if not there and len(self.users.get(value, ())) > 1 and self.fits(tile.sizes, most):
            self.env[value] = tile = self.stored(tile, name=value.name)
        return tile

    def _is_reduced_twice(self, value: Value) -> bool:
        """Whether something simple that is computed of a value is reduced too: lanes then have registers for both."""
        found = [value]
        for each in found:
            for op in self.users.get(each, ()):
                if op.name in REDUCTIONS and each is not value:
                    return True
                found += [v for v in op.results if op.name in SIMPLE and v not in found]
        return False

    def single(self, value: Value, op: Op, tile: Tile | None = None) -> Tile:
        """The one value of a tile whose elements are all alike, as i64 without dimensions."""
        tile = self.env[value] if tile is None else tile
        if prod(tile.sizes) > 1 and any(loads(tile.formula)):
            tile = self.stored(tile)
        found = moving.squeezed(self, tile, (), value.name or "a value", op)
        return self.stored(Tile(dtypes.i64, (), {}, formulas.converted(found.formula, tile.dtype, dtypes.i64)))

    def load_of(self, tile: Tile, dtype: DType | None = None) -> tuple[Tile, Load]:
        """The tile as it lies in memory, put there if it is not; perhaps as another type."""
        found = only_load(tile.formula)
        if found is not None and dtype in (None, tile.dtype):
            return tile, found
        kind = dtype or tile.dtype
        made = self.stored(tile, as_type=(kind, formulas.converted(tile.formula, tile.dtype, kind)))
        there = only_load(made.formula)
        assert there is not None
        return made, there


def _nothing(low: Lowering, op: Op) -> tuple[Tile, ...]:
    return ()


Rule = Callable[[Lowering, Op], tuple[Tile, ...]]

RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, forming.elementwise),
    **dict.fromkeys(REDUCTIONS, combining.reduce),
    **dict.fromkeys(("broadcast", "permute"), forming.broadcast),
    **dict.fromkeys(("atomic_add", "atomic_min", "atomic_max"), memory.atomic),
    "fill": forming.fill,
    "scalar": forming.scalar,
    "self_index": forming.self_index,
    "apply": forming.apply,
    "set_symbol": forming.set_symbol,
    "cast": forming.cast,
    "bitcast": forming.bitcast,
    "reshape": forming.reshape,
    "repeat": forming.repeat,
    "select": forming.select,
    "extract": forming.extract,
    "read": memory.read,
    "write": memory.write,
    "mma": combining.mma,
    "cumsum": combining.cumsum,
    "topk": combining.topk,
    "iterate": loops.iterate,
    "conditional": loops.conditional,
    "allocate": grid.allocate,
    "barrier": _nothing,
    "debug_log": memory.debug_log,
}
