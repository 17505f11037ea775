"""AArch64's multiplication atoms, written as LLVM IR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.ir.core import Op
from tilewright.targets.cpu.family import Multiply
from tilewright.targets.cpu.products import add_after_multiply, fused_multiply_add, group_to_lanes

if TYPE_CHECKING:
    from tilewright.targets.cpu.emit import NativeEmitter

_SUMS = {"f32": "<4 x float>", "i32": "<4 x i32>"}
_FACTORS = {"bf16": "<8 x bfloat>", "i8": "<16 x i8>"}


def _dot(*names: str, factors: str, sums: str, one_kind: bool = True) -> Multiply:
    """Return a function (emitter, op) that emits a dot-product atom: each 32-bit lane of the accumulator adds the
    products of neighbours along k, two of bf16 or four of i8.

    `names` are LLVM intrinsics (without "llvm.aarch64.neon."), called one after another on the same accumulator.
    `factors` and `sums` are keys of `_FACTORS` and `_SUMS`: the element types of operands and accumulator. If
    `one_kind`, operands A and B have the same type, and the intrinsics get (B, A); else they get (A, B).
    """
    form, total = _FACTORS[factors], _SUMS[sums]

    def write(e: NativeEmitter, op: Op) -> None:
        """Emit the multiplication `op` (operands: accumulator, A, B) with the emitter `e`. Set `e.registers` of the
        accumulator to the new LLVM value.
        """
        _, a, b = op.operands
        left = group_to_lanes(e, a, 32, 4, form)
        for name in names:
            first, second = (e.register(b), left) if one_kind else (left, e.register(b))
            _call(e, op, name, form, total, first, second)

    return write


def _fragments(name: str, factors: str, sums: str) -> Multiply:
    """Return a function (emitter, op) that emits a matrix atom (mmla): each register holds a small matrix, in the
    atom's layout. `name` is the LLVM intrinsic without "llvm.aarch64.neon.". `factors` and `sums` are keys of
    `_FACTORS` and `_SUMS`: the element types of operands and accumulator.
    """
    form, total = _FACTORS[factors], _SUMS[sums]

    def write(e: NativeEmitter, op: Op) -> None:
        """Emit the multiplication `op` (operands: accumulator, A, B) with the emitter `e`. Set `e.registers` of the
        accumulator to the new LLVM value.
        """
        _, a, b = op.operands
        _call(e, op, name, form, total, e.register(a), e.register(b))

    return write


def _call(e: NativeEmitter, op: Op, name: str, form: str, total: str, left: str, right: str) -> None:
    """Emit a call of the LLVM intrinsic `name` (without "llvm.aarch64.neon."), and set `e.registers` of the accumulator
    to the result. The accumulator is the first operand of `op`. `form` and `total` are the LLVM types of the operands
    and of the accumulator. `left` and `right` are the operands, as LLVM values.
    """
    c = op.operands[0]
    full = f"@llvm.aarch64.neon.{name}"
    e.w.declare(f"{total} {full}({total}, {form}, {form})")
    e.registers[c] = e.w.value(f"call {total} {full}({total} {e.register(c)}, {form} {left}, {form} {right})")


PRODUCTS: dict[str, Multiply] = {
    "neon.f32": fused_multiply_add,
    "neon.f64": fused_multiply_add,
    "neon.f16": fused_multiply_add,
    "neon.i32": add_after_multiply,
    "neon.sdot": _dot("sdot.v4i32.v16i8", factors="i8", sums="i32"),
    "neon.udot": _dot("udot.v4i32.v16i8", factors="i8", sums="i32"),
    "neon.usdot": _dot("usdot.v4i32.v16i8", factors="i8", sums="i32", one_kind=False),
    "neon.bfdot": _dot("bfdot.v4f32.v8bf16", factors="bf16", sums="f32"),
    "neon.bfmlal": _dot("bfmlalb", "bfmlalt", factors="bf16", sums="f32"),
    "neon.bfmmla": _fragments("bfmmla", "bf16", "f32"),
    "neon.smmla": _fragments("smmla.v4i32.v16i8", "i8", "i32"),
    "neon.ummla": _fragments("ummla.v4i32.v16i8", "i8", "i32"),
    "neon.usmmla": _fragments("usmmla.v4i32.v16i8", "i8", "i32"),
}
