"""mma.sync as PTX text: operands in registers of 32 bits, accumulators in registers of their own type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.codegen.text import element, literal
from tilewright.ir.core import Op, Value
from tilewright.machine import MultiplyAtom, RegisterOperand

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter

_MARKS = {"float": "f", "i32": "r", "double": "d"}


def words(e: Emitter, value: Value) -> list[tuple[str, str]]:
    """Emit the packing of this lane's elements of the fragment `value` into registers, as operands of an MMA. Return
    [(LLVM type, LLVM value)]. Elements of fewer than 32 bits are packed into i32, f32 becomes i32, and f64 stays.
    """
    kind, size = element(value.type.dtype), value.type.dtype.numpy.itemsize
    count, w = e.values(value), e.w
    if size == 8:
        return [(kind, e.get(value, i)) for i in range(count)]
    if size == 4:
        texts = [e.get(value, i) for i in range(count)]
        return [("i32", text if kind == "i32" else w.value(f"bitcast {kind} {text} to i32")) for text in texts]
    per_word, packed = 4 // size, []
    for first in range(0, count, per_word):
        text = "poison"
        for i in range(per_word):
            text = w.value(f"insertelement <{per_word} x {kind}> {text}, {kind} {e.get(value, first + i)}, i32 {i}")
        packed.append(("i32", w.value(f"bitcast <{per_word} x {kind}> {text} to i32")))
    return packed


def multiply(e: Emitter, op: Op, atom: MultiplyAtom) -> None:
    """Emit C += A * B for the operation `op`, one mma.sync for each k step. The operands of `op` are the fragments C, A
    and B, in registers; C is updated. `atom` is the mma.sync. If `op` has the attribute `fresh`, the accumulators start
    at zero.
    """
    c, a, b = op.operands
    m, n, k = atom.shape
    total = element(c.type.dtype)
    names = {"float": "f32", "i32": "s32", "double": "f64"}
    kind = atom.name.rpartition(".")[2]
    head = f"mma.sync.aligned.m{m}n{n}k{k}.row.col.{names[total]}.{kind}.{kind}.{names[total]}"
    count = atom.c.values
    left, right = words(e, a), words(e, b)
    assert isinstance(atom.a, RegisterOperand)
    steps = e.values(a) // atom.a.values
    per_a, per_b = len(left) // steps, len(right) // steps
    for step in range(steps):
        operand_words = [*left[per_a * step : per_a * (step + 1)], *right[per_b * step : per_b * (step + 1)]]
        names_in = [f"${count + i}" for i in range(per_a + per_b)]
        sums = ", ".join(f"${i}" for i in range(count))
        before = ", ".join(f"${count + len(operand_words) + i}" for i in range(count))
        text = f"{head} {{{sums}}}, {{{', '.join(names_in[:per_a])}}}, {{{', '.join(names_in[per_a:])}}}, {{{before}}};"
        mark = _MARKS[total]
        marks = [f"={mark}"] * count + [_MARKS.get(form, "r") for form, _ in operand_words] + [mark] * count
        begins = bool(op.attrs.get("fresh")) and not step
        sums_before = [literal(0, c.type.dtype) if begins else e.get(c, i) for i in range(count)]
        operands = [f"{form} {value}" for form, value in operand_words] + [f"{total} {text}" for text in sums_before]
        form = "{" + ", ".join([total] * count) + "}"
        result = e.w.assembly(text, ",".join(marks), tuple(operands), form)
        for i in range(count):
            e.put(c, i, e.w.value(f"extractvalue {form} {result}, {i}"))
