"""Windows of one element: a summed dimension of extent 1 has the index 0, and coordinates leave it out.

    %x = read %x over=[n, c, p, q, r, s] at=[n, c, p + r, q + s] : bf16[N, C, P, Q, R, S]     R = S = 1
    %x = read %x over=[n, c, p, q, r, s] at=[n, c, p, q] : bf16[N, C, P, Q, R, S]

Coordinates that are one index each tell that memory has dimensions behind each other, which may then be merged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.algebra.expr import ZERO, Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import Size
from tilewright.ir.core import Op, Program, building
from tilewright.ir.verifier import verify
from tilewright.rewrite.rewriter import Rewriter, places


def without_unit_taps(
    program: Program, sizes: Mapping[Symbol, Size], free: Collection[Op]
) -> tuple[Program, Collection[Op]]:
    """Replace by 0 the indices of dimensions of extent 1 that an MMA sums, such as the taps of a 1x1 convolution.

    Return (new program, counterparts of the loops `free` in it). The coordinate p + r becomes p; a coordinate is
    changed only if it has another index too. If no coordinate of a read changes, both are returned unchanged. `sizes`
    is {dimension: extent}. `free` holds the loops that give the same result for every tile size.
    """
    summed = {
        d
        for op in program.walk()
        if op.name == "mma"
        for d in op.operands[0].type.dims
        if sizes.get(d) == 1 and d in op.operands[1].type.dims and d not in op.result.type.dims
    }
    with building():
        rewrite = _WithoutTaps(summed)
        if not any(rewrite.access(op) for op in program.walk() if op.name == "read"):
            return program, free
        body = rewrite.body(program.body)
        verify(rewritten := replace(program, body=body))
    return rewritten, {rewrite.kept[op] for op in free if op in rewrite.kept}


class _WithoutTaps(Rewriter):
    """Rewrites a program: in coordinates that are sums, the indices of the dimensions `summed` become 0."""

    def __init__(self, summed: Collection[Expr]):
        super().__init__()
        self.summed = summed

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return `dims` unchanged: tiles keep their dimensions."""
        return dims

    def access(self, op: Op) -> Mapping[str, object]:
        """Return {"at": memory coordinates} of the read or write `op`, with 0 in place of the indices of `self.summed`.

        Coordinates with one index stay. Return {} if nothing changes.
        """
        if "at" not in op.attrs:
            return {}
        kind, over, at = places(op)
        zero = Substitution({s: ZERO for d, s in zip(kind.dims, over, strict=True) if d in self.summed})
        changed = tuple(zero(e) if len(e.symbols.intersection(over)) > 1 else e for e in at)
        return {} if changed == at else {"at": changed}
