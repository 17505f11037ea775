"""The family of last resort: any CPU that LLVM knows, by its own vectors of 128 bits; slower, exact, never refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilewright.targets.cpu.family import Family, Multiply

if TYPE_CHECKING:
    from tilewright.machine import Machine

WIDTH = 16


def row(name: str, features: frozenset[str]) -> Machine:
    """The machine: what LLVM makes of four floats or two doubles on any CPU."""
    from tilewright.ir.dtypes import f32, f64, i32
    from tilewright.machine import Limits, Machine, spaces_of
    from tilewright.targets.cpu.costs import COSTS, LIMITS, lane_rates
    from tilewright.targets.cpu.vector_atoms import vector_atom
    from tilewright.targets.cpu.vectors import vector_copies

    atoms = [
        vector_atom(f"vector.{kind}", WIDTH * 8 // kind.bits, 1, (kind, kind, kind), cycles=1.0)
        for kind in (f32, f64, i32)
    ]
    return Machine(
        name,
        lanes=None,
        waves=1,
        spaces=spaces_of(shared=None, registers=16 * WIDTH, alignment=64),
        multiply={atom.name: atom for atom in atoms},
        copies={atom.name: atom for atom in vector_copies("vector", WIDTH, ())},
        features=features,
        limits=Limits(
            16,
            0,
            WIDTH,
            instructions=3000,
            l1_bytes=32 << 10,
            l2_bytes=256 << 10,
            l2_share=0.6,
            cores=1,
            clock_ghz=2.0,
            l2_rate=16.0,
            far_rate=8.0,
            load_cycles=0.6,
            warm=2.0,
            **lane_rates(WIDTH),
            **LIMITS,
        ),
        fused=False,
        costs=COSTS,
    )


def _products() -> Mapping[str, Multiply]:
    from tilewright.targets.cpu.products import apart

    return {"vector.f32": apart, "vector.f64": apart, "vector.i32": apart}


FAMILY = Family(
    "portable",
    architectures=(),
    triple=None,
    cpu="",
    levels={"portable": frozenset()},
    optional=(),
    row=row,
    detect=frozenset,
    host_features=str,
    products=_products,
)
