"""PTX of block programs: assembled without spills, and without products that wait for one another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from assembler import assembled, ptxas

from tilewright.check.block import check
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.passes.waves.lower import lower_waves
from tilewright.runtime.codegen import HELPER
from tilewright.targets.nvidia.backend import BACKEND, architecture
from tilewright.targets.nvidia.im2col import Im2colMap
from tilewright.targets.nvidia.tma import TensorMap
from tilewright.targets.registry import machine

EXAMPLES = Path(__file__).parents[3] / "examples" / "block"
HOPPER = machine("hopper")

DEALT = (
    (EXAMPLES / "gemm_hopper_pingpong.block")
    .read_text()
    .replace("%a: in", "%deal: in global i32 (132, 4), %a: in")
    .replace("0..TM*TN", "0..TM*TN schedule table of %deal")
)
EARLY = (EXAMPLES / "gemm_hopper.block").read_text().replace("machine hopper", "machine hopper\n  launch programmatic")
LIST = [
    ("gemm_hopper", {"M": 4096, "N": 4096, "K": 4096, "BN": 256, "STAGES": 4}),
    ("gemm_hopper", {"M": 200, "N": 136, "K": 72, "BM": 256, "BN": 64, "STAGES": 2}),
    ("gemm_hopper", {"M": 4096, "N": 4096, "K": 512, "BM": 64, "BN": 256, "WG": 1}),
    ("gemm_hopper_pingpong", {"M": 2048, "N": 2048, "K": 2048, "BN": 256}),
    ("gemm_hopper_pingpong", {"M": 4096, "N": 4096, "K": 4096, "BM": 128, "BN": 128}),
    ("gemm_hopper", {"M": 8192, "N": 8192, "K": 8192, "BN": 256, "CLUSTER": 2}),
    (EARLY, {"M": 2048, "N": 2048, "K": 2048}),
    ("conv_hopper", {"N": 32, "H": 14, "W": 14, "C": 256, "F": 256, "BM": 192, "WG": 1, "STAGES": 5, "CLUSTER": 4}),
    (DEALT, {"M": 2048, "N": 2048, "K": 2048, "BM": 128, "BN": 128}),
    ("conv_hopper", {"N": 32, "H": 28, "W": 28, "C": 128, "F": 128, "BN": 128}),
    ("conv_hopper", {"N": 2, "H": 9, "W": 7, "STRIDE": 2}),
    ("conv_hopper", {"N": 32, "H": 28, "W": 28, "C": 128, "F": 128, "BM": 192, "BN": 128, "WG": 3}),
    ("conv_hopper_halo", {"N": 32, "C": 512, "F": 512}),
    ("conv_hopper_patches", {"N": 32, "H": 56, "W": 56}),
    ("attention_hopper", {"B": 64, "T": 4096, "U": 4096}),
    ("flash_hopper", {"B": 64, "T": 4096, "U": 4096, "BK": 128}),
    ("flash_hopper", {"B": 64, "T": 4096, "U": 4096, "BK": 128, "CAUSAL": 1, "GROUP": 16}),
    ("flash_hopper", {"B": 64, "T": 4096, "U": 4096, "BK": 128, "D": 64, "WG": 3}),
]
"""Every copy, role form and synchronisation of the Hopper examples."""


def made(name: str, params: dict[str, int]):
    text = name if "\n" in name else (EXAMPLES / f"{name}.block").read_text()
    program = bind(parse_block(text), params)
    check(program, HOPPER)
    return BACKEND.emitted(lower_waves(program, HOPPER), HOPPER)


@pytest.mark.parametrize(("name", "params"), LIST)
def test_examples_become_ptx(name: str, params: dict[str, int]) -> None:
    text = HELPER.ask(BACKEND.request(HOPPER), made(name, params).text).decode()
    assert ".target sm_90a" in text
    assert "wgmma.mma_async" in text
    assert ".local" not in text  # no register array in memory
    if ptxas() is None:
        pytest.skip("ptxas is not installed: the extra `ptxas` brings it")
    said = assembled(text, architecture(HOPPER)[0])
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said
    assert not re.search(r"\(C7\d+\)|warning", said), said


def test_tensor_maps_are_those_of_the_copies() -> None:
    found = [
        p.what.at({}) for p in made("conv_hopper", {"N": 2, "H": 9, "W": 7, "C": 128, "STRIDE": 2, "F": 72}).parameters
    ]
    assert found == [
        # (C, W, H, N): first taps from -1 on, in steps of two, so that the last tap stays within the padding
        Im2colMap(0, (128, 7, 9, 2), (1, 128, 896, 8064), (-1, -1), (-1, -1), (2, 2), 64, 128, 128),
        TensorMap(0, (128, 72, 3, 3), (1, 1152, 384, 128), (64, 64, 1, 1), 128),
        TensorMap(0, (72, 40), (1, 72), (64, 128), 128),
    ]


def test_descriptors_name_groups_of_eight_rows() -> None:
    text = made("gemm_hopper", {}).text
    # 128-byte swizzle, groups 1024 bytes apart, the other stride unused
    assert str(1 << 62 | 64 << 32 | 1 << 16) in text
    # V of attention is stored with d fastest: its rows are of k
    assert ", 1, 1, 1, 1;" in made("attention_hopper", {}).text


def test_workgroups_of_a_cluster_meet_first_and_last_and_release_everywhere() -> None:
    found = made("gemm_hopper", {"M": 300, "N": 256, "K": 128, "CLUSTER": 2})
    text = HELPER.ask(BACKEND.request(HOPPER), found.text).decode()
    assert (found.cluster, found.programmatic) == (2, False)
    meetings = [text.index("barrier.cluster.wait.aligned"), text.rindex("barrier.cluster.wait;")]
    assert meetings[0] < text.index("multicast::cluster") < meetings[1]
    assert "mapa.shared::cluster.u32" in text
    assert ".release.cluster.shared" not in text  # that form waits for all memory at each arrival


def test_a_programmatic_launch_waits_before_it_touches_memory() -> None:
    found = made(EARLY, {})
    assert found.programmatic
    text = HELPER.ask(BACKEND.request(HOPPER), found.text).decode()
    assert text.index("griddepcontrol.wait") < text.index("cp.async.bulk.tensor")


def test_a_kernel_says_how_it_is_launched() -> None:
    found = made("gemm_hopper", {"M": 300, "N": 520, "K": 64})
    assert (found.threads, found.tasks) == (384, 3 * 5)
    assert found.shared_bytes <= 227 * 1024
