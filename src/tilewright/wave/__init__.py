"""The tile language: operations, constraints and kernels, under the names of Wave. Used as `tkw`.

| file        | subject                                              |
|-------------|------------------------------------------------------|
| ops, memory_ops | the operations, as functions that kernels call   |
| constraints | how work is cut                                      |
| kernel      | `@wave` and tracing                                  |
| tracer      | what stands for tiles and memory while tracing       |
| powers      | small integer powers, as products                    |
| fractions   | fractions of sizes beside float tiles                |
| truth       | what to write where Python asks a tile for its truth |
| scope       | names of Wave's that are out of scope                |
| templates   | kernels made to measure: the seed's convolution      |
| wave_schedule | manual schedules: taken, and not used              |
"""

from typing import Any

from tilewright.ir import dtypes
from tilewright.lang.mapping import IndexMapping
from tilewright.lang.types import Register
from tilewright.wave import memory_ops, ops, wave_schedule
from tilewright.wave.constraints import (
    Assumption,
    Constraint,
    DeviceConstraint,
    GenericDot,
    GridConstraint,
    HardwareConstraint,
    IteratorBindings,
    MMAOperand,
    MMAType,
    ReorderingConstraint,
    ScaledMMAType,
    SymbolicAlias,
    TilingConstraint,
    WaveConstraint,
    WorkgroupConstraint,
)
from tilewright.wave.kernel import Kernel, wave
from tilewright.wave.memory_ops import *  # noqa: F403
from tilewright.wave.ops import *  # noqa: F403
from tilewright.wave.scope import MemoryAccessFlags, out_of_scope, tag

wave_trace_only = wave
globals().update({t.name: t for t in dtypes.ALL.values()} | {"i1": dtypes.bool_})  # Wave offers them here too
LaunchableWave = Kernel


def __getattr__(name: str) -> Any:
    return out_of_scope(name, __all__)


__all__ = [
    "Assumption",
    "Constraint",
    "DeviceConstraint",
    "GenericDot",
    "GridConstraint",
    "HardwareConstraint",
    "IndexMapping",
    "IteratorBindings",
    "Kernel",
    "LaunchableWave",
    "MMAOperand",
    "MMAType",
    "MemoryAccessFlags",
    "Register",
    "ReorderingConstraint",
    "ScaledMMAType",
    "SymbolicAlias",
    "TilingConstraint",
    "WaveConstraint",
    "WorkgroupConstraint",
    "allocate",
    "apply_expr",
    "argmax",
    "argmin",
    "atomic_add",
    "atomic_min",
    "bitcast",
    "broadcast",
    "cast",
    "conditional",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "debug_log",
    "extract",
    "iterate",
    "max",
    "min",
    "mma",
    "permute",
    "prod",
    "read",
    "register",
    "reshape",
    "scalar",
    "scatter_add",
    "select",
    "self_index",
    "set_symbol",
    "shared_memory_barrier",
    "sum",
    "tag",
    "tanh_approx",
    "topk",
    "wave",
    "wave_schedule",
    "wave_trace_only",
    "workgroup_barrier",
    "write",
]
__all__ += [name for name in ops.__all__ if name not in __all__]
