"""The canonical form of a program, as facts: programs that mean the same give equal facts.

- Dimensions with one element are dropped.
- Dimensions that accesses divide are split into digits, so that coordinates are linear.
- Loops that only accumulate are dissolved into reductions; loops that carry a monoid say how their states merge. A
  softmax between products has such a loop, whether or not it is written.
- Equal reads are one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

from tilewright.algebra.expr import Expr, FloorDiv, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution, linear_form, number_or
from tilewright.ir.core import Block, MemoryType, Op, Program, TileType, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.tile import REDUCTIONS, accessed
from tilewright.plan.boxes import WRITES, cut_dims, numbers_of
from tilewright.plan.contraction import chain
from tilewright.plan.facts.access import AccessFacts, Dims, LinearForm
from tilewright.plan.facts.graph import Facts
from tilewright.plan.facts.loops import MAXIMUM, RESCALED, LoopFacts, monoid_of
from tilewright.plan.facts.online_softmax import OnlineSoftmax, online_softmax
from tilewright.plan.facts.values import STATE, ValueFacts
from tilewright.plan.fixed import tiles_of, wave_parts
from tilewright.plan.general import ALIKE, dims_of
from tilewright.plan.model import element_bytes

Digits = tuple[tuple[str, int, int], ...]
"""(name, stride, extent) of each digit of a dimension, outermost first."""


def facts_of(
    program: Program,
    sizes: Mapping[Symbol, int],
    free: Collection[Op],
    opened: Mapping[Expr, Expr] | None = None,
    *,
    logs: bool = False,
    in_order: bool = False,
) -> Facts:
    """Analyse a program for the planner: return Facts, the graph of its tile values in canonical form.

    Programs of equal meaning give equal graphs. Dimensions of extent 1 are dropped, divided dimensions are split into
    digits (mixed-radix parts), loops that only accumulate become reductions, and equal reads are merged.

    `sizes` maps size symbols to numbers. `opened` maps each size known only at the call to an expression of the symbols
    that a call binds; `sizes` then has typical numbers. `free` are the loops whose tile size does not change the
    result. With `logs`, results of debug_log are kept. With `in_order`, the grid may split no dimension: one task
    computes all elements in order.
    """
    builder = _Builder(program, sizes, free, opened or {})
    grid_dims = () if in_order else cut_dims(program, builder.size, logs, builder.opened)
    return replace(builder.facts(grid_dims), logs=logs, in_order=in_order)


def digits_of(program: Program, sizes: Mapping[Symbol, int], free: Collection[Op]) -> dict[Expr, Digits]:
    """Return {dimension i: its digits} for dimensions that accesses such as [i//56, i%56] split into digits.

    Digits are mixed-radix parts, each (name, stride, extent), outermost first: [i//56, i%56] with 3136 elements gives
    (("i_1", 56, 56), ("i_0", 1, 56)). `sizes` maps size symbols to numbers. A dimension is left out if
    - it occurs in an operation that depends on the coordinate (such as a reduction, a scan or a gather),
    - it is the axis of a loop that is not in `free` (the loops whose tile size does not change the result),
    - its extent is not in `sizes`, or no access divides it,
    - accesses use only its quotients, or divide a sum with its index, as in (i + 1)//2,
    - its divisors cannot be ordered so that each divides the next.
    """
    numbers = Substitution(sizes)
    stuck: set[Expr] = {op.attrs["axis"] for op in program.walk() if op.name == "iterate" and op not in free}
    for op in program.walk():
        if op.name not in ALIKE or op.attrs.get("lookups") or op.attrs.get("bounds"):
            stuck |= {d for v in (*op.operands, *op.results) if isinstance(v.type, TileType) for d in v.type.dims}
    split: dict[Expr, Digits] = {}
    for dim in dims_of(program):
        if dim in stuck or dim not in sizes:
            continue
        radices: set[int | Expr] = set()
        for op in program.walk():
            if op.name in ("read", "write"):
                radices |= _divisors(op, dim, numbers)
        if not any(_takes_remainder(op, dim, numbers) for op in program.walk() if op.name in ("read", "write")):
            continue  # only quotients are used: neighbours along it read one element
        ends = chain(radices, sizes[dim])  # type: ignore[index]
        if ends is not None and len(ends) > 2:
            steps = [(int(as_expr(a)), int(as_expr(b)) // int(as_expr(a))) for a, b in pairwise(ends)][::-1]
            count = len(steps)
            split[dim] = tuple((f"{dim}_{count - 1 - n}", step, extent) for n, (step, extent) in enumerate(steps))
    return split


def _takes_remainder(op: Op, dim: Expr, numbers: Substitution) -> bool:
    """True if a memory coordinate of the read or write `op` has a remainder of the index of `dim`, as in i % 56.

    False if `op` has only quotients (i // 56), does not divide the index, or has no explicit coordinates. `numbers(e)`
    replaces the sizes in an expression e by numbers.
    """
    tile = accessed(op)[1]
    if "at" not in op.attrs or dim not in tile.dims:
        return False
    index = dict(zip(tile.dims, op.attrs["over"], strict=True))[dim]
    nodes = (n for e in op.attrs["at"] for n in numbers(e).divisions(set()))
    return any(index in n.symbols and not isinstance(n, FloorDiv) for n in nodes)


def _divisors(op: Op, dim: Expr, numbers: Substitution) -> set[int | Expr]:
    """Return the numbers at which the read or write `op` splits the index i of `dim` into digits (mixed-radix parts).

    Both i//56 and i%56 give {1, 56}, and (i//7) % 8 gives {1, 7, 56}. The set is empty if `op` does not divide i. It is
    {0}, a mark for "cannot be split", if `op` divides anything other than i or i//constant, such as i + 1, or if a
    divisor is not constant. `numbers(e)` replaces the sizes in an expression e by numbers.
    """
    tile = accessed(op)[1]
    if "at" not in op.attrs or dim not in tile.dims:
        return set()
    index = dict(zip(tile.dims, op.attrs["over"], strict=True))[dim]
    divisors: set[int | Expr] = set()
    for node in (n for e in op.attrs["at"] for n in numbers(e).divisions(set()) if index in n.symbols):
        inner, by = node.parts
        whole: Expr = as_expr(1)
        if isinstance(inner, FloorDiv):
            inner, whole = inner.parts
        if inner is not index or by.symbols or whole.symbols:
            return {0}
        divisors |= {int(by * whole), int(whole)}
    return divisors


class _Builder:
    """Builds the graph of a program in one pass: a node for each of its tile values."""

    def __init__(
        self, program: Program, sizes: Mapping[Symbol, int], free: Collection[Op], opened: Mapping[Expr, Expr]
    ):
        self.program, self.sizes, self.free, self.opened = program, sizes, free, opened
        self._number = numbers_of(sizes)
        self.split = digits_of(program, sizes, free)
        self.tasks, self.tiles = tiles_of(program, sizes)
        self.nodes: list[ValueFacts] = []
        self.node_of: dict[Value, int] = {}
        self.loops: dict[str, LoopFacts] = {}
        self.extents: dict[str, int] = {}
        self.equal_reads: dict[tuple[AccessFacts, Dims], int] = {}
        self.read_ops: dict[Op, int] = {}

    def size(self, e: Expr) -> int:
        """Return the number of elements along the dimension `e`; 1 if a symbol in `e` has no number.

        The axis of a while loop is a symbol without a number.
        """
        return self._number(e) if e.symbols <= self.sizes.keys() else 1

    def facts(self, grid_dims: tuple[Expr, ...]) -> Facts:
        """Build the graph of the program and return it as Facts (the analysed program); a builder is used only once.

        `grid_dims` are the dimensions that the grid may split. Those with more than one element become `parallel` in
        the Facts; a dimension that accesses divide is listed there by its digits (mixed-radix parts).
        """
        self._add_block(self.program.body)
        parallel = [name for d in grid_dims for name in self._digit_names(d) if name in self.extents]
        digits = {str(d): tuple(name for name, _, _ in digits) for d, digits in self.split.items()}
        loops = {axis: loop for axis, loop in self.loops.items() if axis in self.extents} | self._online_loops()
        return Facts(
            self.program.name,
            self.extents,
            tuple(self.nodes),
            loops,
            tuple(parallel),
            digits,
            tuple(d for d in dims_of(self.program) if d in self.sizes),
            grid_dims,
            self.program,
            self.sizes,
            self.tasks,
            self.tiles,
            wave_parts(self.program, self.sizes),
            self.opened,
            read_ops=self.read_ops,
        )

    def _online_loops(self) -> dict[str, LoopFacts]:
        """Return {dimension: LoopFacts} of loops that the program does not have but could have, for online softmaxes.

        Along such a dimension the program computes a whole softmax between MMAs. A loop could compute it tile by tile.
        The result is {} if the program has fewer than two MMAs. A dimension is left out if it has one element, is split
        into digits, has a loop already, or has a size known only at the call.
        """
        ops = self.program.body.ops
        dims = dict.fromkeys(op.attrs["dim"] for op in ops if op.name == "max" and self._has_several_mmas())
        online = [d for d in dims if d not in self.opened and str(d) in self.extents and str(d) not in self.loops]
        softmax_dims = [d for d in online if isinstance(online_softmax(self.program, d), OnlineSoftmax)]
        return {str(d): LoopFacts(str(d), f"{MAXIMUM}+{RESCALED}", None) for d in softmax_dims}

    def _has_several_mmas(self) -> bool:
        """True if the program has more than one MMA."""
        return sum(n.op == "mma" for n in self.nodes) > 1

    def _digit_names(self, dim: Expr) -> tuple[str, ...]:
        """Return the names of the digits (mixed-radix parts) of `dim`, outermost first; its own name if not split."""
        return tuple(name for name, _, _ in self.split[dim]) if dim in self.split else (str(dim),)

    def _canonical_dims(self, dims: Collection[Expr]) -> Dims:
        """Return the set of names of `dims`, a tile's dimensions in the program, as the graph names them.

        A dimension that accesses divide is replaced by its digits (mixed-radix parts). Extents of 1 are left out. Also
        store the extent of each returned name in `self.extents`.
        """
        names = set()
        for dim in dims:
            digits = self.split.get(dim) or ((str(dim), 1, self.size(dim)),)
            for name, _, extent in digits:
                if extent > 1:
                    self.extents[name] = extent
                    names.add(name)
        return frozenset(names)

    def _add_node(self, op: str, dims: Dims, dtype: DType, args: tuple[int, ...] = (), **more: Any) -> int:
        """Add a node (a value of the graph) and return its number; a read that equals an earlier read gets no new node.

        For an equal read, return the earlier node's number. `op` is the name of the node's operation, `dims` are its
        dimensions, `dtype` is its element type, `args` are the node numbers of its operands, and `more` has further
        fields of ValueFacts. A gather (a read with operands) is never merged.
        """
        key = (more["access"], dims) if op == "read" and not args else None
        if key is not None and key in self.equal_reads:
            return self.equal_reads[key]
        self.nodes.append(ValueFacts(len(self.nodes), op, dims, dtype, args, **more))
        if key is not None:
            self.equal_reads[key] = self.nodes[-1].id
        return self.nodes[-1].id

    def _add_block(self, block: Block) -> tuple[int, ...]:
        """Add nodes (values of the graph) for the operations of a block, in order, up to its yield.

        Return the node numbers of the operands of the yield; () if the block has no yield. Loops in the block are added
        too.
        """
        for op in block.ops:
            if op.name == "yield":
                return tuple(self.node_of[v] for v in op.operands)
            if op.name == "iterate":
                self._add_loop(op)
            elif op.name == "read" or op.name in WRITES:
                self._add_access(op)
            else:
                self._add_computation(op)
        return ()

    def _add_access(self, op: Op) -> None:
        """Add a node (a value of the graph) for the read, write or atomic update `op`; equal reads share one node.

        An atomic update becomes a node "write". Also record the node of the results in `self.node_of`, and the node of
        a read in `self.read_ops`.
        """
        memory, tile, looked_up = accessed(op)
        dims = self._canonical_dims(tile.dims)
        args = tuple(self.node_of[v] for v in looked_up if v in self.node_of)
        if op.name != "read":
            args = (self.node_of[op.operands[0]], *args)
        kind = "read" if op.name == "read" else "write"
        node = self._add_node(kind, dims, memory.type.dtype, args, access=self._access_facts(op), source=op)
        self.node_of |= dict.fromkeys(op.results, node)
        if op.name == "read":
            self.read_ops[op] = node

    def _add_computation(self, op: Op) -> None:
        """Add a node (a value of the graph) for `op`, an operation that is no read, write, loop or yield.

        The node says which dimensions `op` reduces, and which loops carry a value that it depends on. Also record the
        node of the results in `self.node_of`. If the first result of `op` is no tile, or `op` has no result, nothing is
        added.
        """
        args = tuple(self.node_of[v] for v in op.operands if v in self.node_of)
        result = op.results[0].type if op.results else None
        if not isinstance(result, TileType):
            return
        dims, reduces = self._canonical_dims(result.dims), frozenset[str]()
        carried = frozenset().union(*(self.nodes[arg].carried for arg in args))
        if op.name in REDUCTIONS or op.name == "mma":
            reduces = frozenset().union(*(self.nodes[arg].dims for arg in args)) - dims
            carried -= reduces
        node = self._add_node(op.name, dims, result.dtype, args, reduces=reduces, carried=carried, source=op)
        self.node_of |= dict.fromkeys(op.results, node)

    def _add_loop(self, op: Op) -> None:
        """Add the operations in the body of the loop `op` to the graph, and record the nodes of the loop's results.

        The nodes are recorded in `self.node_of`. A loop in `self.free` has a result that does not depend on its tile
        size. It disappears: its body works on whole dimensions. For any other loop, each carried value gets a node (a
        value of the graph) of the operation "state", and `self.loops` gets a LoopFacts.
        """
        (body,) = op.blocks
        if op in self.free:
            self.node_of |= {arg: self.node_of[init] for arg, init in zip(body.args, op.operands, strict=True)}
            ends = self._add_block(body)
        else:
            axis = str(op.attrs["axis"])
            carried = self._canonical_dims((op.attrs["axis"],))
            states = []
            for arg in body.args:
                dims = self._canonical_dims(arg.type.dims)
                states.append(self._add_node(STATE, dims, arg.type.dtype, carried=carried, source=op))
                self.node_of[arg] = states[-1]
            ends = self._add_block(body)
            self.loops[axis] = LoopFacts(axis, monoid_of(op), self.tiles.get(axis), tuple(states), op)
        self.node_of |= dict(zip(op.results, ends, strict=True))

    # -- accesses ---------------------------------------------------------------------------------------------

    def _access_facts(self, op: Op) -> AccessFacts:
        """Return the AccessFacts of the read or write `op`: memory coordinates, shape, strides and bounds checks.

        If a coordinate is not linear, or depends on data (a gather), `linear` is False. A single coordinate, with every
        dimension of the tile that has more than one element, then stands for all coordinates.
        """
        memory, tile, _ = accessed(op)
        kind: MemoryType = memory.type
        shape = tuple(1 if d is None else self.size(d) for d in kind.sizes)
        strides = kind.strides or tuple(prod(shape[n + 1 :]) for n in range(len(shape)))
        forms = self._coordinates(op, tile, kind)
        linear = forms is not None
        if forms is None:
            all_dims = tuple((name, 1) for d in tile.dims for name in self._digit_names(d) if name in self.extents)
            forms = ((all_dims, 0),)
        coords, offsets = tuple(form for form, _ in forms), tuple(offset for _, offset in forms)
        leaves = "otherwise" in op.attrs or "bounds" in op.attrs
        name = memory.name or "memory"
        last = kind.sizes[-1] if kind.sizes else None
        names = {str(s) for s in last.symbols} if last is not None else set()
        is_open = not names.isdisjoint(str(s) for e in (*self.opened, *self.opened.values()) for s in e.symbols)
        return AccessFacts(
            name,
            element_bytes(kind.dtype),
            coords,
            shape,
            tuple(strides),
            leaves,
            linear,
            is_open,
            () if all(offset == 0 for offset in offsets) else offsets,
        )

    def _coordinates(
        self, op: Op, tile: TileType, kind: MemoryType
    ) -> tuple[tuple[LinearForm, int | Expr], ...] | None:
        """Return a pair (linear form, constant offset) for each memory coordinate of the read or write `op`.

        A linear form is a tuple of pairs (dimension, coefficient) that add up. The offset is an expression if only a
        call gives its number. Return None if a coordinate is not linear, or depends on data (a gather). `tile` is the
        type of the tile that is read or written, `kind` the type of the memory.
        """
        names: dict[Symbol, str] = {}

        def index_by_digits(dim: Expr) -> Expr:
            """Return the index of the dimension `dim` as an expression: the sum of stride * index over its digits.

            Digits are mixed-radix parts of the index. Each gets a new index symbol, which is recorded in `names`.
            Digits with one element are left out, as their index is 0.
            """
            digits = self.split.get(dim) or ((str(dim), 1, self.size(dim)),)
            total = as_expr(0)
            for name, step, extent in digits:
                if extent > 1:
                    digit_index = symbol(f"at_{len(names)}", 0, extent - 1)  # a name may be an expression of sizes
                    names[digit_index] = name
                    total = total + step * digit_index
            return total

        if "at" not in op.attrs:
            at = tuple(index_by_digits(d) for d in kind.dims)
        else:
            places = {iterator: index_by_digits(d) for d, iterator in zip(tile.dims, op.attrs["over"], strict=True)}
            images = Substitution({**self.sizes, **places})
            at = tuple(images(e) for e in op.attrs["at"])
        forms = [linear_form(e, list(names)) for e in at]
        if op.attrs.get("lookups") or any(
            form is None or any(not c.is_constant for c in form[0].values()) for form in forms
        ):
            return None
        return tuple(
            (tuple((names[s], int(c)) for s, c in form[0].items()), number_or(form[1]))
            for form in forms
            if form is not None
        )
