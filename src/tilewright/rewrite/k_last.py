"""Reads of MMA operands with a dimension of K as the last of memory: the layout of copies whose rows run along K.

    %x = read %x over=[n, p, q, c, r, s] at=[n, c, p + r - 1, q + s - 1] : bf16[N, P, Q, C, R, S]   the argument
    %x = read %x_rows over=[n, p, q, c, r, s] at=[n, p + r - 1, q + s - 1, c]                       the copy

A pipeline steps along K where memory is contiguous. If that is a window, or a few taps, a step has few elements.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from tilewright.ir.core import Op, Program, TileType, Value, building
from tilewright.ir.verifier import verify
from tilewright.rewrite.operand_copies import FactorCopy, Numbered, transposing_program, with_ops
from tilewright.rewrite.rewriter import places


def with_k_last(product: Op, reads: Sequence[Numbered]) -> list[Numbered] | str:
    """Return `reads` with the coordinate of a dimension of K moved last, as if the tensors were transposed; or text:
    why not.

    `reads` are the reads of the operands of the MMA `product`. The dimension is the longest of K with an index that
    alone is a coordinate in both reads, over a whole memory dimension. Text is returned also if it is last already.
    """
    one, two = (v.type.dims for v in product.operands[:2])
    summed = [d for d in one if d in two and d not in product.result.type.dims]
    plain = [d for d in summed if all(read.at.count(read.over[d]) == 1 and _is_alone(read, d) for read in reads)]
    if not plain:
        return "no dimension that is summed is a coordinate of its own in both factors"
    k = max(plain, key=lambda d: min(read.extent(d) for read in reads))
    places = [read.at.index(read.over[k]) for read in reads]
    if all(place == len(read.at) - 1 for place, read in zip(places, reads, strict=True)):
        return f"{k} is the last dimension of both factors"
    return [_moved_last(read, place) for read, place in zip(reads, places, strict=True)]


def _is_alone(read: Numbered, dim: object) -> bool:
    """True if exactly one coordinate of `read` uses the index of the dimension `dim`, and its memory dimension is as
    long.
    """
    index = read.over[dim]  # type: ignore[index]
    users = [n for n, e in enumerate(read.at) if index in e.symbols]
    return len(users) == 1 and read.shape[users[0]] == int(index.hi) + 1


def _moved_last(read: Numbered, place: int) -> Numbered:
    """Return `read` with coordinate number `place`, and its memory dimension, moved to the last position.

    If it is the last coordinate already, return `read` itself.
    """
    order = (*(n for n in range(len(read.at)) if n != place), place)
    if order == tuple(range(len(read.at))):
        return read
    return replace(read, at=tuple(read.at[n] for n in order), shape=tuple(read.shape[n] for n in order), order=order)


def with_tiles_k_last(program: Program, free: Collection[Op]) -> tuple[Program, Collection[Op]]:
    """Put the dimension that is contiguous in memory last in the tiles of both MMA operands.

    Return (new program, counterparts of the loops `free` in it). The program must have exactly one MMA, and its
    operands must be reads. `free` holds the loops that give the same result for every tile size.
    """
    (product,) = (op for op in program.walk() if op.name == "mma")
    makers, swapped = program.makers(), dict[Op, Op]()
    with building():
        for factor in product.operands[:2]:
            read = makers[factor]
            kind, over, at = places(read)
            order = sorted(range(len(over)), key=lambda n: over[n] in at[-1].symbols)
            attrs = {**read.attrs, "over": tuple(over[n] for n in order), "at": at}
            result = Value(TileType(kind.dtype, tuple(kind.dims[n] for n in order)), factor.name)
            swapped[read] = Op(read.spec, read.operands, attrs, (result,), loc=read.loc)
        copy_of_op: dict[Op, Op] = {}
        values = {op.result: other.result for op, other in swapped.items()}
        rewritten = replace(program, body=with_ops(program.body, swapped, values, copy_of_op))
        verify(rewritten)
    return rewritten, tuple(copy_of_op.get(op, op) for op in free)


def transposed_copy(program: Program, read: Numbered, name: str) -> FactorCopy:
    """Return the program that copies an operand to a new argument `name`, transposed, as a FactorCopy.

    The copy has the order of coordinates of `read`, which must be a result of `with_k_last` with a moved coordinate.
    The copy has at most three dimensions: the dimensions before the moved one, merged; those behind it, merged; and the
    moved one, last.
    """
    assert read.order is not None
    moved = read.order[-1]
    source_extents = [0] * len(read.shape)
    for n, extent in zip(read.order, read.shape, strict=True):
        source_extents[n] = extent
    extents = (prod(source_extents[:moved]), source_extents[moved], prod(source_extents[moved + 1 :]))
    words = (
        f"{read.source.name} is copied to {read.shape}, from {tuple(source_extents)}: "
        f"{read.shape[-1]} of K are contiguous"
    )
    return transposing_program(program, read.source, name, extents, (0, 2, 1), words)
