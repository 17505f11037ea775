"""The parts that a kernel's functions are made from: its launches, memory and sizes, and what must hold of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_conditions import eq
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import Substitution
from tilewright.codegen.entry.abi import ALIGNMENT, EntryFault, ErrorKind
from tilewright.codegen.entry.decided import decided
from tilewright.codegen.entry.memory import HostMemoryMap, in_lines, memory_map
from tilewright.errors import ProgramError
from tilewright.ir.binding import allowed, open_parameters, open_sizes
from tilewright.ir.core import Op, Program
from tilewright.ir.loop import LOOP
from tilewright.ir.tensors import TensorType
from tilewright.limits import WORKERS
from tilewright.machine import Condition

COUNT = symbol("_workers_of_the_pool", 1, WORKERS.most)
"""The workers of the pool that a call brings."""


@dataclass(frozen=True)
class LaunchedFunction:
    """A program's function in the module, and what a launch must provide.

    Each worker has `scratch` bytes of its own and `scratch_open` more, an expression of the program's open parameters.
    `conditions` must hold of them too.
    """

    symbol: str
    program: Program
    scratch: int
    scratch_open: Expr
    conditions: tuple[Condition, ...] = ()


class EntryPlan:
    """A host program under a name; `launched` tells the function of a launch, `configuration` that of tile registers.

    `apart` says that calls with one `kept` take turns; `laid_out` that buffers lie as the programs' arguments say, with
    strides or a swizzle, and are not packed. Functions that are written add what they return, call and declare:
    `faults`, `tables`, `declared`.
    """

    def __init__(
        self,
        name: str,
        host: Program,
        launched: Callable[[Op], LaunchedFunction],
        configuration: bytes | None = None,
        *,
        apart: bool = False,
        laid_out: bool = False,
    ):
        self.name, self.host, self.configuration = name, decided(host), configuration
        self.laid_out = laid_out
        self.sizes = open_sizes(host)
        self.launches = {op: launched(op) for op in self.host.walk() if op.name == "launch"}
        self.roles = {f.program.name: [a.type.role or "inout" for a in f.program.args] for f in self.launches.values()}
        self.memory: HostMemoryMap = memory_map(self.host, self.roles, apart=apart)
        self.parameters = {op: self._parameters(op, function) for op, function in self.launches.items()}
        self.tables: dict[Op, str] = {}
        self.declared: dict[str, None] = {}
        self._faults: dict[tuple[ErrorKind, int], EntryFault] = {}
        self._requirements: dict[str, int] = {}
        self._checks: dict[Op, int] = {}

    def fault(self, kind: ErrorKind, place: int, says: str) -> EntryFault:
        """A code that a function may return."""
        return self._faults.setdefault((kind, place), EntryFault(kind, place, says))

    def requirement(self, says: str) -> EntryFault:
        """The code for sizes that are refused by a sentence."""
        place = self._requirements.setdefault(says, len(self._requirements))
        return self.fault(ErrorKind.REQUIREMENT, place, says)

    def check(self, op: Op) -> EntryFault:
        """The code of a check of the program."""
        place = self._checks.setdefault(op, len(self._checks))
        return self.fault(ErrorKind.CHECK, place, op.attrs["says"])

    @property
    def checks(self) -> dict[int, Op]:
        """The checks of the program, by the codes that they return."""
        return {self._faults[ErrorKind.CHECK, place].code: op for op, place in self._checks.items()}

    @property
    def faults(self) -> tuple[EntryFault, ...]:
        """All codes so far, in order."""
        return tuple(self._faults[key] for key in sorted(self._faults))

    def _parameters(self, op: Op, function: LaunchedFunction) -> dict[Symbol, Expr]:
        """The values of a program's open parameters: told by the launch, or by the shapes of its operands."""
        program, told = function.program, dict(op.attrs.get("settings", ()))
        values: dict[Symbol, Expr] = {}
        for s in open_parameters(program):
            if s.name in told:
                values[s] = told[s.name]
                continue
            for arg, value in zip(program.args, op.operands, strict=True):
                for mine, given in zip(arg.type.shape, value.type.shape, strict=False):
                    if mine is s:
                        values.setdefault(s, given)
            if s not in values:
                raise ProgramError(f"launch {program.name}: neither a shape nor `with` tells {s.name}", op.loc)
        return values

    def conditions(self, op: Op) -> list[tuple[Expr, str]]:
        """The conditions on the sizes of a launch, with the sentences that refuse them; the rest always holds."""
        function, values = self.launches[op], self.parameters[op]
        program, images = function.program, Substitution(values)
        conditions: list[tuple[Expr, str]] = []
        for arg, value in zip(program.args, op.operands, strict=True):
            kind = arg.type
            if not self.laid_out and not is_packed(kind, value.type):
                raise ProgramError(
                    f"launch {program.name}: %{arg.name} is {kind}; an exported program takes packed memory", op.loc
                )
            shapes = kind.shape, value.type.shape
            if program.level is LOOP and len(shapes[0]) != len(shapes[1]):  # memory is flat there
                shapes = (kind.room(),), (value.type.room(),)
            if len(shapes[0]) != len(shapes[1]) or kind.dtype is not value.type.dtype:
                raise ProgramError(f"launch {program.name}: %{arg.name} is {kind}, not {value.type}", op.loc)
            for mine, given in zip(*shapes, strict=True):
                same = images(mine)
                if same is not given:
                    conditions.append((eq(same, given), f"{program.name}: {given} of {value.name} must be {same}"))
        for s, told in values.items():
            conditions += [(c, f"{program.name}: {s.name} = {told} must be {says}") for c, says in in_range(told, s)]
        for record in program.records:
            if record.name == "require":
                conditions.append((images(record.attrs["that"]), f"{program.name} requires {record.attrs['that']}"))
        conditions += [(images(c.that), f"{program.name}: {c.reason}") for c in function.conditions]
        workers = op.attrs["workers"]
        conditions.append((as_expr(workers) >= 1, f"{program.name}: workers {workers} must be at least 1"))
        left = [(c, says) for c, says in conditions if not (isinstance(c, Const) and c.value)]
        for c, says in left:
            if isinstance(c, Const):
                raise ProgramError(f"launch: {says}, which never holds", op.loc)
        return left

    def worker_bytes(self, op: Op) -> Expr:
        """The scratch memory of one worker of a launch."""
        function = self.launches[op]
        return as_expr(function.scratch) + Substitution(self.parameters[op])(function.scratch_open)

    def workspace_bytes(self) -> Expr:
        """Workspaces, then the scratch memory of the launch that needs most, with a line to spare."""
        most: Expr = as_expr(0)
        for op in self.launches:
            workers = as_expr(op.attrs["workers"])
            count = maximum(minimum(workers, COUNT), 1)
            most = maximum(most, in_lines(self.worker_bytes(op) * count + ALIGNMENT))
        return self.memory.workspace_bytes + most

    @property
    def most_workers(self) -> int:
        """The workers that a launch asks for at most."""
        asked = [as_expr(op.attrs["workers"]) for op in self.launches]
        return int(min(max((e.hi for e in asked), default=1), WORKERS.most))


def is_packed(kind: TensorType, given: TensorType) -> bool:
    """True if an argument of a program, of type `kind`, and the memory that a launch gives for it are both packed."""
    return kind.strides is None and kind.swizzle is None and given.strides is None


def in_range(value: Expr, parameter: Symbol) -> list[tuple[Expr, str]]:
    """The conditions under which a value is one that a parameter may be, with what they say."""
    numbers = allowed(parameter)
    if isinstance(value, Const):
        return [] if value.value in numbers else [(as_expr(0), f"one of {numbers}")]
    conditions: list[tuple[Expr, str]] = []
    if value.lo < numbers.start:
        conditions.append((value >= numbers.start, f"at least {numbers.start}"))
    if value.hi > numbers[-1]:
        conditions.append((value <= numbers[-1], f"at most {numbers[-1]}"))
    if numbers.step != 1:
        conditions.append(
            (eq((value - numbers.start) % numbers.step, 0), f"{numbers.start} plus a multiple of {numbers.step}")
        )
    return conditions
