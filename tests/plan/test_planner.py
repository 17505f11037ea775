"""A planner that follows the machine's description rather than a table, and plans that are given."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from contraction_checks import Problem

from tilewright import kernels
from tilewright.cli.workload import read_problem, read_types
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.plan.block_size import instruction_count
from tilewright.plan.blocking import blocking_of
from tilewright.plan.model import moving_cycles, operand_bytes
from tilewright.plan.search.block_choice import choose
from tilewright.plan.search.ranked_blocks import compare_blocks
from tilewright.plan.text import parse_plan
from tilewright.plan.validate import validate
from tilewright.targets.cpu import host
from tilewright.targets.registry import machine


def with_limits(row, **limits):
    return replace(row, limits=replace(row.limits, **limits))


AMX = with_limits(machine("x86.amx"), cores=2)
LAYERS = ["mb1ic64ih56oc64oh56kh3ph1", "mb1ic512ih7oc512oh7kh3ph1", "mb1ic1024ih14oc256oh14kh1ph0"]


def workload(problem, dt):
    return Problem(read_problem(problem), read_types(dt))


def chosen(problem, dt, machine=AMX, **rest):
    return choose(workload(problem, dt).contraction, machine, **rest)


def reasons(ranked):
    return [str(r) for r in compare_blocks(ranked).refused]


# -- the choice follows the machine ---------------------------------------------------------------------------


def registers_used(form):
    vectors = form.columns // form.atom.shape[1]
    return form.rows * vectors + vectors + 1


@pytest.mark.parametrize("problem", LAYERS)
def test_sums_fit_the_registers_there_are(problem):
    full, half = chosen(problem, "f32"), chosen(problem, "f32", with_limits(AMX, registers=16))
    assert all(registers_used(x.blocking) <= 32 for x in full.candidates)
    assert all(registers_used(x.blocking) <= 16 for x in half.candidates)
    assert registers_used(full.best.blocking) > 16
    assert half.best.cost.cycles > full.best.cost.cycles
    assert any("registers of 32" in why for why in reasons(full))
    assert any("registers of 16" in why for why in reasons(half))


@pytest.mark.parametrize("problem", LAYERS)
def test_blocks_fit_the_tile_registers_there_are(problem):
    full, half = chosen(problem, "bf16"), chosen(problem, "bf16", with_limits(AMX, tile_registers=4))
    assert {(32, 32), (16, 32), (32, 16)} <= {(x.blocking.rows, x.blocking.columns) for x in full.candidates}
    assert (half.best.blocking.rows, half.best.blocking.columns) == (16, 16)
    assert half.best.cost.products > full.best.cost.products
    assert any("accumulator tiles and their operands take" in why and "registers of 8" in why for why in reasons(full))
    assert any("tile registers of 4" in why for why in reasons(half))


def test_a_smaller_first_cache_changes_which_factor_stays():
    large, small = chosen(LAYERS[0], "bf16"), chosen(LAYERS[0], "bf16", with_limits(AMX, l1_bytes=8 << 10))
    wide, narrow = large.best.blocking, small.best.blocking
    assert wide.streams == "a"  # the weights of a block stay
    assert (narrow.streams, narrow.order) != (wide.streams, wide.order)
    assert small.best.cost.cycles >= large.best.cost.cycles
    assert compare_blocks(large) != compare_blocks(small)


def test_a_smaller_second_cache_makes_smaller_strips():
    problem = "mb1ic256ih14oc256kh3ph1"
    large, small = chosen(problem, "bf16").best, chosen(problem, "bf16", with_limits(AMX, l2_bytes=128 << 10)).best
    assert small.blocking.strip < large.blocking.strip
    assert small.cost.cycles > large.cost.cycles


def test_weights_beyond_the_cache_cost_time():
    large = chosen(LAYERS[1], "bf16", with_limits(AMX, l2_bytes=16 << 20)).best
    small = chosen(LAYERS[1], "bf16", with_limits(AMX, l2_bytes=1 << 17)).best
    assert large.cost.memory < small.cost.memory
    assert large.cost.cycles < small.cost.cycles


def test_without_tiles_vectors_are_chosen():
    bare = replace(AMX, multiply={n: a for n, a in AMX.multiply.items() if not n.startswith("amx")})
    with_tiles, without = chosen(LAYERS[0], "bf16"), chosen(LAYERS[0], "bf16", bare)
    assert with_tiles.best.blocking.in_tiles
    assert not without.best.blocking.in_tiles
    assert without.best.cost.cycles > with_tiles.best.cost.cycles
    assert without.bound.cycles > with_tiles.bound.cycles


def test_a_machine_without_the_atom_does_not_know_it():
    fewer = with_limits(machine("x86.avx512"), cores=2)
    assert not chosen(LAYERS[0], "bf16", fewer).best.blocking.in_tiles
    assert not any("amx" in why for why in reasons(chosen(LAYERS[0], "bf16", fewer)))


def test_atoms_of_other_types_are_refused_by_their_types():
    refused = reasons(chosen("mb1ic64ih14oc64kh3ph1", "bf16"))
    assert "atom avx512.f32: it multiplies f32 by f32, here are bf16 and bf16" in refused
    assert "atom amx.s8: it multiplies i8 by i8, here are bf16 and bf16" in refused


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dt", ["bf16", "f32"])
@pytest.mark.parametrize("problem", LAYERS)
def test_more_cores_get_more_tasks_and_less_time(problem, dt):
    two, four = chosen(problem, dt).best, chosen(problem, dt, with_limits(AMX, cores=4)).best
    assert four.cost.tasks >= 4
    assert two.cost.busiest * 2 <= two.cost.tasks + 1
    assert 0.2 < four.cost.cycles / two.cost.cycles < 0.75
    assert chosen(problem, dt, with_limits(AMX, cores=4)).bound.compute == chosen(problem, dt).bound.compute / 2


@pytest.mark.parametrize("problem", ["mb16ic256ih56oc512kh1sh2ph0", "mb16ic1024ih14oc2048kh1sh2ph0"])
def test_a_strip_was_charged_for_all_images_of_a_batch(problem):
    """Strided 1x1 layers of a batch left the tile registers for vectors, up to seven times slower."""
    one, all_of_them = (
        chosen(p, "bf16", with_limits(AMX, cores=16)).best for p in (problem.replace("16", "1", 1), problem)
    )
    assert all_of_them.plan.atom == one.plan.atom == "amx.bf16"
    assert all_of_them.cost.staged_bytes <= 16 * one.cost.staged_bytes


def product_of(m, n, k):
    return with_limits(AMX, cores=16), {"M": m, "N": n, "K": k}


@pytest.mark.parametrize("k", [2048, 4096])
def test_rows_that_share_sets_of_the_first_cache_were_read_in_place(k):
    """Tile registers load a line of 32 rows at a time: the sets that hold them have 24 or 12 ways."""
    row, sizes = product_of(1024, 1024, k)
    plan = kernel_for(kernels.gemm("nt", "bf16"), sizes, machine=row).plan
    assert plan.operand("a").form == "panel"


def test_loads_of_rows_in_place_do_not_bypass_the_first_cache():
    """With the hint no prefetcher helps: such loads took 1.3 to 1.6 times as long."""
    row, sizes = product_of(1024, 1024, 1056)
    choice = kernel_for(kernels.gemm("nt", "bf16"), sizes, machine=row).choice
    rows = [x.plan.operand("a") for x in choice.candidates if x.plan.atom == "amx.bf16"]
    in_place = [line for line in rows if line.at is None]
    assert in_place
    assert not any(line.hint == "stream" for line in in_place)


def test_sixteen_rows_were_computed_as_thirty_two():
    row, sizes = product_of(16, 4096, 4096)
    assert kernel_for(kernels.gemm("nt", "bf16"), sizes, machine=row).plan.axis("rows").split("loop").size == 16


@pytest.mark.parametrize("problem", LAYERS)
@pytest.mark.parametrize("dt", ["bf16", "f32"])
def test_times_are_those_of_the_one_cost(problem, dt):
    """The causes add up to the time of the kernel's work, and no plan is faster than memory allows."""
    choice = chosen(problem, dt)
    for x in choice.candidates[:20]:
        assert sum(x.cost.parts().values()) == pytest.approx(x.cost.cycles)
        assert x.cost.memory >= -1e-6 * x.cost.cycles
        assert x.cost.cycles >= moving_cycles(AMX, operand_bytes(x.contraction.out))


def test_a_short_program_is_all_that_a_small_budget_allows():
    free, tight = chosen(LAYERS[0], "bf16"), chosen(LAYERS[0], "bf16", with_limits(AMX, instructions=600))
    assert instruction_count(free.best.contraction, free.best.blocking) > 600
    assert all(instruction_count(x.contraction, x.blocking) <= 600 for x in tight.candidates)


def test_few_channels_are_joined_with_their_taps():
    found = chosen("mb1ic3ih32oc64kh7sh2ph3", "bf16")
    tiles = next(x for x in found.candidates if x.blocking.in_tiles)
    assert tiles.contraction.extent(tiles.contraction.depth[-1:]) == 21


def test_candidates_are_ranked_and_differ():
    found = chosen("mb1ic64ih14oc64kh3ph1", "bf16")
    cycles = [x.cost.cycles for x in found.candidates]
    assert cycles == sorted(cycles)
    assert found.best is found.candidates[0]
    assert len({str(x.plan) for x in found.candidates}) == len(cycles)


def test_the_choice_is_the_same_every_time():
    comparisons = [compare_blocks(chosen("mb1ic64ih14oc80kh3ph1", "bf16")) for _ in range(3)]
    assert len({(each.times, each.close, tuple(map(str, each.refused))) for each in comparisons}) == 1


def test_no_plan_beats_the_roofline():
    for problem in LAYERS:
        for dt in ("f32", "bf16"):
            found = chosen(problem, dt)
            assert found.bound.cycles <= found.best.cost.cycles


# -- what was refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dt", ["bf16", "f32"])
@pytest.mark.parametrize("problem", [*LAYERS, "mb1ic3ih32oc64kh7sh2ph3", "37x50:50x21"])
def test_what_is_refused_fails_for_its_reason_or_is_slower(problem, dt):
    found = chosen(problem, dt)
    given = [r for r in compare_blocks(found).refused if r.plan is not None]
    assert given
    for r in given:
        contraction = next(x.contraction for x in found.candidates if x.blocking.atom.name == r.plan.atom)
        if "times as long" in r.why:
            form = validate(r.plan, contraction, AMX)
            other = next(x for x in found.candidates if x.blocking == form)
            assert other.cost.cycles > found.best.cost.cycles
            continue
        with pytest.raises(ArgumentError) as caught:
            validate(r.plan, contraction, AMX)
        assert r.why in str(caught.value)


# -- plans that are given -------------------------------------------------------------------------------------

PINNED = [
    ("mb1ic40ih9iw7oc70kh3kw2ph1pw1", "bf16"),
    ("mb2ic32ih6iw5oc33kh1kw1", "bf16"),
    ("mb1ic3ih13iw11oc20kh5kw3sh2sw1ph2pw0", "bf16"),
    ("mb1ic20ih7iw9oc40kh3kw3ph2pw1dh1dw0", "f32"),
    ("mb1ic5ih1iw17oc17kh1kw4pw2", "s8"),
    ("37x50:50x21", "f32"),
]


def results(work, plans):
    """The outcome of a problem under each plan, and what it should be."""
    arrays = work.arrays(np.random.default_rng(0), exact=True)
    *_, out = arrays.values()
    poison, wanted = out.copy(), work.reference(arrays).astype(out.dtype)
    for plan in plans:
        kernel = work.compiled(str(plan))
        assert str(kernel.plan) == str(plan)
        out[...] = poison
        kernel.bind(arrays)()
        yield kernel, np.array_equal(out, wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("problem", "dt"), PINNED)
def test_the_first_candidates_and_the_last_are_exact(problem, dt):
    work = workload(problem, dt)
    candidates = work.compiled().choice.candidates
    a = work.contraction.a.name
    kinds = {(x.plan.atom, x.plan.loops, x.plan.operand(a).form): x for x in reversed(candidates)}
    plans = [x.plan for x in (*candidates[:2], *kinds.values(), candidates[-1])]
    assert all(right for _, right in results(work, plans))


TILED = """axis rows = (m_1 9, m_0 8 of 7): task m_1 9, loop 32, unit 16
axis columns = (f_0 96 of 70): task 96, loop 32, unit 16
axis depth = (k_2 3, k_1 2, k_0 64 of 40): unit k_2 1, unit k_1 1, unit k_0 32
grid rows, columns
loops columns, rows, depth
x strip at task, stream
w packed at bind
atom amx.bf16
overlap delayed store"""
VECTORS = """axis rows = (m_1 9, m_0 7): task m_1 3, loop m_1 1, loop 4, unit 1
axis columns = (f_0 96 of 70): task 96, loop 32, unit 16
axis depth = (k_2 3, k_1 2, k_0 40): loop k_2 1, unit k_1 1, loop k_0 4, unit k_0 1
grid columns, rows
raster contiguous
loops columns, rows, depth
x in place
w packed at bind
atom avx512.f32"""
EDITS = {
    "loop order": ("bf16", "loops columns, rows", "loops rows, columns"),
    "the order of the depth": ("bf16", "unit k_2 1, unit k_1 1", "unit k_1 1, unit k_2 1"),
    "a loop of the depth": ("bf16", "unit k_2 1, unit k_1 1", "loop k_2 1, unit k_1 1"),
    "a larger step": ("bf16", ": unit k_2", ": loop k_0 32, unit k_2"),
    "taller blocks": (
        "bf16",
        "loop 32, unit 16\naxis columns = (f_0 96 of 70): task 96, loop 32",
        "loop 48, unit 16\naxis columns = (f_0 80 of 70): task 80, loop 16",
    ),
    "one tile": (
        "bf16",
        "loop 32, unit 16\naxis columns = (f_0 96 of 70): task 96, loop 32",
        "loop 16, unit 16\naxis columns = (f_0 80 of 70): task 16, loop 16",
    ),
    "staging": ("bf16", "m_0 8 of 7): task m_1 9, loop 32, unit 16", "m_0 7): task m_1 2, loop 32, unit 16"),
    "hints": ("bf16", "strip at task, stream\nw packed at bind", "strip at task\nw packed at bind, stream"),
    "no overlap": ("bf16", "\noverlap delayed store", ""),
    "the order of tasks": ("bf16", "grid rows, columns", "grid columns, rows; raster contiguous"),
    "lines of a task": ("f32", "task m_1 3", "task m_1 9"),
    "rows of a block": ("f32", "loop 4, unit 1", "loop 7, unit 1"),
    "vectors of a block": ("f32", "(f_0 96 of 70): task 96, loop 32", "(f_0 96 of 70): task 96, loop 48"),
    "loop order, vectors": ("f32", "loops columns, rows", "loops rows, columns"),
    "steps": ("f32", "loop k_0 4", "loop k_0 8"),
    "a tap kept as a loop": ("f32", "unit k_1 1", "loop k_1 1"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_plan_changes_the_program_and_stays_exact(edit):
    dt, old, new = EDITS[edit]
    plan = TILED if dt == "bf16" else VECTORS
    assert old in plan
    changed = plan.replace(old, new)
    if edit == "staging":
        changed = changed.replace("x strip", "x panel")
    atom = parse_plan(plan).atom
    if atom not in host.host_machine().multiply:
        pytest.skip(f"needs {atom}")
    work = workload("mb1ic40ih9iw7oc70oh9ow7kh3kw2ph1pw1", dt)
    (before, right), (after, still) = results(work, ["; ".join(p.splitlines()) for p in (plan, changed)])
    assert right
    assert still
    assert before.text("block") != after.text("block")
    assert before.object_code != after.object_code


BROKEN = {
    "an atom of another type": ("bf16", "amx.bf16", "avx512.f32", "it multiplies f32 by f32"),
    "an atom that there is not": ("bf16", "amx.bf16", "amx.f4", "no multiplication atom 'amx.f4'"),
    "too many tiles": ("bf16", "loop 32, unit 16\naxis col", "loop 48, unit 16\naxis col", "11 tile registers of 8"),
    "half a tile": ("bf16", "loop 32, unit 16\naxis col", "loop 24, unit 16\naxis col", "no multiple of `unit 16`"),
    "half an atom": ("bf16", "loop 32, unit 16\naxis col", "loop 32, unit 8\naxis col", "the atom takes `unit 16`"),
    "columns in half blocks": (
        "bf16",
        "task 96, loop 32, unit 16\naxis depth",
        "task 48, loop 32, unit 16\naxis depth",
        "no whole blocks of 32",
    ),
    "rows in place": ("bf16", "x strip at task", "x in place", "m_0 8 of 7"),
    "a stage that there is not": ("bf16", "x strip", "x tile", "rows are staged as strip or panel"),
    "rows staged elsewhere": ("bf16", "strip at task", "strip at rows", "rows are staged at a task"),
    "a digit that there is not": ("bf16", "unit k_2 1", "unit k_7 1", "`unit k_7 1` splits no digit of depth"),
    "a digit left out": ("bf16", "unit k_2 1, ", "", "is cut once"),
    "another extent": ("bf16", "m_1 9,", "m_1 10,", "the program has `(m_1 9"),
    "more than a line": ("bf16", "8 of 7", "9 of 7", "staged lines to the next: `(m_1 9, m_0 8 of 7)`"),
    "the depth first": (
        "bf16",
        "loops columns, rows, depth",
        "loops depth, columns, rows",
        "accumulators stay in registers",
    ),
    "a task left out": ("bf16", "grid rows, columns", "grid rows", "tasks go over rows, columns"),
    "tasks over the depth": ("bf16", "unit k_2 1", "task k_2 1", "would add to one result"),
    "weights that are not packed": (
        "bf16",
        "w packed at bind",
        "w in place",
        "columns lie packed",
    ),
    "nothing about x": ("bf16", "x strip at task, stream\n", "", "no line says where x lies"),
    "no atom": ("bf16", "atom amx.bf16\n", "", "no atom is named"),
    "more sums than registers": ("f32", "loop 4, unit 1\n", "loop 16, unit 1\n", "35 registers of 32"),
    "steps that do not divide": ("f32", "loop k_0 4", "loop k_0 3", "steps of 3 do not divide"),
    "vectors that are staged": ("f32", "x in place", "x strip at task", "vectors read rows in place"),
    "vectors that overlap": ("f32", "atom avx512.f32", "atom avx512.f32\noverlap delayed store", "as they are"),
    "blocks across lines": ("f32", "loop m_1 1, ", "", "it takes task, loop, loop, unit"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_plan_that_does_not_fit_is_refused_by_name(case):
    dt, old, new, why = BROKEN[case]
    plan = TILED if dt == "bf16" else VECTORS
    assert old in plan
    with pytest.raises(ArgumentError, match="plan: ") as caught:
        validate(
            parse_plan(plan.replace(old, new)), workload("mb1ic40ih9iw7oc70oh9ow7kh3kw2ph1pw1", dt).contraction, AMX
        )
    assert why in str(caught.value)


def test_the_plans_above_are_fine_as_they_are():
    for dt, plan in (("bf16", TILED), ("f32", VECTORS)):
        c = workload("mb1ic40ih9iw7oc70oh9ow7kh3kw2ph1pw1", dt).contraction
        given = parse_plan(plan)
        assert validate(given, c, AMX) == blocking_of(c, given, AMX.multiply[given.atom])


def test_where_no_plan_fits_every_reason_is_given(monkeypatch):
    integers = {name: atom for name, atom in host.host_machine().multiply.items() if name.endswith(".i32")}
    here = replace(host.host_machine(), multiply=integers)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "off")  # which knows nothing of the change
    monkeypatch.setattr("tilewright.targets.cpu.target.host_machine", lambda: here)
    made = workload("mb1ic8ih5oc8kh3", "f32").compiled()
    assert made.plan.atom is None
    assert re.search(r"refused  atom .*\.i32: it multiplies i32 by i32", made.explain())
