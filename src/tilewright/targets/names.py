"""The names of targets: which are CPUs, and which are GPUs."""

from __future__ import annotations

CPU = "cpu"
"""The target that is the CPU at hand; `cpu:NAME` is a named machine."""

GPU, CUDA = "gpu", "cuda"
"""The GPU at hand, of whatever maker, and NVIDIA's; with a colon a named machine, `gpu:hopper`, `cuda:hopper`."""


INTERPRETER = "interpreter"
"""The target that says what block programs mean."""


def is_native(target: str) -> bool:
    """Whether programs become machine code for a target.

    >>> is_native("cpu"), is_native("cpu:aarch64.neon"), is_native("interpreter")
    (True, True, False)
    """
    return target == CPU or target.startswith(f"{CPU}:")


def is_gpu(target: str) -> bool:
    """Whether a target is a GPU.

    >>> is_gpu("gpu"), is_gpu("cuda"), is_gpu("gpu:hopper"), is_gpu("cpu")
    (True, True, True, False)
    """
    return target.partition(":")[0] in (GPU, CUDA)
