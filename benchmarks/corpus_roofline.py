"""Rooflines of the plan corpus, counted from programs and rows alone: no planner's word is taken for them.

A kernel takes no less time than all its products by the fastest atom of their types on all cores, and no less than
bringing every argument once. Causal masks are not counted: what they leave out is in the roofline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, prod

from corpus_plans import Planned, machine_of
from corpus_problems import Problem, problems
from corpus_text import Key

from tilewright.algebra.expr import Expr, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.compiler.kernels import resolve
from tilewright.ir.core import MemoryType, Op, Program
from tilewright.machine import Machine

Size = Callable[[Expr], int]


def cliffs(record: Mapping[Key, Planned], count: int) -> list[tuple[float, Key, float, float]]:
    """(ratio, entry, predicted cycles, roofline) of so many entries that take longest, measured by their rooflines."""
    every, counted = problems(), dict[tuple[str, str], tuple[Program, Size]]()
    found = []
    for key, entry in record.items():
        if entry.error or not entry.cycles:
            continue
        if key[:2] not in counted:
            counted[key[:2]] = sized(every[key[:2]])
        bound = roofline(*counted[key[:2]], machine_of(key[2]))
        found.append((entry.cycles / bound, key, entry.cycles, bound))
    return sorted(found, reverse=True)[:count]


def sized(problem: Problem) -> tuple[Program, Size]:
    """The program of a problem, and the number that a dimension of it is."""
    program = problem.make().trace()
    symbols = {s for arg in program.args for d in getattr(arg.type, "dims", ()) for s in d.symbols}
    given: dict[Expr, Expr] = {s: as_expr(problem.sizes[s.name]) for s in symbols if s.name in problem.sizes}
    numbers = Substitution(resolve({**resolve(program.bindings), **given}))
    return program, lambda d: int(numbers(d))


def roofline(program: Program, size: Size, machine: Machine, kept: float = 1.0) -> float:
    """Cycles that no plan of a program can beat on a machine; `kept` is the share of products that masks leave."""
    cores, limits = machine.limits.cores or 1, machine.limits
    products = kept * sum(_terms(op, size) * _cycles(op, machine) for op in program.walk() if op.name == "mma")
    moved = sum(_bytes(program, arg.type, size, arg) for arg in program.args if isinstance(arg.type, MemoryType))
    near = machine.lanes is None and moved <= cores * (limits.l2_bytes or 0)
    memory = moved / (limits.l2_rate if near else limits.far_rate)
    return max(products, memory) / cores + limits.launch_cycles


def _terms(op: Op, size: Size) -> int:
    """How many products of two numbers a product of tiles has."""
    return prod(map(size, {d for operand in op.operands[:2] for d in operand.type.dims}))


def _cycles(op: Op, machine: Machine) -> float:
    """The cycles of a core for one product of two numbers, by the fastest atom of their types, or by lanes."""
    types = [operand.type.dtype for operand in op.operands[:2]]
    rounds = op.attrs.get("precision")
    fit = (a for a in machine.multiply.values() if [a.a.dtype, a.b.dtype] == types and a.rounds_to in (None, rounds))
    by_atom = min((a.cycles / prod(a.shape) for a in fit), default=inf)
    lanes = machine.limits.lane_rate if machine.lanes is not None else (machine.limits.vector_bytes or 16) / 2
    return min(by_atom, max(4, types[0].numpy.itemsize) / 4 / lanes)


def _bytes(program: Program, memory: MemoryType, size: Size, arg: object) -> float:
    """The bytes of an argument that are read or written: all, or less where that is what tiles hold."""
    tiles = [op.results[0].type for op in program.walk() if op.name == "read" and op.operands[0] is arg]
    tiles += [op.operands[0].type for op in program.walk() if op.name == "write" and op.operands[1] is arg]
    touched = sum(prod(map(size, tile.dims)) for tile in tiles)
    return min(prod(map(size, memory.dims)), touched or inf) * memory.dtype.numpy.itemsize
