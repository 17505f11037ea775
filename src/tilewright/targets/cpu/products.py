"""Multiplication atoms that LLVM has for every CPU: vector multiply-adds, A the same element in all lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.codegen.text import element
from tilewright.ir.core import Op, Value

if TYPE_CHECKING:
    from tilewright.targets.cpu.emit import NativeEmitter

WORD = 32
"""Bits that instructions of every CPU repeat in all lanes of a vector, and load so."""
_SUFFIX = {"half": "f16", "float": "f32", "double": "f64"}


def fused(e: NativeEmitter, op: Op) -> None:
    """C += A * B, rounded once."""
    c, a, b = op.operands
    w, form, lanes = e.w, e.kind(c), e.lanes(c)
    name = f"@llvm.fma.v{lanes}{_SUFFIX[element(c.type.dtype)]}"
    w.declare(f"{form} {name}({form}, {form}, {form})")
    left = in_all_lanes(e, a, e.lanes_of(c))
    e.registers[c] = w.value(f"call {form} {name}({form} {left}, {form} {e.register(b)}, {form} {e.register(c)})")


def apart(e: NativeEmitter, op: Op) -> None:
    """C += A * B by a product and a sum."""
    c, a, b = op.operands
    w, form = e.w, e.kind(c)
    words = ("fmul", "fadd") if c.type.dtype.is_float else ("mul", "add")
    product = w.value(f"{words[0]} {form} {in_all_lanes(e, a, e.lanes_of(c))}, {e.register(b)}")
    e.registers[c] = w.value(f"{words[1]} {form} {product}, {e.register(c)}")


def in_all_lanes(e: NativeEmitter, value: Value, lanes: int) -> str:
    """One element in all lanes; it is made once for each element."""
    text = e.register(value)
    if e.lanes(value) is not None:
        return text
    key = ("splat", text)
    found = e.w.scope.known.get(key)
    if found is None:
        found = e.w.scope.known[key] = e.w.splat(text, element(value.type.dtype), lanes)
    return found


def group_in_all_lanes(e: NativeEmitter, value: Value, bits: int, lanes: int, form: str) -> str:
    """A group of neighbours along k (a pair, or four), together so many bits, in all lanes of a vector type."""
    text = e.register(value)
    if (e.lanes(value) or 1) * value.type.dtype.bits == bits * lanes:  # it is there already
        return text
    whole = e.words.get(value) or e.w.value(f"bitcast {e.kind(value)} {text} to i{bits}")
    spread = e.w.splat(whole, f"i{bits}", lanes)
    return e.w.value(f"bitcast <{lanes} x i{bits}> {spread} to {form}")


def only_products(e: NativeEmitter, op: Op) -> bool:
    """Whether a branch holds nothing but products of whole vector registers: those can be masked."""
    inside = op.blocks[0].ops
    if not e.machine.predicated or len(op.blocks) != 1 or not inside or any(x.name != "atom" for x in inside):
        return False
    whole = 8 * (e.machine.limits.vector_bytes or 0)
    sums = [x.operands[0] for x in inside]
    return all(not e.is_tile(c) and (e.lanes(c) or 0) * c.type.dtype.bits == whole for c in sums)


def multiply_where(e: NativeEmitter, op: Op) -> None:
    """The products of a branch, without one: where the condition fails, a mask keeps the sums as they are."""
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
