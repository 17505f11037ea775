"""`export`: writes a kernel as files that run without the compiler."""

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
"""The file formats of kernels for CPUs, and their suffixes."""
GPU_SUFFIXES = {"ptx": ".ptx", "cubin": ".cubin"}
"""The file formats of kernels for GPUs, and their suffixes."""
OF_TILE_KERNELS = ("plan", "dynamic", "constant", "require_fast")
"""Options of `export` that only kernels without a fixed schedule take: tile kernels."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_WORDS = re.compile(
    "auto|bool|break|case|catch|char|class|const|continue|default|delete|do|double|else|enum|extern|false|float|for|goto|"
    "if|inline|int|long|main|namespace|new|operator|private|protected|public|register|restrict|return|short|signed|sizeof|"
    "static|struct|switch|template|this|throw|true|try|typedef|union|unsigned|using|virtual|void|volatile|while"
)
"""Keywords of C and C++."""


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
    """Write a kernel as files that run without the compiler, and return their paths: `tilewright.load` takes them, C
    calls them.

    `kernel` is a compiled kernel, which is exported for `sizes`, or else for the sizes of its last call. It may also be
    a kernel, a tile program or the text of a program: these are compiled here for `target` ("cpu", or another machine
    by name, "cpu:x86.avx512") with `plan` and `dynamic` sizes. Arguments that are `constant` are packed once, by the C
    function NAME_bind.

    With `require_fast` a plan that is predicted far above its roofline is an error, as in `compile`.

    `path` names the code's file; header and manifest are next to it, with the suffixes .h and .json. `format` is
    "object" (.o), for a linker, or "shared" (.so), a library to be loaded; for a GPU "ptx", or "cubin" if NVIDIA's
    assembler is installed. Without it, the suffix of `path` decides. `name` is the kernel's name in C. With `tvm_ffi`
    code for a CPU also has the function `__tvm_ffi_NAME`, which TVM-FFI finds and calls. docs/deploying.md describes
    the files and the C interface.

    >>> import numpy as np, tempfile, tilewright
    >>> gemm = tilewright.kernels.gemm("nn", "f32")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = tilewright.export(gemm, f"{folder}/product.so", {"M": 2, "N": 2, "K": 3}, name="product")
    ...     product = tilewright.load(files.code)
    ...     product(np.ones((2, 3), np.float32), np.full((3, 2), 2, np.float32))
    array([[6., 6.],
           [6., 6.]], dtype=float32)
    """
    code_path = named_path(path)
    if not isinstance(tvm_ffi, bool):
        raise ArgumentError(f"tvm_ffi={written(tvm_ffi, 60)}: True or False")
    if not isinstance(require_fast, bool):
        raise ArgumentError(f"require_fast={written(require_fast, 60)}: True or False")
    compiled = _compiled(kernel, sizes, target, plan, dynamic, constant, require_fast)
    source = source_of(compiled)
    c_name = _c_name(source.name if name is None else name)
    if isinstance(source.device, GpuDevice):
        if tvm_ffi:
            raise ArgumentError(
                f"tvm_ffi=True: {c_name} is for a GPU, whose launches are no machine code; leave it out"
            )
        return export_gpu(source, c_name, code_path, _format(code_path, format, GPU_SUFFIXES))
    return export_cpu(source, c_name, code_path, _format(code_path, format, SUFFIXES), tvm_ffi=tvm_ffi)


# -- compilation --------------------------------------------------------------------------------------------


def _compiled(
    kernel: Any,
    sizes: Mapping[Any, int] | None,
    target: str | None,
    plan: Any,
    dynamic: Collection[Any],
    constant: Collection[str],
    require_fast: bool,
) -> Compiled | TextExecutable:
    """Return `kernel` compiled for export.

    A Compiled or TextExecutable is returned as it is. An Executable gives its kernel for `sizes`. Anything else is
    compiled here. `sizes` is {size or parameter: value}; None stands for the sizes of an executable's last call. The
    other arguments are options of `export`, all None, empty or False unless the caller gave them. Raise ArgumentError
    for options that do not fit the kernel.
    """
    for key, value in (("dynamic", dynamic), ("constant", constant)):
        if isinstance(value, str) or not isinstance(value, Collection):
            raise ArgumentError(f"{key}={written(value, 60)}: a list of names, as in {key}=['M']")
    if sizes is not None and not isinstance(sizes, Mapping):
        raise ArgumentError(f"sizes={written(sizes, 60)}: a dictionary of sizes, {{'M': 64}}")
    options = {"target": target, "plan": plan, "dynamic": tuple(dynamic) or None, "constant": tuple(constant) or None}
    options["require_fast"] = require_fast or None
    if isinstance(kernel, Compiled | TextExecutable | Executable):
        stated = [f"{key}={written(value, 60)}" for key, value in options.items() if value is not None]
        if stated:
            raise ArgumentError(f"{', '.join(stated)}: {kernel.name} is compiled already; say so when it is compiled")
    if isinstance(kernel, Compiled | TextExecutable):
        if sizes is not None:
            raise ArgumentError(f"sizes={written(sizes, 60)}: {kernel.name} has its sizes already; leave them out")
        return kernel
    if isinstance(kernel, Executable):
        return _of_executable(kernel, sizes)
    if isinstance(kernel, str) and not kernel.lstrip().startswith("tile"):
        parameters = {k if isinstance(k, str) else getattr(k, "name", str(k)): v for k, v in (sizes or {}).items()}
        _refuse(options, OF_TILE_KERNELS, "a text of the block, loop or host level")
        return compile_text(kernel, target or CPU, parameters)
    from tilewright.block.kernel import BlockKernel

    if isinstance(kernel, BlockKernel):
        _refuse(options, OF_TILE_KERNELS, "a block kernel")
        return compile(kernel, sizes, target=target or CPU)
    executable = compile(kernel, target=target or CPU, plan=plan, dynamic=dynamic, require_fast=require_fast)
    if constant and isinstance(executable, NativeExecutable):
        executable = constant_arguments(executable, constant)
    return _of_executable(executable, sizes)


def _refuse(options: Mapping[str, Any], names: Collection[str], what: str) -> None:
    """Raise ArgumentError for the first option in `names` that the caller has set: the kernel takes none of them.

    `options` is {option: value, or None if it is not set}. `what` describes the kernel in the message.
    """
    for key in names:
        if options[key] is not None:
            raise ArgumentError(f"{key}={written(options[key], 60)}: {what} says itself how it is done; leave it out")


def _of_executable(executable: Executable, sizes: Mapping[Any, int] | None) -> Compiled:
    """Return the kernel of `executable` for `sizes`, {size: value}; for None, the kernel for the sizes of its last
    call.

    If there was no call either, all sizes must be bound. Raise ArgumentError if a size is unknown, or if the executable
    runs in numpy.
    """
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
        unknown = [n for n in names if n not in {s.name for s in executable.known}]
        if unknown:
            example = ", ".join(f"{n!r}: 64" for n in unknown)
            raise ArgumentError(f"{executable.name} has no sizes yet: give them, sizes={{{example}}}")
        return executable.of_sizes({})
    return executable.last


def _c_name(name: Any) -> str:
    """Return `name` unchanged. Raise ArgumentError unless it can name a C function: an identifier that begins with a
    letter, and no keyword of C or C++."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or _WORDS.fullmatch(name):
        raise ArgumentError(
            f"name={written(name, 60)}: C needs a name of letters, digits and _ that is no word of C's own"
        )
    return name


def _format(path: Path, asked: str | None, known: Mapping[str, str]) -> tuple[str, str]:
    """Return (format, suffix) of the code's file, such as ("object", ".o").

    `asked` is the argument `format` of `export`. If it is None, the suffix of `path` decides; without a suffix, it is
    the first format in `known`, which is {format: suffix}. Raise ArgumentError for an unknown format, or if `path` has
    a suffix of another format.
    """
    formats = ", ".join(f"{kind!r} ({suffix})" for kind, suffix in known.items())
    if asked is None:
        by_suffix = {"": next(iter(known)), **{suffix: kind for kind, suffix in known.items()}}.get(path.suffix)
        if by_suffix is None:
            raise ArgumentError(f"path={str(path)!r}: the suffix {path.suffix} tells no format; there is {formats}")
        asked = by_suffix
    if asked not in known:
        raise ArgumentError(f"format={written(asked, 60)}: there is {formats}")
    if path.suffix not in ("", known[asked]):
        raise ArgumentError(f"path={str(path)!r}: a file of the format {asked!r} ends in {known[asked]}")
    return asked, known[asked]
