"""The Intel machine: Xe of the data centre, sub-groups of 16 lanes."""

from __future__ import annotations

from tilewright.machine import Limits, Machine, spaces_of
from tilewright.targets.gpu.resources import ACCESS, COSTS, LIMITS, REGISTERS, ROW_TASKS, SHARED
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
        limits=Limits(
            registers=128,
            l1_bytes=512 << 10,
            l2_bytes=408 << 20,
            cores=128,
            clock_ghz=2.0,
            l2_rate=32.0,
            far_rate=8.0,
            shared_rate=128.0,
            lane_rate=128,
            function_rate=16,
            working_registers=64,
            launch_cycles=2000,
            following_cycles=2000,
            **LIMITS,
        ),
        costs=COSTS,
        register_file=REGISTERS,
        lane_access=ACCESS,
        shared_memory=SHARED,
        row_tasks=ROW_TASKS,
    )
}
