"""x86's multiplication atoms, and its multiplication by powers of two, written as LLVM IR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.codegen.text import Writer
from tilewright.ir.core import Op
from tilewright.targets.cpu.family import Multiply
from tilewright.targets.cpu.products import add_after_multiply, fused_multiply_add, group_to_lanes

if TYPE_CHECKING:
    from tilewright.targets.cpu.emit import NativeEmitter


_REGISTER = 512
"""Bits of a vector register of AVX-512."""


def scale(w: Writer, p: str, n: str, lanes: int | None, bits: int) -> str | None:
    """Emit p * 2^n, rounded once, for `lanes` floats (None: a scalar) of `bits` bits, and return the result's LLVM
    value. `p` and `n` are LLVM values. Emit nothing and return None unless the floats fill whole registers of 512 bits.
    """
    if lanes is None or lanes * bits % _REGISTER:
        return None
    count, kind = _REGISTER // bits, "float" if bits == 32 else "double"
    form, mask = f"<{count} x {kind}>", f"i{count}"
    name = f"@llvm.x86.avx512.mask.scalef.p{'s' if bits == 32 else 'd'}.512"
    w.declare(f"{form} {name}({form}, {form}, {form}, {mask}, i32 immarg)")
    registers = []
    for first in range(0, lanes, count):
        p_part, n_part = (_lanes_of(w, v, kind, lanes, range(first, first + count)) for v in (p, n))
        operands = f"{form} {p_part}, {form} {n_part}, {form} zeroinitializer"
        registers.append(w.value(f"call {form} {name}({operands}, {mask} -1, i32 4)"))
    return _joined(w, registers, kind, count)


def _lanes_of(w: Writer, value: str, kind: str, lanes: int, chosen: range) -> str:
    """Emit a vector of the `chosen` lanes of the LLVM vector `value`, which has `lanes` numbers of the LLVM type `kind`.
    Return it.
    """
    if len(chosen) == lanes:
        return value
    form, indices = f"<{lanes} x {kind}>", ", ".join(f"i32 {lane}" for lane in chosen)
    return w.value(f"shufflevector {form} {value}, {form} poison, <{len(chosen)} x i32> <{indices}>")


def _joined(w: Writer, vectors: list[str], kind: str, count: int) -> str:
    """Emit one LLVM vector of the lanes of all `vectors`, in order, and return it. Each of them has `count` numbers of
    the LLVM type `kind`.
    """
    lanes = len(vectors) * count
    total, form = vectors[0], f"<{lanes} x {kind}>"
    for number, vector in enumerate(vectors):
        if lanes > count:  # both operands of a shuffle have the same number of lanes
            places = ", ".join(f"i32 {lane}" if lane < count else "i32 poison" for lane in range(lanes))
            part, empty = f"<{count} x {kind}> {vector}", f"<{count} x {kind}> poison"
            vector = w.value(f"shufflevector {part}, {empty}, <{lanes} x i32> <{places}>")
        if number == 0:
            total = vector
            continue
        first = number * count
        places = ", ".join(f"i32 {lane if lane < first else lanes + lane - first}" for lane in range(lanes))
        total = w.value(f"shufflevector {form} {total}, {form} {vector}, <{lanes} x i32> <{places}>")
    return total


def _tiles(name: str) -> Multiply:
    """Return the function that writes a tile multiplication as a call of LLVM's AMX intrinsic `name`, such as
    "tdpbf16ps".
    """

    def write(e: NativeEmitter, op: Op) -> None:
        """Write the call of the intrinsic for the multiplication `op`, with the numbers of its tile registers: it adds
        A * B to C in place.
        """
        c, a, b = op.operands
        e.w.declare(f"void @llvm.x86.{name}(i8 immarg, i8 immarg, i8 immarg)")
        e.w.line(f"call void @llvm.x86.{name}(i8 {e.tile(c)}, i8 {e.tile(a)}, i8 {e.tile(b)})")

    return write


def _dot(name: str, form: str, sums: str) -> Multiply:
    """Return the function that writes a dot-product atom as LLVM IR: each 32-bit lane of the accumulator adds the
    products of 2 or 4 neighbours along k. `name` is the LLVM intrinsic; `form` and `sums` are the LLVM types of
    operands and accumulator.
    """

    def write(e: NativeEmitter, op: Op) -> None:
        """Write the call of the intrinsic for the multiplication `op`, and record the result as the accumulator's new
        value in `e.registers`.
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
