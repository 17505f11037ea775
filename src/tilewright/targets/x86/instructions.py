"""x86's multiplication atoms, and its multiplication by powers of two, written as LLVM IR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.codegen.text import Writer
from tilewright.ir.core import Op
from tilewright.targets.cpu.family import Multiply
from tilewright.targets.cpu.products import add_after_multiply, fused_multiply_add, group_to_lanes

if TYPE_CHECKING:
    from tilewright.targets.cpu.emit import NativeEmitter


def scale(w: Writer, p: str, n: str, lanes: int | None, bits: int) -> str | None:
    """Emit p * 2^n, rounded once, with the writer `w`, by the instruction vscalef of AVX-512. Return the result as an
    LLVM value. `p` and `n` are LLVM values: vectors of `lanes` floats of `bits` bits (`lanes` None: scalars). Emit
    nothing and return None unless the vector has 512 bits.
    """
    if lanes is None or lanes * bits != 512:
        return None
    form, mask = f"<{lanes} x {'float' if bits == 32 else 'double'}>", f"i{lanes}"
    name = f"@llvm.x86.avx512.mask.scalef.p{'s' if bits == 32 else 'd'}.512"
    w.declare(f"{form} {name}({form}, {form}, {form}, {mask}, i32 immarg)")
    return w.value(f"call {form} {name}({form} {p}, {form} {n}, {form} zeroinitializer, {mask} -1, i32 4)")


def _tiles(name: str) -> Multiply:
    """Return a function (emitter, op) that emits a tile multiplication. `name` is the LLVM intrinsic without
    "llvm.x86.", such as "tdpbf16ps".
    """

    def write(e: NativeEmitter, op: Op) -> None:
        """Emit the multiplication `op` (operands: accumulator C, A, B) with the emitter `e`. The instruction adds A * B
        to C in the tile register of C.
        """
        c, a, b = op.operands
        e.w.declare(f"void @llvm.x86.{name}(i8 immarg, i8 immarg, i8 immarg)")
        e.w.line(f"call void @llvm.x86.{name}(i8 {e.tile(c)}, i8 {e.tile(a)}, i8 {e.tile(b)})")

    return write


def _dot(name: str, form: str, sums: str) -> Multiply:
    """Return a function (emitter, op) that emits a dot-product atom: each 32-bit lane of the accumulator adds the
    products of neighbours along k, two of bf16 or four of 8 bits. `name` is the LLVM intrinsic without "llvm.x86.".
    `form` and `sums` are the LLVM types of the operands and of the accumulator.
    """

    def write(e: NativeEmitter, op: Op) -> None:
        """Emit the multiplication `op` (operands: accumulator, A, B) with the emitter `e`. Set `e.registers` of the
        accumulator to the new LLVM value.
        """
        c, a, b = op.operands
        left = group_to_lanes(e, a, 32, 16, form)
        e.w.declare(f"{sums} @llvm.x86.{name}({sums}, {form}, {form})")
        e.registers[c] = e.w.value(
            f"call {sums} @llvm.x86.{name}({sums} {e.register(c)}, {form} {left}, {form} {e.register(b)})"
        )

    return write


PRODUCTS: dict[str, Multiply] = {
    "avx2.f32": fused_multiply_add,
    "avx2.f64": fused_multiply_add,
    "avx2.i32": add_after_multiply,
    "avx512.f32": fused_multiply_add,
    "avx512.f64": fused_multiply_add,
    "avx512.i32": add_after_multiply,
    "avx512.bf16": _dot("avx512bf16.dpbf16ps.512", "<32 x bfloat>", "<16 x float>"),
    "avx512.vnni": _dot("avx512.vpdpbusd.512", "<64 x i8>", "<16 x i32>"),
    "amx.bf16": _tiles("tdpbf16ps"),
    "amx.s8": _tiles("tdpbssd"),
    "amx.u8s8": _tiles("tdpbusd"),
}
