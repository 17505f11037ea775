"""Groups of waves that start their products in turn, one after the other, round by round of a loop.

Waves that do one product together are a group. If all groups of a role start MMAs at the same time, they finish at the
same time, and then all compute; in turn, one computes while another multiplies. A group waits before the first product
of a round until the group before has started its last one: group 0 until the last group has done so in the round
before.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.algebra.expr import Const, as_expr
from tilewright.ir.core import Block, Op
from tilewright.passes.waves.groups import Turns
from tilewright.passes.waves.waves import Waves


def turns_of(low: Waves, loop: Op) -> Turns | None:
    """Return the Turns of a loop; None if it does not ask for turns, if one group does all MMAs, or if MMAs differ."""
    products = tuple(_products(low, loop.blocks[0]))
    if loop.attrs.get("overlap") != "turns" or not products:
        return None
    lanes = {low.target.multiply_atom(op.attrs["atom"]).c.lanes for op in products}
    together = max(lanes) // low.lanes
    if len(lanes) > 1 or low.group.waves % together or low.group.waves == together:
        return None
    order = low.barriers((loop, "turns"), low.group.waves // together, together, "turns")
    return Turns(order, low.counter("rounds"), products, together)


def before_product(low: Waves, product: Op) -> None:
    """Emit the wait for the group's turn before the first MMA of an iteration, if there are turns."""
    turns = low.turns
    if turns is not None and product is turns.products[0]:
        count = low.value_of(turns.rounds, "round")
        group = low.group.wave // turns.together
        low.emit("await", (turns.order,), at=(group,), phase=count - (group < 1))


def after_product(low: Waves, product: Op) -> None:
    """Emit the hand-over to the next group after the last MMA of an iteration, if there are turns."""
    turns = low.turns
    if turns is not None and product is turns.products[-1]:
        low.count_on(turns.rounds, as_expr(1))
        following = (low.group.wave // turns.together + 1) % (low.group.waves // turns.together)
        low.emit("arrive", (turns.order,), at=(following,))


def _products(low: Waves, block: Block) -> Iterator[Op]:
    """Yield the MMAs of an iteration, in order; those of a branch only if it is known to be taken."""
    for op in block.ops:
        if op.name == "mma":
            yield op
        when = low.expr(op.attrs["when"]) if op.name == "if" else None
        if isinstance(when, Const):
            for inner in op.blocks[:1] if when.value else op.blocks[1:]:
                yield from _products(low, inner)
