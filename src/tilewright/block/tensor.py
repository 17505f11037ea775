"""Tensors inside a block kernel: memory, views of it, registers.

A view names part of a tensor, and nothing moves: `view` is the operation itself; `tile`, slices, `merge`, `unmerge`,
`permute` are views with the coordinates worked out. Each makes exactly one `view` operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from types import EllipsisType
from typing import Any

from tilewright.algebra import Layout, ceildiv
from tilewright.algebra.expr import ONE, TRUE, ZERO, Const, Expr, as_expr
from tilewright.block.formulas import Element, Elementwise
from tilewright.block.names import argument_names, made_up
from tilewright.block.tracing import number, only_value, several, trace
from tilewright.errors import DimensionMismatch, ProgramError, PythonControlFlow
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType, DTypeLike, element_type
from tilewright.ir.location import author_location
from tilewright.ir.tensors import RegisterType, TensorType


@dataclass(frozen=True)
class Maybe:
    """A coordinate that may lie outside its tensor: the text's `?`."""

    at: Any


def maybe(at: Any) -> Maybe:
    """A coordinate that may lie outside: reading there gives `otherwise`, writing there is dropped."""
    return Maybe(at)


class Tensor(Elementwise):
    """A tensor of the block level. Operators work element by element, and `t[...] = ...` computes them."""

    __slots__ = ("multiples", "value")

    def __init__(self, value: Value, multiples: tuple[Any, ...] | None = None):
        self.value, self.multiples = value, multiples

    @property
    def type(self) -> TensorType | RegisterType:
        """Where it lies, its element type and shape."""
        found: TensorType | RegisterType = self.value.type
        return found

    @property
    def dtype(self) -> DType:
        """Its element type."""
        return self.type.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """Its sizes, padded ones rounded up; those that are numbers are Python integers."""
        sizes: tuple[Any, ...] = self.type.shape
        if self.multiples is not None:
            pairs = zip(sizes, self.multiples, strict=True)
            sizes = tuple(s if m is None else as_expr(ceildiv(s, m) * m) for s, m in pairs)
        return tuple(s.value if isinstance(s, Const) else s for s in sizes)

    @property
    def element(self) -> Element:
        """One of its elements, in a formula."""
        return Element("operand", (), self.value)

    # -- views ----------------------------------------------------------------------------------------

    def view(self, extents: Sequence[Any], at: Callable[..., Any]) -> Tensor:
        """Element (i, j, ...) is element at(i, j, ...) of this tensor; one `view`.

        The coordinates take the names of the function's arguments. What `maybe` marks may lie outside.
        """
        extents = several(extents)
        return self._view(extents, at, argument_names(at, len(extents)))

    def _view(self, extents: Sequence[Any], at: Callable[..., Any], names: Sequence[str] | None = None) -> Tensor:
        here = trace("view")
        over = here.axes(names or made_up(len(extents)), [number(e, "view: an extent") for e in extents])
        coordinates = at(*map(only_value, over))
        coordinates = tuple(coordinates) if isinstance(coordinates, tuple | list) else (coordinates,)
        if len(coordinates) != len(self.type.shape):
            raise DimensionMismatch(
                f"view: {len(coordinates)} coordinates for {len(self.type.shape)} dimensions of {self.type}",
                author_location(),
            )
        places = tuple(self._place(c, d) for d, c in enumerate(coordinates))
        op = here.emit("view", (self.value,), {"over": over, "at": places}, fallback=f"{self.value.name}_part")
        return Tensor(op.result)

    def _place(self, coordinate: Any, dim: int) -> tuple[Expr, bool]:
        """A coordinate, and whether it may lie outside: where it is marked, or padded and not shown to lie inside."""
        if isinstance(coordinate, Maybe):
            return number(coordinate.at, f"view: coordinate {dim}"), True
        e = number(coordinate, f"view: coordinate {dim}")
        if self.multiples is None or self.multiples[dim] is None:
            return e, False
        inside = as_expr(e >= ZERO) is TRUE and as_expr(e < self.type.shape[dim]) is TRUE
        return e, not inside

    def pad(self, *multiples: Any) -> Tensor:
        """The same tensor, each dimension up to the next multiple; what lies past the end may be named.

        It reads as `otherwise`, and writing to it is dropped. None leaves a dimension as it is. Makes no operation.
        """
        if len(multiples) != len(self.type.shape):
            raise DimensionMismatch(
                f"pad: {len(multiples)} multiples for {len(self.type.shape)} dimensions of {self.type}; None leaves "
                "one as it is",
                author_location(),
            )
        for m in multiples:
            if m is not None and as_expr(number(m, "pad: a multiple")).lo < 1:
                raise DimensionMismatch(f"pad to multiples of {m}: a multiple is at least 1", author_location())
        return Tensor(self.value, tuple(multiples))

    def tile(self, extents: Sequence[Any], at: Sequence[Any], proj: Sequence[Any] | None = None) -> Tensor:
        """Tile number `at` of these extents: CuTe's local_tile, CK's make_local_tile; one `view`.

        None in `at` takes the whole dimension. `proj` leaves out the extents that it pairs with None, so that one
        (M, N, K) serves A, B and C: `a.tile((BM, BN, BK), (m, n, k), proj=(1, None, 1))`.
        """
        extents, at = several(extents), several(at)
        if proj is not None:
            if not len(proj) == len(extents) == len(at):
                raise DimensionMismatch(
                    f"tile: {len(extents)} extents, {len(at)} numbers and {len(proj)} projections; they go together",
                    author_location(),
                )
            kept = [i for i, p in enumerate(proj) if p is not None]
            extents, at = tuple(extents[i] for i in kept), tuple(at[i] for i in kept)
        if not len(extents) == len(at) == len(self.type.shape):
            raise DimensionMismatch(
                f"tile: {len(extents)} extents and {len(at)} numbers for the {len(self.type.shape)} dimensions of "
                f"{self.type}",
                author_location(),
            )
        sizes = [self.shape[d] if n is None else e for d, (e, n) in enumerate(zip(extents, at, strict=True))]
        starts = [0 if n is None else n * e for e, n in zip(extents, at, strict=True)]
        return self._view(sizes, lambda *i: [s + c for s, c in zip(starts, i, strict=True)])

    def __getitem__(self, key: Any) -> Tensor:
        """A part: a slice keeps its dimension, a number drops it; `t[...]` is the tensor itself."""
        if key is Ellipsis:
            return self
        return self.slice(*(key if isinstance(key, tuple) else (key,)))

    def slice(self, *keys: Any) -> Tensor:
        """`t.slice(m, slice(0, 8))` is `t[m, 0:8]`: one `view`. Negative integers count from the end, as in Python."""
        if len(keys) != len(self.type.shape):
            raise DimensionMismatch(f"slice: {len(keys)} entries for {self.type}", author_location())
        starts, extents, kept = [], [], []
        for dim, key in enumerate(keys):
            if isinstance(key, EllipsisType) or key is None:
                raise DimensionMismatch(f"slice: entry {dim} is {key!r}; write a number or a slice", author_location())
            if not isinstance(key, slice):
                starts.append(self._from_end(key, dim))
                continue
            if key.step not in (None, 1):
                raise DimensionMismatch(
                    f"slice: the step {key.step} of entry {dim}; write t.view(...) for every n-th element",
                    author_location(),
                )
            start = ZERO if key.start is None else self._from_end(key.start, dim)
            stop = as_expr(self.shape[dim]) if key.stop is None else self._from_end(key.stop, dim)
            starts.append(start)
            extents.append(stop - start)
            kept.append(dim)

        def at(*i: Any) -> list[Any]:
            found = list(starts)
            for dim, c in zip(kept, i, strict=True):
                found[dim] = found[dim] + c
            return found

        return self._view(extents, at)

    def _from_end(self, at: Any, dim: int) -> Expr:
        e = number(at, f"slice: entry {dim}")
        return e + self.shape[dim] if e.hi < 0 and e.lo > -inf and isinstance(e, Const) else e

    def merge(self, *groups: Sequence[int]) -> Tensor:
        """Dimensions in groups, each group one dimension, its last fastest: `x.merge((0, 1), (2,))`; one `view`."""
        if sorted(d for g in groups for d in g) != list(range(len(self.type.shape))):
            raise DimensionMismatch(
                f"merge: the groups {groups} must name each of the {len(self.type.shape)} dimensions once",
                author_location(),
            )
        shape = self.shape
        extents = [_product(shape[d] for d in g) for g in groups]

        def at(*i: Any) -> list[Any]:
            found: list[Any] = [ZERO] * len(shape)
            for flat, group in zip(i, groups, strict=True):
                for d in reversed(group[1:]):
                    found[d], flat = flat % shape[d], flat // shape[d]
                if group:
                    found[group[0]] = flat
            return found

        return self._view(extents, at)

    def unmerge(self, dim: int, parts: Sequence[Any], order: Sequence[int] | None = None) -> Tensor:
        """One dimension as several, the last fastest; `order` permutes what comes out (CK's unmerge); one `view`.

        `a.unmerge(1, (K0, K1), (1, 0, 2))` of (M, K) is (K0, M, K1).
        """
        shape = self.shape
        if not 0 <= dim < len(shape):
            raise DimensionMismatch(f"unmerge: there is no dimension {dim} in {self.type}", author_location())
        whole = _product(parts)
        if as_expr(whole - shape[dim]) is not ZERO and not (self.multiples and self.multiples[dim] is not None):
            raise DimensionMismatch(
                f"unmerge: {' * '.join(map(str, parts))} is {whole}, dimension {dim} is {shape[dim]}; pad it first",
                author_location(),
            )
        extents = [*shape[:dim], *parts, *shape[dim + 1 :]]
        order = range(len(extents)) if order is None else order
        if sorted(order) != list(range(len(extents))):
            raise DimensionMismatch(
                f"unmerge: the order {tuple(order)} is no order of {len(extents)}", author_location()
            )

        def at(*i: Any) -> list[Any]:
            found: list[Any] = [ZERO] * len(extents)
            for place, o in zip(i, order, strict=True):
                found[o] = place
            flat: Any = ZERO
            for c, size in zip(found[dim : dim + len(parts)], parts, strict=True):
                flat = flat * size + c
            return [*found[:dim], flat, *found[dim + len(parts) :]]

        return self._view([extents[o] for o in order], at)

    def through(self, shape: Any, strides: Any = None) -> Tensor:
        """A tensor of one dimension, seen through a layout: element (m, k) lies at offset layout(m, k); one `view`.

        The layout is a `Layout`, or a nested shape and strides, both of which may hold sizes that are symbols. Within
        a mode the first entry is fastest, as in CK and CuTe: `x.through(((2, M), 8), ((1, 16), 2))`.
        """
        if len(self.type.shape) != 1:
            raise DimensionMismatch(
                f"through: {self.type} has {len(self.type.shape)} dimensions; a layout's offset is a place in one",
                author_location(),
            )
        if isinstance(shape, Layout) and strides is None:
            shape, strides = shape.shape, shape.stride
        modes, steps = (x if isinstance(x, tuple) else (x,) for x in (shape, strides))
        if strides is None or not _congruent(modes, steps):
            raise DimensionMismatch(f"through: the shape {shape} and the strides {strides} differ", author_location())
        extents = [_product(_leaves(mode)) for mode in modes]

        def at(*coordinates: Any) -> Any:
            offset: Any = ZERO
            for coordinate, mode, step in zip(coordinates, modes, steps, strict=True):
                *faster, slowest = zip(_leaves(mode), _leaves(step), strict=True)
                for size, stride in faster:
                    offset, coordinate = offset + coordinate % size * stride, coordinate // size
                offset = offset + coordinate * slowest[1]
            return offset

        return self._view(extents, at)

    def permute(self, *dims: int) -> Tensor:
        """Dimensions in another order; one `view`."""
        if sorted(dims) != list(range(len(self.type.shape))):
            raise DimensionMismatch(f"permute: {dims} is no order of {len(self.type.shape)}", author_location())

        def at(*i: Any) -> list[Any]:
            return [i[dims.index(d)] for d in range(len(dims))]

        return self._view([self.shape[d] for d in dims], at)

    @property
    def T(self) -> Tensor:
        """The matrix transposed; one `view`."""
        return self.permute(1, 0)

    def bitcast(self, kind: DTypeLike) -> Tensor:
        """The same bits as another element type of the same width: one `bitcast`."""
        to = {"dtype": element_type(kind)}
        op = trace("bitcast").emit("bitcast", (self.value,), to, fallback=f"{self.value.name}_bits")
        return Tensor(op.result)

    # -- computing ------------------------------------------------------------------------------------

    def __setitem__(self, key: Any, x: Any) -> None:
        """`t[...] = x` computes x element by element: one `map`. With another key, the part is viewed first."""
        from tilewright.block.computing import map as map_elements

        map_elements(self[key], x)

    def at(self, *coordinates: Any) -> Expr:
        """An element of integers as a place: within the function that `gather`, `scatter` or `atomic` is given."""
        from tilewright.block.moving import fetched

        return fetched(self, coordinates)

    def __iter__(self) -> Any:
        raise PythonControlFlow(
            "Python's `for` cannot walk a tensor: loop over numbers with tb.steps(...) and slice it", author_location()
        )

    def __len__(self) -> int:
        raise PythonControlFlow("a tensor has no length; its sizes are t.shape", author_location())

    def __repr__(self) -> str:
        return f"<tensor {self.value.name}: {self.type}>"


def tensor_of(x: Any, what: str) -> Value:
    """The value of a tensor; an error that names `what` otherwise."""
    if isinstance(x, Tensor):
        return x.value
    raise ProgramError(f"{what} takes a tensor, not {x!r}", author_location(2))


def _leaves(x: Any) -> list[Any]:
    """The entries of a nested tuple, in order."""
    return [leaf for part in x for leaf in _leaves(part)] if isinstance(x, tuple) else [x]


def _congruent(a: Any, b: Any) -> bool:
    """Whether two nested tuples have the same profile."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) > 0 and all(map(_congruent, a, b))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def _product(sizes: Any) -> Any:
    found: Any = ONE
    for size in sizes:
        found = found * size
    return found.value if isinstance(found, Const) else found
