"""The x86 machines: one row a feature level; each holds what the one before it does."""

from __future__ import annotations

from tilewright.machine import Limits, Machine, spaces_of
from tilewright.targets.x86.atoms import COPY, MULTIPLY

_AVX2 = frozenset({"avx2", "fma"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512bf16", "avx512vnni"}
_AMX = _AVX512 | {"amx-tile", "amx-bf16", "amx-int8"}


def _row(name: str, features: frozenset[str], registers: int, register_bytes: int, tiles: int, l2: int) -> Machine:
    """A row with the atoms that its features allow; a workgroup is one worker, on one core."""
    return Machine(
        name,
        lanes=None,
        waves=1,
        # scratch memory is ordinary memory, aligned to cache lines; what fits the caches is the planner's to weigh
        spaces=spaces_of(shared=None, registers=registers * register_bytes + tiles * 1024, alignment=64),
        multiply={name: atom for name, atom in MULTIPLY.items() if features.issuperset(atom.features)},
        copies={name: atom for name, atom in COPY.items() if features.issuperset(atom.features)},
        features=features,
        limits=Limits(
            registers,
            tiles,
            register_bytes,
            l1_bytes=(48 if tiles else 32) << 10,
            l2_bytes=l2,
            cores=1,
            clock_ghz=2.3,
            l2_rate=40.0,
            far_rate=10.0,
        ),
    )


MACHINES = {
    row.name: row
    for row in (
        _row("x86.avx2", _AVX2, 16, 32, 0, 256 << 10),
        _row("x86.avx512", _AVX512, 32, 64, 0, 1 << 20),
        _row("x86.amx", _AMX, 32, 64, 8, 2 << 20),
    )
}
