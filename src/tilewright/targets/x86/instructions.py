"""Multiplication atoms of x86, and its multiplication by powers of two, as LLVM IR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.codegen.text import Writer
from tilewright.ir.core import Op
from tilewright.targets.cpu.family import Multiply
from tilewright.targets.cpu.products import apart, fused, group_in_all_lanes

if TYPE_CHECKING:
    from tilewright.targets.cpu.emit import NativeEmitter


def scale(w: Writer, p: str, n: str, lanes: int | None, bits: int) -> str | None:
    """p * 2^n in a whole register of 512 bits, rounded once; None for any other number of lanes."""
    if lanes is None or lanes * bits != 512:
        return None
    form, mask = f"<{lanes} x {'float' if bits == 32 else 'double'}>", f"i{lanes}"
    name = f"@llvm.x86.avx512.mask.scalef.p{'s' if bits == 32 else 'd'}.512"
    w.declare(f"{form} {name}({form}, {form}, {form}, {mask}, i32 immarg)")
    return w.value(f"call {form} {name}({form} {p}, {form} {n}, {form} zeroinitializer, {mask} -1, i32 4)")


def _tiles(name: str) -> Multiply:
    """A product of tile registers."""

    def write(e: NativeEmitter, op: Op) -> None:
        c, a, b = op.operands
        e.w.declare(f"void @llvm.x86.{name}(i8 immarg, i8 immarg, i8 immarg)")
        e.w.line(f"call void @llvm.x86.{name}(i8 {e.tile(c)}, i8 {e.tile(a)}, i8 {e.tile(b)})")

    return write


def _dot(name: str, form: str, sums: str) -> Multiply:
    """Sums over neighbours along k, 32 bits of them in each lane."""

    def write(e: NativeEmitter, op: Op) -> None:
        c, a, b = op.operands
        left = group_in_all_lanes(e, a, 32, 16, form)
        e.w.declare(f"{sums} @llvm.x86.{name}({sums}, {form}, {form})")
        e.registers[c] = e.w.value(
            f"call {sums} @llvm.x86.{name}({sums} {e.register(c)}, {form} {left}, {form} {e.register(b)})"
        )

    return write


PRODUCTS: dict[str, Multiply] = {
    "avx2.f32": fused,
    "avx2.f64": fused,
    "avx2.i32": apart,
    "avx512.f32": fused,
    "avx512.f64": fused,
    "avx512.i32": apart,
    "avx512.bf16": _dot("avx512bf16.dpbf16ps.512", "<32 x bfloat>", "<16 x float>"),
    "avx512.vnni": _dot("avx512.vpdpbusd.512", "<64 x i8>", "<16 x i32>"),
    "amx.bf16": _tiles("tdpbf16ps"),
    "amx.s8": _tiles("tdpbssd"),
    "amx.u8s8": _tiles("tdpbusd"),
}
