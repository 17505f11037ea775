"""The peak of this CPU, measured: one atom in a loop whose operands stay in registers or the first-level cache.

A kernel's share of the peak says how much of the machine it uses. The same loop, run beside a measurement, shows
whether the machine was free meanwhile.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import ArgumentError

if TYPE_CHECKING:
    from tilewright.ir.dtypes import DType
    from tilewright.machine import Machine, MultiplyAtom

CYCLES = 100_000
"""The approximate duration of a probe in cycles."""
_DEPTH = 64  # the K extent that a probe of vector atoms iterates over repeatedly


@dataclass
class Peak:
    """A probe: a short program at the CPU's peak rate. Calling it runs the program once and returns the seconds that
    this took; `flops` is the number of operations of a run, `atom` the name of the atom that it uses.
    """

    atom: str
    flops: int
    launch: Any

    def __call__(self) -> float:
        """The seconds that one run takes."""
        before = time.perf_counter()
        self.launch()
        return time.perf_counter() - before

    def rate(self, repeats: int = 20) -> float:
        """Run the probe `repeats` times and return the highest rate, in floating-point operations per second."""
        return self.flops / min(self() for _ in range(repeats))


def fastest_atom(machine: Machine, a: DType, b: DType) -> MultiplyAtom | None:
    """Return the multiplication atom of `machine` for operand types `a` and `b` with the largest M * N * K; None if
    there is none. Atoms for which `peak_text` cannot write a probe are left out.
    """
    candidates = [x for x in machine.multiply.values() if (x.a.dtype, x.b.dtype) == (a, b) and _has_probe(x)]
    return max(candidates, key=lambda x: x.shape[0] * x.shape[1] * x.shape[2], default=None)


def _has_probe(atom: MultiplyAtom) -> bool:
    """True if `peak_text` can write a probe (a loop that measures the peak) of `atom`: its accumulator is in tile
    registers, or it computes one row of C.
    """
    from tilewright.machine import OpaqueOperand

    return isinstance(atom.c, OpaqueOperand) or atom.shape[0] == 1


def peak_of(a: DType, b: DType) -> Peak:
    """Compile a probe of this CPU's peak rate (a loop of one multiplication atom on all cores) for operand types `a`
    and `b`, and return the probe. Raise `ArgumentError` if no atom multiplies these types.
    """
    from tilewright.compiler.text import compile_text
    from tilewright.targets.names import CPU
    from tilewright.targets.registry import native

    machine = native(CPU).machine
    workers = machine.limits.cores or 1
    atom = fastest_atom(machine, a, b)
    if atom is None:
        raise ArgumentError(f"no atom of this CPU multiplies {a} by {b}: there is no peak to measure")
    text, products = peak_text(atom, machine, workers)
    executable = compile_text(text)
    arrays = [np.zeros(tuple(map(int, x.type.shape)), x.type.dtype.numpy) for x in executable.main.args]
    return Peak(atom.name, 2 * products * workers, executable.bind(*arrays))


def peak_text(atom: MultiplyAtom, machine: Machine, workers: int) -> tuple[str, int]:
    """Return (text, number of multiply-adds in each task): the block program of a probe that runs `atom` of `machine`
    in a loop, with one task for each of `workers`.

    >>> from tilewright.targets.registry import machine
    >>> row = machine("x86.avx512")
    >>> text, products = peak_text(row.multiply_atom("avx512.f32"), row, 2)
    >>> print(text.splitlines()[0])
    block peak(%a: in global f32 (13, 64), %b: in global f32 (64, 32, 1), %y: out global f32 (2, 13, 32))
    """
    from tilewright.machine import OpaqueOperand
    from tilewright.plan.vectors import fits

    m, n, depth = atom.shape
    tiles = isinstance(atom.c, OpaqueOperand)
    if tiles:  # 2 x 2 accumulator tiles, two tiles of each operand: all of the eight registers
        rows, columns, group, length = 2 * m, 2 * n, depth // m, depth
        count = max(1, CYCLES // (4 * m))
    else:  # two accumulator vectors per row; with fewer free registers LLVM would move and spill them
        rows = max(1, max(r for r in range(1, machine.limits.registers) if r == 1 or fits(r, 2, atom, machine)) - 1)
        columns, group, length = 2 * n, depth, _DEPTH
        count = max(1, CYCLES * depth // (rows * length))
    a, b, c = atom.a.dtype, atom.b.dtype, atom.c.dtype
    lines = [
        f"block peak(%a: in global {a} ({rows}, {length}), %b: in global {b} ({length // group}, {columns}, {group}),"
        f" %y: out global {c} ({workers}, {rows}, {columns}))",
        f"  machine {machine.name}",
        "{",
        f"  tasks w in 0..{workers} {{",
        f"    %sums = alloc register {c} ({rows}, {columns}) as {atom.name}.c",
        "    fill %sums 0",
    ]
    if tiles:
        lines += [
            f"    %left = alloc register {a} ({rows}, {length}) as {atom.name}.a",
            f"    %right = alloc register {b} ({length}, {columns}) as {atom.name}.b",
            f"    %rows = view %a (i {rows}, k {length}) -> [i, k]",
            f"    %columns = view %b (k {length}, j {columns}) -> [k//{group}, j, k%{group}]",
            "    copy %rows -> %left",
            "    copy %columns -> %right",
            f"    for again in 0..{count} {{",
            f"      mma %sums += %left * %right using {atom.name}",
            "    }",
        ]
    else:
        step = 4 * depth
        part = f"{step}*e + k"
        lines += [
            f"    for again in 0..{count}, e in 0..{length // step} {{",
            f"      %rows = view %a (i {rows}, k {step}) -> [i, {part}]",
            f"      %columns = view %b (k {step}, j {columns}) -> [({part})//{group}, j, ({part})%{group}]",
            f"      mma %sums += %rows * %columns using {atom.name}",
            "    }",
        ]
    lines += [
        f"    %goal = view %y (i {rows}, j {columns}) -> [w, i, j]",
        "    copy %sums -> %goal",
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n", count * rows * columns * length
