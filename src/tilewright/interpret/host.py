"""The interpreter of host programs: sizes from shapes, workspaces, tables, launches in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import Const, Symbol
from tilewright.errors import ArgumentError, ExecutionError, UninitialisedFault
from tilewright.interpret.block.memory import at_line
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.limits import ELEMENTS, WORKERS, Limit, shown

Array = np.ndarray[Any, np.dtype[Any]]
Launch = Callable[[str, list[Array], int, dict[str, int], Op], None]
Roles = Callable[[str], Sequence[str | None]]


class HostRun:
    """A host program bound to arrays: what was done once is kept, `launch` does the rest.

    `roles` gives, for a program that is launched, what it does with each argument ("in", "out", "inout"); with it, a
    workspace that is read before anything was written to it is found. `room` is the most elements of a workspace.
    """

    def __init__(
        self,
        program: Program,
        arrays: Mapping[str, Array],
        launch: Launch,
        roles: Roles | None = None,
        room: Limit = ELEMENTS,
    ):
        self.program, self.launcher, self.roles, self.room = program, launch, roles, room
        self.unwritten: set[Value] = set()
        self.values = sizes_of(program, arrays)
        self.arrays: dict[Value, Array] = {a: arrays[a.name or ""] for a in program.args}
        self.ended = False
        for op in program.body.ops:
            if op.name in ("bind", "let", "if") and not self.ended:
                self._run(op, binding=True)

    def launch(self) -> None:
        """What is done at every launch."""
        self.ended = False
        for op in self.program.body.ops:
            if op.name != "bind" and not self.ended:
                self._run(op, binding=False)

    def _run(self, op: Op, binding: bool) -> None:
        match op.name:
            case "let":
                pass
            case "if":
                if evaluated(op.attrs["when"], self.values):
                    self._block(op.blocks[0], binding)
                elif len(op.blocks) == 2:
                    self._block(op.blocks[1], binding)
            case "bind":
                self._block(op.blocks[0], binding=False)
            case "return":
                self.ended = True
            case _ if not binding:
                self._work(op)

    def _block(self, block: Block, binding: bool) -> None:
        for op in block.ops:
            if not self.ended:
                self._run(op, binding)

    def _work(self, op: Op) -> None:
        match op.name:
            case "workspace":
                kind = op.attrs["type"]
                shape = tuple(int(evaluated(e, self.values)) for e in kind.shape)
                if kind.strides is not None:
                    raise ExecutionError(f"{at_line(op)}: a workspace is packed", op.loc)
                if min(shape, default=0) < 0 or self.room.refuses(prod(shape)):
                    raise ExecutionError(f"{at_line(op)}: {shape}: no extent is negative, and {self.room.rule}", op.loc)
                self.arrays[op.results[0]] = _poisoned(shape, kind.dtype.numpy)
                self.unwritten.add(op.results[0])
            case "table":
                target = self._array(op.operands[0], op)
                self.unwritten.discard(op.operands[0])
                over = np.indices(target.shape)
                names = dict(zip((s.name for s in op.attrs["over"]), over, strict=True))
                values = evaluated(op.attrs["value"], {**self.values, **names})
                least, most = op.operands[0].type.dtype.limits
                if target.size and (np.min(values) < least or np.max(values) > most):
                    kind = op.operands[0].type.dtype
                    wrong = f"{np.min(values)} to {np.max(values)}"
                    raise ExecutionError(f"{at_line(op)}: its values, {wrong}, are not all {kind}", op.loc)
                target[...] = values
            case "launch":
                settings = {name: int(evaluated(e, self.values)) for name, e in op.attrs.get("settings", ())}
                workers = int(evaluated(op.attrs["workers"], self.values))
                if not 1 <= workers <= WORKERS.most:
                    raise ExecutionError(
                        f"{at_line(op)}: workers {shown(workers)}: at least one is needed, and {WORKERS.rule}", op.loc
                    )
                self._check_written(op)
                self.launcher(op.attrs["program"], [self._array(v, op) for v in op.operands], workers, settings, op)

    def _array(self, value: Value, op: Op) -> Any:
        """The memory of an argument or a workspace; `bind` is done before there are workspaces outside it."""
        if value not in self.arrays:
            which = f"operand {op.operands.index(value)} has no memory yet"
            raise ExecutionError(f"{at_line(op)}: {which}: `bind` is done first; put its workspace there too", op.loc)
        return self.arrays[value]

    def _check_written(self, op: Op) -> None:
        """That the program does not read a workspace that nothing wrote; what it writes is written then."""
        if self.roles is None:
            return
        for value, role in zip(op.operands, self.roles(op.attrs["program"]), strict=False):
            if value in self.unwritten and role != "out":
                raise UninitialisedFault(f"{at_line(op)} reads %{value.name}, which nothing wrote", op.loc)
            self.unwritten.discard(value)


def _poisoned(shape: tuple[int, ...], form: np.dtype[Any]) -> Array:
    """Memory with values that show when they are used."""
    return np.full(shape, np.nan if form.kind in "fV" else 85).astype(form)


def sizes_of(program: Program, arrays: Mapping[str, Array]) -> dict[str, int]:
    """The sizes that the arrays' shapes give; raises where they contradict each other or the program."""
    found: dict[str, int] = {}
    wanted = {s for r in program.records if r.name == "size" for s in r.attrs["sizes"]}
    for arg in program.args:
        name = arg.name or ""
        if name not in arrays:
            raise ArgumentError(f"the argument {name} is missing")
        array = arrays[name]
        if array.ndim != len(arg.type.shape) or array.dtype != arg.type.dtype.numpy:
            raise ArgumentError(f"{name} is {array.dtype} of shape {array.shape}; the program takes {arg.type}")
        for e, n in zip(arg.type.shape, array.shape, strict=True):
            if isinstance(e, Symbol) and e in wanted and found.setdefault(e.name, n) != n:
                raise ArgumentError(f"{name}: {e.name} is {n} here and {found[e.name]} in an argument before")
    for arg in program.args:
        for dim, (e, n) in enumerate(zip(arg.type.shape, arrays[arg.name or ""].shape, strict=True)):
            value = e.value if isinstance(e, Const) else int(evaluated(e, found))
            if value != n:
                raise ArgumentError(f"{arg.name}: dimension {dim}, {e}, must be {value}, not {n}")
    return found
