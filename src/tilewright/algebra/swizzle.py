"""Swizzles, and layouts followed by a swizzle or started at an offset.

A swizzle exchanges addresses by xor so that columns, not only rows, are spread over the memory banks:

>>> from tilewright.algebra import Layout
>>> rows = ComposedLayout(Swizzle(2, 0, 3), 0, Layout((4, 8), (8, 1)))
>>> [rows(1, j) for j in range(8)]
[9, 8, 11, 10, 13, 12, 15, 14]
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr
from tilewright.algebra.inttuple import TupleValue, has_none, is_int, leaves, product
from tilewright.algebra.layout import Layout, cosize, shape_text, size, svg_or_none
from tilewright.errors import LayoutError
from tilewright.limits import REGISTERS, SWIZZLE, shown, written


class Swizzle(TupleValue):
    """o -> o ^ ((o & yyy) >> shift), with `bits` ones in yyy, from bit `base` + max(0, shift) on.

    In words: `bits` bits of the offset, which lie `shift` above the lowest bits that may change (those from `base` on),
    are xor-ed onto them; a negative shift works downwards. abs(shift) must be at least `bits`. Immutable.

    Post-condition: S(S(o)) == o, and the bits below `base` never change.

    >>> hex(Swizzle(3, 3, 3)(0xDEADBEEF))
    '0xdeadbef7'
    """

    __slots__ = ("base", "bits", "shift")
    _parts = ("bits", "base", "shift")

    bits: int
    base: int
    shift: int

    def __init__(self, bits: int, base: int, shift: int):
        for name, value in (("bits", bits), ("base", base), ("shift", shift)):
            if not is_int(value):
                raise LayoutError(f"Swizzle({bits!r}, {base!r}, {shift!r}): {name} must be an integer, not {value!r}")
        if SWIZZLE.refuses(bits + base + abs(shift)):
            raise LayoutError(f"Swizzle({shown(bits)}, {shown(base)}, {shown(shift)}): {SWIZZLE.rule}")
        if bits < 0 or base < 0:
            raise LayoutError(f"Swizzle({bits}, {base}, {shift}): bits and base must not be negative")
        if abs(shift) < bits:
            raise LayoutError(f"Swizzle({bits}, {base}, {shift}): abs(shift) must be at least bits, or bits overlap")
        self._keep(bits=bits, base=base, shift=shift)

    def __call__(self, offset: Any) -> Any:
        """Return the swizzled offset: each of `bits` bits is XORed with the bit `shift` above it (a negative `shift`:
        below it).

        Numpy arrays are swizzled element by element; an expression gives an expression.
        """
        if isinstance(offset, Expr):
            from_bit, to_bit = self.base + max(0, self.shift), self.base + max(0, -self.shift)
            return offset ^ (offset // (1 << from_bit) % (1 << self.bits) * (1 << to_bit))
        ones = (1 << self.bits) - 1
        if self.shift >= 0:
            return offset ^ ((offset & (ones << (self.base + self.shift))) >> self.shift)
        return offset ^ ((offset & (ones << self.base)) << -self.shift)

    def upcast(self, count: int) -> Swizzle:
        """Return the swizzle of the same memory for offsets that count larger elements, each made of `count` elements.

        If this swizzle also exchanges elements inside a larger element, that exchange is dropped. Raise LayoutError if
        `count` is no power of two, or if this swizzle would move elements of one larger element into different larger
        elements.

        Post-condition, for the result R and this swizzle S: R(o // count) == S(o) // count.

        >>> Swizzle(3, 3, 3).upcast(8), Swizzle(3, 1, 3).upcast(4)
        (Swizzle(3, 0, 3), Swizzle(2, 0, 3))
        """
        base = self.base - self._log2(count)
        if base >= 0:
            return Swizzle(self.bits, base, self.shift)
        if self.shift < 0:
            if self.bits + base - self.shift > 0:
                raise LayoutError(f"upcast of {self} by {count}: it moves parts of an element to different places")
            return Swizzle(0, 0, 0)  # bits are only exchanged within an element
        return Swizzle(max(self.bits + base, 0), 0, self.shift)

    def downcast(self, count: int) -> Swizzle:
        """Return the swizzle of the same memory for offsets that count smaller elements, of which `count` make one
        element.

        Raise LayoutError if `count` is no power of two.

        Post-condition, for the result R and this swizzle S: R(count * o + j) == count * S(o) + j for j < count.

        >>> Swizzle(3, 3, 3).downcast(2)
        Swizzle(3, 4, 3)
        """
        return Swizzle(self.bits, self.base + self._log2(count), self.shift)

    def _log2(self, count: int) -> int:
        """Return the base-2 logarithm of `count`; raise LayoutError unless it is a power of two."""
        if not is_int(count) or count < 1 or count & (count - 1):
            raise LayoutError(
                f"{self} acts on bits: elements can become 2, 4, 8, ... times as large, not {written(count)}"
            )
        return count.bit_length() - 1

    def size(self) -> int:
        """Return the period of the swizzle S, in elements: S(o + period) == S(o) + period for all offsets o >= 0."""
        return 1 << (self.bits + self.base + abs(self.shift))

    cosize = size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Swizzle):
            return NotImplemented
        return (self.bits, self.base, self.shift) == (other.bits, other.base, other.shift)

    def __hash__(self) -> int:
        return hash((self.bits, self.base, self.shift))

    def __str__(self) -> str:
        return f"S<{self.bits},{self.base},{self.shift}>"

    def __repr__(self) -> str:
        return f"Swizzle({self.bits}, {self.base}, {self.shift})"


class ComposedLayout(TupleValue):
    """c -> outer(offset + layout(c)): a layout that starts at an offset and may end in a swizzle.

    `outer` is a Swizzle, a Layout, any function of an offset, or None for the identity. Without an outer
    function and with offset 0 it equals its inner layout. Its shape, rank and modes are those of the inner
    layout. Immutable.

    >>> print(ComposedLayout(Swizzle(2, 0, 3), 0, Layout((4, 8), (8, 1))))
    S<2,0,3> o 0 o (4,8):(8,1)
    """

    __slots__ = ("layout", "offset", "outer")
    _parts = ("outer", "offset", "layout")

    outer: Any
    offset: Any
    layout: Any

    def __init__(self, outer: Any, offset: Any, layout: Any):
        if isinstance(outer, Swizzle) and outer.bits == 0:
            outer = None
        if isinstance(offset, tuple) and isinstance(layout, Layout) and not layout.has_coordinates:
            raise LayoutError(f"{shape_text(offset)} + {layout}: the layout gives offsets, not coordinates to add to")
        self._keep(outer=outer, offset=offset, layout=layout)

    def __call__(self, *coordinate: Any) -> Any:
        """Return the value at a coordinate, given as to `Layout`; with a None in it, the layout of the modes at None,
        from where they start.

        Raise LayoutError if the outer function is a swizzle, but the inner values are coordinates.

        >>> print(ComposedLayout(Swizzle(2, 0, 3), 0, Layout((4, 8), (8, 1)))(1, None))
        S<2,0,3> o 8 o (8):(1)
        """
        crd = coordinate[0] if len(coordinate) == 1 else coordinate
        if has_none(crd):
            return self.sliced(crd)[0]
        value = _shift(self.offset, self.layout(crd))
        if isinstance(value, tuple) and isinstance(self.outer, Swizzle):
            raise LayoutError(f"{self}: a swizzle is of offsets; here are coordinates, {shape_text(value)}")
        return value if self.outer is None else self.outer(value)

    def sliced(self, crd: Any) -> tuple[ComposedLayout, int]:
        """Return (layout of the modes that `crd` pairs with None, 0).

        The offset that the fixed modes add is part of the returned layout, since it must be added before the swizzle.
        Raise LayoutError if `crd` has no None.
        """
        inner, offset = self.layout.sliced(crd)
        return ComposedLayout(self.outer, _shift(self.offset, offset), inner), 0

    @property
    def shape(self) -> Any:
        """Return the shape of the inner layout, which is that of the composed layout."""
        return self.layout.shape

    @property
    def stride(self) -> Any:
        """Return the stride of the inner layout, which counts offsets before the outer function is applied."""
        return self.layout.stride

    @property
    def has_coordinates(self) -> bool:
        """Return True if values of the inner layout are coordinates (its strides are `E(0)`, ...), not offsets."""
        return bool(self.layout.has_coordinates)

    def __len__(self) -> int:
        return len(self.layout)

    def __getitem__(self, mode: Any) -> ComposedLayout:
        return self.with_layout(self.layout[mode])

    def __iter__(self) -> Iterator[ComposedLayout]:
        for mode in range(len(self)):
            yield self[mode]

    def size(self) -> int:
        """Return the number of coordinates of the layout, the product of its extents."""
        return product(self.layout.shape)

    def cosize(self) -> Any:
        """Return how many elements an allocation for this layout must hold: its largest value plus one.

        If values are coordinates, the result is a tuple. With a swizzle or another outer function, or if the inner
        layout is itself composed, all values are evaluated; raise LayoutError if there are more than 2**20.
        """
        if self.outer is None and isinstance(self.layout, Layout):
            if self.has_coordinates:
                return _shift(self.offset, cosize(self.layout))
            modes = zip(leaves(self.shape), leaves(self.stride), strict=True)
            return int(1 + self.offset + sum((s - 1) * max(d, 0) for s, d in modes))
        if REGISTERS.refuses(size(self.layout)):
            raise LayoutError(
                f"cosize of {self}: it is found by evaluation, of at most 2**20 elements; take one period"
            )
        return 1 + int(np.max(self(np.arange(size(self.layout)))))

    def with_layout(self, layout: Any) -> ComposedLayout:
        """Return the composed layout with the same outer function and offset, and `layout` as its inner layout."""
        return ComposedLayout(self.outer, self.offset, layout)

    def with_tile(self, tile: ComposedLayout) -> ComposedLayout:
        """Return the inner layout of `tile`, a tile of `self.layout`, with the outer function of `self` and the sum of
        both offsets.

        The outer function of `tile` is not used.
        """
        return ComposedLayout(self.outer, _shift(self.offset, tile.offset), tile.layout)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Layout):
            return self.outer is None and self.offset == 0 and bool(self.layout == other)
        if not isinstance(other, ComposedLayout):
            return NotImplemented
        return bool(self.outer == other.outer and self.offset == other.offset and self.layout == other.layout)

    def __hash__(self) -> int:
        if self.outer is None and self.offset == 0:
            return hash(self.layout)
        return hash((self.outer, self.offset, self.layout))

    def __str__(self) -> str:
        offset = shape_text(self.offset)
        return f"{offset} + {self.layout}" if self.outer is None else f"{self.outer} o {offset} o {self.layout}"

    def __repr__(self) -> str:
        return f"ComposedLayout({self.outer!r}, {self.offset!r}, {self.layout!r})"

    def svg(self, **options: Any) -> str:
        """Return a picture of the layout as the text of an SVG document; `options` are those of
        `algebra.picture.layout_svg`.
        """
        from tilewright.algebra.picture import layout_svg

        return layout_svg(self, **options)

    def _repr_svg_(self) -> str | None:
        """Return the picture that notebooks show, as the text of an SVG document; None if the layout
        cannot be drawn.
        """
        return svg_or_none(self)


def _shift(offset: Any, value: Any) -> Any:
    """Return offset + value. If one of them is a coordinate (a tuple), they are added entry by entry; missing entries
    are 0.
    """
    if not isinstance(value, tuple) and not isinstance(offset, tuple):
        return offset + value
    offsets = offset if isinstance(offset, tuple) else (offset,)
    values = value if isinstance(value, tuple) else (value,)
    return tuple(_shift(o, v) for o, v in zip_longest(offsets, values, fillvalue=0))
