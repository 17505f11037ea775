"""Values of a program's open parameters (sizes that are not constants), from the shapes of a call's arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tilewright.algebra.expr import Symbol
from tilewright.errors import ArgumentError, ExpressionError
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.attrs import attr_text
from tilewright.ir.binding import allowed, open_sizes
from tilewright.ir.core import Program
from tilewright.ir.loop import LOOP
from tilewright.machine import Condition
from tilewright.runtime.device_arrays import DeviceArray

Array = np.ndarray[Any, np.dtype[Any]]


def sizes_of(
    program: Program,
    arrays: Mapping[str, Array],
    given: Mapping[str, int] | None = None,
    conditions: Iterable[Condition] = (),
) -> dict[str, int]:
    """Return {name: value} of the program's open parameters and sizes (known only at the call).

    A value comes from one of three sources: an extent of an array, if the declared extent is the parameter itself; a
    stride of a device array, if the declared stride is the parameter and the dimension has several elements; or
    `given`, {name: value}. `arrays` is {argument name: array}; arguments without an array are not checked. `conditions`
    are further conditions on the sizes, on which copy atoms depend.

    Raise ArgumentError if a parameter gets no value or two different ones, if a value is out of its range, if an extent
    is not the declared one, or if one of `conditions` or a `require` of the program does not hold.

    >>> from tilewright.ir.block import parse_block
    >>> program = parse_block('''block f(%x: in global f32 (M, 2*K), %y: out global f32 (M))
    ...   param M in 1..100, K in 1..8 {}''')
    >>> sizes_of(program, {"x": np.zeros((5, 6))}, {"K": 3})
    {'M': 5, 'K': 3}
    >>> sizes_of(program, {"x": np.zeros((5, 6)), "y": np.zeros(4)}, {"K": 3})
    Traceback (most recent call last):
        ...
    tilewright.errors.ArgumentError: y: dimension 0 is 4, but dimension 0 of x says that M is 5
    """
    parameters = open_sizes(program)
    values = _given(program, parameters, given or {})
    origins = dict.fromkeys(values, "params")
    for arg in program.args:
        array = arrays.get(arg.name or "")
        if array is None or not _has_declared_rank(program, arg.name or "", array, arg.type.shape):
            continue
        for description, e, n in _extents_and_strides(arg.type, array):
            if not isinstance(e, Symbol) or e not in parameters:
                continue
            if n not in allowed(e):
                raise ArgumentError(f"{arg.name}: {description} is {n}; {program.name} takes {_text(e)}")
            if values.setdefault(e.name, n) != n:
                contradiction = f"{origins[e.name]} says that {e.name} is {values[e.name]}"
                raise ArgumentError(f"{arg.name}: {description} is {n}, but {contradiction}")
            origins.setdefault(e.name, f"{description} of {arg.name}")
    for s in parameters:
        if s.name not in values:
            raise ArgumentError(
                f"{program.name} needs a value for {s.name}, which no shape tells: give params={{{s.name!r}: ...}}, "
                f"{_text(s)}"
            )
    values = {s.name: values[s.name] for s in parameters}
    _check_extents(program, arrays, values)
    _check_requirements(program, values)
    for condition in conditions:
        if not evaluated(condition.that, values):
            current = ", ".join(
                f"{s.name} = {values[s.name]}" for s in sorted(condition.that.symbols, key=lambda s: s.name)
            )
            raise ArgumentError(f"{program.name}: {condition.reason}; here {current}")
    return values


def _extents_and_strides(kind: Any, array: Any) -> list[tuple[str, Any, int]]:
    """Return [(description, expression, value)] of the extents of `array`, then of its strides if it is a DeviceArray.

    `kind` is the argument's type, which has the expressions. A description is "dimension 0" or "the stride of dimension
    0". Strides are left out if the type has none, and along dimensions of one element.
    """
    items = [(f"dimension {dim}", e, n) for dim, (e, n) in enumerate(zip(kind.shape, array.shape, strict=True))]
    if kind.strides is not None and isinstance(array, DeviceArray):
        steps = zip(kind.strides, array.strides, array.shape, strict=True)
        items += [(f"the stride of dimension {dim}", e, s) for dim, (e, s, n) in enumerate(steps) if n > 1]
    return items


def _given(program: Program, parameters: tuple[Symbol, ...], given: Mapping[str, int]) -> dict[str, int]:
    """Return `given`, {name: value} of parameters that a call passes by name, with each value as an int.

    `parameters` are the open parameters of `program`. Raise ArgumentError for any other name, and for a value that is
    no integer or out of range.
    """
    by_name = {s.name: s for s in parameters}
    for name, value in given.items():
        if name not in by_name:
            names = ", ".join(by_name) or "none"
            raise ArgumentError(f"params: {program.name} has no open parameter {name}; it has {names}")
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value not in allowed(by_name[name]):
            raise ArgumentError(f"params: {name} = {value!r}; {program.name} takes {_text(by_name[name])}")
    return {name: int(value) for name, value in given.items()}


def _has_declared_rank(program: Program, name: str, array: Array, shape: tuple[Any, ...]) -> bool:
    """True if `array` has as many dimensions as `shape`, the declared shape of the argument `name` of `program`.

    If not, return False for a program of the loop level, where memory is flat; raise ArgumentError for any other
    program.
    """
    if array.ndim == len(shape):
        return True
    if program.level is LOOP:
        return False
    raise ArgumentError(
        f"{name} has the shape {array.shape}; {program.name} takes {len(shape)} dimensions, "
        f"({', '.join(map(str, shape))})"
    )


def _check_extents(program: Program, arrays: Mapping[str, Array], values: Mapping[str, int]) -> None:
    """Raise ArgumentError if an extent of an array is not the one that `program` declares, or if a declared extent is
    negative.

    `arrays` is {argument name: array}. `values` is {name: value} of the parameters, from which the declared extents
    follow. Arguments without an array, and arrays of another rank, are skipped. At the loop level, where memory is
    flat, differing extents are allowed.
    """
    for arg in program.args:
        array = arrays.get(arg.name or "")
        if array is None or array.ndim != len(arg.type.shape):
            continue
        flat = program.level is LOOP
        for dim, (e, n) in enumerate(zip(arg.type.shape, array.shape, strict=True)):
            wanted = extent(e, values, arg.name or "", dim)
            if wanted != n and not flat:
                raise ArgumentError(f"{arg.name}: dimension {dim} is {n}; {e} is {wanted} here")


def extent(e: Any, values: Mapping[str, int], name: str, dim: int) -> int:
    """Return the value of `e`, an extent as an expression of parameters. `values` is {name: value} of the parameters.

    Raise ArgumentError if `e` has no value or is negative. `name` and `dim` are the argument and its dimension in the
    message.
    """
    try:
        value = int(evaluated(e, values))
    except ExpressionError as fault:
        raise ArgumentError(f"{name}: dimension {dim}, {e}: {fault}") from None
    if value < 0:
        raise ArgumentError(f"{name}: dimension {dim}, {e}, would be {value}")
    return value


def _check_requirements(program: Program, values: Mapping[str, int]) -> None:
    """Raise ArgumentError if `values`, {name: value} of the parameters, violate a `require` record of `program`."""
    for record in program.records:
        if record.name == "require" and not evaluated(record.attrs["that"], values):
            current = ", ".join(f"{name} = {n}" for name, n in values.items())
            raise ArgumentError(f"{program.name} requires {record.attrs['that']}; here {current}")


def _text(parameter: Symbol) -> str:
    """Return `parameter` with its range as text: "M in 1..100"."""
    return attr_text("parameters", ((parameter, None),))
