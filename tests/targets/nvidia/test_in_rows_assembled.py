"""First layers of networks, whose images are copied to other rows: the loop programs of all launches are exact, and
all are assembled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from assembler import assembled, ptxas

import tilewright
from tilewright.cli.workload import Workload, read_problem, read_types
from tilewright.compiler.native import kernel_for
from tilewright.kernels.conv import conv

LINES = {"mb2ic3ih33iw29oc64kh7kw7ph3pw3sh2sw2": "aligned rows", "mb2ic3ih19iw45oc32kh3kw3ph1pw1": "im2col"}
"""Problems, and how their images are copied."""


def made(line: str) -> Any:
    """The kernel of a convolution in bf16."""
    problem = read_problem(line)
    kernel = conv(problem.k, "bf16", stride=problem.s, padding=problem.p)
    sizes = {"N": problem.mb, "H": problem.i[0], "W": problem.i[1], "C": problem.ic, "F": problem.oc}
    return kernel_for(kernel, sizes, target="gpu:hopper")


@pytest.mark.parametrize("line", LINES)
def test_loop_programs_of_all_launches_are_exact(line: str) -> None:
    found, work = made(line), Workload(read_problem(line), read_types("bf16"))
    memory = work.arrays(np.random.default_rng(1), exact=True)
    kind, wanted = memory["x"].dtype, work.reference(memory).astype(memory["y"].dtype)
    for op in found.module.host.walk():
        if op.name == "workspace":
            memory[op.result.name] = np.full([int(n) for n in op.result.type.shape], np.nan, np.float32).astype(kind)
        elif op.name == "reshape":
            memory[op.result.name] = memory[op.operands[0].name].reshape([int(n) for n in op.result.type.shape])
        elif op.name == "restride":
            shape, steps = ([int(n) for n in e] for e in (op.result.type.shape, op.result.type.strides))
            source = memory[op.operands[0].name]
            memory[op.result.name] = np.lib.stride_tricks.as_strided(source, shape, [n * kind.itemsize for n in steps])
        else:
            loop = found.executor.prepared(op.attrs["program"], {})[0].kernel.loop
            tilewright.compile_text(str(loop), "interpreter")(*(memory[v.name] for v in op.operands))
    assert np.array_equal(memory["y"], wanted)


@pytest.mark.skipif(ptxas() is None, reason="no ptxas")
@pytest.mark.parametrize("line", LINES)
def test_programs_in_rows_are_assembled_without_spills(line: str) -> None:
    found = made(line)
    assert f"repack x: {LINES[line]}" in found.plan.lines()
    assert set(found.module.programs) == {"conv", "conv_rows"}
    for name in found.module.programs:
        said = assembled(found.executor.prepared(name, {})[0].kernel.assembly, "sm_90a")
        assert "0 bytes spill stores, 0 bytes spill loads" in said
