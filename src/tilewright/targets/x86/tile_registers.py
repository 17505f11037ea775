"""The tile registers of AMX as LLVM IR: eight of 16 rows of 64 bytes, by their numbers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tilewright.ir.core import Op
    from tilewright.targets.cpu.emit import NativeEmitter


class AmxTiles:
    """Loads, stores and zeros of tile registers, and what a function needs around them."""

    count = 8
    before_use = (
        "Linux grants tile registers to a process that asks: call syscall(SYS_arch_prctl, 0x1023, 18) once, before "
        "other threads start; it returns 0"
    )

    def load(self, e: NativeEmitter, op: Op, tile: int, pointer: str, stride: str) -> None:
        """A tile from rows of memory; what is streamed is not kept near."""
        name = "tileloaddt164" if op.attrs.get("stream") else "tileloadd64"
        e.w.declare(f"void @llvm.x86.{name}(i8 immarg, ptr, i64)")
        e.w.line(f"call void @llvm.x86.{name}(i8 {tile}, ptr {pointer}, i64 {stride})")

    def store(self, e: NativeEmitter, tile: int, pointer: str, stride: str) -> None:
        """A tile to rows of memory."""
        e.w.declare("void @llvm.x86.tilestored64(i8 immarg, ptr, i64)")
        e.w.line(f"call void @llvm.x86.tilestored64(i8 {tile}, ptr {pointer}, i64 {stride})")

    def zero(self, e: NativeEmitter, tile: int) -> None:
        """A tile of zeros."""
        e.w.declare("void @llvm.x86.tilezero(i8 immarg)")
        e.w.line(f"call void @llvm.x86.tilezero(i8 {tile})")

    def prologue(self, e: NativeEmitter, configuration: str) -> list[str]:
        """What the function begins with: it takes the configuration that a pointer tells."""
        e.w.declare("void @llvm.x86.ldtilecfg(ptr)")
        return [f"  call void @llvm.x86.ldtilecfg(ptr {configuration})"]

    def epilogue(self, e: NativeEmitter) -> None:
        """What the function ends with."""
        e.w.declare("void @llvm.x86.tilerelease()")
        e.w.line("call void @llvm.x86.tilerelease()")

    def configuration(self) -> Any:
        """Eight tiles of 16 rows of 64 bytes, in memory that no compiler sees."""
        return _configuration()


@cache
def _configuration() -> np.ndarray[Any, np.dtype[np.uint8]]:
    from tilewright.targets.cpu.pool import aligned

    found = aligned(64, 64)
    found[0] = 1
    for tile in range(8):
        found[16 + 2 * tile] = 64
        found[48 + tile] = 16
    return found
