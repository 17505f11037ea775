"""Groups of waves that start their products in turn, one after the other, round by round of a loop.

Waves that do one product together are a group. Where all groups of a role start products at the same time, they finish
at the same time, and then all compute; in turn, one computes while another multiplies. A group waits before the first
product of a round until the group before has started its last one: group 0 until the last group has done so in the
round before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.algebra.expr import Const, as_expr
from tilewright.ir.core import Block, Op, Value

if TYPE_CHECKING:
    from tilewright.passes.waves.lower import Waves


@dataclass(frozen=True)
class Turns:
    """The turns of a loop: a barrier for each group, how many rounds the wave has done, and the products of a round."""

    order: Value
    rounds: Value
    products: tuple[Op, ...]
    together: int
    """Waves of a group."""

    @classmethod
    def of(cls, low: Waves, loop: Op) -> Turns | None:
        """Those of a loop; None where its products are one group's, or not all right in it."""
        products = tuple(_products(low, loop.blocks[0]))
        if loop.attrs.get("overlap") != "turns" or not products:
            return None
        lanes = {low.target.multiply_atom(op.attrs["atom"]).c.lanes for op in products}
        together = max(lanes) // low.lanes
        if len(lanes) > 1 or low.group.waves % together or low.group.waves == together:
            return None
        order = low.barriers((loop, "turns"), low.group.waves // together, together, "turns")
        return cls(order, low.counter("rounds"), products, together)

    def before(self, low: Waves, product: Op) -> None:
        """A product is about to be started: the first of a round waits for the group's turn."""
        if product is self.products[0]:
            count = low.value_of(self.rounds, "round")
            group = low.group.wave // self.together
            low.emit("await", (self.order,), at=(group,), phase=count - (group < 1))

    def after(self, low: Waves, product: Op) -> None:
        """A product was started: after the last of a round it is the next group's turn."""
        if product is self.products[-1]:
            low.count_on(self.rounds, as_expr(1))
            following = (low.group.wave // self.together + 1) % (low.group.waves // self.together)
            low.emit("arrive", (self.order,), at=(following,))


def _products(low: Waves, block: Block) -> Iterator[Op]:
    """The products of a round, in order: those of a branch where it is known which is taken."""
    for op in block.ops:
        if op.name == "mma":
            yield op
        when = low.expr(op.attrs["when"]) if op.name == "if" else None
        if isinstance(when, Const):
            for inner in op.blocks[:1] if when.value else op.blocks[1:]:
                yield from _products(low, inner)
