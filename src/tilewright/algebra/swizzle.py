"""Swizzles, and layouts followed by a swizzle or started at an offset.

A swizzle exchanges addresses by xor so that columns, not only rows, fall into different memory banks:

>>> from tilewright.algebra import Layout
>>> rows = ComposedLayout(Swizzle(2, 0, 3), 0, Layout((4, 8), (8, 1)))
>>> [rows(1, j) for j in range(8)]
[9, 8, 11, 10, 13, 12, 15, 14]
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np

from tilewright.algebra.compose import composition
from tilewright.algebra.inttuple import Value, is_int, leaves, product, transform_leaf
from tilewright.algebra.layout import Layout, shape_text, size, svg_or_none
from tilewright.errors import LayoutError
from tilewright.limits import REGISTERS, SWIZZLE, shown


class Swizzle(Value):
    """o -> o ^ ((o & yyy) >> shift), with `bits` ones in yyy, from bit `base` + max(0, shift) on.

    In words: `bits` bits of the offset, `shift` above the lowest ones that may change (those from `base` on),
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
        """The swizzled offset; numpy arrays are taken element by element."""
        ones = (1 << self.bits) - 1
        if self.shift >= 0:
            return offset ^ ((offset & (ones << (self.base + self.shift))) >> self.shift)
        return offset ^ ((offset & (ones << self.base)) << -self.shift)

    def compose(self, layout: Any) -> ComposedLayout:
        """The layout followed by this swizzle."""
        return ComposedLayout(self, 0, layout if isinstance(layout, Layout) else Layout(layout))

    def size(self) -> int:
        """The period: S(o + size) == S(o) + size for offsets o that are not negative."""
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


class ComposedLayout(Value):
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
        """The value at a coordinate, as `Layout` takes it."""
        value = self.layout(*coordinate)
        if isinstance(value, Layout):
            raise LayoutError(f"{self} cannot be sliced by {coordinate} without its offset: use local_tile")
        value = _shift(self.offset, value)
        if isinstance(value, tuple) and isinstance(self.outer, Swizzle):
            raise LayoutError(f"{self}: a swizzle is of offsets; here are coordinates, {shape_text(value)}")
        return value if self.outer is None else self.outer(value)

    @property
    def shape(self) -> Any:
        """The shape of the inner layout."""
        return self.layout.shape

    @property
    def stride(self) -> Any:
        """The stride of the inner layout: how far it moves before the outer function."""
        return self.layout.stride

    def __len__(self) -> int:
        return len(self.layout)

    def size(self) -> int:
        """The number of coordinates."""
        return product(self.layout.shape)

    def cosize(self) -> Any:
        """What an allocation must hold: the largest value, plus one.

        A swizzle permutes within aligned blocks of its period, so there it is found by evaluation.
        """
        if isinstance(self.layout, Layout) and self.layout.has_coordinates:
            return transform_leaf(lambda last: last + 1, self(size(self.layout) - 1))
        if self.outer is None:
            modes = zip(leaves(self.shape), leaves(self.stride), strict=True)
            return int(1 + self.offset + sum((s - 1) * max(d, 0) for s, d in modes))
        if REGISTERS.refuses(size(self.layout)):
            raise LayoutError(
                f"cosize of {self}: it is found by evaluation, of at most 2**20 elements; take one period"
            )
        return 1 + int(np.max(self(np.arange(size(self.layout)))))

    def with_layout(self, layout: Layout) -> ComposedLayout:
        """The same outer function and offset over another inner layout."""
        return ComposedLayout(self.outer, self.offset, layout)

    def with_tile(self, tile: ComposedLayout) -> ComposedLayout:
        """The same outer function over a tile of the inner layout."""
        return ComposedLayout(self.outer, _shift(self.offset, tile.offset), tile.layout)

    def compose(self, b: Any) -> ComposedLayout:
        """The composition with a tiler: it acts on the inner layout."""
        return self.with_layout(composition(self.layout, b))

    def after(self, a: Any) -> ComposedLayout:
        """The layout `a` applied to the values of this one."""
        return ComposedLayout(a, 0, self)

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
        """A picture of the layout as SVG text; `tilewright.algebra.picture.layout_svg` lists the options."""
        from tilewright.algebra.picture import layout_svg

        return layout_svg(self, **options)

    def _repr_svg_(self) -> str | None:
        return svg_or_none(self)


def _shift(offset: Any, value: Any) -> Any:
    """offset + value, also where values are coordinates."""
    if not isinstance(value, tuple) and not isinstance(offset, tuple):
        return offset + value
    offsets = offset if isinstance(offset, tuple) else (offset,)
    values = value if isinstance(value, tuple) else (value,)
    return tuple(_shift(o, v) for o, v in zip_longest(offsets, values, fillvalue=0))
