"""The family of AArch64 CPUs; its machines and instructions are imported when first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilewright.targets.aarch64.features import ARCHITECTURES, LEVELS, OPTIONAL, detect, host_features
from tilewright.targets.aarch64.relocations import OBJECTS
from tilewright.targets.cpu.family import Family, Multiply

if TYPE_CHECKING:
    from tilewright.machine import Machine


def _row(name: str, features: frozenset[str]) -> Machine:
    """Return the machine description with the name `name` for an AArch64 CPU with the features `features`. The first
    call imports the module with the descriptions.
    """
    from tilewright.targets.aarch64.machine import row

    return row(name, features)


def _products() -> Mapping[str, Multiply]:
    """Return {atom name: function (emitter, op) that emits the multiplication `op` as LLVM IR}. The first call imports
    the module with these functions.
    """
    from tilewright.targets.aarch64.instructions import PRODUCTS

    return PRODUCTS


FAMILY = Family(
    "aarch64",
    architectures=ARCHITECTURES,
    triple="aarch64-unknown-linux-gnu",
    cpu="generic",
    levels=LEVELS,
    optional=OPTIONAL,
    row=_row,
    detect=detect,
    host_features=host_features,
    products=_products,
    # `yield` takes two cycles, an instruction synchronisation barrier (isb) some 30
    pause="call void @llvm.aarch64.isb(i32 15)",
    declares="declare void @llvm.aarch64.isb(i32 immarg)",
    register="w",
    futex=98,
    objects=OBJECTS,
)
