"""The AMD machine: CDNA3, waves of 64 lanes."""

from __future__ import annotations

from tilewright.machine import Costs, Limits, Machine, spaces_of
from tilewright.targets.amd.atoms import COPY, MULTIPLY
from tilewright.targets.gpu.resources import ACCESS, REGISTERS, ROW_TASKS, SHARED, TERMS

MACHINES = {
    "cdna3": Machine(
        "cdna3",
        lanes=64,
        waves=16,
        spaces=spaces_of(shared=64 << 10, registers=512 << 10),
        multiply=MULTIPLY,
        copies=COPY,
        features=frozenset({"gfx942"}),
        # 256 vector registers and as many for accumulation
        limits=Limits(registers=512, l1_bytes=32 << 10, l2_bytes=4 << 20, cores=304),
        costs=Costs(terms=TERMS),
        register_file=REGISTERS,
        lane_access=ACCESS,
        shared_memory=SHARED,
        row_tasks=ROW_TASKS,
    )
}
