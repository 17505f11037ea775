"""Index mappings: which element of memory each element of a tile is.

>>> from tilewright.lang import sym
>>> i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
>>> turned = IndexMapping(num_iterators=2, inputs={sym.N: j, sym.M: i}, outputs={sym.M: i, sym.N: j})
>>> turned
IndexMapping(num_iterators=2, inputs={N: it1, M: it0}, outputs={M: it0, N: it1})
>>> turned.output_shape
(<M>, <N>)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.algebra.expr import Expr, ExprLike, Symbol, as_expr, symbol
from tilewright.errors import BadMapping
from tilewright.ir.location import author_location


class IndexMapping:
    """Iterators, and the coordinates of memory and of the tile as expressions of them.

    For a read, `inputs` are memory coordinates and `outputs` the tile's, which must be the iterators themselves;
    for a write the other way round. `dynamic_val(n)` stands for the n-th of `mapping_dynamic_vals`, looked up at
    the coordinates that `dynamic_val_mappings` gives.
    """

    def __init__(
        self,
        num_iterators: int,
        inputs: Mapping[Any, ExprLike],
        outputs: Mapping[Any, ExprLike],
        dynamic_val_mappings: Any = (),
    ):
        self.num_iterators = num_iterators
        self.iterators = tuple(self.iterator(i) for i in range(num_iterators))
        self.inputs = {as_expr(d): as_expr(e) for d, e in inputs.items()}
        self.outputs = {as_expr(d): as_expr(e) for d, e in outputs.items()}
        rows = [dynamic_val_mappings] if isinstance(dynamic_val_mappings, Mapping) else list(dynamic_val_mappings)
        self.dynamic = [{as_expr(d): as_expr(e) for d, e in row.items()} for row in rows]

    def __repr__(self) -> str:
        def side(given: Mapping[Expr, Expr]) -> str:
            return f"{{{', '.join(f'{d}: {e}' for d, e in given.items())}}}"

        looked_up = f", dynamic_val_mappings=({', '.join(map(side, self.dynamic))},)" if self.dynamic else ""
        return (
            f"IndexMapping(num_iterators={self.num_iterators}, inputs={side(self.inputs)}, "
            f"outputs={side(self.outputs)}{looked_up})"
        )

    @property
    def iters(self) -> dict[Symbol, int]:
        """The iterators and their places."""
        return {s: i for i, s in enumerate(self.iterators)}

    @property
    def input_mapping(self) -> dict[Expr, Expr]:
        """`inputs`, by Wave's other name."""
        return self.inputs

    @property
    def output_mapping(self) -> dict[Expr, Expr]:
        """`outputs`, by Wave's other name."""
        return self.outputs

    @property
    def dynamic_val_mappings(self) -> tuple[dict[Expr, Expr], ...]:
        """Where each dynamic value is looked up."""
        return tuple(self.dynamic)

    @staticmethod
    def iterator(number: int) -> Symbol:
        """The symbol of an iterator."""
        return symbol(f"it{number}", 0)

    @staticmethod
    def dynamic_val(number: int) -> Symbol:
        """The symbol of a dynamic value: an element of a tile, of either sign."""
        return symbol(f"dyn{number}")

    @property
    def input_shape(self) -> tuple[Expr, ...]:
        """The dimensions of `inputs`, in order."""
        return tuple(self.inputs)

    @property
    def output_shape(self) -> tuple[Expr, ...]:
        """The dimensions of `outputs`, in order."""
        return tuple(self.outputs)

    def tile_side(self, side: Mapping[Expr, Expr], what: str) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
        """(dimensions, iterators) of the side that must be the iterators themselves."""
        seen: list[Expr] = []
        for dim, e in side.items():
            if e not in self.iterators:
                raise BadMapping(
                    f"{what}: the tile's coordinate {dim} must be an iterator of its own, but is {e}; only the "
                    "memory's side may be an expression",
                    author_location(),
                )
            if e in seen:
                raise BadMapping(f"{what}: {e} stands for two dimensions of the tile", author_location())
            seen.append(e)
        return tuple(side), tuple(seen)

    def memory_side(self, side: Mapping[Expr, Expr], dims: Sequence[Expr], what: str) -> tuple[Expr, ...]:
        """The coordinates of memory, in the order of its dimensions."""
        known = ", ".join(str(d) for d in side)
        found = []
        for dim in dims:
            if dim not in side:
                raise BadMapping(f"{what}: the mapping gives {known}, not the memory's {dim}", author_location())
            found.append(side[dim])
        for dim, e in side.items():  # a bare iterator too many does no harm: nothing depends on it
            if dim not in dims and e not in self.iterators:
                raise BadMapping(f"{what}: the memory has no dimension {dim}", author_location())
        return tuple(found)
