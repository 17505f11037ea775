"""Patches: a dimension that is counted in digits, cut into boxes of them instead of runs of neighbours.

    %3 = read %x over=[n, p, q, r, s, c] at=[n, p + r - 1, q + s - 1, c] : bf16[M_2, M_1, M_0, K_2, K_1, K_0]
    %3 = read %x over=[t, i, r, s, c] at=[2*(t//49) + i//64, ..., 8*(t%7) + i%8 + s - 1, c] : bf16[M_box, M_in, ...]

The digits become two dimensions: which patch, and which element of it. Where a box does not divide a digit, patches at
the end go past it: what is read there is zero, and nothing is stored. Elements of a patch lie close together along all
digits, so what a product reads around them overlaps most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Block, Op, Program, TileType, Value, building
from tilewright.ir.verifier import verify


@dataclass(frozen=True)
class Patched:
    """A program over patches: the dimension that counts them, the one within, and the sizes of both."""

    program: Program
    outer: Symbol
    inner: Symbol
    sizes: dict[Symbol, int]


def in_patches(
    program: Program,
    sizes: Mapping[Symbol, int],
    name: str,
    digits: Sequence[Symbol],
    box: Sequence[int],
    lines: tuple[int, int] | None = None,
) -> Patched:
    """The program whose dimension `name` is counted by these digits, which stand side by side, cut into such boxes.

    `lines` are how many elements the last two digits take together, and how far lines lie apart there: elements run on
    from line to line, and those between lines, and behind the last, are no digits'.

    >>> from tilewright.ir.tile import parse_tile
    >>> tile = parse_tile('''tile moved(%x: global f32[P, Q], %y: global f32[P, Q])
    ...   symbols P, Q, p, q
    ... {
    ...   %0 = read %x over=[p, q] at=[p, q] : f32[P, Q]
    ...   write %0, %y over=[p, q] at=[p, q]
    ... }''')
    >>> digits = tile.args[0].type.dims
    >>> print(in_patches(tile, dict(zip(digits, (6, 10))), "M", digits, (2, 4)).program.body.ops[0].attrs["at"])
    (<2*(at_box//3) + at_in//4>, <4*(at_box%3) + at_in%4>)
    """
    counts = [-(-sizes[d] // n) for d, n in zip(digits, box, strict=True)]
    dims = symbol(f"{name}_box", 1), symbol(f"{name}_in", 1)
    inside = prod(box) if lines is None else prod(box[:-2]) * lines[0]
    t, i = symbol("at_box", 0, prod(counts) - 1), symbol("at_in", 0, inside - 1)
    which, within = _digits(t, counts), _digits(i, box)
    if lines is not None:
        each, pitch = lines
        *outer, row = _digits(i, (*box[:-2], each))
        within = [*outer, row // pitch, row % pitch]
    places = {d: n * a + b for d, n, a, b in zip(digits, box, which, within, strict=True)}
    ragged = lines is not None or any(sizes[d] % n for d, n in zip(digits, box, strict=True))
    with building():
        made = _Patches(tuple(digits), dims, (t, i), places, ragged)
        body = Block(program.body.args)
        made.values = {arg: arg for arg in program.args}
        made.block(program.body, body.ops)
        found = replace(program, body=body)
        verify(found)
    return Patched(found, *dims, dict(zip(dims, (prod(counts), inside), strict=True)))


class _Patches:
    """The program written again, operation by operation."""

    def __init__(
        self,
        digits: tuple[Symbol, ...],
        dims: tuple[Symbol, Symbol],
        over: tuple[Symbol, Symbol],
        places: Mapping[Symbol, Expr],
        ragged: bool,
    ):
        self.digits, self.dims, self.over, self.places, self.ragged = digits, dims, over, places, ragged
        self.values: dict[Value, Value] = {}

    def block(self, block: Block, ops: list[Op]) -> None:
        """The operations of a block, appended."""
        for op in block.ops:
            ops.append(self.op(op))

    def op(self, op: Op) -> Op:
        """An operation on what stands for its operands."""
        blocks = []
        for block in op.blocks:
            args = tuple(Value(self._type(a.type), a.name) for a in block.args)
            self.values |= dict(zip(block.args, args, strict=True))
            made = Block(args)
            self.block(block, made.ops)
            blocks.append(made)
        results = tuple(Value(self._type(r.type), r.name) for r in op.results)
        attrs = dict(op.attrs)
        if op.name in ("read", "write"):
            attrs |= self._access(op)
        if op.name in ("broadcast", "permute"):
            attrs["to"] = self._patched(attrs["to"], self.dims)
        operands = tuple(self.values[v] for v in op.operands)
        self.values |= dict(zip(op.results, results, strict=True))
        return Op(op.spec, operands, attrs, results, tuple(blocks), op.loc)

    def _type(self, kind: object) -> object:
        return TileType(kind.dtype, self._patched(kind.dims, self.dims)) if isinstance(kind, TileType) else kind

    def _patched(self, dims: tuple[Expr, ...], two: tuple[Symbol, Symbol]) -> tuple[Expr, ...]:
        """Two dimensions in place of the digits."""
        return tuple(x for d in dims for x in (two if d is self.digits[0] else () if d in self.digits else (d,)))

    def _access(self, op: Op) -> dict[str, object]:
        """Where a read or write goes; past the end of a digit zeros are read."""
        kind: TileType = op.results[0].type if op.name == "read" else op.operands[0].type
        if self.digits[0] not in kind.dims:
            return {}
        own = dict(zip(kind.dims, op.attrs["over"], strict=True))
        images = Substitution({own[d]: e for d, e in self.places.items()})
        first = own[self.digits[0]]
        gone = {own[d] for d in self.digits}
        over = tuple(x for s in op.attrs["over"] for x in (self.over if s is first else () if s in gone else (s,)))
        zero = {"otherwise": 0} if self.ragged and op.name == "read" and "otherwise" not in op.attrs else {}
        return {"over": over, "at": tuple(map(images, op.attrs["at"])), **zero}


def _digits(flat: Symbol, extents: Sequence[int]) -> list[Expr]:
    """The digits of a number, the last fastest."""
    after = [prod(extents[n + 1 :]) for n in range(len(extents))]
    return [flat // a % n if k else flat // a for k, (a, n) in enumerate(zip(after, extents, strict=True))]
