"""The host level of compiled kernels: what happens when arguments are bound, and at every launch."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from tilewright.ir.core import Program

if TYPE_CHECKING:
    from tilewright.compiler.contraction import ContractionKernel
    from tilewright.plan.contraction import Operand


def block_texts(kernel: ContractionKernel) -> list[str]:
    """The block programs of a kernel in the order in which they run: packing and the main one last."""
    texts = []
    for name, widen in kernel.widened.items():  # factors that are converted first
        narrow, wide = (a.type.dtype for a in widen.main.args)
        factor = _operand(kernel, name)
        shape = _shape(factor.shape)
        arguments = f"%narrow: in global {narrow} {shape}, %wide: out global {wide} {shape}"
        texts.append(f"block widen_{factor.value}({arguments})\n{{\n  map %wide = {wide}(%narrow)\n}}\n")
    return [*texts, kernel.packer.text("block"), kernel.main.text("block")]


def host_program(kernel: ContractionKernel, workers: int) -> str:
    """The host program of a kernel: the packed factor is made when arguments are bound, the rest at every launch."""
    pack, main = kernel.packer.main, kernel.main.main
    source, packed = (a.name for a in pack.args)
    types = {a.name: f"{a.type.dtype} {_shape(a.type.shape)}" for a in (*pack.args, *main.args)}
    roles = {a.name: a.type.role for a in (*main.args, pack.args[0])}
    c = kernel.contraction
    called = {o.name: o.value for o in (c.a, c.b, c.out, *c.extras)}
    wide = {called[name]: f"wide_{name}_" for name in kernel.widened}
    outer = types | {
        called[n]: f"{w.main.args[0].type.dtype} {_shape(_operand(kernel, n).shape)}" for n, w in kernel.widened.items()
    }
    names = [called[name] for name in c.arguments if called.get(name) in roles]
    header = ", ".join(f"%{name}: {roles[name]} global {outer[name]}" for name in names)

    def widening(name: str | None) -> list[str]:
        if name not in wide:
            return []
        return [f"%{wide[name]} = workspace global {types[name]}", launch(f"widen_{name}", name, wide[name])]

    def launch(program: str, *arguments: str | None) -> str:
        return f"launch {program}({', '.join(f'%{a}' for a in arguments)}) workers {workers}"

    bound = [
        *widening(source),
        f"%{packed} = workspace global {types[packed]}",
        launch(pack.name, wide.get(source or "", source), packed),
    ]
    rows = next(name for name in (a.name for a in main.args) if name != packed)
    done = [*widening(rows), launch(main.name, *(wide.get(a.name or "", a.name) for a in main.args))]
    lines = ["  bind {", *(f"    {line}" for line in bound), "  }", *(f"  {line}" for line in done)]
    return "\n".join([f"host {main.name}_host({header})", "{", *lines, "}", ""])


def host_text(kernel: ContractionKernel, workers: int | None = None) -> str:
    """The whole text that `compile_text` takes: the host program and those that it launches."""
    count = kernel.machine.limits.cores or 1 if workers is None else workers
    return "\n".join([host_program(kernel, count), *block_texts(kernel)])


def host_of_one(program: Program) -> str:
    """A host program that launches one block program as it is, and that program."""
    arguments = ", ".join(
        f"%{a.name}: {a.type.role} global {a.type.dtype} {_shape(a.type.shape)}" for a in program.args
    )
    names = ", ".join(f"%{a.name}" for a in program.args)
    (tasks,) = (op for op in program.body.ops if op.name == "tasks")
    count = prod(int(r.hi) for r in tasks.attrs["ranges"])
    launch = f"  launch {program.name}({names}) workers {count}"
    return "\n".join([f"host {program.name}_host({arguments})", "{", launch, "}", "", str(program)])


def _operand(kernel: ContractionKernel, name: str) -> Operand:
    c = kernel.contraction
    return c.a if c.a.name == name else c.b


def _shape(extents: Any) -> str:
    return f"({', '.join(map(str, extents))})"
