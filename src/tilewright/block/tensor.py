"""Tensors inside a block kernel: memory, registers, and views of both.

A view names a part of a tensor; no data moves. `view` is the operation itself; `tile`, slices, `merge`, `unmerge` and
`permute` are views whose coordinate expressions are worked out here. Each emits exactly one `view` operation.
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
from tilewright.block.tracing import as_tuple, function, number, only_value, trace
from tilewright.errors import DimensionMismatch, ProgramError, PythonControlFlow
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType, DTypeLike, element_type
from tilewright.ir.location import author_location
from tilewright.ir.tensors import RegisterType, TensorType


@dataclass(frozen=True)
class Maybe:
    """A coordinate `at` that may be out of bounds of its tensor: the `?` of a block program's text."""

    at: Any


def maybe(at: Any) -> Maybe:
    """Return `at`, a coordinate of a view, marked as possibly out of bounds: a read there returns the `otherwise` of
    the operation that reads, a write is dropped.
    """
    return Maybe(at)


class Tensor(Elementwise):
    """A tensor of the block level. Operators on it build elementwise formulas; `t[...] = formula` emits a `map`."""

    __slots__ = ("multiples", "value")

    def __init__(self, value: Value, multiples: tuple[Any, ...] | None = None):
        self.value, self.multiples = value, multiples

    @property
    def type(self) -> TensorType | RegisterType:
        """The tensor's IR type: memory space or registers, element type and shape."""
        tensor_type: TensorType | RegisterType = self.value.type
        return tensor_type

    @property
    def dtype(self) -> DType:
        """The tensor's element type."""
        return self.type.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """The tensor's extents: Python ints if constant, otherwise expressions. A dimension padded by `pad` has its
        padded extent.
        """
        sizes: tuple[Any, ...] = self.type.shape
        if self.multiples is not None:
            padded = zip(sizes, self.multiples, strict=True)
            sizes = tuple(
                extent if multiple is None else as_expr(ceildiv(extent, multiple) * multiple)
                for extent, multiple in padded
            )
        return tuple(extent.value if isinstance(extent, Const) else extent for extent in sizes)

    @property
    def element(self) -> Element:
        """The formula leaf that stands for an element of this tensor in elementwise expressions."""
        return Element("operand", (), self.value)

    # -- views ----------------------------------------------------------------------------------------

    def view(self, extents: Sequence[Any], at: Callable[..., Any]) -> Tensor:
        """Emit one `view` and return it: the tensor of shape `extents` in which element (i, j, ...) is element at(i, j,
        ...) of this tensor. No data moves.

        `at` is a Python function from view coordinates to coordinates of this tensor; its parameters name the axes of
        the view. Coordinates marked by `tb.maybe` may be out of bounds. Raise a DimensionMismatch if `at` returns a
        wrong number of coordinates.
        """
        extents = as_tuple(extents)
        return self._view(extents, function(at, "view: at"), argument_names(at, len(extents)))

    def _view(self, extents: Sequence[Any], at: Callable[..., Any], names: Sequence[str] | None = None) -> Tensor:
        """Emit one `view` and return it: the tensor of shape `extents` in which element (i, j, ...) is element at(i, j,
        ...) of this tensor.

        `names` are the names of the view's axes (None: i, j, ...). Raise a DimensionMismatch if `at` returns a wrong
        number of coordinates.
        """
        current = trace("view")
        over = current.axes(names or made_up(len(extents)), [number(e, "view: an extent") for e in extents])
        coordinates = at(*map(only_value, over))
        coordinates = tuple(coordinates) if isinstance(coordinates, tuple | list) else (coordinates,)
        if len(coordinates) != len(self.type.shape):
            raise DimensionMismatch(
                f"view: {len(coordinates)} coordinates for {len(self.type.shape)} dimensions of {self.type}",
                author_location(),
            )
        positions = tuple(self._checked_coordinate(c, d) for d, c in enumerate(coordinates))
        op = current.emit("view", (self.value,), {"over": over, "at": positions}, fallback=f"{self.value.name}_part")
        return Tensor(op.result)

    def _checked_coordinate(self, coordinate: Any, dim: int) -> tuple[Expr, bool]:
        """Return (expression, whether it may be out of bounds) for `coordinate`, a coordinate of a view along dimension
        `dim` of this tensor.

        It may be out of bounds if `tb.maybe` marks it, or if the dimension is padded and the coordinate is not proved
        in bounds.
        """
        if isinstance(coordinate, Maybe):
            return number(coordinate.at, f"view: coordinate {dim}"), True
        position = number(coordinate, f"view: coordinate {dim}")
        if self.multiples is None or self.multiples[dim] is None:
            return position, False
        in_bounds = as_expr(position >= ZERO) is TRUE and as_expr(position < self.type.shape[dim]) is TRUE
        return position, not in_bounds

    def pad(self, *multiples: Any) -> Tensor:
        """Return the same tensor with each extent rounded up to a multiple of the number in `multiples` (one for each
        dimension; None: not padded).

        Elements read from the padding are replaced by the `otherwise` of the copy; writes to the padding are dropped.
        No operation is emitted. Raise a DimensionMismatch for another number of multiples, or for a multiple below 1.
        """
        if len(multiples) != len(self.type.shape):
            raise DimensionMismatch(
                f"pad: {len(multiples)} multiples for {len(self.type.shape)} dimensions of {self.type}; None leaves "
                "one as it is",
                author_location(),
            )
        for multiple in multiples:
            if multiple is not None and as_expr(number(multiple, "pad: a multiple")).lo < 1:
                raise DimensionMismatch(f"pad to multiples of {multiple}: a multiple is at least 1", author_location())
        return Tensor(self.value, tuple(multiples))

    def tile(self, extents: Sequence[Any], at: Sequence[Any], proj: Sequence[Any] | None = None) -> Tensor:
        """Emit one `view` and return it: tile number `at` of this tensor, which is divided into tiles of shape
        `extents`. CuTe's local_tile, CK's make_local_tile.

        `at` has the number of the tile along each dimension: with extents (8, 16), tile (2, 0) starts at element (16,
        0). None in `at` takes the whole dimension. `proj` drops the entries of `extents` and `at` for which it has
        None, so that one (M, N, K) serves A, B and C: `a.tile((BM, BN, BK), (m, n, k), proj=(1, None, 1))`. Raise a
        DimensionMismatch if the numbers of entries differ.
        """
        extents, at = as_tuple(extents), as_tuple(at)
        if proj is not None:
            if not len(proj) == len(extents) == len(at):
                raise DimensionMismatch(
                    f"tile: {len(extents)} extents, {len(at)} numbers and {len(proj)} projections; they go together",
                    author_location(),
                )
            selected = [i for i, projection in enumerate(proj) if projection is not None]
            extents, at = tuple(extents[i] for i in selected), tuple(at[i] for i in selected)
        if not len(extents) == len(at) == len(self.type.shape):
            raise DimensionMismatch(
                f"tile: {len(extents)} extents and {len(at)} numbers for the {len(self.type.shape)} dimensions of "
                f"{self.type}",
                author_location(),
            )
        sizes = [self.shape[d] if n is None else e for d, (e, n) in enumerate(zip(extents, at, strict=True))]
        starts = [0 if n is None else n * e for e, n in zip(extents, at, strict=True)]
        return self._view(sizes, lambda *i: [start + coordinate for start, coordinate in zip(starts, i, strict=True)])

    def __getitem__(self, key: Any) -> Tensor:
        """Return a part of the tensor: a slice keeps its dimension, a number drops it; `t[...]` is the tensor
        itself.
        """
        if key is Ellipsis:
            return self
        return self.slice(*(key if isinstance(key, tuple) else (key,)))

    def slice(self, *keys: Any) -> Tensor:
        """Emit one `view` and return it: the elements that indexing with `keys` selects. `t.slice(m, slice(0, 8))` is
        `t[m, 0:8]`.

        There is one key for each dimension: a number drops the dimension, a slice keeps it. Negative constants count
        from the end, as in Python. Raise a DimensionMismatch for another number of keys, for a step other than 1, and
        for `...` or None as a key.
        """
        if len(keys) != len(self.type.shape):
            raise DimensionMismatch(f"slice: {len(keys)} entries for {self.type}", author_location())
        starts, extents, sliced_dims = [], [], []
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
            sliced_dims.append(dim)

        def at(*i: Any) -> list[Any]:
            """Return the tensor coordinates of the view coordinates `i`."""
            coordinates = list(starts)
            for dim, offset in zip(sliced_dims, i, strict=True):
                coordinates[dim] = coordinates[dim] + offset
            return coordinates

        return self._view(extents, at)

    def _from_end(self, bound: Any, dim: int) -> Expr:
        """Return `bound`, an index or slice limit along dimension `dim`, as an expression. The extent is added to a
        negative constant, which counts from the end.
        """
        position = number(bound, f"slice: entry {dim}")
        return (
            position + self.shape[dim]
            if position.hi < 0 and position.lo > -inf and isinstance(position, Const)
            else position
        )

    def merge(self, *groups: Sequence[int]) -> Tensor:
        """Emit one `view` and return it: this tensor with each group of dimensions merged into one dimension. The last
        dimension of a group is fastest.

        `x.merge((0, 1), (2,))` of (A, B, C) is (A*B, C). Raise a DimensionMismatch unless `groups` name each dimension
        once.
        """
        if sorted(d for g in groups for d in g) != list(range(len(self.type.shape))):
            raise DimensionMismatch(
                f"merge: the groups {groups} must name each of the {len(self.type.shape)} dimensions once",
                author_location(),
            )
        shape = self.shape
        extents = [_product(shape[d] for d in g) for g in groups]

        def at(*i: Any) -> list[Any]:
            """Return the coordinates of this tensor for the view coordinates `i`: each is split into the dimensions of
            its group.
            """
            coordinates: list[Any] = [ZERO] * len(shape)
            for flat, group in zip(i, groups, strict=True):
                for d in reversed(group[1:]):
                    coordinates[d], flat = flat % shape[d], flat // shape[d]
                if group:
                    coordinates[group[0]] = flat
            return coordinates

        return self._view(extents, at)

    def unmerge(self, dim: int, parts: Sequence[Any], order: Sequence[int] | None = None) -> Tensor:
        """Emit one `view` and return it: this tensor with dimension number `dim` split into dimensions of extents
        `parts`, the last fastest (CK's unmerge).

        `order` permutes the dimensions of the result: `a.unmerge(1, (K0, K1), (1, 0, 2))` of (M, K) is (K0, M, K1).
        Raise a DimensionMismatch if there is no dimension `dim`, if `order` does not name each dimension once, or if
        the product of `parts` is not the dimension's extent and the dimension is not padded.
        """
        shape = self.shape
        if not 0 <= dim < len(shape):
            raise DimensionMismatch(f"unmerge: there is no dimension {dim} in {self.type}", author_location())
        total = _product(parts)
        if as_expr(total - shape[dim]) is not ZERO and not (self.multiples and self.multiples[dim] is not None):
            raise DimensionMismatch(
                f"unmerge: {' * '.join(map(str, parts))} is {total}, dimension {dim} is {shape[dim]}; pad it first",
                author_location(),
            )
        extents = [*shape[:dim], *parts, *shape[dim + 1 :]]
        order = range(len(extents)) if order is None else order
        if sorted(order) != list(range(len(extents))):
            raise DimensionMismatch(
                f"unmerge: the order {tuple(order)} is no order of {len(extents)}", author_location()
            )

        def at(*i: Any) -> list[Any]:
            """Return the coordinates of this tensor for the view coordinates `i`: the coordinates of `parts` are joined
            to one.
            """
            unmerged: list[Any] = [ZERO] * len(extents)
            for position, dim_of_result in zip(i, order, strict=True):
                unmerged[dim_of_result] = position
            flat: Any = ZERO
            for digit, size in zip(unmerged[dim : dim + len(parts)], parts, strict=True):
                flat = flat * size + digit
            return [*unmerged[:dim], flat, *unmerged[dim + len(parts) :]]

        return self._view([extents[o] for o in order], at)

    def through(self, shape: Any, strides: Any = None) -> Tensor:
        """Emit one `view` and return it: element (m, k) of the view is the element of this one-dimensional tensor at
        offset layout(m, k).

        `shape` is a `Layout`, or a nested shape with equally nested `strides`, in which sizes may be symbols. Within a
        mode the first entry is fastest, as in CK and CuTe: `x.through(((2, M), 8), ((1, 16), 2))`. Raise a
        DimensionMismatch if this tensor has several dimensions, or if shape and strides are nested differently.
        """
        if len(self.type.shape) != 1:
            raise DimensionMismatch(
                f"through: {self.type} has {len(self.type.shape)} dimensions; a layout's offset is a place in one",
                author_location(),
            )
        if isinstance(shape, Layout) and strides is None:
            shape, strides = shape.shape, shape.stride
        modes, mode_strides = (x if isinstance(x, tuple) else (x,) for x in (shape, strides))
        if strides is None or not _congruent(modes, mode_strides):
            raise DimensionMismatch(f"through: the shape {shape} and the strides {strides} differ", author_location())
        extents = [_product(_leaves(mode)) for mode in modes]

        def at(*coordinates: Any) -> Any:
            """Return the layout's offset for the view's `coordinates`."""
            offset: Any = ZERO
            for coordinate, mode, mode_stride in zip(coordinates, modes, mode_strides, strict=True):
                *faster, slowest = zip(_leaves(mode), _leaves(mode_stride), strict=True)
                for size, stride in faster:
                    offset, coordinate = offset + coordinate % size * stride, coordinate // size
                offset = offset + coordinate * slowest[1]
            return offset

        return self._view(extents, at)

    def permute(self, *dims: int) -> Tensor:
        """Emit one `view` and return it: this tensor with its dimensions in the order `dims`, so that dimension d of
        the result is dimension dims[d]. Raise a DimensionMismatch unless `dims` names each dimension once.
        """
        if sorted(dims) != list(range(len(self.type.shape))):
            raise DimensionMismatch(f"permute: {dims} is no order of {len(self.type.shape)}", author_location())

        def at(*i: Any) -> list[Any]:
            """Return the coordinates of this tensor for the view's coordinates `i`."""
            return [i[dims.index(d)] for d in range(len(dims))]

        return self._view([self.shape[d] for d in dims], at)

    @property
    def T(self) -> Tensor:
        """The transpose of this two-dimensional tensor; each access emits one `view`. Raise a DimensionMismatch for
        another number of dimensions.
        """
        return self.permute(1, 0)

    def bitcast(self, kind: DTypeLike) -> Tensor:
        """Emit one `bitcast` and return it: a tensor with the same bits, as elements of type `kind`, an element type of
        the same width.
        """
        attributes = {"dtype": element_type(kind)}
        op = trace("bitcast").emit("bitcast", (self.value,), attributes, fallback=f"{self.value.name}_bits")
        return Tensor(op.result)

    # -- computing ------------------------------------------------------------------------------------

    def __setitem__(self, key: Any, x: Any) -> None:
        """`t[...] = x` sets the elements to the formula `x`: one `map`. With another key, a view of that part is taken
        first.
        """
        from tilewright.block.computing import map as map_elements

        map_elements(self[key], x)

    def at(self, *coordinates: Any) -> Expr:
        """Return a symbol for this integer tensor's element at `coordinates`, for use as an index in the function that
        is passed to `gather`, `scatter` or `atomic`. Raise a ProgramError elsewhere.
        """
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
    """Return the IR value of the tensor `x`. Raise a ProgramError if `x` is no tensor; `what` names the function in the
    message.
    """
    if isinstance(x, Tensor):
        return x.value
    raise ProgramError(f"{what} takes a tensor, not {x!r}", author_location(2))


def _leaves(x: Any) -> list[Any]:
    """Return the entries of the nested tuple `x` as a flat list, in order: ((2, 3), 4) -> [2, 3, 4]. Return [x] if `x`
    is no tuple.
    """
    return [leaf for entry in x for leaf in _leaves(entry)] if isinstance(x, tuple) else [x]


def _congruent(a: Any, b: Any) -> bool:
    """True if `a` and `b` are nested alike: tuples of equal length at the same positions. An empty tuple is never
    congruent.
    """
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) > 0 and all(map(_congruent, a, b))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def _product(sizes: Any) -> Any:
    """Return the product of `sizes`: an int if it is constant, otherwise an expression."""
    total: Any = ONE
    for factor in sizes:
        total = total * factor
    return total.value if isinstance(total, Const) else total
