"""`compile` of a block kernel takes the targets and options that `compile_text` takes of its text."""

from __future__ import annotations

import pytest

import tilewright
import tilewright.block as tb
from tilewright.errors import ArgumentError


@tb.kernel("hopper", waves=4)
def doubled(x: tb.In("f32", "M", "N"), y: tb.Out("f32", "M", "N"), *, M: tb.Size(1, 65536), N=96):
    for m in tb.tasks(M):
        row, to = x[m, :], y[m, :]
        to[...] = row + row


@tb.kernel()
def added(x: tb.In("f32", "M", "N"), y: tb.InOut("f32", "M", "N"), *, M=5, N=7):
    for m in tb.tasks(M):
        y[m, :] = x[m, :] + y[m, :]


@pytest.mark.parametrize("target", ["gpu:hopper", "cuda:hopper", "gpu", "cuda"])
def test_a_block_kernel_was_refused_for_a_gpu_that_its_text_is_compiled_for(target):
    made = tilewright.compile(doubled, {"N": 40}, target=target, workers=3)
    wanted = tilewright.compile_text(str(doubled.trace(N=40)), target, workers=3)
    assert made.text("ptx") == wanted.text("ptx")
    assert (made.target, made.workers) == (target, 3)


@pytest.mark.parametrize("target", ["cpu", "cpu:x86.avx512", "cpu:x86.amx", "cpu:aarch64.neon", "cpu:portable"])
def test_a_block_kernel_for_described_cpus(target):
    assert tilewright.compile(added, target=target).text("asm") == (
        tilewright.compile_text(str(added.trace()), target).text("asm")
    )


@pytest.mark.parametrize("target", ["gpu:cdna3", "gpu:nope", "cuda:cdna3", "executor", 5, None])
def test_other_targets_are_refused_as_those_of_texts(target):
    with pytest.raises(ArgumentError) as of_kernel:
        tilewright.compile(doubled, target=target)
    with pytest.raises(ArgumentError) as of_text:
        tilewright.compile_text(str(doubled.trace()), target)
    assert str(of_kernel.value) == str(of_text.value)


@pytest.mark.parametrize(
    "option", [{"plan": "axis m = (m 8): whole"}, {"dynamic": ["M"]}, {"strict": True}, {"lenient": True}]
)
def test_options_of_tile_kernels_name_the_one_that_is_given(option):
    (name,) = option
    with pytest.raises(ArgumentError, match=rf"{name}=.*: this is for tile kernels; the block kernel doubled"):
        tilewright.compile(doubled, **option)


def test_require_atoms_was_ignored_for_a_block_kernel():
    with pytest.raises(ArgumentError, match="require_atoms=True: this is for tile kernels"):
        tilewright.compile(doubled, require_atoms=True)
