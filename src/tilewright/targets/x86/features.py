"""What the x86 CPU at hand offers."""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from pathlib import Path

_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512F = _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
_AVX512 = _AVX512F | {"avx512bf16", "avx512vnni"}
_AMX = _AVX512 | {"amx-tile", "amx-bf16", "amx-int8"}

LEVELS = {"x86.avx2": _AVX2, "x86.avx512f": _AVX512F, "x86.avx512": _AVX512, "x86.amx": _AMX}
"""The named machines, and what each has."""
OPTIONAL = ("avx512vnni", "avx512bf16")

_REQUEST_PERMISSION, _TILE_DATA, _ARCH_PRCTL = 0x1023, 18, 158
ASKED_FOR = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512dq",
    "avx512bf16",
    "avx512vnni",
    "amx-tile",
    "amx-bf16",
    "amx-int8",
)
"""The features that decide what the compiler uses."""
_FLAGS = {
    "avx512bf16": "avx512_bf16",
    "avx512vnni": "avx512_vnni",
    "amx-tile": "amx_tile",
    "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8",
}
"""Features that Linux calls otherwise."""


@cache
def detect() -> frozenset[str]:
    """The features of the CPU that the compiler uses; tiles count only if the system grants them."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    found = {name for name, there in _asked().items() if there}
    if "amx-tile" in found and not _tiles_granted():
        found -= {"amx-tile", "amx-bf16", "amx-int8"}
    return frozenset(name for name in ASKED_FOR if name in found)


def _asked() -> dict[str, bool]:
    """The features that decide, as Linux reports them: LLVM need not be loaded to know them. Elsewhere LLVM looks."""
    if sys.platform != "linux":
        return _told()
    flags = _flags(Path("/proc/cpuinfo"))
    return _told() if flags is None else {name: _FLAGS.get(name, name) in flags for name in ASKED_FOR}


def _flags(path: Path) -> frozenset[str] | None:
    """The flags of the first CPU that the system lists; None where it lists none."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    line = next((line for line in text.splitlines() if line.startswith("flags")), None)
    return None if line is None else frozenset(line.partition(":")[2].split())


@cache
def _told() -> dict[str, bool]:
    """What LLVM finds, and what it knows of and does not find."""
    import llvmlite.binding as llvm

    return dict(llvm.get_host_cpu_features())


@cache
def _tiles_granted() -> bool:
    """Whether the system lets this process use tile registers; asked once, before worker threads start."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def host_features() -> str:
    """The features as LLVM takes them: all it knows, on or off as the CPU has them; what is off stands last, and wins.

    The CPU's name alone does not do: a virtual machine may hide a part of what the name promises.
    """
    found = _told() | {name: name in detect() for name in ASKED_FOR}
    on = sorted(f"+{name}" for name, there in found.items() if there)
    off = sorted(f"-{name}" for name, there in found.items() if not there)
    return ",".join([*on, "+prefer-no-gather", *off])
