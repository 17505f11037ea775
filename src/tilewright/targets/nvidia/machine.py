"""The NVIDIA machines: Ampere, and Hopper, which adds wgmma, TMA and stmatrix."""

from __future__ import annotations

from tilewright.machine import Limits, Machine, spaces_of
from tilewright.targets.nvidia.atoms import COPY, MULTIPLY

_AMPERE = frozenset({"sm_75", "sm_80"})
_HOPPER = _AMPERE | {"sm_90", "sm_90a"}


def _row(name: str, features: frozenset[str], shared: int, limits: Limits) -> Machine:
    return Machine(
        name,
        lanes=32,
        waves=32,
        # what a tile's swizzle counts from is a multiple of 1024 bytes
        spaces=spaces_of(shared=shared, registers=256 << 10, alignment=1024),
        multiply={name: atom for name, atom in MULTIPLY.items() if features.issuperset(atom.features)},
        copies={name: atom for name, atom in COPY.items() if features.issuperset(atom.features)},
        features=features,
        limits=limits,
        cluster=8 if "sm_90" in features else 1,
        launches=frozenset({"programmatic"} if "sm_90" in features else ()),
    )


MACHINES = {
    row.name: row
    for row in (
        _row("ampere", _AMPERE, 163 << 10, Limits(255, l1_bytes=192 << 10, l2_bytes=40 << 20, cores=108)),
        _row("hopper", _HOPPER, 227 << 10, Limits(255, l1_bytes=256 << 10, l2_bytes=50 << 20, cores=132)),
    )
}
