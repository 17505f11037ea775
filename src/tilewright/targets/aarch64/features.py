"""Features of the AArch64 CPU at hand, as the operating system reports them: LLVM's own detection misses optional
ones."""

from __future__ import annotations

import ctypes
import platform
from functools import cache

ARCHITECTURES = ("aarch64", "arm64", "ARM64")
LEVELS = {"aarch64.neon": frozenset({"neon"})}
"""The features of each named machine."""
OPTIONAL = ("fullfp16", "dotprod", "bf16", "i8mm")

_HWCAP, _HWCAP2 = 16, 26
_LINUX = {
    "neon": (_HWCAP, 1),
    "fullfp16": (_HWCAP, 10),
    "dotprod": (_HWCAP, 20),
    "i8mm": (_HWCAP2, 13),
    "bf16": (_HWCAP2, 14),
}
"""For each feature, by LLVM's name: its entry of the auxiliary vector, and its bit in that word."""
_MACOS = {"fullfp16": "FEAT_FP16", "dotprod": "FEAT_DotProd", "i8mm": "FEAT_I8MM", "bf16": "FEAT_BF16"}


@cache
def detect() -> frozenset[str]:
    """Return the names of all features in `_LINUX`, such as "dotprod", that the CPU at hand has. The set is empty if
    the CPU is not an AArch64 CPU, and {"neon"} on systems other than Linux and macOS. The first result is cached.
    """
    if platform.machine() not in ARCHITECTURES:
        return frozenset()
    system = platform.system()
    if system == "Linux":
        return _features_in({entry: _auxiliary_word(entry) for entry in (_HWCAP, _HWCAP2)})
    if system == "Darwin":
        return frozenset({"neon", *(name for name, key in _MACOS.items() if _has_on_macos(key))})
    return frozenset({"neon"})  # every AArch64 CPU has it; this system does not report others


def _features_in(words: dict[int, int]) -> frozenset[str]:
    """Return the names of the features with a set bit in `words`: {entry number: word} of Linux's auxiliary vector.
    `words` must have the entries 16 and 26.

    >>> sorted(_features_in({16: 1 << 1 | 1 << 10 | 1 << 20, 26: 0}))  # Neoverse N1
    ['dotprod', 'fullfp16', 'neon']
    """
    return frozenset(name for name, (entry, bit) in _LINUX.items() if words[entry] >> bit & 1)


def _auxiliary_word(entry: int) -> int:
    """Return the word of Linux's auxiliary vector with the number `entry`: 16 is AT_HWCAP, 26 is AT_HWCAP2. The word is
    0 if the vector has no such entry.
    """
    function = ctypes.CDLL(None).getauxval
    function.restype, function.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
    return int(function(entry))


def _has_on_macos(key: str) -> bool:
    """True if macOS reports the feature `key`, such as "FEAT_BF16". The call reads the setting
    `hw.optional.arm.KEY`.
    """
    value, size = ctypes.c_int(0), ctypes.c_size_t(4)
    name = f"hw.optional.arm.{key}".encode()
    status = ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, 0)
    return status == 0 and value.value == 1


def host_features() -> str:
    """Return LLVM's feature string for the CPU at hand, such as "-bf16,+dotprod,-fullfp16,-i8mm,+neon". It lists all
    features in `_LINUX`, in alphabetical order: "+" if `detect` returns the feature, else "-".
    """
    return ",".join(f"{'+' if name in detect() else '-'}{name}" for name in sorted(_LINUX))
