"""Open sizes: sizes known only at the call are parameters of the block program; a `let` defines what follows from them.

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
from tilewright.analysis.flat_memory import Size
from tilewright.errors import ArgumentError
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Op

MOST = 1 << 20
"""Open sizes are below this number."""
LEAST = 1 << 12
"""The lower bound of an open size, from which on all sizes that follow from it are positive, is sought up to this."""


@dataclass(frozen=True)
class OpenSizes:
    """The sizes known only at the call: parameters of a program, and the symbols that `let` defines by them."""

    parameters: tuple[Symbol, ...] = ()
    lets: tuple[Symbol, ...] = ()
    typical: Mapping[Symbol, int] = field(default_factory=dict, compare=False)
    """{symbol: the number for which the program is planned}."""

    @property
    def symbols(self) -> frozenset[Symbol]:
        """The symbols that stand for values known only at the call: the parameters, and those that `let` defines by
        them.
        """
        return frozenset((*self.parameters, *self.lets))

    def __bool__(self) -> bool:
        return bool(self.parameters)

    def records(self) -> list[Op]:
        """Return the `param` and `let` records that declare the open sizes in a block program; [] if there are none."""
        if not self.parameters:
            return []
        records = [Op(BLOCK.records["param"], (), {"parameters": tuple((s, None) for s in self.parameters)})]
        return records + [Op(BLOCK.records["let"], (), {"symbol": s}) for s in self.lets]

    def in_parameters(self, e: Expr) -> Expr:
        """Return `e` as an expression of parameters alone: symbols that a `let` defines are replaced by their
        definitions.
        """
        images: dict[Symbol, Expr] = {}
        for s in self.lets:
            assert s.definition is not None
            images[s] = Substitution(images)(s.definition)
        return Substitution(images)(e)


CLOSED = OpenSizes()


def opened(
    sizes: Mapping[Symbol, int], bindings: Mapping[Any, Any], dynamic: Collection[Symbol]
) -> tuple[dict[Symbol, Size], OpenSizes]:
    """Return (values, open sizes) for a program of which the sizes `dynamic` are open (known only at the call).

    `values` is {size: a number, or an expression of open sizes}. The open sizes become parameters (OpenSizes); a size
    computed from them becomes a `let` symbol, unless it is a product of symbols. `sizes` has a number for each size,
    not used for open ones; `bindings` is {size: expression of other sizes}. Lower bounds of parameters are raised so
    that all `let` symbols are at least 1, where a bound up to 4096 (LEAST) does that. Raise an ArgumentError if a size
    depends on anything else.

    >>> n, h, p, m = (symbol(name, 0) for name in ("N", "H", "P", "M"))
    >>> values, sizes = opened({n: 1, h: 9, p: 7, m: 7}, {p: h - 2, m: n * p}, [n, h])
    >>> values[p], values[m], sizes.lets[0].definition, sizes.parameters[0].lo
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
    """Return {open size: its name in the block program}, for the symbols `sizes`; a name in lower case gets `OPEN_` in
    front.

    All other names in a block program are in lower case, so none of them is the same as one of these.

    >>> list(parameter_names([symbol("N"), symbol("m"), symbol("M")]).values())
    ['N', 'OPEN_m', 'M']
    """
    names: dict[Symbol, str] = {}
    for s in sorted(sizes, key=lambda s: s.name.islower()):
        names[s] = fresh_name(s.name, names.values())
    return {s: names[s] for s in sizes}


def fresh_name(name: str, used_names: Collection[str]) -> str:
    """Return `name`, with `OPEN_` in front if it is all lower case; add `OPEN_` as often as the result is in
    `used_names`.
    """
    name = name if name != name.lower() else f"OPEN_{name}"
    while name in used_names:
        name = f"OPEN_{name}"
    return name


def _least(s: Symbol, start: int, lets: list[Symbol], parameters: Mapping[Symbol, Symbol]) -> int:
    """Return the smallest n >= `start` such that all sizes in `lets` are at least 1 whenever the open size `s` is at
    least n.

    `parameters` is {open size: its parameter symbol}. Return 4096 (LEAST) if no smaller n does. For s = H and the let H
    - 2: 3.
    """
    for n in range(start, LEAST):
        images = Substitution({parameters[s]: symbol(parameters[s].name, n, MOST - 1)})
        if all(e.definition is not None and images(e.definition).lo >= 1 for e in lets):
            return n
    return LEAST


def _follow(
    sizes: Mapping[Symbol, int], bindings: Mapping[Any, Any], parameters: Mapping[Symbol, Symbol]
) -> tuple[dict[Symbol, Size], list[Symbol]]:
    """Return (values, lets): {size: a number, or an expression of parameters and lets}, and the list of let symbols.

    `sizes` has a number for each size; `bindings` is {size: expression of other sizes}; `parameters` is {open size: its
    parameter symbol}. A size that is computed from open ones becomes a let, unless it is a product of symbols; its
    definition uses earlier lets only. Raise an ArgumentError if a size depends on anything else.
    """
    size_of: dict[Symbol, Size] = {}
    lets: list[Symbol] = []

    def value(s: Symbol) -> Size:
        """Return the value of the size `s`: a number, a parameter, a let, or a product of such symbols. Also store it
        in `size_of`, unless it is a parameter.

        An expression of open sizes that is no symbol and no product becomes a new symbol, which is added to `lets`.
        Raise an ArgumentError if the size depends on anything that arguments do not tell.
        """
        if s in parameters:
            return parameters[s]
        if s not in size_of:
            e = as_expr(bindings[s]) if s in bindings else as_expr(sizes[s])
            known = {each: value(each) for each in e.symbols if each in sizes and each is not s}
            resolved = number_or(Substitution(known)(e))
            if isinstance(resolved, Expr) and not resolved.symbols <= {*parameters.values(), *lets}:
                raise ArgumentError(f"dynamic: {s} = {e} depends on more than sizes that arguments tell")
            if isinstance(resolved, Expr) and not isinstance(resolved, Symbol) and not _is_product(resolved):
                lets.append(
                    symbol(fresh_name(s.name, {x.name for x in (*parameters.values(), *lets)}), definition=resolved)
                )
                resolved = lets[-1]
            size_of[s] = resolved
        return size_of[s]

    for s in sizes:
        size_of[s] = value(s)
    return size_of, lets


def _is_product(e: Expr) -> bool:
    """True if the expression `e` is a symbol or one product of symbols, perhaps times a number, such as 2*N*P."""
    constant, terms = linear(e)
    (term, _), *others = terms
    factors = term.parts if isinstance(term, Product) else (term,)
    return constant == 0 and not others and all(isinstance(factor, Symbol) for factor in factors)
