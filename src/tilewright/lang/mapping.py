"""Index mappings: functions from the elements of a tile to elements of memory.

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
from tilewright.algebra.inttuple import is_int
from tilewright.errors import BadMapping
from tilewright.ir.location import author_location
from tilewright.limits import RANK


class IndexMapping:
    """An index mapping: coordinates of memory and of the tile as expressions of shared iterators.

    For a read, `inputs` are memory coordinates and `outputs` the tile's, which must be plain iterators; for a write it
    is the other way round. `dynamic_val(n)` stands for an element of the n-th of `mapping_dynamic_vals`, at the
    coordinates that `dynamic_val_mappings` gives.
    """

    def __init__(
        self,
        num_iterators: int,
        inputs: Mapping[Any, ExprLike],
        outputs: Mapping[Any, ExprLike],
        dynamic_val_mappings: Any = (),
    ):
        if not is_int(num_iterators) or not 0 <= num_iterators <= RANK.most:
            raise BadMapping(f"IndexMapping: num_iterators={num_iterators!r}: from 0 to {RANK.most}", author_location())
        rows = [dynamic_val_mappings] if isinstance(dynamic_val_mappings, Mapping) else dynamic_val_mappings
        sides = [inputs, outputs, *rows] if isinstance(rows, list | tuple) else [rows]
        for side in sides:
            if not isinstance(side, Mapping):
                raise BadMapping(f"IndexMapping: {side!r} is no dictionary of coordinates", author_location())
        self.num_iterators = num_iterators
        self.iterators = tuple(self.iterator(i) for i in range(num_iterators))
        self.inputs = {as_expr(d): as_expr(e) for d, e in inputs.items()}
        self.outputs = {as_expr(d): as_expr(e) for d, e in outputs.items()}
        self.dynamic = [{as_expr(d): as_expr(e) for d, e in row.items()} for row in rows]

    def __repr__(self) -> str:
        def side(coordinates: Mapping[Expr, Expr]) -> str:
            """Return `coordinates` as text, such as "{M: it0, N: it1}"."""
            return f"{{{', '.join(f'{d}: {e}' for d, e in coordinates.items())}}}"

        looked_up = f", dynamic_val_mappings=({', '.join(map(side, self.dynamic))},)" if self.dynamic else ""
        return (
            f"IndexMapping(num_iterators={self.num_iterators}, inputs={side(self.inputs)}, "
            f"outputs={side(self.outputs)}{looked_up})"
        )

    @property
    def iters(self) -> dict[Symbol, int]:
        """The number of each iterator, {iterator symbol: number}: {it0: 0, it1: 1, ...}."""
        return {s: i for i, s in enumerate(self.iterators)}

    @property
    def input_mapping(self) -> dict[Expr, Expr]:
        """The coordinates of the input, {dimension: expression of the iterators}. An alias of `inputs`, under Wave's
        name.
        """
        return self.inputs

    @property
    def output_mapping(self) -> dict[Expr, Expr]:
        """The coordinates of the output, {dimension: expression of the iterators}. An alias of `outputs`, under Wave's
        name.
        """
        return self.outputs

    @property
    def dynamic_val_mappings(self) -> tuple[dict[Expr, Expr], ...]:
        """The coordinates at which each dynamic value (an integer read from a tile at run time) is looked up: a tuple
        with one dictionary {dimension: expression of the iterators} for each dynamic value.
        """
        return tuple(self.dynamic)

    @staticmethod
    def iterator(number: int) -> Symbol:
        """Return the symbol of iterator number `number`: `it0`, `it1`, ... It is never negative."""
        return symbol(f"it{number}", 0)

    @staticmethod
    def dynamic_val(number: int) -> Symbol:
        """Return the symbol of dynamic value number `number` (`dyn0`, ...): an integer that is read from a tile at run
        time.
        """
        return symbol(f"dyn{number}")

    @property
    def input_shape(self) -> tuple[Expr, ...]:
        """The dimensions of the input: the keys of `inputs`, in order."""
        return tuple(self.inputs)

    @property
    def output_shape(self) -> tuple[Expr, ...]:
        """The dimensions of the output: the keys of `outputs`, in order."""
        return tuple(self.outputs)

    def tile_side(self, side: Mapping[Expr, Expr], what: str) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
        """Return (dimensions, iterators), two tuples in the same order, of the tile's coordinates `side`, {dimension:
        iterator}. `side` is `self.inputs` for a write and `self.outputs` for a read.

        Raise BadMapping if a coordinate is no plain iterator, or if two are the same. `what` names the operation in the
        message.
        """
        iterators: list[Expr] = []
        for dim, e in side.items():
            if e not in self.iterators:
                raise BadMapping(
                    f"{what}: the tile's coordinate {dim} must be an iterator of its own, but is {e}; only the "
                    "memory's side may be an expression",
                    author_location(),
                )
            if e in iterators:
                raise BadMapping(f"{what}: {e} stands for two dimensions of the tile", author_location())
            iterators.append(e)
        return tuple(side), tuple(iterators)

    def memory_side(self, side: Mapping[Expr, Expr], dims: Sequence[Expr], what: str) -> tuple[Expr, ...]:
        """Return the memory coordinates, a tuple in the order of the memory's dimensions `dims`.

        `side` is {dimension: expression}: `self.inputs` for a read and `self.outputs` for a write. Raise BadMapping if
        it lacks one of `dims`. An extra dimension in `side` is ignored if its coordinate is a plain iterator; otherwise
        raise BadMapping. `what` names the operation in the message.
        """
        known = ", ".join(str(d) for d in side)
        coordinates = []
        for dim in dims:
            if dim not in side:
                raise BadMapping(f"{what}: the mapping gives {known}, not the memory's {dim}", author_location())
            coordinates.append(side[dim])
        for dim, e in side.items():  # an extra coordinate that is a plain iterator is harmless
            if dim not in dims and e not in self.iterators:
                raise BadMapping(f"{what}: the memory has no dimension {dim}", author_location())
        return tuple(coordinates)
