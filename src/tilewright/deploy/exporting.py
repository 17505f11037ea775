"""`export`: a kernel as files that run without the compiler."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tilewright.compiler.compiled import Compiled
from tilewright.compiler.device import GpuDevice
from tilewright.compiler.kernels import Executable, compile
from tilewright.compiler.native import NativeExecutable, constant_arguments
from tilewright.compiler.text import TextExecutable, compile_text
from tilewright.deploy.cpu import export_cpu
from tilewright.deploy.files import named_path
from tilewright.deploy.gpu import export_gpu
from tilewright.deploy.source import Exported, source_of
from tilewright.errors import ArgumentError
from tilewright.limits import written
from tilewright.targets.names import CPU

SUFFIXES = {"object": ".o", "shared": ".so"}
"""The formats that a kernel for a CPU can be exported in, and their files."""
GPU_SUFFIXES = {"ptx": ".ptx", "cubin": ".cubin"}
"""The same for a GPU."""
OF_TILE_KERNELS = ("plan", "dynamic", "constant", "require_fast")
"""Options of kernels that are planned."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_WORDS = re.compile(
    "auto|bool|break|case|catch|char|class|const|continue|default|delete|do|double|else|enum|extern|false|float|for|goto|"
    "if|inline|int|long|main|namespace|new|operator|private|protected|public|register|restrict|return|short|signed|sizeof|"
    "static|struct|switch|template|this|throw|true|try|typedef|union|unsigned|using|virtual|void|volatile|while"
)
"""Words that C or C++ keeps for itself."""


def export(
    kernel: Any,
    path: str | os.PathLike[str],
    sizes: Mapping[Any, int] | None = None,
    *,
    format: str | None = None,  # noqa: A002
    name: str | None = None,
    target: str | None = None,
    plan: Any = None,
    dynamic: Collection[Any] = (),
    constant: Collection[str] = (),
    tvm_ffi: bool = False,
    require_fast: bool = False,
) -> Exported:
    """Writes a kernel as files that run without the compiler: `tilewright.load` takes them, and C calls them.

    `kernel` is one that was compiled, with the sizes it was called with last, or with `sizes`; or a kernel, a tile
    program or a text, which is compiled for `target` ("cpu", or another machine by name, "cpu:x86.avx512") with
    `plan`, `dynamic` sizes, and arguments that are `constant`: those are packed once, by the function that binds.

    With `require_fast` a plan that is predicted far above its roofline is an error, as `compile` has it.

    `path` names the code; header and manifest lie beside it, with the suffixes .h and .json. `format` is "object" (.o),
    for a linker, or "shared" (.so), a library that is loaded as it is; for a GPU "ptx", or "cubin" where NVIDIA's
    assembler is installed. Without one, the suffix of the
    path tells it. `name` is what C calls the kernel. With `tvm_ffi` code for a CPU also has the function
    `__tvm_ffi_NAME`, which TVM-FFI finds and calls. docs/deploying.md describes all of it.

    >>> import numpy as np, tempfile, tilewright
    >>> gemm = tilewright.kernels.gemm("nn", "f32")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = tilewright.export(gemm, f"{folder}/product.so", {"M": 2, "N": 2, "K": 3}, name="product")
    ...     product = tilewright.load(files.code)
    ...     product(np.ones((2, 3), np.float32), np.full((3, 2), 2, np.float32))
    array([[6., 6.],
           [6., 6.]], dtype=float32)
    """
    place = named_path(path)
    if not isinstance(tvm_ffi, bool):
        raise ArgumentError(f"tvm_ffi={written(tvm_ffi, 60)}: True or False")
    if not isinstance(require_fast, bool):
        raise ArgumentError(f"require_fast={written(require_fast, 60)}: True or False")
    compiled = _compiled(kernel, sizes, target, plan, dynamic, constant, require_fast)
    source = source_of(compiled)
    called = _c_name(source.name if name is None else name)
    if isinstance(source.device, GpuDevice):
        if tvm_ffi:
            raise ArgumentError(
                f"tvm_ffi=True: {called} is for a GPU, whose launches are no machine code; leave it out"
            )
        return export_gpu(source, called, place, _format(place, format, GPU_SUFFIXES))
    return export_cpu(source, called, place, _format(place, format, SUFFIXES), tvm_ffi=tvm_ffi)


# -- what is exported ---------------------------------------------------------------------------------------


def _compiled(
    kernel: Any,
    sizes: Mapping[Any, int] | None,
    target: str | None,
    plan: Any,
    dynamic: Collection[Any],
    constant: Collection[str],
    require_fast: bool,
) -> Compiled | TextExecutable:
    for key, value in (("dynamic", dynamic), ("constant", constant)):
        if isinstance(value, str) or not isinstance(value, Collection):
            raise ArgumentError(f"{key}={written(value, 60)}: a list of names, as in {key}=['M']")
    if sizes is not None and not isinstance(sizes, Mapping):
        raise ArgumentError(f"sizes={written(sizes, 60)}: a dictionary of sizes, {{'M': 64}}")
    options = {"target": target, "plan": plan, "dynamic": tuple(dynamic) or None, "constant": tuple(constant) or None}
    options["require_fast"] = require_fast or None
    if isinstance(kernel, Compiled | TextExecutable | Executable):
        said = [f"{key}={written(value, 60)}" for key, value in options.items() if value is not None]
        if said:
            raise ArgumentError(f"{', '.join(said)}: {kernel.name} is compiled already; say so when it is compiled")
    if isinstance(kernel, Compiled | TextExecutable):
        if sizes is not None:
            raise ArgumentError(f"sizes={written(sizes, 60)}: {kernel.name} has its sizes already; leave them out")
        return kernel
    if isinstance(kernel, Executable):
        return _of_executable(kernel, sizes)
    if isinstance(kernel, str) and not kernel.lstrip().startswith("tile"):
        given = {k if isinstance(k, str) else getattr(k, "name", str(k)): v for k, v in (sizes or {}).items()}
        _refuse(options, OF_TILE_KERNELS, "a text of the block, loop or host level")
        return compile_text(kernel, target or CPU, given)
    from tilewright.block.kernel import BlockKernel

    if isinstance(kernel, BlockKernel):
        _refuse(options, OF_TILE_KERNELS, "a block kernel")
        return compile(kernel, sizes, target=target or CPU)
    executable = compile(kernel, target=target or CPU, plan=plan, dynamic=dynamic, require_fast=require_fast)
    if constant and isinstance(executable, NativeExecutable):
        executable = constant_arguments(executable, constant)
    return _of_executable(executable, sizes)


def _refuse(options: Mapping[str, Any], names: Collection[str], what: str) -> None:
    for key in names:
        if options[key] is not None:
            raise ArgumentError(f"{key}={written(options[key], 60)}: {what} says itself how it is done; leave it out")


def _of_executable(executable: Executable, sizes: Mapping[Any, int] | None) -> Compiled:
    if not isinstance(executable, NativeExecutable):
        raise ArgumentError(
            f"{executable.name} is no machine code: it runs on the executor; compile it for target='cpu'"
        )
    if sizes is not None:
        return executable.of_sizes(sizes)
    if executable.last is None:
        names = sorted(
            {s.name for a in executable.program.args for d in getattr(a.type, "dims", ()) for s in d.symbols}
        )
        left = [n for n in names if n not in {s.name for s in executable.known}]
        if left:
            example = ", ".join(f"{n!r}: 64" for n in left)
            raise ArgumentError(f"{executable.name} has no sizes yet: give them, sizes={{{example}}}")
        return executable.of_sizes({})
    return executable.last


def _c_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or _WORDS.fullmatch(name):
        raise ArgumentError(
            f"name={written(name, 60)}: C needs a name of letters, digits and _ that is no word of C's own"
        )
    return name


def _format(path: Path, asked: str | None, known: Mapping[str, str]) -> tuple[str, str]:
    """The format that is asked for, or that the path's suffix says, and its suffix."""
    there = ", ".join(f"{kind!r} ({suffix})" for kind, suffix in known.items())
    if asked is None:
        told = {"": next(iter(known)), **{suffix: kind for kind, suffix in known.items()}}.get(path.suffix)
        if told is None:
            raise ArgumentError(f"path={str(path)!r}: the suffix {path.suffix} tells no format; there is {there}")
        asked = told
    if asked not in known:
        raise ArgumentError(f"format={written(asked, 60)}: there is {there}")
    if path.suffix not in ("", known[asked]):
        raise ArgumentError(f"path={str(path)!r}: a file of the format {asked!r} ends in {known[asked]}")
    return asked, known[asked]
