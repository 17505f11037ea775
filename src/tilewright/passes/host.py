"""The pass that writes the host program: what happens when a kernel's arguments are bound, and at every launch.

Before: the block programs of a job. After: one module, whose host program takes the kernel's arguments as its caller
passes them, and launches the block programs on what they take:

host gemm_host(%a: in global f32 (5, 8), %b: in global f32 (8, 3), %c: out global f32 (5, 3))
{
  bind {                                                      # where %b is constant; else at every launch
    %packed_ = workspace global f32 (1, 8, 16, 1)
    launch pack(%b, %packed_) workers 2
  }
  launch gemm(%a, %packed_, %c) workers 2
}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

from tilewright.algebra.expr import Const, Expr, as_expr, symbol
from tilewright.ir.binding import open_parameters
from tilewright.ir.block import BLOCK, parse_block
from tilewright.ir.builder import Builder
from tilewright.ir.core import Program, Value
from tilewright.ir.dtypes import DType, i32
from tilewright.ir.formula import Formula
from tilewright.ir.host import HOST
from tilewright.ir.module import Module, named_apart
from tilewright.ir.tensors import TensorType
from tilewright.limits import ELEMENTS
from tilewright.passes.job import Job
from tilewright.plan.contraction import Contraction, Operand


def write_host(job: Job) -> None:
    """The job's module, where its caller's arguments are known."""
    if job.arguments is None:
        return
    if job.lowered is not None:
        job.module = _of_one(job)
    elif job.contraction is not None and job.draft is not None and job.packing is not None:
        job.module = _Contracting(job, job.contraction).module()


class _Host:
    """A host program as it grows, and the programs that it launches."""

    def __init__(self, job: Job, main: Program, roles: Mapping[str, str]):
        assert job.arguments is not None
        self.b, self.main, self.programs = Builder(HOST), main, list[Program]()
        self.name = f"{main.name}_host"
        self.cores = job.machine.limits.cores or 1
        self.args: dict[str, Value] = {}
        for arg in job.arguments:
            name = arg.name or ""
            self.args[name] = self.b.argument(name, replace(arg.type, role=roles.get(name, "in")))

    def workspace(self, dtype: DType, shape: Sequence[Any], name: str) -> Value:
        kind = TensorType("global", dtype, tuple(map(as_expr, shape)))
        return self.b.emit("workspace", attrs={"type": kind}, names=(name,)).result

    def shaped(self, value: Value, shape: Sequence[Any]) -> Value:
        """The tensor in a shape; itself, where it has it."""
        extents = tuple(map(as_expr, shape))
        if value.type.shape == extents:
            return value
        return self.b.emit("reshape", (value,), {"shape": extents}, names=(f"{value.name}_shaped_",)).result

    def launch(self, program: Program, operands: Sequence[Value], workers: int | None = None, **settings: Expr) -> None:
        """Launches a program; under another name, where that is taken."""
        if program is not self.main:
            program = named_apart(program, (self.name, self.main.name, *(p.name for p in self.programs)))
        self.programs.append(program)
        told = {s.name: settings.get(s.name, s) for s in open_parameters(program)}
        attrs: dict[str, Any] = {"program": program.name, "workers": as_expr(workers or self.cores)}
        if told:
            attrs["settings"] = tuple(told.items())
        self.b.emit("launch", operands, attrs)

    @contextmanager
    def once(self, constant: bool) -> Iterator[None]:
        """Within it, all is done when arguments are bound, if what it depends on is constant."""
        if constant:
            with self.b.inside("bind"):
                yield
        else:
            yield

    def module(self) -> Module:
        return Module.of(self.b.program(self.name), self.programs)


def _of_one(job: Job) -> Module:
    """One program of the general path; what it logs is an argument, what it reports is looked at after it has run."""
    lowered = job.lowered
    assert lowered is not None
    block = lowered.program
    roles = {a.name or "": own.type.role for a, own in zip(lowered.arguments, block.args, strict=False)}
    host = _Host(job, block, roles)
    operands = [host.args[a.name or ""] for a in lowered.arguments]
    for pack in lowered.packs:
        source, kind = host.args[pack.source.name or ""], pack.packed.type
        with host.once(pack.source.name in job.constant):
            operands.append(host.workspace(kind.dtype, kind.shape, pack.packed.name or "packed_"))
            host.launch(pack.program, (source, operands[-1]), min(_tasks(pack.program), host.cores))
    rest = block.args[len(operands) :]
    for log, own in zip(lowered.logs, rest, strict=False):
        value = host.b.argument(own.name or "", replace(own.type, role="inout"))
        host.b.emit("fill", (value,), {"value": float("nan") if log.dtype.is_float else 0})
        operands.append(value)
    faults = None
    if lowered.faults:
        faults = host.workspace(i32, (len(lowered.faults),), rest[-1].name or "faults")
        host.b.emit("fill", (faults,), {"value": 0})
        operands.append(faults)
    host.launch(block, operands, min(_tasks(block), host.cores))
    for place, fault in enumerate(lowered.faults):
        assert faults is not None
        host.b.emit("check", (faults,), {"place": place, "says": fault.what}, loc=fault.op.loc)
    return host.module()


def _tasks(program: Program) -> int:
    tasks = next(op for op in program.walk() if op.name == "tasks")
    return prod(int(r.hi) for r in tasks.attrs["ranges"])


class _Contracting:
    """The host program of a contraction: B packed into panels, operands converted where no atom takes their type."""

    def __init__(self, job: Job, c: Contraction):
        assert job.packing is not None
        self.job, self.c, self.packing = job, c, job.packing
        self.main = parse_block(str(job.draft))
        self.host = _Host(job, self.main, {c.out.name: "out"})
        if c.parameters:
            self.host.b.record("param", {"parameters": tuple((s, None) for s in c.parameters)})

    def module(self) -> Module:
        c, host, constant = self.c, self.host, self.job.constant
        with host.once(c.b.name in constant):
            source = self._wide(c.b)
            packed = host.workspace(self.packing.dtype, self.packing.shape, "packed_")
            host.launch(parse_block(self.packing.text), (source, packed))
        with host.once(c.a.name in constant and c.a.name in self.job.widened):
            image = self._wide(c.a)
        given = {"packed_": packed, c.a.value: image}
        for operand in (*c.extras, c.out):
            if operand.value not in given:
                given[operand.value] = host.shaped(host.args[operand.name], operand.shape)
        host.launch(self.main, [given[a.name or ""] for a in self.main.args])
        return host.module()

    def _wide(self, operand: Operand) -> Value:
        """An operand as programs take it: in its digits' shape, converted first where that was decided."""
        host, given = self.host, self.host.args[operand.name]
        if operand.name not in self.job.widened:
            return host.shaped(given, operand.shape)
        count: Expr = as_expr(1)
        for extent in operand.shape:
            count = count * extent
        wide = host.workspace(operand.dtype, operand.shape, f"{operand.name}_wide_")
        flat = [host.shaped(value, (count,)) for value in (given, wide)]
        host.launch(_widening(operand, given.type.dtype, count), flat, COUNT=count)
        return wide


def _widening(operand: Operand, narrow: DType, count: Expr) -> Program:
    """The program that converts a tensor, of so many elements or of any number."""
    b, extent = Builder(BLOCK), count
    if not isinstance(count, Const):
        extent = symbol("COUNT", 1, ELEMENTS.most)
        b.record("param", {"parameters": ((extent, None),)})
    source = b.argument("narrow", TensorType("global", narrow, (extent,), role="in"))
    goal = b.argument("wide", TensorType("global", operand.dtype, (extent,), role="out"))
    b.emit("map", (goal, source), {"formula": Formula.cast(operand.dtype, Formula.operand(1))})
    return b.program(f"widen_{operand.name}")
