"""Tasks dealt out by a table: each is done once, whoever does it, on CPUs and by waves of many lanes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright
import tilewright.block as tb
from tilewright import compile_text, errors
from tilewright.check.block import check
from tilewright.interpret.block.run import interpret
from tilewright.interpret.loop import HANDLERS
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.ir.core import Program
from tilewright.lower.gpu.lower import lower_waves
from tilewright.targets.registry import machine

EXAMPLES = Path(__file__).parents[2] / "examples" / "block"
HOPPER = machine("hopper")
TWICE = """block twice(%x: in global f32 (N, M, 8), %deal: in global i32 (R, L), %y: out global f32 (N, M, 8))
  param N = 3, M = 4, R = 5, L = 4
{
  tasks n in 0..N, m in 1..2*M step 2 schedule table of %deal {
    %from = view %x (i 8) -> [n, m//2, i]
    %to = view %y (i 8) -> [n, m//2, i]
    map %to = %from*2
  }
}"""


def deal(rows: int, places: int, tasks: int, seed: int = 0) -> np.ndarray:
    """Some order of the tasks in some places of a table; one row is empty where there is room."""
    chance = np.random.default_rng(seed)
    table = np.full((rows, places), -1, np.int32)
    free = [(r, p) for r in range(rows) for p in range(places) if r != 1 or rows * places < tasks + places]
    for task, place in enumerate(chance.permutation(len(free))[:tasks]):
        table[free[place]] = task
    return table


X = np.arange(96, dtype=np.float32).reshape(3, 4, 8)


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
@pytest.mark.parametrize("workers", [1, 2, 7])
def test_every_task_is_done_whatever_the_number_of_workers(target: str, workers: int) -> None:
    y = np.full_like(X, np.nan)
    compile_text(TWICE, target, workers=workers)(X, deal(5, 4, 12, workers), y)
    np.testing.assert_array_equal(y, 2 * X)


def test_a_table_says_in_which_order_a_worker_does_its_tasks() -> None:
    text = """block order(%deal: in global i32 (R, 3), %y: out global i32 (6))
      param R = 2
    {
      %next = alloc register i32 (1) by (1,1):(0,0)
      fill %next 0
      tasks t in 0..6 schedule table of %deal {
        %to = view %y (i 1) -> [t]
        copy %next -> %to
        map %next = %next + 1
      }
    }"""
    table = np.array([[4, 0, 5], [1, 3, 2]], np.int32)
    y = compile_text(text, "interpreter", workers=2)(table)
    np.testing.assert_array_equal(y, [1, 0, 2, 1, 0, 2])
    np.testing.assert_array_equal(compile_text(text, "interpreter", workers=1)(table), [1, 3, 5, 4, 0, 2])


def test_a_wrong_table_is_reported() -> None:
    run = compile_text(TWICE, "interpreter", workers=2)
    table = deal(5, 4, 12)
    for entry, fault, says in (
        (12, errors.OutOfBoundsFault, "names task 12; there are 12"),
        (int(table[table >= 0][1]), errors.ProtocolFault, "more than once"),
        (-1, errors.NotWrittenFault, "never written"),
    ):
        wrong = table.copy()
        wrong[tuple(np.argwhere(table >= 0)[0])] = entry
        with pytest.raises(fault, match=says):
            run(X, wrong)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("table of %deal", "table", "is of one tensor, not 0: schedule table of %deal"),
        ("table of %deal", "strided of %deal", "only `schedule table` takes a tensor"),
        ("table of %deal", "table of %x", "%x is in global f32 .*, not an argument `in global i32` .rows, tasks."),
        ("%deal: in global i32 (R, L)", "%deal: in global i32 (R)", "%deal is in global i32 .*, not an argument"),
        ("%deal: in", "%deal: inout", "%deal is inout global i32 .*, not an argument"),
    ],
)
def test_what_deals_tasks_out_is_an_argument_of_integers(old: str, new: str, says: str) -> None:
    with pytest.raises(errors.ProgramError, match=says):
        compile_text(TWICE.replace(old, new), "interpreter", {"L": 4})


def test_python_says_it_too() -> None:
    @tb.kernel("x86.avx512")
    def twice(
        x: tb.In("f32", "N", "M", 8), deal: tb.In("i32", "R", "L"), y: tb.Out("f32", "N", "M", 8), *, N=3, M=4, R=5, L=4
    ):
        for n, m in tb.tasks(N, (1, 2 * M, 2), table=deal):
            y[n, m // 2, :] = x[n, m // 2, :] * 2

    made = tilewright.compile(twice)
    assert "schedule table of %deal" in made.text("block")
    np.testing.assert_array_equal(made(X, deal(5, 4, 12)), 2 * X)


# -- waves of many lanes -----------------------------------------------------------------------------------------


def _product(name: str, params: dict[str, int], rows: int, places: int) -> tuple[Program, dict[str, np.ndarray]]:
    """A product of the examples, its tiles dealt out by a table."""
    text = (
        (EXAMPLES / f"{name}.block").read_text().replace("%a: in", f"%deal: in global i32 ({rows}, {places}), %a: in")
    )
    text = text.replace("0..TM*TN*CLUSTER", "0..TM*TN").replace("0..TM*TN", "0..TM*TN schedule table of %deal")
    program = bind(parse_block(text), params)
    check(program, HOPPER)
    chance = np.random.default_rng(3)
    shapes = {a.name: tuple(int(n) for n in a.type.shape) for a in program.args}
    tiles = -(-params["M"] // params["BM"]) * -(-params["N"] // params["BN"])
    kind = program.args[1].type.dtype.numpy
    arrays = {name: chance.integers(-3, 4, shapes[name]).astype(kind) for name in ("a", "b")}
    return program, {"deal": deal(rows, places, tiles, 1), **arrays, "d": np.zeros(shapes["d"], kind)}


@pytest.mark.parametrize("name", ["gemm_hopper", "gemm_hopper_pingpong"])
def test_roles_and_halves_follow_one_table(name: str) -> None:
    params = {"M": 200, "N": 136, "K": 72, "BM": 64, "BN": 64, "STAGES": 2}
    params |= {"WG": 1} if name == "gemm_hopper" else {}
    program, arrays = _product(name, params, 5, 4)
    wanted = arrays["a"].astype(np.float64) @ arrays["b"].astype(np.float64).T
    lowered = lower_waves(program, HOPPER)
    for form, handlers in ((program, None), (lowered, HANDLERS)):
        for workers in (1, 3):
            given = {n: a.copy() for n, a in arrays.items()}
            more = {} if handlers is None else {"handlers": handlers}
            interpret(form, given, HOPPER, seed=workers, workers=workers, **more)
            np.testing.assert_array_equal(given["d"].astype(np.float64), wanted.astype(given["d"].dtype))


def test_halves_that_take_turns_must_know_how_much_the_other_takes() -> None:
    text = (EXAMPLES / "gemm_hopper_pingpong.block").read_text()
    text = text.replace("for k in 0..ceildiv(K, 64)", "for k in 0..ceildiv(K, 64) + t%2*0 + min(t, 1)")
    program = bind(parse_block(text), {"M": 128, "N": 64, "BN": 64})
    with pytest.raises(errors.ProgramError, match="depends on the task, and a half does not know the other's"):
        lower_waves(program, HOPPER)


SHIFTED = """block shifted(%x: in global f32 (5, 64), %deal: in global i32 (R, 5), %y: out global f32 (5, 64))
  param R = 2
  waves 2
  machine hopper
{
  tasks t in 0..5 schedule table of %deal {
    %s = alloc shared f32 (64)
    %row = view %x (i 64) -> [t, i]
    copy %row -> %s
    barrier
    %back = view %s (i 64) -> [63 - i]
    %to = view %y (i 64) -> [t, i]
    copy %back -> %to
  }
}
"""


def test_waves_synchronise_between_tasks_of_a_table_that_reuse_shared_memory() -> None:
    """Nothing else keeps a wave from filling the memory for its next task while another one still reads it."""
    x = np.arange(320, dtype=np.float32).reshape(5, 64)
    table = np.array([[4, 0, 2, -1, -1], [1, 3, -1, -1, -1]], np.int32)
    y = np.full_like(x, np.nan)
    run = compile_text(SHIFTED, "interpreter")
    run(x, table, y)
    np.testing.assert_array_equal(y, x[:, ::-1])
    loop = compile_text(SHIFTED, "gpu:hopper").text("loop")
    assert loop.count("barrier") == 2, loop
    private = SHIFTED.replace("waves 2", "waves 1")
    assert "barrier" not in compile_text(private, "gpu:hopper").text("loop")
