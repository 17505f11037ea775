"""What stands in the PTX of examples: tensor maps, descriptors, clusters, launches."""

from __future__ import annotations

from programs import EXAMPLES, early

from tilewright.check.block import check
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.lower.gpu.lower import lower_waves
from tilewright.runtime.codegen import HELPER
from tilewright.targets.nvidia.backend import BACKEND
from tilewright.targets.nvidia.im2col import Im2colMap
from tilewright.targets.nvidia.tma import TensorMap
from tilewright.targets.registry import machine

HOPPER = machine("hopper")


def made(name: str, params: dict[str, int]):
    text = name if "\n" in name else (EXAMPLES / f"{name}.block").read_text()
    program = bind(parse_block(text), params)
    check(program, HOPPER)
    return BACKEND.emitted(lower_waves(program, HOPPER), HOPPER)


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
    found = made(early((EXAMPLES / "gemm_hopper.block").read_text()), {})
    assert found.programmatic
    text = HELPER.ask(BACKEND.request(HOPPER), found.text).decode()
    assert text.index("griddepcontrol.wait") < text.index("cp.async.bulk.tensor")


def test_a_kernel_says_how_it_is_launched() -> None:
    found = made("gemm_hopper", {"M": 300, "N": 520, "K": 64})
    assert (found.threads, found.tasks) == (384, 3 * 5)
    assert found.shared_bytes <= 227 * 1024


def test_only_floats_are_rounded_two_at_a_time() -> None:
    """Numbers became i16 by the instruction that rounds to bf16 and f16; there is none."""
    text = """block cut(%x: in global f32 (64), %y: out global KIND (64))
  machine hopper
{
  tasks t in 0..1 {
    %v = alloc register f32 (64) by (32,2):(2,1)
    %w = alloc register KIND (64) by (32,2):(2,1)
    copy %x -> %v
    map %w = KIND(%v + 1)
    copy %w -> %y
  }
}
"""
    found = [made(text.replace("KIND", kind), {}).text for kind in ("i16", "bf16", "f16")]
    assert ["x2.f32" in each for each in found] == [False, True, True]
