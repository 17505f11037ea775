"""compile_text for a GPU: every level can be read anywhere; without a GPU a call says so in one line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
from tilewright import compile_text, kernels
from tilewright.errors import ArgumentError, ProgramError, TargetError
from tilewright.targets.nvidia import disassembly, driver
from tilewright.targets.nvidia.driver import device
from tilewright.targets.registry import machine

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


def test_cuda_is_nvidias_gpu_and_no_other() -> None:
    assert compile_text(TEXT, "cuda").text("ptx") == compile_text(TEXT, "gpu:hopper").text("ptx")
    assert compile_text(TEXT, "cuda:hopper").text("ptx") == compile_text(TEXT, "gpu").text("ptx")
    with pytest.raises(ArgumentError, match="cdna3 is no GPU of nvidia; there is 'ampere', 'hopper'"):
        compile_text(TEXT, "cuda:cdna3")
    with pytest.raises(ArgumentError, match="0 is no GPU of nvidia"):  # arrays say which device, not targets
        tilewright.compile(kernels.gemm(), target="cuda:0")
    with pytest.raises(ArgumentError, match="target='cdua': there is 'cpu', 'gpu', 'executor', 'cuda'"):
        tilewright.compile(kernels.gemm(), target="cdua")


@without_gpu
@pytest.mark.parametrize("target", ["gpu", "cuda"])
def test_a_tile_kernel_without_a_gpu_says_so_in_one_line(target: str) -> None:
    kernel = tilewright.compile(kernels.gemm(), target=target)
    with pytest.raises(TargetError, match=f"^target='{target}': .*; code for a GPU by name, .*$"):
        kernel(np.zeros((2, 3), np.float16), np.zeros((3, 2), np.float16))


@pytest.mark.parametrize("target", ["interpreter", "gpu:hopper"])
@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"K": 100}, "tma.load: dimension 0 of %a has a stride of 100 elements, 200 bytes"),
        ({"N": 76}, "tma.store: dimension 0 of %d has a stride of 76 elements, 152 bytes"),
    ],
    ids=["K", "N"],
)
def test_rows_that_no_tensor_map_takes_are_refused_when_compiled(
    target: str, params: dict[str, int], says: str
) -> None:
    """K = 100 was accepted, and refused by the driver when the program was launched."""
    with pytest.raises(ProgramError) as caught:
        compile_text(TEXT, target, params)
    assert f"copy: {says}; a tensor map takes multiples of 16 bytes, 8 elements" in str(caught.value)
    assert "  line " in str(caught.value)
    compile_text(TEXT, target, {name: 8 * -(-size // 8) for name, size in params.items()})


ROWS = """block rows(%x: in global i8 ({shape}){strides}, %y: out global i8 (8, 128))
  machine hopper
{{
  role mover waves 1 {{
    tasks m in 0..1 {{
      %s = alloc shared i8 (1, 8, 128)
      %from = view %x (i 8, j 128) -> [i, j]
      %to = view %y (i 8, j 128) -> [i, j]
      copy %from -> %to{by}
    }}
  }}
}}
"""


def test_an_argument_with_a_swizzle_of_its_own_is_refused_when_compiled() -> None:
    with pytest.raises(ProgramError, match=r"rows: %x is .*swizzle <3,4,3>: .* leave it out"):
        compile_text(ROWS.format(shape="8, 128", strides=" swizzle <3,4,3>", by=""), "gpu:hopper")
    compile_text(ROWS.format(shape="8, 128", strides=":(256, 1)", by=""), "gpu:hopper")


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


def test_ptx_is_the_assembly_and_sass_needs_a_disassembler(monkeypatch: pytest.MonkeyPatch) -> None:
    product = compile_text(TEXT, "gpu:hopper")
    assert product.text("ptx") == product.text("asm")
    monkeypatch.setattr(disassembly, "tool", lambda name: None)
    with pytest.raises(TargetError, match=r"sass: ptxas and nvdisasm of .*; the extra `sass` brings both"):
        product.text("sass")
    with pytest.raises(ArgumentError, match="level='ptx': copy on cpu has 'block', 'loop', 'llvm', 'asm'"):
        compile_text("block copy(%x: in global f32 (1), %y: out global f32 (1)) { copy %x -> %y }").text("ptx")


@pytest.mark.skipif(disassembly.packaged_tool("nvdisasm") is None, reason="nvdisasm is not installed: the extra `sass`")
@pytest.mark.skipif(
    disassembly.packaged_tool("ptxas") is None, reason="ptxas is not installed: the extra `ptxas` brings it"
)
def test_sass_has_the_instructions_of_the_product() -> None:
    assert "HGMMA.64x128x16" in compile_text(TEXT, "gpu:hopper").text("sass")


def test_what_the_tools_say_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, does in (("ptxas", 'touch "$5"'), ("nvdisasm", 'echo "HGMMA of $2"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setattr(disassembly, "tool", lambda name: tmp_path / name)
    assert compile_text(TEXT, "gpu:hopper").text("sass").startswith("HGMMA of /")
    (tmp_path / "ptxas").write_text("#!/bin/sh\necho no such thing >&2; exit 1\n")
    with pytest.raises(TargetError, match="sass: ptxas says: no such thing"):
        compile_text(TEXT, "gpu:hopper").text("sass")


@pytest.mark.parametrize(
    ("capability", "machine_name", "says"),
    [((9, 0), "ampere", None), ((8, 6), "ampere", None), ((7, 5), "ampere", "7.5, not 8.0 or more"),
     ((9, 0), "hopper", None), ((10, 0), "hopper", "10.0, not 9.x"), ((8, 0), "hopper", "8.0, not 9.x")],
)  # fmt: skip
def test_code_for_ampere_runs_on_later_gpus_and_that_for_hopper_there_alone(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], machine_name: str, says: str | None
) -> None:
    monkeypatch.setattr(driver, "device", lambda: SimpleNamespace(capability=capability))
    found = driver.why_not(machine(machine_name))
    assert found is None if says is None else found is not None and found.endswith(says)
