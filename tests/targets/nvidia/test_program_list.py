"""The list of programs, without a GPU: each has what it is there for, is exact on the loop level, and is assembled."""

from __future__ import annotations

import re
from inspect import getmembers

import pytest
from assembler import assembled, ptxas
from programs import CASES, INSTRUCTIONS, Case, forms_of, read_before_written

from tilewright.check.loop import check_loop
from tilewright.interpret.block.run import interpret
from tilewright.interpret.loop import HANDLERS
from tilewright.ir import block as block_level
from tilewright.ir.loop import parse_loop
from tilewright.ir.loop_waves import SPECS
from tilewright.lower.gpu.lower import lower_waves
from tilewright.runtime.codegen import HELPER
from tilewright.targets.gpu.dialect import Dialect
from tilewright.targets.nvidia.backend import BACKEND, architecture
from tilewright.targets.nvidia.dialect import Ptx
from tilewright.targets.registry import machine


@pytest.mark.sampled(20)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_programs_are_assembled_and_hold_what_they_are_there_for(case: Case) -> None:
    case = case.assembled
    lowered = lower_waves(case.program, case.machine)
    check_loop(lowered, case.machine)
    text = BACKEND.emitted(lowered, case.machine).text
    assert read_before_written(text) == []
    ptx = HELPER.ask(BACKEND.request(case.machine), text).decode()
    missing = case.covers - forms_of(case.program, lowered, ptx)
    assert not missing, f"{case} says that it covers {sorted(missing)}"
    assert ".local" not in ptx  # no register array in memory
    if ptxas() is None:
        pytest.skip("ptxas is not installed: the extra `ptxas` brings it")
    said = assembled(ptx, architecture(case.machine)[0])
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said
    # C7xxx: products that wait for one another
    assert not re.search(r"\(C7\d+\)|warning", said), said


@pytest.mark.sampled(17)
@pytest.mark.parametrize("case", [case for case in CASES if case.interpreted is not None], ids=str)
def test_programs_give_the_same_on_both_levels(case: Case) -> None:
    small = case.interpreted
    assert small is not None
    lowered = lower_waves(small.program, small.machine)
    check_loop(lowered, small.machine)
    assert str(parse_loop(str(lowered))) == str(lowered)
    wanted = small.arguments()
    interpret(small.program, wanted, small.machine, seed=3, workers=2)
    for seed, workers in ((1, 1), (2, 3)):
        got = small.arguments()
        interpret(lowered, got, small.machine, seed=seed, workers=workers, handlers=HANDLERS)
        small.assert_same(got, wanted)


AMPERE_LACKS = {
    *("expect", "copy_in", "copy_in.inside", "copy_in.multicast", "copy_out", "copy_out.inside", "seal", "drain"),
    *("fence", "settle", "arrive.everywhere"),
    *("atom.a", "atom.a_at", "atom.b", "atom.b_at"),
}
"""Operations of waves that only an asynchronous proxy, or a cluster, has a use for."""
ONCE = {"role", "shuffle", "edge", "compute.rare", "tasks", "tasks.turn"}
"""What one machine's programs show for all."""


def there_are(name: str) -> set[str]:
    """All that a machine has: atoms, copies, operations of waves with what they may say, schedules, launches."""
    here = machine(name)
    found = {*here.multiply, *here.copies, *(f"launch={way}" for way in here.launches)}
    for spec in SPECS:
        found |= {spec.name, *(f"{spec.name}.{attr}" for attr, kind in spec.attrs.items() if kind.endswith("?"))}
    if here.cluster == 1:
        return found - AMPERE_LACKS - {"tasks.schedule", "tasks.overlap", *ONCE, "atom.fresh"}
    found -= {"tasks.schedule", "tasks.overlap"}  # said by name
    found |= {f"tasks.schedule={schedule}" for schedule in block_level.SCHEDULES}
    return found | {"overlap=defer", "overlap=pingpong", "cluster", "setmaxnreg"} | ONCE


@pytest.mark.parametrize("name", ["ampere", "hopper"])
def test_every_atom_copy_and_synchronisation_is_in_a_program(name: str) -> None:
    covered = set().union(*(case.covers for case in CASES if case.machine is machine(name)))
    assert there_are(name) - covered == set()


def test_every_copy_atom_has_instructions_to_look_for() -> None:
    assert set(machine("ampere").copies) | set(machine("hopper").copies) <= set(INSTRUCTIONS)


def test_every_method_of_the_dialect_is_called_for_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name for name, found in getmembers(Dialect, callable) if not name.startswith("_")}
    called: set[str] = set()
    for name in names:
        own = getattr(Ptx, name)
        monkeypatch.setattr(Ptx, name, lambda *a, own=own, name=name, **k: called.add(name) or own(*a, **k))
    # products by all widths of an atom take longest and call nothing that others do not: they are last
    for case in sorted(CASES, key=lambda case: (case.name.startswith("wgmma"), len(case.text))):
        if called == names:
            break
        BACKEND.emitted(lower_waves(case.program, case.machine), case.machine)
    assert names - called == set()
