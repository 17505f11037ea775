"""A contraction as machine code: planned, written as block programs, compiled; one factor packed when it is bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.compiler.host import host_text
from tilewright.compiler.text import TextExecutable, compile_text
from tilewright.errors import ArgumentError
from tilewright.machine import Machine
from tilewright.passes.job import Job
from tilewright.passes.lower import lower
from tilewright.passes.pipeline import run
from tilewright.plan.contraction import Contraction
from tilewright.plan.plan import Plan, parse_plan
from tilewright.plan.planner import Choice
from tilewright.runtime.arrays import empty
from tilewright.runtime.dump import Dump
from tilewright.runtime.timing import benchmark
from tilewright.targets.registry import native

Array = np.ndarray[Any, np.dtype[Any]]


class ContractionKernel:
    """A contraction for one set of sizes: its plan, its block programs and their machine code.

    With a `machine` it is planned for that one, whatever this CPU is, and has no machine code: its target is the
    interpreter.
    """

    def __init__(
        self,
        contraction: Contraction,
        plan: str | Plan | None = None,
        target: str = "cpu",
        machine: Machine | None = None,
    ):
        given = parse_plan(plan) if isinstance(plan, str) else plan
        if machine is not None:
            target = "interpreter"
        job = Job(native(target).machine if machine is None else machine, given=given, contraction=contraction)
        self._compile(run(job, Dump.of(contraction.name).write), target)

    @classmethod
    def of(cls, job: Job, target: str) -> ContractionKernel:
        """The kernel of a job whose passes have run."""
        made = cls.__new__(cls)
        made._compile(job, target)
        return made

    def _compile(self, job: Job, target: str) -> None:
        assert isinstance(job.choice, Choice)
        assert job.contraction is not None
        assert job.plan is not None
        assert job.form is not None
        assert job.packing is not None
        self.target, self.choice, self.plan, self.form = target, job.choice, job.plan, job.form
        self.machine = job.machine
        self.contraction = c = job.contraction
        self.packed_shape, self.packed_dtype = job.packing.shape, job.packing.dtype
        self.widened: dict[str, TextExecutable] = {}
        for name, narrow in job.widened.items():
            operand = c.a if c.a.name == name else c.b
            fixed = all(isinstance(n, int) for n in operand.shape)
            count = str(int(np.prod(operand.shape, dtype=np.int64))) if fixed else "COUNT"
            header = f"block widen(%narrow: in global {narrow} ({count}), %wide: out global {operand.dtype} ({count}))"
            open_count = "" if fixed else f"  param COUNT in 1..{1 << 48}\n"
            text = f"{header}\n{open_count}{{\n  map %wide = {operand.dtype}(%narrow)\n}}\n"
            self.widened[name] = compile_text(text, target)
        self.packer: TextExecutable = compile_text(job.packing.text, target)
        self.main: TextExecutable = compile_text(str(job.draft), target)

    def _wide(self, name: str, array: Array) -> tuple[Array, Callable[[], None] | None]:
        """(the array as the main program takes it, what must run before it)."""
        if name not in self.widened:
            return array, None
        wide = empty(array.shape, self.contraction.a.dtype.numpy)
        return wide, self.widened[name].bind(array.reshape(-1), wide.reshape(-1))

    def pack(self, factor: Array) -> Array:
        """The columns' factor in the order in which it is read."""
        packed = empty(self.packed_shape, self.packed_dtype.numpy)
        self.packing(np.ascontiguousarray(factor), packed)()
        return packed

    def packing(self, factor: Array, packed: Array) -> Callable[[], None]:
        """What packs the factor, contiguous, whenever it is called."""
        wide, before = self._wide(self.contraction.b.name, factor)
        return _after(before, self.packer.bind(wide.reshape(self.contraction.b.shape), packed))

    def bind(self, arrays: Mapping[str, Array], packed: Array | None = None) -> Callable[[], None]:
        """The kernel bound to arrays by argument name; a call launches it. All arrays are contiguous."""
        c = self.contraction
        held = self.pack(arrays[c.b.name]) if packed is None else packed
        operands = [c.a, *(e for e in c.extras if e.name != c.a.name), c.out]
        image, before = self._wide(c.a.name, arrays[c.a.name])
        given = {o.name: image if o.name == c.a.name else arrays[o.name] for o in operands}
        shaped = {o.value: _shaped(given[o.name], o.shape) for o in operands}
        names = [a.name or "" for a in self.main.main.args]
        launch: Callable[[], None] = self.main.bind(*[held if n == "packed_" else shaped[n] for n in names])
        return _after(before, launch)

    def text(self, level: str = "block") -> str:
        """The kernel on a level: "plan", "host" (with all block programs), "block", "loop", "llvm" or "asm" of the main
        program."""
        if level == "plan":
            return "\n".join(self.plan.lines()) + "\n"
        if level == "loop":
            return str(lower(self.main.main, self.machine, self.machine).program)
        return host_text(self) if level == "host" else self.main.text(level)

    def __repr__(self) -> str:
        c = self.contraction
        given = ", ".join(f"{o.name}: {o.dtype}[{', '.join(map(str, o.shape))}]" for o in (c.a, c.b, *c.extras, c.out))
        return f"<kernel {c.name}({given}) by {self.form.atom.name} on {self.target}>"

    def benchmark(self, arrays: Mapping[str, Array], seconds: float = 0.2) -> dict[str, float]:
        """Seconds of a launch on these arrays, the columns' factor packed before: shortest, median, calls."""
        return benchmark(self.bind(arrays), seconds)

    def __reduce__(self) -> tuple[Any, ...]:
        return ContractionKernel, (self.contraction, self.plan, self.target)

    def explain(self) -> str:
        """The chosen plan, its predicted time against the roofline, and what was refused."""
        return self.choice.explain()


def _after(before: Callable[[], None] | None, launch: Callable[[], None]) -> Callable[[], None]:
    """Both, one after the other."""
    if before is None:
        return launch

    def both() -> None:
        before()
        launch()

    return both


def _shaped(array: Array, shape: tuple[Any, ...]) -> Array:
    """An array as the program has it: digits that lie side by side may be one there, also where others are open."""
    if not array.flags.c_contiguous:  # a reshape would copy it, and what is written there would be lost
        raise ArgumentError(f"an array of shape {array.shape} is not contiguous; pass np.ascontiguousarray of it")
    if all(isinstance(n, int) for n in shape):
        return array.reshape(shape)
    return array if array.ndim == len(shape) else array.reshape(*array.shape[:-2], -1)
