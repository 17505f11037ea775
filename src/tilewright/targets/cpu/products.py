"""Multiplication atoms in generic LLVM instructions, for every CPU: vector multiply-adds with A broadcast to all
lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.codegen.text import element
from tilewright.ir.core import Op, Value

if TYPE_CHECKING:
    from tilewright.targets.cpu.emit import NativeEmitter

WORD = 32
"""Bits of a word, which every CPU can broadcast to all lanes of a vector, from memory too."""
_SUFFIX = {"half": "f16", "float": "f32", "double": "f64"}


def fused_multiply_add(e: NativeEmitter, op: Op) -> None:
    """Emit C += A * B as an LLVM fused multiply-add, rounded once. The operands of `op` are the registers C, A and B. A
    scalar A is broadcast to all lanes. Set `e.registers` of C to the new LLVM value.
    """
    c, a, b = op.operands
    w, form, lanes = e.w, e.kind(c), e.lanes(c)
    name = f"@llvm.fma.v{lanes}{_SUFFIX[element(c.type.dtype)]}"
    w.declare(f"{form} {name}({form}, {form}, {form})")
    left = broadcast_to_lanes(e, a, e.lanes_of(c))
    e.registers[c] = w.value(f"call {form} {name}({form} {left}, {form} {e.register(b)}, {form} {e.register(c)})")


def add_after_multiply(e: NativeEmitter, op: Op) -> None:
    """Emit C += A * B as an LLVM multiplication and an addition; floats are rounded twice. The operands of `op` are the
    registers C, A and B. A scalar A is broadcast to all lanes. Set `e.registers` of C to the new LLVM value.
    """
    c, a, b = op.operands
    w, form = e.w, e.kind(c)
    words = ("fmul", "fadd") if c.type.dtype.is_float else ("mul", "add")
    product = w.value(f"{words[0]} {form} {broadcast_to_lanes(e, a, e.lanes_of(c))}, {e.register(b)}")
    e.registers[c] = w.value(f"{words[1]} {form} {product}, {e.register(c)}")


def broadcast_to_lanes(e: NativeEmitter, value: Value, lanes: int) -> str:
    """Return the register `value` as an LLVM vector. A scalar is broadcast to `lanes` lanes, and the broadcast is
    emitted once for each scalar, number of lanes and scope. A vector is returned as it is.
    """
    text = e.register(value)
    if e.lanes(value) is not None:
        return text
    key = ("splat", text, lanes)
    vector_text = e.w.scope.known.get(key)
    if vector_text is None:
        vector_text = e.w.scope.known[key] = e.w.splat(text, element(value.type.dtype), lanes)
    return vector_text


def group_to_lanes(e: NativeEmitter, value: Value, bits: int, lanes: int, form: str) -> str:
    """Return an LLVM vector of the type `form` that repeats the register `value` `lanes` times. The register holds a
    group of neighbours along k, which have `bits` bits together. A register with `bits` * `lanes` bits is returned as
    it is.
    """
    text = e.register(value)
    if (e.lanes(value) or 1) * value.type.dtype.bits == bits * lanes:  # it is there already
        return text
    word = e.words.get(value) or e.w.value(f"bitcast {e.kind(value)} {text} to i{bits}")
    spread = e.w.splat(word, f"i{bits}", lanes)
    return e.w.value(f"bitcast <{lanes} x i{bits}> {spread} to {form}")


def holds_only_products(e: NativeEmitter, op: Op) -> bool:
    """True if the `if` operation `op` has one block, the block has only multiplication atoms that add to full vector
    registers, and the machine can mask all vector instructions.
    """
    inside = op.blocks[0].ops
    if not e.machine.predicated or len(op.blocks) != 1 or not inside or any(x.name != "atom" for x in inside):
        return False
    register_bits = 8 * (e.machine.limits.vector_bytes or 0)
    sums = [x.operands[0] for x in inside]
    return all(not e.is_tile(c) and (e.lanes(c) or 0) * c.type.dtype.bits == register_bits for c in sums)


def masked_products(e: NativeEmitter, op: Op) -> None:
    """Emit the multiplication atoms of the `if` operation `op` without a branch. A mask keeps the values of the
    accumulators if the condition fails. `op` must fulfil `holds_only_products`.
    """
    when, w = op.attrs["when"], e.w
    holds, depth = w.condition(when), w.depth(when)
    for inner in op.blocks[0].ops:
        c = inner.operands[0]
        lanes, before = e.lanes(c), e.register(c)
        e.multiply(inner)
        bits = w.placed(depth, (when, "mask", lanes), f"sext i1 {holds} to i{lanes}")
        mask = w.value(f"bitcast i{lanes} {bits} to <{lanes} x i1>")
        form = e.kind(c)
        e.registers[c] = w.value(f"select <{lanes} x i1> {mask}, {form} {e.register(c)}, {form} {before}")
