"""A job of an elementwise operation on a CPU: a formula, its target and its sources, over a shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tilewright.algebra.expr import Expr, Symbol
from tilewright.analysis.flat_memory import Size, TensorAddress
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.lower.cpu.register_forms import Vectors

At = Callable[[tuple[Expr, ...]], TensorAddress]


@dataclass
class ElementwiseJob:
    """Element-by-element work: target = formula of sources, over a shape.

    An operand in memory is a function from coordinates to an address, an operand in registers is `Vectors`. `otherwise`
    is the value of a source that is out of bounds. If operands are in registers, the shape consists of ints.
    """

    shape: tuple[Size, ...]
    dtype: DType
    target: At | Vectors
    formula: Formula
    sources: dict[int, At | Vectors]
    types: dict[int, DType]
    otherwise: float | None = None
    over: tuple[Symbol, ...] = ()
    stream: bool = False
    assumed: frozenset[Expr] = frozenset()
    """Conditions over the job's axes that the limits of the enclosing loops guarantee."""
    repeats: Mapping[int, int] = field(default_factory=dict)
    """{source number: how many neighbouring elements along the last axis of an extent above 1 read the same element};
    sources of which each element is read once are left out.
    """
    identity: bool = field(init=False)

    def __post_init__(self) -> None:
        self.identity = self.formula.name == "operand"


def memory_operands(job: ElementwiseJob) -> dict[int, At]:
    """Return {operand number: function from coordinates to an address} of the operands of `job` that are in memory.
    Number 0 is the target. Sources that the formula does not use are left out.
    """
    used = {f.value for f in job.formula.walk() if f.name == "operand"}
    operands = {0: job.target, **{n: s for n, s in job.sources.items() if n in used}}
    return {n: side for n, side in operands.items() if not isinstance(side, Vectors)}
