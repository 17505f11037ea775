"""Kernels as the cache keeps them: what runs, by what it was made from. It is asked before anything is planned.

The key is what a plan depends on: the text of the tile program, sizes, shapes, constraints, the CPU at hand, and who
compiles. The entry is a manifest: the script of the host program, and the keys of its machine code. A kernel is kept
where a script says all of it: its sizes are closed, it logs nothing, and no warning points at a line of its author's.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.core import Program
from tilewright.ir.dtypes import ALL, from_numpy
from tilewright.ir.printer import program_symbols, program_text
from tilewright.runtime import cache
from tilewright.runtime.scripts import (
    Array,
    Checked,
    Filled,
    HostArgument,
    HostMemory,
    Launched,
    Memories,
    Script,
    ScriptExecutor,
    SlotMemory,
    Step,
    Tabled,
)
from tilewright.runtime.toolchain import toolchain
from tilewright.targets.cpu.host import host_text
from tilewright.targets.cpu.launch import StoredKernel

if TYPE_CHECKING:  # what is found was planned by another process
    from tilewright.compiler.planned import PlannedKernel


def key_for(program: Program, sizes: Mapping[str, int], shapes: Sequence[tuple[int, ...]], options: str) -> str:
    """The key of a kernel for the CPU at hand; `options` is what else it is made from, as text."""
    ranges = sorted((s.name, str(s.lo), str(s.hi)) for s in program_symbols(program))
    asked = (f"{ranges}", f"{sorted(sizes.items())}", f"{list(shapes)}", options)
    return cache.key_of("kernel", program_text(program), *asked, host_text(), toolchain())


class StoredExecutor(ScriptExecutor):
    """The executor of a kernel that was kept."""

    def __init__(self, name: str, main: str, arguments: tuple[HostArgument, ...], script: Script):
        self.name, self.main, self.arguments, self._script = name, main, arguments, script
        self._memory_of_host = HostMemory()

    def script(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> Script:
        """The script, which is that of its only sizes."""
        self.require(arrays)
        return self._script

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """The host's memory."""
        return self._memory_of_host


# -- keeping ------------------------------------------------------------------------------------------------


class _NotKept(ValueError):
    """A manifest has no words for a kernel."""


def keep(key: str, planned: PlannedKernel, program: Program) -> None:
    """Keeps a kernel that was planned for the tile program, where a manifest has words for it."""
    request, executor = planned.request, planned.executor
    if request.opened or request.logs or planned.realised.lowered.lost:
        return
    try:
        manifest = {
            "name": executor.name,
            "main": planned.main.name,
            "args": [_argument(a) for a in executor.arguments],
            **_Written(executor.script_of_closed_sizes(), program).parts,
            "line": request.machine.limits.line_bytes,
            "family": request.machine.name.partition(".")[0],
        }
    except _NotKept:
        return
    cache.store(key, json.dumps(manifest).encode())


def _argument(arg: HostArgument) -> list[Any]:
    assert arg.shape is not None
    return [arg.name, arg.role, arg.kind, _dtype_name(arg.dtype), list(arg.shape)]


def _dtype_name(dtype: np.dtype[Any]) -> str:
    kind = from_numpy(dtype)
    if kind is None:
        raise _NotKept(f"{dtype}")
    return kind.name


class _Written:
    """A script in words of JSON; `program` is the tile program, whose operations the places of faults are."""

    def __init__(self, script: Script, program: Program):
        self._programs: dict[Any, int] = {}
        self._lines = {id(op.loc): n for n, op in enumerate(program.walk()) if op.loc is not None}
        once, each = [self._step(s) for s in script.once], [self._step(s) for s in script.each]
        self.parts = {
            "memory": [self._memory(m) for m in script.memory],
            "once": once,
            "each": each,
            "held": sorted(script.held),
            "lasting": script.lasting,
            "fixed": sorted(script.fixed),
            "programs": [self._program(p) for p in self._programs],
        }

    def _memory(self, memory: SlotMemory) -> list[Any]:
        return [memory.slot, memory.shape, _dtype_name(memory.dtype), memory.source, memory.strides]

    def _step(self, step: Step) -> list[Any]:
        match step:
            case Launched(program, slots, workers, ()):
                return ["launch", self._programs.setdefault(program, len(self._programs)), slots, workers]
            case Filled(slot, value) if type(value) in (int, float, bool):
                return ["fill", slot, value]
            case Tabled(slot, values):
                data = base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
                return ["table", slot, _dtype_name(values.dtype), values.shape, data]
            case Checked(slot, faults):
                return ["check", slot, [[place, says, self._line(loc)] for place, says, loc in faults]]
        raise _NotKept(f"{step}")

    def _line(self, loc: Any) -> int | None:
        if loc is not None and id(loc) not in self._lines:
            raise _NotKept("a fault at no line of the program")
        return None if loc is None else self._lines[id(loc)]

    def _program(self, launchable: Any) -> dict[str, Any]:
        kernel, args = launchable.kernel, launchable.program.args
        plain = all(a.type.strides is None and a.type.swizzle is None for a in args)
        if kernel is None or kernel.key is None or kernel.open or launchable.conditions or not plain:
            raise _NotKept(launchable.program.name)
        return {"key": kernel.key, "name": kernel.program.name, "args": [[a.name, a.type.role] for a in args]}


# -- finding --------------------------------------------------------------------------------------------------


def find(key: str, program: Program) -> StoredExecutor | None:
    """Return the kernel that was kept under a key, with all its machine code; `program` is the tile program."""
    data = cache.load(key)
    if data is None:
        return None
    manifest = json.loads(data)
    kernels = []
    for each in manifest["programs"]:
        kept = cache.load(each["key"])
        if kept is None:  # it was not used for longest, and went
            return None
        kernels.append(StoredKernel(each["name"], each["args"], manifest["line"], manifest["family"], kept))
    read = _Read(kernels, [op.loc for op in program.walk()])
    args = tuple(
        HostArgument(name, role, kind, ALL[dtype].numpy, len(shape), tuple(shape))
        for name, role, kind, dtype, shape in manifest["args"]
    )
    script = Script(
        [read.memory(*m) for m in manifest["memory"]],
        [read.step(*s) for s in manifest["once"]],
        [read.step(*s) for s in manifest["each"]],
        set(manifest["held"]),
        manifest["lasting"],
        set(manifest["fixed"]),
    )
    return StoredExecutor(manifest["name"], manifest["main"], args, script)


class _Read:
    """The words of a manifest as parts of a script."""

    def __init__(self, kernels: Sequence[StoredKernel], lines: Sequence[Any]):
        self._kernels, self._lines = kernels, lines

    def memory(
        self, slot: int, shape: list[int], dtype: str, source: int | None, strides: list[int] | None
    ) -> SlotMemory:
        return SlotMemory(slot, tuple(shape), ALL[dtype].numpy, source, None if strides is None else tuple(strides))

    def step(self, what: str, first: int, *rest: Any) -> Step:
        match what:
            case "launch":
                return Launched(self._kernels[first], tuple(rest[0]), rest[1], ())
            case "fill":
                return Filled(first, rest[0])
            case "table":
                dtype, shape, data = rest
                return Tabled(first, np.frombuffer(base64.b64decode(data), ALL[dtype].numpy).reshape(shape))
        faults = ((place, says, None if line is None else self._lines[line]) for place, says, line in rest[0])
        return Checked(first, tuple(faults))
