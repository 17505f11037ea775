"""The input of a kernel's functions: launches, memory, sizes, the conditions on them, and error codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_conditions import eq
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import Substitution
from tilewright.codegen.entry.abi import ALIGNMENT, EntryFault, ErrorKind
from tilewright.codegen.entry.decided import without_unreachable
from tilewright.codegen.entry.memory import HostMemoryMap, aligned_bytes, memory_map
from tilewright.errors import ProgramError
from tilewright.ir.binding import allowed, open_parameters, open_sizes
from tilewright.ir.core import Op, Program
from tilewright.ir.loop import LOOP
from tilewright.ir.tensors import TensorType
from tilewright.limits import WORKERS
from tilewright.machine import Condition

COUNT = symbol("_workers_of_the_pool", 1, WORKERS.most)
"""The number of workers in the pool that a caller passes."""


@dataclass(frozen=True)
class LaunchedFunction:
    """The LLVM function of a program, and the memory that a launch must give it.

    Each worker has `scratch` bytes of its own, and `scratch_open` more, an expression of the program's open parameters.
    `conditions` on these parameters must hold.
    """

    symbol: str
    program: Program
    scratch: int
    scratch_open: Expr
    conditions: tuple[Condition, ...] = ()


class EntryPlan:
    """All that the functions of a kernel are emitted from; they add `tables`, `declared` lines and error codes to it.

    `launched` returns the function of a launch operation. `configuration` is the configuration of tile registers (AMX),
    None without them. `is_serial` is True if calls with the same `kept` (memory that `bind` fills) never run at the
    same time. `laid_out` is True if buffers have the strides or swizzle of the programs' arguments; otherwise all are
    packed.
    """

    def __init__(
        self,
        name: str,
        host: Program,
        launched: Callable[[Op], LaunchedFunction],
        configuration: bytes | None = None,
        *,
        is_serial: bool = False,
        laid_out: bool = False,
    ):
        self.name, self.host, self.configuration = name, without_unreachable(host), configuration
        self.laid_out = laid_out
        self.sizes = open_sizes(host)
        self.launches = {op: launched(op) for op in self.host.walk() if op.name == "launch"}
        self.roles = {f.program.name: [a.type.role or "inout" for a in f.program.args] for f in self.launches.values()}
        self.memory: HostMemoryMap = memory_map(self.host, self.roles, is_serial=is_serial)
        self.parameters = {op: self._parameters(op, function) for op, function in self.launches.items()}
        self.tables: dict[Op, str] = {}
        self.declared: dict[str, None] = {}
        self._faults: dict[tuple[ErrorKind, int], EntryFault] = {}
        self._requirements: dict[str, int] = {}
        self._checks: dict[Op, int] = {}

    def fault(self, kind: ErrorKind, place: int, says: str) -> EntryFault:
        """Return the error code (an EntryFault) of the kind `kind` about the buffer, size or check with index `place`.

        Also register it, with the message `says`. If a code of this kind and index is registered already, return that
        one, with the earlier message.
        """
        return self._faults.setdefault((kind, place), EntryFault(kind, place, says))

    def requirement(self, says: str) -> EntryFault:
        """Return the error code (an EntryFault) for sizes that violate a condition, and register it.

        Its message is `says`. Equal messages share a code.
        """
        place = self._requirements.setdefault(says, len(self._requirements))
        return self.fault(ErrorKind.REQUIREMENT, place, says)

    def check(self, op: Op) -> EntryFault:
        """Return the error code (an EntryFault) of `op`, a `check` operation of the host program, and register it.

        Its message is that of the operation.
        """
        place = self._checks.setdefault(op, len(self._checks))
        return self.fault(ErrorKind.CHECK, place, op.attrs["says"])

    @property
    def checks(self) -> dict[int, Op]:
        """{error code: `check` operation} for all checks registered so far."""
        return {self._faults[ErrorKind.CHECK, place].code: op for op, place in self._checks.items()}

    @property
    def faults(self) -> tuple[EntryFault, ...]:
        """A tuple of all error codes registered so far, with their messages, sorted by kind and index."""
        return tuple(self._faults[key] for key in sorted(self._faults))

    def _parameters(self, op: Op, function: LaunchedFunction) -> dict[Symbol, Expr]:
        """Return {open parameter of the launched program: its value at the launch `op`, an expression of the host's
        sizes}.

        An open parameter is a size known only at the call. Its value comes from the launch's `with` settings, or from
        the shape of an operand. Raise ProgramError if neither determines it. `function` is the program's compiled
        function.
        """
        program, settings = function.program, dict(op.attrs.get("settings", ()))
        values: dict[Symbol, Expr] = {}
        for s in open_parameters(program):
            if s.name in settings:
                values[s] = settings[s.name]
                continue
            for arg, value in zip(program.args, op.operands, strict=True):
                for extent, passed in zip(arg.type.shape, value.type.shape, strict=False):
                    if extent is s:
                        values.setdefault(s, passed)
            if s not in values:
                raise ProgramError(f"launch {program.name}: neither a shape nor `with` tells {s.name}", op.loc)
        return values

    def conditions(self, op: Op) -> list[tuple[Expr, str]]:
        """Return [(condition on the sizes, error message)] under which the launch `op` is valid.

        Shapes must agree, parameters must be in their ranges, the program's requirements must hold, and there must be
        at least one worker. Conditions that always hold are left out. Raise ProgramError for a condition that never
        holds, for an operand with another rank or element type than the program's argument, and, unless
        `self.laid_out`, for a tensor that is not packed.
        """
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
            for extent, passed in zip(*shapes, strict=True):
                wanted = images(extent)
                if wanted is not passed:
                    conditions.append(
                        (eq(wanted, passed), f"{program.name}: {passed} of {value.name} must be {wanted}")
                    )
        for s, number in values.items():
            conditions += [
                (c, f"{program.name}: {s.name} = {number} must be {says}") for c, says in in_range(number, s)
            ]
        for record in program.records:
            if record.name == "require":
                conditions.append((images(record.attrs["that"]), f"{program.name} requires {record.attrs['that']}"))
        conditions += [(images(c.that), f"{program.name}: {c.reason}") for c in function.conditions]
        workers = op.attrs["workers"]
        conditions.append((as_expr(workers) >= 1, f"{program.name}: workers {workers} must be at least 1"))
        undecided = [(c, says) for c, says in conditions if not (isinstance(c, Const) and c.value)]
        for c, says in undecided:
            if isinstance(c, Const):
                raise ProgramError(f"launch: {says}, which never holds", op.loc)
        return undecided

    def worker_bytes(self, op: Op) -> Expr:
        """Return the number of bytes of scratch memory that one worker of the launch `op` needs, as an expression of
        the sizes.
        """
        function = self.launches[op]
        return as_expr(function.scratch) + Substitution(self.parameters[op])(function.scratch_open)

    def workspace_bytes(self) -> Expr:
        """Return the number of bytes of memory that a call needs, as an expression of the sizes and of `COUNT`.

        It is the sum of the workspaces (temporary tensors), and of the scratch memory of all workers of one launch, the
        one that needs most. `COUNT` is the pool's number of workers.
        """
        most: Expr = as_expr(0)
        for op in self.launches:
            workers = as_expr(op.attrs["workers"])
            count = maximum(minimum(workers, COUNT), 1)
            most = maximum(most, aligned_bytes(self.worker_bytes(op) * count + ALIGNMENT))
        return self.memory.workspace_bytes + most

    @property
    def most_workers(self) -> int:
        """The largest number of workers that any launch may ask for, at most `WORKERS.most`; 1 without launches."""
        asked = [as_expr(op.attrs["workers"]) for op in self.launches]
        return int(min(max((e.hi for e in asked), default=1), WORKERS.most))


def is_packed(kind: TensorType, given: TensorType) -> bool:
    """True if `kind`, the type of a program's argument, and `given`, the type of the tensor passed for it, are packed.

    `kind` must have neither strides nor swizzle, `given` no strides.
    """
    return kind.strides is None and kind.swizzle is None and given.strides is None


def in_range(value: Expr, parameter: Symbol) -> list[tuple[Expr, str]]:
    """Return [(condition, text)]: the conditions under which `value`, an expression, is allowed for `parameter`.

    Texts read like "at least 4". Limits that the known range of `value` satisfies are left out. A constant that is
    allowed gives an empty list; one that is not gives a condition that never holds.
    """
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
