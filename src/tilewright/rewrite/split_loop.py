"""Splits a loop whose carried values can be merged into two programs: parts of the loop, then their merge.

    %m, %x = iterate ... axis=(N) {            first: over [N_split, ...]         second, for each part n in order
      %h = max %s, %m0 dim=(N)                 the loop over N_part, from         m = max(start, m[0], m[1], ...)
      %y = mma %w, %v, %x0 * exp(%m0 - %h)     neutral values; writes m           x = sum of x[n] * exp(m[n] - m)
      yield %h, %y }                           and x of every part                the rest of the program

Each part starts from neutral values (0, or the lowest number), and the merge takes the values that the author starts
from. The last part may be shorter than the others: past the end of N the first program reads zeros, and a select gives
neutral numbers there. `plan/facts/loops` says which loops can be merged, and how.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Block, Op, Program, TileType, Value, building
from tilewright.ir.dtypes import DType, i32
from tilewright.ir.tile import REDUCTIONS, TILE
from tilewright.plan.facts.loops import MAXIMUM, RESCALED, StateMerge, merging_loop, state_merges
from tilewright.plan.facts.masking import neutral_values
from tilewright.rewrite.rewriter import Replacement, TwoPrograms, memory_between, needed, places, two_programs
from tilewright.rewrite.tile_between_gemms import LOWEST, with_tile

STATE = "partial_state"
NEUTRAL = {"sum": 0.0, "max": LOWEST, "min": -LOWEST}
"""{reduction: the number that a part starts from}; it is finite, so that a fully masked part gives no NaN."""


def split_loop_programs(program: Program, sizes: Mapping[Symbol, int], count: int, tile: int) -> TwoPrograms | str:
    """Return the program as a TwoPrograms that runs its loop in parts; or text: why the loop cannot be split.

    The first program runs the parts in parallel, and writes the carried values of each. The second merges them and does
    the rest. There are at most `count` parts, each a multiple of `tile` elements, which is also the tile size of the
    loop over a part. `sizes` is {dimension: extent}.
    """
    loop = merging_loop(program)
    if isinstance(loop, str):
        return loop
    axis, merges = loop.attrs["axis"], state_merges(loop)
    assert merges is not None
    extent = int(Substitution(dict(sizes))(axis))
    width = -(-extent // (count * tile)) * tile
    parts = -(-extent // width)
    if parts < 2:
        return f"{axis} is too short"
    neutral = neutral_values(loop) if parts * width != extent else {}
    if neutral is None:
        return f"{axis} ends within a part, and nothing there can be left out"
    makers = program.makers()
    inside = {op for v in _free_values(loop) if v in makers for op in needed(makers[v], makers)}
    with building():
        part = _LoopPart(axis, width, extent, neutral)
        ops: list[Op] = []
        for op in program.body.ops:
            if op in inside:
                part.add(op, ops)
        results = part.loop(loop, merges, ops).results
        names = [STATE if n == 0 else f"{STATE}{n + 1}" for n in range(len(results))]
        memories = [memory_between(program, name, result) for name, result in zip(names, results, strict=True)]
        rest = _Merge(loop, merges, memories, part.outer).replacement()
        stored, new = dict(zip(results, memories, strict=True)), {part.outer: parts, part.inner: width}
        split = two_programs(replace(program, records=[]), ("parts", ops), stored, rest, sizes, new, parts)
    if isinstance(split, str):
        return split
    return replace(split, first=with_tile(split.first, part.inner, tile))


def _free_values(loop: Op) -> set[Value]:
    """Return the set of values that operations in the body of `loop` use, and that are computed outside of the loop."""
    (body,) = loop.blocks
    computed = {*body.args, *(r for op in body.ops for r in op.results)}
    return {v for op in body.ops for v in op.operands if v not in computed}


class _LoopPart:
    """Rewrites operations over parts of `axis`: its index is width * index along `outer` + index along `inner`.

    Every tile that is read or filled gets the dimension `outer`, as its first. `neutral` maps values of the loop to the
    numbers that they get past the end of `axis`, after `extent` elements; {} if all parts are full.
    """

    def __init__(self, axis: Expr, width: int, extent: int, neutral: Mapping[Value, float]):
        self.axis, self.width, self.extent, self.neutral = axis, width, extent, neutral
        self.outer, self.inner = symbol(f"{axis}_split", 1), symbol(f"{axis}_part", 1)
        self.values: dict[Value, Value] = {}

    def loop(self, loop: Op, merges: Sequence[StateMerge], ops: list[Op]) -> Op:
        """Append to `ops` a loop over one part of `loop`, after fills that its carried values start from; return the
        new loop.

        `merges` has, for each carried value, how the values of parts merge. This determines the number that a part
        starts from: 0 for a sum, the lowest number for a maximum.
        """
        (body,) = loop.blocks
        args = tuple(Value(self._type(a.type), a.name) for a in body.args)
        self.values |= dict(zip(body.args, args, strict=True))
        inside: list[Op] = []
        for op in body.ops:
            self.add(op, inside)
        starts = [
            Op(TILE.ops["fill"], (), {"value": NEUTRAL[merge.reduction]}, (Value(arg.type),), loc=loop.loc)
            for merge, arg in zip(merges, args, strict=True)
        ]
        results = tuple(Value(arg.type) for arg in args)
        attrs = {**loop.attrs, "axis": self.inner}
        ops += starts
        ops.append(Op(loop.spec, tuple(op.result for op in starts), attrs, results, (Block(args, inside),), loop.loc))
        return ops[-1]

    def add(self, op: Op, ops: list[Op]) -> None:
        """Append the operation `op` to `ops`, rewritten over two dimensions in place of the split axis.

        They are `self.outer` (number of the part) and `self.inner` (index within the part). The results are recorded in
        `self.values`. A `self_index` along the split axis is computed from both indices. If a result is in
        `self.neutral`, a select is appended too, which gives the neutral number past the end of the axis.
        """
        if op.name == "self_index" and op.attrs["dim"] is self.axis:
            self.values[op.result] = self._position(op, op.result.type.dtype, ops)
            return
        attrs = dict(op.attrs)
        if op.name == "read":
            attrs |= self._access(op)
        if "to" in attrs:
            to = tuple(self.inner if d is self.axis else d for d in attrs["to"])
            has_parts = self.outer in self.of(op.operands[0]).type.dims
            attrs["to"] = (self.outer, *to) if has_parts or self.axis in attrs["to"] else to
        if op.name in REDUCTIONS and attrs["dim"] is self.axis:
            attrs["dim"] = self.inner
        operands = tuple(map(self.of, op.operands))
        if op.name in ("read", "fill"):
            types: tuple[object, ...] = (self._type(op.result.type),)
        else:
            assert op.spec.result_types is not None
            types = op.spec.result_types(Op(op.spec, operands, attrs, (), (), op.loc))
        rewritten = Op(op.spec, operands, attrs, tuple(map(Value, types)), (), op.loc)
        ops.append(rewritten)
        self.values |= dict(zip(op.results, rewritten.results, strict=True))
        for value in op.results:
            if value in self.neutral:
                self.values[value] = self._masked(rewritten, self.neutral[value], ops)

    def of(self, value: Value) -> Value:
        """Return the value that replaces `value` in the rewritten program; `value` itself if nothing replaces it."""
        return self.values.get(value, value)

    def _type(self, kind: TileType) -> TileType:
        """Return the tile type `kind` with `self.outer` as first dimension, and `self.inner` in place of the split
        axis.

        A type without dimensions is returned unchanged.
        """
        dims = tuple(self.inner if d is self.axis else d for d in kind.dims)
        return TileType(kind.dtype, (self.outer, *dims)) if dims else kind

    def _access(self, op: Op) -> dict[str, object]:
        """Return {"over": iterators, "at": memory coordinates} of the read `op` over the new dimensions.

        If parts may be short, a read along the split axis that states no value out of bounds gets "otherwise": 0 too.
        Return {} if the tile of `op` has no dimensions.
        """
        kind, over, at = places(op)
        if not kind.dims:
            return {}
        iterators = dict(zip(kind.dims, over, strict=True))
        first, within = symbol("at_part", 0), symbol("in_part", 0)
        images = Substitution({iterators[self.axis]: first * self.width + within} if self.axis in iterators else {})
        new = (first, *(within if d is self.axis else i for d, i in iterators.items()))
        ends = bool(self.neutral) and self.axis in iterators and "otherwise" not in op.attrs
        return {"over": new, "at": tuple(map(images, at)), **({"otherwise": 0} if ends else {})}

    def _position(self, op: Op, dtype: DType, ops: list[Op]) -> Value:
        """Append operations to `ops` that compute the index along the split axis; return their result.

        The index is part * width + index within the part. The result is a tile of type `dtype` over `self.outer` and
        `self.inner`. The operations get the source location of `op`.
        """
        index = TILE.ops["self_index"]
        outer, inner = (
            Op(index, (), {"dim": d, "dtype": dtype}, (Value(TileType(dtype, (d,))),), loc=op.loc)
            for d in (self.outer, self.inner)
        )
        width = _number(self.width, dtype, op)
        first = _applied("mul", (outer.result, width.result), op)
        ops += [outer, inner, width, first, _applied("add", (first.result, inner.result), op)]
        return ops[-1].result

    def _masked(self, op: Op, number: float, ops: list[Op]) -> Value:
        """Append operations to `ops` that select the result of `op` before the end of the split axis, and `number` past
        it.

        Return the result of the select.
        """
        position = self._position(op, i32, ops)
        end, past = _number(self.extent, i32, op), _number(number, op.result.type.dtype, op)
        inside = _applied("lt", (position, end.result), op)
        ops += [end, past, inside, _applied("select", (inside.result, op.result, past.result), op)]
        return ops[-1].result


@dataclass(frozen=True)
class _Merge:
    """The merge of the states (carried values) of a loop's parts; `cut` is the original loop.

    `memories` hold the states of all parts, the parts along the dimension `outer`.
    """

    cut: Op
    merges: Sequence[StateMerge]
    memories: Sequence[Value]
    outer: Symbol

    def replacement(self) -> Replacement:
        """Return a Replacement of the original loop: its operations read the carried values of all parts, and merge
        them.

        Maxima are merged first, since other carried values are rescaled by them. Parts are always combined in the same
        order.
        """
        ops: list[Op] = []
        states = [self._read(memory, ops) for memory in self.memories]
        merged: dict[int, Value] = {}
        for n in sorted(range(len(states)), key=lambda n: self.merges[n].kind != MAXIMUM):
            merge = self.merges[n]
            operands: tuple[Value, ...] = (states[n], self.cut.operands[n])
            if merge.kind == RESCALED:
                operands = (self._rescaled(states[n], states[merge.maximum], merged[merge.maximum], merge.power, ops),)
            elif merge.kind != MAXIMUM:
                operands = operands[:1]
            attrs = {"dim": self.outer, **({"acc": True} if len(operands) > 1 else {})}
            result = Value(self.cut.results[n].type)
            ops.append(Op(TILE.ops[merge.reduction], operands, attrs, (result,), loc=self.cut.loc))
            merged[n] = result
        return Replacement(self.cut, ops, tuple(merged[n] for n in range(len(states))))

    def _rescaled(self, term: Value, before: Value, after: Value, power: str, ops: list[Op]) -> Value:
        """Append operations to `ops` that compute term * power(before - after); return their result.

        `term` is a sum of each part, `before` the maximum of each part, `after` the maximum of all parts. `power` names
        the exponential: "exp" or "exp2".
        """
        difference = _applied("sub", (before, after), self.cut)
        factor = _applied(power, (difference.result,), self.cut)
        ops += [difference, factor, _applied("mul", (term, factor.result), self.cut)]
        return ops[-1].result

    def _read(self, memory: Value, ops: list[Op]) -> Value:
        """Append a read of all of `memory`, which has the values of all parts, to `ops`; return its result."""
        kind = TileType(memory.type.dtype, memory.type.dims)
        ops.append(Op(TILE.ops["read"], (memory,), {}, (Value(kind),), loc=self.cut.loc))
        return ops[-1].result


def _number(value: float, dtype: DType, op: Op) -> Op:
    """Return a `fill` operation with the number `value`: its result is a tile of type `dtype` without dimensions.

    It gets the source location of `op`.
    """
    return Op(TILE.ops["fill"], (), {"value": value}, (Value(TileType(dtype, ())),), loc=op.loc)


def _applied(name: str, operands: tuple[Value, ...], op: Op) -> Op:
    """Return the operation called `name` on `operands`, with inferred result types and the source location of `op`."""
    spec = TILE.ops[name]
    assert spec.result_types is not None
    types = spec.result_types(Op(spec, operands, {}, (), (), op.loc))
    return Op(spec, operands, {}, tuple(map(Value, types)), (), op.loc)
