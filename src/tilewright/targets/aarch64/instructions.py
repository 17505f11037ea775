"""Multiplication atoms of AArch64 as LLVM IR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.ir.core import Op
from tilewright.targets.cpu.family import Multiply
from tilewright.targets.cpu.products import apart, fused, group_in_all_lanes

if TYPE_CHECKING:
    from tilewright.targets.cpu.emit import NativeEmitter

_SUMS = {"f32": "<4 x float>", "i32": "<4 x i32>"}
_FACTORS = {"bf16": "<8 x bfloat>", "i8": "<16 x i8>"}


def _dot(*names: str, factors: str, sums: str, one_kind: bool = True) -> Multiply:
    """Sums over neighbours along k, 32 bits of them in each lane; several instructions one after another.

    LLVM finds the form that picks A by lane where A is the second factor; `one_kind` says that both factors are of one
    type, so that they may change places.
    """
    form, total = _FACTORS[factors], _SUMS[sums]

    def write(e: NativeEmitter, op: Op) -> None:
        _, a, b = op.operands
        left = group_in_all_lanes(e, a, 32, 4, form)
        for name in names:
            first, second = (e.register(b), left) if one_kind else (left, e.register(b))
            _call(e, op, name, form, total, first, second)

    return write


def _fragments(name: str, factors: str, sums: str) -> Multiply:
    """A product of fragments: each register is the matrix that the atom's layout says."""
    form, total = _FACTORS[factors], _SUMS[sums]

    def write(e: NativeEmitter, op: Op) -> None:
        _, a, b = op.operands
        _call(e, op, name, form, total, e.register(a), e.register(b))

    return write


def _call(e: NativeEmitter, op: Op, name: str, form: str, total: str, left: str, right: str) -> None:
    c = op.operands[0]
    full = f"@llvm.aarch64.neon.{name}"
    e.w.declare(f"{total} {full}({total}, {form}, {form})")
    e.registers[c] = e.w.value(f"call {total} {full}({total} {e.register(c)}, {form} {left}, {form} {right})")


PRODUCTS: dict[str, Multiply] = {
    "neon.f32": fused,
    "neon.f64": fused,
    "neon.f16": fused,
    "neon.i32": apart,
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
