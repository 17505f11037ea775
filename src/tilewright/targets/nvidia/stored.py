"""GPU kernels of exported files: the data of a launch as JSON, and launches without the compiler and LLVM."""

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
    """Return the data that a launch of the kernel `emitted` needs, as a dict of numbers, texts and lists for JSON.
    Expressions of open sizes become texts. `emitted_of` is the inverse function.
    """
    return {
        "entry": emitted.name,
        "threads": emitted.threads,
        "shared_bytes": emitted.shared_bytes,
        "tasks": _to_json(emitted.tasks),
        "written": list(emitted.written),
        "cluster": emitted.cluster,
        "programmatic": emitted.programmatic,
        "alone": emitted.alone,
        "counters": emitted.counters,
        "sizes": list(emitted.sizes),
        "maps": [
            {"tensor": p.tensor, "kind": p.what.kind.__name__, "fields": _to_json(p.what.fields)}
            for p in emitted.parameters
        ],
    }


def code_of(kernel: Any, kind: str) -> bytes:
    """Return the code of the compiled kernel `kernel` as bytes: its PTX if `kind` is "ptx", else the cubin that ptxas
    generates from it. Raise TargetError if ptxas is needed and missing.
    """
    text: str = kernel.assembly
    return text.encode() if kind == "ptx" else assembled(text, architecture(kernel.target.machine)[0])


def emitted_of(record: Mapping[str, Any], symbols: Sequence[Symbol]) -> Emitted:
    """Return the kernel description from which `launch_record` computed `record`, with an empty program text. `symbols`
    are the open sizes.
    """
    maps = [
        Parameter(row["tensor"], MapForm(MAPS[row["kind"]], _from_json(row["fields"], symbols)))
        for row in record["maps"]
    ]
    return Emitted(
        "",
        record["entry"],
        record["threads"],
        record["shared_bytes"],
        _from_json(record["tasks"], symbols),
        tuple(maps),
        tuple(record["written"]),
        record["cluster"],
        record["programmatic"],
        record["alone"],
        record["counters"],
        tuple(record["sizes"]),
    )


def _to_json(value: Any) -> Any:
    """Return `value` for JSON: tuples become lists, constant expressions numbers, and other expressions texts, also
    within tuples. All other values stay.
    """
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, Expr):
        return value.value if isinstance(value, Const) else str(value)
    return value


def _from_json(value: Any, symbols: Sequence[Symbol]) -> Any:
    """Return the value from which `_to_json` computed `value`: lists become tuples, and texts become expressions of
    `symbols`.
    """
    if isinstance(value, list):
        return tuple(_from_json(item, symbols) for item in value)
    return parse_expr(value, symbols) if isinstance(value, str) else value


class StoredLaunch(Launch):
    """A launch that is started from Python, without native code."""

    record = PlainRecord


class StoredProgram:
    """A program of an exported file: its head (name and arguments), its PTX or cubin, and the data of its launches."""

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
        """Return a function without parameters that runs the program on `arrays`. `workers` is the number of
        workgroups. If it is None, or the number of cores of the machine that the program was exported for, there are as
        many as the GPU can run at a time. `params` is {name: value} for open sizes that no shape determines. Raise
        ArgumentError if the arrays do not fit the arguments, or if there are more than MOST tasks.
        """
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
        is_default = workers == self._cores
        return StoredLaunch(self._loaded[number], self.emitted, arrays, None if is_default else workers, sizes)


class StoredDevice:
    """The GPU on which programs of exported files run."""

    room: Limit = ELEMENTS

    def __init__(self, machine: str, programs: Mapping[str, StoredProgram]):
        self._machine, self._programs = MACHINES[machine], programs

    def prepare(self, program: Program, _: Mapping[str, int]) -> StoredProgram:
        """Return the stored program with the name of `program`. The second parameter is not used."""
        return self._programs[program.name]

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """Return the object that allocates and copies memory on the GPU that holds `arrays`. `passing` says that
        allocated memory is used by one call only.
        """
        return DeviceMemory(self._machine, common_device("the call", list(arrays)), passing)


def required_machine(name: str, what: str) -> Machine:
    """Return the NVIDIA machine with the name `name`. Raise TargetError if there is none, or if its code does not run
    on the GPU at hand. The message begins with `what`.
    """
    machine = MACHINES.get(name)
    if machine is None:
        raise TargetError(
            f"{what}: code for {name} does not run here: no such GPU is known; there is {', '.join(MACHINES)}"
        )
    why = driver.why_not(machine)
    if why is not None:
        raise TargetError(f"{what}: code for {name} does not run here: {why}")
    return machine
