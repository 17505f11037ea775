"""The host executor: runs the host program of a module on any device.

A `HostDevice` makes block and loop programs launchable and provides memory; the executor does everything else. When
arrays are bound, sizes are read from their shapes, the host program becomes a *script* (a list of steps) for these
sizes (`scripts`), and the script is bound to the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, Protocol

import numpy as np

from tilewright.errors import ExecutionError, UninitialisedFault
from tilewright.interpret.block.memory import at_line
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.binding import open_parameters, open_sizes
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.module import Module
from tilewright.limits import WORKERS, Limit, shown
from tilewright.runtime.scripts import (
    Checked,
    Filled,
    HostArgument,
    Launchable,
    Launched,
    Memories,
    Script,
    ScriptExecutor,
    SlotMemory,
    Step,
    Tabled,
)
from tilewright.runtime.sizes import sizes_of

Array = np.ndarray[Any, np.dtype[Any]]
SCRIPTS = 64
"""The number of scripts, for different sizes, that an executor remembers."""


class HostDevice(Protocol):
    """A device that runs the programs that a host program launches."""

    room: Limit
    """The most elements of a workspace."""

    def prepare(self, program: Program, params: Mapping[str, int]) -> Launchable:
        """Compile `program` and return it as a Launchable, which can be bound to arrays.

        `params` is {name: value} of the program's parameters that are compiled into it.
        """

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """Return the Memories of the device that `arrays` are on: the object that allocates, copies and fills tensors
        there.

        With `passing`, the caller promises to use tensors that it allocates only during one call, so that the device
        may reuse their memory.
        """


# -- scripts from host programs -----------------------------------------------------------------------------


class _ScriptWriter:
    """Writes the script (list of steps) of a host program for one set of sizes (`values`, by name)."""

    def __init__(self, executor: HostExecutor, values: Mapping[str, int]):
        self.executor, self.values = executor, values
        self.script = Script()
        program = executor.module.host
        self.slots: dict[Value, int] = {a: n for n, a in enumerate(program.args)}
        self.roots: list[int] = list(range(len(program.args)))
        """For each slot (numbered tensor), the slot whose memory it is a view of; itself unless it is a reshape."""
        self.ended = False
        self._uses: list[tuple[bool, Op, list[tuple[Value, bool, bool]]]] = []
        """(True inside `bind`, operation, (tensor, is read, is written) of each operand) of all steps."""
        self._block(program.body, once=False)
        self._check_written(len(program.args))

    def number(self, e: Any) -> int:
        """Return the value of the integer expression `e` for the sizes of this script."""
        return int(evaluated(e, self.values))

    def _block(self, block: Block, once: bool) -> None:
        """Append the steps of the operations in `block` to the script.

        With `once`, they become steps that run once (the block is inside the host program's `bind` block), else steps
        of each launch. Of an `if`, only the branch that is taken adds steps. A `return` ends the script. Workspaces and
        views add slots (numbered tensors) instead of steps. Raise ExecutionError if an operation is not valid for these
        sizes.
        """
        for op in block.ops:
            if self.ended:
                return
            match op.name:
                case "let":
                    pass
                case "if":
                    if evaluated(op.attrs["when"], self.values):
                        self._block(op.blocks[0], once)
                    elif len(op.blocks) == 2:
                        self._block(op.blocks[1], once)
                case "bind":
                    self._block(op.blocks[0], once=True)
                case "return":
                    self.ended = True
                case "workspace":
                    self._new(op, self._extents(op, op.results[0].type.shape), None, once)
                case "reshape":
                    self._new(op, self._extents(op, op.attrs["shape"]), self.slots[op.operands[0]], once)
                case "restride":
                    self._restride(op, once)
                case _:
                    step = getattr(self, f"_{op.name}")(op)
                    steps = self.script.once if once else self.script.each
                    previous = steps[-1] if steps else None
                    if isinstance(step, Checked) and isinstance(previous, Checked) and previous.slot == step.slot:
                        steps[-1] = Checked(step.slot, previous.faults + step.faults)
                    else:
                        steps.append(step)
                    self._uses.append((once, op, self._used(op)))

    def _extents(self, op: Op, shape: Sequence[Any]) -> tuple[int, ...]:
        """Return the values of `shape`, extents of a tensor as expressions, for the sizes of this script.

        Raise ExecutionError, which names `op`, if one is negative or the tensor has more elements than the device
        allows.
        """
        extents, room = tuple(self.number(e) for e in shape), self.executor.device.room
        if min(extents, default=0) < 0 or room.refuses(prod(extents)):
            raise ExecutionError(f"{at_line(op)}: {extents}: no extent is negative, and {room.rule}", op.loc)
        return extents

    def _restride(self, op: Op, once: bool) -> None:
        """Add a slot (numbered tensor) for the result of the `restride` operation `op`: a view of its operand with
        other strides.

        `once` is True inside the host program's `bind` block. Raise ExecutionError if the view goes past the end of the
        operand.
        """
        kind, source_type = op.results[0].type, op.operands[0].type
        shape, strides = self._extents(op, kind.shape), tuple(map(self.number, kind.strides))
        room = self.number(source_type.room())
        last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else -1
        if last >= room:
            raise ExecutionError(f"{at_line(op)}: it reaches element {last} of {room}", op.loc)
        self._new(op, shape, self.slots[op.operands[0]], once, strides)

    def _new(
        self,
        op: Op,
        shape: tuple[int, ...],
        source: int | None,
        once: bool,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        """Add a slot (numbered tensor) to the script for the result of `op`: a workspace if `source` is None, else a
        view.

        `source` is the slot of the tensor that is viewed. `shape` has the extents. `strides`, in elements, are those of
        a view; None: a view is a reshape. `once` is True inside the host program's `bind` block. Raise ExecutionError
        for a workspace with a type that has strides.
        """
        kind = op.results[0].type
        if kind.strides is not None and source is None:
            raise ExecutionError(f"{at_line(op)}: a workspace is packed", op.loc)
        slot = len(self.roots)
        self.slots[op.results[0]] = slot
        self.roots.append(slot if source is None else self.roots[source])
        self.script.memory.append(SlotMemory(slot, shape, kind.dtype.numpy, source, strides))
        if once and source is None:
            self.script.held.add(slot)

    def _launch(self, op: Op) -> Step:
        """Return the step of the `launch` operation `op`. The launched program is compiled here for the launch's
        settings.

        Raise ExecutionError unless the number of workers is at least 1 and within the limit.
        """
        settings = {name: self.number(e) for name, e in op.attrs.get("settings", ())}
        workers = self.number(op.attrs["workers"])
        if not 1 <= workers <= WORKERS.most:
            raise ExecutionError(
                f"{at_line(op)}: workers {shown(workers)}: at least one is needed, and {WORKERS.rule}", op.loc
            )
        program, late = self.executor.prepared(op.attrs["program"], settings)
        return Launched(program, tuple(self.slots[v] for v in op.operands), workers, tuple(late.items()))

    def _fill(self, op: Op) -> Step:
        """Return the step of the `fill` operation `op`: it fills a tensor with a number."""
        return Filled(self.slots[op.operands[0]], op.attrs["value"])

    def _check(self, op: Op) -> Step:
        """Return the step of the `check` operation `op`: it raises ExecutionError if one element of a tensor is not 0.

        `op` has the tensor, the index of the element and the error's text.
        """
        return Checked(self.slots[op.operands[0]], ((op.attrs["place"], op.attrs["says"], op.loc),))

    def _table(self, op: Op) -> Step:
        """Return the step of the `table` operation `op`: it copies a table of numbers to a tensor.

        The numbers are computed here, from an expression of the indices of an element. Raise ExecutionError if one does
        not fit the tensor's element type.
        """
        kind = op.operands[0].type
        shape = tuple(self.number(e) for e in kind.shape)
        names = dict(zip((s.name for s in op.attrs["over"]), np.indices(shape), strict=True))
        values = np.broadcast_to(np.asarray(evaluated(op.attrs["value"], {**self.values, **names})), shape)
        lowest, highest = kind.dtype.limits
        if values.size and (np.min(values) < lowest or np.max(values) > highest):
            value_range = f"{np.min(values)} to {np.max(values)}"
            raise ExecutionError(f"{at_line(op)}: its values, {value_range}, are not all {kind.dtype}", op.loc)
        return Tabled(self.slots[op.operands[0]], values.astype(kind.dtype.numpy))

    def _used(self, op: Op) -> list[tuple[Value, bool, bool]]:
        """Return [(tensor, True if it is read, True if it is written)] for the operands of `op`.

        `op` is a `launch`, `fill`, `table` or `check`.
        """
        if op.name == "launch":
            roles = [a.type.role for a in self.executor.module.programs[op.attrs["program"]].args]
            return [(v, r in ("in", "inout"), r != "in") for v, r in zip(op.operands, roles, strict=True)]
        return [(op.operands[0], op.name == "check", op.name != "check")]

    def _check_written(self, arguments: int) -> None:
        """Raise UninitialisedFault if a step reads a workspace that no earlier step has written.

        Set three facts about the steps of the `bind` block in the script: `fixed` (the arguments that they use), `held`
        (the tensors that they write), and `lasting` (True if they write workspaces only). `arguments` is the number of
        the host program's arguments, which have the first slots.
        """
        unwritten = {root for root in self.roots if root >= arguments}
        for once, op, uses in sorted(self._uses, key=lambda use: not use[0]):
            for value, read, written in uses:
                root = self.roots[self.slots[value]]
                if once and root < arguments:
                    self.script.fixed.add(root)
                if read and root in unwritten:
                    raise UninitialisedFault(f"{at_line(op)} reads %{value.name}, which nothing wrote", op.loc)
                if written and once:
                    self.script.held.add(root)
                    self.script.lasting &= root >= arguments
            unwritten -= {self.roots[self.slots[value]] for value, _, written in uses if written}


# -- the executor -------------------------------------------------------------------------------------------


class HostExecutor(ScriptExecutor):
    """Binds the host program of a module to arrays; a device makes its programs launchable.

    >>> from tilewright.ir.block import parse_block
    >>> from tilewright.ir.host import parse_host
    >>> from tilewright.limits import ELEMENTS
    >>> from tilewright.runtime.scripts import HostMemory
    >>> class Telling(HostMemory):  # a device that tells what it is asked
    ...     room = ELEMENTS
    ...     def __init__(self, name=None): self.name = name
    ...     def prepare(self, program, params): return Telling(program.name)
    ...     def launch(self, arrays, workers, params):
    ...         return lambda: print(self.name, *(a.shape for a in arrays), "on", workers)
    >>> host = parse_host('''host f(%w: in global f32 (N, 4), %y: out global f32 (N))
    ...   size N
    ... {
    ...   bind {
    ...     %t = workspace global f32 (4, N)
    ...     launch pack(%w, %t) workers 1
    ...   }
    ...   launch sums(%t, %y) workers N
    ... }''')
    >>> programs = [f"block {name}(%x: in global f32 (1), %y: out global f32 (1)) {{}}" for name in ("pack", "sums")]
    >>> executor = HostExecutor(Module.of(host, map(parse_block, programs)), Telling())
    >>> launch = executor.bind([np.ones((3, 4), np.float32), np.empty(3, np.float32)])
    pack (3, 4) (4, 3) on 1
    >>> launch()
    sums (4, 3) (3,) on 3
    """

    def __init__(self, module: Module, device: HostDevice):
        self.module, self.device = module, device
        self._open = bool(open_sizes(module.host))
        self.name = module.host.name
        self.main = next(reversed(module.programs), self.name)
        self.arguments = tuple(
            HostArgument(
                a.name or "",
                a.type.role or "in",
                str(a.type),
                a.type.dtype.numpy,
                len(a.type.shape),
                None if self._open else tuple(int(e) for e in a.type.shape),
            )
            for a in module.host.args
        )
        self._prepared: dict[Any, Launchable] = {}
        self._scripts: Callable[..., Script] = lru_cache(SCRIPTS)(self._written)

    def prepare(self) -> None:
        """Compile the programs of all launches that do not depend on sizes.

        A program that depends on them is compiled when arrays are bound. Settings that are passed at each launch, not
        compiled into the program, may depend on sizes.
        """
        for op in self.module.host.walk():
            if op.name == "launch" and not any(e.symbols for _, e in self._closed(op)):
                self.prepared(op.attrs["program"], {name: int(e) for name, e in self._closed(op)})

    def _closed(self, op: Op) -> list[tuple[str, Any]]:
        """Return [(name, expression)] of the settings of the `launch` operation `op` that are compiled into its
        program.

        The other settings are values of the program's open parameters, which are passed at each launch.
        """
        passed = {s.name for s in open_parameters(self.module.programs[op.attrs["program"]])}
        return [(name, e) for name, e in op.attrs.get("settings", ()) if name not in passed]

    def prepared(self, name: str, settings: Mapping[str, int]) -> tuple[Launchable, dict[str, int]]:
        """Return (the program `name` compiled for `settings`, {name: value} of the settings that are passed at each
        launch).

        `settings` is {name: value}. Those of the program's open parameters are passed at each launch. All others are
        compiled into the program: it is compiled at the first call with their values, and then reused.
        """
        program = self.module.programs[name]
        passed = {s.name for s in open_parameters(program)}
        bound = {n: v for n, v in settings.items() if n not in passed}
        key = (name, *sorted(bound.items()))
        launchable = self._prepared.get(key)
        if launchable is None:
            launchable = self._prepared[key] = self.device.prepare(program, bound)
        return launchable, {n: v for n, v in settings.items() if n in passed}

    def _written(self, values: tuple[tuple[str, int], ...]) -> Script:
        """Return a new script (list of steps) for `values`, which are (name, value) pairs of the open sizes."""
        return _ScriptWriter(self, dict(values)).script

    def sizes(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> tuple[tuple[str, int], ...]:
        """Return ((name, value), ...) of the open sizes (known only at the call) for a call with the arguments
        `arrays`.

        The result is () for a program without open sizes. `params` is {name: value} of sizes that no shape determines.
        Raise ArgumentError if the arrays do not fit the program.
        """
        self.require(arrays)
        if not self._open:
            return ()
        host = self.module.host
        named = {a.name or "": array for a, array in zip(host.args, arrays, strict=True)}
        return tuple(sizes_of(host, named, params).items())

    def script(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> Script:
        """Return the script (list of steps) for a call with the arguments `arrays`. Scripts are cached by sizes.

        `params` is {name: value} of sizes that no shape determines. Raise ArgumentError if the arrays do not fit the
        program.
        """
        return self._scripts(self.sizes(arrays, params))

    def script_of(self, sizes: tuple[tuple[str, int], ...]) -> Script:
        """Return the script (list of steps) for `sizes`, (name, value) pairs of the open sizes. Scripts are cached by
        sizes."""
        return self._scripts(sizes)

    def near(self, arrays: Sequence[Any], passing: bool = False) -> Memories:
        """Return the Memories of the device that `arrays` are on: the object that allocates, copies and fills tensors
        there.

        With `passing`, the caller promises to use tensors that it allocates only during one call.
        """
        return self.device.near(arrays, passing)
