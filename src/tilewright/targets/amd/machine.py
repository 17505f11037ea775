"""The AMD machine: CDNA3, waves of 64 lanes."""

from __future__ import annotations

from tilewright.machine import Limits, Machine, spaces_of
from tilewright.targets.amd.atoms import COPY, MULTIPLY
from tilewright.targets.gpu.resources import ACCESS, COSTS, LIMITS, REGISTERS, ROW_TASKS, SHARED

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
        limits=Limits(
            registers=512,
            l1_bytes=32 << 10,
            l2_bytes=4 << 20,
            cores=304,
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
