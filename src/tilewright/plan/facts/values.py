"""Nodes of a program's dataflow graph: the operation that computes a tile value, its operands, its dimensions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from tilewright.ir.core import Op
from tilewright.ir.dtypes import DType
from tilewright.plan.facts.access import AccessFacts, Dims
from tilewright.plan.model import element_bytes

RENAMING = frozenset({"fill", "scalar", "broadcast", "permute", "self_index", "reshape"})
"""Operations without arithmetic: they make constants, or rearrange elements."""
STATE = "state"
"""The operation of a node that stands for a value that a loop carries into an iteration."""
UNTIMED = RENAMING | {"read", "write", "mma", STATE}
"""Operations that take no time of lanes (ALUs), or whose time is counted elsewhere."""


@dataclass(frozen=True)
class ValueFacts:
    """A node of a program's graph: a tile value, the operation `op` that computes it, and its dimensions.

    `id` is the node's number, `args` the numbers of its operands, `reduces` the dimensions that it sums or reduces, and
    `access` the memory access of a read or write. `carried` are the dimensions of the loops whose carried state it
    uses: it is computed in each of their iterations, even if it does not have these dimensions.
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
        """The AccessFacts (coordinates and strides in memory) of this node.

        An assertion fails unless the node is a read or a write.
        """
        assert self.access is not None
        return self.access


def behind(nodes: Sequence[ValueFacts], start: int, stop_at: Collection[str] = ()) -> Iterator[int]:
    """Yield the number of the node `start`, and the numbers of all nodes that it is computed from, each once.

    `nodes` are the values of a program's graph. The order is depth first, the last operand first. The operands of a
    node whose operation is named in `stop_at` are not followed; the node itself is yielded.
    """
    pending, seen = [start], set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        yield value
        if nodes[value].op not in stop_at:
            pending += nodes[value].args
