"""Groups of waves that start their MMAs one after the other, in every iteration of a loop.

Waves that do one MMA together are a group. If all groups of a role started their MMAs at the same time, they would
finish at the same time, and then all compute. In order, one group computes while another one multiplies. A group waits
before the first MMA of an iteration until the group before it has started its last one; group 0 waits for the last
group's iteration before.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.algebra.expr import Const, as_expr
from tilewright.ir.core import Block, Op
from tilewright.lower.gpu.wave_groups import OrderedGroups
from tilewright.lower.gpu.wave_lowering import WaveLowering


def ordered_groups_of(low: WaveLowering, loop: Op) -> OrderedGroups | None:
    """Return the OrderedGroups of `loop`, for a loop in which groups of waves start their MMAs one after the other in
    each iteration; allocate its barriers and counter. A group is the waves that do one MMA together.

    Return None if the loop has no MMAs or lacks the attribute `overlap turns`, if all waves are one group or are no
    whole number of groups, or if its MMAs take different numbers of waves.
    """
    products = tuple(_mmas_of(low, loop.blocks[0]))
    if loop.attrs.get("overlap") != "turns" or not products:
        return None
    lanes = {low.target.multiply_atom(op.attrs["atom"]).c.lanes for op in products}
    waves_per_mma = max(lanes) // low.lanes
    if len(lanes) > 1 or low.group.waves % waves_per_mma or low.group.waves == waves_per_mma:
        return None
    barriers = low.barriers((loop, "turns"), low.group.waves // waves_per_mma, waves_per_mma, "turns")
    return OrderedGroups(barriers, low.new_counter("rounds"), products, waves_per_mma)


def before_mma(low: WaveLowering, product: Op) -> None:
    """Emit the wait until the group of waves before this one has started its MMAs, if `product` is the first MMA of an
    iteration in a loop where groups start in order. Otherwise emit nothing.
    """
    turns = low.turns
    if turns is not None and product is turns.products[0]:
        count = low.read_counter(turns.iterations, "round")
        group = low.group.wave // turns.waves_per_group
        low.emit("await", (turns.order,), at=(group,), phase=count - (group < 1))


def after_mma(low: WaveLowering, product: Op) -> None:
    """Emit the arrival that lets the next group of waves start its MMAs, and the increment of the iteration counter, if
    `product` is the last MMA of an iteration in a loop where groups start in order. Otherwise emit nothing.
    """
    turns = low.turns
    if turns is not None and product is turns.products[-1]:
        low.add_to_counter(turns.iterations, as_expr(1))
        following = (low.group.wave // turns.waves_per_group + 1) % (low.group.waves // turns.waves_per_group)
        low.emit("arrive", (turns.order,), at=(following,))


def _mmas_of(low: WaveLowering, block: Block) -> Iterator[Op]:
    """Yield the MMAs of the loop body `block`, in order. An MMA inside an `if` is yielded only if the condition is
    constant and its branch is taken. MMAs in inner loops are not yielded.
    """
    for op in block.ops:
        if op.name == "mma":
            yield op
        when = low.expr(op.attrs["when"]) if op.name == "if" else None
        if isinstance(when, Const):
            for inner in op.blocks[:1] if when.value else op.blocks[1:]:
                yield from _mmas_of(low, inner)
