"""`export`: a kernel as files that run without the compiler."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright._version import __version__
from tilewright.algebra.expr import Const, Expr
from tilewright.algebra.expr_use import Substitution
from tilewright.codegen.entry.abi import ALIGNMENT, FORMAT
from tilewright.codegen.entry.write import COUNT, Entry
from tilewright.compiler.compiled import Compiled
from tilewright.compiler.device import GpuDevice
from tilewright.compiler.kernels import Executable, compile
from tilewright.compiler.native import NativeExecutable, constant_arguments
from tilewright.compiler.text import TextExecutable, compile_text
from tilewright.deploy.files import write_whole
from tilewright.deploy.header import header_text
from tilewright.deploy.manifest import digest, manifest_text
from tilewright.deploy.source import ExportSource, source_of
from tilewright.errors import ArgumentError
from tilewright.ir.binding import allowed, open_sizes
from tilewright.limits import written
from tilewright.machine import Machine
from tilewright.targets.cpu.exported import ExportedObject, exported_object
from tilewright.targets.cpu.families import family_of
from tilewright.targets.cpu.objects import shared_library
from tilewright.targets.registry import CPU

SUFFIXES = {"object": ".o", "shared": ".so"}
"""The formats that a kernel for a CPU can be exported in, and their files."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_WORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int long register "
    "restrict return short signed sizeof static struct switch typedef union unsigned void volatile while class "
    "namespace template this new delete try catch throw operator private public protected virtual using bool true false "
    "main".split()
)
"""Words that C or C++ keeps for itself."""


@dataclass(frozen=True)
class Exported:
    """The files of an exported kernel: its code, its C header (CPUs only) and its manifest, which `manifest` holds."""

    code: Path
    header: Path | None
    manifest_file: Path
    manifest: Mapping[str, Any]


def export(
    kernel: Any,
    path: str | os.PathLike[str],
    sizes: Mapping[Any, int] | None = None,
    *,
    format: str | None = None,
    name: str | None = None,
    target: str | None = None,
    plan: Any = None,
    dynamic: Collection[Any] = (),
    constant: Collection[str] = (),
) -> Exported:
    """Writes a kernel as files that run without the compiler: `tilewright.load` takes them, and C calls them.

    `kernel` is one that was compiled, with the sizes it was called with last, or with `sizes`; or a kernel, a tile
    program or a text, which is compiled for `target` ("cpu", or another machine by name, "cpu:x86.avx512") with
    `plan`, `dynamic` sizes, and arguments that are `constant`: those are packed once, by the function that binds.

    `path` names the code; header and manifest lie beside it, with the suffixes .h and .json. `format` is "object" (.o),
    for a linker, or "shared" (.so), a library that is loaded as it is; a GPU's is "ptx". Without one, the suffix of the
    path tells it. `name` is what C calls the kernel. docs/deploying.md describes all of it.

    >>> import numpy as np, tempfile, tilewright
    >>> gemm = tilewright.kernels.gemm("nn", "f32")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = tilewright.export(gemm, f"{folder}/product.so", {"M": 2, "N": 2, "K": 3}, name="product")
    ...     product = tilewright.load(files.code)
    ...     product(np.ones((2, 3), np.float32), np.full((3, 2), 2, np.float32))
    array([[6., 6.],
           [6., 6.]], dtype=float32)
    """
    compiled = _compiled(kernel, sizes, target, plan, dynamic, constant)
    source = source_of(compiled)
    called = _c_name(source.name if name is None else name)
    place = Path(path)
    if isinstance(source.device, GpuDevice):
        from tilewright.deploy.gpu import export_gpu

        return export_gpu(source, called, place, _format(place, format, {"ptx": ".ptx"}))
    return _export_cpu(source, called, place, _format(place, format, SUFFIXES))


# -- what is exported ---------------------------------------------------------------------------------------


def _compiled(
    kernel: Any,
    sizes: Mapping[Any, int] | None,
    target: str | None,
    plan: Any,
    dynamic: Collection[Any],
    constant: Collection[str],
) -> Compiled | TextExecutable:
    options = {"target": target, "plan": plan, "dynamic": tuple(dynamic) or None, "constant": tuple(constant) or None}
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
        _refuse(options, ("plan", "dynamic", "constant"), "a text of the block, loop or host level")
        return compile_text(kernel, target or CPU, given)
    from tilewright.block.kernel import BlockKernel

    if isinstance(kernel, BlockKernel):
        _refuse(options, ("plan", "dynamic", "constant"), "a block kernel")
        return compile(kernel, sizes, target=target or CPU)
    made = compile(kernel, target=target or CPU, plan=plan, dynamic=dynamic)
    if constant:
        made = constant_arguments(made, constant)
    return _of_executable(made, sizes)


def _refuse(options: Mapping[str, Any], names: Collection[str], what: str) -> None:
    for key in names:
        if options[key] is not None:
            raise ArgumentError(f"{key}={written(options[key], 60)}: {what} says itself how it is done; leave it out")


def _of_executable(executable: Executable, sizes: Mapping[Any, int] | None) -> Compiled:
    if not isinstance(executable, NativeExecutable):
        raise ArgumentError(f"{executable.name} is no machine code: it runs on the executor; compile it for target='cpu'")
    if sizes is not None:
        return executable.of_sizes(sizes)
    if executable.last is None:
        names = sorted({s.name for a in executable.program.args for d in getattr(a.type, "dims", ()) for s in d.symbols})
        left = [n for n in names if n not in {s.name for s in executable.known}]
        if left:
            example = ", ".join(f"{n!r}: 64" for n in left)
            raise ArgumentError(f"{executable.name} has no sizes yet: give them, sizes={{{example}}}")
        return executable.of_sizes({})
    return executable.last


def _c_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _WORDS:
        raise ArgumentError(f"name={written(name, 60)}: C needs a name of letters, digits and _ that is no word of C's own")
    return name


def _format(path: Path, asked: str | None, known: Mapping[str, str]) -> tuple[str, str]:
    """The format that is asked for, or that the path's suffix says, and its suffix."""
    if asked is None:
        by_suffix = {suffix: kind for kind, suffix in known.items()}
        first = next(iter(known))
        asked = by_suffix.get(path.suffix, first if not path.suffix else path.suffix)
    if asked not in known:
        there = ", ".join(f"{kind!r} ({suffix})" for kind, suffix in known.items())
        raise ArgumentError(f"format={written(asked, 60)}: there is {there}")
    if path.suffix not in ("", known[asked]):
        raise ArgumentError(f"path={str(path)!r}: a file of the format {asked!r} ends in {known[asked]}")
    if not path.stem:
        raise ArgumentError(f"path={str(path)!r} names no file")
    return asked, known[asked]


# -- CPUs ---------------------------------------------------------------------------------------------------


def _export_cpu(source: ExportSource, name: str, path: Path, form: tuple[str, str]) -> Exported:
    machine: Machine = source.device.target.machine

    def launched(op: Any) -> Any:
        found = source.launchable(op)
        return found.kernel, found.conditions

    made = exported_object(name, source.host, launched, machine)
    kind, suffix = form
    place = path.with_suffix(suffix)
    code = made.code if kind == "object" else shared_library(made.code, place.name)
    manifest = common_manifest(source, name, kind, place, code, machine) | _interface(source, made)
    manifest["machine"] |= {
        "architectures": [*family_of(machine).architectures] or [str(made.options.triple).partition("-")[0]],
        "triple": made.options.triple,
    }
    called, bound = made.entry.called, made.entry.bound
    for argument in manifest["arguments"]:
        argument |= {"bound": argument["name"] in bound, "called": argument["name"] in called}
    header = path.with_suffix(".h")
    write_whole(place, code)
    write_whole(header, header_text(manifest).encode())
    listed = path.with_suffix(".json")
    write_whole(listed, manifest_text(manifest).encode())
    return Exported(place, header, listed, manifest)


def common_manifest(
    source: ExportSource, name: str, kind: str, place: Path, code: bytes, machine: Machine
) -> dict[str, Any]:
    """What the manifests of all kinds of code say."""
    sizes = []
    for s in open_sizes(source.host):
        numbers = allowed(s)
        row = {"name": s.name, "symbol": source.symbols.get(s.name, s.name)}
        sizes.append({**row, "least": numbers.start, "most": numbers[-1], "step": numbers.step})
    return {
        "format": FORMAT,
        "version": __version__,
        "name": name,
        "kind": kind,
        "file": place.name,
        "bytes": len(code),
        "sha256": digest(code),
        "machine": {"name": machine.name, "features": sorted(machine.features)},
        "arguments": [
            {
                "name": a.name,
                "type": a.type.dtype.name,
                "shape": [e.value if isinstance(e, Const) else str(e) for e in a.type.shape],
                "role": a.type.role,
                "alignment": a.type.dtype.numpy.itemsize,
            }
            for a in source.host.args
        ],
        "sizes": sizes,
        "errors": {},
        "signature": source.signature,
        "outputs": list(source.outputs),
        "optional": list(source.optional),
        "lenient": source.lenient,
        "plan": source.plan,
    }


def _interface(source: ExportSource, made: ExportedObject) -> dict[str, Any]:
    entry: Entry = made.entry
    most: Callable[[Expr], Expr] = Substitution({COUNT: entry.most_workers})
    kept, workspace = (most(e) for e in (entry.kept_bytes, entry.workspace_bytes))
    return {
        "alignment": ALIGNMENT,
        "kept_bytes": kept.value if isinstance(kept, Const) else None,
        "workspace_bytes": workspace.value if isinstance(workspace, Const) else None,
        "workers": entry.most_workers,
        "errors": {str(f.code): f.says for f in entry.faults},
    }
