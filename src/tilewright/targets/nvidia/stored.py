"""Kernels of exported files: what a launch needs, as JSON holds it, and launches without the compiler and LLVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr
from tilewright.algebra.expr_text import parse_expr
from tilewright.errors import ArgumentError, TargetError
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.binding import open_parameters
from tilewright.ir.core import Program
from tilewright.limits import ELEMENTS, Limit
from tilewright.machine import Condition, Machine
from tilewright.runtime.device_arrays import common_device
from tilewright.runtime.scripts import Memories
from tilewright.runtime.sizes import sizes_of
from tilewright.targets.gpu.checks import check_arrays
from tilewright.targets.gpu.emit import Emitted, Parameter
from tilewright.targets.gpu.writer import MOST
from tilewright.targets.nvidia import driver
from tilewright.targets.nvidia.boxes import MapForm
from tilewright.targets.nvidia.disassembly import assembled
from tilewright.targets.nvidia.driver import ALIGNMENT as ALIGNMENT
from tilewright.targets.nvidia.im2col import Im2colMap
from tilewright.targets.nvidia.launch import Launch
from tilewright.targets.nvidia.machine import MACHINES, architecture
from tilewright.targets.nvidia.memory import DeviceMemory
from tilewright.targets.nvidia.plain_record import PlainRecord
from tilewright.targets.nvidia.tma import TensorMap

MAPS: dict[str, Any] = {kind.__name__: kind for kind in (TensorMap, Im2colMap)}


def launch_record(emitted: Emitted) -> dict[str, Any]:
    """The needs of a launch, in numbers, texts and lists; expressions of open parameters are texts."""
    return {
        "entry": emitted.name,
        "threads": emitted.threads,
        "shared_bytes": emitted.shared_bytes,
        "tasks": _written(emitted.tasks),
        "written": list(emitted.written),
        "cluster": emitted.cluster,
        "programmatic": emitted.programmatic,
        "alone": emitted.alone,
        "counters": emitted.counters,
        "sizes": list(emitted.sizes),
        "maps": [
            {"tensor": p.tensor, "kind": p.what.kind.__name__, "fields": _written(p.what.fields)}
            for p in emitted.parameters
        ],
    }


def code_of(kernel: Any, kind: str) -> bytes:
    """The code of a kernel: "ptx", or "cubin", which the assembler makes of it."""
    text: str = kernel.assembly
    return text.encode() if kind == "ptx" else assembled(text, architecture(kernel.target.machine)[0])


def emitted_of(record: Mapping[str, Any], symbols: Sequence[Symbol]) -> Emitted:
    """What `launch_record` was made of, but for the kernel's text; `symbols` are the open parameters."""
    maps = [
        Parameter(row["tensor"], MapForm(MAPS[row["kind"]], _read(row["fields"], symbols))) for row in record["maps"]
    ]
    return Emitted(
        "",
        record["entry"],
        record["threads"],
        record["shared_bytes"],
        _read(record["tasks"], symbols),
        tuple(maps),
        tuple(record["written"]),
        record["cluster"],
        record["programmatic"],
        record["alone"],
        record["counters"],
        tuple(record["sizes"]),
    )


def _written(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_written(each) for each in value]
    if isinstance(value, Expr):
        return value.value if isinstance(value, Const) else str(value)
    return value


def _read(value: Any, symbols: Sequence[Symbol]) -> Any:
    if isinstance(value, list):
        return tuple(_read(each, symbols) for each in value)
    return parse_expr(value, symbols) if isinstance(value, str) else value


class StoredLaunch(Launch):
    """A launch that Python starts."""

    record = PlainRecord


class StoredProgram:
    """A program of an exported file: its head, its PTX or machine code, and what a launch must provide."""

    def __init__(
        self,
        head: Program,
        assembly: str | bytes,
        record: Mapping[str, Any],
        conditions: Sequence[tuple[str, str]],
        cores: int,
    ):
        self.program, self._assembly, self._cores = head, assembly, cores
        self.open = open_parameters(head)
        self.emitted = emitted_of(record, self.open)
        self._conditions = [Condition(parse_expr(text, self.open), reason) for text, reason in conditions]
        self._loaded: dict[int, driver.Loaded] = {}

    def launch(self, arrays: list[Any], workers: int | None, params: Mapping[str, int] | None) -> Callable[[], None]:
        """The program bound to arrays; as many workers as there are cores mean all that it holds."""
        sizes: dict[str, int] = {}
        if self.open or params:
            named = {a.name or "": array for a, array in zip(self.program.args, arrays, strict=True)}
            sizes = sizes_of(self.program, named, params, self._conditions)
        check_arrays(self.program, arrays, sizes)
        tasks = evaluated(as_expr(self.emitted.tasks), sizes)
        if tasks > MOST:
            raise ArgumentError(f"{self.program.name}: arrays of these sizes are {tasks} tasks; the most is {MOST}")
        number = common_device(self.program.name, arrays)
        if number not in self._loaded:
            self._loaded[number] = driver.Loaded(self._assembly, self.emitted, number)
        every = workers == self._cores
        return StoredLaunch(self._loaded[number], self.emitted, arrays, None if every else workers, sizes)


class StoredDevice:
    """The GPU that programs of exported files run on."""

    room: Limit = ELEMENTS

    def __init__(self, machine: str, programs: Mapping[str, StoredProgram]):
        self._machine, self._programs = MACHINES[machine], programs

    def prepare(self, program: Program, _: Mapping[str, int]) -> StoredProgram:
        """The program of that name."""
        return self._programs[program.name]

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """The memory of the GPU that the arguments lie on."""
        return DeviceMemory(self._machine, common_device("the call", list(arrays)), passing)


def required_machine(name: str, what: str) -> Machine:
    """The machine of a name; raises where its code does not run here."""
    machine = MACHINES.get(name)
    if machine is None:
        raise TargetError(
            f"{what}: code for {name} does not run here: no such GPU is known; there is {', '.join(MACHINES)}"
        )
    why = driver.why_not(machine)
    if why is not None:
        raise TargetError(f"{what}: code for {name} does not run here: {why}")
    return machine
