"""Lazy tiles: a formula of one element over named coordinates, computed only when an operation needs elements in
memory.

A tile has one *coordinate*, a symbol, along each of its dimensions. The formula's operands are loads from tensors at
expressions of these. So broadcasting, another order of dimensions or the current tile of a loop cost nothing: the
formula stays, and an operation that needs elements in memory says for which part of each dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from tilewright.algebra.expr import Expr, as_expr
from tilewright.algebra.expr_use import number_or
from tilewright.analysis.flat_memory import Size
from tilewright.analysis.in_bounds import is_proved
from tilewright.errors import ProgramError
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.tile_formulas import converted

Part: TypeAlias = tuple[Expr, Size]
"""(first index, extent) along a dimension; an extent known only at the call is an expression."""
Parts: TypeAlias = "dict[Expr, Part]"


@dataclass(frozen=True)
class Load:
    """One element of a tensor at the coordinates `at`: the operand of a formula."""

    tensor: Value
    at: tuple[Expr, ...]

    @property
    def is_given(self) -> bool:
        """True if this load is from an argument that the program only reads."""
        return getattr(self.tensor.type, "role", None) == "in"


def load(tensor: Value, *at: Expr) -> Formula:
    """Return the formula of the element of `tensor` at the coordinates `at`."""
    return Formula("operand", (), Load(tensor, at))


@dataclass(frozen=True, eq=False)
class Tile:
    """A lazy tile: `formula` computes its element at given coordinates, for the `parts` of the dimensions `dims`.

    `wide` is (type, formula) of an accumulator before rounding; `formula` rounds it.
    """

    dtype: DType
    dims: tuple[Expr, ...]
    parts: Parts
    formula: Formula
    wide: tuple[DType, Formula] | None = None

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The extent of this tile along each of its dimensions, in the order of `dims`."""
        return tuple(self.parts[d][1] for d in self.dims)

    @property
    def accumulated(self) -> tuple[DType, Formula]:
        """(type, formula) of an element before it was rounded to this tile's type: `wide`, such as (f32, formula), for
        a bf16 tile that is a rounded f32 accumulator. A tile without `wide` has its `dtype` and `formula` here.
        """
        return (self.dtype, self.formula) if self.wide is None else self.wide

    @property
    def filled(self) -> bool:
        """True if every element of this tile is the same number, known at compile time: its formula has no loads,
        indices or arguments.
        """
        return not any(node.name in ("operand", "index", "argument") for node in self.formula.walk())

    def over(self, dims: tuple[Expr, ...], parts: Mapping[Expr, Part] | None = None) -> Tile:
        """Return this tile over the dimensions `dims`: in another order, with more dimensions, or with other parts;
        emit nothing.

        `parts` is {dimension: (first index, extent)}. It must have each dimension that the tile lacks, and may replace
        the parts of other dimensions.
        """
        known = {**self.parts, **(parts or {})}
        return replace(self, dims=dims, parts={d: known[d] for d in dims})


def rounded(dtype: DType, dims: tuple[Expr, ...], parts: Parts, wide: DType, formula: Formula) -> Tile:
    """Return a Tile of the type `dtype` whose element is `formula`, of the type `wide`, rounded; emit nothing.

    The Tile also keeps (`wide`, `formula`), the unrounded accumulator, unless both types are the same. `dims` and
    `parts`, {dimension: (first index, extent)}, are those of the Tile.
    """
    if wide is dtype:
        return Tile(dtype, dims, parts, formula)
    return Tile(dtype, dims, parts, converted(formula, wide, dtype), (wide, formula))


def loads(formula: Formula) -> Iterator[Load]:
    """Yield every Load (element of a tensor) in a formula, each as often as it occurs."""
    for node in formula.walk():
        if node.name == "operand":
            yield node.value


def only_load(formula: Formula) -> Load | None:
    """Return the Load of a formula that is one load and nothing else; None for any other formula."""
    return formula.value if formula.name == "operand" else None


def rewritten(
    formula: Formula, images: Callable[[Expr], Expr], loaded: Callable[[Load], Formula] | None = None
) -> Formula:
    """Return the formula with images(e) in place of every expression e: of indices, and of the coordinates of loads.

    If `loaded` is given, loaded(load) gives the formula that replaces a load as a whole; `images` is not applied to it.
    """
    if formula.name == "operand":
        source: Load = formula.value
        return load(source.tensor, *map(images, source.at)) if loaded is None else loaded(source)
    value = images(formula.value) if formula.name == "index" else formula.value
    return Formula(formula.name, tuple(rewritten(p, images, loaded) for p in formula.parts), value)


DEAR = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "tanh", "erf"),
    *("sigmoid", "sin", "cos", "sinh", "cosh", "cbrt", "powf", "atan2", "remf", "div", "floordiv", "mod"),
}
"""Functions that cost as much as several simple instructions."""


def weight(formula: Formula) -> int:
    """Return the estimated cost of one element of `formula`: a sum over its operations, counted in simple instructions.

    A function such as exp or div (`DEAR`) costs 8. A load, an index or simple arithmetic costs 1, a number 0:
    `exp(x[i]) + 2` -> 10.
    """
    total = 0
    for node in formula.walk():
        total += 8 if node.name in DEAR else 0 if node.name == "number" else 1
    return total


def divided(size: Size, by: int) -> tuple[Size, Size]:
    """Return (quotient, remainder) of `size` divided by the number `by`: ints, or expressions if `size` is known only
    at the call. (0, size) if `size` is always less than `by`.

    >>> from tilewright.algebra.expr import symbol
    >>> divided(70, 32), divided(symbol("M", 1, 99), 32)
    ((2, 6), (<M//32>, <M%32>))
    """
    if isinstance(size, int):
        return divmod(size, by)
    if size.hi < by:
        return 0, size
    return number_or(size // by), number_or(size % by)


def pieces(size: Size, by: int) -> Size:
    """Return the number of blocks of `by` elements that cover `size` elements, rounded up: 70, 32 -> 3. It is an
    expression if `size` is one.
    """
    return number_or((as_expr(size) + by - 1) // by)


def most(size: Size) -> int:
    """Return the largest value that `size` can have, as an int: `size` itself if it is an int."""
    return size if isinstance(size, int) else int(size.hi)


def common_parts(tiles: list[Tile]) -> Parts:
    """Return {dimension: (first index, extent)}, the parts of an elementwise result: those indices for which all
    `tiles` have elements.

    If tiles have different parts of a dimension, the result has the part that lies in all others; raise a ProgramError
    if none does. A tile that is one number everywhere counts only for dimensions that no other tile has.
    """
    parts: Parts = {}
    for tile in tiles:
        for d, part in tile.parts.items() if not tile.filled else ():
            known = parts.get(d)
            parts[d] = part if known is None else inner_part(d, known, part)
    for tile in tiles:
        for d, part in tile.parts.items():
            parts.setdefault(d, part)
    return parts


def inner_part(dim: Expr, a: Part, b: Part) -> Part:
    """Return `a` or `b`, two parts (first index, extent) of the dimension `dim`: the one that is proved to lie within
    the other.

    Raise a ProgramError if neither is: (0, 8) and (2, 4) -> (2, 4); (0, 8) and (4, 8) -> error.
    """
    if a == b:
        return a
    for inner, outer in ((a, b), (b, a)):
        before, after = inner[0] - outer[0], outer[0] + outer[1] - inner[0] - inner[1]
        if is_proved(before) and is_proved(after):
            return inner
    raise ProgramError(f"two parts of {dim} meet, {a[0]} (+{a[1]}) and {b[0]} (+{b[1]}): neither lies in the other")
