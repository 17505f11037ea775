"""Products of few channels side by side, with weights on a diagonal: the loop programs of all launches are exact, and
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

GROUPS = """
axis G = (G 2): task 1; axis M = (M_2 2, M_1 9, M_0 11): task M_2 1, task M_1 8, task M_0 8; axis FG = (FG 64): task 64
axis K_2 = (K_2 3): loop 1; axis K_1 = (K_1 3): loop 3; axis K_0 = (K_0 64): loop 64
grid G, M, FG; loops K_0, K_2, K_1
repack w: block-diagonal 4; x halo at K_0; w_diagonal panel at K_2
mma by wgmma.m64n16k16.bf16, tile 64x64
producer 1 wave 56 registers, consumer 4 waves 240 registers, stages 2, halo stages 2, epilogue stages 2
"""
ROWS = """
axis M = (M 85): task 128; axis F = (F 96): task 96; axis K = (K 128): loop 64
grid M, F; repack w: block-diagonal 4
mma by wgmma.m64n24k16.bf16, tile 128x96
producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 4, epilogue stages 2
"""
PLANS = {"mb2g8ic128ih9iw11oc128kh3kw3ph1pw1": GROUPS, "mb2ic32ih10iw17oc24kh1kw1": ROWS}


def made(line: str) -> Any:
    """The kernel of a convolution in bf16."""
    problem = read_problem(line)
    groups = problem.g or 1
    kernel = conv(problem.k, "bf16", stride=problem.s, padding=problem.p, groups=groups)
    sizes = {"N": problem.mb, "H": problem.i[0], "W": problem.i[1], "F": problem.oc}
    sizes |= {"CG": problem.ic // groups} if groups > 1 else {"C": problem.ic}
    return kernel_for(kernel, sizes, target="gpu:hopper", plan=PLANS[line])


@pytest.mark.parametrize("line", PLANS)
def test_loop_programs_of_all_launches_are_exact(line: str) -> None:
    found, work = made(line), Workload(read_problem(line), read_types("bf16"))
    memory = work.arrays(np.random.default_rng(1), exact=True)
    kind, wanted = memory["x"].dtype, work.reference(memory).astype(memory["y"].dtype)
    memory["y"][...] = np.nan
    for op in found.module.host.walk():
        if op.name == "workspace":
            memory[op.result.name] = np.full([int(n) for n in op.result.type.shape], np.nan, np.float32).astype(kind)
        elif op.name == "reshape":
            memory[op.result.name] = memory[op.operands[0].name].reshape([int(n) for n in op.result.type.shape])
        else:
            loop = found.executor.prepared(op.attrs["program"], {})[0].kernel.loop
            tilewright.compile_text(str(loop), "interpreter")(*(memory[v.name] for v in op.operands))
    assert np.array_equal(memory["y"], wanted)


@pytest.mark.skipif(ptxas() is None, reason="no ptxas")
@pytest.mark.parametrize("line", PLANS)
def test_programs_on_diagonals_are_assembled_without_spills(line: str) -> None:
    found = made(line)
    assert set(found.module.programs) == {"conv", "conv_w_diagonal"}
    for name in found.module.programs:
        said = assembled(found.executor.prepared(name, {})[0].kernel.assembly, "sm_90a")
        assert "0 bytes spill stores, 0 bytes spill loads" in said
