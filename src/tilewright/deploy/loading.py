"""`load`: an exported kernel, to be called on arrays as a compiled one is; the compiler is not needed."""

from __future__ import annotations

import os

from tilewright.deploy.files import named_path
from tilewright.deploy.loaded import LoadedKernel
from tilewright.deploy.manifest import read_manifest
from tilewright.errors import ArgumentError
from tilewright.limits import WORKERS, written


def load(path: str | os.PathLike[str], *, workers: int | None = None) -> LoadedKernel:
    """An exported kernel, ready to be called on arrays; neither the compiler nor LLVM is loaded.

    `path` is its code, its manifest, or both without the suffix. `workers` is how many threads a call on a CPU may use:
    one for each core unless it is given. A machine that lacks what the code needs is refused (`TargetError`), and so
    are files that are missing, cut off, changed, or of another version (`ManifestError`).

    >>> load("nowhere/gemm.o")
    Traceback (most recent call last):
    tilewright.errors.ManifestError: nowhere/gemm.json: No such file or directory; an exported kernel has its manifest
    beside it: copy both files
    """
    if workers is not None and (type(workers) is not int or not 1 <= workers <= WORKERS.most):
        raise ArgumentError(f"workers={written(workers)}: an integer of at least 1; {WORKERS.rule}")
    place = named_path(path)
    manifest = read_manifest(place)
    if manifest["kind"] in ("ptx", "cubin"):
        from tilewright.deploy.gpu_kernel import LoadedGpuKernel

        return LoadedGpuKernel(place, manifest)
    from tilewright.deploy.cpu_kernel import LoadedCpuKernel

    return LoadedCpuKernel(place, manifest, workers)
