"""First layers of networks, whose images are copied to other rows: all of their programs are assembled."""

from __future__ import annotations

import pytest
from assembler import assembled, ptxas

from tilewright.cli.workload import read_problem
from tilewright.compiler.native import kernel_for
from tilewright.kernels.conv import conv


@pytest.mark.skipif(ptxas() is None, reason="no ptxas")
@pytest.mark.parametrize("line", ["mb2ic3ih33iw29oc64kh7kw7ph3pw3sh2sw2", "mb2ic3ih19iw45oc32kh3kw3ph1pw1"])
def test_programs_in_rows_are_assembled_without_spills(line: str) -> None:
    problem = read_problem(line)
    kernel = conv(problem.k, "bf16", stride=problem.s, padding=problem.p)
    sizes = {"N": problem.mb, "H": problem.i[0], "W": problem.i[1], "C": problem.ic, "F": problem.oc}
    found = kernel_for(kernel, sizes, target="gpu:hopper")
    assert "x in rows, " in str(found.plan)
    assert set(found.module.programs) == {"conv", "conv_x_rows", "conv_w_rows"}
    for name in found.module.programs:
        said = assembled(found.executor.prepared(name, {})[0].kernel.assembly, "sm_90a")
        assert "0 bytes spill stores, 0 bytes spill loads" in said
