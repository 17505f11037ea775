"""How many rounds of a loop tasks do where a selection hides whole tiles."""

from collections import Counter

import pytest

from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.plan.boxes import numbers_of
from tilewright.plan.facts.masking import count_trips, masks_of
from tilewright.targets.registry import machine


@pytest.mark.parametrize(
    ("first", "rows", "wanted"),
    [
        (0, 128, [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]),
        (0, 192, [(2, 2), (3, 2), (5, 2), (6, 2)]),
        (64, 128, [(2, 2), (3, 2), (4, 2), (5, 2), (6, 2), (6, 1)]),
        (64, 192, [(2, 2), (4, 2), (5, 2), (6, 1)]),
    ],
)
def test_rounds_are_those_of_tiles_that_some_row_sees(first, rows, wanted):
    program = kernels.attention(128, "bf16", causal=True, first_query=first).trace()
    (loop,) = (op for op in program.walk() if op.name == "iterate")
    dims = {str(d): d for v in (*program.args, *(v for op in program.walk() for v in op.results)) for d in v.type.dims}
    size = numbers_of({dims["M"]: 700, dims["N"]: 1000})
    trips = count_trips(program, masks_of(loop), dims["N"], 128, {dims["M"]: rows}, size)
    assert trips == Counter(wanted)


def planned(batch, heads, length, head=64, **options):
    sizes = {"B": batch, "H": heads, "M": length, "N": length, "D": head, "E": head}
    return kernel_for(kernels.attention(128, "bf16", causal=True), sizes, machine=machine("hopper"), **options)


def test_tasks_that_differ_are_as_many_together_as_keep_all_cores_busy():
    """A round of them, the longest first, lasts as long as the longest: else cores wait for the last round's."""
    assert [planned(*shape).plan.raster for shape in ((16, 32, 512), (8, 32, 1024), (1, 16, 16384))] == [128, 64, 4]
    text = planned(8, 32, 1024).text("block")
    assert "tasks group in 0..4, back in 0..8, t_B in 0..2, t_H in 0..32 schedule dynamic" in text


def test_rows_of_a_task_are_fewer_where_masks_would_waste_them():
    rows = [planned(*shape).plan.products[0].rows for shape in ((16, 32, 512), (8, 32, 1024), (4, 16, 4096))]
    assert rows == [128, 128, 192]


def test_a_group_that_does_not_divide_what_stands_before_the_rows_is_refused():
    made = planned(2, 6, 512)
    with pytest.raises(ArgumentError, match="raster 5"):
        planned(2, 6, 512, plan=made.text("plan").replace(f"raster {made.plan.raster}", "raster 5")).text("block")
