"""The executor of a module on a CPU: one machine-code entry bound to arrays, or launches one by one from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.algebra.expr import as_expr
from tilewright.codegen.entry.decided import without_unreachable
from tilewright.compiler.device import Device, NativeDevice, NativeProgram, why_copied
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.core import Op
from tilewright.ir.module import Module
from tilewright.runtime.host import SCRIPTS, HostExecutor
from tilewright.runtime.scripts import Launched, Script
from tilewright.targets.cpu.entry import EntryCode, EntryMember
from tilewright.targets.cpu.entry_executor import EntryExecutor
from tilewright.targets.cpu.entry_object import entry_code

Array = np.ndarray[Any, np.dtype[Any]]
Sizes = tuple[tuple[str, int], ...]


def executor_of(module: Module, device: Device) -> HostExecutor:
    """Return the executor that binds `module` to arrays and runs it on `device`.

    On a CPU it is a NativeExecutor, which runs the module by one native entry if possible.
    """
    return NativeExecutor(module, device) if isinstance(device, NativeDevice) else HostExecutor(module, device)


class NativeExecutor(EntryExecutor, HostExecutor):
    """A module on a CPU.

    Its script is the list of launches for one set of sizes, and is checked once for them. Its entry is a native
    function that makes the same launches. One entry serves all sizes, unless sizes decide which programs are launched;
    then there is an entry for each set of sizes.
    """

    device: NativeDevice

    def __init__(self, module: Module, device: NativeDevice):
        super().__init__(module, device)
        self._host = without_unreachable(module.host)
        self._launches = [op for op in self._host.walk() if op.name == "launch"]
        self._is_one = not any(as_expr(e).symbols for op in self._launches for _, e in self._closed(op))
        """True if one object serves all sizes: none of them decides which program is launched."""
        self._codes: dict[Sizes, EntryCode] = {}
        self._members = lru_cache(SCRIPTS)(self._member_of_sizes)
        self.why_script: str | None = None if device.target.runs else device.target.why_not
        """Why the launches run one by one from Python (the script): no entry can do them. None if one can."""
        for op in self._launches:
            for arg, value in zip(module.programs[op.attrs["program"]].args, op.operands, strict=True):
                self.why_script = self.why_script or why_copied(module.programs[op.attrs["program"]], arg, value.type)

    def prepare(self) -> None:
        """Compile the module's entry (the native function that runs the whole module), with the programs that it
        launches.

        Nothing is compiled yet for programs with settings that depend on sizes, nor an entry if sizes decide which
        programs are launched. If there can be no entry (`why_script` has the reason), only the programs are compiled.
        """
        super().prepare()
        if self.why_script is None and self._is_one:
            self._code(())
        elif self.why_script is not None:
            for program in self._prepared.values():
                assert isinstance(program, NativeProgram)
                program.make()

    def member(self, arrays: Sequence[Array], params: Mapping[str, int] | None = None) -> EntryMember | None:
        """Return the module's entry (the native function that runs the whole module) for the sizes of `arrays`, as an
        EntryMember.

        Return None if Python must launch the module's programs one by one (`why_script` has the reason). `params` is
        {name: value} of sizes that no shape determines. Raise ArgumentError if the arrays do not fit.
        """
        return None if self.why_script is not None else self._members(self.sizes(arrays, params))

    def member_of_closed_sizes(self) -> EntryMember | None:
        """Return the entry (the native function that runs the whole module) of a module without dynamic sizes, as an
        EntryMember.

        Return None if Python must launch the module's programs one by one (`why_script` has the reason).
        """
        return None if self.why_script is not None else self._members(())

    def _member_of_sizes(self, sizes: Sizes) -> EntryMember:
        """Return the EntryMember for `sizes`, ((name, number), ...): the module's entry, with the facts that a call
        needs.

        The entry is the native function that runs the whole module. A fact is, for example, which workspaces `bind`
        fills. Raise ArgumentError if a launched program does not take the arrays that it is launched on.
        """
        script = self.script_of(sizes)
        self._check_launches(script, dict(sizes))
        code = self._code(sizes)
        ops = list(self._host.walk())
        held_memory = [m for m in script.memory if m.slot in script.held]
        return EntryMember(
            self.name,
            code,
            tuple(n for _, n in sizes),
            tuple(script.once),
            tuple(held_memory),
            script.lasting,
            frozenset(script.fixed),
            {number: ops[index].loc for number, index in code.checks.items()},
        )

    def _check_launches(self, script: Script, values: Mapping[str, int]) -> None:
        """Raise ArgumentError if a launch of `script` has arrays that its program does not take: wrong shapes, types or
        sizes.

        `values` is {name: number} of the sizes for which the script was written.
        """
        memory = [
            _dummy_array([int(evaluated(e, values)) for e in a.type.shape], a.type.dtype.numpy) for a in self._host.args
        ]
        memory += [_dummy_array(m.shape, m.dtype) for m in script.memory]
        for step in (*script.once, *script.each):
            if isinstance(step, Launched):
                assert isinstance(step.program, NativeProgram)
                step.program.require([memory[n] for n in step.slots], dict(step.params))

    def _code(self, sizes: Sizes) -> EntryCode:
        """Return the machine code of the entry (the native function that runs the whole module) for `sizes`, ((name,
        number), ...).

        It is compiled at the first call and cached: once for all sizes; or for each set of sizes, if sizes decide which
        programs are launched.
        """
        key = () if self._is_one else sizes
        if key not in self._codes:
            values = dict(sizes)

            def launched(op: Op) -> Any:
                settings = {name: int(evaluated(e, values)) for name, e in self._closed(op)}
                program, _ = self.prepared(op.attrs["program"], settings)
                assert isinstance(program, NativeProgram)
                return program.kernel, program.conditions

            self._codes[key] = entry_code(self._host, launched, self.device.target)
        return self._codes[key]


def _dummy_array(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Return a read-only array of zeros with the given shape and element type, which uses the memory of one element."""
    return np.broadcast_to(np.zeros((), dtype), tuple(shape))
