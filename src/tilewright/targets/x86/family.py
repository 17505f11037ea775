"""The family of x86 CPUs; its machines and instructions are imported when first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilewright.targets.cpu.family import Family, Multiply
from tilewright.targets.x86.features import LEVELS, OPTIONAL, detect, host_features
from tilewright.targets.x86.relocations import OBJECTS
from tilewright.targets.x86.tile_registers import AmxTiles

if TYPE_CHECKING:
    from tilewright.codegen.text import Writer
    from tilewright.machine import Machine


def _row(name: str, features: frozenset[str]) -> Machine:
    """Return the machine description with the name `name` for an x86 CPU with the features `features`. The first call
    imports the module with the descriptions.
    """
    from tilewright.targets.x86.machine import row

    return row(name, features)


def _products() -> Mapping[str, Multiply]:
    """Return {atom name: function (emitter, op) that emits the multiplication `op` as LLVM IR}. The first call imports
    the module with these functions.
    """
    from tilewright.targets.x86.instructions import PRODUCTS

    return PRODUCTS


def _scale(w: Writer, p: str, n: str, lanes: int | None, bits: int) -> str | None:
    """Emit p * 2^n with the writer `w`, by the instruction vscalef of AVX-512, and return the result as an LLVM value.
    `p` and `n` are LLVM values: vectors of `lanes` floats of `bits` bits (`lanes` None: scalars). Emit nothing and
    return None unless the vector has 512 bits.
    """
    from tilewright.targets.x86.instructions import scale

    return scale(w, p, n, lanes, bits)


FAMILY = Family(
    "x86",
    architectures=("x86_64", "AMD64"),
    triple="x86_64-unknown-linux-gnu",
    cpu="x86-64",
    levels=LEVELS,
    optional=OPTIONAL,
    row=_row,
    detect=detect,
    host_features=host_features,
    products=_products,
    tiles=AmxTiles(),
    pause="call void @llvm.x86.sse2.pause()",
    declares="declare void @llvm.x86.sse2.pause()",
    register="v",
    futex=202,
    scale=_scale,
    objects=OBJECTS,
)
