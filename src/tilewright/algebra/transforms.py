"""Coordinate transforms: a tensor seen through pad, embed, merge and their like, one step at a time.

A `View` is a tensor and a chain of steps. Each step turns *upper* dimensions (nearer to the user) into *lower*
ones (nearer to memory), and says which upper coordinates are valid. im2col of a padded image is five steps:

>>> from tilewright.algebra.expr import extent
>>> x = View.tensor({"n": 2, "h": 5, "w": 7, "c": 4})
>>> x = x.pad("h", 1, 1).pad("w", 1, 1).embed("h", {"p": (5, 1), "r": (3, 1)}).embed("w", {"q": (7, 1), "s": (3, 1)})
>>> x = x.merge("m", ("n", "p", "q")).merge("k", ("r", "s", "c")).permute("m", "k")
>>> print(x)
tensor(n 2, h 5, w 7, c 4)
  pad(h, 1, 1)
  pad(w, 1, 1)
  embed(h = p + r)
  embed(w = q + s)
  merge(m = n, p, q)
  merge(k = r, s, c)
  permute(m, k)
  = view(m 70, k 36)
>>> print(x.access().normalise().offset)
140*n + 28*p + 28*r + 4*q + 4*s + c - 32

Merges and unmerges are written slowest dimension first, as tensors are; layouts, first mode fastest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.algebra.access import Access
from tilewright.algebra.expr import ONE, ZERO, Expr, ExprLike, as_expr, index
from tilewright.algebra.expr_rules import add_all, multiply
from tilewright.errors import AccessError

Extents = dict[str, Expr]
Coordinates = dict[str, Expr]


class Transform:
    """One step of a chain.

    `upper` gives the dimensions after the step from those before it; `lower` gives the coordinates before
    the step from those after it. That a lower coordinate lies in its extent is checked by the view.
    """

    def upper(self, lower: Extents) -> Extents:
        """The dimensions the user sees after this step."""
        raise NotImplementedError

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        """The coordinates before this step; `extents` are those before it."""
        raise NotImplementedError

    def _require(self, dimension: str, known: Extents) -> Expr:
        if dimension not in known:
            raise AccessError(f"{self}: there is no dimension {dimension}; there are {', '.join(known)}")
        return known[dimension]

    def _exchange(self, known: Extents, old: Iterable[str], new: Mapping[str, Expr]) -> Extents:
        """`known` with the old dimensions taken out and the new ones put where the first of them was."""
        old = tuple(old)
        for dimension in old:
            self._require(dimension, known)
        clash = (set(known) - set(old)) & set(new)
        if clash:
            raise AccessError(f"{self}: dimension {min(clash)} exists already")
        done: Extents = {}
        for dimension, size in known.items():
            if dimension == old[0]:
                done |= new
            if dimension not in old:
                done[dimension] = size
        return done


@dataclass(frozen=True)
class Pad(Transform):
    """`left` and `right` more values at the ends of a dimension, outside memory; negative numbers crop."""

    dimension: str
    left: Expr
    right: Expr

    def upper(self, lower: Extents) -> Extents:
        return lower | {self.dimension: self._require(self.dimension, lower) + self.left + self.right}

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        return upper | {self.dimension: upper[self.dimension] - self.left}

    def __str__(self) -> str:
        return f"pad({self.dimension}, {self.left}, {self.right})"


@dataclass(frozen=True)
class Embed(Transform):
    """A dimension as a weighted sum of new ones: h = stride*p + dilation*r. Weights may be negative."""

    dimension: str
    parts: tuple[tuple[str, Expr, Expr], ...]
    """Name, extent and weight of each new dimension."""
    offset: Expr = ZERO

    def upper(self, lower: Extents) -> Extents:
        return self._exchange(lower, (self.dimension,), {name: size for name, size, _ in self.parts})

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        terms = [multiply(upper[name], weight) for name, _, weight in self.parts]
        rest = {d: c for d, c in upper.items() if d not in {name for name, _, _ in self.parts}}
        return rest | {self.dimension: add_all([*terms, self.offset])}

    def __str__(self) -> str:
        terms = [name if weight is ONE else f"{weight}*{name}" for name, _, weight in self.parts]
        offset = [] if self.offset is ZERO else [str(self.offset)]
        return f"embed({self.dimension} = {' + '.join(terms + offset)})"


@dataclass(frozen=True)
class Merge(Transform):
    """Several dimensions as one flat index, the last of them fastest."""

    dimension: str
    parts: tuple[str, ...]

    def upper(self, lower: Extents) -> Extents:
        size: Expr = ONE
        for part in self.parts:
            size = multiply(size, self._require(part, lower))
        return self._exchange(lower, self.parts, {self.dimension: size})

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        flat = upper[self.dimension]
        done = {d: c for d, c in upper.items() if d != self.dimension}
        for part in reversed(self.parts[1:]):
            done[part] = flat % extents[part]
            flat = flat // extents[part]
        return done | {self.parts[0]: flat}

    def __str__(self) -> str:
        return f"merge({self.dimension} = {', '.join(self.parts)})"


@dataclass(frozen=True)
class Unmerge(Transform):
    """A dimension as several, the last of them fastest; together they may reach past its end."""

    dimension: str
    parts: tuple[tuple[str, Expr], ...]

    def upper(self, lower: Extents) -> Extents:
        return self._exchange(lower, (self.dimension,), dict(self.parts))

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        flat: Expr = ZERO
        for name, size in self.parts:
            flat = multiply(flat, size) + upper[name]
        names = {name for name, _ in self.parts}
        return {d: c for d, c in upper.items() if d not in names} | {self.dimension: flat}

    def __str__(self) -> str:
        return f"unmerge({self.dimension} -> {', '.join(f'{name} {size}' for name, size in self.parts)})"


@dataclass(frozen=True)
class Permute(Transform):
    """The same dimensions in another order."""

    order: tuple[str, ...]

    def upper(self, lower: Extents) -> Extents:
        if sorted(self.order) != sorted(lower):
            raise AccessError(f"{self} does not name each of {', '.join(lower)} once")
        return {d: lower[d] for d in self.order}

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        return upper

    def __str__(self) -> str:
        return f"permute({', '.join(self.order)})"


@dataclass(frozen=True)
class Slice(Transform):
    """Every `step`-th value of a dimension from `begin` up to, not including, `end`."""

    dimension: str
    begin: Expr
    end: Expr
    step: Expr = ONE

    def upper(self, lower: Extents) -> Extents:
        self._require(self.dimension, lower)
        return lower | {self.dimension: (self.end - self.begin + self.step - 1) // self.step}

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        return upper | {self.dimension: multiply(upper[self.dimension], self.step) + self.begin}

    def __str__(self) -> str:
        step = "" if self.step is ONE else f", step {self.step}"
        return f"slice({self.dimension}, {self.begin}, {self.end}{step})"


@dataclass(frozen=True)
class Freeze(Transform):
    """One value of a dimension, which goes."""

    dimension: str
    value: Expr

    def upper(self, lower: Extents) -> Extents:
        self._require(self.dimension, lower)
        return {d: size for d, size in lower.items() if d != self.dimension}

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        return upper | {self.dimension: self.value}

    def __str__(self) -> str:
        return f"freeze({self.dimension} = {self.value})"


@dataclass(frozen=True)
class Insert(Transform):
    """A new dimension that nothing depends on: the tensor is repeated along it."""

    dimension: str
    extent: Expr

    def upper(self, lower: Extents) -> Extents:
        if self.dimension in lower:
            raise AccessError(f"{self}: dimension {self.dimension} exists already")
        return lower | {self.dimension: self.extent}

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        return {d: c for d, c in upper.items() if d != self.dimension}

    def __str__(self) -> str:
        return f"insert({self.dimension} {self.extent})"


@dataclass(frozen=True)
class XorWith(Transform):
    """A dimension permuted by xor with another: (a, b) to (a, b ^ (a % extent of b)).

    The extent of the permuted dimension must be a power of two.
    """

    dimension: str
    other: str

    def upper(self, lower: Extents) -> Extents:
        self._require(self.other, lower)
        size = self._require(self.dimension, lower)
        if not size.is_constant or int(size) & (int(size) - 1):
            raise AccessError(f"{self}: the extent {size} of {self.dimension} is not a power of two")
        return lower

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        turned = upper[self.dimension] ^ (upper[self.other] % extents[self.dimension])
        return upper | {self.dimension: turned}

    def __str__(self) -> str:
        return f"xor({self.dimension}, {self.other})"


@dataclass(frozen=True)
class Chain:
    """Transforms in the order in which they were applied to a tensor; chains are put together with +."""

    steps: tuple[Transform, ...] = ()

    def __add__(self, other: Chain) -> Chain:
        return Chain(self.steps + other.steps)

    def __str__(self) -> str:
        return "; ".join(str(step) for step in self.steps) or "nothing"


@dataclass(frozen=True)
class View:
    """A tensor seen through a chain of transforms; every method returns a new view."""

    shape: tuple[tuple[str, Expr], ...]
    """The tensor's own dimensions."""
    strides: tuple[Expr, ...] | None = None
    chain: Chain = field(default_factory=Chain)

    @classmethod
    def tensor(cls, shape: Mapping[str, ExprLike], strides: Iterable[ExprLike] | None = None) -> View:
        """A tensor by its dimensions, slowest first; without strides it is packed."""
        steps = None if strides is None else tuple(as_expr(s) for s in strides)
        return cls(tuple((name, as_expr(size)) for name, size in shape.items()), steps)

    @property
    def extents(self) -> Extents:
        """The dimensions the user sees."""
        return self._extents_before(len(self.chain.steps))

    def _extents_before(self, count: int) -> Extents:
        known = dict(self.shape)
        for step in self.chain.steps[:count]:
            known = step.upper(known)
        return known

    def then(self, *steps: Transform | Chain) -> View:
        """The view with further steps, or whole chains, on top."""
        chain = self.chain
        for step in steps:
            chain = chain + (step if isinstance(step, Chain) else Chain((step,)))
        done = replace(self, chain=chain)
        _ = done.extents  # names and sizes are checked now, not when the view is used
        return done

    def pad(self, dimension: str, left: ExprLike = 0, right: ExprLike = 0) -> View:
        """More values at the ends of a dimension, outside memory; negative numbers crop."""
        return self.then(Pad(dimension, as_expr(left), as_expr(right)))

    def embed(self, dimension: str, parts: Mapping[str, tuple[ExprLike, ExprLike]], offset: ExprLike = 0) -> View:
        """A dimension as a weighted sum: parts = {name: (extent, weight)}."""
        chosen = tuple((name, as_expr(size), as_expr(weight)) for name, (size, weight) in parts.items())
        return self.then(Embed(dimension, chosen, as_expr(offset)))

    def merge(self, dimension: str, parts: Iterable[str]) -> View:
        """Several dimensions as one flat index, the last fastest."""
        return self.then(Merge(dimension, tuple(parts)))

    def unmerge(self, dimension: str, parts: Mapping[str, ExprLike]) -> View:
        """A dimension as several, the last fastest: parts = {name: extent}."""
        return self.then(Unmerge(dimension, tuple((name, as_expr(size)) for name, size in parts.items())))

    def permute(self, *order: str) -> View:
        """The same dimensions in this order."""
        return self.then(Permute(order))

    def slice(self, dimension: str, begin: ExprLike, end: ExprLike, step: ExprLike = 1) -> View:
        """Every `step`-th value from `begin` up to, not including, `end`."""
        return self.then(Slice(dimension, as_expr(begin), as_expr(end), as_expr(step)))

    def freeze(self, dimension: str, value: ExprLike) -> View:
        """One value of a dimension, which goes."""
        return self.then(Freeze(dimension, as_expr(value)))

    def insert(self, dimension: str, extent: ExprLike) -> View:
        """A new dimension along which the tensor repeats."""
        return self.then(Insert(dimension, as_expr(extent)))

    def xor(self, dimension: str, other: str) -> View:
        """A dimension permuted by xor with another."""
        return self.then(XorWith(dimension, other))

    def at(self, coordinates: Mapping[str, ExprLike]) -> tuple[Coordinates, list[Expr]]:
        """The tensor's coordinates of a user's coordinate, and the conditions under which it is valid.

        >>> View.tensor({"h": 5}).pad("h", 1, 1).at({"h": 6})
        ({'h': <5>}, [<1>, <0>])
        """
        known = self.extents
        if set(coordinates) != set(known):
            raise AccessError(f"coordinates {', '.join(coordinates)} do not fit the dimensions {', '.join(known)}")
        current = {name: as_expr(value) for name, value in coordinates.items()}
        conditions: list[Expr] = []
        for count in range(len(self.chain.steps) - 1, -1, -1):
            extents = self._extents_before(count)
            before = self.chain.steps[count].lower(current, extents)
            for name, value in before.items():
                if current.get(name) is not value:
                    conditions += [value >= 0, value < extents[name]]
            current = before
        return current, conditions

    def access(self, **axes: Any) -> Access:
        """The access to the tensor, indexed by one axis for each of the view's dimensions, in order.

        An axis may be given by name, to share it between accesses; otherwise it is made with the
        dimension's name. Merged dimensions give the digits their names.
        """
        chosen = {name: axes[name] if name in axes else index(name, size) for name, size in self.extents.items()}
        lower, conditions = self.at(chosen)
        names: dict[str, Extents] = {}
        for count, step in enumerate(self.chain.steps):
            if isinstance(step, Merge) and step.dimension in chosen:
                extents = self._extents_before(count)
                names[chosen[step.dimension].name] = {part: extents[part] for part in step.parts}
        return Access.of(
            [lower[name] for name, _ in self.shape],
            chosen.values(),
            [size for _, size in self.shape],
            self.strides,
            conditions,
            names,
        )

    def __str__(self) -> str:
        dimensions = ", ".join(f"{name} {size}" for name, size in self.shape)
        strides = "" if self.strides is None else f" : {', '.join(str(s) for s in self.strides)}"
        seen = ", ".join(f"{name} {size}" for name, size in self.extents.items())
        steps = "".join(f"\n  {step}" for step in self.chain.steps)
        return f"tensor({dimensions}{strides}){steps}\n  = view({seen})"
