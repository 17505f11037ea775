"""Features of the x86 CPU at hand."""

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
"""The features of each named machine."""
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
"""The features on which the compiler's choices depend."""
_FLAGS = {
    "avx512bf16": "avx512_bf16",
    "avx512vnni": "avx512_vnni",
    "amx-tile": "amx_tile",
    "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8",
}
"""Linux's names of features, if they differ from LLVM's."""


@cache
def detect() -> frozenset[str]:
    """Return the names of all features in `ASKED_FOR` that the CPU at hand has. The set is empty if the CPU is not an
    x86 CPU. If the CPU has AMX, the first call asks Linux to let this process use it; the set has AMX features only if
    Linux agrees. The first result is cached.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    features = {name for name, present in _relevant_features().items() if present}
    if "amx-tile" in features and not _tiles_granted():
        features -= {"amx-tile", "amx-bf16", "amx-int8"}
    return frozenset(name for name in ASKED_FOR if name in features)


def _relevant_features() -> dict[str, bool]:
    """Return {feature name: True if the CPU at hand has it}. On Linux, the dict has the features in `ASKED_FOR`, and
    comes from /proc/cpuinfo, so that LLVM is not loaded. On other systems, or if that file has no line of flags, the
    dict has all features that LLVM knows.
    """
    if sys.platform != "linux":
        return _llvm_features()
    flags = _flags(Path("/proc/cpuinfo"))
    return _llvm_features() if flags is None else {name: _FLAGS.get(name, name) in flags for name in ASKED_FOR}


def _flags(path: Path) -> frozenset[str] | None:
    """Return the flags of the first CPU in the file `path`, which has the format of /proc/cpuinfo. Return None if the
    file cannot be read or has no line that begins with "flags".
    """
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    line = next((line for line in text.splitlines() if line.startswith("flags")), None)
    return None if line is None else frozenset(line.partition(":")[2].split())


@cache
def _llvm_features() -> dict[str, bool]:
    """Load LLVM, and return {feature name: True if the CPU at hand has it} for all features that LLVM knows. The dict
    is cached.
    """
    import llvmlite.binding as llvm

    return dict(llvm.get_host_cpu_features())


@cache
def _tiles_granted() -> bool:
    """Ask Linux to let this process use AMX's tile registers, and return True if it agrees. Return False on other
    systems. The first result is cached, so the system is asked once, and worker threads that start later inherit the
    permission.
    """
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def host_features() -> str:
    """Return LLVM's feature string for the CPU at hand, such as "+avx2,+prefer-no-gather,-sse4a". It lists every
    feature that LLVM knows, "+" or "-", and "+prefer-no-gather". For features in `ASKED_FOR`, the sign follows
    `detect`. All "-" come last, because LLVM applies the entries in order.
    """
    features = _llvm_features() | {name: name in detect() for name in ASKED_FOR}
    on = sorted(f"+{name}" for name, present in features.items() if present)
    off = sorted(f"-{name}" for name, present in features.items() if not present)
    return ",".join([*on, "+prefer-no-gather", *off])
