"""Index algebra: layouts, integer expressions, coordinate transforms and accesses.

Eager, in plain Python, and usable without the compiler. The subjects of the files:

| file              | subject                                                                |
|-------------------|------------------------------------------------------------------------|
| inttuple, tuples, basis | nested tuples of ints, their arithmetic; strides that count in coordinates |
| layout, swizzle   | the types `Layout`, `Swizzle` and `ComposedLayout`, and their measures |
| modes             | rearranging modes; slices                                              |
| compose, inverse, quasi_inverse | coalesce, composition; complement and inverses           |
| divide, tiles     | divides and products; tiles and partitions                             |
| recasting         | the same memory as other elements                                      |
| layout_text       | layouts from text                                                      |
| expr              | integer expressions: nodes, symbols, operators                         |
| expr_rules, expr_divide, expr_conditions | simplification of expressions                   |
| expr_prove, expr_sample | proofs that an expression is not negative; quick refutations     |
| expr_use, expr_operations, expr_text | evaluate, substitute, linear form; print and parse  |
| transforms        | pad, embed, merge, ...: views of a tensor, step by step                |
| access            | accesses: coordinates, bounds and domain                               |
| access_normal, access_cut | normal form of accesses; cuts, phases, joins                   |
| picture           | layouts as SVG and in the terminal; bank conflicts                     |
| expr_pickle       | expressions as plain data, for other processes                         |
| kinds             | argument checks of public functions                                    |
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

from tilewright.lazy import offered

if TYPE_CHECKING:
    from tilewright.algebra.access import Access
    from tilewright.algebra.access_cut import join, why_not_join
    from tilewright.algebra.basis import E, ScaledBasis
    from tilewright.algebra.compose import (
        coalesce,
        composition,
        filter,
        filter_zeros,
    )
    from tilewright.algebra.divide import (
        blocked_product,
        flat_divide,
        flat_product,
        logical_divide,
        logical_product,
        make_layout_like,
        make_ordered_layout,
        raked_product,
        tile_to_shape,
        tiled_divide,
        tiled_product,
        zipped_divide,
        zipped_product,
    )
    from tilewright.algebra.expr import Expr, Symbol, as_expr, extent, index, symbol
    from tilewright.algebra.expr_conditions import all_of, any_of, eq, ne, negate
    from tilewright.algebra.expr_prove import is_nonneg
    from tilewright.algebra.expr_rules import maximum, minimum
    from tilewright.algebra.expr_text import parse_expr
    from tilewright.algebra.expr_use import ceildiv, evaluate, has_division, linear_form, substitute
    from tilewright.algebra.inttuple import (
        Integer,
        compatible,
        congruent,
        crd2crd,
        crd2idx,
        elem_scale,
        has_none,
        idx2crd,
        inner_product,
        is_int,
        is_tuple,
        prefix_product,
        product,
        shape_div,
        signum,
        slice_,
        suffix_product,
        transform_leaf,
        tuple_max,
        unflatten,
        weakly_compatible,
        weakly_congruent,
    )
    from tilewright.algebra.inverse import (
        complement,
        left_inverse,
        max_common_layout,
        max_common_vector,
        nullspace,
        right_inverse,
    )
    from tilewright.algebra.layout import (
        Layout,
        cosize,
        depth,
        is_layout,
        make_identity_layout,
        make_layout,
        rank,
        shape,
        size,
        stride,
    )
    from tilewright.algebra.layout_text import parse_layout
    from tilewright.algebra.modes import (
        append,
        dice,
        flatten,
        group,
        prepend,
        replace,
        reverse,
        select,
        slice_and_offset,
        take,
    )
    from tilewright.algebra.recasting import downcast, recast, upcast
    from tilewright.algebra.swizzle import ComposedLayout, Swizzle
    from tilewright.algebra.tiles import local_partition, local_tile
    from tilewright.algebra.transforms import Chain, View
    from tilewright.algebra.tuples import (
        ceil_div,
        elem_less,
        product_each,
        product_like,
        repeat,
        repeat_like,
        round_up,
        tuple_add,
        tuple_cat,
        tuple_div,
        tuple_mod,
        tuple_mul,
        tuple_sub,
        unwrap,
        wrap,
    )

__all__ = [
    "Access",
    "Chain",
    "ComposedLayout",
    "E",
    "Expr",
    "Integer",
    "Layout",
    "ScaledBasis",
    "Swizzle",
    "Symbol",
    "View",
    "all_of",
    "any_of",
    "append",
    "as_expr",
    "blocked_product",
    "ceil_div",
    "ceildiv",
    "coalesce",
    "compatible",
    "complement",
    "composition",
    "congruent",
    "cosize",
    "crd2crd",
    "crd2idx",
    "depth",
    "dice",
    "downcast",
    "elem_less",
    "elem_scale",
    "eq",
    "evaluate",
    "extent",
    "filter",
    "filter_zeros",
    "flat_divide",
    "flat_product",
    "flatten",
    "group",
    "has_division",
    "has_none",
    "idx2crd",
    "index",
    "inner_product",
    "is_int",
    "is_layout",
    "is_nonneg",
    "is_tuple",
    "join",
    "left_inverse",
    "linear_form",
    "local_partition",
    "local_tile",
    "logical_divide",
    "logical_product",
    "make_identity_layout",
    "make_layout",
    "make_layout_like",
    "make_ordered_layout",
    "max_common_layout",
    "max_common_vector",
    "maximum",
    "minimum",
    "ne",
    "negate",
    "nullspace",
    "parse_expr",
    "parse_layout",
    "prefix_product",
    "prepend",
    "product",
    "product_each",
    "product_like",
    "raked_product",
    "rank",
    "recast",
    "repeat",
    "repeat_like",
    "replace",
    "reverse",
    "right_inverse",
    "round_up",
    "select",
    "shape",
    "shape_div",
    "signum",
    "size",
    "slice_",
    "slice_and_offset",
    "stride",
    "substitute",
    "suffix_product",
    "symbol",
    "take",
    "tile_to_shape",
    "tiled_divide",
    "tiled_product",
    "transform_leaf",
    "tuple_add",
    "tuple_cat",
    "tuple_div",
    "tuple_max",
    "tuple_mod",
    "tuple_mul",
    "tuple_sub",
    "unflatten",
    "unwrap",
    "upcast",
    "weakly_compatible",
    "weakly_congruent",
    "why_not_join",
    "wrap",
    "zipped_divide",
    "zipped_product",
]

_NAMES_BY_MODULE = {
    "access": "Access",
    "access_cut": "join why_not_join",
    "basis": "E ScaledBasis",
    "compose": "coalesce composition filter filter_zeros",
    "divide": (
        "blocked_product flat_divide flat_product logical_divide logical_product make_layout_like "
        "make_ordered_layout raked_product tile_to_shape tiled_divide tiled_product zipped_divide "
        "zipped_product"
    ),
    "expr": "Expr Symbol as_expr extent index symbol",
    "expr_conditions": "all_of any_of eq ne negate",
    "expr_prove": "is_nonneg",
    "expr_rules": "maximum minimum",
    "expr_text": "parse_expr",
    "expr_use": "ceildiv evaluate has_division linear_form substitute",
    "inttuple": (
        "Integer compatible congruent crd2crd crd2idx elem_scale has_none idx2crd inner_product is_int "
        "is_tuple prefix_product product shape_div signum slice_ suffix_product transform_leaf tuple_max "
        "unflatten weakly_compatible weakly_congruent"
    ),
    "inverse": "complement left_inverse max_common_layout max_common_vector nullspace right_inverse",
    "layout": "Layout cosize depth is_layout make_identity_layout make_layout rank shape size stride",
    "layout_text": "parse_layout",
    "modes": "append dice flatten group prepend replace reverse select slice_and_offset take",
    "recasting": "downcast recast upcast",
    "swizzle": "ComposedLayout Swizzle",
    "tiles": "local_partition local_tile",
    "transforms": "Chain View",
    "tuples": (
        "ceil_div elem_less product_each product_like repeat repeat_like round_up tuple_add tuple_cat "
        "tuple_div tuple_mod tuple_mul tuple_sub unwrap wrap"
    ),
}
_EXPRESSIONS = (
    *("all_of", "any_of", "as_expr", "ceildiv", "eq", "evaluate", "extent", "has_division", "index", "is_nonneg"),
    *("linear_form", "maximum", "minimum", "ne", "negate", "parse_expr", "substitute", "symbol"),
)


def _checked(name: str, value: Any) -> Any:
    """Return the object that the package exports as `name`: `value`, or a wrapper of it that checks arguments if
    `value` is a function.

    The wrapper raises ExpressionError in functions on expressions and LayoutError in others, for arguments of wrong
    types.
    """
    if not isinstance(value, FunctionType):
        return value
    from tilewright.algebra.kinds import KINDS
    from tilewright.errors import ExpressionError, LayoutError
    from tilewright.signatures import checked

    return checked(value, KINDS, ExpressionError if name in _EXPRESSIONS else LayoutError)


__getattr__, __dir__ = offered(__name__, _NAMES_BY_MODULE, _checked)
