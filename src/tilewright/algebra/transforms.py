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
    """One step of a chain of coordinate transforms.

    `upper` gives the dimensions after the step from those before it; `lower` gives the coordinates before the step from
    those after it. That a lower coordinate lies in its extent is checked by the view.
    """

    def upper(self, lower: Extents) -> Extents:
        """Return the dimensions after this transform, {name: extent}, from those before it (`lower`).

        Each transform overrides this method; the base class raises NotImplementedError.
        """
        raise NotImplementedError

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        """Return the coordinates before this transform, {dimension: expression}, from those after it (`upper`).

        `extents` are the extents of the dimensions before the transform. Each transform overrides this method; the base
        class raises NotImplementedError.
        """
        raise NotImplementedError

    def _require(self, dimension: str, extents: Extents) -> Expr:
        """Return the extent of `dimension` in `extents`, {name: extent}; raise AccessError if there is no such
        dimension.
        """
        if dimension not in extents:
            raise AccessError(f"{self}: there is no dimension {dimension}; there are {', '.join(extents)}")
        return extents[dimension]

    def _exchange(self, extents: Extents, removed: Iterable[str], added: Mapping[str, Expr]) -> Extents:
        """Return `extents`, {name: extent}, with the dimensions `removed` replaced by `added`, {name: extent}.

        The added dimensions stand where the first of `removed` was. Raise AccessError if a removed dimension does not
        exist, or if an added one exists already.
        """
        removed = tuple(removed)
        for dimension in removed:
            self._require(dimension, extents)
        clash = (set(extents) - set(removed)) & set(added)
        if clash:
            raise AccessError(f"{self}: dimension {min(clash)} exists already")
        exchanged: Extents = {}
        for dimension, size in extents.items():
            if dimension == removed[0]:
                exchanged |= added
            if dimension not in removed:
                exchanged[dimension] = size
        return exchanged


@dataclass(frozen=True)
class Pad(Transform):
    """Adds `left` and `right` out-of-bounds values at the ends of a dimension; negative numbers crop it."""

    dimension: str
    left: Expr
    right: Expr

    def upper(self, lower: Extents) -> Extents:
        """Return the dimensions after padding, {name: extent}, from those before it (`lower`).

        The padded dimension is larger by the padding at both ends. Raise AccessError if the dimension does not exist.
        """
        return lower | {self.dimension: self._require(self.dimension, lower) + self.left + self.right}

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        """Return the coordinates before padding, {dimension: expression}, from those after it (`upper`).

        The left padding is subtracted. `extents` is not used.
        """
        return upper | {self.dimension: upper[self.dimension] - self.left}

    def __str__(self) -> str:
        return f"pad({self.dimension}, {self.left}, {self.right})"


@dataclass(frozen=True)
class Embed(Transform):
    """Replaces a dimension by new ones, as their weighted sum: h = stride*p + dilation*r. Weights may be negative."""

    dimension: str
    parts: tuple[tuple[str, Expr, Expr], ...]
    """Name, extent and weight of each new dimension."""
    offset: Expr = ZERO

    def upper(self, lower: Extents) -> Extents:
        """Return the dimensions after embedding, {name: extent}, from those before it (`lower`).

        Embedding writes one dimension as a weighted sum of new ones, as in h = 2*p + r. The new dimensions take its
        position. Raise AccessError if the dimension does not exist, or if a new name exists already.
        """
        return self._exchange(lower, (self.dimension,), {name: size for name, size, _ in self.parts})

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        """Return the coordinates before embedding, {dimension: expression}, from those after it (`upper`).

        The replaced dimension's coordinate is the weighted sum of the new coordinates, plus an offset. `extents` is not
        used.
        """
        terms = [multiply(upper[name], weight) for name, _, weight in self.parts]
        rest = {d: c for d, c in upper.items() if d not in {name for name, _, _ in self.parts}}
        return rest | {self.dimension: add_all([*terms, self.offset])}

    def __str__(self) -> str:
        terms = [name if weight is ONE else f"{weight}*{name}" for name, _, weight in self.parts]
        offset = [] if self.offset is ZERO else [str(self.offset)]
        return f"embed({self.dimension} = {' + '.join(terms + offset)})"


@dataclass(frozen=True)
class Merge(Transform):
    """Replaces several dimensions by one flat index, in which the last of them is fastest."""

    dimension: str
    parts: tuple[str, ...]

    def upper(self, lower: Extents) -> Extents:
        """Return the dimensions after merging, {name: extent}, from those before it (`lower`).

        The merged dimensions become one, where the first name of `self.parts` was in `lower`; its extent is the product
        of their extents. Raise AccessError if one of them does not exist or is named twice, if there is none, or if the
        new name exists already.
        """
        if not self.parts or len(set(self.parts)) < len(self.parts):
            raise AccessError(f"{self}: name the dimensions to merge, at least one, each once")
        size: Expr = ONE
        for part in self.parts:
            size = multiply(size, self._require(part, lower))
        return self._exchange(lower, self.parts, {self.dimension: size})

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        """Return the coordinates before merging, {dimension: expression}, from those after it (`upper`).

        The flat index is split by // and % with the `extents` of the merged dimensions, {name: extent}.
        """
        flat = upper[self.dimension]
        coordinates = {d: c for d, c in upper.items() if d != self.dimension}
        for part in reversed(self.parts[1:]):
            coordinates[part] = flat % extents[part]
            flat = flat // extents[part]
        return coordinates | {self.parts[0]: flat}

    def __str__(self) -> str:
        return f"merge({self.dimension} = {', '.join(self.parts)})"


@dataclass(frozen=True)
class Unmerge(Transform):
    """Splits a dimension into several, the last of them fastest; their product may exceed its extent."""

    dimension: str
    parts: tuple[tuple[str, Expr], ...]

    def upper(self, lower: Extents) -> Extents:
        """Return the dimensions after splitting one into several, {name: extent}, from those before it (`lower`).

        The new dimensions take the position of the split one. Raise AccessError if the dimension does not exist, or if
        a new name exists already.
        """
        return self._exchange(lower, (self.dimension,), dict(self.parts))

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        """Return the coordinates before splitting, {dimension: expression}, from those after it (`upper`).

        The coordinates of the new dimensions are combined to the flat index, the last one fastest. `extents` is not
        used.
        """
        flat: Expr = ZERO
        for name, size in self.parts:
            flat = multiply(flat, size) + upper[name]
        names = {name for name, _ in self.parts}
        return {d: c for d, c in upper.items() if d not in names} | {self.dimension: flat}

    def __str__(self) -> str:
        return f"unmerge({self.dimension} -> {', '.join(f'{name} {size}' for name, size in self.parts)})"


@dataclass(frozen=True)
class Permute(Transform):
    """Puts the dimensions into another order."""

    order: tuple[str, ...]

    def upper(self, lower: Extents) -> Extents:
        """Return the dimensions `lower`, {name: extent}, in the order `self.order`.

        Raise AccessError unless `self.order` names each of them once.
        """
        if sorted(self.order) != sorted(lower):
            raise AccessError(f"{self} does not name each of {', '.join(lower)} once")
        return {d: lower[d] for d in self.order}

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        """Return the coordinates `upper`, {dimension: expression}, unchanged: the order of a dictionary does not
        matter.

        `extents` is not used.
        """
        return upper

    def __str__(self) -> str:
        return f"permute({', '.join(self.order)})"


@dataclass(frozen=True)
class Slice(Transform):
    """Keeps every `step`-th value of a dimension, from `begin` up to, not including, `end`."""

    dimension: str
    begin: Expr
    end: Expr
    step: Expr = ONE

    def upper(self, lower: Extents) -> Extents:
        """Return the dimensions after slicing, {name: extent}, from those before it (`lower`).

        The extent of the sliced dimension becomes the number of values kept. Raise AccessError if this dimension does
        not exist, or if the step is known to be less than 1.
        """
        self._require(self.dimension, lower)
        if self.step.hi < 1:
            raise AccessError(f"{self}: the step must be at least 1")
        return lower | {self.dimension: (self.end - self.begin + self.step - 1) // self.step}

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        """Return the coordinates before slicing, {dimension: expression}, from those after it (`upper`).

        The coordinate c of the sliced dimension becomes step*c + begin. `extents` is not used.
        """
        return upper | {self.dimension: multiply(upper[self.dimension], self.step) + self.begin}

    def __str__(self) -> str:
        step = "" if self.step is ONE else f", step {self.step}"
        return f"slice({self.dimension}, {self.begin}, {self.end}{step})"


@dataclass(frozen=True)
class Freeze(Transform):
    """Removes a dimension by fixing its coordinate at `value`."""

    dimension: str
    value: Expr

    def upper(self, lower: Extents) -> Extents:
        """Return the dimensions `lower`, {name: extent}, without the one whose coordinate is fixed.

        Raise AccessError if this dimension does not exist.
        """
        self._require(self.dimension, lower)
        return {d: size for d, size in lower.items() if d != self.dimension}

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        """Return the coordinates `upper`, {dimension: expression}, with the fixed coordinate of the removed dimension
        added.

        `extents` is not used.
        """
        return upper | {self.dimension: self.value}

    def __str__(self) -> str:
        return f"freeze({self.dimension} = {self.value})"


@dataclass(frozen=True)
class Insert(Transform):
    """Adds a dimension that no coordinate depends on: the tensor is broadcast along it."""

    dimension: str
    extent: Expr

    def upper(self, lower: Extents) -> Extents:
        """Return the dimensions `lower`, {name: extent}, with the new one at the end.

        Raise AccessError if a dimension has this name already.
        """
        if self.dimension in lower:
            raise AccessError(f"{self}: dimension {self.dimension} exists already")
        return lower | {self.dimension: self.extent}

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        """Return the coordinates `upper`, {dimension: expression}, without that of the inserted dimension.

        The tensor is broadcast along the inserted dimension, so no coordinate depends on it. `extents` is not used.
        """
        return {d: c for d, c in upper.items() if d != self.dimension}

    def __str__(self) -> str:
        return f"insert({self.dimension} {self.extent})"


@dataclass(frozen=True)
class XorWith(Transform):
    """Permutes the coordinate b of `dimension` by xor with the coordinate a of `other`: b becomes b ^ (a % extent).

    The extent of the permuted dimension must be a power of two.
    """

    dimension: str
    other: str

    def upper(self, lower: Extents) -> Extents:
        """Return the dimensions `lower`, {name: extent}, unchanged.

        Raise AccessError unless both dimensions exist and the extent of the permuted one is a power of two.
        """
        self._require(self.other, lower)
        size = self._require(self.dimension, lower)
        if not size.is_constant or int(size) & (int(size) - 1):
            raise AccessError(f"{self}: the extent {size} of {self.dimension} is not a power of two")
        return lower

    def lower(self, upper: Coordinates, extents: Extents) -> Coordinates:
        """Return the coordinates before the permutation, {dimension: expression}, from those after it (`upper`).

        The coordinate b of the permuted dimension becomes b ^ (a % n): a is the coordinate of the dimension
        `self.other`, n the permuted dimension's extent in `extents`.
        """
        permuted = upper[self.dimension] ^ (upper[self.other] % extents[self.dimension])
        return upper | {self.dimension: permuted}

    def __str__(self) -> str:
        return f"xor({self.dimension}, {self.other})"


@dataclass(frozen=True)
class Chain:
    """Transforms in the order in which they were applied to a tensor; chains are concatenated with +."""

    steps: tuple[Transform, ...] = ()

    def __add__(self, other: Chain) -> Chain:
        return Chain(self.steps + other.steps)

    def __str__(self) -> str:
        return "; ".join(str(step) for step in self.steps) or "nothing"


@dataclass(frozen=True)
class View:
    """A tensor seen through a chain of transforms; every method returns a new view."""

    shape: tuple[tuple[str, Expr], ...]
    """The tensor's dimensions and extents, before any transform."""
    strides: tuple[Expr, ...] | None = None
    chain: Chain = field(default_factory=Chain)

    @classmethod
    def tensor(cls, shape: Mapping[str, ExprLike], strides: Iterable[ExprLike] | None = None) -> View:
        """Return the view of a whole tensor with the extents `shape`, {dimension: extent}, slowest dimension first.

        `strides`, one for each dimension, count elements; without them the tensor is packed.
        """
        steps = None if strides is None else tuple(as_expr(s) for s in strides)
        return cls(tuple((name, as_expr(size)) for name, size in shape.items()), steps)

    @property
    def extents(self) -> Extents:
        """Return the dimensions that the user of the view sees, after all transforms, as {name: extent}."""
        return self._extents_before(len(self.chain.steps))

    def _extents_before(self, count: int) -> Extents:
        """Return the dimensions, {name: extent}, after the first `count` transforms of the chain."""
        extents = dict(self.shape)
        for step in self.chain.steps[:count]:
            extents = step.upper(extents)
        return extents

    def then(self, *steps: Transform | Chain) -> View:
        """Return the view with `steps`, transforms or chains of transforms, applied after the steps it has, in the
        order given.

        Raise AccessError, now rather than at the first use, if a step names a dimension that does not exist or has
        sizes that do not fit.
        """
        chain = self.chain
        for step in steps:
            chain = chain + (step if isinstance(step, Chain) else Chain((step,)))
        view = replace(self, chain=chain)
        _ = view.extents  # names and sizes are checked now, not when the view is used
        return view

    def pad(self, dimension: str, left: ExprLike = 0, right: ExprLike = 0) -> View:
        """Return the view with `left` and `right` out-of-bounds values at the ends of a dimension; negative numbers
        crop the dimension.

        Raise AccessError if there is no such dimension.
        """
        return self.then(Pad(dimension, as_expr(left), as_expr(right)))

    def embed(self, dimension: str, parts: Mapping[str, tuple[ExprLike, ExprLike]], offset: ExprLike = 0) -> View:
        """Return the view with a dimension replaced by new ones: its coordinate is their weighted sum plus `offset`, as
        in h = 2*p + r.

        `parts` is {new dimension: (extent, weight)}. Raise AccessError if there is no such dimension, or if a new name
        exists already.
        """
        chosen = tuple((name, as_expr(size), as_expr(weight)) for name, (size, weight) in parts.items())
        return self.then(Embed(dimension, chosen, as_expr(offset)))

    def merge(self, dimension: str, parts: Iterable[str]) -> View:
        """Return the view with the dimensions named in `parts` merged to one flat dimension, `dimension`, the last of
        `parts` fastest.

        The new dimension stands where the first of `parts` was. Raise AccessError if one of `parts` does not exist or
        is named twice, if there is none, or if the new name exists already.
        """
        return self.then(Merge(dimension, tuple(parts)))

    def unmerge(self, dimension: str, parts: Mapping[str, ExprLike]) -> View:
        """Return the view with a dimension split into several, the last fastest; `parts` is {new dimension: extent}.

        The product of the extents may exceed the old extent; the points beyond are out of bounds. Raise AccessError if
        there is no such dimension, or if a new name exists already.
        """
        return self.then(Unmerge(dimension, tuple((name, as_expr(size)) for name, size in parts.items())))

    def permute(self, *order: str) -> View:
        """Return the view with its dimensions in the order of the given names. Raise AccessError unless each dimension
        is named once.
        """
        return self.then(Permute(order))

    def slice(self, dimension: str, begin: ExprLike, end: ExprLike, step: ExprLike = 1) -> View:
        """Return the view with every `step`-th value of a dimension, from `begin` up to, not including, `end`.

        The dimension keeps its name; its extent becomes the number of values kept. Raise AccessError if there is no
        such dimension, or if `step` is known to be less than 1.
        """
        return self.then(Slice(dimension, as_expr(begin), as_expr(end), as_expr(step)))

    def freeze(self, dimension: str, value: ExprLike) -> View:
        """Return the view without the dimension `dimension`: its coordinate is fixed at `value`.

        Raise AccessError if there is no such dimension.
        """
        return self.then(Freeze(dimension, as_expr(value)))

    def insert(self, dimension: str, extent: ExprLike) -> View:
        """Return the view with a new last dimension of this extent, along which the tensor is broadcast.

        Raise AccessError if a dimension has this name already.
        """
        return self.then(Insert(dimension, as_expr(extent)))

    def xor(self, dimension: str, other: str) -> View:
        """Return the view with the coordinate b of `dimension` replaced by b ^ (a % n), as in a swizzle.

        a is the coordinate of the dimension `other`; n is the extent of `dimension`. Raise AccessError unless both
        dimensions exist and n is a power of two.
        """
        return self.then(XorWith(dimension, other))

    def at(self, coordinates: Mapping[str, ExprLike]) -> tuple[Coordinates, list[Expr]]:
        """Return (tensor_coordinates, conditions) for `coordinates` of the view.

        Both coordinates are {dimension: expression}. The element is in bounds if all conditions are 1; there are two
        for each coordinate that a step computes. A condition that is known already is the constant 1 or 0. Raise
        AccessError unless each dimension of the view has a coordinate.

        >>> View.tensor({"h": 5}).pad("h", 1, 1).at({"h": 6})
        ({'h': <5>}, [<1>, <0>])
        """
        extents_seen = self.extents
        if set(coordinates) != set(extents_seen):
            raise AccessError(
                f"coordinates {', '.join(coordinates)} do not fit the dimensions {', '.join(extents_seen)}"
            )
        coordinate_of = {name: as_expr(value) for name, value in coordinates.items()}
        conditions: list[Expr] = []
        for count in range(len(self.chain.steps) - 1, -1, -1):
            extents = self._extents_before(count)
            before = self.chain.steps[count].lower(coordinate_of, extents)
            for name, value in before.items():
                if coordinate_of.get(name) is not value:
                    conditions += [value >= 0, value < extents[name]]
            coordinate_of = before
        return coordinate_of, conditions

    def access(self, **axes: Any) -> Access:
        """Return the access to the viewed tensor: its coordinates, and the conditions for being in bounds. Both are
        expressions of axes, one for each dimension of the view.

        `axes` may give axis symbols by dimension name, to share axes between accesses; their extents are not compared
        with the dimensions. A dimension without a given axis gets a new one of the same name and extent. Digits
        (mixed-radix parts) of a merged dimension get the names of the dimensions that were merged.
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
        user_dimensions = ", ".join(f"{name} {size}" for name, size in self.extents.items())
        steps = "".join(f"\n  {step}" for step in self.chain.steps)
        return f"tensor({dimensions}{strides}){steps}\n  = view({user_dimensions})"
