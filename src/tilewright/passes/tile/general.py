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
from typing import Any

import numpy as np

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution, evaluate, number_or, symbol_range
from tilewright.check.inside import holds, shown
from tilewright.errors import ExecutionError, ExpressionError, ProgramError
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
from tilewright.passes.tile import accesses, combining, forming, fusing, grid, loops, masks, memory, moving, roles
from tilewright.passes.tile.homes import home_of
from tilewright.passes.tile.opened import CLOSED, OpenSizes
from tilewright.passes.tile.orders import Order, Pack
from tilewright.passes.tile.reports import Fault, Log
from tilewright.passes.tile.tasks import Tasks
from tilewright.passes.tile.tiled import TiledTask
from tilewright.passes.tile.values import Load, Part, Parts, Tile, load, loads, most, only_load, rewritten, weight
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
        self.opened, self.written = opened, set(written)
        self.facts: list[Expr] = []
        """What is never negative here: the conditions of the branches around say so."""
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
        self.symbols: dict[Symbol, Expr | int] = dict(symbols)
        self.shapes = dict(shapes)
        self.waves = max(self.cuts.waves, waves_of(machine, self.cuts.products.values()))
        lanes = None if machine.lanes is None else self.waves * machine.lanes
        self.w = BlockWriter(lanes, opened.symbols, machine.limits)
        for s in opened.symbols:
            self.w.fresh(s.name)
        for arg in program.args:
            self.w.fresh(arg.name or "argument")
        self.env: ChainMap[Value, Tile] = ChainMap()
        self.parts: Parts = {}
        self.bound: dict[Symbol, Tile] = {}
        self.masks: list[Tile] = []
        self.users = program.users()
        self.going_on: dict[Value, Value] = {}
        """Values that a loop carries, and sums that went on in their tensor: nothing else has looked at it."""
        self.logs: dict[str, tuple[Log, Value]] | None = {} if logs else None
        self.faults: list[Fault] = []
        self.walking: set[Symbol] = set()
        """The axes of the while loops around."""
        self.ends: dict[Expr, Tile] = {}
        """Dimensions that end where data say: a number of i64."""
        self.past: dict[Expr, Size] = {}
        """Axes of loops whose last tile goes past the end, and where that is: all tiles have the same width; and
        dimensions of which a task in roles has all, and more."""
        self.unseen: dict[Expr, Op | None] = {}
        """Of these, axes past whose end nothing changes what a loop carries: since one of its operations gives -inf
        there, or, None, since a selection of the program does."""
        self.bases: dict[Expr, Tile] = {}
        """Axes of loops that data move: where the current tile starts, a number of i64."""
        self.iteration: dict[Expr, Expr] = {}
        """How many tiles of each loop around have been done before."""
        self.reach: dict[Expr, int] = {}
        """Dimensions whose parts lie outside them in some workgroups: one past the last coordinate."""
        self.origins: dict[Value, tuple[Expr, ...]] = {}
        """Where memory of a workgroup's own starts along each of its dimensions."""
        self._numbers = Substitution(self.symbols)
        if self.cuts.roles is not None:
            self.w.home = home_of(self.cuts.products, machine, self._task_width)
        self.workgroups = None if workgroups is None else grid.Workgroups(self, workgroups)
        logical = workgroups is None
        self.in_place = {a for a in program.args if logical and is_changed_in_place(program, a)}
        """Arguments whose elements are read where they are written, and need not be kept before that."""
        self._coordinates: dict[tuple[Expr, Size], Symbol] = {}
        """By dimension, and how wide its tiles are in a loop that data move."""
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
        size = self.cuts.widths.get(dim) or self.size(dim)
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
        made = Program(BLOCK, self.program.name, tuple(args), body, self.opened.records())
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
            moving.refuse(self, op)
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
    def scope(self) -> Iterator[None]:
        """Within it, what is defined stays inside; the open block of the writer is another one."""
        before, self.env = self.env, self.env.new_child()
        bound, ends = dict(self.bound), dict(self.ends)
        try:
            yield
        finally:
            self.env, self.bound, self.ends = before, bound, ends

    @contextmanager
    def at(self, dim: Expr, part: Part) -> Iterator[None]:
        """Within it, this part of a dimension is current."""
        before = self.parts.get(dim)
        self.parts[dim] = part
        yield
        if before is None:
            del self.parts[dim]
        else:
            self.parts[dim] = before

    @contextmanager
    def branch(self, condition: Expr) -> Iterator[None]:
        """Within it, all happens only where a condition on loops and workgroups holds; nothing is left of none."""
        if isinstance(condition, Const) and condition.value:
            yield
            return
        inner, required, facts = Block(()), set(self.required), self.facts
        self.facts = [*facts, *holds(condition)]
        with self.w.inside(inner):
            yield
        self.required, self.facts = required, facts
        if inner.ops:
            self.w.emit("if", when=condition, blocks=(inner,))

    # -- sizes and coordinates ----------------------------------------------------------------------------

    def is_inside(self, e: Expr, size: Size) -> bool:
        """Whether a coordinate is shown to lie in 0..size-1."""
        return self.holds(e) and self.holds(size - 1 - e)

    def holds(self, e: Expr) -> bool:
        """Whether an expression is shown to be never negative, by ranges or by the branches around."""
        return e.lo >= 0 or (e >= 0) is as_expr(1) or (bool(self.opened) and shown(e, self.facts))

    def means(self, symbols: Mapping[Symbol, Expr | int]) -> None:
        """Makes symbols stand for numbers, or for expressions of workgroup ids."""
        self.symbols = dict(symbols)
        self._numbers = Substitution(self.symbols)

    def size(self, e: Expr) -> Size:
        """An expression of sizes: a number, or an expression of those that a call tells."""
        found = self._numbers(e)
        known = isinstance(found, Const) or found.symbols <= self.opened.symbols
        if not known or not e.symbols.isdisjoint(self.bound):
            raise ProgramError(f"{e} has no value before the program runs; natively it must have one")
        return number_or(found)

    def number(self, e: Expr) -> int:
        """An expression of sizes that must be a number."""
        found = self.size(e)
        if isinstance(found, Expr):
            named = ", ".join(sorted(s.name for s in e.symbols if self._numbers(s).symbols)) or str(e)
            raise ProgramError(f"{e} must be a number here; {named} is dynamic, and only a call tells it")
        return found

    def expr(self, e: Expr) -> Expr:
        """The expression with sizes as numbers; symbols that set_symbol bound stay."""
        if not self.bound:
            return self._numbers(e)
        return Substitution({s: n for s, n in self.symbols.items() if s not in self.bound})(e)

    def over_workgroups(self, e: Expr) -> Any:
        """Every number that an expression of loops around and of workgroup ids may be, as an array."""
        if isinstance(e, Const):
            return np.asarray(e.value)
        values = {s: np.arange(_limit(s.lo), _limit(s.hi) + 1) for s in e.symbols}
        if prod(len(v) for v in values.values()) > accesses.TABLED:
            raise ProgramError(f"{e} has more values than can be looked at")
        return np.asarray(evaluate(e, dict(zip(values, np.ix_(*values.values()), strict=True))))

    def conform(self, tile: Tile, dims: tuple[Expr, ...], op: Op) -> Tile:
        """The tile over other dimensions: those left out or added must be one coordinate wide here."""
        if set(tile.dims) == set(dims):
            return tile
        gone = [d for d in tile.dims if d not in dims]
        parts = {d: part for d, part in tile.parts.items() if d not in gone}
        parts |= {d: self.part(d) for d in dims if d not in parts}
        for d in (*gone, *(d for d in dims if d not in tile.dims)):
            width = tile.parts[d][1] if d in gone else parts[d][1]
            if width != 1:
                how = "left out" if d in gone else "added"
                raise ExecutionError(f"{op.name}: {d} is {how}, but is {width} wide here", op.loc)
        images = Substitution({self.coordinate(d): tile.parts[d][0] for d in gone})
        wide = None if tile.wide is None else (tile.wide[0], rewritten(tile.wide[1], images))
        found = tuple(d for d in tile.dims if d in dims) + tuple(d for d in dims if d not in tile.dims)
        return Tile(tile.dtype, found, parts, rewritten(tile.formula, images), wide)

    def coordinate(self, dim: Expr) -> Symbol:
        """The symbol of a dimension's coordinate."""
        walked = 1 if dim in self.walking else self.parts[dim][1] if dim in self.bases else 0
        found = self._coordinates.get((dim, walked))
        if found is None:
            if walked:
                found = self._coordinates[dim, walked] = symbol(f"at_{len(self._coordinates)}", 0, walked - 1)
                return found
            if isinstance(dim, Symbol) and dim in self.bound and dim not in self.reach:
                raise ProgramError(f"set_symbol gives the dimension {dim} a size at run time, which is not native yet")
            name = f"at_{len(self._coordinates)}"
            if dim in self.reach or not dim.symbols.isdisjoint(self.reach):
                found = symbol(name, 0, self.reach[dim] - 1 if dim in self.reach else None)
            else:
                size = self.size(dim)
                found = symbol(name, 0, max(1, size) - 1 if isinstance(size, int) else size - 1)
            self._coordinates[dim, walked] = found
        return found

    def part(self, dim: Expr) -> Part:
        """The current part of a dimension."""
        if dim in self.walking:  # one coordinate; which one, only data tell
            return as_expr(0), 1
        found = self.parts.get(dim)
        if found is not None:
            return found
        cut = [s for s in dim.symbols if s in self.parts]
        if not cut:
            return as_expr(0), self.size(dim)
        (s,) = cut
        first, width = self.parts[s]
        known: dict[Symbol, Expr | int] = dict(self.symbols)
        low = Substitution({**known, s: first})(dim)
        size = Substitution({**known, s: first + width})(dim) - low
        if not isinstance(size, Const) and not (isinstance(width, Expr) and shown(size)):
            raise ProgramError(f"the width of {dim} depends on the place: a tile of {s} does not divide it evenly")
        return low, number_or(size)

    def is_known(self, dim: Expr) -> bool:
        """Whether the current part of a dimension has a width before the program runs."""
        if dim in self.walking or dim in self.parts:
            return True
        found = self._numbers(dim)
        return dim.symbols.isdisjoint(self.bound) and (isinstance(found, Const) or found.symbols <= self.opened.symbols)

    def width(self, dim: Expr) -> int:
        """How wide the current part of a dimension is at most."""
        return most(self.part(dim)[1])

    def images(self, dims: tuple[Expr, ...], parts: Parts, over: tuple[Symbol, ...]) -> Substitution:
        """Coordinates as expressions of the axes of an operation over these parts."""
        return Substitution({self.coordinate(d): parts[d][0] + i for d, i in zip(dims, over, strict=True)})

    def axes(
        self, dims: tuple[Expr, ...], parts: Parts, tensor: Value | None = None
    ) -> tuple[tuple[Symbol, ...], Substitution]:
        """The axes of an operation over these parts, and coordinates as expressions of them.

        Sums in registers, if the tensor is such, have two dimensions; the others are one coordinate wide.
        """
        held = dims if tensor is None else self.sums.get(tensor, dims)
        over = self.w.axes([parts[d][1] for d in held])
        along = dict(zip(held, over, strict=True))
        return over, Substitution({self.coordinate(d): parts[d][0] + along.get(d, as_expr(0)) for d in dims})

    def viewed(self, found: Load, dims: tuple[Expr, ...], parts: Parts) -> Value:
        """The elements of a load over these parts."""
        return self.w.viewed(found, *self.axes(dims, parts))

    def is_past(self, dim: Expr) -> bool:
        """Whether the current piece of a dimension may go past its end."""
        if dim in self.overhanging or dim in self.walks:
            return True
        if dim not in self.cuts.extended:
            return False
        first, width = self.part(dim)
        return not self.holds(as_expr(self.size(dim)) - first - width)

    # -- memory -------------------------------------------------------------------------------------------

    def argument(self, arg: Value) -> Value:
        """The block program's argument for one of the tile program's."""
        found = self._arguments.get(arg)
        if found is None:
            if isinstance(arg.type, MemoryType):
                shape, role = self.shapes[arg], roles.role_of(self.program, arg, self.walks, self._numbers)
                role = "out" if arg in self.written else role
                exact = all(self._numbers(d) is as_expr(n) for d, n in zip(arg.type.dims, shape, strict=True))
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
        tile = self.bound[s]
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
        at = tuple(self.coordinate(d) - parts[d][0] for d in self.sums.get(tensor, dims))
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


def _limit(limit: Any) -> int:
    """A limit of a loop's variable, as a number."""
    if not isinstance(limit, int):
        raise ProgramError(f"a loop whose limit is {limit} has no native form here")
    return limit


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
