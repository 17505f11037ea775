"""The names of targets: which are CPUs, and which are GPUs."""

from __future__ import annotations

CPU = "cpu"
"""The target that is the CPU at hand; `cpu:NAME` is a named machine."""

GPU, CUDA = "gpu", "cuda"
"""`gpu` is the GPU at hand, of any maker; `cuda` is NVIDIA's. With a colon they name a machine, `gpu:hopper`."""


INTERPRETER = "interpreter"
"""The target whose interpreter defines what block programs mean."""


def is_native(target: str) -> bool:
    """True if `target` names a CPU: it is "cpu", or begins with "cpu:". Whether the machine exists is not checked.

    >>> is_native("cpu"), is_native("cpu:aarch64.neon"), is_native("interpreter")
    (True, True, False)
    """
    return target == CPU or target.startswith(f"{CPU}:")


def is_gpu(target: str) -> bool:
    """True if `target` names a GPU: it is "gpu" or "cuda", or begins with "gpu:" or "cuda:". Whether the machine exists
    is not checked.

    >>> is_gpu("gpu"), is_gpu("cuda"), is_gpu("gpu:hopper"), is_gpu("cpu")
    (True, True, True, False)
    """
    return target.partition(":")[0] in (GPU, CUDA)
