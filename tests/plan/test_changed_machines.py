"""Plans for GPUs follow from the description of the machine: change it, and others are best, for reasons it names."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import numpy as np
import pytest

import tilewright
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.plan.limiting import last_wave
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
PRODUCT, IMAGE = kernels.gemm("nt", "bf16", "bf16"), kernels.conv((3, 3), "bf16", padding=1)
SQUARE, FLAT = {"M": 4096, "N": 4096, "K": 4096}, {"M": 64, "N": 8192, "K": 8192}
WORKS = [
    (PRODUCT, SQUARE),
    (PRODUCT, FLAT),
    (PRODUCT, {"M": 1024, "N": 1024, "K": 8192}),
    (PRODUCT, {"M": 300, "N": 2000, "K": 1024}),
    (PRODUCT, {"M": 128, "N": 128, "K": 65536}),
    (IMAGE, {"N": 32, "H": 28, "W": 28, "C": 128, "F": 128}),
]


def with_limits(**limits):
    return replace(HOPPER, limits=replace(HOPPER.limits, **limits))


def with_shared(count):
    return replace(HOPPER, spaces={**HOPPER.spaces, "shared": replace(HOPPER.spaces["shared"], bytes=count)})


def without(start):
    return replace(HOPPER, multiply={n: atom for n, atom in HOPPER.multiply.items() if not n.startswith(start)})


def planned(work, row):
    return kernel_for(*work, machine=row)


def tile(made):
    (product,) = made.plan.products
    return product.rows, product.columns


def limits_of(made):
    """{resource: the microseconds that it alone takes}, as `explain` says it, the longest first."""
    (line,) = re.findall("^limited by (.*)$", made.explain(), re.MULTILINE)
    return {name.strip(): float(us) for name, us in re.findall(r"([A-Za-z0-9 ]+?),? ([0-9.]+)", line)}


def ring_bytes(made):
    """Shared memory that the stages of a plan's ring take."""
    rows, columns = tile(made)
    (depth,) = (a.split("loop").size for a in made.plan.axes if a.name in ("K", "K_0", "K_part"))
    return made.plan.pipeline.stages * (rows + columns) * depth * 2


def test_without_an_atom_the_next_best_multiplies():
    row = without("wgmma")
    assert planned((PRODUCT, SQUARE), HOPPER).plan.products[0].atom.startswith("wgmma.")
    made = planned((PRODUCT, SQUARE), row)
    assert made.plan.products[0].atom.startswith("mma.m16n8k16.bf16")
    assert made.plan.pipeline is None
    for side in "MN":
        assert f"refused  mma, rows {side}: no atom takes operands so" in made.explain()
    assert planned((PRODUCT, SQUARE), without(("wgmma", "mma"))).plan.products[0].atom.startswith("fma.")


def test_what_was_planned_without_an_atom_is_still_right():
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((70, 48), (40, 48)))
    kernel = kernels.gemm("nt", "bf16", "f32")
    inputs = [x.astype(tilewright.ir.dtypes.bf16.numpy) for x in (a, b)]
    made = kernel_for(kernel, {"M": 70, "N": 40, "K": 48}, machine=without("wgmma"))
    assert made.plan.products[0].atom.startswith("mma.")
    found = np.full((70, 40), np.nan, np.float32)
    made.bind({"a": inputs[0], "b": inputs[1], "c": found})()
    assert np.array_equal(found, a @ b.T)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("work", WORKS)
def test_half_the_shared_memory_gives_smaller_rings(work):
    half = HOPPER.spaces["shared"].bytes // 2
    before, after = planned(work, HOPPER), planned(work, with_shared(half))
    assert after.choice.cycles >= before.choice.cycles
    if work[0] is IMAGE:
        return
    assert ring_bytes(after) <= half
    if ring_bytes(before) > half:
        assert prod(tile(after)) < prod(tile(before)) or after.plan.pipeline.stages < before.plan.pipeline.stages


def test_faster_memory_shortens_what_memory_limits():
    fast = with_limits(l2_rate=2 * HOPPER.limits.l2_rate, far_rate=2 * HOPPER.limits.far_rate)
    flat, square = (
        planned((PRODUCT, s), HOPPER).choice.cycles / planned((PRODUCT, s), fast).choice.cycles for s in (FLAT, SQUARE)
    )
    assert flat > 1.7
    assert square < 1.3


def test_slower_memory_asks_for_tiles_that_read_less():
    """What a tile reads from L2 for each product falls with its sides; where that is slow, larger ones pay.

    Not where HBM limits the time of the slow machine: tiles of any size wait for the same bytes then.
    """

    def read(made):
        return sum(1 / side for side in tile(made))

    changed = compared = 0
    for work in WORKS:
        slow, usual, fast = (
            planned(work, with_limits(l2_rate=HOPPER.limits.l2_rate * by, far_rate=HOPPER.limits.far_rate * by))
            for by in (0.25, 1, 2)
        )
        changed += slow.plan != usual.plan or fast.plan != usual.plan
        limit, *_ = limits_of(slow)
        if limit == "L2":
            compared += 1
            assert read(slow) <= read(usual) * 1.01
        else:
            assert limit == "HBM"
    assert changed
    assert compared == 4


def test_fewer_cores_take_a_sum_less_apart():
    work = (PRODUCT, {"M": 128, "N": 128, "K": 65536})
    plans = [planned(work, with_limits(cores=n)).plan for n in (132, 66, 16)]
    parts = [1 if plan.parts is None else plan.parts[1] for plan in plans]
    assert parts == sorted(parts, reverse=True)
    assert parts[0] > parts[-1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("sizes", "limits", "what"),
    [
        (SQUARE, {}, "products"),
        (FLAT, {}, "HBM"),
        (SQUARE, {"l2_rate": HOPPER.limits.l2_rate / 4}, "L2"),
        (SQUARE, {"shared_rate": HOPPER.limits.shared_rate / 4}, "shared memory"),
        (SQUARE, {"far_rate": HOPPER.limits.far_rate / 20}, "HBM"),
    ],
)
def test_what_limits_a_plan_is_named(sizes, limits, what):
    made = planned((PRODUCT, sizes), with_limits(**limits))
    assert f"limited by {what}, " in made.explain()
    first, *rest = limits_of(made).values()
    assert first >= max(rest)
    assert first <= made.choice.cycles / made.machine.limits.clock_ghz / 1000 + 0.1


def test_rows_that_begin_off_a_line_are_read_by_fewer_tasks():
    """Rows of 2016 bytes lie in two lines each, at multiples of a sector: they are not copied first."""

    def brought(k, row):
        rows, columns = tile(planned((PRODUCT, {"M": 1000, "N": 1000, "K": k}), row))
        return -(-1000 // rows) * -(-1000 // columns) * (rows + columns)

    even = replace(HOPPER, limits=replace(HOPPER.limits, crossing=1.0, misaligned_row=1.0, misaligned_row_tail=1.0))
    assert brought(1008, HOPPER) < brought(1024, HOPPER)
    assert brought(1008, even) == brought(1024, even) == brought(1024, HOPPER)


def test_boxes_of_positions_are_counted_as_tasks():
    """Each position of the last two digits was a task: 50176 instead of 784."""
    sizes = {"N": 32, "H": 56, "W": 56, "C": 64, "F": 64}
    made = kernel_for(kernels.conv((3, 3), "bf16", padding=1), sizes, machine=HOPPER)
    assert made.plan.pipeline.halo_stages
    assert "task M_2 2, task M_1 8, task M_0 8" in made.text("plan")
    assert last_wave(HOPPER, made.plan)[0] == 16 * 7 * 7


def test_the_last_wave_of_the_grid_is_told():
    made = planned((PRODUCT, SQUARE), HOPPER)
    tasks, rounds, full = last_wave(HOPPER, made.plan)
    assert tasks == prod(-(-4096 // side) for side in tile(made))
    assert rounds == -(-tasks // 132)
    assert full == (tasks - (rounds - 1) * 132) / 132
    assert (
        f"{tasks} tasks on 132 multiprocessors: the last of {rounds} waves of the grid is {full:.0%}" in made.explain()
    )


def test_no_plan_knows_a_shape():
    """One more row or column changes a plan only as the machine asks: its tile stays, or another one is no slower."""
    for m in (4095, 4096, 4097):
        made = planned((PRODUCT, {"M": m, "N": 4096, "K": 4096}), HOPPER)
        assert prod(tile(made)) >= 128 * 192
