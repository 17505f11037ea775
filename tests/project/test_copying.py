"""Copies and pickles keep identity, or meaning: `copy.copy`, `copy.deepcopy`, pickle here and in another process."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.algebra import ComposedLayout, Layout, Swizzle, View
from tilewright.algebra.expr import const, extent, index, symbol
from tilewright.algebra.expr_conditions import eq
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.compiler.text import compile_text
from tilewright.errors import ArgumentError, DimensionMismatch, NotPicklable, ParseError, ProgramError
from tilewright.ir.dtypes import ALL
from tilewright.ir.tile import parse_tile
from tilewright.kernels.gemm import gemm
from tilewright.lang.symbols import WORKGROUPS
from tilewright.plan.text import parse_plan

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
f32_mn = tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32]

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {n}": lambda x, n=n: pickle.loads(pickle.dumps(x, n)) for n in range(2, pickle.HIGHEST_PROTOCOL + 1)},
}
way = pytest.mark.parametrize("again", WAYS.values(), ids=WAYS)


@tkw.wave([tkw.WorkgroupConstraint(M, 4, 0)])
def doubled(x: f32_mn, y: f32_mn):
    tkw.write(2.0 * tkw.read(x), y)


# -- what there is one of ---------------------------------------------------------------------------------------


@way
def test_element_types_stay_themselves(again: Callable[[Any], Any]) -> None:
    for kind in ALL.values():
        assert again(kind) is kind
    assert again([tkl.f32, {"x": tkl.bf16}])[1]["x"] is tkl.bf16


@way
def test_symbols_stay_themselves(again: Callable[[Any], Any]) -> None:
    Q = extent("Q", definition=M // 2 + 1)
    for s in (M, tkl.sym.M, symbol("v"), extent("C", multiple_of=32), index("q", Q), Q, WORKGROUPS[0]):
        assert again(s) is s
    assert again(tkl.sym) is tkl.sym


@way
def test_expressions_stay_themselves(again: Callable[[Any], Any]) -> None:
    i, j, C = index("i", 144), index("j", N), extent("C", multiple_of=8)
    made = [
        *map(const, (0, 5000, -5000, 10**30)),
        *(3 * i + 2 * M * N - 7, M * M * N, (i + j) // 5, (i + j) % C, M / 4, i ^ j, -((-M) // 64)),
        *(minimum(M, N, i + 3), maximum(M, 2 * N), eq(M, N + 1), (M < N) & (i + j >= 3), (M < N) | eq(j, 0)),
    ]
    for e in made:
        assert again(e) is e
    assert again(tuple(made)) == tuple(made)


def test_a_deep_expression_is_pickled_without_recursion() -> None:
    e: Any = M
    for n in range(1500):
        e = (e * 3 + n) // 7 % (n + 2) + N
    assert pickle.loads(pickle.dumps(e)) is e
    assert copy.deepcopy(e) is e


@way
def test_kernels_stay_themselves(again: Callable[[Any], Any]) -> None:
    assert again(doubled) is doubled


def test_kernels_that_no_name_finds_say_so() -> None:
    made = gemm("nn", "f32", "f32")
    assert copy.deepcopy(made) is made
    with pytest.raises(NotPicklable, match=r"the kernel .* is not tilewright\.kernels\.gemm\..*kernel\.trace\(\)"):
        pickle.dumps(made)
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(made)
    assert pickle.loads(pickle.dumps(made.trace())) == made.trace()


# -- what is equal ----------------------------------------------------------------------------------------------


PLAN = """axis rows = (m 8): task 4, unit 4
grid rows
loops rows
x in place
atom lanes.f32
overlap none"""


@way
def test_layouts_swizzles_accesses_and_plans_are_equal(again: Callable[[Any], Any]) -> None:
    view = View.tensor({"n": 2, "h": 5, "w": M}).pad("h", 1, 1).embed("h", {"p": (5, 1), "r": (3, 1)})
    access = view.access()
    layout = Layout(((2, 3), 4), ((1, 8), 2))
    for x in (layout, Swizzle(2, 0, 3), ComposedLayout(Swizzle(2, 0, 3), 0, Layout((4, 8), (8, 1))), view, access):
        assert again(x) == x
    assert str(again(access).normalise()) == str(access.normalise())
    plan = parse_plan(PLAN)
    assert again(plan) == plan
    assert again(plan).lines() == plan.lines()


@way
def test_mappings_and_constraints_mean_the_same(again: Callable[[Any], Any]) -> None:
    i, j = (tkw.IndexMapping.iterator(n) for n in range(2))
    mapping = tkw.IndexMapping(2, inputs={N: j // 2, M: i}, outputs={M: i, N: j}, dynamic_val_mappings={M: i})
    copied = again(mapping)
    assert (copied.inputs, copied.outputs, copied.dynamic) == (mapping.inputs, mapping.outputs, mapping.dynamic)
    constraints = [
        tkw.WorkgroupConstraint(M, tkl.sym.BLOCK_M, 1, apply_fn=lambda wg: 3 * wg + N, iters=N),
        tkw.WaveConstraint(M, 8),
        tkw.TilingConstraint(K, 16, iters=N, start=M),
        tkw.HardwareConstraint(64, (2, 2, 1), mma_type=tkw.MMAType.F32_16x16x16_F16, vector_shapes={M: 16, N: 0}),
        tkw.ReorderingConstraint(WORKGROUPS[0] + 1, 0),
        tkw.GridConstraint(7),
        tkw.Assumption(M > N),
    ]
    for constraint in constraints:
        texts = [[(op.name, op.attrs) for op in each.records()] for each in (constraint, again(constraint))]
        assert texts[0] == texts[1]
    bound = again(tkw.IteratorBindings({i: M}))
    assert bound.bindings == {i: M}
    alias = again(tkw.SymbolicAlias(M, N, lambda s: 2 * s))
    assert alias.source_to_target(alias.target) is 2 * N
    memory = again(f32_mn)
    assert (memory.dims, memory.dtype) == ((M, N), tkl.f32)


@way
def test_programs_are_equal(again: Callable[[Any], Any]) -> None:
    for program in (doubled.trace(), gemm("nn", "bf16", "f32").trace()):
        copied = again(program)
        assert copied == program
        assert str(copied) == str(program)
        found = tilewright.compile(copied, target="executor")
        assert found.text() == tilewright.compile(program, target="executor").text()


def test_a_copied_program_is_one_of_its_own() -> None:
    program = doubled.trace()
    copied = copy.deepcopy(program)
    copied.body.ops.pop()
    copied.records.clear()
    assert program == doubled.trace()
    assert copied.args[0] is not program.args[0]
    assert copied.body.ops[0].operands[0] is copied.args[0]
    assert copied.body.ops[0].loc is program.body.ops[0].loc  # errors still point at the author's line


# -- executables ------------------------------------------------------------------------------------------------


@way
@pytest.mark.parametrize("target", ["executor", "cpu"])
def test_executables_do_the_same(again: Callable[[Any], Any], target: str) -> None:
    run = tilewright.compile(doubled, {"M": 2}, target=target)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    before = again(run)
    run(x)
    for copied in (before, again(run)):  # before and after machine code was made
        assert repr(copied) == repr(run)
        assert copied.text() == run.text()
        assert np.array_equal(copied(x), 2 * x)
        with pytest.raises(ArgumentError, match="its dimension 0 must be"):
            copied(np.ones((3, 3), np.float32))


@way
@pytest.mark.parametrize("target", ["executor", "cpu"])
def test_leniency_stays_with_an_executable(again: Callable[[Any], Any], target: str) -> None:
    run = again(tilewright.compile(doubled, {"M": 2}, target=target, lenient=True))
    x, y = np.arange(9, dtype=np.float32).reshape(3, 3), np.full((3, 3), 7, np.float32)
    run(x, y)
    assert np.array_equal(y, [*(2 * x[:2]), [7, 7, 7]])


@way
def test_a_plan_and_open_sizes_stay_with_an_executable(again: Callable[[Any], Any]) -> None:
    a, b = np.ones((5, 8), np.float32), np.ones((8, 16), np.float32)
    first = tilewright.compile(gemm("nn", "f32", "f32"), target="cpu")
    first(a, b)
    planned = tilewright.compile(first.program, target="cpu", plan=first.text("plan"))
    copied = again(planned)
    assert np.array_equal(copied(a, b), a @ b)
    assert copied.text("plan") == first.text("plan")
    dynamic = again(tilewright.compile(first.program, target="cpu", dynamic=["M"]))
    for rows in (5, 7):
        a = np.ones((rows, 8), np.float32)
        assert np.array_equal(dynamic(a, b), a @ b)
    assert dynamic.text("block") == again(dynamic).text("block", {"M": 5, "N": 16, "K": 8})


DOUBLE = """block double(%x: in global f32 (M, N), %y: out global f32 (M, N))
  param M = 4, N = 16
{
  tasks m in 0..M {
    %row = view %x (j N) -> [m, j]
    %to = view %y (j N) -> [m, j]
    map %to = %row + %row
  }
}"""


@way
@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_compiled_texts_do_the_same(again: Callable[[Any], Any], target: str) -> None:
    run = again(compile_text(DOUBLE, target, {"M": 2, "N": 3}, workers=1))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(run(x), 2 * x)
    assert run.parameters() == compile_text(DOUBLE, target, {"M": 2, "N": 3}).parameters()


@way
def test_layers_do_the_same(again: Callable[[Any], Any]) -> None:
    layer = tilewright.Conv1d(np.ones((2, 2, 3), np.float32), np.array([0, 1], np.float32), padding=((1, 0),))
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    wanted = layer(x)
    assert np.array_equal(again(layer)(x), wanted)
    kernel, _ = layer.kernel(x)
    assert again(kernel).text("block") == kernel.text("block")


# -- errors, and what debug_log calls ---------------------------------------------------------------------------


@way
def test_errors_say_the_same(again: Callable[[Any], Any]) -> None:
    @tkw.wave()
    def wrong(x: f32_mn, y: tkl.Memory[M, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32]):
        tkw.write(tkw.read(x), y)

    faults: list[Exception] = [ArgumentError("x is 3"), ProgramError("what"), ParseError("expected a name", "M +", 3)]
    with pytest.raises(DimensionMismatch) as report:
        tilewright.compile(wrong, target="executor")
    for fault in [*faults, report.value]:
        copied = again(fault)
        assert type(copied) is type(fault)
        assert str(copied) == str(fault)
    assert "tkw.write(tkw.read(x), y)" in str(again(report.value))


def show(label: str, value: Any) -> None:
    """Called by debug_log."""


def test_functions_that_debug_log_calls_must_be_found_by_name() -> None:
    def logged(printer: Any) -> Any:
        @tkw.wave()
        def kernel(x: f32_mn, y: f32_mn):
            tile = tkw.read(x)
            tkw.debug_log(tile, label="seen", printer=printer)
            tkw.write(tile, y)

        return tilewright.compile(kernel, target="executor")

    assert pickle.loads(pickle.dumps(logged(show))).program.hooks == {"seen": (show, None)}
    with pytest.raises(NotPicklable, match=r"what debug_log calls for 'seen', .*define it at the top of a module"):
        pickle.dumps(logged(lambda label, value: None))


# -- another process --------------------------------------------------------------------------------------------

MODULE = """
import numpy as np
import tilewright, tilewright.lang as tkl, tilewright.wave as tkw

M, N = tkl.sym.M, tkl.sym.N

@tkw.wave([tkw.WorkgroupConstraint(M, 4, 0)])
def tripled(x: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32],
            y: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32]):
    tkw.write(3.0 * tkw.read(x), y)

def things():
    i = tkw.IndexMapping.iterator(0)
    runs = [tilewright.compile(tripled, {"M": 2}, target=target) for target in ("executor", "cpu")]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    wanted = [run(x) for run in runs]
    return [tkl.f32, M, (3*M + N) // 7 % 5, tripled, *runs, x, wanted, tkw.IndexMapping(1, {M: i}, {M: i})]
"""
READ = """
import pickle, sys
import numpy as np
import kernels_of_mine as mine
import tilewright.lang as tkl
kind, size, e, kernel, executor, native, x, wanted, mapping = pickle.load(open(sys.argv[1], "rb"))
assert kind is tkl.f32 and size is tkl.sym.M and e is (3*mine.M + mine.N) // 7 % 5 and kernel is mine.tripled
assert mapping.inputs == {tkl.sym.M: mapping.iterators[0]}
for run, result in zip((executor, native), wanted):
    assert np.array_equal(run(x), result) and np.array_equal(result, 3*x), run
print("the same")
"""


def test_another_process_reads_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / "kernels_of_mine.py").write_text(MODULE)
    paths = os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])
    write = "import pickle, sys, kernels_of_mine as m; pickle.dump(m.things(), open(sys.argv[1], 'wb'))"
    for seed, program in (("1", write), ("2", READ)):  # strings hash differently in the two
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "kept")],
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed, "TILEWRIGHT_CACHE_DIR": "off"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == "the same\n"


def test_text_and_pickle_of_a_tile_program_agree() -> None:
    program = doubled.trace()
    assert parse_tile(str(program)) == pickle.loads(pickle.dumps(program))
