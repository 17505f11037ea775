"""The values of open parameters: read off the shapes of a call's arrays, or given."""

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
    """The value of every open parameter and size: an extent that is the bare parameter tells it, or it is given.

    So does the stride of an array that lies on a device, along a dimension of several elements.

    Every extent of the arrays is then checked, and the conditions under which copy atoms do their copies; arguments
    that are not among the arrays are left out.

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
    found = _given(program, parameters, given or {})
    from_where = dict.fromkeys(found, "params")
    for arg in program.args:
        array = arrays.get(arg.name or "")
        if array is None or not _counts(program, arg.name or "", array, arg.type.shape):
            continue
        for what, e, n in _told(arg.type, array):
            if not isinstance(e, Symbol) or e not in parameters:
                continue
            if n not in allowed(e):
                raise ArgumentError(f"{arg.name}: {what} is {n}; {program.name} takes {_text(e)}")
            if found.setdefault(e.name, n) != n:
                says = f"{from_where[e.name]} says that {e.name} is {found[e.name]}"
                raise ArgumentError(f"{arg.name}: {what} is {n}, but {says}")
            from_where.setdefault(e.name, f"{what} of {arg.name}")
    for s in parameters:
        if s.name not in found:
            raise ArgumentError(
                f"{program.name} needs a value for {s.name}, which no shape tells: give params={{{s.name!r}: ...}}, "
                f"{_text(s)}"
            )
    found = {s.name: found[s.name] for s in parameters}
    _check_extents(program, arrays, found)
    _check_requirements(program, found)
    for condition in conditions:
        if not evaluated(condition.that, found):
            here = ", ".join(
                f"{s.name} = {found[s.name]}" for s in sorted(condition.that.symbols, key=lambda s: s.name)
            )
            raise ArgumentError(f"{program.name}: {condition.reason}; here {here}")
    return found


def _told(kind: Any, array: Any) -> list[tuple[str, Any, int]]:
    """(what it is, how the argument states it, its value) of everything that an array tells."""
    found = [(f"dimension {dim}", e, n) for dim, (e, n) in enumerate(zip(kind.shape, array.shape, strict=True))]
    if kind.strides is not None and isinstance(array, DeviceArray):
        steps = zip(kind.strides, array.strides, array.shape, strict=True)
        found += [(f"the stride of dimension {dim}", e, s) for dim, (e, s, n) in enumerate(steps) if n > 1]
    return found


def _given(program: Program, parameters: tuple[Symbol, ...], given: Mapping[str, int]) -> dict[str, int]:
    by_name = {s.name: s for s in parameters}
    for name, value in given.items():
        if name not in by_name:
            names = ", ".join(by_name) or "none"
            raise ArgumentError(f"params: {program.name} has no open parameter {name}; it has {names}")
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value not in allowed(by_name[name]):
            raise ArgumentError(f"params: {name} = {value!r}; {program.name} takes {_text(by_name[name])}")
    return {name: int(value) for name, value in given.items()}


def _counts(program: Program, name: str, array: Array, shape: tuple[Any, ...]) -> bool:
    """Whether an array's extents are those of its argument; on the loop level memory may also come in another shape."""
    if array.ndim == len(shape):
        return True
    if program.level is LOOP:
        return False
    raise ArgumentError(
        f"{name} has the shape {array.shape}; {program.name} takes {len(shape)} dimensions, "
        f"({', '.join(map(str, shape))})"
    )


def _check_extents(program: Program, arrays: Mapping[str, Array], found: Mapping[str, int]) -> None:
    for arg in program.args:
        array = arrays.get(arg.name or "")
        if array is None or array.ndim != len(arg.type.shape):
            continue
        flat = program.level is LOOP
        for dim, (e, n) in enumerate(zip(arg.type.shape, array.shape, strict=True)):
            wanted = extent(e, found, arg.name or "", dim)
            if wanted != n and not flat:
                raise ArgumentError(f"{arg.name}: dimension {dim} is {n}; {e} is {wanted} here")


def extent(e: Any, values: Mapping[str, int], name: str, dim: int) -> int:
    """An extent for values of the parameters in it."""
    try:
        found = int(evaluated(e, values))
    except ExpressionError as fault:
        raise ArgumentError(f"{name}: dimension {dim}, {e}: {fault}") from None
    if found < 0:
        raise ArgumentError(f"{name}: dimension {dim}, {e}, would be {found}")
    return found


def _check_requirements(program: Program, found: Mapping[str, int]) -> None:
    for record in program.records:
        if record.name == "require" and not evaluated(record.attrs["that"], found):
            here = ", ".join(f"{name} = {n}" for name, n in found.items())
            raise ArgumentError(f"{program.name} requires {record.attrs['that']}; here {here}")


def _text(parameter: Symbol) -> str:
    return attr_text("parameters", ((parameter, None),))
