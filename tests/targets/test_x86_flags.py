"""The features of an x86 CPU, as Linux lists them."""

from __future__ import annotations

from tilewright.targets.x86 import features

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
flags\t\t: fpu sse2 avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_bf16 avx512_vnni amx_tile amx_bf16 amx_int8

processor\t: 1
flags\t\t: fpu
"""


def test_every_feature_that_decides_has_its_flag(tmp_path):
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    flags = features._flags(tmp_path / "cpuinfo")
    assert flags is not None
    assert {features._FLAGS.get(name, name) for name in features.ASKED_FOR} <= flags


def test_a_system_that_lists_no_flags_leaves_it_to_llvm(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert features._flags(tmp_path / "cpuinfo") is None
    assert features._flags(tmp_path / "nothing") is None
