"""Kinds of arguments that the algebra's public functions take, checked by `tilewright.signatures`.

A kind is a pair (test of a value, description for the error); `KINDS` maps annotations and "function.parameter" to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.algebra.access import Access
from tilewright.algebra.basis import Displacement, ScaledBasis
from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.inttuple import is_int
from tilewright.algebra.layout import Layout
from tilewright.algebra.swizzle import ComposedLayout, Swizzle
from tilewright.limits import INTEGER, MODES, NESTING
from tilewright.signatures import Kind

_LEAVES = (Layout, ComposedLayout, Swizzle, ScaledBasis, Displacement, Expr)


def _is_leaf(x: Any) -> bool:
    """Return True if `x` may be a leaf of an argument of any type that the algebra has.

    That is None, an integer, an array of integers, an expression, a layout, a swizzle, or a value that is a coordinate
    (basis stride, sum of basis strides).
    """
    if isinstance(x, np.ndarray):
        return bool(x.dtype.kind in "iu")
    return x is None or isinstance(x, _LEAVES) or _is_int(x)


def _is_int(x: Any) -> bool:
    """Return True if `x` is an integer, not a bool, of at most 512 bits."""
    return is_int(x) and abs(int(x)) <= INTEGER.most


def is_nested(x: Any, leaf: Callable[[Any], bool] = _is_leaf, within: tuple[type, ...] = (tuple, list)) -> bool:
    """Return True if leaf(v) is True for each value v in `x`, which may be nested in containers of the types `within`.

    If `x` is no such container, only `x` itself is tested. More than 256 values, or a nesting deeper than 64, give
    False.
    """
    values, count, depth = [x], 0, 0
    while values:
        count += len(values)
        if MODES.refuses(count) or NESTING.refuses(depth):
            return False
        depth += 1
        inner: list[Any] = [e for e in values if isinstance(e, within)]
        if not all(leaf(e) for e in values if not isinstance(e, within)):
            return False
        values = [e for part in inner for e in part]
    return True


def _is_expr(x: Any) -> bool:
    """Return True if `x` is an expression or an integer."""
    return isinstance(x, Expr) or _is_int(x)


def _is_layout(x: Any) -> bool:
    """Return True if `x` is a layout, also a composed one."""
    return isinstance(x, Layout | ComposedLayout)


def _is_collection_of(kind: type) -> Callable[[Any], bool]:
    """Return a predicate that is True for a list, tuple, set or dict whose elements (keys) all have the type `kind`."""
    return lambda x: isinstance(x, list | tuple | set | frozenset | dict) and all(isinstance(e, kind) for e in x)


def _is_shape(x: Any) -> bool:
    """Return True if `x` is an integer or an expression, or nested tuples of them."""
    return is_nested(x, _is_expr, (tuple,))


def _is_extent(x: Any) -> bool:
    """Return True if `x` may be an extent: a positive integer or any expression."""
    return _is_expr(x) and (isinstance(x, Expr) or x > 0)


def _is_step(x: Any) -> bool:
    """Return True if `x` may be a stride: an integer, an expression or a basis stride."""
    return _is_expr(x) or isinstance(x, ScaledBasis)


def _is_coordinate(x: Any) -> bool:
    """Return True if `x` may be a leaf of a coordinate: an integer, an expression, None or an array of integers."""
    return x is None or _is_expr(x) or (isinstance(x, np.ndarray) and x.dtype.kind in "iu")


def _is_layout_or_shape(x: Any) -> bool:
    """Return True if `x` is a layout (also composed), or a shape: an integer, an expression, or nested
    tuples of them.
    """
    return _is_layout(x) or _is_shape(x)


def _is_values(x: Any) -> bool:
    """Return True if `x` maps symbols or names to integers, expressions or arrays of integers."""
    return isinstance(x, Mapping) and all(
        isinstance(k, Symbol | str) and (_is_expr(v) or (isinstance(v, np.ndarray) and v.dtype.kind in "iu"))
        for k, v in x.items()
    )


_ANY: Kind = (is_nested, "an integer, a layout, or nested tuples of them")
_EXPR: Kind = (_is_expr, "an expression or an integer")
_LAYOUT: Kind = (_is_layout, "a layout")
_INTS: Kind = (_is_shape, "an integer or nested tuples of integers")
_SHAPED: Kind = (_is_layout_or_shape, "a layout or a shape")
_OPERAND: Kind = (lambda x: _is_layout_or_shape(x) or isinstance(x, Swizzle), "a layout, a shape or a swizzle")
_EXTENTS: Kind = (
    lambda x: is_nested(x, _is_extent, (tuple,)),
    "an integer of at least 1, or nested tuples of them",
)
_STEPS: Kind = (lambda x: is_nested(x, _is_step, (tuple,)), "an integer or nested tuples of integers")
_COORDINATE: Kind = (
    lambda x: is_nested(x, _is_coordinate, (tuple,)),
    "a coordinate: an integer or nested tuples of integers",
)
_SYMBOLS: Kind = (_is_collection_of(Symbol), "a list of symbols")

KINDS: dict[str, Kind] = {
    "Any": _ANY,
    "int": (_is_int, "an integer"),
    "int | None": (lambda x: x is None or _is_int(x), "an integer or None"),
    "str": (lambda x: isinstance(x, str), "a text"),
    "Expr": (lambda x: isinstance(x, Expr), "an expression"),
    "ExprLike": _EXPR,
    "_e.ExprLike": _EXPR,
    "ExprLike | None": (lambda x: x is None or _is_expr(x), "an expression, an integer or None"),
    "Layout": _LAYOUT,
    "local_partition.threads": (lambda x: isinstance(x, Layout), "a layout"),
    "Layout | int": (lambda x: isinstance(x, Layout) or _is_int(x), "a layout or an integer"),
    "Layout | ComposedLayout": _LAYOUT,
    "Mapping[Any, Any]": (_is_values, "a dictionary of symbols (or names) and integers"),
    "Mapping[Any, ExprLike]": (_is_values, "a dictionary of symbols (or names) and expressions"),
    "Mapping[str, Any] | Iterable[Symbol]": (
        lambda x: all(isinstance(k, str) for k in x) if isinstance(x, Mapping) else _SYMBOLS[0](x),
        "a list of symbols, or a dictionary of names",
    ),
    "Iterable[Symbol]": _SYMBOLS,
    "Iterable[Symbol] | None": _SYMBOLS,
    "Sequence[Expr]": (_is_collection_of(Expr), "a list of expressions"),
    "Access": (lambda x: isinstance(x, Access), "an access"),
    "Sequence[Access]": (_is_collection_of(Access), "a list of accesses"),
    "Sequence[Any]": (lambda x: isinstance(x, Sequence) and not isinstance(x, str), "a list"),
    "Callable[..., Any]": (callable, "a function"),
    "tuple[Any, ...] | None": (lambda x: x is None or isinstance(x, tuple), "a tuple"),
    "Literal['block', 'cyclic']": (lambda x: isinstance(x, str), "a text"),
    "as_expr.value": (lambda x: True, ""),
    "stride.x": _LAYOUT,
    "make_layout.parts": (lambda x: True, ""),
    **dict.fromkeys(
        (
            *("logical_divide.layout", "zipped_divide.layout", "tiled_divide.layout", "flat_divide.layout"),
            *("local_tile.layout", "local_partition.layout", "blocked_product.block", "raked_product.block"),
            *("logical_product.block", "zipped_product.block", "tiled_product.block", "flat_product.block"),
            *("complement.layout", "left_inverse.layout", "right_inverse.layout", "slice_and_offset.layout"),
            *("nullspace.layout", "make_layout_like.layout", "weakly_compatible.a", "weakly_compatible.b"),
            *("compatible.a", "compatible.b", "complement.max_idx", "size.x"),
            *("max_common_layout.a", "max_common_layout.b", "max_common_vector.a", "max_common_vector.b"),
            *("upcast.layout", "downcast.layout", "recast.layout", "tile_to_shape.block"),
        ),
        _SHAPED,
    ),
    **dict.fromkeys(("composition.a",), _OPERAND),
    **dict.fromkeys(("crd2idx.shape", "idx2crd.shape", "crd2crd.source", "crd2crd.target"), _EXTENTS),
    **dict.fromkeys(("crd2idx.stride", "idx2crd.stride"), _STEPS),
    **dict.fromkeys(("crd2idx.crd", "idx2crd.idx", "crd2crd.crd", "local_tile.coord"), _COORDINATE),
    **dict.fromkeys(
        (
            *("elem_scale.a", "elem_scale.b", "inner_product.a", "inner_product.b", "prefix_product.x"),
            *("suffix_product.x", "product.x", "shape_div.a", "shape_div.b"),
            *("ceil_div.a", "ceil_div.b", "product_each.x", "product_like.x", "product_like.profile"),
            *(
                "tile_to_shape.extents",
                "tile_to_shape.order",
                "make_ordered_layout.order",
                "tuple_max.x",
                "make_ordered_layout.extents",
                "make_identity_layout.shape",
            ),
        ),
        _INTS,
    ),
}
