"""Tensor maps against loop programs: a box that a map and its coordinates move is the one that the program says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from every_plan import plans_from_the_best

from tilewright import kernels
from tilewright.algebra.expr_use import evaluate
from tilewright.compiler.native import kernel_for
from tilewright.interpret.block.memory import box, full
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.block import parse_block
from tilewright.ir.core import Block, Op, Program
from tilewright.lower.gpu.lower import lower_waves
from tilewright.targets.nvidia.boxes import boxes
from tilewright.targets.nvidia.im2col import Im2colMap
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
PROGRAMS = Path(__file__).parent / "programs"
ROUNDS = 24
Box = dict[int, int | None]
"""By the place in shared memory: the place in global memory, or None where there is nothing."""


def copies(block: Block, around: tuple = ()) -> Iterator[tuple[Op, tuple]]:
    """Copies by the machine itself, with the loops around them."""
    for op in block.ops:
        if op.name in ("copy_in", "copy_out"):
            yield op, around
        for inner in op.blocks:
            yield from copies(inner, around + tuple(op.attrs.get("ranges", ())))


def said(op: Op, values: dict[str, int]) -> Box:
    """The box that a loop program says."""
    tensor = op.operands[0 if op.name == "copy_in" else 1].type
    shape, axes = box(op.attrs["over"], op.name)
    known = {**values, **axes}
    far, inside = np.zeros(shape, int), np.ones(shape, bool)
    for (e, _), extent, step in zip(op.attrs["there"], tensor.shape, tensor.steps, strict=True):
        at = full(evaluated(e, known), shape)
        far, inside = far + at * int(step), inside & (at >= 0) & (at < int(extent))
    if "inside" in op.attrs:
        inside &= full(evaluated(op.attrs["inside"], known), shape) != 0
    near = full(evaluated(op.attrs["at"][0], known), shape)
    return {int(n): int(f) if i else None for n, f, i in zip(near.flat, far.flat, inside.flat, strict=True)}


def moved(op: Op, values: dict[str, int]) -> Box:
    """The box that the machine is told to move."""
    form, instructions = boxes(op, op.name == "copy_in")
    tensor_map = form.at({})
    found: Box = {}
    for each in instructions:
        at = tuple(int(evaluate(e, values)) for e in each.coordinates)
        taps = (tuple(int(evaluate(e, values)) for e in each.offsets),) if isinstance(tensor_map, Im2colMap) else ()
        far, inside = (x.reshape(-1, order="F") for x in tensor_map.offsets(at, *taps))
        place = int(evaluate(each.place, values))
        found |= {place + n: int(f) if i else None for n, (f, i) in enumerate(zip(far, inside, strict=True))}
    return found


def require_same(program: Program) -> int:
    """That all copies of a program move what it says, in some rounds; how many end before their tensors do."""
    rng, ending = np.random.default_rng(0), 0
    for op, around in copies(lower_waves(program, HOPPER).body):
        ending += "inside" in op.attrs
        used = {s for e in (*(e for e, _ in op.attrs["there"]), *op.attrs["at"]) for s in e.symbols}
        for _ in range(ROUNDS):
            values = {s.name: int(s.lo) for s in used}
            for loop in around:
                first, end = (int(evaluate(e, values)) for e in (loop.lo, loop.hi))
                values[loop.symbol.name] = int(rng.choice(np.arange(first, end, int(loop.step))))
            assert moved(op, values) == said(op, values)
    return ending


@pytest.mark.parametrize(("name", "ending"), [("tma_ranks", 0), ("tma_im2col", 0), ("tma_ends", 7)])
def test_programs(name: str, ending: int) -> None:
    text = (PROGRAMS / f"{name}.block").read_text()
    assert require_same(parse_block(text[text.index("block ") :])) == ending


GROUPED = [
    (40, (3, 3), {"padding": 1}),
    (72, (3, 3), {"padding": ((1, 0), (0, 1)), "stride": 2}),
    (24, (3, 3), {"padding": 2, "dilation": 2}),
    (80, (1, 1), {}),
    (40, (5,), {"padding": 2}),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("each", "taps", "options"), GROUPED)
def test_groups_that_end_within_a_slab(each: int, taps: tuple[int, ...], options: dict) -> None:
    kernel = kernels.conv(taps, "bf16", groups=3, **options)
    image = dict(zip("HW"[-len(taps) :], (7, 11)[-len(taps) :], strict=True))
    sizes = {"N": 2, **image, "CG": each, "F": 72}
    plan = next(
        plans_from_the_best(kernel, sizes, HOPPER, lambda plan: plan.pipeline is not None and "repack" not in str(plan))
    )
    found = kernel_for(kernel, sizes, machine=HOPPER, plan=plan)
    assert sum(require_same(program) for program in found.module.programs.values()) == 1
