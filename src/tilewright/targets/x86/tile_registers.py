"""AMX's tile registers in LLVM IR: eight registers of 16 rows of 64 bytes, addressed by number."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tilewright.ir.core import Op
    from tilewright.targets.cpu.emit import NativeEmitter


class AmxTiles:
    """Instructions that load, store and zero tile registers, and the set-up that a function with tiles needs."""

    count = 8
    before_use = (
        "Linux grants tile registers to a process that asks: call syscall(SYS_arch_prctl, 0x1023, 18) once, before "
        "other threads start; it returns 0"
    )

    def load(self, e: NativeEmitter, op: Op, tile: int, pointer: str, stride: str) -> None:
        """Emit the load of tile register number `tile` with the emitter `e`. `pointer` is the address of the first row,
        and `stride` the distance between rows in bytes; both are LLVM values. The loaded tile configuration gives the
        number of rows. If the copy `op` has the attribute `stream`, the load hints that its data need not stay in the
        caches near the core.
        """
        name = "tileloaddt164" if op.attrs.get("stream") else "tileloadd64"
        e.w.declare(f"void @llvm.x86.{name}(i8 immarg, ptr, i64)")
        e.w.line(f"call void @llvm.x86.{name}(i8 {tile}, ptr {pointer}, i64 {stride})")

    def store(self, e: NativeEmitter, tile: int, pointer: str, stride: str) -> None:
        """Emit the store of tile register number `tile` with the emitter `e`. `pointer` is the address of the first
        row, and `stride` the distance between rows in bytes; both are LLVM values. The loaded tile configuration gives
        the number of rows.
        """
        e.w.declare("void @llvm.x86.tilestored64(i8 immarg, ptr, i64)")
        e.w.line(f"call void @llvm.x86.tilestored64(i8 {tile}, ptr {pointer}, i64 {stride})")

    def zero(self, e: NativeEmitter, tile: int) -> None:
        """Emit the instruction that sets tile register number `tile` to zero, with the emitter `e`."""
        e.w.declare("void @llvm.x86.tilezero(i8 immarg)")
        e.w.line(f"call void @llvm.x86.tilezero(i8 {tile})")

    def prologue(self, e: NativeEmitter, configuration: str) -> list[str]:
        """Declare the intrinsic that loads the tile configuration, and return the LLVM lines that call it. The caller
        writes these lines at the beginning of each function that uses tiles. `configuration` is the LLVM pointer to the
        64 bytes that `configuration()` returns.
        """
        e.w.declare("void @llvm.x86.ldtilecfg(ptr)")
        return [f"  call void @llvm.x86.ldtilecfg(ptr {configuration})"]

    def epilogue(self, e: NativeEmitter) -> None:
        """Emit the instruction `tilerelease` with the emitter `e`, for the end of a function that uses tiles. It zeroes
        and frees the tile registers.
        """
        e.w.declare("void @llvm.x86.tilerelease()")
        e.w.line("call void @llvm.x86.tilerelease()")

    def configuration(self) -> Any:
        """Return AMX's tile configuration: a uint8 array of 64 bytes, aligned to 64 bytes, that sets all eight tiles to
        16 rows of 64 bytes. Every call returns the same array.
        """
        return _configuration()


@cache
def _configuration() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return AMX's tile configuration: a uint8 array of 64 bytes, aligned to 64 bytes. It sets palette 1 and eight
    tiles of 16 rows of 64 bytes. Every call returns the same array.
    """
    from tilewright.targets.cpu.pool import aligned

    palette = aligned(64, 64)
    palette[0] = 1
    for tile in range(8):
        palette[16 + 2 * tile] = 64
        palette[48 + tile] = 16
    return palette
