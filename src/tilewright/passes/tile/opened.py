"""Sizes that only a call tells: parameters of the block program, and names for what follows from them.

compile(conv, dynamic=["N", "H"])       param N in 1..1048576, H in 3..1048576
                                        let P = H - 2
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
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
    """The parameters of a program, and the symbols that `let` defines by them."""

    parameters: tuple[Symbol, ...] = ()
    lets: tuple[Symbol, ...] = ()

    @property
    def symbols(self) -> frozenset[Symbol]:
        """All of them."""
        return frozenset((*self.parameters, *self.lets))

    def __bool__(self) -> bool:
        return bool(self.parameters)

    def records(self) -> list[Op]:
        """The records that declare them."""
        if not self.parameters:
            return []
        made = [Op(BLOCK.records["param"], (), {"parameters": tuple((s, None) for s in self.parameters)})]
        return made + [Op(BLOCK.records["let"], (), {"symbol": s}) for s in self.lets]

    def written_out(self, e: Expr) -> Expr:
        """An expression of the parameters alone."""
        images: dict[Symbol, Expr] = {}
        for s in self.lets:
            assert s.definition is not None
            images[s] = Substitution(images)(s.definition)
        return Substitution(images)(e)


CLOSED = OpenSizes()


def opened(
    sizes: Mapping[Symbol, int], bindings: Mapping[Any, Any], dynamic: Collection[Symbol]
) -> tuple[dict[Symbol, Size], OpenSizes]:
    """What each size of a program is: a number, or an expression of those that are dynamic.

    `bindings` say how sizes follow from others. A size that is computed from dynamic ones gets a name, so that what
    it divides is seen to divide.

    >>> n, h, p, m = (symbol(name, 0) for name in ("N", "H", "P", "M"))
    >>> found, names = opened({n: 1, h: 9, p: 7, m: 7}, {p: h - 2, m: n * p}, [n, h])
    >>> found[p], found[m], names.lets[0].definition, names.parameters[0].lo
    (<P>, <N*P>, <H - 2>, 3)
    """
    names = parameter_names(sorted(dynamic, key=lambda s: s.name))
    least = dict.fromkeys(dynamic, 1)
    for _ in range(len(bindings) + 1):
        parameters = {s: symbol(names[s], least[s], MOST - 1) for s in names}
        found, lets = _follow(sizes, bindings, parameters)
        short = {s for e in lets if e.lo < 1 for s in e.background}
        grown = {s for s, own in parameters.items() if own in short and least[s] < LEAST}
        if not grown:
            break
        for s in grown:
            least[s] = _least(s, least[s], [e for e in lets if parameters[s] in e.background], parameters)
    return found, OpenSizes(tuple(parameters.values()), tuple(lets))


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


def _least(s: Symbol, now: int, lets: list[Symbol], parameters: Mapping[Symbol, Symbol]) -> int:
    """The least value of a size from which on all that follows from it is at least one."""
    for n in range(now, LEAST):
        images = Substitution({parameters[s]: symbol(parameters[s].name, n, MOST - 1)})
        if all(e.definition is not None and images(e.definition).lo >= 1 for e in lets):
            return n
    return LEAST


def _follow(
    sizes: Mapping[Symbol, int], bindings: Mapping[Any, Any], parameters: Mapping[Symbol, Symbol]
) -> tuple[dict[Symbol, Size], list[Symbol]]:
    found: dict[Symbol, Size] = {}
    lets: list[Symbol] = []

    def value(s: Symbol) -> Size:
        if s in parameters:
            return parameters[s]
        if s not in found:
            e = as_expr(bindings[s]) if s in bindings else as_expr(sizes[s])
            known = {each: value(each) for each in e.symbols if each in sizes and each is not s}
            now = number_or(Substitution(known)(e))
            if isinstance(now, Expr) and not now.symbols <= {*parameters.values(), *lets}:
                raise ArgumentError(f"dynamic: {s} = {e} depends on more than sizes that arguments tell")
            if isinstance(now, Expr) and not isinstance(now, Symbol) and not _is_product(now):
                lets.append(symbol(fresh_name(s.name, {x.name for x in (*parameters.values(), *lets)}), definition=now))
                now = lets[-1]
            found[s] = now
        return found[s]

    for s in sizes:
        found[s] = value(s)
    return found, lets


def _is_product(e: Expr) -> bool:
    """Whether an expression is a product of names and a number."""
    constant, terms = linear(e)
    (term, _), *others = terms
    factors = term.parts if isinstance(term, Product) else (term,)
    return constant == 0 and not others and all(isinstance(factor, Symbol) for factor in factors)
