"""The Intel machine: Xe of the data centre, sub-groups of 16 lanes."""

from __future__ import annotations

from tilewright.machine import Costs, Limits, Machine, spaces_of
from tilewright.targets.gpu.resources import ACCESS, REGISTERS, ROW_TASKS, SHARED, TERMS
from tilewright.targets.intel.atoms import COPY, MULTIPLY

MACHINES = {
    "xe": Machine(
        "xe",
        lanes=16,
        waves=64,
        spaces=spaces_of(shared=128 << 10, registers=512 << 10),
        multiply=MULTIPLY,
        copies=COPY,
        features=frozenset({"xe"}),
        # a thread has 128 registers of 64 bytes: one word of 32 bits for each lane
        limits=Limits(registers=128, l1_bytes=512 << 10, l2_bytes=408 << 20, cores=128),
        costs=Costs(terms=TERMS),
        register_file=REGISTERS,
        lane_access=ACCESS,
        shared_memory=SHARED,
        row_tasks=ROW_TASKS,
    )
}
