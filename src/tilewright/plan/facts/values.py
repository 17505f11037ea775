"""Nodes of the graph: the operation that makes a tile value, its operands, and its dimensions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from tilewright.ir.core import Op
from tilewright.ir.dtypes import DType
from tilewright.plan.facts.access import AccessFacts, Dims
from tilewright.plan.model import element_bytes

RENAMING = frozenset({"fill", "scalar", "broadcast", "permute", "self_index", "reshape"})
"""Operations that compute nothing: they make constants, or name elements anew."""
STATE = "state"
"""The value that a loop carries into an iteration."""
UNTIMED = RENAMING | {"read", "write", "mma", STATE}
"""Operations that take no lanes' time, or are counted otherwise."""


@dataclass(frozen=True)
class ValueFacts:
    """A tile value: the operation that makes it, its dimensions and those that it reduces; `args` are node numbers.

    `carried` are the loops whose state it uses: it is computed in every iteration of them, whatever its dimensions.
    """

    id: int
    op: str
    dims: Dims
    dtype: DType
    args: tuple[int, ...] = ()
    reduces: Dims = frozenset()
    access: AccessFacts | None = None
    carried: Dims = frozenset()
    source: Op | None = field(default=None, compare=False, repr=False)

    @property
    def bytes(self) -> int:
        """The number of bytes of one element of this value."""
        return element_bytes(self.dtype)

    @property
    def space(self) -> Dims:
        """The dimensions that this value is computed over: the dimensions of its tile and those that it reduces."""
        return self.dims | self.reduces

    @property
    def place(self) -> AccessFacts:
        """The memory access (AccessFacts) of this node, which must be a read or a write."""
        assert self.access is not None
        return self.access


def behind(nodes: Sequence[ValueFacts], start: int, stop_at: Collection[str] = ()) -> Iterator[int]:
    """Yield the numbers of the node `start` and of all nodes that it is computed from, each once.

    `nodes` are the values of a program's graph. A node whose operation is in `stop_at` is yielded, but its operands are
    not followed.
    """
    todo, seen = [start], set()
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        yield value
        if nodes[value].op not in stop_at:
            todo += nodes[value].args
