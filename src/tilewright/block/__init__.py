"""The block language: where data lie, who moves them, and when; Composable Kernel's level, for authors in Python.

A kernel is a Python function under `@tb.kernel(machine, waves=...)`. It is called once, and each call in it makes one
operation of the block level (docs/levels/block_operations.md), at the author's line; what a machine refuses, and what
an interpreter finds wrong, points there. docs/block.md is the tutorial.

| file       | subject                                                                      |
|------------|------------------------------------------------------------------------------|
| kernel     | `kernel`, arguments (`In`, `Out`, `InOut`), parameters (`Size`, `Let`)        |
| tensor     | tensors and their views: `view`, `pad`, `tile`, slices, `merge`, `unmerge`   |
| moving     | `shared`, `registers`, `copy`, `fill`, `gather`, ...                         |
| computing  | `map`, `reduce`, `scan`                                                      |
| formulas   | operators and functions, element by element                                  |
| mma        | `Mma`: an atom and an arrangement of waves; `blockwise_copy`                 |
| partition  | `partition`: a tile distributed over threads                                 |
| control    | `tasks`, `steps`, `if_`, `role`, `ring`, `barrier`, `let`                    |
| integers   | `cdiv`, `min`, `max` of sizes and loop variables                             |
| tracing    | the program as it grows                                                      |
| names      | what the author calls things                                                 |
| pictures   | who holds which element, and which bank it lies in                           |
"""

from tilewright.algebra import Layout, Swizzle
from tilewright.block.computing import map, reduce, scan
from tilewright.block.control import (
    barrier,
    edge,
    else_,
    finally_,
    if_,
    let,
    require,
    ring,
    role,
    steps,
    tasks,
    while_,
)
from tilewright.block.formulas import (
    atan2,
    cast,
    cbrt,
    ceil,
    cos,
    cosh,
    erf,
    exp,
    exp2,
    expm1,
    floor,
    fma,
    log,
    log1p,
    log2,
    log10,
    maximum,
    minimum,
    reciprocal,
    relu,
    remf,
    round_,
    roundeven,
    rsqrt,
    select,
    sigmoid,
    sin,
    sinh,
    sqrt,
    tanh,
)
from tilewright.block.integers import cdiv, max, min
from tilewright.block.kernel import BlockKernel, In, InOut, Let, Out, Size, kernel
from tilewright.block.mma import Mma, blockwise_copy
from tilewright.block.moving import (
    atomic,
    broadcast,
    clear,
    convert_layout,
    copy,
    debug_log,
    fill,
    gather,
    registers,
    scatter,
    shared,
)
from tilewright.block.partition import partition
from tilewright.block.tensor import Tensor, maybe

__all__ = [
    "BlockKernel",
    "In",
    "InOut",
    "Layout",
    "Let",
    "Mma",
    "Out",
    "Size",
    "Swizzle",
    "Tensor",
    "atan2",
    "atomic",
    "barrier",
    "blockwise_copy",
    "broadcast",
    "cast",
    "cbrt",
    "cdiv",
    "ceil",
    "clear",
    "convert_layout",
    "copy",
    "cos",
    "cosh",
    "debug_log",
    "edge",
    "else_",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "fill",
    "finally_",
    "floor",
    "fma",
    "gather",
    "if_",
    "kernel",
    "let",
    "log",
    "log1p",
    "log2",
    "log10",
    "map",
    "max",
    "maximum",
    "maybe",
    "min",
    "minimum",
    "partition",
    "reciprocal",
    "reduce",
    "registers",
    "relu",
    "remf",
    "require",
    "ring",
    "role",
    "round_",
    "roundeven",
    "rsqrt",
    "scan",
    "scatter",
    "select",
    "shared",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "steps",
    "tanh",
    "tasks",
    "while_",
]
