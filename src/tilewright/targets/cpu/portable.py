"""The fallback family of CPUs: any CPU that LLVM knows, with LLVM's generic vectors of 128 bits; slower, but exact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilewright.targets.cpu.family import Family, Multiply

if TYPE_CHECKING:
    from tilewright.machine import Machine

WIDTH = 16


def row(name: str, features: frozenset[str]) -> Machine:
    """Return the machine description with the name `name` for a CPU of any architecture: generic vectors of 128 bits,
    and products of f32, f64 and i32. `features` become the features of the machine and have no other effect.
    """
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
            sharing_cycles=3000,
            uneven=0.33,
            **LIMITS,
        ),
        fused=False,
        costs=COSTS,
    )


def _products() -> Mapping[str, Multiply]:
    """Return {atom name: function (emitter, op) that emits the multiplication `op` as LLVM IR}."""
    from tilewright.targets.cpu.products import add_after_multiply

    return {"vector.f32": add_after_multiply, "vector.f64": add_after_multiply, "vector.i32": add_after_multiply}


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
