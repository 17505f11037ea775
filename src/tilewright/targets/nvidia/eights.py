"""ldmatrix and stmatrix: loads and stores of fragments that consist of 8x8 matrices in shared memory.

Lane i gives the address of row i % 8 of matrix i // 8. Without transposition, row r holds the values of lanes 4r to
4r + 3; with transposition (.trans), row r holds one value of each lane with lane % 4 == r // 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.algebra.expr import Expr
from tilewright.algebra.expr_use import Substitution, evaluate
from tilewright.analysis.flat_memory import swizzled
from tilewright.codegen.text import element
from tilewright.ir.core import Op

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter

LANES = 32


def form(e: Emitter, op: Op) -> tuple[bool, Any] | None:
    """Return (True if the matrices are transposed, offsets) for the fragment that `op` loads from or stores to shared
    memory. `offsets` is an array [lane, value] of distances in elements from the first element.

    Return None if ldmatrix and stmatrix cannot move the fragment. They can if it consists of aligned rows of eight
    contiguous 16-bit elements, distributed over 32 lanes as these instructions do, and `op` has no condition.
    """
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
    offset = place - begin
    if not offset.symbols <= set(axes) or begin.multiple % 8:
        return None
    lane, value = np.indices((LANES, count))
    offsets = np.broadcast_to(np.asarray(evaluate(offset, {axes[0].name: lane, axes[1].name: value})), lane.shape)
    plain = offsets[lane // 4 * 4, value // 2 * 2] + 2 * (lane % 4) + value % 2
    if (offsets == plain).all() and not (offsets[::4, ::2] % 8).any():
        return False, offsets
    transposed = offsets[lane % 4, value] + lane // 4
    if (offsets == transposed).all() and not (offsets[:4] % 8).any():
        return True, offsets
    return None


def row_place(op: Op, is_transposed: bool, first: int, matrices: int) -> Expr:
    """Return the offset in shared memory, after the swizzle, of the matrix row whose address a lane passes to ldmatrix
    or stmatrix. The offset is an expression of the lane, in elements. The instruction moves `matrices` matrices, which
    the lane holds from element number `first` on. `is_transposed` says that the matrices are transposed.
    """
    (lane, value), place = op.attrs["over"], op.attrs["at"][0]
    row, matrix = lane % 8, (lane // 8) % matrices
    position: dict[Any, Expr] = {
        lane: row // 2 if is_transposed else 4 * row,
        value: first + 2 * matrix + (row % 2 if is_transposed else 0),
    }
    return swizzled(op.operands[1].type.swizzle, Substitution(position)(place))


def _address(e: Emitter, op: Op, is_transposed: bool, first: int, matrices: int) -> str:
    """Emit the address in shared memory of the matrix row that this lane passes to the instruction, and return it, an
    i32. `is_transposed`, `first` and `matrices` are as for `row_place`.
    """
    e.w.names[op.attrs["over"][0]] = e.lane
    return e.address(op.operands[1], row_place(op, is_transposed, first, matrices), 2)


def _matrices_per_instruction(count: int) -> int:
    """Return how many 8 x 8 matrices (4, 2 or 1) one ldmatrix or stmatrix moves. `count` is the number of elements of
    the fragment that a lane holds, two for each matrix; it must be even. The result divides count / 2.
    """
    return next(n for n in (4, 2, 1) if count % (2 * n) == 0)


def load(e: Emitter, op: Op) -> bool:
    """Emit ldmatrix for the load `op` of a fragment from shared memory, and return True.

    Emit nothing and return False unless the fragment consists of aligned rows of eight contiguous 16-bit elements in
    memory, and the load has no condition. Rows may be rows or columns of the fragment; columns are loaded with
    `.trans`.
    """
    layout = form(e, op)
    if layout is None:
        return False
    register = op.operands[0]
    kind, count = element(register.type.dtype), e.values(register)
    matrices = _matrices_per_instruction(count)
    word = ".trans" if layout[0] else ""
    for first in range(0, count, 2 * matrices):
        address = _address(e, op, layout[0], first, matrices)
        results = ", ".join(f"${i}" for i in range(matrices))
        kinds = "{" + ", ".join(["i32"] * matrices) + "}" if matrices > 1 else "i32"
        text = f"ldmatrix.sync.aligned.m8n8.x{matrices}{word}.shared.b16 {{{results}}}, [${matrices}];"
        result = e.w.assembly(text, ",".join(["=r"] * matrices + ["r"]), (f"i32 {address}",), kinds)
        for i in range(matrices):
            bits = e.w.value(f"extractvalue {kinds} {result}, {i}") if matrices > 1 else result
            pair = e.w.value(f"bitcast i32 {bits} to <2 x {kind}>")
            for half in (0, 1):
                e.put(register, first + 2 * i + half, e.w.value(f"extractelement <2 x {kind}> {pair}, i32 {half}"))
    return True


def store(e: Emitter, op: Op) -> bool:
    """Emit stmatrix for the store `op` of a fragment to shared memory, and return True.

    Emit nothing and return False unless the fragment consists of aligned rows of eight contiguous 16-bit elements in
    memory, and the store has no condition. Rows may be rows or columns of the fragment; columns are stored with
    `.trans`.
    """
    layout = form(e, op)
    if layout is None:
        return False
    from tilewright.targets.nvidia.mma import words

    register = op.operands[0]
    count = e.values(register)
    matrices = _matrices_per_instruction(count)
    word = ".trans" if layout[0] else ""
    all_words = [text for _, text in words(e, register)]
    for first in range(0, count, 2 * matrices):
        address = _address(e, op, layout[0], first, matrices)
        inputs = ", ".join(f"${1 + i}" for i in range(matrices))
        text = f"stmatrix.sync.aligned.m8n8.x{matrices}{word}.shared.b16 [$0], {{{inputs}}};"
        its_words = all_words[first // 2 : first // 2 + matrices]
        e.w.assembly(text, ",".join(["r"] * (1 + matrices)), (f"i32 {address}", *(f"i32 {t}" for t in its_words)))
    return True
