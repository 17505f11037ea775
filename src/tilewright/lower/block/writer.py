"""Emits block programs: allocations, views, copies, maps, reductions and loops (`BlockWriter`)."""

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
from tilewright.analysis.flat_memory import Size
from tilewright.ir.attrs import Range
from tilewright.ir.block import BLOCK
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import Distribution, RegisterType, TensorType, packed
from tilewright.lower.block.lazy_tiles import Load, loads, rewritten
from tilewright.lower.block.register_layouts import FragmentLayout
from tilewright.machine import Limits

_AXIS = re.compile(r"i\d+")
"""Names of the iterators of block operations (`axes`): i0, i1, ..."""


def _is_shared(value: Value) -> bool:
    """True if `value` is a tensor in shared memory."""
    return isinstance(value.type, TensorType) and value.type.space == "shared"


def extent(axis: Symbol) -> Size:
    """Return the extent of the iterator `axis`, its upper bound plus 1: an int, or an expression of open sizes (known
    only at the call).
    """
    assert axis.upper is not None
    return number_or(axis.upper + 1)


def word(dim: Expr) -> str:
    """Return the dimension `dim` as a word for use in a name: M -> "M", and "d" for an expression such as 2*K."""
    text = str(dim)
    return text if text.isidentifier() else "d"


def split(over: tuple[Symbol, ...], expressions: Sequence[Expr]) -> tuple[tuple[Symbol, ...], Substitution]:
    """Return (new iterators, substitution of the iterators `over` by expressions of the new ones) so that `expressions`
    need no division.

    An iterator that some expression divides by n, or takes modulo n, is split into digits (mixed-radix parts of a flat
    index). Contiguous elements of a copy along a flat index are then recognised. Return `over` and the empty
    substitution if nothing is divided, or if no iterator can be split: it has an open extent, or its divisors do not
    divide each other.

    >>> i, j = index("i0", 4), index("i1", 36)
    >>> axes, images = split((i, j), [i + j // 12, j % 12])
    >>> axes, images(i + j // 12), images(j % 12)
    ((<i0>, <i1>, <i2>), <i0 + i1>, <i2>)
    """
    radices: dict[Symbol, set[int]] = {s: set() for s in over}
    for node in (n for e in expressions for n in e.divisions(set())):
        inner, divisor = node.parts
        quotient_of, inner_divisor = inner.parts if isinstance(inner, FloorDiv) else (inner, as_expr(1))
        if quotient_of in radices and isinstance(divisor, Const) and isinstance(inner_divisor, Const):
            radices[quotient_of].add(divisor.value * inner_divisor.value)
    sizes: list[Size] = []
    steps_of: dict[Symbol, list[int]] = {}
    for s in over:
        size = extent(s)
        if isinstance(size, Expr):
            steps_of[s] = [1]
            sizes.append(size)
            continue
        chain = [1, *sorted(r for r in radices[s] if r < size), size]
        if any(b % a for a, b in pairwise(chain)):
            chain = [1, size]
        steps = chain[-2::-1]
        steps_of[s] = steps
        sizes += [b // a for a, b in zip(steps, [size, *steps], strict=False)]
    if len(sizes) == len(over):
        return over, Substitution({})
    axes = tuple(index(f"i{n}", size) for n, size in enumerate(sizes))
    next_axis = iter(axes)
    images: dict[Symbol, Expr] = {s: sum((next(next_axis) * n for n in steps_of[s]), start=as_expr(0)) for s in over}
    return axes, Substitution(images)


class BlockWriter:
    """Emits the operations of a block program to the block that is open, through the builder of all levels."""

    def __init__(self, lanes: int | None = None, opened: Collection[Symbol] = (), limits: Limits | None = None) -> None:
        """`lanes` is the number of a workgroup's threads, which need a barrier after each operation on shared memory;
        None: there is one thread (a CPU). `opened` are the sizes known only at the call. `limits` has the cache sizes
        from which strides without cache conflicts follow; None: rows are packed."""
        self.lanes, self.opened, self._limits = lanes, frozenset(opened), limits
        self._endless = Substitution({s: symbol(s.name, 1) for s in opened})
        self._builder = Builder(BLOCK)
        self.blocks = self._builder.blocks
        self.loc: Any = None
        """The line of the author's source that emitted operations refer to."""
        self._names: dict[str, int] = {}
        self.fragment_layout: FragmentLayout | None = None
        """The register layout of values between MMAs; None: they are in memory."""
        self.loops: list[tuple[Symbol, Block]] = []
        """(variable, body) of the loops around the open block, outermost first."""

    def fresh(self, name: str) -> str:
        """Return `name`, or `name` with a number behind it, that this program does not use yet; the result counts as
        used from then on.

        Characters that cannot stand in a name become `_`. Names of iterators (i0, i1, ...) are never returned.

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
        """Append the operation called `spec_name` to the open block, and return it; attributes that are None are left
        out.

        If a workgroup has several threads (`self.lanes`) and an operand is in shared memory, a workgroup barrier is
        appended too, but not behind a view or bitcast.
        """
        attributes = {name: value for name, value in attrs.items() if value is not None}
        op = self._builder.emit(spec_name, operands, attributes, blocks=blocks, loc=self.loc)
        if self.lanes is not None and spec_name not in ("view", "bitcast") and any(map(_is_shared, operands)):
            self._builder.emit("barrier", loc=self.loc)
        return op

    def room(self, size: Size) -> Expr:
        """Return the extent to allocate for a dimension of `size` elements, as an expression: a constant if `size` is
        bounded.

        `min(N, 32)` gives 32. Open sizes (known only at the call) count as unbounded: N gives N.
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
        """Emit the allocation of a tensor in shared memory (on a CPU: the worker's own memory), and return the tensor.

        If a size is an expression, the tensor has room for the largest value; `part` gives a view of the size itself.
        `strides` are in elements; None: rows are packed, or padded against cache conflicts. `name` is made unique.
        """
        room = tuple(map(self.room, sizes))
        steps = tuple(map(as_expr, strides)) if strides else self._strides(dtype, room) if swizzle is None else None
        kind = TensorType("shared", dtype, room, steps, swizzle)
        value = self.emit("alloc", type=kind).result
        value.name = self.fresh(name)
        return value

    def _strides(self, dtype: DType, sizes: Sequence[Expr]) -> tuple[Expr, ...] | None:
        """Return strides, in elements, that pad each row of a tensor by a cache line; None if its rows stay packed.

        `sizes` are its extents. Rows are padded if their length is a multiple of `limits.conflict_bytes`: the same sets
        of the cache would hold all of them. They stay packed on machines with lanes, if there is only one row, or if an
        extent is not known.
        """
        *outer, last = [e.value for e in sizes if isinstance(e, Const)] or [1]
        limits = self._limits
        if limits is None or self.lanes is not None or len(outer) + 1 < len(sizes) or prod(outer) < 2:
            return None
        if limits.conflict_bytes is None or last * dtype.bits % (8 * limits.conflict_bytes):
            return None
        return packed(tuple(map(as_expr, (*outer, last + 8 * limits.line_bytes // dtype.bits))))

    def register(self, dtype: DType, name: str) -> Value:
        """Emit the allocation of one number in a register, with the same value in all threads; return the register."""
        return self._alloc_registers(dtype, (), Distribution(layout=Layout((self.lanes or 1, 1), (0, 0))), name)

    def _alloc_registers(self, dtype: DType, sizes: Sequence[int], distribution: Distribution, name: str) -> Value:
        """Emit the allocation of a register tensor of the extents `sizes` with the layout `distribution` over lanes;
        return the tensor. `name` is made unique.
        """
        value = self.emit("alloc", type=RegisterType(dtype, tuple(map(as_expr, sizes)), distribution)).result
        value.name = self.fresh(name)
        return value

    def part(self, tensor: Value, sizes: Sequence[Size]) -> Value:
        """Emit a view of the first sizes[n] elements of `tensor` along each dimension n, and return the view; return
        `tensor` itself if these are all.
        """
        over = self.axes(sizes)
        return self.view(tensor, over, [(s, False) for s in over])

    def registers(
        self, dtype: DType, sizes: Sequence[int], operand: str, name: str, waves: tuple[int, int] = (1, 1)
    ) -> Value:
        """Emit the allocation of a register tensor in the layout of an atom's operand, and return the tensor.

        `operand` names the atom and its operand a, b or c, as in "ATOM.c". `waves` is the grid of groups of waves that
        share the MMA: (groups along M, groups along N).
        """
        groups = None if waves == (1, 1) else (as_expr(waves[0]), as_expr(waves[1]))
        return self._alloc_registers(dtype, sizes, Distribution(operand=operand, waves=groups), name)

    def distributed(self, dtype: DType, sizes: Sequence[int], name: str) -> Value:
        """Emit the allocation of a register tensor in the layout of accumulators (`self.fragment_layout`), and return
        the tensor.

        This layout must exist and have a tile of these `sizes`; `name` is made unique.
        """
        distribution = None if self.fragment_layout is None else self.fragment_layout.distribution(tuple(sizes))
        assert distribution is not None
        return self._alloc_registers(dtype, sizes, distribution, name)

    def vectors(self, dtype: DType, sizes: Sequence[int], layout: Layout, name: str) -> Value:
        """Emit the allocation of a register tensor of the extents `sizes`, and return the tensor; `layout` maps (lane,
        register) to the number of an element.
        """
        return self._alloc_registers(dtype, sizes, Distribution(layout=layout), name)

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        """Context manager: operations that are emitted within it are appended to `block`."""
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
        """Context manager: emit a loop from `first` up to, and without, `count`, with the operations emitted within it
        as its body; yield the loop's variable.

        A single iteration gets no loop, unless `kept` is set: `first` is yielded. `name` is the variable's name. `peel`
        is (number of first iterations, number of last iterations) that are peeled.
        """
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
        """Context manager: operations emitted within it go in front of the loops around, as far out as `expressions`,
        on which they depend, allow.

        From the innermost loop outwards, a loop is left if its variable occurs in no expression. At the first other
        loop, and at a block that is no loop's body, such as a branch, the search ends.
        """
        used = {s for e in expressions for s in e.symbols}
        outer = self.blocks[-1]
        for variable, body in reversed(self.loops):
            if body is not outer or variable in used:
                break
            outer = self.blocks[self.blocks.index(outer) - 1]
        with self.inside(outer):
            yield

    def combine(
        self, name: str, source: Value, target: Value, along: int, function: str, *, accumulate: bool = False
    ) -> None:
        """Emit the operation `name` ("reduce" or "scan") of `source` along its dimension number `along`, into `target`.

        `function` is the combining function, such as "sum". With `accumulate`, the result is combined with the elements
        of `target`; otherwise it replaces them.
        """
        attrs: dict[str, Any] = {"along": along, "with": function, "accumulate": accumulate or None}
        self.emit(name, (source, target), (), **attrs)

    def axes(self, sizes: Sequence[Size]) -> tuple[Symbol, ...]:
        """Return a tuple of new iterators i0, i1, ... of an operation; iterator n runs over 0..sizes[n]-1."""
        return tuple(index(f"i{n}", size) for n, size in enumerate(sizes))

    def view(self, tensor: Value, over: tuple[Symbol, ...], at: Sequence[tuple[Expr, bool]]) -> Value:
        """Emit a view of `tensor` over the iterators `over`, and return the view; return `tensor` itself if the view
        would be the same.

        `at` has (coordinate, True if it may be out of bounds) for each dimension of the tensor. A register tensor
        cannot be viewed in part: it is copied to shared memory first. But if it has one element per row, and the view
        repeats these along columns, it is broadcast in registers.
        """
        sizes = tuple(s.upper + 1 for s in over if s.upper is not None)
        if sizes == tensor.type.shape and all(
            e is s and not may_leave for (e, may_leave), s in zip(at, over, strict=True)
        ):
            return tensor
        if isinstance(tensor.type, RegisterType) and self._is_row(tensor, over, at, sizes):
            broadcast = self.distributed(tensor.type.dtype, [int(n) for n in sizes], f"{tensor.name}_wide")
            self.emit("broadcast", (tensor, broadcast), along=1)
            return broadcast
        if isinstance(tensor.type, RegisterType):  # parts of registers have no view: copy them to memory
            held = self.alloc(tensor.type.dtype, [int(n) for n in tensor.type.shape], f"{tensor.name}_held")
            self.emit("copy", (tensor, held))
            tensor = held
        value = self.emit("view", (tensor,), over=over, at=tuple(at)).result
        value.name = self.fresh(f"{tensor.name}_view")
        return value

    def columns(self, held: Value, over: tuple[Symbol, ...], row: Expr, column: Expr) -> Value:
        """Emit a view of some columns of the register tensor `held`, and return the view; unlike `view`, it stays in
        registers.

        `over` are the view's iterators; `row` and `column` are the coordinates in `held`, as expressions of `over`.
        """
        part = self.emit("view", (held,), over=over, at=((row, False), (column, False))).result
        part.name = self.fresh("columns")
        return part

    def _is_row(
        self, tensor: Value, over: tuple[Symbol, ...], at: Sequence[tuple[Expr, bool]], sizes: tuple[Expr, ...]
    ) -> bool:
        """True if a view repeats the register tensor `tensor`, one element per row, along columns: a view over (m, n)
        at [m].

        `over` must be two iterators, with the extents `sizes`; the first extent must be the tensor's only one. `at`,
        [(coordinate, True if it may be out of bounds)], must have one coordinate, the first iterator itself. The
        register layout `self.fragment_layout` must exist, and have a tile of these extents.
        """
        if self.fragment_layout is None or len(over) != 2 or len(at) != 1 or at[0][0] is not over[0]:
            return False
        shape = tuple(e.value for e in sizes if isinstance(e, Const))
        return tensor.type.shape == sizes[:1] and self.fragment_layout.distribution(shape) is not None

    def copy(
        self, tensor: Value, over: tuple[Symbol, ...], at: Sequence[tuple[Expr, bool]], target: Value, otherwise: float
    ) -> None:
        """Emit a copy of elements of `tensor` to all of `target`.

        `over` are iterators over the coordinates of `target`. `at` has (coordinate, True if it may be out of bounds)
        for each dimension of `tensor`, as expressions of `over`. `otherwise` is stored where an element is out of
        bounds.
        """
        axes, images = split(over, [e for e, _ in at])
        source = self.view(tensor, axes, [(images(e), may_leave) for e, may_leave in at])
        goal = self.view(target, axes, [(images(s), False) for s in over])
        self.emit("copy", (source, goal), otherwise=otherwise)

    def viewed(self, source: Load, over: tuple[Symbol, ...], images: Substitution) -> Value:
        """Emit a view of the elements that `source` loads, over the iterators `over`, and return the view.

        `images` replaces the coordinate symbols of the load by expressions of `over`. The tensor of `source` itself is
        returned if it has the same elements in the same order.
        """
        return self.view(source.tensor, over, [(images(e), False) for e in source.at])

    def map(self, target: Value, over: tuple[Symbol, ...], formula: Formula, images: Substitution) -> None:
        """Emit target = formula, element by element, over the iterators `over`; `images` replaces the formula's
        coordinate symbols by expressions of `over`.

        A formula that is one load of the same type becomes a copy. Iterators of extent 1 are dropped, and iterators
        that a load's coordinate divides are split, if no register tensor needs them.
        """
        target = self.view(target, over, [(s, False) for s in over])
        register_loads = [each for each in loads(formula) if isinstance(each.tensor.type, RegisterType)]
        # register tensors cannot be viewed in part, so that their axes stay
        register_axes = {s for each in register_loads for e in each.at for s in images(e).symbols}
        single = {s: as_expr(0) for s in over if s.hi == 0 and s not in register_axes}
        if single and len(single) < len(over) and isinstance(target.type, TensorType):
            longer = [s for s in over if s not in single]
            axes = self.axes([extent(s) for s in longer])
            known = Substitution({**single, **dict(zip(longer, axes, strict=True))})
            goal = self.view(target, axes, [(known(s), False) for s in over])
            self.map(goal, axes, rewritten(formula, lambda e: known(images(e))), Substitution({}))
            return
        axes, digits = split(over, [images(e) for each in loads(formula) for e in each.at])
        if axes != over and isinstance(target.type, TensorType) and all(digits(s) in axes for s in register_axes):
            goal = self.view(target, axes, [(digits(s), False) for s in over])
            self.map(goal, axes, rewritten(formula, lambda e: digits(images(e))), Substitution({}))
            return
        operand_number: dict[Load, int] = {}
        views: list[Value] = []
        for each in loads(formula):
            moved = Load(each.tensor, tuple(images(e) for e in each.at))
            if moved not in operand_number:
                view = self.view(moved.tensor, over, [(e, False) for e in moved.at])
                if view not in views:
                    views.append(view)
                operand_number[moved] = views.index(view) + 1
        if formula.name == "operand" and target.type.dtype is views[0].type.dtype:
            self.emit("copy", (views[0], target))
            return

        def numbered(each: Load) -> Formula:
            """Return the formula of the map operand that stands for the load `each`."""
            return Formula.operand(operand_number[Load(each.tensor, tuple(map(images, each.at)))])

        numbered_formula = rewritten(formula, images, numbered)
        indexed = any(True for _ in numbered_formula.expressions())
        self.emit("map", (target, *views), over=over if indexed else None, formula=numbered_formula)
