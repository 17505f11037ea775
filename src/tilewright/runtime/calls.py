"""Arguments of executables, by position, by name and with `out=`; their signatures, levels and named values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from inspect import Parameter, Signature
from keyword import iskeyword
from typing import Any

from tilewright.errors import ArgumentError
from tilewright.limits import did_you_mean, written


def arranged(
    name: str, wanted: Sequence[str], outputs: Sequence[str], args: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return a tuple with the arguments of one call of `name` in the order of its signature; None for outputs left out.

    `wanted` are the names in the signature, `outputs` those of its outputs. `args` and `named` are the call's
    positional and keyword arguments. Positional arguments fill the signature from its start, or the signature without
    outputs. The keyword `out` gives the output, or a tuple of all outputs. Raise ArgumentError if an input is missing,
    or if an argument is unknown or given twice.

    >>> arranged("linear", ["x", "w", "y"], ["y"], ("image",), {"out": "result", "w": "weights"})
    ('image', 'weights', 'result')
    >>> arranged("linear", ["x", "w", "y"], ["y"], (), {"w": "weights", "x": "image"})
    ('image', 'weights', None)
    """
    by_name = dict(named)
    if "out" in by_name and "out" not in wanted:
        given = by_name.pop("out")
        output_values = tuple(given) if len(outputs) > 1 and isinstance(given, tuple | list) else (given,)
        if len(output_values) != len(outputs):
            raise ArgumentError(f"{name}: out= takes a tuple of {len(outputs)} arrays: {', '.join(outputs)}")
        twice = [n for n in outputs if n in by_name]
        if twice:
            raise ArgumentError(f"{name}: the output {twice[0]} is given twice, by name and as out=")
        by_name |= dict(zip(outputs, output_values, strict=True))
    for given in by_name:
        if given not in wanted:
            raise ArgumentError(f"{name} has no argument {given}; it takes {', '.join(wanted)}, and out=")
    inputs = [n for n in wanted if n not in outputs]
    for order in (wanted, inputs):
        placed = dict(zip(order, args, strict=False))
        if len(args) <= len(order) and not placed.keys() & by_name.keys() and {*inputs} <= {*placed, *by_name}:
            return tuple({**placed, **by_name}.get(n) for n in wanted)
    twice = [n for n in wanted[: len(args)] if n in by_name]
    if twice:
        raise ArgumentError(f"{name}: the argument {twice[0]} is given twice, by position and by name")
    missing = [n for n in inputs[len(args) :] if n not in by_name]
    if missing:
        raise ArgumentError(f"{name}: the argument {missing[0]} is missing; it takes {', '.join(wanted)}")
    raise ArgumentError(f"{name} takes {len(wanted)} arguments ({', '.join(wanted)}), not {len(args) + len(by_name)}")


def signature_of(wanted: Mapping[str, str], outputs: Sequence[str], options: Sequence[str] = ()) -> Signature:
    """Return the Python signature of an executable. Outputs after the last input have the default None.

    `wanted` is {argument name: type as text}, `outputs` are the names of outputs. `options` are the names of further
    keyword arguments, beside `out`; all have the default None. A name that is a keyword of Python gets an underscore at
    its end.

    >>> print(signature_of({"x": "f32[M, K]", "y": "f32[M]"}, ["y"]))
    (x: 'f32[M, K]', y: 'f32[M]' = None, *, out=None)
    """
    names = list(wanted)
    last = max((place for place, n in enumerate(names) if n not in outputs), default=-1)
    parameters = [
        # an output before an input has no default, since Python does not allow one
        Parameter(
            f"{n}_" if iskeyword(n) else n,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=None if place > last else Parameter.empty,
            annotation=wanted[n],
        )
        for place, n in enumerate(names)
    ]
    keyword_only = [n for n in ("out", *options) if n not in wanted]
    return Signature([*parameters, *(Parameter(n, Parameter.KEYWORD_ONLY, default=None) for n in keyword_only)])


def known_level(level: object, known: Collection[str], whose: str) -> str:
    """Return `level` if it is one of the level names in `known`, else raise ArgumentError.

    `whose` names the program that has the levels, in the message: "gemm on cpu".

    >>> known_level("blok", ["plan", "block"], "gemm on cpu")
    Traceback (most recent call last):
    tilewright.errors.ArgumentError: level='blok': gemm on cpu has 'plan', 'block'; did you mean block?
    """
    if isinstance(level, str) and level in known:
        return level
    near = did_you_mean(level, known) if isinstance(level, str) else ""
    raise ArgumentError(f"level={written(level, 80)}: {whose} has {', '.join(map(repr, known))}{near}")


def named_values(value: object, what: str, example: str) -> dict[str, Any]:
    """Return a new dictionary {name: value} with the items of the dictionary `value`.

    A key of `value` is a text, or has a text as attribute `name`, as symbols do. Raise ArgumentError for other keys, or
    if `value` is no dictionary. In the message, `what` is the argument's name and `example` a valid value.
    """
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{what}={written(value, 80)}: a dictionary of names and values, {example}")
    values: dict[str, Any] = {}
    for key, item in value.items():
        name = key if isinstance(key, str) else getattr(key, "name", None)
        if not isinstance(name, str):
            raise ArgumentError(f"{what}: {written(key, 80)} is no name; a dictionary such as {example}")
        values[name] = item
    return values
