"""Accesses: where a read or a write lies in memory, as linear forms over the dimensions of its tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from tilewright.algebra.expr import Expr

Dims = frozenset[str]
"""A set of dimensions, by name."""
LinearForm = tuple[tuple[str, int], ...]
"""A memory coordinate without its constant offset: pairs (dimension, coefficient) that add up."""


@dataclass(frozen=True)
class AccessFacts:
    """A read or write of a tile: each memory coordinate as a linear form over the tile's dimensions, and the strides.

    `can_leave` says that elements may be out of bounds. If `linear` is false, some coordinate divides a dimension or is
    looked up in another tensor, and the forms only list the dimensions that the address depends on.
    """

    memory: str
    bytes: int
    coords: tuple[LinearForm, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    can_leave: bool
    linear: bool = True
    is_open: bool = False
    """True if the row stride is known only at a call."""
    offsets: tuple[int | Expr, ...] = ()
    """The constant offset of each coordinate, an expression if only a call gives its number; () if all are 0."""

    @cached_property
    def steps(self) -> dict[str, int]:
        """The stride of this access along each dimension of its tile: {dimension: stride in elements of the memory}.

        Only dimensions that occur in a memory coordinate are keys. The access `x[i + r, c]` of a memory of 10 x 64
        elements has {i: 64, r: 64, c: 1}. If `linear` is false, the strides have no meaning.
        """
        steps: dict[str, int] = {}
        for form, stride in zip(self.coords, self.strides, strict=False):
            for dim, coefficient in form:
                steps[dim] = steps.get(dim, 0) + stride * coefficient
        return steps

    @cached_property
    def dims(self) -> Dims:
        """The set of the tile's dimensions that occur in a memory coordinate of this access.

        The address of an element depends on these dimensions only.
        """
        return frozenset(dim for form in self.coords for dim, _ in form)

    @cached_property
    def contiguous(self) -> str | None:
        """The first dimension, in the order of memory coordinates, along which this access has a stride of 1 element.

        None if no dimension has this stride. The result has no meaning if `linear` is false.
        """
        return next((dim for dim, step in self.steps.items() if step == 1), None)

    @cached_property
    def row(self) -> LinearForm:
        """The innermost memory coordinate of this access, as pairs (dimension of the tile, coefficient).

        The coordinate is the sum of coefficient * index, without the constant offset: 2*p + r + 3 is ((p, 2), (r, 1)).
        The result is () if the memory is a scalar.
        """
        return self.coords[-1] if self.coords else ()

    @cached_property
    def pitch(self) -> int:
        """The alignment of rows in memory: the largest number of bytes that divides every distance between rows.

        This is the greatest common divisor of all strides but the innermost, in bytes. It is the number of bytes of the
        whole tensor if the memory has one dimension, and 0 if the memory is a scalar.
        """
        rows = gcd(*self.strides[:-1]) if len(self.strides) > 1 else self.shape[-1] if self.shape else 0
        return rows * self.bytes

    @cached_property
    def windows(self) -> tuple[Dims, ...]:
        """The sliding windows of this access: one set of dimensions for each memory coordinate that adds several.

        The coordinate p + r of a convolution gives the set {p, r}. The result is () if no coordinate adds several
        dimensions. If `linear` is false, the only set has all dimensions of the tile.
        """
        return tuple(frozenset(dim for dim, _ in form) for form in self.coords if len(form) > 1)

    @cached_property
    def rows_overlap(self) -> bool:
        """True if rows of this memory overlap: the stride of an outer dimension is smaller than the length of a row.

        The length of a row is the extent of the innermost dimension. Outer dimensions with one element do not count.
        """
        row_strides = [stride for stride, extent in zip(self.strides[:-1], self.shape, strict=False) if extent > 1]
        return bool(row_strides) and min(row_strides) < self.shape[-1]

    @property
    def elements(self) -> int:
        """The number of elements that this memory's tensor spans, from its first to its last.

        Gaps between rows count.
        """
        return 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))

    def is_plain_coordinate(self, dim: str) -> bool:
        """True if one memory coordinate of this access is the index of `dim`, perhaps plus a constant.

        The coordinate has no other dimension, and coefficient 1. A bulk copy may then load a tile that runs past the
        end of `dim`. The result has no meaning if `linear` is false.
        """
        return any(form == ((dim, 1),) for form in self.coords)

    def rows_run_along(self, k: Dims) -> bool:
        """True if rows of memory run along K in this access: the MMA operand that it reads is K-major.

        `k` are the K dimensions of the MMA. Rows run along K if a dimension of `k` is in the innermost memory
        coordinate, or has stride 1. If False, they run along M or N. An access whose address depends on no dimension (a
        single element) gives True.
        """
        return not self.dims or any(dim in k for dim, _ in self.row) or self.contiguous in k
