"""`compile` for block kernels: the kernel is traced for its parameters, and the program compiled as by
`compile_text`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.block.kernel import BlockKernel
from tilewright.compiler.text import TextExecutable
from tilewright.errors import ProgramError
from tilewright.targets.names import CPU, GPU, INTERPRETER
from tilewright.targets.registry import check_target


def compile_block(
    kernel: BlockKernel,
    params: Mapping[Any, Any] | None = None,
    *,
    target: str = CPU,
    workers: int | None = None,
    seed: int = 0,
) -> TextExecutable:
    """Trace a block kernel for its parameters, compile it for `target` and return an executable; call it with arrays.

    `params` is {parameter or its name: value}; open sizes may be left to the arrays of a call. Targets are those of
    `compile_text`:

    - "cpu", "cpu:NAME": machine code for a CPU; kernels with several roles are refused;
    - "gpu", "gpu:NAME": code for the GPU that the kernel is written for;
    - "interpreter": runs all kernels. `seed` chooses the order in which waves run; correct programs give the same
      results for all.

    `workers` is the number of workgroups that share the tasks (None: two on the interpreter, one per core on a CPU).
    Raise ArgumentError for an unknown target or option, and ProgramError for a kernel that is illegal.

    >>> import numpy as np, tilewright.block as tb
    >>> @tb.kernel()
    ... def double(x: tb.In("f32", "M", "N"), y: tb.Out("f32", "M", "N"), *, M: tb.Size(1, 65536), N=3):
    ...     for m in tb.tasks(M):
    ...         y[m, :] = 2 * x[m, :]
    >>> compile_block(double, target="interpreter")(np.arange(6, dtype=np.float32).reshape(2, 3))
    array([[ 0.,  2.,  4.],
           [ 6.,  8., 10.]], dtype=float32)
    """
    check_target(target, (INTERPRETER, GPU))
    param_values = {k if isinstance(k, str) else getattr(k, "name", str(k)): v for k, v in (params or {}).items()}
    try:
        program = kernel.trace(param_values)
        return TextExecutable([program], {}, target, workers, seed)
    except ProgramError as fault:
        raise fault.with_traceback(None) from None
