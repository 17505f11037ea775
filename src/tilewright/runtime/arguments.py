"""The arguments of one kernel call: checked, their shapes read into symbols, outputs made where they are left out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import Const, Exact, Expr, Sum, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ArgumentError, IgnoredOptionWarning, TilewrightError
from tilewright.interpret.grid import is_grid
from tilewright.ir.core import MemoryType, Program, Value
from tilewright.ir.dtypes import DType, from_numpy, plain_number
from tilewright.ir.in_place import why_not_in_place
from tilewright.limits import written
from tilewright.runtime.device_arrays import DeviceArray, array_of, is_same_array, made_like, share_memory
from tilewright.runtime.outputs import maker
from tilewright.runtime.overlap import require_own_memory
from tilewright.runtime.scalars import scalar
from tilewright.runtime.tensors import Form, as_array
from tilewright.runtime.traced import refuse_traced


class Arguments:
    """Arrays and numbers for a program's arguments, and the symbols that follow from shapes."""

    def __init__(
        self,
        program: Program,
        outputs: tuple[Value, ...],
        known: Mapping[Symbol, Expr],
        given: tuple[Any, ...],
        lenient: bool = False,
        near: Callable[[Sequence[Any]], Any] | None = None,
        whole: Set[Value] = frozenset(),
    ):
        """`near` gives the memory of the device that arrays lie on; None: they are the host's.

        `whole` are outputs of which the program writes every element: made here, they need no zeros before.
        """
        self.program, self.outputs, self.lenient, self.near = program, outputs, lenient, near
        self.whole, self.warned = whole, False
        self.made: list[Any] = []
        given = self.given = self._fill_in(given)
        self.values: dict[Value, Any] = {}
        for value, argument in zip(program.args, given, strict=True):
            if argument is not None or value not in outputs:
                self.values[value] = self._checked(value, argument)
        self.form = Form(given)
        self.symbols = self._symbols(known)
        for value, argument in zip(program.args, given, strict=True):
            if argument is None:
                self.form.require(value.type.dtype, f"{program.name}: the output {value.name}")
                shape = tuple(self._extent(d, value) for d in value.type.sizes)
                self.values[value] = self._made(shape, value)
                self.made.append(self.values[value])
        self._check_shapes()
        self._check_assumptions()
        self.in_place = self._aliases()
        """Inputs that are computed in place, and the outputs that they are."""

    def _made(self, shape: tuple[int, ...], value: Value) -> Any:
        """A fresh output: on the device where the first argument that lies on one does."""
        dtype: DType = value.type.dtype
        if self.near is not None:
            return made_like(list(self.values.values()), shape, dtype, self.near)
        return maker(shape, dtype.numpy, zeroed=value not in self.whole)()

    @property
    def is_empty(self) -> bool:
        """Whether a dimension has no elements, so that nothing is computed."""
        return any(isinstance(v, np.ndarray | DeviceArray) and v.size == 0 for v in self.values.values()) and all(
            self.values[v].size == 0 for v in self.outputs
        )

    @property
    def apart(self) -> tuple[Any, ...]:
        """The arguments as given, without those that are the array of an output."""
        return tuple(given for v, given in zip(self.program.args, self.given, strict=True) if v not in self.in_place)

    def finish_logs(self, logs: dict[str, Any]) -> None:
        """Logged values in the form of the arguments: torch tensors where these are."""
        for entry in logs.values():
            if isinstance(entry, dict) and isinstance(entry.get("value"), np.ndarray):
                entry["value"] = self.form.of(entry["value"])

    def finish(self) -> Any:
        """The outputs that were made here, in the form of the arguments: one array, or a tuple."""
        found = tuple(a.given if isinstance(a, DeviceArray) else self.form.of(a) for a in self.made)
        return found[0] if len(found) == 1 else found or None

    # -- what was given -------------------------------------------------------------------------------

    def _fill_in(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments with None for outputs that were left out."""
        wanted = self.program.args
        if len(given) == len(wanted):
            for value, argument in zip(wanted, given, strict=True):
                if argument is None and value not in self.outputs:
                    raise ArgumentError(f"{self.program.name}: argument {value.name} is None, and is no output")
            return given
        needed = [v for v in wanted if v not in self.outputs]
        if len(given) == len(needed):
            rest = iter(given)
            return tuple(None if v in self.outputs else next(rest) for v in wanted)
        names = ", ".join(str(v.name) for v in wanted)
        raise ArgumentError(
            f"{self.program.name} takes {len(wanted)} arguments ({names}), or {len(needed)} without its outputs; "
            f"{len(given)} are given"
        )

    def _checked(self, value: Value, argument: Any) -> Any:
        where = f"{self.program.name}: argument {value.name}"
        if not isinstance(value.type, MemoryType):
            return self._number(argument, value.type.dtype, where)
        array = array_of(argument, where) if self.near is not None else as_array(argument, where)
        if isinstance(array, DeviceArray):
            self._check_dtype(array, value.type.dtype, where)
            self._check_rank(array, value.type, where)
            return array
        if self.lenient and {array.dtype, value.type.dtype.numpy} == {np.dtype(np.int8), np.dtype(np.uint8)}:
            array = array.view(value.type.dtype.numpy)
        if self.lenient:
            array = _laid_out(array, value.type)
        self._check_dtype(array, value.type.dtype, where)
        self._check_rank(array, value.type, where)
        if value in self.outputs:
            require_own_memory(array, where)
        return array

    def _check_rank(self, array: Any, kind: MemoryType, where: str) -> None:
        if array.ndim != len(kind.dims):
            dims = ", ".join(map(str, kind.dims))
            raise ArgumentError(
                f"{where} has shape {array.shape}; it must have the {len(kind.dims)} dimensions [{dims}]"
            )

    def _number(self, argument: Any, wanted: DType, where: str) -> bool | int | float:
        number = argument
        refuse_traced(argument, where)
        if not isinstance(argument, np.generic) and getattr(argument, "ndim", None) == 0:
            number = as_array(argument, where)[()]
        number = plain_number(number)
        if number is None:
            raise ArgumentError(f"{where} is {written(argument, 80)}; it must be a number of type {wanted}")
        return scalar(number, wanted, where)

    def _check_dtype(self, array: Any, wanted: DType, where: str) -> None:
        if array.dtype != wanted.numpy:
            found = from_numpy(array.dtype)
            raise ArgumentError(f"{where} holds {found or array.dtype}; it must hold {wanted}")

    # -- sizes ----------------------------------------------------------------------------------------

    def _symbols(self, known: Mapping[Symbol, Expr]) -> dict[Symbol, int]:
        """Every symbol that is a number: bound ones, those of shapes, and those that follow from both."""
        numbers = {s: e.value for s, e in known.items() if isinstance(e, Const)}
        open_ = {s: e for s, e in known.items() if not isinstance(e, Const)}
        pending = [
            (d, n, value)
            for value, array in self.values.items()
            if isinstance(value.type, MemoryType)
            for d, n in zip(value.type.sizes, array.shape, strict=True)
            if d is not None
        ]
        if any(isinstance(v.type, MemoryType) and v.type.extents is not None for v in self.values):
            pending += self._free_sizes({s for d, _, _ in pending for s in d.symbols} | known.keys())
        changed = True
        while changed:
            changed = False
            for d, n, value in pending:
                image = Substitution({**open_, **numbers})(d)
                found = solve(image, n)
                if found is not None and found[0] not in numbers:
                    self._require_in_range(*found, f"dimension {d} of {value.name} is {n}, so {found[0]}")
                    numbers[found[0]] = found[1]
                    changed = True
            for s, e in list(open_.items()):
                image = Substitution(numbers)(e)
                if isinstance(image, Const):
                    numbers[s] = image.value
                    del open_[s]
                    changed = True
        self.derived = open_
        for s, number in numbers.items():
            self._require_in_range(s, number, s.name)
        return numbers

    def _require_in_range(self, s: Symbol, number: int, what: str) -> None:
        if not s.lo <= number <= s.hi:
            raise ArgumentError(f"{self.program.name}: {what} comes out as {number}; it must be at least {s.lo}")

    def _free_sizes(self, told: Set[Symbol]) -> list[tuple[Expr, int, Value]]:
        """Dimensions whose memory has an extent of its own, free or a number, and whose size nothing else tells.

        The first argument along one tells it; the program may make it smaller by set_symbol.
        """
        return [
            (d, n, value)
            for value, array in self.values.items()
            if isinstance(value.type, MemoryType)
            for d, free, n in zip(value.type.dims, value.type.sizes, array.shape, strict=True)
            if (free is None or isinstance(free, Const)) and isinstance(d, Symbol) and d not in told
        ]

    def _extent(self, d: Expr | None, value: Value) -> int:
        if d is None:
            raise ArgumentError(f"{self.program.name}: the size of {value.name} is free; pass the array")
        try:
            image = Substitution({**self.derived, **self.symbols})(d)
        except TilewrightError as fault:
            raise ArgumentError(f"{self.program.name}: dimension {d} of {value.name}: {fault}") from None
        if not isinstance(image, Const):
            missing = ", ".join(sorted(s.name for s in image.symbols))
            raise ArgumentError(
                f"{self.program.name}: the size of {value.name} depends on {missing}, which nothing tells"
            )
        return image.value

    def _check_shapes(self) -> None:
        for value, array in self.values.items():
            if not isinstance(value.type, MemoryType):
                continue
            for place, (d, n) in enumerate(zip(value.type.sizes, array.shape, strict=True)):
                if d is None:
                    continue
                wanted = self._extent(d, value)
                if wanted != n and not (self.lenient and n > wanted):
                    equation = f"{d} = {wanted}" if str(d) != str(wanted) else str(d)
                    raise ArgumentError(
                        f"{self.program.name}: argument {value.name} has shape {array.shape}; its dimension {place} "
                        f"must be {'at least ' if self.lenient else ''}{equation}, not {n}"
                    )

    def _check_assumptions(self) -> None:
        for record in self.program.records:
            if record.name == "assume":
                holds = Substitution({**self.derived, **self.symbols})(record.attrs["that"])
                if isinstance(holds, Const) and not holds.value:
                    sizes = ", ".join(
                        f"{s.name} = {self.symbols[s]}" for s in record.attrs["that"].symbols if s in self.symbols
                    )
                    broken = f"{self.program.name} assumes {record.attrs['that']}, but {sizes}"
                    if not self.lenient:
                        raise ArgumentError(broken)
                    self.warned = True
                    warnings.warn(f"{broken}: ignored, no result rests on it", IgnoredOptionWarning, stacklevel=2)

    def _aliases(self) -> dict[Value, Value]:
        """Inputs that are the very array of an output, with that output; raises where others share its memory."""
        found: dict[Value, Value] = {}
        for output in self.outputs:
            for value, array in self.values.items():
                if value is output or not isinstance(array, np.ndarray | DeviceArray):
                    continue
                if share_memory(self.values[output], array):
                    why = self._why_apart(output, value)
                    if why is not None:
                        shared = f"the output {output.name} shares memory with {value.name}"
                        raise ArgumentError(f"{self.program.name}: {shared}, and {why}; give them memory of their own")
                    found[value] = output
        return found

    def _why_apart(self, output: Value, other: Value) -> str | None:
        """Why an output and another argument that share memory must not; None where the program allows it."""
        if not is_same_array(self.values[output], self.values[other]):
            return "they are not the same elements, in the same order"
        if is_grid(self.program):
            return "its workgroups follow each other: one may read what another has written"
        return why_not_in_place(self.program, output, other)


def _laid_out(array: Any, kind: MemoryType) -> Any:
    """An array in the shape that a MemoryLayout of numbers states, where it only has another number of dimensions."""
    extents = [e.value for e in kind.sizes if isinstance(e, Const)]
    if array.ndim == len(kind.dims) or len(extents) != len(kind.dims) or prod(extents) != array.size:
        return array
    return array.reshape(extents) if array.flags.c_contiguous else array


def solve(e: Expr, number: int) -> tuple[Symbol, int] | None:
    """The symbol and its value for which e == number, where e is one symbol, scaled or divided by a number."""
    if isinstance(e, Symbol):
        return e, number
    if isinstance(e, Exact) and isinstance(e.right, Const):
        return solve(e.left, number * e.right.value)
    if isinstance(e, Sum) and len(e.terms) == 1:
        term, coefficient = e.terms[0]
        rest = number - e.constant
        if isinstance(term, Symbol | Exact) and rest % coefficient == 0:
            return solve(term, rest // coefficient)
    return None
