"""The arguments of one kernel call: checks, values of symbols from shapes, allocation of outputs that are left out."""

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
    """The checked arguments of one call of a tile program.

    `values` is {argument of the program: array or number}, `symbols` is {symbol: integer}. `made` are the outputs that
    were allocated here because the call left them out. `in_place` is {input: output that is the same array}.
    """

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
        """Check the arguments of a call and allocate outputs. Raise ArgumentError if the arguments do not fit the
        program.

        `outputs` are the arguments that `program` writes. `known` is {symbol: expression} of symbols that are bound
        already. `given` are the arguments of the call, with None for an output that is left out. With `lenient`, arrays
        may be larger than the program says, i8 and u8 are the same, and violated assumptions only warn. `near(arrays)`
        returns the Memories of the GPU that arrays are on; None: all are on the host. `whole` are outputs that the
        program writes completely, so that they need no zeros first.
        """
        self.program, self.outputs, self.lenient, self.near = program, outputs, lenient, near
        self.whole, self.warned = whole, False
        self.allocated: list[Any] = []
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
                self.values[value] = self._allocate(shape, value)
                self.allocated.append(self.values[value])
        self._check_shapes()
        self._check_assumptions()
        self.in_place = self._aliases()
        """Inputs that are the same array as an output, with that output."""

    def _allocate(self, shape: tuple[int, ...], value: Value) -> Any:
        """Allocate an array with the extents `shape` for the output `value`, and return it.

        If arguments may be on a GPU (`self.near` is not None) and one is a DeviceArray, the array is uninitialised, on
        the GPU of the first such argument. Otherwise it is a numpy array. It is filled with zeros if arguments may be
        on a GPU, or if the program does not write all of the output (`value` is not in `self.whole`); else it is
        uninitialised.
        """
        dtype: DType = value.type.dtype
        if self.near is not None:
            return made_like(list(self.values.values()), shape, dtype, self.near)
        return maker(shape, dtype.numpy, zeroed=value not in self.whole)()

    @property
    def is_empty(self) -> bool:
        """True if nothing must be computed: every output has 0 elements, and at least one array has 0 elements."""
        return any(isinstance(v, np.ndarray | DeviceArray) and v.size == 0 for v in self.values.values()) and all(
            self.values[v].size == 0 for v in self.outputs
        )

    @property
    def without_aliases(self) -> tuple[Any, ...]:
        """Return the arguments of the call that are not the same array as an output, as the caller passed them.

        The tuple has the program's order, and None for outputs that were left out. Outputs that were passed stay in it.
        """
        return tuple(given for v, given in zip(self.program.args, self.given, strict=True) if v not in self.in_place)

    def finish_logs(self, logs: dict[str, Any]) -> None:
        """Convert the numpy arrays in `logs`, in place, to torch tensors if the call's first array is a torch tensor.

        `logs` is {label: entry}; only entries that are dictionaries with a numpy array under "value" are changed.
        """
        for entry in logs.values():
            if isinstance(entry, dict) and isinstance(entry.get("value"), np.ndarray):
                entry["value"] = self.form.of(entry["value"])

    def finish(self) -> Any:
        """Return the outputs that were allocated for the call: one array, a tuple of several, or None if there are
        none.

        They are torch tensors if the call's first array is one; on a GPU, if the first array on a GPU is one.
        """
        outputs = tuple(a.given if isinstance(a, DeviceArray) else self.form.of(a) for a in self.allocated)
        return outputs[0] if len(outputs) == 1 else outputs or None

    # -- what was given -------------------------------------------------------------------------------

    def _fill_in(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a tuple with one item for each argument of the program: the call's argument, or None for an output
        left out.

        The call's arguments `given` may be all arguments, with None for some outputs; or only those that are no
        outputs. Raise ArgumentError for any other number of arguments, and if an argument that is no output is None.
        """
        arguments = self.program.args
        if len(given) == len(arguments):
            for value, argument in zip(arguments, given, strict=True):
                if argument is None and value not in self.outputs:
                    raise ArgumentError(f"{self.program.name}: argument {value.name} is None, and is no output")
            return given
        needed = [v for v in arguments if v not in self.outputs]
        if len(given) == len(needed):
            inputs = iter(given)
            return tuple(None if v in self.outputs else next(inputs) for v in arguments)
        names = ", ".join(str(v.name) for v in arguments)
        raise ArgumentError(
            f"{self.program.name} takes {len(arguments)} arguments ({names}), or {len(needed)} without its outputs; "
            f"{len(given)} are given"
        )

    def _checked(self, value: Value, argument: Any) -> Any:
        """Return `argument`, which the call passes for the program's argument `value`, as a number, numpy array or
        DeviceArray.

        It is a number if the type of `value` is a scalar. Raise ArgumentError if element type or rank are wrong, or if
        `value` is an output and `argument` a numpy array that is read-only or has overlapping elements. If
        `self.lenient` is set, a numpy array of i8 may be given for u8 and vice versa, and a contiguous one of another
        rank is reshaped if the declared extents are all constants.
        """
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
        """Raise ArgumentError unless `array` has as many dimensions as `kind`, the declared type of an argument.

        `where` names the argument in the message.
        """
        if array.ndim != len(kind.dims):
            dims = ", ".join(map(str, kind.dims))
            raise ArgumentError(
                f"{where} has shape {array.shape}; it must have the {len(kind.dims)} dimensions [{dims}]"
            )

    def _number(self, argument: Any, wanted: DType, where: str) -> bool | int | float:
        """Return a scalar argument as a number of the element type `wanted`. An array without dimensions counts as its
        element.

        Raise ArgumentError if it is no number, or a number that the type cannot hold, and TracedArgument if torch or
        JAX traces it. `where` names the argument in the message.
        """
        number = argument
        refuse_traced(argument, where)
        if not isinstance(argument, np.generic) and getattr(argument, "ndim", None) == 0:
            number = as_array(argument, where)[()]
        number = plain_number(number)
        if number is None:
            raise ArgumentError(f"{where} is {written(argument, 80)}; it must be a number of type {wanted}")
        return scalar(number, wanted, where)

    def _check_dtype(self, array: Any, wanted: DType, where: str) -> None:
        """Raise ArgumentError unless the elements of `array` have the type `wanted`. `where` names the argument in the
        message."""
        if array.dtype != wanted.numpy:
            actual = from_numpy(array.dtype)
            raise ArgumentError(f"{where} holds {actual or array.dtype}; it must hold {wanted}")

    # -- sizes ----------------------------------------------------------------------------------------

    def _symbols(self, known: Mapping[Symbol, Expr]) -> dict[Symbol, int]:
        """Return {symbol: value} of the program's symbols, and set `self.derived`.

        `known` is {symbol: number or expression of other symbols}. Other values are solved from the arrays' extents: a
        dimension 2*K with 8 elements gives K = 4. Entries of `known` that stay without a value become `self.derived`.
        Raise ArgumentError for a value out of its symbol's range.
        """
        numbers = {s: e.value for s, e in known.items() if isinstance(e, Const)}
        unsolved = {s: e for s, e in known.items() if not isinstance(e, Const)}
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
                image = Substitution({**unsolved, **numbers})(d)
                solution = solve(image, n)
                if solution is not None and solution[0] not in numbers:
                    self._require_in_range(*solution, f"dimension {d} of {value.name} is {n}, so {solution[0]}")
                    numbers[solution[0]] = solution[1]
                    changed = True
            for s, e in list(unsolved.items()):
                image = Substitution(numbers)(e)
                if isinstance(image, Const):
                    numbers[s] = image.value
                    del unsolved[s]
                    changed = True
        self.derived = unsolved
        for s, number in numbers.items():
            self._require_in_range(s, number, s.name)
        return numbers

    def _require_in_range(self, s: Symbol, number: int, what: str) -> None:
        """Raise ArgumentError unless `number`, the value of the symbol `s`, is from `s.lo` to `s.hi`.

        `what` starts the message, such as "dimension 2*K of x is 7, so K".
        """
        if not s.lo <= number <= s.hi:
            raise ArgumentError(f"{self.program.name}: {what} comes out as {number}; it must be at least {s.lo}")

    def _free_sizes(self, derived: Set[Symbol]) -> list[tuple[Expr, int, Value]]:
        """Return [(symbol, extent, argument)] of the dimensions for which the extent of an array is the symbol's value.

        These are dimensions for which the argument's memory layout declares no extent, or a constant one. (For other
        dimensions it declares an expression of symbols, from which these are solved.) The symbols in `derived` have
        values already, and are left out.
        """
        return [
            (d, n, value)
            for value, array in self.values.items()
            if isinstance(value.type, MemoryType)
            for d, free, n in zip(value.type.dims, value.type.sizes, array.shape, strict=True)
            if (free is None or isinstance(free, Const)) and isinstance(d, Symbol) and d not in derived
        ]

    def _extent(self, d: Expr | None, value: Value) -> int:
        """Return the value of `d`, an extent of the argument `value`, for the call's symbols.

        Raise ArgumentError if `d` is None (only an array gives the extent), if it is invalid for these values, or if it
        depends on symbols without a value.
        """
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
        """Raise ArgumentError if an extent of an array is not the one that the program declares.

        Extents that the program does not declare are not checked. If `self.lenient` is set, larger extents are allowed
        too.
        """
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
        """Raise ArgumentError if the symbols' values violate an `assume` record of the program.

        A condition on symbols without a value is not checked. If `self.lenient` is set, give an IgnoredOptionWarning
        instead, and set `self.warned`.
        """
        for record in self.program.records:
            if record.name == "assume":
                holds = Substitution({**self.derived, **self.symbols})(record.attrs["that"])
                if isinstance(holds, Const) and not holds.value:
                    sizes = ", ".join(
                        f"{s.name} = {self.symbols[s]}" for s in record.attrs["that"].symbols if s in self.symbols
                    )
                    message = f"{self.program.name} assumes {record.attrs['that']}, but {sizes}"
                    if not self.lenient:
                        raise ArgumentError(message)
                    self.warned = True
                    warnings.warn(f"{message}: ignored, no result rests on it", IgnoredOptionWarning, stacklevel=2)

    def _aliases(self) -> dict[Value, Value]:
        """Return {argument: output} of the arguments that are the same array as an output.

        Raise ArgumentError if an output shares memory with another argument in any other way, or if the program cannot
        compute this output in place.
        """
        aliases: dict[Value, Value] = {}
        for output in self.outputs:
            for value, array in self.values.items():
                if value is output or not isinstance(array, np.ndarray | DeviceArray):
                    continue
                if share_memory(self.values[output], array):
                    why = self._why_not_shared(output, value)
                    if why is not None:
                        shared = f"the output {output.name} shares memory with {value.name}"
                        raise ArgumentError(f"{self.program.name}: {shared}, and {why}; give them memory of their own")
                    aliases[value] = output
        return aliases

    def _why_not_shared(self, output: Value, other: Value) -> str | None:
        """Return the error text that says why `output` must not share memory with the argument `other`; None if it may.

        It may if both are the same array, and the program writes each element only where it reads the elements of
        `other` on which the new value depends. A grid program (with workgroups) never may: one workgroup might read
        what another has written.
        """
        if not is_same_array(self.values[output], self.values[other]):
            return "they are not the same elements, in the same order"
        if is_grid(self.program):
            return "its workgroups follow each other: one may read what another has written"
        return why_not_in_place(self.program, output, other)


def _laid_out(array: Any, kind: MemoryType) -> Any:
    """Return `array` reshaped to the extents of its declared type `kind`, or unchanged.

    It is reshaped if its rank is not that of the type, the declared extents are all constants with the same number of
    elements, and `array` is contiguous.
    """
    extents = [e.value for e in kind.sizes if isinstance(e, Const)]
    if array.ndim == len(kind.dims) or len(extents) != len(kind.dims) or prod(extents) != array.size:
        return array
    return array.reshape(extents) if array.flags.c_contiguous else array


def solve(e: Expr, number: int) -> tuple[Symbol, int] | None:
    """Return (symbol, value) for which `e` equals `number`: `2*K + 1` and 7 give (K, 3).

    `e` must be a symbol, perhaps multiplied or exactly divided by a number, perhaps plus a constant. Return None for
    another expression, or if the value would not be an integer.
    """
    if isinstance(e, Symbol):
        return e, number
    if isinstance(e, Exact) and isinstance(e.right, Const):
        return solve(e.left, number * e.right.value)
    if isinstance(e, Sum) and len(e.terms) == 1:
        term, coefficient = e.terms[0]
        multiple = number - e.constant
        if isinstance(term, Symbol | Exact) and multiple % coefficient == 0:
            return solve(term, multiple // coefficient)
    return None
