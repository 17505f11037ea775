"""The machines of x86: one for each feature level; each level has all features of the one before."""

from __future__ import annotations

from dataclasses import replace

from tilewright.machine import Limits, Machine, TileCosts, TileLoadCosts, spaces_of
from tilewright.targets.cpu.costs import COSTS, LIMITS, lane_rates
from tilewright.targets.x86.atoms import COPY, MULTIPLY
from tilewright.targets.x86.features import LEVELS

_TILES = TileCosts(
    block=60, task=400, staged=60, scattered=2, shared=4, store=3 / 16, packing=2, exposed=32, sharpness=1.5
)
_TILE_LOADS = TileLoadCosts(strided=1.5, conflict=2, bypass=2)
_VECTORS = replace(COSTS.vectors, scattered=2.5, shared=60, shared_lines=2, sharpness=5)
"""Cycles, fitted to the times of many plans; those of vectors on 16 cores."""
_COSTS = replace(COSTS, vectors=_VECTORS)
_COSTS_WITH_TILES = replace(_COSTS, tiles=_TILES, tile_loads=_TILE_LOADS)


def row(name: str, features: frozenset[str]) -> Machine:
    """Return the description of an x86 CPU with the name `name` and the features `features`. The machine has those
    atoms that need no other features. Register sizes, cache sizes and costs follow from the features too. A workgroup
    is one wave, and the description has one core.
    """
    wide, tiles = features >= LEVELS["x86.avx512f"], 8 if features >= LEVELS["x86.amx"] else 0
    registers, register_bytes = (32, 64) if wide else (16, 32)
    return Machine(
        name,
        lanes=None,
        waves=1,
        # scratch memory is ordinary memory, aligned to cache lines; the planner weighs what fits the caches
        spaces=spaces_of(shared=None, registers=registers * register_bytes + tiles * 1024, alignment=64),
        multiply={name: atom for name, atom in MULTIPLY.items() if features.issuperset(atom.features)},
        copies={name: atom for name, atom in COPY.items() if features.issuperset(atom.features)},
        features=features,
        limits=Limits(
            registers,
            tiles,
            register_bytes,
            instructions=3000,
            l1_bytes=(48 if tiles else 32) << 10,
            l1_ways=12 if tiles else 8,
            l2_bytes=(2 << 20) if tiles else (1 << 20) if wide else (256 << 10),
            l2_share=0.8 if wide and not tiles else 0.6,
            cores=1,
            clock_ghz=2.3,
            l2_rate=40.0,
            far_rate=10.0,
            load_cycles=0.6,
            run_cycles=0.0 if tiles else 40.0,
            prefetch_bytes=4096,
            warm=4.0,
            sharing_cycles=6000 if tiles else 3000,
            uneven=0.33,
            **lane_rates(register_bytes),
            **LIMITS,
        ),
        # AVX2 masks elements of 4 and 8 bytes only (maskload, maskstore)
        masked=frozenset({1, 2, 4, 8} if wide else {4, 8}),
        predicated=wide,
        rounds_bf16="avx512bf16" in features,
        scales=wide,
        costs=_COSTS_WITH_TILES if tiles else _COSTS,
    )
