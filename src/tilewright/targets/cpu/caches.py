"""Sizes of the CPU's caches, their lines and ways, as the system reports them; None if it does not."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_LINUX = Path("/sys/devices/system/cpu/cpu0/cache")
_SYSCONF = {
    "line": ("SC_LEVEL1_DCACHE_LINESIZE",),
    "l1": ("SC_LEVEL1_DCACHE_SIZE",),
    "l2": ("SC_LEVEL2_CACHE_SIZE",),
    "ways": ("SC_LEVEL1_DCACHE_ASSOC",),
}
_MACOS = {
    "line": ("hw.cachelinesize",),
    "l1": ("hw.perflevel0.l1dcachesize", "hw.l1dcachesize"),
    "l2": ("hw.perflevel0.l2cachesize", "hw.l2cachesize"),
    "ways": (),
}


@dataclass(frozen=True)
class Caches:
    """Bytes of a cache line, and of a core's L1 data cache and L2 cache; the number of ways of L1."""

    line: int | None
    l1: int | None
    l2: int | None
    ways: int | None


@cache
def caches() -> Caches:
    """Return the sizes of the caches of the CPU at hand. A size that the system does not report is None. The first
    result is cached.
    """
    sizes = {"line": None, "l1": None, "l2": None, "ways": None} | _from_files(_LINUX)
    for name, value in sizes.items():
        if value is None:
            sizes[name] = _from_libc(name)
    return Caches(sizes["line"], sizes["l1"], sizes["l2"], sizes["ways"])


def _from_files(folder: Path) -> dict[str, int | None]:
    """Return the cache properties of one core from Linux's files below `folder`, as {name: number}: "l1" (data), "l2"
    and "line" in bytes, and "ways" of the L1 data cache. Properties without a readable file are left out.

    >>> _from_files(Path("no such folder"))
    {}
    """
    sizes: dict[str, int | None] = {}
    for index in sorted(folder.glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if kind in ("Data", "Unified") and level in ("1", "2"):
                sizes[f"l{level}"] = _bytes(size)
            if kind == "Data" and level == "1":
                sizes["line"] = int((index / "coherency_line_size").read_text())
                sizes["ways"] = int((index / "ways_of_associativity").read_text()) or None
        except (OSError, ValueError):  # some of it is left out on some machines
            continue
    return sizes


def _bytes(text: str) -> int:
    """Return the number of bytes of the cache size `text`, which has Linux's notation. Raise ValueError for other
    texts.

    >>> _bytes("48K"), _bytes("2M"), _bytes("512")
    (49152, 2097152, 512)
    """
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
    return int(text[:-1] if unit else text) << unit


def _from_libc(name: str) -> int | None:
    """Return one cache property of the CPU at hand: `name` is "line", "l1" or "l2" (bytes), or "ways" (of L1). The call
    asks `sysctl` on macOS, and `sysconf` on other systems. Return None if the system does not report the property.
    """
    if sys.platform == "darwin":
        library = ctypes.CDLL(None)
        value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
        for key in _MACOS[name]:
            if library.sysctlbyname(key.encode(), ctypes.byref(value), ctypes.byref(size), None, 0) == 0:
                return value.value or None
        return None
    known = getattr(os, "sysconf_names", {})
    for key in _SYSCONF[name]:
        if key in known:
            try:
                return os.sysconf(key) or None
            except OSError:
                return None
    return None
