"""Replaces matrix-vector products by sums: an MMA without M or without N multiplies elements and adds them.

    %0 = read %x : bf16[K]                          %0 = read %x : bf16[K]
    %1 = read %w : bf16[N, K]                       %1 = read %w : bf16[N, K]
    %2 = mma %1, %0, %zero : f32[N]                 %2 = mul of both in f32 : f32[N, K]
                                                    %3 = sum %2 dim=(K) : f32[N]

Every element of the larger operand is used once, so that memory limits the kernel: lanes are fast enough, and the
rules for reductions split the sum over tasks and lanes as any other. On a CPU the larger operand must lie along K: an
MMA would transpose it first, at every launch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Block, Op, Program, TileType, Value, building, walk_block
from tilewright.ir.tile import TILE
from tilewright.ir.verifier import verify
from tilewright.rewrite.tile_between_gemms import without_k_loops

PLAIN = frozenset({"tag"})
"""Attributes of an MMA that do not change what it computes."""


def with_sums_of_terms(
    program: Program, free: Collection[Op], units: Collection[Expr] = ()
) -> tuple[Program, Collection[Op]] | None:
    """Return (program with an elementwise product and a sum in place of each matrix-vector MMA, counterparts of `free`
    in it).

    K loops that only add MMAs are removed. None if there is no MMA, if an MMA has both M and N or is in another loop,
    or if the program has constraints. `free` holds the loops that give the same result for every tile size. Dimensions
    in `units`, of extent 1, count neither as M nor as N.

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
    if not products or program.records or not all(_is_vector_product(op, units) for op in products):
        return None
    program, free = without_k_loops(program, free)
    ops = program.body.ops
    if any(op.name == "mma" and op not in ops for op in program.walk()):
        return None
    with building():
        summed: list[Op] = []
        values: dict[Value, Value] = {}
        copy_of_op: dict[Op, Op] = {}
        zeros = {op.result for op in ops if op.name == "fill" and op.attrs["value"] == 0}
        for op in ops:
            if op.name == "mma":
                operands = tuple(values.get(v, v) for v in op.operands)
                values[op.result] = _sum_of_terms(op, operands, zeros, summed, units)
            else:
                summed.append(_with_values(op, values, copy_of_op))
        used = {v for op in walk_block(Block((), summed)) for v in op.operands}
        rewritten = replace(program, body=Block(program.body.args, [op for op in summed if _is_used(op, used)]))
        verify(rewritten)
    return rewritten, {copy_of_op[op] for op in free}


def _with_values(op: Op, values: Mapping[Value, Value], kept: dict[Op, Op]) -> Op:
    """Return a copy of `op` with operands replaced by `values`, {value: replacement}, also in its blocks.

    The copy has the same results. Also record {operation: its copy} in `kept`.
    """
    blocks = tuple(Block(block.args, [_with_values(inner, values, kept) for inner in block.ops]) for block in op.blocks)
    kept[op] = Op(op.spec, tuple(values.get(v, v) for v in op.operands), op.attrs, op.results, blocks, op.loc)
    return kept[op]


def streams_rows_along_k(program: Program, constant: Collection[str], units: Collection[Expr]) -> bool:
    """True if each MMA of `program` is a matrix-vector product with a matrix that is read directly, contiguous along K.

    The matrix must be an argument that is not named in `constant`: a constant one is packed once, when it is bound.
    `units` are the dimensions of extent 1. True also if there is no MMA.
    """
    makers = {v: op for op in program.walk() for v in op.results}
    return all(_matrix_lies_along_k(op, makers, constant, units) for op in program.walk() if op.name == "mma")


def _matrix_lies_along_k(
    op: Op, makers: Mapping[Value, Op], constant: Collection[str], units: Collection[Expr]
) -> bool:
    """True if exactly one operand of the MMA `op` has M or N, and is read directly from an argument, contiguous along
    K.

    The argument must not be named in `constant`. `makers` is {value: operation that computes it}. Dimensions in `units`
    count as absent.
    """
    a, b, c = (set(v.type.dims) - set(units) for v in op.operands)
    matrices = [v for v, only in ((op.operands[0], a - b), (op.operands[1], b - a)) if only & c]
    if len(matrices) != 1 or (read := makers.get(matrices[0])) is None or read.name != "read":
        return False
    summed = (a & b) - c
    return "at" not in read.attrs and read.result.type.dims[-1] in summed and read.operands[0].name not in constant


def _is_vector_product(op: Op, units: Collection[Expr]) -> bool:
    """True if the MMA `op` lacks M or N or both, and has only attributes that do not change the result (`PLAIN`).

    The operands must have all dimensions of the result. Dimensions in `units` count as absent.
    """
    a, b, c = (set(v.type.dims) - set(units) for v in op.operands)
    return not ((a - b) & c and (b - a) & c) and (a | b) >= c and set(op.attrs) <= PLAIN


def _is_used(op: Op, used: Collection[Value]) -> bool:
    """True unless `op` is a constant (`fill` or `scalar`) with a result that is not in `used`, the values that are
    used.
    """
    return op.name not in ("fill", "scalar") or any(r in used for r in op.results)


def _sum_of_terms(
    op: Op, operands: tuple[Value, ...], zeros: Collection[Value], ops: list[Op], units: Collection[Expr]
) -> Value:
    """Append operations to `ops` that compute the MMA `op` as an elementwise product and a sum over K; return their
    result.

    `operands` replace the operands of the MMA. The accumulator is added unless it is in `zeros`, the values that are 0.
    `units` are dimensions of extent 1.
    """
    *multiplied, start = operands
    kind = op.result.type

    def add(name: str, of: tuple[Value, ...], dims: tuple[Expr, ...], **attrs: object) -> Value:
        """Append the operation called `name` on the values `of`, with the attributes `attrs`, to `ops`; return its
        result.

        The result is a tile with the dimensions `dims` and the element type of the MMA's result.
        """
        ops.append(Op(TILE.ops[name], of, attrs, (Value(TileType(kind.dtype, dims)),), loc=op.loc))
        return ops[-1].result

    widened = [
        v if v.type.dtype is kind.dtype else add("cast", (v,), v.type.dims, dtype=kind.dtype) for v in multiplied
    ]
    one, two = sorted(widened, key=lambda v: -len({*v.type.dims} - {*units}))
    dims = (*(d for d in two.type.dims if d not in one.type.dims), *one.type.dims)
    matrix = one if one.type.dims == dims else add("broadcast", (one,), dims, to=dims)
    total = add("mul", (matrix, two), dims)
    for dim in [d for d in reversed(total.type.dims) if d not in kind.dims]:
        total = add("sum", (total,), tuple(d for d in total.type.dims if d is not dim), dim=dim)
    if total.type.dims != kind.dims:
        total = add("permute", (total,), kind.dims, to=kind.dims)
    return total if start in zeros else add("add", (total, start), kind.dims)
