"""The family of AArch64 CPUs."""

from __future__ import annotations

from tilewright.targets.aarch64.features import ARCHITECTURES, detect, host_features
from tilewright.targets.aarch64.instructions import PRODUCTS
from tilewright.targets.aarch64.machine import LEVELS, OPTIONAL, row
from tilewright.targets.aarch64.relocations import OBJECTS
from tilewright.targets.cpu.family import Family

FAMILY = Family(
    "aarch64",
    architectures=ARCHITECTURES,
    triple="aarch64-unknown-linux-gnu",
    cpu="generic",
    levels=LEVELS,
    optional=OPTIONAL,
    row=row,
    detect=detect,
    host_features=host_features,
    products=PRODUCTS,
    # `yield` is over in two cycles; a synchronisation of the instruction stream takes a good 30
    pause="call void @llvm.aarch64.isb(i32 15)",
    declares="declare void @llvm.aarch64.isb(i32 immarg)",
    register="w",
    futex=98,
    objects=OBJECTS,
)
