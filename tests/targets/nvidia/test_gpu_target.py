"""compile_text for a GPU: every level can be read anywhere; without a GPU a call says so in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
from tilewright import compile_text, kernels
from tilewright.errors import ArgumentError, ProgramError, TargetError
from tilewright.targets.nvidia.driver import device

TEXT = (Path(__file__).parents[3] / "examples" / "block" / "gemm_hopper.block").read_text()
without_gpu = pytest.mark.skipif(not isinstance(device(), str), reason="there is a GPU here")


@without_gpu
def test_every_level_is_read_without_a_gpu() -> None:
    product = compile_text(TEXT, "gpu:hopper")
    assert product.text("loop").startswith("loop gemm_hopper")
    assert "define ptx_kernel void @gemm_hopper" in product.text("llvm")
    assert ".entry gemm_hopper" in product.text("asm")


@without_gpu
def test_a_call_without_a_gpu_says_why() -> None:
    product = compile_text(TEXT, "gpu")
    a = np.zeros((256, 256), product.main.args[0].type.dtype.numpy)
    with pytest.raises(TargetError, match="gemm_hopper: code for hopper does not run here"):
        product(a, a)


def test_machines_without_code_are_refused() -> None:
    with pytest.raises(ArgumentError, match="cdna3 has no code generator yet"):
        compile_text(TEXT, "gpu:cdna3")
    with pytest.raises(ArgumentError, match=r"x86\.amx is no GPU"):
        compile_text(TEXT, "gpu:x86.amx")
    with pytest.raises(ProgramError, match="written for hopper, not for ampere"):
        compile_text(TEXT, "gpu:ampere")


def test_open_parameters_are_refused() -> None:
    with pytest.raises(ProgramError, match="open parameters have no form on GPUs yet"):
        compile_text(
            """block copy(%x: in global f32 (M, 32), %y: out global f32 (M, 32))
  machine hopper
  param M in 1..100
{
  tasks m in 0..M {
    %from = view %x (j 32) -> [m, j]
    %to = view %y (j 32) -> [m, j]
    copy %from -> %to
  }
}""",
            "gpu",
        )


def test_rows_that_no_tensor_map_steps_over_are_refused() -> None:
    text = """block copy(%x: in global f32 (4, 31), %y: out global f32 (4, 32))
  machine hopper
{
  %s = alloc shared f32 (1, 4, 32)
  %ring = channel %s stages 1 from bring to take
  role bring waves 1 {
    tasks t in 0..1 {
      %room = acquire %ring
      %from = view %x (i 4, j 32) -> [i, j ?]
      copy %from -> %room else 0 by tma.load
      commit %ring
    }
  }
  role take waves 1 {
    tasks t in 0..1 {
      %here = wait %ring
      copy %here -> %y
      release %ring
    }
  }
}"""
    with pytest.raises(ProgramError, match="%x has a stride of 124 bytes; a tensor map takes multiples of 16"):
        _ = compile_text(text, "gpu:hopper").text("asm")


def test_tile_kernels_become_code_for_a_named_gpu_anywhere():
    made = tilewright.compile(kernels.gemm("nt", "bf16", "bf16"), target="gpu:hopper")
    text = made.text("asm", {"M": 200, "N": 136, "K": 200})
    assert "wgmma.mma_async" in text
    assert "cp.async.bulk.tensor" in text


@without_gpu
def test_without_a_gpu_one_line_says_so():
    a, b = (np.zeros((8, 8), tkl.bf16.numpy) for _ in range(2))
    kernel = kernels.gemm("nt", "bf16", "bf16")
    with pytest.raises(TargetError, match=r"^target='gpu': .*; code for a GPU by name, 'gpu:hopper', can be read anyw"):
        tilewright.compile(kernel, target="gpu")(a, b)
    with pytest.raises(TargetError, match="code for hopper does not run here"):
        tilewright.compile(kernel, target="gpu:hopper")(a, b)
