"""What the AArch64 CPU at hand offers, as the system tells it: LLVM's own look misses all that is optional."""

from __future__ import annotations

import ctypes
import platform
from functools import cache

ARCHITECTURES = ("aarch64", "arm64", "ARM64")
LEVELS = {"aarch64.neon": frozenset({"neon"})}
"""The named machines, and what each has."""
OPTIONAL = ("fullfp16", "dotprod", "bf16", "i8mm")

_HWCAP, _HWCAP2 = 16, 26
_LINUX = {
    "neon": (_HWCAP, 1),
    "fullfp16": (_HWCAP, 10),
    "dotprod": (_HWCAP, 20),
    "i8mm": (_HWCAP2, 13),
    "bf16": (_HWCAP2, 14),
}
"""The entry of the auxiliary vector and the bit in it, for each feature by LLVM's name."""
_MACOS = {"fullfp16": "FEAT_FP16", "dotprod": "FEAT_DotProd", "i8mm": "FEAT_I8MM", "bf16": "FEAT_BF16"}


@cache
def detect() -> frozenset[str]:
    """The features of the CPU that the compiler uses."""
    if platform.machine() not in ARCHITECTURES:
        return frozenset()
    system = platform.system()
    if system == "Linux":
        return _of_words({entry: _auxiliary(entry) for entry in (_HWCAP, _HWCAP2)})
    if system == "Darwin":
        return frozenset({"neon", *(name for name, key in _MACOS.items() if _told_by_macos(key))})
    return frozenset({"neon"})  # every such CPU has it; what else there is, this system does not say


def _of_words(words: dict[int, int]) -> frozenset[str]:
    """The features that the words of the auxiliary vector say.

    >>> sorted(_of_words({16: 1 << 1 | 1 << 10 | 1 << 20, 26: 0}))  # Neoverse N1
    ['dotprod', 'fullfp16', 'neon']
    """
    return frozenset(name for name, (entry, bit) in _LINUX.items() if words[entry] >> bit & 1)


def _auxiliary(entry: int) -> int:
    function = ctypes.CDLL(None).getauxval
    function.restype, function.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
    return int(function(entry))


def _told_by_macos(key: str) -> bool:
    value, size = ctypes.c_int(0), ctypes.c_size_t(4)
    name = f"hw.optional.arm.{key}".encode()
    found = ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, 0)
    return found == 0 and value.value == 1


def host_features() -> str:
    """The features as LLVM takes them; what the system does not report is off, whatever the CPU's name promises."""
    return ",".join(f"{'+' if name in detect() else '-'}{name}" for name in sorted(_LINUX))
