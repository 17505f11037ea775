"""Multiplication atoms of x86 as LLVM IR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.codegen.text import element
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Value

if TYPE_CHECKING:
    from tilewright.targets.x86.emit import _Emitter

_TILES = {"amx.bf16": "tdpbf16ps", "amx.s8": "tdpbssd", "amx.u8s8": "tdpbusd"}
_FMA = {"avx2.f32": (8, "f32"), "avx2.f64": (4, "f64"), "avx512.f32": (16, "f32"), "avx512.f64": (8, "f64")}

_INTEGERS = {"avx2.i32": 8, "avx512.i32": 16}


def multiply(e: _Emitter, op: Op) -> None:
    """C += A * B by one instruction, or two where there is no single one."""
    name = op.attrs["atom"]
    c, a, b = op.operands
    w = e.w
    if name in _TILES:
        w.declare(f"void @llvm.x86.{_TILES[name]}(i8 immarg, i8 immarg, i8 immarg)")
        w.line(f"call void @llvm.x86.{_TILES[name]}(i8 {e.tile(c)}, i8 {e.tile(a)}, i8 {e.tile(b)})")
        return
    if name in _FMA:
        lanes, suffix = _FMA[name]
        form = e.kind(c)
        left = _all_lanes(e, a, lanes)
        w.declare(f"{form} @llvm.fma.v{lanes}{suffix}({form}, {form}, {form})")
        e.registers[c] = w.value(
            f"call {form} @llvm.fma.v{lanes}{suffix}({form} {left}, {form} {e.register(b)}, {form} {e.register(c)})"
        )
        return
    if name in _INTEGERS:
        form = e.kind(c)
        product = w.value(f"mul {form} {_all_lanes(e, a, _INTEGERS[name])}, {e.register(b)}")
        e.registers[c] = w.value(f"add {form} {product}, {e.register(c)}")
        return
    if name == "avx512.bf16":
        left = _grouped(e, a, 32, "<32 x bfloat>")
        w.declare("<16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)")
        e.registers[c] = w.value(
            "call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512("
            f"<16 x float> {e.register(c)}, <32 x bfloat> {left}, <32 x bfloat> {e.register(b)})"
        )
        return
    if name == "avx512.vnni":
        left = _grouped(e, a, 32, "<64 x i8>")
        w.declare("<16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <64 x i8>, <64 x i8>)")
        e.registers[c] = w.value(
            "call <16 x i32> @llvm.x86.avx512.vpdpbusd.512("
            f"<16 x i32> {e.register(c)}, <64 x i8> {left}, <64 x i8> {e.register(b)})"
        )
        return
    raise ProgramError(f"the atom {name} is none of this machine's")


def only_products(e: _Emitter, op: Op) -> bool:
    """Whether a branch holds nothing but products of whole vector registers: those can be masked."""
    inside = op.blocks[0].ops
    if len(op.blocks) != 1 or not inside or any(inner.name != "atom" for inner in inside):
        return False
    sums = [inner.operands[0] for inner in inside]
    return all(not e.is_tile(c) and (e.lanes(c) or 0) * c.type.dtype.bits == 512 for c in sums)


def multiply_where(e: _Emitter, op: Op) -> None:
    """The products of a branch, without one: where the condition fails, a mask keeps the sums as they are."""
    when, w = op.attrs["when"], e.w
    holds, depth = w.condition(when), w.depth(when)
    for inner in op.blocks[0].ops:
        c = inner.operands[0]
        lanes, before = e.lanes(c), e.register(c)
        multiply(e, inner)
        bits = w.placed(depth, (when, "mask", lanes), f"sext i1 {holds} to i{lanes}")
        mask = w.value(f"bitcast i{lanes} {bits} to <{lanes} x i1>")
        form = e.kind(c)
        e.registers[c] = w.value(f"select <{lanes} x i1> {mask}, {form} {e.register(c)}, {form} {before}")


def _all_lanes(e: _Emitter, value: Value, lanes: int) -> str:
    """One number in all lanes; it is made once for each number."""
    text = e.register(value)
    if e.lanes(value) is not None:
        return text
    key = ("splat", text)
    found = e.w.scope.known.get(key)
    if found is None:
        found = e.w.scope.known[key] = e.w.splat(text, element(value.type.dtype), lanes)
    return found


def _grouped(e: _Emitter, value: Value, bits: int, form: str) -> str:
    """A pair, or four, of numbers in all lanes."""
    text = e.register(value)
    whole = e.w.value(f"bitcast {e.kind(value)} {text} to i{bits}")
    spread = e.w.splat(whole, f"i{bits}", 512 // bits)
    return e.w.value(f"bitcast <{512 // bits} x i{bits}> {spread} to {form}")
