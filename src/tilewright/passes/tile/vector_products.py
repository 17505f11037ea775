"""Sums instead of matrix-vector products: an MMA without rows or without columns multiplies elements and adds them up.

    %0 = read %x : bf16[K]                          %0 = read %x : bf16[K]
    %1 = read %w : bf16[N, K]                       %1 = read %w : bf16[N, K]
    %2 = mma %1, %0, %zero : f32[N]                 %2 = mul of both in f32 : f32[N, K]
                                                    %3 = sum %2 dim=(K) : f32[N]

Every element of the larger operand is used once, so that memory bounds the product: lanes keep up with it, and the
planner of reductions splits it over tasks and lanes as any other sum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Block, Op, Program, TileType, Value, building, walk_block
from tilewright.ir.tile import TILE
from tilewright.ir.verifier import verify
from tilewright.passes.tile.looping import without_k_loops

PLAIN = frozenset({"tag"})
"""Attributes of an MMA that do not change what it computes."""


def with_sums_of_terms(program: Program, free: Collection[Op]) -> tuple[Program, Collection[Op]] | None:
    """Return (the program with a sum in place of each MMA, its free loops); None if an MMA has rows and columns, or if
    other loops have one.

    `free` are the loops with the same result for every tile size; those that only add MMAs are deleted.

    >>> from tilewright.ir.tile import parse_tile
    >>> program = parse_tile('''tile product(%x: global f32[K], %w: global f32[N, K], %y: global f32[N])
    ...   symbols K, N
    ... {
    ...   %0 = fill value=0 : f32[N]
    ...   %1 = read %x : f32[K]
    ...   %2 = read %w : f32[N, K]
    ...   %3 = mma %1, %2, %0 : f32[N]
    ...   write %3, %y
    ... }''')
    >>> for op in with_sums_of_terms(program, ())[0].walk():
    ...     print(op.name, *(v.type for v in op.results))
    read f32[K]
    read f32[N, K]
    mul f32[N, K]
    sum f32[N]
    write
    """
    products = [op for op in program.walk() if op.name == "mma"]
    if not products or program.records or not all(_is_vector_product(op) for op in products):
        return None
    program, free = without_k_loops(program, free)
    ops = program.body.ops
    if any(op.name == "mma" and op not in ops for op in program.walk()):
        return None
    with building():
        summed: list[Op] = []
        values: dict[Value, Value] = {}
        kept: dict[Op, Op] = {}
        zeros = {op.result for op in ops if op.name == "fill" and op.attrs["value"] == 0}
        for op in ops:
            if op.name == "mma":
                operands = tuple(values.get(v, v) for v in op.operands)
                values[op.result] = _sum_of_terms(op, operands, zeros, summed)
            else:
                summed.append(_with_values(op, values, kept))
        used = {v for op in walk_block(Block((), summed)) for v in op.operands}
        rewritten = replace(program, body=Block(program.body.args, [op for op in summed if _is_used(op, used)]))
        verify(rewritten)
    return rewritten, {kept[op] for op in free}


def _with_values(op: Op, values: Mapping[Value, Value], kept: dict[Op, Op]) -> Op:
    """Return an operation with the same results; `values` replace operands of it, and of the operations within.

    `kept` receives {operation: its new form}, also for the operations within.
    """
    blocks = tuple(Block(block.args, [_with_values(inner, values, kept) for inner in block.ops]) for block in op.blocks)
    kept[op] = Op(op.spec, tuple(values.get(v, v) for v in op.operands), op.attrs, op.results, blocks, op.loc)
    return kept[op]


def _is_vector_product(op: Op) -> bool:
    """True if an MMA has no rows or no columns, and adds in the type in which its operands are multiplied."""
    a, b, c = (set(v.type.dims) for v in op.operands)
    return not ((a - b) & c and (b - a) & c) and (a | b) >= c and set(op.attrs) <= PLAIN


def _is_used(op: Op, used: Collection[Value]) -> bool:
    """True if something uses a result of an operation, or it has none."""
    return op.name not in ("fill", "scalar") or any(r in used for r in op.results)


def _sum_of_terms(op: Op, operands: tuple[Value, ...], zeros: Collection[Value], ops: list[Op]) -> Value:
    """Append to `ops` the sum of products that the MMA `op` computes; return its result."""
    *factors, start = operands
    kind = op.result.type

    def add(name: str, of: tuple[Value, ...], dims: tuple[Expr, ...], **attrs: object) -> Value:
        ops.append(Op(TILE.ops[name], of, attrs, (Value(TileType(kind.dtype, dims)),), loc=op.loc))
        return ops[-1].result

    wide = [v if v.type.dtype is kind.dtype else add("cast", (v,), v.type.dims, dtype=kind.dtype) for v in factors]
    one, two = sorted(wide, key=lambda v: -len(v.type.dims))
    total = add("mul", (one, two), (*one.type.dims, *(d for d in two.type.dims if d not in one.type.dims)))
    for dim in [d for d in reversed(total.type.dims) if d not in kind.dims]:
        total = add("sum", (total,), tuple(d for d in total.type.dims if d is not dim), dim=dim)
    if total.type.dims != kind.dims:
        total = add("permute", (total,), kind.dims, to=kind.dims)
    return total if start in zeros else add("add", (total, start), kind.dims)
