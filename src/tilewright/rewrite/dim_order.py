"""Puts the dimensions of all tiles, and the operands of MMAs, in one order: that of results in memory.

    %3 = mma %k, %q, %acc : f32[M, B, N]              %3 = mma %q, %k, %acc : f32[B, M, N]
    write %3, %y                                      write %3, %y                            y is [B, M, N]

Dimensions go by name, so their order in a tile has no meaning, nor has the order of an MMA's operands. Planners and
lowerings take the last dimension of an accumulator as N: after this pass they give the same for every order.

Batch dimensions come first; then the order is that of the first result, then that of the arguments. Operand B of an MMA
is the one with N; an operand that is computed from another MMA is A, as MMAs take A from registers.

Programs without MMAs keep their order, except for reduced windows: vectors go along the last dimension of a tile, and
windows have few taps. So taps come first, and the dimension that is contiguous in the result comes last.

    %0 = read %x over=[p, q, r, s] at=[p + r, q + s]   %0 = read %x over=[r, s, p, q] at=[p + r, q + s]
    %1 = sum %0 dim=S                                  %1 = sum %0 dim=S                      y is [P, Q]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Block, Op, Program, TileType, Value, building
from tilewright.ir.tile import ELEMENTWISE, REDUCTIONS, TILE, accessed
from tilewright.ir.verifier import verify
from tilewright.rewrite.rewriter import Rewriter, places

BY_NAME = frozenset(
    {*ELEMENTWISE, *REDUCTIONS, "select", "not_", "cast", "fill", "scalar", "self_index", "broadcast", "permute"}
    | {"mma", "read", "write", "iterate", "yield"}
)
"""Operations for which the order of dimensions has no meaning."""


def in_dim_order(program: Program, free: Collection[Op], *, taps_first: bool = False) -> tuple[Program, Collection[Op]]:
    """Put the dimensions of all tiles in one common order; return (new program, counterparts of the loops `free` in
    it).

    Both are returned unchanged if an MMA is block-diagonal, or an operation depends on the order of dimensions. A
    program without MMAs is returned unchanged too, unless `taps_first` is true and it reduces windows: filter taps then
    come first. `free` holds the loops that give the same result for every tile size.

    >>> from tilewright.ir.tile import parse_tile
    >>> program = parse_tile('''tile product(%x: global f32[M, K], %w: global f32[N, K], %y: global f32[M, N])
    ...   symbols K, M, N
    ... {
    ...   %0 = fill value=0 : f32[N, M]
    ...   %1 = read %w : f32[N, K]
    ...   %2 = read %x : f32[M, K]
    ...   %3 = mma %1, %2, %0 : f32[N, M]
    ...   write %3, %y
    ... }''')
    >>> print(in_dim_order(program, ())[0].body.ops[3].result.type)
    f32[M, N]
    """
    products = [op for op in program.walk() if op.name == "mma"]
    if any(op.name not in BY_NAME or op.attrs.get("blocks") for op in program.walk()):
        return program, free
    taps = [] if products or not taps_first else _taps(program)
    if not (products or taps):
        return program, free
    ordered = _with_results(program) if products else {v for op in program.walk() for v in _values(op)}
    with building():
        rewrite = _InOrder(_positions(program, products, taps), ordered)
        rewritten = replace(program, body=rewrite.body(program.body))
        verify(rewritten)
    return rewritten, {rewrite.kept[op] for op in free if op in rewrite.kept}


def _taps(program: Program) -> list[Expr]:
    """Return a list of the dimensions of filter taps. In x[p + r], written over p, the tap is r.

    A tap is a dimension that no write has; a coordinate of a read uses its index together with that of a written
    dimension.
    """
    ops = list(program.walk())
    written = {d for op in ops if op.name == "write" for d in op.operands[0].type.dims}
    taps = dict[Expr, None]()
    for op in (op for op in ops if op.name == "read"):
        kind, over, at = places(op)
        for coordinate in at:
            window = [d for d, index in zip(kind.dims, over, strict=True) if index in coordinate.symbols]
            taps |= dict.fromkeys(d for d in window if d not in written and not written.isdisjoint(window))
    return list(taps)


def _values(op: Op) -> tuple[Value, ...]:
    """Return a tuple of the results of the operation `op` and the arguments of its blocks."""
    return (*op.results, *(arg for block in op.blocks for arg in block.args))


def _positions(program: Program, products: list[Op], taps: list[Expr]) -> dict[Expr, int]:
    """Return {dimension: its position in the common order}.

    First come `taps`, then dimensions that no memory has, then batch dimensions. The others follow in the order of the
    first result in memory, then of the arguments. `products` are the MMAs. If exactly one operand of an MMA is computed
    from another MMA, it must be A: the result's dimensions that only the other operand has (N) come last of all.
    """
    ops = list(program.walk())
    accesses = [op for op in ops if op.name in ("read", "write")]
    writes = [op for op in accesses if op.name == "write"]
    by_argument = [op for arg in program.args for op in accesses if accessed(op)[0] is arg]
    in_memory = list(dict.fromkeys(d for op in (*writes[:1], *by_argument) for d in _in_memory(op)))
    every = dict.fromkeys(d for op in ops for v in op.results if isinstance(v.type, TileType) for d in v.type.dims)
    batch = set[Expr]().union(*(set.intersection(*(set(v.type.dims) for v in op.operands)) for op in products))
    order = [d for d in every if d not in in_memory]
    order += sorted(in_memory, key=lambda d: d not in batch)
    order.sort(key=lambda d: d not in taps)
    computed = _computed(program)
    for op in products:
        a, b, acc = op.operands
        if (a in computed) != (b in computed):
            held, other = (a, b) if a in computed else (b, a)
            columns = [d for d in order if d in acc.type.dims and d in other.type.dims and d not in held.type.dims]
            order = [*(d for d in order if d not in columns), *columns]
    return {d: n for n, d in enumerate(order)}


def _in_memory(op: Op) -> list[Expr]:
    """Return a list of the dimensions of the tile of `op`, a read or write, in the order of its memory coordinates.

    A dimension counts once for each coordinate that uses its index.
    """
    kind, over, at = places(op)
    return [d for e in at for d, index in zip(kind.dims, over, strict=True) if index in e.symbols]


def _computed(program: Program) -> set[Value]:
    """Return the set of all results of MMAs and of the values computed from them.

    A loop with such a value has its results in the set, but not the arguments of its body (carried values).
    """
    computed: set[Value] = set()
    before = -1
    while before < len(computed):
        before = len(computed)
        for op in program.walk():
            inner = op.blocks[0].ops[-1].operands if op.name == "iterate" else ()
            if op.name == "mma" or not computed.isdisjoint((*op.operands, *inner)):
                computed |= set(op.results)
    return computed


def _with_results(program: Program) -> set[Value]:
    """Return the set of values that get the common order of dimensions.

    They are accumulators and results of MMAs, and all values that elementwise operations and loops combine with them.
    """
    ordered = {v for op in program.walk() if op.name == "mma" for v in (op.operands[2], *op.results)}
    before = -1
    while before < len(ordered):
        before = len(ordered)
        for op in program.walk():
            for values in _of_one_order(op):
                ordered |= values if not ordered.isdisjoint(values) else set()
    return ordered


def _of_one_order(op: Op) -> list[set[Value]]:
    """Return a list of sets of values. All values of a set must have the same order of dimensions, since `op` combines
    them.

    A loop has one set for each carried value. The list is empty for MMAs, reads, writes and yields.
    """
    if op.name == "iterate":
        (body,) = op.blocks
        operands = op.operands[len(op.operands) - len(op.results) :]
        return [set(x) for x in zip(operands, body.args, body.ops[-1].operands, op.results, strict=True)]
    if op.name in ("mma", "read", "write", "yield"):
        return []
    operands = op.operands[1:] if op.name == "select" else op.operands  # a condition has the order of coordinates
    return [{*operands, *op.results}]


class _InOrder(Rewriter):
    """Rewrites a program; values in `ordered` get their dimensions in the order of `positions`."""

    def __init__(self, positions: Mapping[Expr, int], ordered: Collection[Value]):
        super().__init__()
        self.positions, self.ordered = positions, ordered

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten form of each operation in the list `given` to `ops`.

        A permute with a result in the common order is left out. A permute is added behind another operation if its
        result has another order.
        """
        for op in given:
            if op.name == "permute" and op.result in self.ordered:
                self.values[op.result] = self.of(op.operands[0])
            else:
                self.kept[op] = self.op(op)
                ops.append(self.kept[op])
                ops += self._put_in_order(self.kept[op])

    def op(self, op: Op) -> Op:
        """Return the rewritten operation `op`: its results and its iterators `over` have the common order of
        dimensions.

        B of an MMA has N, the last dimension of the result that only one operand has; if that is A, operands are
        swapped.
        """
        blocks = []
        for block in op.blocks:
            args = self._new(block.args)
            blocks.append(self.body(Block(args, block.ops)))
        results, operands = self._new(op.results), tuple(map(self.of, op.operands))
        attrs = dict(op.attrs)
        if "to" in attrs:
            attrs["to"] = results[0].type.dims
        if "over" in attrs:
            index_of = dict(zip(accessed(op)[1].dims, attrs["over"], strict=True))
            tile = results[0].type if op.name == "read" else operands[0].type
            attrs["over"] = tuple(index_of[d] for d in tile.dims)
        if op.name == "mma":
            a, b, acc = operands
            free = [d for d in acc.type.dims if (d in a.type.dims) != (d in b.type.dims)]
            operands = (b, a, acc) if free and free[-1] in a.type.dims else operands
        return Op(op.spec, operands, attrs, results, tuple(blocks), op.loc)

    def _new(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """Return a tuple with a new value of the same name for each of `values`, and record {old: new} in
        `self.values`.

        A tile in `self.ordered` gets its dimensions in the common order; other types stay.
        """
        ordered = tuple(Value(self._type(v), v.name) for v in values)
        self.values |= dict(zip(values, ordered, strict=True))
        return ordered

    def _type(self, value: Value) -> object:
        """Return the type of the value that replaces `value`.

        A tile in `self.ordered` gets its dimensions in the common order; other types stay.
        """
        kind = value.type
        if value not in self.ordered or not isinstance(kind, TileType):
            return kind
        return TileType(kind.dtype, tuple(sorted(kind.dims, key=lambda d: self.positions[d])))

    def _put_in_order(self, op: Op) -> list[Op]:
        """Return [a permute to the common order] if `op`, a rewritten operation, computes its result in another order;
        else [].

        If so, `op` is changed in place: it gets a new result, which the permute reads. The permute has the previous
        result.
        """
        if op.spec.result_types is None or op.name == "iterate" or not op.results:
            return []
        (kind,) = op.spec.result_types(op)
        if kind == op.result.type:
            return []
        ordered, op.results = op.result, (Value(kind, op.result.name),)
        return [Op(TILE.ops["permute"], op.results, {"to": ordered.type.dims}, (ordered,), (), op.loc)]
