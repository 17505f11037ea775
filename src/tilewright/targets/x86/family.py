"""The family of x86 CPUs."""

from __future__ import annotations

from tilewright.targets.cpu.family import Family
from tilewright.targets.x86.features import detect, host_features
from tilewright.targets.x86.instructions import PRODUCTS, scale
from tilewright.targets.x86.machine import LEVELS, OPTIONAL, row
from tilewright.targets.x86.relocations import OBJECTS
from tilewright.targets.x86.tile_registers import AmxTiles

FAMILY = Family(
    "x86",
    architectures=("x86_64", "AMD64"),
    triple="x86_64-unknown-linux-gnu",
    cpu="x86-64",
    levels=LEVELS,
    optional=OPTIONAL,
    row=row,
    detect=detect,
    host_features=host_features,
    products=PRODUCTS,
    tiles=AmxTiles(),
    pause="call void @llvm.x86.sse2.pause()",
    declares="declare void @llvm.x86.sse2.pause()",
    register="v",
    futex=202,
    scale=scale,
    objects=OBJECTS,
)
