"""The input of an export: a host program, the machine code of its launches, and the signature of calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright._version import __version__
from tilewright.algebra.expr import Const, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.codegen.entry.abi import FORMAT
from tilewright.compiler.compiled import Compiled
from tilewright.compiler.device import GpuDevice, NativeDevice
from tilewright.compiler.text import TextExecutable
from tilewright.deploy.manifest import digest
from tilewright.errors import ArgumentError
from tilewright.ir.alone import launching_host
from tilewright.ir.binding import allowed, open_parameters, open_sizes
from tilewright.ir.core import Block, MemoryType, Op, Program, Value
from tilewright.ir.printer import program_text
from tilewright.ir.tile import TILE
from tilewright.machine import Machine
from tilewright.runtime.host import HostExecutor


@dataclass(frozen=True)
class Exported:
    """The paths of an exported kernel's code, C header (CPUs only) and manifest, and the content of the manifest."""

    code: Path
    header: Path | None
    manifest_file: Path
    manifest: Mapping[str, Any]


@dataclass(frozen=True)
class ExportSource:
    """A host program to be exported, with the compiled programs of its launches.

    `signature` is a tile program without operations, against which calls are checked. `outputs` are the arguments that
    are written; a call may leave out those in `optional`. `symbols` maps each size of the host program to the name of
    the signature's symbol for it.
    """

    name: str
    host: Program
    device: Any
    launches: Mapping[Op, Any]
    signature: Program
    outputs: tuple[str, ...]
    optional: tuple[str, ...]
    lenient: bool
    plan: str
    symbols: Mapping[str, str]

    def launchable(self, op: Op) -> Any:
        """Return the compiled program that the launch operation `op` launches."""
        return self.launches[op]


def source_of(compiled: Compiled | TextExecutable) -> ExportSource:
    """Return the ExportSource of a compiled kernel: its host program, the machine code of its launches, and its
    signature.

    Raise ArgumentError if the kernel is not machine code, if it logs values, or if a launch has machine code that
    depends on a call's sizes.
    """
    return _of_kernel(compiled) if isinstance(compiled, Compiled) else _of_text(compiled)


def _of_kernel(compiled: Compiled) -> ExportSource:
    """Return the ExportSource of a compiled tile kernel.

    Raise ArgumentError if it logs values, if it is not machine code, or if a launch has machine code that depends on a
    call's sizes.
    """
    if compiled.logs:
        raise ArgumentError(
            f"{compiled.name} logs values (tkw.debug_log), which an exported kernel does not: leave them out"
        )
    executable, named, shapes = compiled.member
    device = compiled.executor.device
    _require_code(device, compiled.name, compiled.target)
    opened = sorted(executable.dynamic, key=lambda s: s.name) if shapes is None else []
    program = executable.program
    numbers: dict[Any, Expr] = {
        s: as_expr(named[s.name]) for s in _symbols(program, executable.known) if s.name in named and s not in opened
    }
    if opened:  # expressions of open sizes are not numbers
        numbers = {s: e for s, e in numbers.items() if not executable.known.get(s, e).symbols & set(opened)}
    images = Substitution(numbers)
    known = {**{s: images(e) for s, e in executable.known.items()}, **numbers}
    head = replace(
        program,
        body=Block((), []),
        records=[r for r in program.records if r.name == "assume"],
        bindings=dict(known),
    )
    outputs = tuple(a.name or "" for a in executable.outputs)
    return ExportSource(
        executable.name,
        compiled.module.host,
        device,
        _launches(compiled.executor),
        head,
        outputs,
        outputs,
        executable.lenient,
        "\n".join(compiled.plan.lines()) + "\n",
        {p.name: s.name for p, s in zip(compiled.parameters, opened, strict=True)},
    )


def _symbols(program: Program, known: Mapping[Symbol, Expr]) -> set[Symbol]:
    """Return the set of the symbols in the types of the program's array arguments, and of the keys of `known`, {symbol:
    value}."""
    kinds = [a.type for a in program.args if isinstance(a.type, MemoryType)]
    return {s for kind in kinds for e in kind.expressions() for s in e.symbols} | set(known)


def _of_text(executable: TextExecutable) -> ExportSource:
    """Return the ExportSource of a program compiled from a text of the block, loop or host level, or of a block kernel.

    A block or loop program gets a host program that launches it once. Raise ArgumentError if it is not machine code, or
    if a launch has machine code that depends on a call's sizes.
    """
    main, device = executable.main, executable.device
    _require_code(device, executable.name, executable.target)
    if executable.executor is not None:
        host, launches = main, _launches(executable.executor)
    else:
        launchable = executable.launchable
        host = launching_host(main, executable.workers or int(launchable.kernel.target.machine.limits.cores or 1))
        launches = {op: launchable for op in host.walk() if op.name == "launch"}
    args = tuple(Value(MemoryType(a.type.dtype, tuple(map(_plain, a.type.shape))), a.name) for a in host.args)
    sizes = [s.name for a in args for d in a.type.dims for s in d.symbols]
    outputs = tuple(a.name or "" for a in host.args if a.type.role != "in")
    optional = tuple(a.name or "" for a in host.args if a.type.role == "out")
    head = Program(TILE, executable.name, args, Block((), []))
    return ExportSource(
        executable.name, host, device, launches, head, outputs, optional, False, "", {name: name for name in sizes}
    )


def _plain(e: Expr) -> Expr:
    """Return the extent `e` with each symbol replaced by a new symbol of the same name, without its range.

    A `let` name is first replaced by the expression that it stands for.
    """
    while any(s.definition is not None for s in e.symbols):
        e = Substitution({s: s.definition for s in e.symbols if s.definition is not None})(e)
    return Substitution({s: symbol(s.name, 0) for s in e.symbols})(e)


def _launches(executor: HostExecutor) -> dict[Op, Any]:
    """Return {launch operation: its compiled program} for the host program of `executor`.

    Raise ArgumentError if a program would be compiled for values that depend on a call's sizes: an exported kernel has
    one machine code for each launch.
    """
    launches = {}
    for op in executor.module.host.walk():
        if op.name != "launch":
            continue
        passed = {s.name for s in open_parameters(executor.module.programs[op.attrs["program"]])}
        settings = {name: e for name, e in op.attrs.get("settings", ()) if name not in passed}
        texts = [f"{name} = {e}" for name, e in settings.items() if as_expr(e).symbols]
        if texts:
            raise ArgumentError(
                f"launch {op.attrs['program']}: {', '.join(texts)} depends on a call's sizes, and makes other code for "
                "each; bind its parameters, or give it a range (`param M in 1..4096`)"
            )
        launches[op], _ = executor.prepared(op.attrs["program"], {n: int(as_expr(e)) for n, e in settings.items()})
    return launches


def _require_code(device: Any, name: str, target: str) -> None:
    """Raise ArgumentError unless `device` runs machine code of a CPU or GPU. `name` and `target`, of the kernel, are
    for the message."""
    if not isinstance(device, NativeDevice | GpuDevice):
        raise ArgumentError(f"{name} is no machine code on {target}; compile it for 'cpu', 'cpu:NAME' or 'gpu:NAME'")


def common_manifest(
    source: ExportSource, name: str, kind: str, place: Path, code: bytes, machine: Machine
) -> dict[str, Any]:
    """Return {key: value} of the manifest entries that kernels for CPUs and GPUs have in common.

    `source` is the exported program and `name` the kernel's name. `kind` is the format of the code ("object", "ptx"),
    `place` its file and `code` its content. `machine` is the machine that it is for.
    """
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
        "signature": program_text(replace(source.signature, name=name)),
        "outputs": list(source.outputs),
        "optional": list(source.optional),
        "lenient": source.lenient,
        "plan": source.plan,
    }
