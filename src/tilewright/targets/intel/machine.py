"""The machine table of Intel's GPUs: Xe of the data centre, sub-groups of 16 lanes."""

from __future__ import annotations

from dataclasses import replace

from tilewright.machine import Limits, Machine, spaces_of
from tilewright.targets.gpu.resources import ACCESS, COSTS, LIMITS, REGISTERS, ROW_TASKS, SHARED
from tilewright.targets.intel.atoms import COPY, MULTIPLY

_REGISTERS = replace(REGISTERS, core_values=128 << 10)
_ACCESS = replace(ACCESS, line_bytes=64)
# tasks have as many lanes as on an H200, in waves of half the size
_ROW_TASKS = replace(ROW_TASKS, waves=16, fewer_waves=8, most_waves=32, least_waves=4)

# A Data Center GPU Max 1550, both stacks. From Intel's overview of the architecture (Hot Chips 2021): cores, clock,
# caches and their rates, registers, lanes. From published figures of Aurora's nodes: measured rate of memory. From
# published tests of its caches: latencies. Costs of launches and of rows not aligned to sectors are guesses.
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
            instructions=3000,
            l1_bytes=512 << 10,
            l2_bytes=408 << 20,
            l2_share=0.6,
            cores=128,
            clock_ghz=1.6,
            l2_rate=56.0,  # 0.9 of 64 bytes a cycle
            far_rate=10.3,  # 2.1 TB/s in published node figures, of 3.3
            far_alone=1.1,
            warm=5.0,
            shared_rate=128.0,
            copy_latency=600,
            sector_bytes=64,
            misaligned_row=1.3,
            misaligned_row_tail=1.5,
            leaving_row=4.0,
            lane_rate=128,
            function_rate=32,
            placing=27.0,  # as on Hopper
            working_registers=32,
            launch_cycles=8000,
            following_cycles=4800,
            start_cycles=4.0,
            **LIMITS,
        ),
        # an engine is an eighth of a core; on NVIDIA, where the constant was fitted, a quarter
        costs=replace(COSTS, one_wave=6),
        register_file=_REGISTERS,
        lane_access=_ACCESS,
        shared_memory=SHARED,
        row_tasks=_ROW_TASKS,
    )
}
