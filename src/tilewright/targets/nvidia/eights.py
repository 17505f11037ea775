"""ldmatrix and stmatrix: loads and stores of fragments that are rows of 8x8 matrices in shared memory.

Lane i gives the address of row i % 8 of matrix i // 8. Of a matrix that lies as its fragment, the row is that of the
lanes 4r, 4r + 1, ...; of one that is turned, the row is that of the values which lanes t have for every g.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.algebra.expr import Expr
from tilewright.algebra.expr_use import Substitution, evaluate
from tilewright.codegen.text import element
from tilewright.ir.core import Op
from tilewright.passes.places import swizzled

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter

LANES = 32


def form(e: Emitter, op: Op) -> tuple[bool, Any] | None:
    """(whether the matrices are turned, how far each [lane, value] is from the first), where rows of eight lie so."""
    register, memory = op.operands
    kind = memory.type
    if kind.space != "shared" or kind.dtype.bits != 16 or "when" in op.attrs or e.lanes != LANES:
        return None
    if kind.swizzle is not None and kind.swizzle.base < 3:
        return None
    count = e.values(register)
    axes, place = op.attrs["over"], op.attrs["at"][0]
    if len(axes) != 2 or count % 2:
        return None
    begin = Substitution({axes[0]: 0, axes[1]: 0})(place)
    moved = place - begin
    if not moved.symbols <= set(axes) or begin.multiple % 8:
        return None
    lane, value = np.indices((LANES, count))
    found = np.broadcast_to(np.asarray(evaluate(moved, {axes[0].name: lane, axes[1].name: value})), lane.shape)
    plain = found[lane // 4 * 4, value // 2 * 2] + 2 * (lane % 4) + value % 2
    if (found == plain).all() and not (found[::4, ::2] % 8).any():
        return False, found
    turned = found[lane % 4, value] + lane // 4
    if (found == turned).all() and not (found[:4] % 8).any():
        return True, found
    return None


def row_place(op: Op, turned: bool, first: int, matrices: int) -> Expr:
    """Where the row begins that a lane gives, of matrices that follow one another as values; after the swizzle."""
    (lane, value), place = op.attrs["over"], op.attrs["at"][0]
    row, matrix = lane % 8, (lane // 8) % matrices
    at: dict[Any, Expr] = {
        lane: row // 2 if turned else 4 * row,
        value: first + 2 * matrix + (row % 2 if turned else 0),
    }
    return swizzled(op.operands[1].type.swizzle, Substitution(at)(place))


def _address(e: Emitter, op: Op, turned: bool, first: int, matrices: int) -> str:
    e.w.names[op.attrs["over"][0]] = e.lane
    return e.address(op.operands[1], row_place(op, turned, first, matrices), 2)


def _matrices(count: int) -> int:
    return next(n for n in (4, 2, 1) if count % (2 * n) == 0)


def load(e: Emitter, op: Op) -> bool:
    """Loads a fragment by ldmatrix; False where it does not lie so."""
    found = form(e, op)
    if found is None:
        return False
    register = op.operands[0]
    kind, count = element(register.type.dtype), e.values(register)
    matrices = _matrices(count)
    word = ".trans" if found[0] else ""
    for first in range(0, count, 2 * matrices):
        address = _address(e, op, found[0], first, matrices)
        outs = ", ".join(f"${i}" for i in range(matrices))
        kinds = "{" + ", ".join(["i32"] * matrices) + "}" if matrices > 1 else "i32"
        text = f"ldmatrix.sync.aligned.m8n8.x{matrices}{word}.shared.b16 {{{outs}}}, [${matrices}];"
        result = e.w.assembly(text, ",".join(["=r"] * matrices + ["r"]), (f"i32 {address}",), kinds)
        for i in range(matrices):
            bits = e.w.value(f"extractvalue {kinds} {result}, {i}") if matrices > 1 else result
            pair = e.w.value(f"bitcast i32 {bits} to <2 x {kind}>")
            for half in (0, 1):
                e.put(register, first + 2 * i + half, e.w.value(f"extractelement <2 x {kind}> {pair}, i32 {half}"))
    return True


def store(e: Emitter, op: Op) -> bool:
    """Stores a fragment by stmatrix; False where it does not lie so."""
    found = form(e, op)
    if found is None:
        return False
    from tilewright.targets.nvidia.mma import words

    register = op.operands[0]
    count = e.values(register)
    matrices = _matrices(count)
    word = ".trans" if found[0] else ""
    every = [text for _, text in words(e, register)]
    for first in range(0, count, 2 * matrices):
        address = _address(e, op, found[0], first, matrices)
        given = ", ".join(f"${1 + i}" for i in range(matrices))
        text = f"stmatrix.sync.aligned.m8n8.x{matrices}{word}.shared.b16 [$0], {{{given}}};"
        taken = every[first // 2 : first // 2 + matrices]
        e.w.assembly(text, ",".join(["r"] * (1 + matrices)), (f"i32 {address}", *(f"i32 {t}" for t in taken)))
    return True
