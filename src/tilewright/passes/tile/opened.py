"""Sizes that only a call tells: parameters of the block program, and names for what follows from them.

compile(conv, dynamic=["N", "H"])       param N in 1..1048576, H in 3..1048576
                                        let P = H - 2
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.algebra.expr import Expr, Product, Symbol, as_expr, symbol
from tilewright.algebra.expr_rules import linear
from tilewright.algebra.expr_use import Substitution, number_or
from tilewright.errors import ArgumentError
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Op
from tilewright.passes.places import Size

MOST = 1 << 20
"""No open size reaches this."""
LEAST = 1 << 12
"""Below this the least value of a size is sought for which what follows from it is at least one."""


@dataclass(frozen=True)
class OpenSizes:
    """The sizes that a call tells: the parameters of a program, and the symbols that `let` defines by them."""

    parameters: tuple[Symbol, ...] = ()
    lets: tuple[Symbol, ...] = ()
    typical: Mapping[Symbol, int] = field(default_factory=dict, compare=False)
    """The numbers of these symbols for which the program is planned."""

    @property
    def symbols(self) -> frozenset[Symbol]:
        """The parameters and the defined symbols."""
        return frozenset((*self.parameters, *self.lets))

    def __bool__(self) -> bool:
        return bool(self.parameters)

    def records(self) -> list[Op]:
        """Return the `param` and `let` records that declare the symbols."""
        if not self.parameters:
            return []
        records = [Op(BLOCK.records["param"], (), {"parameters": tuple((s, None) for s in self.parameters)})]
        return records + [Op(BLOCK.records["let"], (), {"symbol": s}) for s in self.lets]

    def written_out(self, e: Expr) -> Expr:
        """Return an expression of the parameters alone: defined symbols are replaced by their definitions."""
        images: dict[Symbol, Expr] = {}
        for s in self.lets:
            assert s.definition is not None
            images[s] = Substitution(images)(s.definition)
        return Substitution(images)(e)


CLOSED = OpenSizes()


def opened(
    sizes: Mapping[Symbol, int], bindings: Mapping[Any, Any], dynamic: Collection[Symbol]
) -> tuple[dict[Symbol, Size], OpenSizes]:
    """Return ({size: a number, or an expression of dynamic sizes}, the OpenSizes).

    `bindings` say how sizes follow from others. A size that is computed from dynamic ones gets a symbol of its own, so
    that divisions by it can be simplified.

    >>> n, h, p, m = (symbol(name, 0) for name in ("N", "H", "P", "M"))
    >>> found, names = opened({n: 1, h: 9, p: 7, m: 7}, {p: h - 2, m: n * p}, [n, h])
    >>> found[p], found[m], names.lets[0].definition, names.parameters[0].lo
    (<P>, <N*P>, <H - 2>, 3)
    """
    names = parameter_names(sorted(dynamic, key=lambda s: s.name))
    least = dict.fromkeys(dynamic, 1)
    for _ in range(len(bindings) + 1):
        parameters = {s: symbol(names[s], least[s], MOST - 1) for s in names}
        size_of, lets = _follow(sizes, bindings, parameters)
        short = {s for e in lets if e.lo < 1 for s in e.background}
        grown = {s for s, parameter in parameters.items() if parameter in short and least[s] < LEAST}
        if not grown:
            break
        for s in grown:
            least[s] = _least(s, least[s], [e for e in lets if parameters[s] in e.background], parameters)
    return size_of, OpenSizes(tuple(parameters.values()), tuple(lets))


def parameter_names(sizes: list[Symbol]) -> dict[Symbol, str]:
    """Return {open size: its name in the block program}, whose other names are in lower case.

    >>> list(parameter_names([symbol("N"), symbol("m"), symbol("M")]).values())
    ['N', 'OPEN_m', 'M']
    """
    names: dict[Symbol, str] = {}
    for s in sorted(sizes, key=lambda s: s.name.islower()):
        names[s] = fresh_name(s.name, names.values())
    return {s: names[s] for s in sizes}


def fresh_name(name: str, taken: Collection[str]) -> str:
    """Return a name for an open size that is not taken and not in lower case."""
    name = name if name != name.lower() else f"OPEN_{name}"
    while name in taken:
        name = f"OPEN_{name}"
    return name


def _least(s: Symbol, now: int, lets: list[Symbol], parameters: Mapping[Symbol, Symbol]) -> int:
    """Return the least value of a size from which on all sizes that follow from it are at least one; at most LEAST."""
    for n in range(now, LEAST):
        images = Substitution({parameters[s]: symbol(parameters[s].name, n, MOST - 1)})
        if all(e.definition is not None and images(e.definition).lo >= 1 for e in lets):
            return n
    return LEAST


def _follow(
    sizes: Mapping[Symbol, int], bindings: Mapping[Any, Any], parameters: Mapping[Symbol, Symbol]
) -> tuple[dict[Symbol, Size], list[Symbol]]:
    """Return ({size: a number, or an expression of parameters and lets}, the lets), with a let for each computed
    size.
    """
    size_of: dict[Symbol, Size] = {}
    lets: list[Symbol] = []

    def value(s: Symbol) -> Size:
        if s in parameters:
            return parameters[s]
        if s not in size_of:
            e = as_expr(bindings[s]) if s in bindings else as_expr(sizes[s])
            known = {each: value(each) for each in e.symbols if each in sizes and each is not s}
            now = number_or(Substitution(known)(e))
            if isinstance(now, Expr) and not now.symbols <= {*parameters.values(), *lets}:
                raise ArgumentError(f"dynamic: {s} = {e} depends on more than sizes that arguments tell")
            if isinstance(now, Expr) and not isinstance(now, Symbol) and not _is_product(now):
                lets.append(symbol(fresh_name(s.name, {x.name for x in (*parameters.values(), *lets)}), definition=now))
                now = lets[-1]
            size_of[s] = now
        return size_of[s]

    for s in sizes:
        size_of[s] = value(s)
    return size_of, lets


def _is_product(e: Expr) -> bool:
    """True if an expression is a product of symbols and a number."""
    constant, terms = linear(e)
    (term, _), *others = terms
    factors = term.parts if isinstance(term, Product) else (term,)
    return constant == 0 and not others and all(isinstance(factor, Symbol) for factor in factors)
