"""Open sizes as machine code: one object for all of them, exact at every size, within the arrays it is given."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import open_programs
import pytest
from block_checks import conv_avx512, source
from guarded import guarded
from native_checks import succeeds
from open_programs import AFFINE, BF16, CONV, POINTWISE, PRODUCT, Problem, small

from tilewright.compiler.text import compile_text
from tilewright.errors import ArgumentError, MissingAtomWarning
from tilewright.runtime.codegen import HELPER
from tilewright.targets.cpu import host

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What code was asked for; none is kept from before."""
    found: list[str] = []
    ask = HELPER.ask

    def counted(request: Any, text: str) -> bytes:
        if "@pool_run" not in text:
            found.append(text)
        return ask(request, text)

    monkeypatch.setattr(HELPER, "ask", counted)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    return found


def native(text: str, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingAtomWarning)
        return compile_text(text, "cpu", **options)


def exact(program: Any, case: Problem, at: str | None = None, **options: Any) -> bool:
    """Whether the program gives what is wanted, in an array that was poisoned, perhaps beside protected pages."""
    arguments = [guarded(a, at) if at else a for a in case.arguments]
    poison = np.full(case.wanted.shape, np.nan if case.wanted.dtype.kind in "fV" else 85).astype(case.wanted.dtype)
    made = guarded(poison, at) if at else poison
    program.bind(*arguments, made, **options)()
    return np.array_equal(made, case.wanted)


# -- the four programs ----------------------------------------------------------------------------------------


def test_rows_and_columns_are_open(compiles: list[str]) -> None:
    program = native(AFFINE)
    for m, n in product((0, 1, 2, 5), (0, *range(1, 34), 97, 1000)):
        assert exact(program, open_programs.affine(m, n)), (m, n)
    assert len(compiles) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_product_by_vectors_with_open_rows(compiles: list[str], workers: int) -> None:
    program = native(PRODUCT, workers=workers)
    for m in (*range(1, 41), 97, 1000):
        assert exact(program, open_programs.product(m)), m
    assert len(compiles) == 1


def test_a_convolution_with_open_images(compiles: list[str]) -> None:
    program = native(CONV)
    widths = (1, 2, 6, 7, 8, 13, 14, 15, 20, 21, 22, 29)
    for n, h, w in (*product((1, 3), (1, 2, 3, 9), widths), (1, 30, 49), (2, 5, 70)):
        assert exact(program, open_programs.conv(n, h, w)), (n, h, w)
    assert len(compiles) == 1


@pytest.mark.skipif("amx.bf16" not in host.host_machine().multiply, reason="this CPU has no AMX")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_pointwise_convolution_by_tiles_with_open_rows(compiles: list[str], workers: int) -> None:
    program = native(POINTWISE, workers=workers)
    for m in (*range(1, 70), 96, 127, 128, 129, 200, 1000):
        assert exact(program, open_programs.pointwise(m)), m
    assert len(compiles) == 1


@pytest.mark.parametrize(
    "fixed",
    [{"PIX": 7}, {"PIX": 5, "STRIDE": 2}, {"PIX": 3, "R": 5, "S": 1, "PAD": 2}, {"PIX": 6, "R": 1, "S": 1, "PAD": 0}],
)
def test_the_example_with_all_sizes_open(compiles: list[str], fixed: dict[str, int]) -> None:
    """Images, channels and filters: every stride is an expression."""
    text = source("conv_avx512").replace(
        "param N = 1, H = 56, W = 56, C = 64, F = 64,",
        "param N in 1..99, H in 1..999, W in 1..999, C in 4..999 step 4, F in 32..999 step 32,",
    )
    program = native(text, params=fixed)
    stride, pad, r, s = (fixed.get(name, 3 if name in "RS" else 1) for name in ("STRIDE", "PAD", "R", "S"))
    done = 0
    for h, w, (n, c, f) in product((1, 4, 9), range(1, 22), ((1, 12, 32), (2, 4, 64))):
        p, q = (h + 2 * pad - r) // stride + 1, (w + 2 * pad - s) // stride + 1
        if p > 0 and q > 0 and q % fixed["PIX"] == 0:
            case = conv_avx512(N=n, H=h, W=w, C=c, F=f, **fixed)
            assert exact(program, Problem(case.arguments, case.wanted.astype(np.float32))), (h, w)
            done += 1
    assert done > 5
    assert len(compiles) == 1


def test_what_is_skipped_is_not_multiplied() -> None:
    """Zero times infinity would show."""
    program = native(CONV)
    for r, s in ((0, 0), (2, 2), (1, 2), (0, 1)):
        filters = np.zeros((3, 3, 16, 32), np.float32)
        filters[r, s] = np.inf
        for h, w in ((1, 1), (2, 7), (3, 9), (4, 22)):
            there = np.zeros((h + 2, w + 2), bool)
            there[1:-1, 1:-1] = True
            wanted = np.where(there[r : r + h, s : s + w], np.inf, 0).astype(np.float32)
            wanted = np.broadcast_to(wanted[None, :, :, None], (1, h, w, 32))
            x = np.ones((1, h, w, 16), np.float32)
            assert np.array_equal(program(x, filters.reshape(1, 144, 32, 1)), wanted), (r, s, h, w)


def test_nothing_beside_the_arrays_is_touched() -> None:
    """Run in a process of its own: a fault there ends it."""
    succeeds("""
        import open_programs as programs
        from test_sizes_native import exact, native
        for text, make, sizes in (
            (programs.AFFINE, programs.affine, ((1, 1), (3, 7), (2, 17), (1, 1031))),
            (programs.PRODUCT, programs.product, ((1,), (8,), (9,), (19,), (40,))),
            (programs.CONV, programs.conv, ((1, 1, 1), (1, 2, 7), (2, 3, 8), (1, 5, 15), (1, 3, 29))),
            (programs.POINTWISE, programs.pointwise, ((1,), (31,), (32,), (33,), (130,))),
        ):
            program = native(text)
            for size in sizes:
                for at in ("begin", "end"):
                    assert exact(program, make(*size), at), (size, at)
        """)


# -- what it becomes ------------------------------------------------------------------------------------------


def test_levels_keep_the_parameters() -> None:
    program = native(PRODUCT)
    assert "param M in 1..100000" in program.text("block")
    assert "param M in 1..100000" in program.text("loop")
    assert program.parameters() == {"M": range(1, 100000)}


def test_the_loop_program_is_a_program(compiles: list[str]) -> None:
    for text, make, sizes in (
        (PRODUCT, open_programs.product, {"M": 20}),
        (CONV, open_programs.conv, {"N": 2, "H": 3, "W": 17}),
    ):
        case = make(*sizes.values())
        lowered = native(native(text).text("loop"))
        assert exact(lowered, case, params=sizes)
        flat = Problem(tuple(a.reshape(-1) for a in case.arguments), case.wanted.reshape(-1))
        assert exact(lowered, flat, params=sizes)


@pytest.mark.skipif("avx512f" not in host.features(), reason="needs AVX-512: the program's atom")
def test_limits_are_worked_out_before_the_loops() -> None:
    """No division and no minimum of run-time values in a loop over blocks or within it."""
    text = re.sub(r"\nended\d+:.*?\ntask\d+:", "\n", native(CONV).text("llvm"), flags=re.DOTALL)  # without next tasks
    entry, _, rest = text.partition("\nloop")
    assert "udiv i64" in entry  # the number of blocks
    for line in rest.splitlines():
        assert "udiv" not in line or "%i" in line, line  # only the task's number is taken apart
    inner = [part for part in text.split("\nloop")[1:] if "llvm.fma" in part]
    assert inner
    for part in inner:
        assert "llvm.smin" not in part
        assert "div i64" not in part


def test_the_interior_of_a_peeled_loop_has_no_conditions() -> None:
    text = native(CONV).text("loop")
    middle = text[text.index("in 1..end") : text.index("in max(1, end")]
    assert " if " not in middle
    assert "if (" not in middle


def test_a_bound_parameter_gives_the_code_of_a_number(compiles: list[str]) -> None:
    bound = native(PRODUCT, params={"M": 100})
    number = native(PRODUCT.replace("  param M in 1..100000\n", "  param M = 100\n"))
    assert bound.text("block") == number.text("block")
    assert "param" not in bound.text("block")
    assert len(compiles) == 1


# -- further forms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["f32", "f64", "bf16", "f16", "i8", "i32", "i64"])
def test_every_element_type_has_a_ragged_end(kind: str) -> None:
    form: Any = {"bf16": BF16, "f32": np.float32, "f64": np.float64, "f16": np.float16}.get(kind) or f"int{kind[1:]}"
    text = f"""block edges(%x: in global {kind} (M, N), %y: out global {kind} (N, M),
    %z: out global {kind} (M + 2, N + 3))
  param M in 1..1000, N in 1..1000
{{
  tasks t in 0..1 {{
    %turned = view %x (i N, j M) -> [j, i]
    copy %turned -> %y
    %wide = view %x (i M + 2, j N + 3) -> [i - 1 ?, j - 2 ?]
    copy %wide -> %z else 3
  }}
}}
"""
    program, meaning = native(text), compile_text(text, target="interpreter")
    for m, n in ((1, 1), (3, 5), (17, 2), (4, 33), (8, 64)):
        x = small(m, n, form=form)
        y, z = program(x)
        assert np.array_equal(y, x.T)
        assert np.array_equal(z, np.pad(x, ((1, 1), (2, 1)), constant_values=np.asarray(3, form)))
        if m * n < 50:
            assert all(np.array_equal(a, b) for a, b in zip((y, z), meaning(x), strict=True))


def test_formulas_of_coordinates_and_branches() -> None:
    text = """block numbers(%y: out global i32 (M, N))
  param M in 1..100, N in 1..100
{
  tasks m in 0..M {
    %to = view %y (j N) -> [m, j]
    if (2*m < M) {
      map over (j N) %to = i32([N*m + j//2])
    } else {
      map over (j N) %to = i32([-m - j*M])
    }
  }
}
"""
    program, meaning = native(text), compile_text(text, target="interpreter")
    for m, n in ((1, 1), (3, 17), (8, 9)):
        y = np.zeros((m, n), np.int32)
        program.bind(y)()
        wanted = np.zeros((m, n), np.int32)
        meaning.bind(wanted)()
        assert np.array_equal(y, wanted)
        assert y[0, -1] == (n - 1) // 2


def test_strides_and_places_of_fused_rows_are_expressions() -> None:
    """A flat row number is taken apart by open sizes; tiles of rows lie at an open stride."""
    text = """block rows(%x: in global f32 (N, P, Q, C), %packed: in global f32 (1, 4, 16, 1),
    %y: out global f32 (N*P*Q, 16))
  machine x86.avx512
  param N in 1..100, P in 1..100, Q in 1..100, C in 4..100 step 4
{
  tasks block in 0..ceildiv(N*P*Q, 5) {
    %sums = alloc register f32 (5, 16) as avx512.f32.c
    fill %sums 0
    %taps = view %x (i 5, k 4) -> [(5*block + i)//(P*Q) ?, (5*block + i)//Q%P, (5*block + i)%Q, C - 4 + k]
    %columns = view %packed (k 4, j 16) -> [0, k, j, 0]
    mma %sums += %taps * %columns using avx512.f32 skip
    %goal = view %y (i 5, j 16) -> [5*block + i ?, j]
    map %goal = f32(%sums)
  }
}
"""
    program = native(text)
    b = small(4, 16, seed=1)
    for n, p, q, c in ((1, 1, 1, 4), (2, 3, 4, 8), (3, 1, 7, 12), (1, 5, 5, 4)):
        x = small(n, p, q, c)
        wanted = x[..., -4:].reshape(-1, 4) @ b
        assert exact(program, Problem((x, b.reshape(1, 4, 16, 1)), wanted)), (n, p, q, c)


@pytest.mark.skipif("amx.bf16" not in host.host_machine().multiply, reason="this CPU has no AMX")
def test_tiles_are_loaded_at_an_open_stride() -> None:
    text = POINTWISE.replace("(M, 64), %packed", "(M, C), %packed").replace(
        "param M in 1..1000000", "param M in 1..1000, C in 64..1000"
    )
    program = native(text)
    loads = [line for line in program.text("llvm").splitlines() if "call void @llvm.x86.tileload" in line]
    assert any("i64 %" in line.rpartition(",")[2] for line in loads)
    for m, c in ((1, 64), (40, 64), (64, 100), (130, 65)):
        case = open_programs.pointwise(m)
        wide = np.full((m, c), np.nan, BF16)
        wide[:, :64] = case.arguments[0]
        assert exact(program, Problem((wide, case.arguments[1]), case.wanted)), (m, c)


def test_an_argument_with_open_strides() -> None:
    text = """block padded(%x: in global f32 (M, N):(N + 3, 1), %y: out global f32 (M, N):(1, M))
  param M in 1..100, N in 1..100
{
  tasks m in 0..M {
    %row = view %x (j N) -> [m, j]
    %to = view %y (j N) -> [m, j]
    map %to = %row + 1
  }
}
"""
    program, meaning = native(text), compile_text(text, target="interpreter")
    for m, n in ((1, 1), (4, 5), (3, 19)):
        x = small(m, n)
        assert exact(program, Problem((x,), x + 1))
        assert np.array_equal(meaning(x), x + 1)


def test_a_step_saves_the_ragged_end() -> None:
    text = AFFINE.replace("N in 0..65536", "N in 16..65536 step 16")
    assert "if (" in native(AFFINE).text("loop")
    program = native(text)
    assert "if (" not in program.text("loop")
    for n in (16, 48):
        assert exact(program, open_programs.affine(3, n))


def test_loops_that_no_value_gives_a_round() -> None:
    for text, make in (
        (POINTWISE.replace("M in 1..1000000", "M in 1..20"), open_programs.pointwise),
        (PRODUCT.replace("M in 1..100000", "M in 1..9"), open_programs.product),
    ):
        program = native(text)
        assert exact(program, make(1))
        assert exact(program, make(8))


def test_a_cpu_without_the_atoms_runs_loops_of_the_same_meaning(
    compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = replace(host.host_machine(), multiply={})
    monkeypatch.setattr("tilewright.targets.cpu.target.host_machine", lambda: bare)
    for text, make, sizes in (
        (PRODUCT, open_programs.product, ((1,), (9,), (20,))),
        (CONV, open_programs.conv, ((1, 1, 1), (1, 2, 8), (2, 3, 15))),
        (POINTWISE, open_programs.pointwise, ((1,), (32,), (70,))),
    ):
        program = native(text)
        for size in sizes:
            assert exact(program, make(*size)), size
    assert len(compiles) == 3


def test_places_that_are_data_in_tensors_of_open_sizes() -> None:
    text = """block places(%table: in global f32 (V, 2), %which: in global i32 (M), %count: inout global i32 (V),
    %rows: out global f32 (M, 2), %turned: out global f32 (M, 2))
  param V in 1..1000, M in 1..1000
{
  tasks t in 0..1 {
    for m in 0..M {
      %tile = alloc shared f32 (1, 2)
      gather %tile (i 1, j 2), %table where v = %which[m + i] -> [v ?, j] else -1
      %to = view %rows (i 1, j 2) -> [m + i, j]
      copy %tile -> %to
      scatter %tile (i 1, j 2), %turned -> [M - 1 - m - i, j]
      %one = alloc shared i32 (1)
      fill %one 1
      atomic add %one (i 1), %count where v = %which[m + i] -> [v ?]
    }
  }
}
"""
    program = native(text)
    for v, m in ((3, 4), (10, 7), (1, 1)):
        table, which = small(v, 2), (np.arange(m) * 3 % (v + 2)).astype(np.int32)
        count = np.zeros(v, np.int32)
        found, turned = program(table, which, count)
        wanted = np.where((which < v)[:, None], table[np.minimum(which, v - 1)], -1)
        assert np.array_equal(found, wanted)
        assert np.array_equal(turned, wanted[::-1])
        assert np.array_equal(count, np.bincount(which[which < v], minlength=v))


@pytest.mark.parametrize("schedule", ["strided", "contiguous", "dynamic"])
def test_tasks_of_open_ranges_are_all_done_once(schedule: str) -> None:
    text = f"""block count(%x: inout global i32 (M, N))
  param M in 0..100, N in 0..100
{{
  tasks m in 1..M step 2, n in N//3..N schedule {schedule} {{
    %one = view %x (i 1) -> [m + i, n]
    map %one = %one + 1
  }}
}}
"""
    for workers in (1, 2):
        program = native(text, workers=workers)
        for m, n in ((0, 5), (1, 1), (2, 3), (7, 8), (10, 0), (9, 31)):
            x, wanted = np.zeros((m, n), np.int32), np.zeros((m, n), np.int32)
            wanted[1::2, n // 3 :] = 1
            program.bind(x)()
            assert np.array_equal(x, wanted), (m, n, workers)


def test_the_end_of_no_round_is_not_done() -> None:
    """A deferred end ran once also where its loop had no rounds at run time."""
    text = """block ends(%x: in global f32 (4, 16), %y: inout global f32 (4, 16))
  machine x86.avx512
{
  tasks t in 0..1 {
    %v = alloc register f32 (1, 16) as avx512.f32.c
    for f in 0..3 {
      for i in f..min(2, 3 - f) overlap defer {
        %from = view %x (r 1, j 16) -> [i + r, j]
        copy %from -> %v
      } finally {
        %to = view %y (r 1, j 16) -> [i + r, j]
        map %to = %v + 1
      }
    }
  }
}
"""
    x = small(4, 16)
    for target in ("interpreter", "cpu"):
        y = small(4, 16, seed=3)
        wanted = y.copy()
        for f in range(3):
            for i in range(f, min(2, 3 - f)):
                wanted[i] = x[i] + 1
        compile_text(text, target).bind(x, y)()
        assert np.array_equal(y, wanted), target


# -- host programs --------------------------------------------------------------------------------------------


def test_a_host_program_launches_one_object_with_many_sizes(compiles: list[str]) -> None:
    text = (
        """host twice(%x: in global f32 (A, B), %y: out global f32 (A, B))
  size A, B
{
  %between = workspace global f32 (A, B)
  launch affine(%x, %between) workers 2 with M = A, N = B
  launch affine(%between, %y) workers 1
}
"""
        + AFFINE
    )
    program, meaning = native(text), compile_text(text, target="interpreter")
    for m, n in ((1, 1), (3, 20), (7, 5)):
        x = small(m, n)
        y, z = np.full((2, m, n), np.nan, np.float32)
        program.bind(x, y)()
        meaning.bind(x, z)()
        assert np.array_equal(y, 4 * x + 3)
        assert np.array_equal(z, 4 * x + 3)
    assert len(compiles) == 1


def test_members_of_a_family_that_a_host_program_launches_are_kept_apart() -> None:
    """Parameters that are numbers make other code, open ones do not."""
    text = """host both(%x: in global f32 (A), %y: out global f32 (A), %z: out global f32 (A))
  size A
{
  launch add(%x, %y) workers 1 with K = 1
  launch add(%x, %z) workers 1 with K = 2, M = A
}

block add(%x: in global f32 (M), %y: out global f32 (M))
  param M in 1..100, K
{
  tasks t in 0..1 {
    map over (i M) %y = %x + f32([K*i])
  }
}
"""
    for target in ("interpreter", "cpu"):
        program = compile_text(text, target)
        for n in (3, 20):
            x = small(n)
            y, z = np.full((2, n), np.nan, np.float32)
            program.bind(x, y, z)()
            assert np.array_equal(y, x + np.arange(n)), target
            assert np.array_equal(z, x + 2 * np.arange(n)), target


def test_open_parameters_of_a_host_program_are_sizes_with_limits() -> None:
    text = """host f(%x: in global f32 (A, 3), %y: out global f32 (3*A))
  param A in 1..5, K in 1..4
{
  %flat = reshape %x [3*A]
  launch add(%flat, %y) workers 1 with M = 3*A, K = K
}

block add(%x: in global f32 (M), %y: out global f32 (M))
  param M in 1..100, K
{
  map over (i M) %y = %x + f32([K*i])
}
"""
    for target in ("interpreter", "cpu"):
        program = compile_text(text, target)
        for n, k in ((2, 1), (4, 3)):
            x = small(n, 3)
            assert np.array_equal(program(x, params={"K": k}), x.reshape(-1) + k * np.arange(3 * n)), target
        with pytest.raises(ArgumentError, match=r"x: dimension 0 is 5; f takes A in 1\.\.5"):
            program(small(5, 3), params={"K": 1})
        with pytest.raises(ArgumentError, match="f needs a value for K, which no shape tells"):
            program(small(2, 3))
