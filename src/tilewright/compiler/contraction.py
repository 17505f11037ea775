"""A contraction as machine code: planned, written as block programs, compiled; one factor packed when it is bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.compiler.text import TextExecutable, compile_text
from tilewright.errors import ArgumentError
from tilewright.machine import Machine
from tilewright.passes.contraction.draft import Draft
from tilewright.passes.contraction.lowering import packing_of, write
from tilewright.plan.contraction import Contraction, joined
from tilewright.plan.fixed import FREE, Fixed
from tilewright.plan.plan import Plan, parse_plan
from tilewright.plan.planner import Choice, choose, variant
from tilewright.plan.validate import validate
from tilewright.runtime.dump import Dump
from tilewright.targets.registry import native

Array = np.ndarray[Any, np.dtype[Any]]


class ContractionKernel:
    """A contraction for one set of sizes: its plan, its block programs and their machine code."""

    def __init__(
        self, contraction: Contraction, plan: str | Plan | None = None, fixed: Fixed = FREE, target: str = "x86"
    ):
        self.target = target
        here = native(target)
        machine: Machine = here.machine()
        dump = Dump.of(contraction.name)
        dump.write("normalise", "contraction", lambda: contraction.text())
        self.choice: Choice = choose(contraction, machine, here.has, fixed)
        self.widened: dict[str, TextExecutable] = {}
        if self.choice.best is None and contraction.a.dtype.is_narrow:  # no atom takes it: converted beforehand
            contraction = self._widen(contraction)
            self.choice = choose(contraction, machine, here.has, fixed)
        if plan is not None:
            self.plan = parse_plan(plan) if isinstance(plan, str) else plan
            whole = joined(contraction)
            atom = machine.multiply.get(self.plan.atom or "")
            self.contraction = whole if atom is None else variant(whole, atom)
            self.form = validate(self.plan, self.contraction, machine)
            if not here.has(self.form.atom):
                raise ArgumentError(f"plan: atom {self.form.atom.name}: this CPU lacks it")
        elif self.choice.best is None:
            raise ArgumentError(f"no plan fits: {'; '.join(map(str, self.choice.refused))}")
        else:
            best = self.choice.best
            self.plan, self.form, self.contraction = best.plan, best.form, best.contraction
        dump.write("choose", "plan", lambda: "\n".join([*self.plan.lines(), "", self.choice.explain()]))
        packing = packing_of(self.contraction, self.form)

        def after(step: str, draft: Draft) -> None:
            dump.write(step, "draft", lambda: str(draft))

        text = write(self.contraction, self.form, machine.name, packing.shape, after)
        self.packed_shape = packing.shape
        self.packer: TextExecutable = compile_text(packing.text, target)
        self.main: TextExecutable = compile_text(text, target)

    def _widen(self, c: Contraction) -> Contraction:
        """The contraction on factors of the sum's type, and programs that convert them."""
        wide = c.sum_dtype
        for operand in (c.a, c.b):
            count = int(np.prod(operand.shape, dtype=np.int64))
            text = (
                f"block widen(%narrow: in global {operand.dtype} ({count}), %wide: out global {wide} ({count}))\n"
                f"{{\n  map %wide = {wide}(%narrow)\n}}\n"
            )
            self.widened[operand.name] = compile_text(text, self.target)
        return replace(c, a=replace(c.a, dtype=wide), b=replace(c.b, dtype=wide))

    def _wide(self, name: str, array: Array) -> tuple[Array, Callable[[], None] | None]:
        """(the array as the main program takes it, what must run before it)."""
        if name not in self.widened:
            return array, None
        wide = np.empty(array.shape, self.contraction.a.dtype.numpy)
        return wide, self.widened[name].bind(array.reshape(-1), wide.reshape(-1))

    def pack(self, factor: Array) -> Array:
        """The columns' factor in the order in which it is read."""
        c = self.contraction
        packed = np.empty(self.packed_shape, c.b.dtype.numpy)
        wide, before = self._wide(c.b.name, np.ascontiguousarray(factor))
        if before is not None:
            before()
        self.packer.bind(wide.reshape(c.b.shape), packed)()
        return packed

    def bind(self, arrays: Mapping[str, Array], packed: Array | None = None) -> Callable[[], None]:
        """The kernel bound to arrays by argument name; a call launches it. All arrays are contiguous."""
        c = self.contraction
        held = self.pack(arrays[c.b.name]) if packed is None else packed
        operands = [c.a, *(e for e in c.extras if e.name != c.a.name), c.out]
        image, before = self._wide(c.a.name, arrays[c.a.name])
        shaped = {o.name: (image if o.name == c.a.name else arrays[o.name]).reshape(o.shape) for o in operands}
        names = [a.name or "" for a in self.main.main.args]
        launch: Callable[[], None] = self.main.bind(*[held if n == "packed_" else shaped[n] for n in names])
        if before is None:
            return launch

        def both() -> None:
            before()
            launch()

        return both

    def explain(self) -> str:
        """The chosen plan, its predicted time against the roofline, and what was refused."""
        return self.choice.explain()
