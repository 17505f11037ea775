"""wgmma as PTX text: descriptors of operands in shared memory, accumulators updated in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.algebra.expr import Const, Expr
from tilewright.algebra.expr_use import Substitution, evaluate
from tilewright.codegen.text import element
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Value
from tilewright.machine import MultiplyAtom
from tilewright.targets.nvidia.mma import words
from tilewright.targets.nvidia.multiply import NAMES

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter

SWIZZLE_128 = 1 << 62
ROWS = 8
"""Rows of 128 bytes after which the swizzle repeats."""


class Descriptor:
    """An operand in shared memory: its begin and its strides, in elements. `which` is "a" or "b".

    Rows of 128 bytes are contiguous, in groups of eight. With k fastest a row is one m or n, and groups are `groups`
    apart; with m or n fastest a row is one k, and slabs of 64 m or n are `slabs` apart.
    """

    def __init__(self, op: Op, atom: MultiplyAtom, which: str):
        axes, place = op.attrs[which], op.attrs[f"{which}_at"][0]
        outer, depth = axes if which == "a" else axes[::-1]
        self.begin = _substituted(place, {outer: 0, depth: 0})
        self.steps = (int(depth.hi) + 1) // atom.shape[2]
        size = atom.a.dtype.numpy.itemsize
        self.size, slab = size, 128 // size
        table = _offset_table(place - self.begin, outer, depth, int(outer.hi) + 1, atom.shape[2] * self.steps)
        self.transposed = "tb" in atom.name.split(".") if which == "b" else "ta" in atom.name.split(".")
        self.moves = [int(table[0, atom.shape[2] * k]) for k in range(self.steps)]
        first = table[:, : atom.shape[2]]
        i, k = np.indices(first.shape)
        if self.transposed:
            self.groups, self.slabs = slab * ROWS, int(first[slab, 0]) if len(first) > slab else 0
            wanted = slab * k + i % slab + self.slabs * (i // slab)
        else:
            self.groups, self.slabs = int(first[ROWS, 0]) if len(first) > ROWS else slab * ROWS, 0
            wanted = slab * (i % ROWS) + self.groups * (i // ROWS) + k
        if (first != wanted).any():
            raise ProgramError(
                f"{atom.name}: operand {which} does not lie in rows of 128 bytes, eight to a group, as the instruction "
                "reads it"
            )
        for k_step in range(self.steps):
            part = table[:, atom.shape[2] * k_step : atom.shape[2] * (k_step + 1)]
            if (part - self.moves[k_step] != first).any():
                raise ProgramError(f"{atom.name}: operand {which} is not laid out alike for all steps of k")

    def text(self, e: Emitter, memory: Value) -> str:
        """Emit the wgmma descriptor of the operand `memory` for the first k step, and return it, an i64. The descriptor
        of another k step is this number plus `offset(step)`.
        """
        address = e.address(memory, self.begin, self.size)
        field = e.w.value(f"and i32 {e.w.value(f'lshr i32 {address}, 4')}, 16383")
        wide = e.w.value(f"zext i32 {field} to i64")
        fixed = SWIZZLE_128 | (self.groups * self.size // 16) << 32 | max(1, self.slabs * self.size // 16) << 16
        return e.w.value(f"or i64 {wide}, {fixed}")

    def offset(self, step: int) -> int:
        """Return the number to add to the descriptor of the first k step for the k step with the number `step`, in
        units of 16 bytes.
        """
        return self.moves[step] * self.size // 16


def _substituted(e: Expr, values: dict[Any, int]) -> Expr:
    """Return the expression `e` with symbols replaced by numbers. `values` is {symbol: number}."""
    return Substitution(values)(e)


def _offset_table(moved: Expr, outer: Any, depth: Any, rows: int, columns: int) -> Any:
    """Return an array of `rows` x `columns`, indexed [outer, k]: the distance of each element of an operand from the
    first one, in elements. `moved` is this distance as an expression of the axes `outer` and `depth` (k). Raise
    ProgramError if the expression has other symbols.
    """
    if not moved.symbols <= {outer, depth}:
        linear = Substitution({})(moved)
        raise ProgramError(f"where an operand's elements lie among each other depends on more than its axes: {linear}")
    i, k = np.indices((rows, columns))
    distances = evaluate(moved, {outer.name: i, depth.name: k}) if not isinstance(moved, Const) else moved.value
    return np.broadcast_to(np.asarray(distances), (rows, columns))


def multiply(e: Emitter, op: Op, atom: MultiplyAtom) -> None:
    """Emit C += A * B for the operation `op` as one group of wgmma instructions: a fence, one instruction for each k
    step, and a commit. The group is asynchronous; the operation `settle` waits for it.

    A is in shared memory if `op` has the attribute `a`, else in registers. B is in shared memory. If `op` has the
    attribute `fresh`, the accumulators start at zero. `atom` is the wgmma. Raise ProgramError if A and B have different
    numbers of k steps, or if wgmma cannot read their memory layout.
    """
    c, a, b = op.operands
    w, count = e.w, e.values(c)
    second = Descriptor(op, atom, "b")
    factors: list[str] = []
    if "a" in op.attrs:
        first = Descriptor(op, atom, "a")
        if first.steps != second.steps:
            raise ProgramError(f"{atom.name}: the factors differ in k")
        factors = [f"i64 {first.text(e, a)}"]
        marks = "l"
    else:
        a_words = words(e, a)
        factors, marks = [f"i32 {word}" for _, word in a_words], ",".join(["r"] * len(a_words))
    factors.append(f"i64 {second.text(e, b)}")
    fresh = bool(op.attrs.get("fresh"))
    inputs = count if fresh else 2 * count
    sums = ", ".join(f"${i}" for i in range(count))
    name = NAMES.get(atom.a.dtype.name, atom.a.dtype.name)
    total = element(c.type.dtype)
    kind, mark = f"{'s32' if total == 'i32' else 'f32'}.{name}.{name}", "r" if total == "i32" else "f"
    m, n, k = atom.shape
    lines = ["{", ".reg .b64 x, y;", "wgmma.fence.sync.aligned;"]
    for step in range(second.steps):
        lines.append(f"add.s64 y, ${inputs + len(factors) - 1}, {second.offset(step)};")
        if "a" in op.attrs:
            lines.append(f"add.s64 x, ${inputs}, {first.offset(step)};")
            a_operand, order_flags = "x", f"{int(first.transposed)}, {int(second.transposed)}"
        else:
            per = (len(factors) - 1) // second.steps
            a_operand = "{" + ", ".join(f"${inputs + per * step + i}" for i in range(per)) + "}"
            order_flags = f"{int(second.transposed)}"
        # whether to add; signs, of floats; orders, of 16 bits
        add = "0" if fresh and not step else "1"
        more = add if total == "i32" else f"{add}, 1, 1" if second.size != 2 else f"{add}, 1, 1, {order_flags}"
        lines.append(f"wgmma.mma_async.sync.aligned.m{m}n{n}k{k}.{kind} {{{sums}}}, {a_operand}, y, {more};")
    lines += ["wgmma.commit_group.sync.aligned;", "}"]
    form = w.struct_type([total] * count)
    before = range(0 if fresh else count)
    constraints = ",".join([f"={mark}"] * count + [str(i) for i in before] + [marks, "l"])
    operands = (*(f"{total} {e.get(c, i)}" for i in before), *factors)
    result = w.assembly("\n".join(lines), constraints, operands, form)
    for i in range(count):
        e.put(c, i, w.value(f"extractvalue {form} {result}, {i}"))


def wait_products(e: Emitter, pending: int, sums: tuple[Value, ...]) -> None:
    """Emit the wait until at most `pending` wgmma groups are in flight. The accumulators `sums` are inputs and outputs
    of the wait, so that LLVM moves no use of them before it.
    """
    accumulators = [(value, i) for value in sums for i in range(e.values(value))]
    wait = f"wgmma.wait_group.sync.aligned {pending};"
    if not accumulators:
        e.w.assembly(wait)
        return
    kinds = [element(value.type.dtype) for value, _ in accumulators]
    form = e.w.struct_type(kinds) if len(accumulators) > 1 else kinds[0]
    marks = ["=r" if kind == "i32" else "=f" for kind in kinds]
    constraints = ",".join(marks + [str(i) for i in range(len(accumulators))])
    operands = tuple(f"{kind} {e.get(v, i)}" for kind, (v, i) in zip(kinds, accumulators, strict=True))
    result = e.w.assembly(wait, constraints, operands, form)
    for n, (value, i) in enumerate(accumulators):
        e.put(value, i, e.w.value(f"extractvalue {form} {result}, {n}") if len(accumulators) > 1 else result)
