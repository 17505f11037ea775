"""Cost constants and resource figures that GPUs share, tuned on an H200; machines with measurements of their own
replace them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.machine import Costs, LaneAccess, RegisterFile, ResidentCosts, RowTasks, SharedMemory, TermCosts
from tilewright.targets.gpu.functions import OTHERS

REGISTERS = RegisterFile(
    word_bytes=4,
    loop_registers=32,
    tensor_values=64,
    lane_values=160,
    core_values=64 << 10,
)

ACCESS = LaneAccess(
    vector_bytes=16,
    line_bytes=128,
    own_bytes=64,
    transposed_bytes=256,
    loads_in_flight=32,
)

SHARED = SharedMemory(
    swizzle_bits=3,  # 8 vectors of 16 bytes are 32 banks of 4
    hoisted_elements=16 << 10,
)

ROW_TASKS = RowTasks(
    waves=8,
    fewer_waves=4,
    most_waves=16,
    least_waves=2,
    values=32,
    most_values=48,
    least_values=4,
    loaded_bytes=64,
    part_elements=32 << 10,
)

COSTS = Costs(
    terms=TermCosts(load=6, result=2, task=150, waiting=2, values_in_flight=96, unrolled_products=640),
    # fitted on an H200 to softmax 8192x8192 and layer norm 65536x256 in bf16, with 2 to 32 waves and 1 to 48 rows a
    # task; the assembler assumes 1024 lanes when it assigns registers
    resident=ResidentCosts(lanes=1024, registers=20, exchange=1000, uneven=1.25, sharpness=4),
    one_wave=12,
    functions=OTHERS,
)

LIMITS: Mapping[str, Any] = {"copy_rate": 16.0, "latency": 4, "load_cycles": 0.6, "line_bytes": 64}
"""Fields of `Limits` that all GPU machines have in common."""
