"""The arguments and results of a compiled kernel for torch's operators: a schema, and shapes that follow from shapes.

Shapes are computed by Python's operators, so that they may be torch's symbolic integers: nothing is fixed to a number
while torch.compile or torch.export traces a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.algebra.expr_use import Substitution, evaluate
from tilewright.compiler.kernels import Executable
from tilewright.compiler.text import TextExecutable
from tilewright.errors import ArgumentError, ExpressionError
from tilewright.ir.core import MemoryType
from tilewright.ir.dtypes import DType
from tilewright.runtime.arguments import solve

_SCALARS = {"float": "float", "int": "SymInt", "bool": "bool"}
"""Kinds of element types, and the schema's types of numbers."""


@dataclass(frozen=True)
class KernelArgument:
    """An argument of a kernel: a tensor of these extents, or a number."""

    name: str
    dtype: DType
    extents: tuple[Expr | None, ...] | None
    """None in place of all of them: it is a number; of one: the array itself tells it."""

    @property
    def is_tensor(self) -> bool:
        """Whether it is no number."""
        return self.extents is not None

    def text(self) -> str:
        """Type and name in a schema."""
        name = f"{self.name}_" if iskeyword(self.name) else self.name
        return f"{'Tensor' if self.is_tensor else _SCALARS[self.dtype.kind]} {name}"


class Signature:
    """The arguments of a compiled kernel: its inputs, and the outputs that each call makes."""

    def __init__(self, executable: Executable | TextExecutable):
        self.name = executable.name
        self._known: dict[Symbol, Expr] = {}
        if isinstance(executable, TextExecutable):
            args = executable.main.args
            twice = [a.name for a in args if a.type.role not in ("in", "out")]
            if twice:
                raise ArgumentError(
                    f"{self.name} reads and writes {twice[0]}: an operator makes its outputs; give it an output apart"
                )
            outputs = [a for a in args if a.type.role == "out"]
            extents: dict[Any, tuple[Any, ...] | None] = {a: tuple(a.type.shape) for a in args}
        else:
            args, outputs = executable.program.args, list(executable.outputs)
            self._known = dict(executable.known)
            extents = {a: tuple(a.type.sizes) if isinstance(a.type, MemoryType) else None for a in args}
        every = {a: KernelArgument(a.name or "", a.type.dtype, extents[a]) for a in args}
        self.inputs = tuple(every[a] for a in args if a not in outputs)
        self.outputs = tuple(every[a] for a in outputs)
        if not any(a.is_tensor for a in self.inputs):
            raise ArgumentError(f"{self.name} takes no array: an operator is found by the tensors that it takes")

    def schema(self) -> str:
        """The operator's schema, without its name."""
        given = ", ".join(a.text() for a in self.inputs)
        outputs = ["Tensor"] * len(self.outputs)
        return f"({given}) -> {outputs[0] if len(outputs) == 1 else '(' + ', '.join(outputs) + ')'}"

    def shapes(self, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The shapes of the outputs, from tensors and numbers for the inputs; raises where shapes do not fit."""
        told = [
            (d, n, a, place)
            for a, value in zip(self.inputs, values, strict=True)
            for place, (d, n) in enumerate(zip(a.extents or (), getattr(value, "shape", ()), strict=True))
            if d is not None
        ]
        numbers = self._numbers([(d, n) for d, n, _, _ in told])
        for d, n, a, place in told:
            wanted = self._extent(d, numbers, a)
            if wanted != n:
                raise ArgumentError(f"{self.name}: argument {a.name}: dimension {place} is {n}; {d} is {wanted} here")
        return [tuple(self._extent(d, numbers, a) for d in a.extents or ()) for a in self.outputs]

    def _numbers(self, told: list[tuple[Expr, Any]]) -> dict[Symbol, Any]:
        """The values of symbols: bound ones, and those that an extent tells."""
        numbers: dict[Symbol, Any] = {s: e.value for s, e in self._known.items() if isinstance(e, Const)}
        derived = {s: e for s, e in self._known.items() if not isinstance(e, Const)}
        changed = True
        while changed:
            changed = False
            plain = {s: n for s, n in numbers.items() if isinstance(n, int)}
            for d, n in told:
                pair = solve(Substitution({**derived, **plain})(d), n)
                if pair is not None and pair[0] not in numbers:
                    numbers[pair[0]] = pair[1]
                    changed = True
        return numbers

    def _extent(self, d: Expr | None, numbers: Mapping[Symbol, Any], a: KernelArgument) -> Any:
        if d is None:
            raise ArgumentError(f"{self.name}: the size of {a.name} is free: an operator cannot make it")
        derived = Substitution({s: e for s, e in self._known.items() if not isinstance(e, Const)})
        try:
            return evaluate(derived(d), numbers)
        except ExpressionError as fault:
            raise ArgumentError(f"{self.name}: dimension {d} of {a.name}: {fault}") from None
