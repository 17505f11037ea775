"""The operator signature of a compiled kernel: torch's schema, and the outputs' shapes from the inputs' shapes.

Extents may be torch's symbolic integers: they are computed by Python's operators only, so that tracing by torch.compile
or torch.export does not fix them to numbers.
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
"""{kind of an element type: the type of such a number in torch's schemas}."""


@dataclass(frozen=True)
class KernelArgument:
    """An input or output of a kernel: a tensor or a number."""

    name: str
    dtype: DType
    extents: tuple[Expr | None, ...] | None
    """The tensor's extents as expressions of symbols; None for an extent that only the tensor itself determines. None
    instead of the tuple: the argument is a number."""

    @property
    def is_tensor(self) -> bool:
        """True if the argument is a tensor, False if it is a number."""
        return self.extents is not None

    def text(self) -> str:
        """Return the argument as torch's schemas write it: "Tensor x", "SymInt n".

        `_` is added to a name that is a Python keyword: "Tensor in_".
        """
        name = f"{self.name}_" if iskeyword(self.name) else self.name
        return f"{'Tensor' if self.is_tensor else _SCALARS[self.dtype.kind]} {name}"


class Signature:
    """The inputs and outputs of a compiled kernel as an operator, whose calls allocate the outputs.

    `inputs` and `outputs` are its `KernelArgument`s, `name` is the kernel's name.
    """

    def __init__(self, executable: Executable | TextExecutable):
        """Read the arguments of `executable`; raise ArgumentError if it has no tensor input, or an argument that it
        reads and writes."""
        self.name = executable.name
        self._known: dict[Symbol, Expr] = {}
        if isinstance(executable, TextExecutable):
            args = executable.main.args
            inout = [a.name for a in args if a.type.role not in ("in", "out")]
            if inout:
                raise ArgumentError(
                    f"{self.name} reads and writes {inout[0]}: an operator makes its outputs; give it an output apart"
                )
            outputs = [a for a in args if a.type.role == "out"]
            extents: dict[Any, tuple[Any, ...] | None] = {a: tuple(a.type.shape) for a in args}
        else:
            args, outputs = executable.program.args, list(executable.outputs)
            self._known = dict(executable.known)
            extents = {a: tuple(a.type.sizes) if isinstance(a.type, MemoryType) else None for a in args}
        all_arguments = {a: KernelArgument(a.name or "", a.type.dtype, extents[a]) for a in args}
        self.inputs = tuple(all_arguments[a] for a in args if a not in outputs)
        self.outputs = tuple(all_arguments[a] for a in outputs)
        if not any(a.is_tensor for a in self.inputs):
            raise ArgumentError(f"{self.name} takes no array: an operator is found by the tensors that it takes")

    def schema(self) -> str:
        """Return the operator's schema for torch, without the operator's name: "(Tensor x, SymInt n) -> Tensor"."""
        inputs = ", ".join(a.text() for a in self.inputs)
        outputs = ["Tensor"] * len(self.outputs)
        return f"({inputs}) -> {outputs[0] if len(outputs) == 1 else '(' + ', '.join(outputs) + ')'}"

    def shapes(self, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return a list with the shape of each output of a call. `values` has the tensor or number for each input.

        Raise ArgumentError if the shapes of the inputs do not fit the kernel, or do not determine an output's shape.
        """
        extents = [
            (d, n, a, axis)
            for a, value in zip(self.inputs, values, strict=True)
            for axis, (d, n) in enumerate(zip(a.extents or (), getattr(value, "shape", ()), strict=True))
            if d is not None
        ]
        numbers = self._symbol_values([(d, n) for d, n, _, _ in extents])
        for d, n, a, axis in extents:
            wanted = self._extent(d, numbers, a)
            if wanted != n:
                raise ArgumentError(f"{self.name}: argument {a.name}: dimension {axis} is {n}; {d} is {wanted} here")
        return [tuple(self._extent(d, numbers, a) for d in a.extents or ()) for a in self.outputs]

    def _symbol_values(self, extents: list[tuple[Expr, Any]]) -> dict[Symbol, Any]:
        """Return {symbol: value} for the symbols that the kernel fixes, and for those that follow from `extents`.

        `extents` is a list of (expression of an extent, its value): [(N + 1, 5)] gives {N: 4}. Symbols that no extent
        determines are left out.
        """
        numbers: dict[Symbol, Any] = {s: e.value for s, e in self._known.items() if isinstance(e, Const)}
        derived = {s: e for s, e in self._known.items() if not isinstance(e, Const)}
        changed = True
        while changed:
            changed = False
            plain = {s: n for s, n in numbers.items() if isinstance(n, int)}
            for d, n in extents:
                pair = solve(Substitution({**derived, **plain})(d), n)
                if pair is not None and pair[0] not in numbers:
                    numbers[pair[0]] = pair[1]
                    changed = True
        return numbers

    def _extent(self, d: Expr | None, numbers: Mapping[Symbol, Any], a: KernelArgument) -> Any:
        """Return the value of the expression `d`, an extent of the argument `a`. `numbers` is {symbol: value}.

        Raise ArgumentError if `d` is None (nothing determines the extent), or if a symbol in it has no value.
        """
        if d is None:
            raise ArgumentError(f"{self.name}: the size of {a.name} is free: an operator cannot make it")
        derived = Substitution({s: e for s, e in self._known.items() if not isinstance(e, Const)})
        try:
            return evaluate(derived(d), numbers)
        except ExpressionError as fault:
            raise ArgumentError(f"{self.name}: dimension {d} of {a.name}: {fault}") from None
