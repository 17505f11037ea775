"""Plans that the search lists are bound: given back as text, they make the same kernels as in the search."""

from __future__ import annotations

import pytest

from tilewright.cli.workload import Workload, read_problem, read_types
from tilewright.targets.registry import machine

FEW_CHANNELS = (
    "mb2ic3id5ih6iw9oc5kd2kh3kw2pd1ph1pw0sd2",
    "mb1ic3ih20iw18oc9kh7kw7sh2sw2ph3pw3",
    "g3mb2ic15ih9iw7oc9kh3kw2ph1pw0",
)


@pytest.mark.parametrize("row", ["x86.amx", "x86.avx512", "x86.avx2", "aarch64.neon.dotprod"])
@pytest.mark.parametrize("dt", ["bf16", "s8"])
@pytest.mark.parametrize("problem", FEW_CHANNELS)
def test_units_that_take_k_as_it_is_were_listed_with_a_padded_k(problem: str, dt: str, row: str) -> None:
    """K is padded for atoms that add neighbours. Plans of tile registers with such a K were listed, and refused."""
    work = Workload(read_problem(problem), read_types(dt))
    kernel = work.planned(machine(row))
    listed = {(p.plan.atom, p.plan.values[0].form): p for p in kernel.choice.candidates[::-1] if p.plan.in_blocks}
    for candidate in listed.values():
        given = work.planned(machine(row), str(candidate.plan))
        assert given.plan == candidate.plan
    given = work.planned(machine(row), kernel.text("plan"))
    assert given.text("block") == kernel.text("block")
    assert given.choice.cycles == kernel.choice.cycles
