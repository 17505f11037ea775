"""Hand-written programs of the loop and host levels: exact results, and what is found wrong with broken ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from block_checks import BF16, small, sparse

from tilewright import errors
from tilewright.compiler.text import LEVELS, compile_text
from tilewright.ir.binding import bind
from tilewright.ir.module import Module
from tilewright.ir.parser import parse_programs
from tilewright.limits import ELEMENTS
from tilewright.runtime.host import HostExecutor
from tilewright.runtime.scripts import HostMemory

Array = np.ndarray[Any, np.dtype[Any]]

COPY = """loop copy(%x: in global f32 (N), %y: out global f32 (N))
  param N = 37
{
  %v = alloc vector f32 (16)
  for i in 0..N step 16 {
    prefetch %x[min(N - 1, i + 16)]
    load %v (l 16) = %x[i + l] if (i + l < N) else 0
    store %v (l 16) -> %y[i + l] if (i + l < N) stream
  }
}
"""

GEMM = """loop gemm(%a: in global f32 (M, K), %b: in global f32 (K, 32), %c: out global f32 (M, 32))
  machine x86.avx512
  param M = 5, K = 7
{
  tasks m in 0..M {
    %left = alloc vector f32 (16)
    %right = alloc vector f32 (16)
    %sum = alloc vector f32 (2, 16)
    %part = alloc vector f32 (16)
    for n in 0..2 {
      fill %part 0
      for k in 0..K {
        load %left (l 16) = %a[K*m + k]
        load %right (l 16) = %b[32*k + 16*n + l]
        atom avx512.f32 %part += %left * %right
      }
      store %part (l 16) -> %c[32*m + 16*n + l]
    }
  }
}
"""

AMX = """loop amx(%a: in global bf16 (M, 64), %b: in global bf16 (2, 16, 16, 2), %c: out global f32 (M, 16))
  machine x86.amx
  param M = 32
{
  %at = alloc vector bf16 (16, 32)
  %bt = alloc vector bf16 (16, 32)
  %ct = alloc vector f32 (16, 16)
  tasks m in 0..M//16 {
    fill %ct 0
    for k in 0..2 {
      load %at (r 16, c 32) = %a[1024*m + 64*r + 32*k + c] by amx.tileload
      load %bt (r 16, c 32) = %b[512*k + 32*r + c]
      atom amx.bf16 %ct += %at * %bt
    }
    store %ct (r 16, c 16) -> %c[256*m + 16*r + c]
  }
}
""".replace(" by amx.tileload", "")

ROLES = """loop roles(%x: in global i32 (T, 64), %y: out global i32 (T, 64))
  param T = 6, STAGES = 2
{
  %ring = alloc shared i32 (STAGES, 64)
  %tiles = channel %ring stages STAGES from producer to consumer
  role producer waves 1 {
    %v = alloc vector i32 (32)
    tasks t in 0..T {
      %to = acquire %tiles
      for h in 0..2 {
        load %v (l 32) = %x[64*t + 32*h + l]
        store %v (l 32) -> %to[32*h + l]
      }
      commit %tiles
    }
  }
  role consumer waves 2 (w 2) {
    %own = alloc vector i32 (32)
    %u = alloc vector i32 (32)
    %s = alloc vector i32 ()
    tasks t in 0..T {
      %from = wait %tiles
      load %own (l 32) = %from[32*w + l]
      release %tiles
      shuffle %u (l 32) = %own[1 ^ l]
      reduce %own -> %s with max
      compute over (l 32) %u = %u*2 + i32([l]) - %s
      store %u (l 32) -> %y[64*t + 32*w + l]
    }
  }
}
"""

HOST = """host scale(%x: in global f32 (M, N), %w: in global f32 (N), %y: out global f32 (M, N))
  size M, N
{
  bind {
    %packed = workspace global f32 (N)
    launch double(%w, %packed) workers 1 with N = N
  }
  if (M == 0) {
    return
  }
  let rows = (M + 1)//2
  %order = workspace global i32 (M)
  table %order (i M) = (M - i - 1)
  %half = workspace global f32 (M, N)
  launch turn(%x, %order, %half) workers rows with M = M, N = N
  launch times(%half, %packed, %y) workers 2 with M = M, N = N
}

block double(%x: in global f32 (N), %y: out global f32 (N))
  param N
{
  map %y = %x + %x
}

block turn(%x: in global f32 (M, N), %order: in global i32 (M), %y: out global f32 (M, N))
  param M, N
{
  tasks m in 0..M {
    %line = alloc register f32 (N) by 1:1
    gather %line (j N), %x where r = %order[m] -> [r, j]
    %to = view %y (j N) -> [m, j]
    copy %line -> %to
  }
}

block times(%x: in global f32 (M, N), %w: in global f32 (N), %y: out global f32 (M, N))
  param M, N
{
  tasks m in 0..M {
    %line = view %x (j N) -> [m, j]
    %to = view %y (j N) -> [m, j]
    map %to = %line*%w
  }
}
""".replace("%line = alloc register f32 (N) by 1:1", "%line = alloc shared f32 (N)")


def whole(*shape: int, form: Any = np.float32) -> Array:
    return small(len(shape), *shape, form=form, most=9)


# -- the loop level -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 15, 16, 17, 37, 64])
def test_a_vector_copy_with_a_mask(n: int) -> None:
    x = whole(n)
    assert np.array_equal(compile_text(COPY, params={"N": n}, target="interpreter")(x), x)


@pytest.mark.parametrize(("m", "k", "workers"), [(5, 7, 1), (1, 1, 2), (4, 16, 3)])
def test_a_product_with_vector_multiply_adds(m: int, k: int, workers: int) -> None:
    a, b = whole(m, k), whole(k, 32)
    found = compile_text(GEMM, params={"M": m, "K": k}, workers=workers, target="interpreter")(a, b)
    assert np.array_equal(found, a @ b)


@pytest.mark.parametrize("m", [16, 48])
def test_a_product_with_tiles(m: int) -> None:
    a, b = sparse(0, m, 64, keep=0.5), sparse(1, 64, 16, keep=0.5)
    packed = np.ascontiguousarray(b.reshape(2, 16, 2, 16).transpose(0, 1, 3, 2))
    found = compile_text(AMX, params={"M": m}, target="interpreter")(a, packed)
    assert np.array_equal(found, a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_two_roles_with_a_channel_under_every_schedule(stages: int) -> None:
    x = whole(6, 64, form=np.int32)
    halves = x.reshape(6, 2, 32)
    turned = halves[..., np.arange(32) ^ 1]
    wanted = (turned * 2 + np.arange(32) - halves.max(-1, keepdims=True)).reshape(6, 64)
    for seed in range(6):
        found = compile_text(ROLES, params={"STAGES": stages}, workers=1 + seed % 3, seed=seed, target="interpreter")(x)
        assert np.array_equal(found, wanted)


def test_numbers_in_registers_become_addresses_and_end_loops() -> None:
    text = """loop follow(%next: in global i32 (8), %y: out global i32 (1), %trace: inout global i32 (8))
{
  %at = alloc vector i32 ()
  %more = alloc vector i32 ()
  %one = alloc vector i32 ()
  %count = alloc vector i32 ()
  fill %at 0
  fill %more 1
  fill %one 1
  fill %count 0
  while %more {
    read i = %at
    store %one () -> %trace[i]
    load %at () = %next[i]
    compute %more = i32(%at != 0)
    compute %count = %count + 1
  }
  store %count () -> %y[0]
}
"""
    trace = np.zeros(8, np.int32)
    count = np.zeros(1, np.int32)
    compile_text(text, target="interpreter")(np.array([3, 0, 1, 5, 0, 2, 7, 6], np.int32), count, trace)
    assert count[0] == 5
    assert np.array_equal(trace, [1, 1, 1, 1, 0, 1, 0, 0])


LOOP_FAULTS = [
    (COPY, (" if (i + l < N) else 0", ""), errors.OutOfBoundsFault, "touches element 37 of %x, which has 37"),
    (COPY, ("%y[i + l] if (i + l < N)", "%y[i + l] if (i + l <= N)"), errors.OutOfBoundsFault, "element 37 of %y"),
    (COPY, ("if (i + l < N) stream", "if (i + l < N - 1) stream"), errors.NotWrittenFault, "1 of 37 elements of %y"),
    (COPY, ("0..N step 16", "0..N step 32"), errors.NotWrittenFault, "of %y"),
    (COPY, ("%x[i + l] if (i + l < N) else 0", "%x[i + l] if (i + l < N)"), errors.ProgramError, "`if` and `else`"),
    (COPY, ("(l 16) = %x", "(l 8) = %x"), errors.DimensionMismatch, "does not run over"),
    (GEMM, ("      fill %part 0\n", ""), errors.UninitialisedFault, "reads %part, which nothing wrote"),
    (GEMM, ("%c[32*m + 16*n + l]", "%c[32*(m//2) + 16*n + l]"), errors.RaceFault, "another task, or another worker"),
    (GEMM, ("avx512.f32 %part", "avx512.f3 %part"), errors.TilewrightError, "avx512.f3"),
    (AMX, ("    fill %ct 0\n", ""), errors.UninitialisedFault, "%ct"),
    (ROLES, ("      release %tiles\n", ""), errors.DeadlockFault, "of %tiles to be free"),
    (
        ROLES,
        ("      release %tiles\n      shuffle", "      shuffle"),
        errors.DeadlockFault,
        "waits for stage 0 of %tiles to be free",
    ),
    (
        ROLES,
        (
            ("      load %own (l 32) = %from[32*w + l]\n      release %tiles\n"),
            ("      release %tiles\n      load %own (l 32) = %from[32*w + l]\n"),
        ),
        errors.ProtocolFault,
        "after it was released",
    ),
    (ROLES, ("for h in 0..2 {", "for h in 0..1 {"), errors.UninitialisedFault, "of %ring, which nothing wrote"),
    (ROLES, ("%from[32*w + l]", "%from[32*w + l + 1]"), errors.OutOfBoundsFault, "touches element 64"),
    (ROLES, ("-> %y[64*t + 32*w + l]", "-> %y[64*t + l]"), errors.RaceFault, "%y"),
    (ROLES, ("%own[1 ^ l]", "%own[l + 1]"), errors.OutOfBoundsFault, "takes lane 32 of 32"),
    (
        ROLES,
        (
            ("      %from = wait %tiles\n      load %own (l 32) = %from[32*w + l]\n"),
            ("      load %own (l 32) = %ring[64*(t%STAGES) + 32*w + l]\n      %from = wait %tiles\n"),
        ),
        (errors.RaceFault, errors.UninitialisedFault),
        "of %ring",
    ),
]


@pytest.mark.parametrize(("text", "edit", "error", "says"), LOOP_FAULTS, ids=[f[3] for f in LOOP_FAULTS])
def test_faults_of_loop_programs_are_found(text: str, edit: tuple[str, str], error: Any, says: str) -> None:
    assert edit[0] in text
    arguments: dict[str, tuple[Array, ...]] = {
        COPY: (whole(37),),
        GEMM: (whole(5, 7), whole(7, 32)),
        AMX: (sparse(0, 32, 64), sparse(1, 2, 16, 16, 2)),
        ROLES: (whole(6, 64, form=np.int32),),
    }
    for seed in range(3):
        with pytest.raises(error) as report:
            compile_text(text.replace(edit[0], edit[1]), workers=1 + seed % 2, seed=seed, target="interpreter")(
                *arguments[text]
            )
        assert says in str(report.value)


# -- the host level -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (8, 2)])
def test_a_host_program_with_sizes_a_table_and_several_launches(shape: tuple[int, int]) -> None:
    x, w, y = whole(*shape), whole(shape[1]), np.full(shape, np.nan, np.float32)
    compile_text(HOST, target="interpreter")(x, w, y)
    assert np.array_equal(y, x[::-1] * (2 * w))


def test_a_launch_without_arguments_is_read_back() -> None:
    """A kernel that has nothing to do takes none of its arguments; the text of its launch could not be read."""
    text = "host f()\n{\n  launch nothing() workers 1\n}\n\nblock nothing()\n{\n}\n"
    assert compile_text(text, target="interpreter").text() == text


def test_a_problem_without_rows_ends_on_the_host() -> None:
    y = np.zeros((0, 4), np.float32)
    compile_text(HOST, target="interpreter")(np.zeros((0, 4), np.float32), whole(4), y)
    assert y.shape == (0, 4)


class Recording(HostMemory):
    """A device that only notes what it is asked to launch."""

    room = ELEMENTS

    def __init__(self) -> None:
        self.launched: list[tuple[str, int, dict[str, int]]] = []

    def prepare(self, program: Any, params: Any) -> Any:
        def launch(arrays: Any, workers: int, late: Any) -> Any:
            return lambda: self.launched.append((program.name, workers, {**params, **late}))

        return SimpleNamespace(launch=launch)


def recorded(text: str) -> tuple[Recording, HostExecutor]:
    host, *others = parse_programs(text, LEVELS)
    device = Recording()
    return device, HostExecutor(Module.of(bind(host), others), device)


def test_what_is_bound_once_is_not_done_again_at_every_launch() -> None:
    device, executor = recorded(HOST)
    launch = executor.bind([whole(3, 5), whole(5), whole(3, 5)])
    assert device.launched == [("double", 1, {"N": 5})]
    launch()
    launch()
    each = [("turn", 2, {"M": 3, "N": 5}), ("times", 2, {"M": 3, "N": 5})]
    assert device.launched[1:] == each * 2


def test_what_is_kept_is_not_done_again_for_other_arguments_unless_it_depends_on_them() -> None:
    device, executor = recorded(HOST)
    kept = executor.keep([whole(3, 5), whole(5), whole(3, 5)])
    for rows, columns, packed in ((3, 5, 0), (7, 5, 0), (3, 4, 1)):
        device.launched.clear()
        executor.bind([whole(rows, columns), whole(columns), whole(rows, columns)], kept=kept)
        assert [name for name, _, _ in device.launched] == ["double"] * packed


@pytest.mark.parametrize(
    ("edit", "error", "says"),
    [
        (("launch turn(%x, %order, %half)", "launch turn(%x, %half)"), errors.ProgramError, "takes 3 arguments, not 2"),
        (("launch turn(", "launch twist("), errors.ProgramError, "the text holds no program twist"),
        (("= (M - i - 1)", "= (M - i)"), errors.OutOfBoundsFault, "leaves 0..3"),
        (("with M = M, N = N\n}", "with M = M\n}"), errors.ArgumentError, "needs a value for N"),
        (("times(%half, %packed", "times(%half, %half"), errors.ArgumentError, "w is float32 of shape (3, 5)"),
        (("i32 (M)\n  table", "f32 (M)\n  table"), errors.ProgramError, "it holds integers"),
    ],
)
def test_faults_of_host_programs_are_found(edit: tuple[str, str], error: type[Exception], says: str) -> None:
    assert edit[0] in HOST
    with pytest.raises(error) as report:
        compile_text(HOST.replace(*edit), "interpreter")(whole(3, 5), whole(5), np.zeros((3, 5), np.float32))
    assert says in str(report.value)


def test_a_workspace_that_is_read_before_it_is_written_is_found() -> None:
    for gone in (
        "  launch turn(%x, %order, %half) workers rows with M = M, N = N\n",
        "  table %order (i M) = (M - i - 1)\n",
    ):
        assert gone in HOST
        arrays = [whole(3, 5), whole(5), whole(3, 5)]
        recorded(HOST)[1].bind(arrays)()
        with pytest.raises(errors.UninitialisedFault, match=r"reads %(half|order), which nothing wrote"):
            recorded(HOST.replace(gone, ""))[1].bind(arrays)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (((3, 5), (4,), (3, 5)), "w: dimension 0 is 4, but dimension 1 of x says that N is 5"),
        (((3, 5), (5,), (4, 5)), "y: dimension 0 is 4, but dimension 0 of x says that M is 3"),
        (((3,), (5,), (3, 5)), "x is float32 of shape (3,)"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments: Any, says: str) -> None:
    with pytest.raises(errors.ArgumentError) as report:
        compile_text(HOST, target="interpreter")(*(np.zeros(shape, np.float32) for shape in arguments))
    assert says in str(report.value)


@pytest.mark.parametrize("text", [COPY, GEMM, AMX, ROLES, HOST], ids=["copy", "gemm", "amx", "roles", "host"])
def test_programs_of_all_levels_print_and_read_back(text: str) -> None:
    programs = parse_programs(text, LEVELS)
    again = parse_programs("\n".join(map(str, programs)), LEVELS)
    assert again == programs
    assert "\n".join(map(str, programs)) == text


def test_element_types_of_the_arguments_are_checked() -> None:
    with pytest.raises(errors.ArgumentError, match="x is bfloat16"):
        compile_text(COPY, target="interpreter")(np.zeros(37, BF16))


def test_what_is_launched_takes_its_arguments_in_global_memory() -> None:
    text = "host f(%y: out global f32 (4)) { launch zero(%y) workers 1 }\n"
    text += "block zero(%y: out register f32 (4)) { fill %y 0 }\n"
    with pytest.raises(errors.ProgramError, match=r"%y of zero is register f32 \(4\); arguments lie in global memory"):
        compile_text(text, "interpreter")
