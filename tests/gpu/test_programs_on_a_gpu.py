"""The list of programs on a Hopper GPU: what the block level gives, twenty times over. Run by `make test-gpu`."""

from __future__ import annotations

import numpy as np
import pytest
from programs import CASES, Case

from tilewright import compile_text
from tilewright.interpret.block.run import interpret
from tilewright.targets.nvidia.driver import device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(isinstance(device(), str), reason=f"no GPU: {device()}"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_programs_give_what_the_block_level_gives(case: Case) -> None:
    wanted, given = case.arguments(), case.arguments()
    interpret(case.program, wanted, case.machine, seed=3, workers=2)
    names = [arg.name or "" for arg in case.program.args if arg.type.role != "in"]
    before = {name: given[name].copy() for name in names}
    launch = compile_text(case.text, "gpu", case.params).bind(*given.values())
    first: dict[str, bytes] = {}
    for _ in range(20):
        for name in names:
            given[name][...] = before[name]
        launch()
        case.assert_same(given, wanted)
        now = {name: np.asarray(given[name]).tobytes() for name in names}
        first = first or now
        assert now == first  # bit by bit, also where sums may be rounded in another order than the interpreter's
