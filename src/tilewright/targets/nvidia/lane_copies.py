"""Copy atoms of NVIDIA machines in which each lane has its own address: ld, st, cp.async."""

from __future__ import annotations

from tilewright.machine import CopyAtom
from tilewright.machine.lanes import lane_load, lane_store, lane_transfer

WARP = 32
LANDS = "cp.async.mbarrier.arrive"

LANE_COPIES: list[CopyAtom] = [
    make(f"{verb}.{space}.{width}", space, width, WARP)
    for space in ("global", "shared")
    for verb, make in (("ld", lane_load), ("st", lane_store))
    for width in (4, 8, 16)
]

CP_ASYNC: list[CopyAtom] = [
    *(lane_transfer(f"cp.async.{width}", width, WARP, ("sm_80",), LANDS) for width in (4, 8, 16)),
    # bypasses the L1 cache; only for 16 bytes
    lane_transfer("cp.async.16.cg", 16, WARP, ("sm_80",), LANDS, hint="bypass"),
]
