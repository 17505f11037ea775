"""The family of AArch64 CPUs; its machines and instructions are loaded when one is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilewright.targets.aarch64.features import ARCHITECTURES, LEVELS, OPTIONAL, detect, host_features
from tilewright.targets.aarch64.relocations import OBJECTS
from tilewright.targets.cpu.family import Family, Multiply

if TYPE_CHECKING:
    from tilewright.machine import Machine


def _row(name: str, features: frozenset[str]) -> Machine:
    from tilewright.targets.aarch64.machine import row

    return row(name, features)


def _products() -> Mapping[str, Multiply]:
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
    # `yield` is over in two cycles; a synchronisation of the instruction stream takes a good 30
    pause="call void @llvm.aarch64.isb(i32 15)",
    declares="declare void @llvm.aarch64.isb(i32 immarg)",
    register="w",
    futex=98,
    objects=OBJECTS,
)
