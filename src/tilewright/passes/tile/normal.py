"""A contraction as a tile program over its digits: what the lowering of all programs takes.

    %acc = fill value=0 : f32[M, F]                         %acc = fill value=0 : f32[m_1, m_0, f_0]
    %y = iterate %acc axis=K ... {                          %x = read %x over=[m_1, m_0, k_1, k_0] at=[...]
      %x = read %x over=[i, k] at=[i//56 + k//192, ...]     %w = read %w over=[f_0, k_1, k_0] at=[...]
      ...                                                   %y = mma %x, %w, %acc

The loop is gone, the product sums over all digits of the depth; arguments have the shapes that accesses in digits
take, and the types that the contraction says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import number_or
from tilewright.ir.core import Block, MemoryType, Op, Program, TileType, Value, building
from tilewright.passes.places import Size
from tilewright.plan.contraction import Contraction, Operand, dimension


@dataclass(frozen=True)
class Normal:
    """The program of a contraction, the sizes of its dimensions, and the shapes of its arguments."""

    program: Program
    sizes: dict[Symbol, Size]
    shapes: dict[Value, tuple[Size, ...]]


def over_digits(c: Contraction, order: tuple[Symbol, ...]) -> Normal:
    """The program of a contraction, whose tiles have their digits in this order."""
    with building():
        return _Normal(c, order).run()


class _Normal:
    def __init__(self, c: Contraction, order: tuple[Symbol, ...]):
        assert c.program is not None
        self.program, self.c = c.program, c
        self.values: dict[Value, Value] = {}
        self.used = _used(c.program, c.accesses[2])
        self.operands = dict(zip(c.accesses, (c.a, c.b, c.out, *c.extras), strict=True))
        self.arguments: dict[tuple[str, bool], Value] = {}
        self.shapes: dict[Value, tuple[Size, ...]] = {}
        self.digits = {d: tuple(map(dimension, digits)) for dims, digits in c.over for d in dims}
        """For each dimension, what it is replaced by, perhaps together with others."""
        self.order: dict[Expr, Symbol] = {dimension(s): s for s in order}

    def run(self) -> Normal:
        """The program, its sizes, its arguments' shapes."""
        for operand in self.operands.values():
            self._argument(operand)
        body = Block(())
        self._block(self.program.body, body.ops)
        sizes = {dimension(s): number_or(s.upper + 1) for s in self.order.values() if s.upper is not None}
        made = replace(self.program, args=tuple(self.arguments.values()), body=body, records=[])
        return Normal(made, sizes, self.shapes)

    def _argument(self, operand: Operand) -> Value:
        """The argument that is an operand; B is one of its own: it is packed, whatever else reads the same tensor."""
        key = operand.name, operand is self.c.b
        if key not in self.arguments:
            self.arguments[key] = Value(MemoryType(operand.dtype, tuple(map(as_expr, operand.shape))), operand.name)
            self.shapes[self.arguments[key]] = operand.shape
        return self.arguments[key]

    def _block(self, block: Block, ops: list[Op]) -> None:
        for op in block.ops:
            if op not in self.used:
                continue
            if op.name != "iterate":
                ops.append(self._op(op))
                continue
            (inner,) = op.blocks
            self.values |= {arg: self.values[v] for arg, v in zip(inner.args, op.operands, strict=True)}
            self._block(Block((), inner.ops[:-1]), ops)
            self.values |= {r: self.values[v] for r, v in zip(op.results, inner.ops[-1].operands, strict=True)}

    def _op(self, op: Op) -> Op:
        attrs, operand = dict(op.attrs), self.operands.get(op)
        if "to" in attrs:
            attrs["to"] = self._over(attrs["to"])
        if operand is None:
            operands = [self.values[v] for v in op.operands]
            if op.name == "mma":
                operands[:2] = [self.values[self.c.accesses[n].result] for n in (0, 1)]
            kinds: list[object] = [self._type(r.type) for r in op.results]
        else:
            argument = self._argument(operand)
            operands = [self.values[v] for v in op.operands if v in self.values] + [argument]
            read = op.name == "read"
            dims = self._over(op.results[0].type.dims) if read else operands[0].type.dims
            kinds = [TileType(operand.dtype, dims)] if read else []
            attrs |= {"over": tuple(self.order[d] for d in dims), "at": operand.coordinates}
        results = tuple(Value(kind, r.name) for kind, r in zip(kinds, op.results, strict=True))
        self.values |= dict(zip(op.results, results, strict=True))
        return Op(op.spec, tuple(operands), attrs, results, (), op.loc)

    def _type(self, kind: object) -> object:
        return TileType(kind.dtype, self._over(kind.dims)) if isinstance(kind, TileType) else kind

    def _over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Dimensions as digits, in their order."""
        found = {s for d in dims for s in self.digits[d]}
        return tuple(s for s in self.order if s in found)


def _used(program: Program, write: Op) -> set[Op]:
    """The operations that what is written depends on."""
    made = {r: op for op in program.walk() for r in op.results}
    found: set[Op] = set()
    left = [write]
    while left:
        op = left.pop()
        if op not in found:
            found.add(op)
            left += [inner for block in op.blocks for inner in block.ops]
            left += [made[v] for v in op.operands if v in made]
    return found
