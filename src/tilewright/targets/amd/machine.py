"""The machine table of AMD's GPUs: CDNA3, waves of 64 lanes."""

from __future__ import annotations

from dataclasses import replace

from tilewright.machine import Limits, Machine, spaces_of
from tilewright.targets.amd.atoms import COPY, MULTIPLY
from tilewright.targets.gpu.resources import ACCESS, COSTS, LIMITS, REGISTERS, ROW_TASKS, SHARED

_REGISTERS = replace(REGISTERS, core_values=128 << 10)
# tasks have as many lanes as on an H200, in waves of twice the size
_ROW_TASKS = replace(ROW_TASKS, waves=4, fewer_waves=2, most_waves=16, least_waves=1)

# An MI300X. From AMD's whitepaper and instruction set manual of CDNA3: cores, clock, caches and their rates, registers,
# LDS, lanes. From published tests of its caches: measured rates of memory and Infinity Cache, latencies. The costs of
# launches and of rows that are not aligned to sectors are guesses.
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
            instructions=3000,
            l1_bytes=32 << 10,
            # the Infinity Cache, which all cores share; in front of it each die has an L2 of 4 MiB, with `l2_rate`
            l2_bytes=256 << 20,
            l2_share=0.6,
            cores=304,
            clock_ghz=2.1,
            l2_rate=48.0,  # 0.9 of 2048 bytes a cycle for the 38 cores of a die
            far_rate=6.6,  # 4.2 TB/s in published benchmarks, of 5.3
            far_alone=1.5,
            warm=2.8,  # 11.9 TB/s of the Infinity Cache, as published
            shared_rate=128.0,
            copy_latency=700,
            sector_bytes=64,
            misaligned_row=1.3,
            misaligned_row_tail=1.5,
            leaving_row=4.0,
            lane_rate=64,
            function_rate=16,
            placing=27.0,  # as on Hopper
            working_registers=64,
            launch_cycles=10500,
            following_cycles=6300,
            start_cycles=2.0,
            **LIMITS,
        ),
        costs=COSTS,
        register_file=_REGISTERS,
        lane_access=ACCESS,
        shared_memory=SHARED,
        row_tasks=_ROW_TASKS,
    )
}
