"""How executables are called: by position, by name, with `out=`; and the signature that says so."""

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
    """The arguments in the order of the signature, None for outputs that are left out.

    Those by position are the first ones of the signature, or of the signature without its outputs. `out` stands for the
    output, or for all outputs in a tuple, unless the signature has an argument of that name.

    >>> arranged("linear", ["x", "w", "y"], ["y"], ("image",), {"out": "result", "w": "weights"})
    ('image', 'weights', 'result')
    >>> arranged("linear", ["x", "w", "y"], ["y"], (), {"w": "weights", "x": "image"})
    ('image', 'weights', None)
    """
    found = dict(named)
    if "out" in found and "out" not in wanted:
        given = found.pop("out")
        several = tuple(given) if len(outputs) > 1 and isinstance(given, tuple | list) else (given,)
        if len(several) != len(outputs):
            raise ArgumentError(f"{name}: out= takes a tuple of {len(outputs)} arrays: {', '.join(outputs)}")
        twice = [n for n in outputs if n in found]
        if twice:
            raise ArgumentError(f"{name}: the output {twice[0]} is given twice, by name and as out=")
        found |= dict(zip(outputs, several, strict=True))
    for given in found:
        if given not in wanted:
            raise ArgumentError(f"{name} has no argument {given}; it takes {', '.join(wanted)}, and out=")
    inputs = [n for n in wanted if n not in outputs]
    for order in (wanted, inputs):
        placed = dict(zip(order, args, strict=False))
        if len(args) <= len(order) and not placed.keys() & found.keys() and {*inputs} <= {*placed, *found}:
            return tuple({**placed, **found}.get(n) for n in wanted)
    twice = [n for n in wanted[: len(args)] if n in found]
    if twice:
        raise ArgumentError(f"{name}: the argument {twice[0]} is given twice, by position and by name")
    missing = [n for n in inputs[len(args) :] if n not in found]
    if missing:
        raise ArgumentError(f"{name}: the argument {missing[0]} is missing; it takes {', '.join(wanted)}")
    raise ArgumentError(f"{name} takes {len(wanted)} arguments ({', '.join(wanted)}), not {len(args) + len(found)}")


def signature_of(wanted: Mapping[str, str], outputs: Sequence[str], options: Sequence[str] = ()) -> Signature:
    """The signature of an executable, from its arguments' names and types as text; outputs may be left out.

    >>> print(signature_of({"x": "f32[M, K]", "y": "f32[M]"}, ["y"]))
    (x: 'f32[M, K]', y: 'f32[M]' = None, *, out=None)
    """
    names = list(wanted)
    last = max((place for place, n in enumerate(names) if n not in outputs), default=-1)
    found = [
        # an output before an input has no default: Python lets none stand there
        Parameter(
            f"{n}_" if iskeyword(n) else n,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=None if place > last else Parameter.empty,
            annotation=wanted[n],
        )
        for place, n in enumerate(names)
    ]
    more = [n for n in ("out", *options) if n not in wanted]
    return Signature([*found, *(Parameter(n, Parameter.KEYWORD_ONLY, default=None) for n in more)])


def known_level(level: object, known: Collection[str], whose: str) -> str:
    """A level that a caller asks a text of, which must be one of these; `whose` they are stands in the error.

    >>> known_level("blok", ["plan", "block"], "gemm on cpu")
    Traceback (most recent call last):
    tilewright.errors.ArgumentError: level='blok': gemm on cpu has 'plan', 'block'; did you mean block?
    """
    if isinstance(level, str) and level in known:
        return level
    near = did_you_mean(level, known) if isinstance(level, str) else ""
    raise ArgumentError(f"level={written(level, 80)}: {whose} has {', '.join(map(repr, known))}{near}")


def named_values(value: object, what: str, example: str) -> dict[str, Any]:
    """Values by name that a caller gives; names are texts, or symbols. `what` is the argument."""
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{what}={written(value, 80)}: a dictionary of names and values, {example}")
    found: dict[str, Any] = {}
    for key, each in value.items():
        name = key if isinstance(key, str) else getattr(key, "name", None)
        if not isinstance(name, str):
            raise ArgumentError(f"{what}: {written(key, 80)} is no name; a dictionary such as {example}")
        found[name] = each
    return found
