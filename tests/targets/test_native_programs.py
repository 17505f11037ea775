"""Block programs as machine code: equal to a direct computation, on every CPU, and at the edges."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tilewright.errors import ArgumentError, MissingAtomWarning, ProgramError
from tilewright.ir.loop import parse_loop

BF16 = np.dtype(ml_dtypes.bfloat16)
BLOCK = Path(__file__).parents[2] / "examples" / "block"


def compiled(name, **params):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingAtomWarning)  # a CPU without the atom runs loops
        return tilewright.compile_text((BLOCK / f"{name}.block").read_text(), "cpu", params)


def convolution(x, w, stride, pad):
    """NHWC by FRSC in float64."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    rows, columns = ((n + 2 * pad - k) // stride + 1 for n, k in zip(x.shape[1:3], w.shape[1:3], strict=True))
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    total = 0
    for r in range(w.shape[1]):
        for s in range(w.shape[2]):
            taps = padded[:, r : r + stride * (rows - 1) + 1 : stride, s : s + stride * (columns - 1) + 1 : stride]
            total = total + np.einsum("npqc,fc->npqf", taps, w[:, r, s])
    return total


def small(rng, *shape, dtype):
    return rng.integers(-2, 3, shape).astype(dtype)


def amx_packed(w, chunk):
    f, r, s, c = w.shape
    parts = w.reshape(f // 32, 2, 16, r, s, c // chunk, chunk // 32, 16, 2)
    return np.ascontiguousarray(parts.transpose(0, 5, 3, 4, 6, 1, 7, 2, 8))


@pytest.mark.parametrize("workers", [1, None])
@pytest.mark.parametrize(
    ("n", "h", "w", "c", "f", "k", "pad", "params"),
    [
        (1, 6, 5, 32, 32, 3, 1, {"STRIP": 3, "CHUNK": 32}),
        (2, 4, 9, 64, 64, 3, 1, {"STRIP": 2, "CHUNK": 64, "STREAM_X": 0, "STREAM_W": 1}),
        (1, 7, 11, 64, 96, 3, 1, {"STRIP": 7, "CHUNK": 32, "SPLIT": 3}),
        (1, 9, 3, 32, 32, 5, 2, {"STRIP": 3, "CHUNK": 32}),
        (1, 5, 4, 96, 32, 1, 0, {"STRIP": 1, "CHUNK": 96}),
        (3, 3, 2, 32, 64, 3, 1, {"STRIP": 3, "CHUNK": 32, "SPLIT": 2}),
        (1, 14, 14, 64, 64, 3, 1, {"STRIP": 14, "CHUNK": 64}),
    ],
)
def test_amx_convolution_is_exact(n, h, w, c, f, k, pad, params, workers):
    rng = np.random.default_rng(n + 10 * h + c)
    x, filters = small(rng, n, h, w, c, dtype=BF16), small(rng, f, k, k, c, dtype=BF16)
    wanted = convolution(x, filters, 1, pad).astype(BF16)
    made = compiled("conv_amx", N=n, H=h, W=w, C=c, F=f, R=k, S=k, PAD=pad, **params)
    made.workers = workers
    y = np.full(wanted.shape, np.nan, BF16)
    launch = made.bind(x, amx_packed(filters, params["CHUNK"]), y)
    for _ in range(3):  # scratch memory that a launch leaves behind changes nothing
        y[...] = np.nan
        launch()
        assert np.array_equal(y, wanted)


@pytest.mark.parametrize(
    ("n", "h", "w", "c", "f", "k", "stride", "pad", "params"),
    [
        (1, 7, 9, 8, 32, 3, 1, 1, {"PIX": 3}),
        (1, 7, 9, 8, 64, 3, 2, 1, {"PIX": 5, "SPLIT": 2}),
        (2, 5, 9, 4, 32, 3, 1, 0, {"PIX": 7}),
        (1, 3, 6, 12, 32, 5, 1, 2, {"PIX": 6}),
        (1, 1, 8, 4, 32, 1, 1, 0, {"PIX": 4}),
        (1, 2, 3, 4, 32, 3, 1, 3, {"PIX": 7}),
        (1, 56, 28, 16, 64, 3, 1, 1, {"PIX": 14}),
    ],
)
def test_fp32_convolution_is_exact(n, h, w, c, f, k, stride, pad, params):
    rng = np.random.default_rng(7 * h + c)
    x, filters = small(rng, n, h, w, c, dtype=np.float32), small(rng, f, k, k, c, dtype=np.float32)
    wanted = convolution(x, filters, stride, pad).astype(np.float32)
    packed = np.ascontiguousarray(filters.reshape(f // 32, 32, k, k, c).transpose(0, 2, 3, 4, 1))
    made = compiled("conv_avx512", N=n, H=h, W=w, C=c, F=f, R=k, S=k, STRIDE=stride, PAD=pad, **params)
    y = np.full(wanted.shape, np.nan, np.float32)
    made.bind(x, packed, y)()
    assert np.array_equal(y, wanted)


def test_taps_outside_the_image_are_not_multiplied():
    """0 * inf is NaN: a weight that is never used may be anything."""
    x, w = np.ones((1, 3, 3, 4), np.float32), np.zeros((32, 3, 3, 4), np.float32)
    w[:, 0, 0] = np.inf
    w[:, 1, 1] = 1
    packed = np.ascontiguousarray(w.reshape(1, 32, 3, 3, 4).transpose(0, 2, 3, 4, 1))
    y = np.full((1, 3, 3, 32), np.nan, np.float32)
    compiled("conv_avx512", H=3, W=3, C=4, F=32, PIX=3).bind(x, packed, y)()
    assert np.array_equal(y[0, 0, 0], np.full(32, 4, np.float32))
    assert np.all(np.isinf(y[0, 1:, 1:]))


def test_an_atom_that_is_missing_becomes_loops(monkeypatch):
    """The same results without AMX; it is reported once."""
    from tilewright.targets.cpu import entry, host

    machine = host.host_machine()
    without = replace(machine, multiply={n: a for n, a in machine.multiply.items() if not n.startswith("amx")})
    monkeypatch.setattr("tilewright.targets.cpu.target.host_machine", lambda: without)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "off")
    monkeypatch.setattr(entry, "_reported", set())
    text = (BLOCK / "conv_amx.block").read_text()
    params = {"H": 4, "W": 5, "C": 32, "F": 32, "STRIP": 2, "CHUNK": 32}
    with pytest.warns(MissingAtomWarning, match="no amx.bf16: its products run as loops of the same meaning"):
        made = tilewright.compile_text(text, "cpu", params)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tilewright.compile_text(text, "cpu", params | {"H": 6})
    rng = np.random.default_rng(0)
    x, w = small(rng, 1, 4, 5, 32, dtype=BF16), small(rng, 32, 3, 3, 32, dtype=BF16)
    assert np.array_equal(made(x, amx_packed(w, 32)), convolution(x, w, 1, 1).astype(BF16))


def test_several_roles_are_refused_by_name():
    with pytest.raises(ProgramError, match=r"several roles \(producer, consumer\)"):
        compiled("gemm_hopper")


def test_every_level_can_be_read():
    made = compiled("conv_avx512", H=4, W=4, C=4, F=32, PIX=4)
    assert made.text("block").startswith("block conv_avx512(")
    loop = made.text("loop")
    assert str(parse_loop(loop)) == loop
    assert "define void @conv_avx512(" in made.text("llvm")
    assert "conv_avx512:" in made.text("asm")
    with pytest.raises(ArgumentError, match="level"):
        made.text("tilde")


def test_the_loop_text_compiles_to_the_same_code():
    made = compiled("conv_avx512", H=4, W=4, C=4, F=32, PIX=4)
    again = tilewright.compile_text(made.text("loop"), "cpu")
    assert again._kernel.object == made._kernel.object


def test_the_block_text_compiles_to_the_same_code():
    made = compiled("conv_amx", H=4, W=4, C=32, F=32, STRIP=4, CHUNK=32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingAtomWarning)
        again = tilewright.compile_text(made.text("block"), "cpu")
    assert again._kernel.object == made._kernel.object


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_unsigned_integers_that_are_read_are_not_negative(target):
    text = """loop f(%x: in global u8 (2), %y: inout global i32 (256))
{
  tasks t in 0..2 {
    %a = alloc vector u8 ()
    %one = alloc vector i32 ()
    fill %one 1
    load %a () = %x[t]
    read i in 0..255 = %a
    store %one () -> %y[i] if (i >= 0)
  }
}
"""
    y = np.zeros(256, np.int32)
    tilewright.compile_text(text, target)(np.array([200, 3], np.uint8), y)
    assert list(np.flatnonzero(y)) == [3, 200]


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
@pytest.mark.parametrize("dtype", ["i32", "u8", "i64"])
def test_a_loop_ends_when_its_flag_of_any_integer_type_is_zero(target, dtype):
    text = f"""loop f(%x: in global {dtype} (1), %y: out global {dtype} (1))
{{
  tasks t in 0..1 {{
    %n = alloc vector {dtype} ()
    %count = alloc vector {dtype} ()
    fill %count 0
    load %n () = %x[0]
    while %n {{
      compute %n = %n - 1
      compute %count = %count + 2
    }}
    store %count () -> %y[0]
  }}
}}
"""
    y = np.zeros(1, dtype.replace("u", "uint").replace("i3", "int3").replace("i6", "int6"))
    tilewright.compile_text(text, target)(np.array([7], y.dtype), y)
    assert y == 14


@pytest.mark.filterwarnings("ignore::tilewright.errors.MissingAtomWarning")
@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_a_branch_in_a_delayed_end_reads_the_sums_of_its_iteration(target):
    text = """block f(%x: in global f32 (4, 5, 16), %w: in global f32 (3, 16), %y: inout global f32 (4, 5, 16),
    %z: inout global f32 (4, 5, 16))
  machine x86.avx512f.avx512vnni
{
  tasks t in 0..1 {
    %sums = alloc register f32 (5, 16) as avx512.f32.c
    for i in 0..4 overlap defer {
      %xi = view %x (m 5, k 3) -> [i, m, k]
      fill %sums 0
      mma %sums += %xi * %w using avx512.f32
    } finally {
      %zi = view %z (m 5, n 16) -> [i, m, n]
      fill %zi 7
      if (i <= 2) {
        %yi = view %y (m 5, n 16) -> [i, m, n]
        copy %sums -> %yi
      }
    }
  }
}
"""
    x = np.arange(320, dtype=np.float32).reshape(4, 5, 16) % 7
    w = np.arange(48, dtype=np.float32).reshape(3, 16) % 5
    y, z = np.full((4, 5, 16), np.nan, np.float32), np.zeros((4, 5, 16), np.float32)
    tilewright.compile_text(text, target)(x, w, y, z)
    assert np.array_equal(y[:3], x[:3, :, :3] @ w)
    assert np.isnan(y[3]).all()
