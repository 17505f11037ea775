"""Programs as machine code: arguments checked when they are bound, exact results, nothing that hangs or crashes."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_checks import Case, conv_amx, conv_avx512, exactly, source
from native_checks import affine, succeeds, whole

from tilewright.compiler.text import compile_text
from tilewright.errors import ArgumentError, MissingAtomWarning, ProgramError, TargetError
from tilewright.ir.block import parse_block
from tilewright.ir.loop import parse_loop
from tilewright.targets import registry
from tilewright.targets.cpu import entry, host, native
from tilewright.targets.cpu.families import is_cpu
from tilewright.targets.registry import MACHINES, machine
from tilewright.targets.x86 import features as x86


def native_run(case: Case, target: str = "cpu", **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingAtomWarning)
        return compile_text(source(case.name), target, case.params, **options)(*case.arguments)


# -- arguments ------------------------------------------------------------------------------------------------


def test_arguments_are_checked_when_they_are_bound() -> None:
    program = compile_text(affine(), "cpu")
    x, y = whole(5, 37), np.zeros((5, 37), np.float32)
    strided = np.zeros((5, 74), np.float32)[:, ::2]
    fixed = np.zeros((5, 37), np.float32)
    fixed.flags.writeable = False
    askew = np.frombuffer(bytearray(5 * 37 * 4 + 1), np.uint8)[1:].view(np.float32).reshape(5, 37)
    for arguments, text in (
        ((whole(5, 36), y), r"x has the shape \(5, 36\); affine takes \(5, 37\)"),
        ((whole(37, 5), y), r"x has the shape \(37, 5\)"),
        ((whole(185), y), r"x has the shape \(185,\)"),
        ((x, np.zeros((5, 38), np.float32)), r"y has the shape \(5, 38\)"),
        ((x.astype(np.float64), y), "x holds float64; affine takes f32"),
        ((x, y.astype(np.int32)), "y holds int32; affine takes f32"),
        ((x.astype(">f4"), y), "x holds >f4"),
        ((strided, y), r"x is not contiguous; pass np.ascontiguousarray\(x\)"),
        ((np.asfortranarray(x), y), "x is not contiguous"),
        ((x, strided), "y is not contiguous"),
        ((x, fixed), "y is written, but the array given is read-only"),
        ((askew, y), "x does not lie at a multiple of its element size"),
        ((x, x), "y, which is written, shares memory with x"),
        ((), "the argument x is missing"),
        ((x,), "bind takes all arguments; y is missing"),
        ((x, y, y), r"affine takes 2 arguments \(x, y\), not 3"),
    ):
        with pytest.raises(ArgumentError, match=text):
            program.bind(*arguments)
    fixed_input = x.copy()
    fixed_input.flags.writeable = False
    program.bind(fixed_input, y)()
    assert np.array_equal(y, x * 2 + 1)


@pytest.mark.parametrize("workers", [0, -1])
def test_a_number_of_workers_that_cannot_be_is_refused(workers: int) -> None:
    """-1 used to run for ever."""
    with pytest.raises(ArgumentError, match=f"workers={workers}"):
        compile_text(affine(), "cpu", workers=workers)


def test_outputs_that_are_left_out_are_made() -> None:
    x = whole(5, 37)
    found = compile_text(affine(3, 4), "cpu")(x)
    assert found.dtype == np.float32
    assert np.array_equal(found, x * 3 + 4)
    given = np.full((5, 37), np.nan, np.float32)
    assert compile_text(affine(3, 4), "cpu")(x, given) is None
    assert np.array_equal(given, found)


def test_strided_and_swizzled_arguments_mean_what_they_mean_on_the_interpreter() -> None:
    """The machine code used to read and write past the end of arrays that are packed."""
    text = """block strided(%x: in global f32 (4, 8):(24, 2), %y: out global f32 (4, 8):(1, 5),
    %z: inout global f32 (4, 8) swizzle <1,2,1>)
{
  tasks m in 0..4 {
    %row = view %x (j 8) -> [m, j]
    %to = view %y (j 8) -> [m, j]
    %old = view %z (j 8) -> [m, j]
    map %to = %row + %old
    map %old = %row*2
  }
}
"""
    x, results = whole(4, 8), []
    for target in ("interpreter", "cpu"):
        y, z = np.full((4, 8), np.nan, np.float32), whole(4, 8) * 100
        launch = compile_text(text, target).bind(x, y, z)
        launch()
        launch()
        results.append((y, z))
    assert np.array_equal(results[0][0], x * 3)
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)


def test_a_program_without_tasks_to_do_does_nothing() -> None:
    y = np.full((0, 37), np.nan, np.float32)
    compile_text(affine(), "cpu", {"M": 0}).bind(whole(0, 37), y)()
    assert compile_text(affine(), "cpu", {"M": 0})(whole(0, 37)).shape == (0, 37)


def test_several_roles_are_refused_by_name() -> None:
    with pytest.raises(ProgramError, match=r"has several roles \(producer, consumer\)"):
        compile_text(source("gemm_hopper"), "cpu")


# -- results --------------------------------------------------------------------------------------------------

AMX_CASES = [
    {},
    {"H": 5, "W": 7, "STRIP": 5},
    {"H": 4, "W": 3, "F": 64, "SPLIT": 2, "STRIP": 2, "R": 1, "S": 1, "PAD": 0},
]
AVX_CASES = [{}, {"H": 5, "W": 7, "PIX": 7}, {"H": 7, "W": 9, "STRIDE": 2, "PIX": 5, "F": 64, "SPLIT": 2}]


@pytest.mark.parametrize("workers", [None, 1, 2])
def test_the_examples_are_exact_on_whatever_x86_this_is(workers: int | None) -> None:
    for case in (*(conv_amx(**p) for p in AMX_CASES), *(conv_avx512(**p) for p in AVX_CASES)):
        assert case.wanted is not None
        assert exactly(native_run(case, workers=workers), case.wanted), case.params


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [n for n in MACHINES if is_cpu(n)])
def test_machines_with_less_are_served(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without avx512bf16 the code used to call a conversion that no Python process has."""
    target = registry.native(f"cpu:{name}")
    monkeypatch.setattr(entry, "_reported", set())
    case = conv_amx()
    if not target.runs:
        program = compile_text(source(case.name), target.name, case.params)
        assert program.text("asm")
        with pytest.raises(TargetError, match=f"code for {name} does not run here: this CPU is"):
            program(*case.arguments)
        pytest.skip(f"code for {name} does not run here")
    if "amx.bf16" not in target.machine.multiply:
        with pytest.warns(MissingAtomWarning, match=rf"{name} has no amx\.bf16: its products run as loops"):
            program = compile_text(source(case.name), target.name, case.params)
        assembly = program.text("asm")
        assert "tdpbf16ps" not in assembly
        assert ("zmm" in assembly) <= ("avx512f" in target.machine.features)
    else:
        program = compile_text(source(case.name), target.name, case.params)
    assert case.wanted is not None
    assert exactly(program(*case.arguments), case.wanted)
    case = conv_avx512()
    assert case.wanted is not None
    assert exactly(native_run(case, target=target.name), case.wanted)


def test_a_cpu_feature_that_is_off_stays_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(x86, "detect", lambda: frozenset({"avx2", "fma"}))
    flags = x86.host_features().split(",")
    assert "+avx2" in flags
    assert "-avx512f" in flags
    assert flags.index("-avx512f") > max(flags.index(f) for f in flags if f.startswith("+"))


@pytest.mark.skipif("amx-bf16" not in host.features(), reason="needs AMX")
def test_tiles_are_used_where_the_cpu_has_them() -> None:
    case = conv_amx()
    assert "tdpbf16ps" in compile_text(source(case.name), "cpu", case.params).text("asm")


@pytest.mark.skipif("avx512f" not in host.features(), reason="needs AVX-512")
def test_wide_vectors_are_used_where_the_cpu_has_them() -> None:
    case = conv_avx512()
    assert re.search(r"vfmadd\w+ps.*zmm", compile_text(source(case.name), "cpu", case.params).text("asm"))


def test_a_damaged_entry_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    x = whole(5, 37)
    compile_text(affine(7, 8), "cpu")(x)
    files = [path for path in tmp_path.glob("??/*") if path.is_file()]
    assert files
    before = {path: path.read_bytes() for path in files}
    for path, data in before.items():
        path.write_bytes(data[:-7] + b"garbage")
    assert np.array_equal(compile_text(affine(7, 8), "cpu")(x), x * 7 + 8)
    kernels = [path for path, data in before.items() if b'"faults"' in data]
    assert kernels
    assert all(path.read_bytes() == before[path] for path in kernels)


def test_a_second_compile_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    x = whole(5, 37)
    first = compile_text(affine(7, 9), "cpu")
    first(x)

    def never(*_: Any) -> bytes:
        raise AssertionError("the program was compiled again")

    monkeypatch.setattr(native.HELPER, "ask", never)
    assert np.array_equal(compile_text(affine(7, 9), "cpu")(x), first(x))
    with pytest.raises(AssertionError, match="compiled again"):
        compile_text(affine(7, 10), "cpu")
    with pytest.raises(AssertionError, match="compiled again"):
        compile_text(affine(7, 9), "cpu", {"M": 6})
    with monkeypatch.context() as patch:
        patch.setattr("tilewright.targets.cpu.target.host_machine", lambda: machine("portable"))
        with pytest.raises(AssertionError, match="compiled again"):
            compile_text(affine(7, 9), "cpu")


# -- host programs --------------------------------------------------------------------------------------------

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
  launch times(%x, %packed, %y) workers 2 with M = M, N = N
}

block double(%x: in global f32 (N), %y: out global f32 (N))
  param N
{
  map %y = %x + %x
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
"""


@pytest.mark.parametrize(("m", "n"), [(3, 5), (1, 16), (7, 33), (0, 4)])
def test_a_host_program_natively(m: int, n: int) -> None:
    x, w = whole(m, n), whole(n) + 1
    y = np.full((m, n), np.nan, np.float32)
    compile_text(HOST, "cpu").bind(x, w, y)()
    assert np.array_equal(y, x * w * 2)


def test_what_a_host_program_packs_is_packed_once() -> None:
    x, w, y = whole(3, 5), whole(5) + 1, np.zeros((3, 5), np.float32)
    bound = compile_text(HOST, "cpu").bind(x, w, y)
    bound()
    before = w.copy()
    w[:] = 100
    x += 1
    bound()
    assert np.array_equal(y, x * before * 2)


# -- dumps and settings ---------------------------------------------------------------------------------------


def test_every_level_is_dumped_and_numbered_by_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path / "made" / "here"))
    x = whole(5, 37)
    for _ in range(2):
        program = compile_text(affine(5, 6), "cpu")
    files = sorted((tmp_path / "made" / "here").iterdir())
    steps = [re.fullmatch(r"\d+-(\d+)-affine-(\d+-\w+\.\w+)", f.name) for f in files]
    assert all(steps)
    found = [(int(s[1]), s[2]) for s in steps if s]
    wanted = ["00-bind.block", "01-lower.loop", "02-emit.ll", "03-generate.s"]
    first = found[0][0]
    assert found == [(first + i, step) for i in range(2) for step in wanted]
    block, loop, llvm, assembly = (f.read_text() for f in files[:4])
    assert str(parse_block(block)) == block == program.text("block")
    assert str(parse_loop(loop)) == loop == program.text("loop")
    assert llvm == program.text("llvm")
    assert assembly == program.text("asm")
    monkeypatch.delenv("TILEWRIGHT_DUMP")
    wanted_result = x * 5 + 6
    assert np.array_equal(compile_text(block, "cpu")(x), wanted_result)
    assert np.array_equal(compile_text(loop, "cpu")(x.reshape(-1)).reshape(5, 37), wanted_result)
    assert np.array_equal(compile_text(loop, target="interpreter")(x.reshape(-1)).reshape(5, 37), wanted_result)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_number_of_threads_is_respected(count: int) -> None:
    printed = succeeds(
        """
        import threading
        from native_checks import affine, whole
        from tilewright import compile_text
        from tilewright.targets.cpu.pool import pool

        x = whole(5, 37)
        program = compile_text(affine(), "cpu")
        for _ in range(100):
            assert (program(x) == x * 2 + 1).all()
        names = [t.name for t in threading.enumerate() if t.name.startswith("tilewright-")]
        print(pool().workers, len(names))
        """,
        TILEWRIGHT_THREADS=str(count),
    )
    assert printed.split() == [str(count), str(count - 1)]
