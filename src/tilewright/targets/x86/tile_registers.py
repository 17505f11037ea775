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
        """Emit the load of tile register number `tile` from memory. `pointer` is the address of its first row, `stride`
        the distance of rows in bytes (both LLVM values); the tile configuration says how many rows there are. If `op`
        has the attribute `stream`, the load hints that the lines need not stay in the near caches.
        """
        name = "tileloaddt164" if op.attrs.get("stream") else "tileloadd64"
        e.w.declare(f"void @llvm.x86.{name}(i8 immarg, ptr, i64)")
        e.w.line(f"call void @llvm.x86.{name}(i8 {tile}, ptr {pointer}, i64 {stride})")

    def store(self, e: NativeEmitter, tile: int, pointer: str, stride: str) -> None:
        """Emit the store of tile register number `tile` to memory. `pointer` is the address of its first row, `stride`
        the distance of rows in bytes (both LLVM values).
        """
        e.w.declare("void @llvm.x86.tilestored64(i8 immarg, ptr, i64)")
        e.w.line(f"call void @llvm.x86.tilestored64(i8 {tile}, ptr {pointer}, i64 {stride})")

    def zero(self, e: NativeEmitter, tile: int) -> None:
        """Emit the instruction that zeroes tile register number `tile`."""
        e.w.declare("void @llvm.x86.tilezero(i8 immarg)")
        e.w.line(f"call void @llvm.x86.tilezero(i8 {tile})")

    def prologue(self, e: NativeEmitter, configuration: str) -> list[str]:
        """Declare the intrinsic that loads the tile configuration, and return the LLVM lines that call it: a function
        with tiles begins with them. `configuration` is the LLVM pointer to the configuration's 64 bytes. The lines are
        not emitted here.
        """
        e.w.declare("void @llvm.x86.ldtilecfg(ptr)")
        return [f"  call void @llvm.x86.ldtilecfg(ptr {configuration})"]

    def epilogue(self, e: NativeEmitter) -> None:
        """Emit the instruction that ends a function with tiles (tilerelease): it frees the tile registers."""
        e.w.declare("void @llvm.x86.tilerelease()")
        e.w.line("call void @llvm.x86.tilerelease()")

    def configuration(self) -> Any:
        """Return the tile configuration as an aligned array of 64 bytes: eight tiles of 16 rows of 64 bytes. The same
        array at every call.
        """
        return _configuration()


@cache
def _configuration() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return AMX's tile configuration, palette 1 with eight tiles of 16 rows of 64 bytes, as an aligned array of 64
    bytes. The same array at every call.
    """
    from tilewright.targets.cpu.pool import aligned

    palette = aligned(64, 64)
    palette[0] = 1
    for tile in range(8):
        palette[16 + 2 * tile] = 64
        palette[48 + tile] = 16
    return palette
