"""The machines of AArch64: NEON with optional features; the rates are those of a Neoverse N1."""

from __future__ import annotations

from tilewright.machine import Limits, Machine, spaces_of
from tilewright.targets.aarch64.atoms import COPY, MULTIPLY
from tilewright.targets.cpu.costs import COSTS, LIMITS, lane_rates


def row(name: str, features: frozenset[str]) -> Machine:
    """Return the description of an AArch64 CPU with the name `name` and the features `features`. The machine has those
    atoms that need no other features. A workgroup is one wave, and the description has one core.
    """
    return Machine(
        name,
        lanes=None,
        waves=1,
        spaces=spaces_of(shared=None, registers=32 * 16, alignment=128),  # lines of 64 or 128 bytes
        multiply={name: atom for name, atom in MULTIPLY.items() if features.issuperset(atom.features)},
        copies={name: atom for name, atom in COPY.items() if features.issuperset(atom.features)},
        features=features,
        limits=Limits(
            32,
            0,
            16,
            instructions=3000,
            l1_bytes=64 << 10,
            l1_ways=4,
            l2_bytes=1 << 20,
            l2_share=0.6,
            cores=1,
            clock_ghz=2.5,
            l2_rate=18.0,
            far_rate=8.0,
            copy_shown=0.5,
            load_cycles=0.5,
            warm=2.25,
            sharing_cycles=3000,
            uneven=0.33,
            **lane_rates(16),
            **LIMITS,
        ),
        nan_maximum=True,
        rounds_bf16="bf16" in features,
        costs=COSTS,
    )
