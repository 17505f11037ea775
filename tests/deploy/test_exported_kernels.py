"""Exported kernels do what the compiled ones do, bit by bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from exported_kernels import CASES, SEVERAL, arrays_for, compiled, run_compiled
from more_exported_kernels import BRANCHES

import tilewright
import tilewright.block as tb
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import ArgumentError, ExecutionError, ProgramError
from tilewright.kernels import gather_rows, gemm

M, N = tkl.sym.M, tkl.sym.N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8)


@pytest.mark.sampled(11)
@pytest.mark.parametrize("form", ["object", "shared"])
@pytest.mark.parametrize("name", CASES)
def test_an_exported_kernel_gives_the_bits_of_the_compiled_one(name, form, tmp_path):
    own = compiled(name)
    files = tilewright.export(own, tmp_path / name, format=form, name=name)
    loaded = tilewright.load(files.code)
    given = arrays_for(loaded.manifest, np.random.default_rng(7), SEVERAL.get(name))
    wanted, before = [a.copy() for a in given], [a.copy() for a in given]
    run_compiled(own, wanted, SEVERAL.get(name))
    run = loaded.bind(*given)
    run()
    for mine, theirs in zip(given, wanted, strict=True):
        assert (bits(mine) == bits(theirs)).all()
    for mine, old in zip(given, before, strict=True):
        mine[...] = old
    run()
    for mine, theirs in zip(given, wanted, strict=True):
        assert (bits(mine) == bits(theirs)).all()


# -- host programs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 4, 5, 17])
def test_branches_tables_fills_and_reshapes_are_done_as_the_host_program_says(count, tmp_path):
    own = tilewright.compile_text(BRANCHES)
    loaded = tilewright.load(tilewright.export(own, tmp_path / "branches").code)
    x = np.arange(count, dtype=np.int32)
    mine, theirs = ((np.empty(count, np.int32), np.zeros((2, 4), np.int32)) for _ in range(2))
    loaded(x, *mine)
    own(x, *theirs)
    assert all((a == b).all() for a, b in zip(mine, theirs, strict=True))


def test_an_empty_size_that_the_host_program_takes_divides_by_no_zero(tmp_path):
    """`60//N` stands in a branch that is not taken for N = 0; sizes of all branches are worked out."""
    loaded = tilewright.load(tilewright.export(BRANCHES, tmp_path / "branches").code)
    z = np.zeros((2, 4), np.int32)
    loaded(np.empty(0, np.int32), np.empty(0, np.int32), z)
    assert (z == 0).all()


def test_memory_that_bind_and_every_call_write_is_refused(tmp_path):
    """Calls that run at the same time share what `bind` wrote."""
    text = """host sums(%x: in global f32 (8), %y: out global f32 (8))
    {
      bind {
        %t = workspace global f32 (8)
        fill %t 0
      }
      launch add(%x, %t) workers 1
      launch copied(%t, %y) workers 1
    }
    block add(%x: in global f32 (8), %t: inout global f32 (8)) { map %t = %t + %x }
    block copied(%t: in global f32 (8), %y: out global f32 (8)) { map %y = %t + 0 }
    """
    with pytest.raises(ProgramError, match="%t is written by `bind` and by every call"):
        tilewright.export(text, tmp_path / "sums")


def test_one_block_program_is_exported_with_its_open_sizes(tmp_path):
    text = """block scaled(%x: in global f32 (M, 2*K), %y: out global f32 (M, 2*K))
      param M in 1..100, K in 1..8
    {
      tasks m in 0..M {
        %row = view %x (j 2*K) -> [m, j]
        %to = view %y (j 2*K) -> [m, j]
        map %to = %row * 3
      }
    }"""
    loaded = tilewright.load(tilewright.export(text, tmp_path / "scaled").code)
    x = np.arange(5 * 6, dtype=np.float32).reshape(5, 6)
    assert (loaded(x) == 3 * x).all()
    with pytest.raises(ArgumentError, match="scaled: the size M must be from 1 to 99"):
        loaded(np.zeros((200, 6), np.float32))


def test_a_block_kernel_is_exported(tmp_path):
    @tb.kernel()
    def double(x: tb.In("f32", "M", "N"), y: tb.Out("f32", "M", "N"), *, M: tb.Size(1, 65536), N=3):
        for m in tb.tasks(M):
            y[m, :] = 2 * x[m, :]

    with pytest.raises(ArgumentError, match="name='double': C needs a name of letters"):
        tilewright.export(double, tmp_path / "double")
    loaded = tilewright.load(tilewright.export(double, tmp_path / "double", name="twice").code)
    x = np.arange(21, dtype=np.float32).reshape(7, 3)
    assert (loaded(x) == 2 * x).all()


def test_a_scalar_argument_is_a_buffer_of_one_number(tmp_path):
    @tkw.wave()
    def scaled(x: tkl.Memory[M, N, GLOBAL, tkl.f32], factor: tkl.f32, y: tkl.Memory[M, N, GLOBAL, tkl.f32]):
        tkw.write(tkw.read(x) * factor, y)

    run = tilewright.compile(scaled)
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    assert (run(x, 3) == 3 * x).all()
    loaded = tilewright.load(tilewright.export(run, tmp_path / "scaled").code)  # the sizes of the last call
    assert (loaded(x, 5) == 5 * x).all()
    assert loaded.manifest["arguments"][1]["shape"] == []


def test_what_a_check_finds_is_raised_as_the_compiled_kernel_raises_it(tmp_path):
    kernel = tilewright.compile(gather_rows("f32"))
    table, index = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([1, 3, 9], np.int32)
    files = tilewright.export(kernel, tmp_path / "gather", {"ROWS": 4, "N": 3, "M": 3})
    with pytest.raises(ExecutionError) as theirs:
        kernel(table, index)
    with pytest.raises(ExecutionError) as mine:
        tilewright.load(files.code)(table, index)
    assert str(mine.value) == str(theirs.value).splitlines()[0]


# -- arguments ----------------------------------------------------------------------------------------------


def overlapping(a, b):
    whole = np.zeros(2000, np.float32)
    return whole[: 37 * 41].reshape(37, 41), b, whole[20 : 20 + 37 * 29].reshape(37, 29)


WRONG = {
    "dtype": lambda a, b: (a.astype(np.float64), b),
    "rank": lambda a, b: (a[None], b),
    "shape": lambda a, b: (a, b[:40]),
    "no array": lambda a, b: (a, "b"),
    "count": lambda a, b: (a,),
    "output shape": lambda a, b: (a, b, np.zeros((29, 37), np.float32)),
    "read-only output": lambda a, b: (a, b, np.broadcast_to(np.float32(0), (37, 29))),
    "aliasing output": overlapping,
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_get_the_errors_of_the_compiled_kernel(name, tmp_path):
    own = tilewright.compile(gemm("nn", "f32"), {"M": 37})
    files = tilewright.export(own, tmp_path / "gemm", {"M": 37, "N": 29, "K": 41})
    a, b = np.ones((37, 41), np.float32), np.ones((41, 29), np.float32)
    with pytest.raises(ArgumentError) as theirs:
        own(*WRONG[name](a, b))
    with pytest.raises(ArgumentError) as mine:
        tilewright.load(files.code)(*WRONG[name](a, b))
    assert type(mine.value) is type(theirs.value)
    assert str(mine.value).partition(" must ")[0] == str(theirs.value).partition(" must ")[0]


def test_other_sizes_than_the_exported_ones_are_refused_by_name(tmp_path):
    files = tilewright.export(gemm("nn", "f32"), tmp_path / "gemm", {"M": 4, "N": 5, "K": 6})
    with pytest.raises(ArgumentError, match=r"argument a has shape \(3, 6\); its dimension 0 must be M = 4, not 3"):
        tilewright.load(files.code)(np.zeros((3, 6), np.float32), np.zeros((6, 5), np.float32))


def test_arrays_with_strides_are_taken_as_they_are(tmp_path):
    loaded = tilewright.load(tilewright.export(compiled("gemm"), tmp_path / "gemm").code)
    rng = np.random.default_rng(3)
    a = rng.integers(-3, 4, (41, 37)).astype(np.float32).T
    b = rng.integers(-3, 4, (82, 29)).astype(np.float32)[::2]
    out = np.zeros((29, 37), np.float32).T
    assert loaded(a, b, out=out) is out
    assert (out == a @ b).all()


def test_threads_call_a_loaded_kernel_at_the_same_time(tmp_path):
    loaded = tilewright.load(tilewright.export(compiled("gemm_packed"), tmp_path / "gemm").code)
    rng = np.random.default_rng(4)
    data = [[rng.integers(-3, 4, s).astype(np.float32) for s in ((37, 41), (41, 29))] for _ in range(8)]

    def call(pair):
        return all((loaded(*pair) == pair[0] @ pair[1]).all() for _ in range(20))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(call, data))


def test_a_bound_kernel_packs_constant_arguments_once(tmp_path):
    loaded = tilewright.load(tilewright.export(compiled("gemm_packed"), tmp_path / "gemm").code)
    a, b, c = np.ones((37, 41), np.float32), np.ones((41, 29), np.float32), np.zeros((37, 29), np.float32)
    run = loaded.bind(a, b, c)
    b[...] = 5  # it was packed: this is not seen
    a[...] = 2
    run()
    assert (c == 82).all()
