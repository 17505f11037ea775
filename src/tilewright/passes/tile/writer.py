"""The block program as it grows: memory of the worker's own, views, maps, loops."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import inf, prod
from typing import Any

from tilewright.algebra import Layout, Swizzle
from tilewright.algebra.expr import Const, Expr, FloorDiv, Symbol, as_expr, index, symbol
from tilewright.algebra.expr_use import Substitution, number_or
from tilewright.ir.attrs import Range
from tilewright.ir.block import BLOCK
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import Distribution, RegisterType, TensorType, packed
from tilewright.machine import Limits
from tilewright.passes.places import Size
from tilewright.passes.tile.homes import Home
from tilewright.passes.tile.values import Load, loads, rewritten

_AXIS = re.compile(r"i\d+")
"""The coordinates of an operation are called so: `axes`."""


def _is_shared(value: Value) -> bool:
    """True if a tensor lies in shared memory."""
    return isinstance(value.type, TensorType) and value.type.space == "shared"


def extent(axis: Symbol) -> Size:
    """Return the number of coordinates of an axis."""
    assert axis.upper is not None
    return number_or(axis.upper + 1)


def word(dim: Expr) -> str:
    """Return a dimension as part of a name."""
    text = str(dim)
    return text if text.isidentifier() else "d"


def split(over: tuple[Symbol, ...], expressions: Sequence[Expr]) -> tuple[tuple[Symbol, ...], Substitution]:
    """Return (axes in whose digits (mixed-radix parts) the expressions need no division, the old axes in terms of
    them).

    A copy along a flat index becomes one over its digits, so that contiguous elements are recognised. The axes are
    unchanged if nothing is divided.

    >>> i, j = index("i0", 4), index("i1", 36)
    >>> axes, images = split((i, j), [i + j // 12, j % 12])
    >>> axes, images(i + j // 12), images(j % 12)
    ((<i0>, <i1>, <i2>), <i0 + i1>, <i2>)
    """
    radices: dict[Symbol, set[int]] = {s: set() for s in over}
    for node in (n for e in expressions for n in e.divisions(set())):
        inner, by = node.parts
        step, whole = inner.parts if isinstance(inner, FloorDiv) else (inner, as_expr(1))
        if step in radices and isinstance(by, Const) and isinstance(whole, Const):
            radices[step].add(by.value * whole.value)
    sizes: list[Size] = []
    meanings: dict[Symbol, list[int]] = {}
    for s in over:
        size = extent(s)
        if isinstance(size, Expr):
            meanings[s] = [1]
            sizes.append(size)
            continue
        chain = [1, *sorted(r for r in radices[s] if r < size), size]
        if any(b % a for a, b in pairwise(chain)):
            chain = [1, size]
        steps = chain[-2::-1]
        meanings[s] = steps
        sizes += [b // a for a, b in zip(steps, [size, *steps], strict=False)]
    if len(sizes) == len(over):
        return over, Substitution({})
    axes = tuple(index(f"i{n}", size) for n, size in enumerate(sizes))
    places = iter(axes)
    images: dict[Symbol, Expr] = {s: sum((next(places) * n for n in meanings[s]), start=as_expr(0)) for s in over}
    return axes, Substitution(images)


class BlockWriter:
    """Emits the block program, through the builder that all levels share."""

    def __init__(self, lanes: int | None = None, opened: Collection[Symbol] = (), limits: Limits | None = None) -> None:
        """`lanes` are those of a wave, which meet after each operation on memory that they share; None: there is one
        thread. `opened` are the sizes that a call tells. `limits` tell which rows meet in a cache; None: none do."""
        self.lanes, self.opened, self._limits = lanes, frozenset(opened), limits
        self._endless = Substitution({s: symbol(s.name, 1) for s in opened})
        self._builder = Builder(BLOCK)
        self.blocks = self._builder.blocks
        self.loc: Any = None
        """The author's line that the operations come from."""
        self._names: dict[str, int] = {}
        self.home: Home | None = None
        """The register layout of values between MMAs; None: they are in memory."""
        self.loops: list[tuple[Symbol, Block]] = []
        """The loops around, from the outermost: their variables and bodies."""

    def fresh(self, name: str) -> str:
        """Return a name that nothing has yet; characters that cannot stand in a name become `_`.

        >>> w = BlockWriter()
        >>> [w.fresh(name) for name in ("v", "v", "v_1", "v", "t_2*M + 1")]
        ['v', 'v_1', 'v_1_1', 'v_2', 't_2_M_1']
        """
        name = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "v"
        candidate, count = name, self._names.get(name, 0)
        while candidate in self._names or _AXIS.fullmatch(candidate):
            count += 1
            candidate = f"{name}_{count}"
        self._names[name] = count
        self._names.setdefault(candidate, 0)
        return candidate

    def emit(
        self, spec_name: str, operands: tuple[Value, ...] = (), blocks: tuple[Block, ...] = (), **attrs: Any
    ) -> Op:
        """Append an operation to the open block, and a barrier if lanes share memory that it touches; return the
        operation.
        """
        attributes = {name: value for name, value in attrs.items() if value is not None}
        op = self._builder.emit(spec_name, operands, attributes, blocks=blocks, loc=self.loc)
        if self.lanes is not None and spec_name not in ("view", "bitcast") and any(map(_is_shared, operands)):
            self._builder.emit("barrier", loc=self.loc)
        return op

    def room(self, size: Size) -> Expr:
        """Return the extent that a tensor needs for a dimension of a size: the most that a part may have, or all of an
        open one.
        """
        e = as_expr(size)
        limit = self._endless(e).hi
        return e if e.is_constant or (limit == inf and e.symbols <= self.opened) else as_expr(int(min(limit, e.hi)))

    def alloc(
        self,
        dtype: DType,
        sizes: Sequence[Size],
        name: str,
        swizzle: Swizzle | None = None,
        strides: Sequence[int] | None = None,
    ) -> Value:
        """Return new shared memory; if sizes are open, it may be larger than they say (see `part`)."""
        room = tuple(map(self.room, sizes))
        steps = tuple(map(as_expr, strides)) if strides else self._strides(dtype, room) if swizzle is None else None
        kind = TensorType("shared", dtype, room, steps, swizzle)
        value = self.emit("alloc", type=kind).result
        value.name = self.fresh(name)
        return value

    def _strides(self, dtype: DType, sizes: Sequence[Expr]) -> tuple[Expr, ...] | None:
        """Return strides that avoid cache conflicts between rows; None if packed rows have none.

        A cache finds a line by the low bits of its address: of rows whose pitch is a multiple of a page, it holds only
        as many as it has ways, and a block of the accumulator reads more.
        """
        *outer, last = [e.value for e in sizes if isinstance(e, Const)] or [1]
        limits = self._limits
        if limits is None or self.lanes is not None or len(outer) + 1 < len(sizes) or prod(outer) < 2:
            return None
        if limits.conflict_bytes is None or last * dtype.bits % (8 * limits.conflict_bytes):
            return None
        return packed(tuple(map(as_expr, (*outer, last + 8 * limits.line_bytes // dtype.bits))))

    def register(self, dtype: DType, name: str) -> Value:
        """Return a single number in a register, the same for all threads."""
        return self._held(dtype, (), Distribution(layout=Layout((self.lanes or 1, 1), (0, 0))), name)

    def _held(self, dtype: DType, sizes: Sequence[int], spread: Distribution, name: str) -> Value:
        """Return registers of threads with the distribution `spread`."""
        value = self.emit("alloc", type=RegisterType(dtype, tuple(map(as_expr, sizes)), spread)).result
        value.name = self.fresh(name)
        return value

    def part(self, tensor: Value, sizes: Sequence[Size]) -> Value:
        """Return a view of the first `sizes` elements along each dimension."""
        over = self.axes(sizes)
        return self.view(tensor, over, [(s, False) for s in over])

    def registers(
        self, dtype: DType, sizes: Sequence[int], operand: str, name: str, waves: tuple[int, int] = (1, 1)
    ) -> Value:
        """Return registers in the layout of an atom's operand; `waves` is (groups of waves along rows, along
        columns).
        """
        groups = None if waves == (1, 1) else (as_expr(waves[0]), as_expr(waves[1]))
        return self._held(dtype, sizes, Distribution(operand=operand, waves=groups), name)

    def dealt(self, dtype: DType, sizes: Sequence[int], name: str) -> Value:
        """Return registers in the layout of values between MMAs."""
        spread = None if self.home is None else self.home.distribution(tuple(sizes))
        assert spread is not None
        return self._held(dtype, sizes, spread, name)

    def vectors(self, dtype: DType, sizes: Sequence[int], layout: Layout, name: str) -> Value:
        """Return registers that lanes share by a layout (lane, value) -> element."""
        return self._held(dtype, sizes, Distribution(layout=layout), name)

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        """Append operations to `block` within this context."""
        self.blocks.append(block)
        try:
            yield
        finally:
            self.blocks.pop()

    @contextmanager
    def loop(
        self,
        name: str,
        count: Expr | int,
        first: Expr | int = 0,
        *,
        unroll: bool = False,
        peel: tuple[int, int] | None = None,
        kept: bool = False,
    ) -> Iterator[Expr]:
        """Emit a loop from `first` up to `count`, and yield its variable; one iteration has no loop, unless `kept`."""
        if not kept and as_expr(count) - first is as_expr(1):
            yield as_expr(first)
            return
        loop_range = Range.of(self.fresh(name), first, count)
        inner = Block(())
        self.loops.append((loop_range.symbol, inner))
        with self.inside(inner):
            yield loop_range.symbol
        self.loops.pop()
        ends = None if peel is None else tuple(map(as_expr, peel))
        self.emit("for", ranges=(loop_range,), unroll=unroll or None, peel=ends, blocks=(inner,))

    @contextmanager
    def before(self, expressions: Collection[Expr]) -> Iterator[None]:
        """Emit operations within this context before the loops on which `expressions` do not depend."""
        used = {s for e in expressions for s in e.symbols}
        outer = self.blocks[-1]
        for symbol_, body in reversed(self.loops):
            if body is not outer or symbol_ in used:
                break
            outer = self.blocks[self.blocks.index(outer) - 1]
        with self.inside(outer):
            yield

    def combine(
        self, name: str, source: Value, target: Value, along: int, how: str, *, accumulate: bool = False
    ) -> None:
        """Emit a reduction or a scan along dimension `along`; with `accumulate`, the target's elements are combined
        too.
        """
        attrs: dict[str, Any] = {"along": along, "with": how, "accumulate": accumulate or None}
        self.emit(name, (source, target), (), **attrs)

    def axes(self, sizes: Sequence[Size]) -> tuple[Symbol, ...]:
        """Return symbols for the coordinates of an operation."""
        return tuple(index(f"i{n}", size) for n, size in enumerate(sizes))

    def view(self, tensor: Value, over: tuple[Symbol, ...], at: Sequence[tuple[Expr, bool]]) -> Value:
        """Return a view of a tensor; the tensor itself if the view is the same.

        A register tensor with one element per row is broadcast; any other is copied to memory first.
        """
        sizes = tuple(s.upper + 1 for s in over if s.upper is not None)
        if sizes == tensor.type.shape and all(e is s and not loose for (e, loose), s in zip(at, over, strict=True)):
            return tensor
        if isinstance(tensor.type, RegisterType) and self._is_row(tensor, over, at, sizes):
            wide = self.dealt(tensor.type.dtype, [int(n) for n in sizes], f"{tensor.name}_wide")
            self.emit("broadcast", (tensor, wide), along=1)
            return wide
        if isinstance(tensor.type, RegisterType):  # a part of it is looked at in memory: registers stay registers
            held = self.alloc(tensor.type.dtype, [int(n) for n in tensor.type.shape], f"{tensor.name}_held")
            self.emit("copy", (tensor, held))
            tensor = held
        value = self.emit("view", (tensor,), over=over, at=tuple(at)).result
        value.name = self.fresh(f"{tensor.name}_view")
        return value

    def columns(self, held: Value, over: tuple[Symbol, ...], row: Expr, column: Expr) -> Value:
        """Return a view of some columns of a tensor in registers, which stays in registers."""
        part = self.emit("view", (held,), over=over, at=((row, False), (column, False))).result
        part.name = self.fresh("columns")
        return part

    def _is_row(
        self, tensor: Value, over: tuple[Symbol, ...], at: Sequence[tuple[Expr, bool]], sizes: tuple[Expr, ...]
    ) -> bool:
        """True if a register tensor with an element for each row is viewed along rows and columns."""
        if self.home is None or len(over) != 2 or len(at) != 1 or at[0][0] is not over[0]:
            return False
        wanted = tuple(e.value for e in sizes if isinstance(e, Const))
        return tensor.type.shape == sizes[:1] and self.home.distribution(wanted) is not None

    def copy(
        self, tensor: Value, over: tuple[Symbol, ...], at: Sequence[tuple[Expr, bool]], target: Value, otherwise: float
    ) -> None:
        """Emit the copy of a tensor's elements to another over these axes; `otherwise` where they are out of bounds."""
        axes, images = split(over, [e for e, _ in at])
        source = self.view(tensor, axes, [(images(e), loose) for e, loose in at])
        goal = self.view(target, axes, [(images(s), False) for s in over])
        self.emit("copy", (source, goal), otherwise=otherwise)

    def viewed(self, source: Load, over: tuple[Symbol, ...], images: Substitution) -> Value:
        """Return a view of a load's elements over these axes; `images` gives each coordinate in them."""
        return self.view(source.tensor, over, [(images(e), False) for e in source.at])

    def map(self, target: Value, over: tuple[Symbol, ...], formula: Formula, images: Substitution) -> None:
        """Emit target = formula, element by element, over the axes; `images` gives each coordinate in them."""
        target = self.view(target, over, [(s, False) for s in over])
        held = [each for each in loads(formula) if isinstance(each.tensor.type, RegisterType)]
        whole = {s for each in held for e in each.at for s in images(e).symbols}  # registers are looked at whole
        single = {s: as_expr(0) for s in over if s.hi == 0 and s not in whole}
        if single and len(single) < len(over) and isinstance(target.type, TensorType):
            kept = [s for s in over if s not in single]  # which may be all axes of a tensor in registers
            axes = self.axes([extent(s) for s in kept])
            known = Substitution({**single, **dict(zip(kept, axes, strict=True))})
            goal = self.view(target, axes, [(known(s), False) for s in over])
            self.map(goal, axes, rewritten(formula, lambda e: known(images(e))), Substitution({}))
            return
        axes, digits = split(over, [images(e) for each in loads(formula) for e in each.at])
        if axes != over and isinstance(target.type, TensorType) and all(digits(s) in axes for s in whole):
            goal = self.view(target, axes, [(digits(s), False) for s in over])
            self.map(goal, axes, rewritten(formula, lambda e: digits(images(e))), Substitution({}))
            return
        places: dict[Load, int] = {}
        views: list[Value] = []
        for each in loads(formula):
            moved = Load(each.tensor, tuple(images(e) for e in each.at))
            if moved not in places:
                view = self.view(moved.tensor, over, [(e, False) for e in moved.at])
                if view not in views:
                    views.append(view)
                places[moved] = views.index(view) + 1
        if formula.name == "operand" and target.type.dtype is views[0].type.dtype:
            self.emit("copy", (views[0], target))
            return

        def numbered(each: Load) -> Formula:
            return Formula.operand(places[Load(each.tensor, tuple(map(images, each.at)))])

        numbered_formula = rewritten(formula, images, numbered)
        indexed = any(True for _ in numbered_formula.expressions())
        self.emit("map", (target, *views), over=over if indexed else None, formula=numbered_formula)
