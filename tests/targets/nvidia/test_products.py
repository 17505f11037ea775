"""Factors and sums as rows of 8x8 matrices: which rows the lanes name for ldmatrix and stmatrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import in_registers

from tilewright.lower.gpu.lower import lower_waves
from tilewright.targets.gpu.emit import Emitter
from tilewright.targets.nvidia import eights, matrices
from tilewright.targets.nvidia.dialect import Ptx
from tilewright.targets.registry import machine


def moves(name: str, atom: str) -> Any:
    """(emitter, operation) of every load and store that goes by 8x8 matrices."""
    here = machine(name)
    lowered = lower_waves(in_registers(name, here.multiply_atom(atom)).program, here)
    e = Emitter(lowered, here, Ptx())
    for op in lowered.walk():
        if op.name in ("load", "store") and eights.form(e, op) is not None:
            yield e, op


@pytest.mark.parametrize("name", ["ampere", "hopper"])
def test_lanes_give_the_rows_that_the_instruction_reads(name: str) -> None:
    atom = "mma.m16n8k16.f16"
    seen = set()
    for e, op in moves(name, atom):
        turned, _ = eights.form(e, op)
        count = e.values(op.operands[0])
        many = next(n for n in (4, 2, 1) if count % (2 * n) == 0)
        (lane, value), swizzle = op.attrs["over"], op.operands[1].type.swizzle
        others = {s.name: 0 for s in op.attrs["at"][0].symbols - {lane, value}}
        lanes, values = np.indices((32, count))
        names = {**others, lane.name: lanes, value.name: values}
        wanted = np.asarray(swizzle(np.broadcast_to(op.attrs["at"][0](names), lanes.shape)))
        for first in range(0, count, 2 * many):
            rows = eights.row_place(op, turned, first, many)({**others, lane.name: np.arange(8 * many)})
            layout = matrices.TRANSPOSED if turned else matrices.PLAIN
            got = matrices._places(layout, 32, np.asarray(rows))
            np.testing.assert_array_equal(got, wanted[:, first : first + 2 * many])
            seen.add((turned, many))
    assert (False, 4) in seen
