"""Contractions whose rows are known only when they run: batch and image size as arguments, one program for all.

A program is recognised twice, with two sets of unlikely sizes; what differs between the two is open, and must be an
expression of the open symbols in both. Columns and depth shape the code, and must be the same in both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.algebra.expr import Const, Expr, Symbol, index, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Program
from tilewright.machine import Machine
from tilewright.plan.contraction import Contraction, Operand, recognise, size

MOST = 1 << 20
"""No open size reaches this."""
_UNLIKELY = ((1009, 1013, 1019, 1021, 1031, 1033), (2003, 2011, 2017, 2027, 2029, 2039))


def opened(
    program: Program,
    known: Mapping[Symbol, Expr],
    open_symbols: Collection[Symbol],
    typical: Mapping[Symbol, int],
    machine: Machine | None = None,
) -> Contraction | str:
    """The contraction with open rows, planned for the typical sizes; or why there is none."""
    names = sorted(open_symbols, key=lambda s: s.name)
    found: list[Contraction] = []
    larger = {s: max(n, 16) for s, n in typical.items()}  # a size of 1 may leave a digit out
    for numbers in (*(dict(zip(names, values, strict=False)) for values in _UNLIKELY), typical, larger):
        recognised = recognise(program, _sizes(known, numbers), machine)
        if isinstance(recognised, str):
            return recognised
        found.append(recognised)
    first, second, usual, other_usual = found
    if _structure(usual) != _structure(first):
        usual = other_usual
    if not _structure(first) == _structure(second) == _structure(usual):
        return f"its form depends on {', '.join(s.name for s in names)}"
    parameters = {s: symbol(name, 1, MOST - 1) for s, name in parameter_names(names).items()}
    candidates = [e for e in {*known.values(), *names} if e.symbols and e.symbols <= set(names)]

    def meaning(a: int, b: int) -> Expr | None:
        """The expression of the open symbols that has these two values."""
        for e in sorted(candidates, key=str):
            values = [Substitution(dict(zip(names, v, strict=False)))(e) for v in _UNLIKELY]
            if [x.value if isinstance(x, Const) else None for x in values] == [a, b]:
                return Substitution(parameters)(e)
        return None

    extents: dict[Symbol, Expr] = {}
    for digit, again in zip(first.rows, second.rows, strict=True):
        if size(digit) != size(again):
            e = meaning(size(digit), size(again))
            if e is None:
                return f"the extent of {digit.name} is no size of the program"
            extents[digit] = e
    fresh = {d: index(d.name, MOST) for d in extents}
    images = Substitution(fresh)
    operands = []
    for one, other in zip(_operands(first), _operands(second), strict=True):
        shape: list[int | Expr] = []
        for a, b in zip(one.shape, other.shape, strict=True):
            extent = a if a == b else meaning(a, b)
            if extent is None:
                return f"an extent of {one.name} is no size of the program"
            shape.append(extent)
        operands.append(replace(one, shape=tuple(shape), coordinates=tuple(map(images, one.coordinates))))
    a, b, out, *extras = operands
    return replace(
        first,
        rows=tuple(fresh.get(d, d) for d in first.rows),
        a=a,
        b=b,
        out=out,
        extras=tuple(extras),
        open=tuple((fresh[d], e) for d, e in extents.items()),
        parameters=tuple(parameters.values()),
        typical=replace(usual, apart=True),
        apart=True,
        over=tuple((dims, tuple(fresh.get(d, d) for d in digits)) for dims, digits in first.over),
    )


def parameter_names(sizes: list[Symbol]) -> dict[Symbol, str]:
    """What open sizes are called in a block program, whose other names are in small letters.

    >>> list(parameter_names([symbol("N"), symbol("m"), symbol("M")]).values())
    ['N', 'OPEN_m', 'M']
    """
    found: dict[Symbol, str] = {}
    for s in sorted(sizes, key=lambda s: s.name.islower()):
        found[s] = fresh_name(s.name, found.values())
    return {s: found[s] for s in sizes}


def fresh_name(name: str, taken: Collection[str]) -> str:
    """A name for an open size that no other has."""
    name = name if name != name.lower() else f"OPEN_{name}"
    while name in taken:
        name = f"OPEN_{name}"
    return name


def _sizes(known: Mapping[Symbol, Expr], numbers: Mapping[Symbol, int]) -> dict[Symbol, int]:
    images = Substitution(dict(numbers))
    found = {s: images(e) for s, e in known.items()}
    return {**{s: e.value for s, e in found.items() if isinstance(e, Const)}, **numbers}


def _operands(c: Contraction) -> list[Operand]:
    return [c.a, c.b, c.out, *c.extras]


def _structure(c: Contraction) -> str:
    """All that must not depend on an open size."""
    fixed = [f"{d.name} {size(d)}" for d in (*c.columns, *c.depth, *c.batch)]
    rows = [d.name for d in c.rows]
    places = [(o.name, [str(e) for e in o.coordinates]) for o in _operands(c)]
    return f"{fixed} {rows} {places} {c.epilogue}"
