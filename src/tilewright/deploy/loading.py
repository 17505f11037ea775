"""`load`: loads an exported kernel, which is then called like a compiled one, without the compiler."""

from __future__ import annotations

import os

from tilewright.deploy.files import named_path
from tilewright.deploy.loaded import LoadedKernel
from tilewright.deploy.manifest import read_manifest
from tilewright.errors import ArgumentError
from tilewright.limits import WORKERS, written


def load(path: str | os.PathLike[str], *, workers: int | None = None) -> LoadedKernel:
    """Load an exported kernel and return it, ready to be called on arrays. Neither the compiler nor LLVM is loaded.

    `path` is its code, its manifest, or both without the suffix. `workers` is the number of threads of a call on a CPU;
    None: TILEWRIGHT_THREADS, or one for each core. Raise TargetError if the machine lacks what the code needs,
    ManifestError for files that are missing, truncated, changed, or of another version, and ArgumentError if `path` or
    `workers` is invalid.

    >>> load("nowhere/gemm.o")
    Traceback (most recent call last):
    tilewright.errors.ManifestError: nowhere/gemm.json: No such file or directory; an exported kernel has its manifest
    beside it: copy both files
    """
    if workers is not None and (type(workers) is not int or not 1 <= workers <= WORKERS.most):
        raise ArgumentError(f"workers={written(workers)}: an integer of at least 1; {WORKERS.rule}")
    file = named_path(path)
    manifest = read_manifest(file)
    if manifest["kind"] in ("ptx", "cubin"):
        from tilewright.deploy.gpu_kernel import LoadedGpuKernel

        return LoadedGpuKernel(file, manifest)
    from tilewright.deploy.cpu_kernel import LoadedCpuKernel

    return LoadedCpuKernel(file, manifest, workers)
