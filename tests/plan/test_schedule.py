"""A schedule is data: written down, printed, read and compared, for plans of this project and of others."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.plan.schedule import Axis, Digit, Hop, LaneTile, Occupancy, Split, ValuePlacement
from tilewright.plan.text import parse_plan
from tilewright.plan.version1 import as_version_2
from tilewright.targets.registry import machine

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import corpus_text

# -- plans of others and of the prototypes, as text -------------------------------------------------------------------

PLANS = {
    "attention, grouped queries, causal": """
axis B = (B 2): task 1
axis KV = (KV 8): task 1
axis GQ = (GQ 4): task 1
axis M = (M 4096): task 128, wave 64
axis E = (E 128): whole
axis D = (D 128): whole
axis N = (N 4096): loop 128
grid B, KV, GQ, M
raster 16, longest first
q tile at task by tma.load to shared 1
k tile by tma.load to shared 2
v tile by tma.load to shared 2
p kept in register
o tile by tma.store from shared 2
mma by wgmma.m64n128k16.bf16, tile 128x128
mma2 by wgmma.m64n128k16.bf16.ra.tb, tile 128x128
producer 1 wave 24 registers, consumer 8 waves 240 registers, stages 2, epilogue stages 2, store per group
overlap mma ahead
launch early""",
    "attention, a box of (group, query) rows": """
axis B = (B 2): task 1
axis rows = (GQ 4, M 4096): task 192 as 4x48, wave 96
axis E = (E 128): whole
axis D = (D 128): whole
axis N = (N 4096): loop 128
grid B, rows
mma by wgmma.m64n128k16.bf16, tile 192x128
mma2 by wgmma.m64n128k16.bf16.ra.tb, tile 192x128
producer 1 wave 24 registers, consumer 12 waves 160 registers, stages 2, epilogue stages 1
overlap mma ahead""",
    "attention, decoding: folded rows and split keys": """
axis B = (B 1): task 1
axis KV = (KV 8): task 1
axis rows = (GQ 8, M 1): task 64
axis E = (E 128): whole
axis D = (D 128): whole
axis N = (N 65536): loop 128
grid B, KV, rows
mma by wgmma.m64n128k16.bf16, tile 64x128
mma2 by wgmma.m64n128k16.bf16.ra.tb, tile 64x128
producer 1 wave 56 registers, consumer 4 waves 240 registers, stages 3, resident stages 2, epilogue stages 1
parts N 16
occupancy workgroups 1, persistent""",
    "attention, head size 256": """
axis B = (B 2): task 1
axis H = (H 16): task 1
axis M = (M 2048): task 128, wave 64
axis E = (E 256): whole
axis D = (D 256): whole
axis N = (N 2048): loop 64
grid B, H, M
q tile at task by tma.load to shared 1
o tile by tma.store from shared 1
mma by wgmma.m64n64k16.bf16, tile 128x64
mma2 by wgmma.m64n256k16.bf16.ra.tb, tile 128x256
producer 1 wave 24 registers, consumer 8 waves 240 registers, stages 2, epilogue stages 1
overlap mma ahead""",
    "attention, a window in three loops": """
axis B = (B 1): task 1
axis M = (M 8192): task 128
axis E = (E 128): whole
axis D = (D 128): whole
axis N = (N 8192): loop 128, peel 1 1
grid B, M
mma by wgmma.m64n128k16.bf16.ra, tile 128x128
mma2 by wgmma.m64n128k16.bf16.ra.tb, tile 128x128
producer 1 wave 24 registers, consumer 8 waves 240 registers, stages 2, epilogue stages 2
overlap ordered""",
    "gated unit, both products in one stage": """
axis M = (M 4096): task 128
axis N = (N 11008): task 128
axis K = (K 4096): loop 64
grid M, N
raster 16
g kept in register
mma by wgmma.m64n128k16.bf16, tile 128x128
mma2 by wgmma.m64n128k16.bf16, tile 128x128
producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 4, joint, epilogue stages 2
launch early""",
    "weight gradient, K a run of pixels": """
axis F = (F 64): task 64
axis C = (r 3, s 3, c 64): task c 64, task s 3
axis K = (n 32, p 56, q 56): loop 64
grid C, F
x run by tma.load.im2col to shared 4
mma by wgmma.m64n192k16.bf16.ta.tb, tile 64x192
producer 1 wave 56 registers, consumer 4 waves 240 registers, stages 4, epilogue stages 1
parts K 44
launch plain""",
    "input gradient, phases by length": """
axis phase = (down 2, right 2): task 1
axis M = (n 32, p 28, q 28): task 128
axis C = (C 128): task 128
axis K = (r 2, s 2, f 128): loop 64
grid phase, M, C
raster longest first
mma by wgmma.m64n128k16.bf16, tile 128x128
producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 5, epilogue stages 1, pingpong""",
    "widened weights, K shared by groups of waves": """
axis M = (M 16): whole
axis N = (N 8192): task 64
axis K = (K 8192): loop 256, wave 64
grid N
w tile by tma.load to shared 3
w_wide kept in register
mma by wgmma.m64n16k16.bf16.ra, tile 16x64 transposed
producer 1 wave 24 registers, consumer 16 waves 112 registers, stages 3, epilogue stages 1""",
    "matrix and vector, a row a wave": """
axis M = (M 8192): task 8, wave 1
axis K = (K 8192): whole
grid M
mma by loops
lanes vector 8
waves 8
occupancy workgroups 4""",
    "GEMM on Ampere, asynchronous copies without roles": """
axis M = (M 4096): task 256, wave 64
axis N = (N 4096): task 128, wave 64
axis K = (K 4096): loop 64, unit 16
grid M, N
raster 8
a tile by cp.async.16 to shared 3, by ldmatrix.x4 to register 2
b tile by cp.async.16 to shared 3, by ldmatrix.x4 to register 2
c tile by st.global.16 from shared 1, reuse
mma by mma.m16n8k16.bf16, tile 256x128
waves 8
occupancy workgroups 1, registers 216""",
    "FlashAttention-2 on Ampere": """
axis B = (B 16): task 1
axis H = (H 16): task 1
axis M = (M 4096): task 128, wave 32
axis E = (E 128): whole
axis D = (D 128): whole
axis N = (N 4096): loop 64
grid M, B, H
q tile at task by cp.async.16 to shared 1, by ldmatrix.x4 to register 1
k tile by cp.async.16 to shared 1, by ldmatrix.x4 to register 2
v tile by cp.async.16 to shared 1, by ldmatrix.x4.trans to register 2
p kept in register
o tile by st.global.16 from shared 1, reuse
mma by mma.m16n8k16.bf16, tile 128x64
mma2 by mma.m16n8k16.bf16, tile 128x128
waves 4
occupancy workgroups 2, registers 248""",
    "GEMM on CDNA3, through registers": """
axis M = (M 4096): task 256, wave 128
axis N = (N 4096): task 128, wave 128
axis K = (K 4096): loop 32, unit 16
grid M, N
raster 8
a tile by buffer_load.16 to register 1, by ds_write.16 to shared 1, by ds_read.16 to register 2
b tile by buffer_load.16 to register 1, by ds_write.16 to shared 1, by ds_read.16 to register 2
mma by mfma.16x16x16.bf16, tile 256x128 transposed
waves 2
occupancy workgroups 2, domains 8, registers 392""",
    "GEMM on Xe, by block loads": """
axis M = (M 4096): task 256, wave 32
axis N = (N 4096): task 256, wave 64
axis K = (K 4096): loop 64 unroll 2, unit 16
grid M, N
a tile by prefetch2d to l1 3, by block_load2d to register 2
b tile by prefetch2d to l1 3, by block_load2d.vnni to register 2
c tile by block_store2d from register 1
mma by dpas.8x16x16.bf16, tile 256x256
waves 32
occupancy workgroups 1, registers 256""",
    "direct convolution in grid, thread-group and iteration blocks": """
axis n = (n 32): task 1
axis rows = (p 56, q 56): task p 14, loop p 1, loop 28, loop 14 unroll 2, unit 1, peel 1 1
axis columns = (f 256): task 64, loop 32, unit 16
axis depth = (c 256, r 3, s 3): loop c 64, loop r 1, loop s 1, loop c 16, unit c 2
grid columns, n, rows
raster contiguous
loops depth, columns, rows, depth.2, depth.3, rows.2, depth.4, rows.3
x in place
w packed at bind
y kept in shared
atom avx512.bf16
occupancy domains 2""",
    "AMX convolution with delayed stores": """
axis n = (n 4): task 1
axis rows = (p 56, q 57 of 56): task p 28, loop 32, unit 16
axis columns = (f 64): task 64, loop 32, unit 16
axis depth = (r 3, s 3, c 64): unit r 1, unit s 1, unit c 32
grid n, rows, columns
loops columns, rows, depth
x strip at task, stream
w packed at bind
atom amx.bf16
overlap delayed store""",
    "a cluster that shares operands": """
axis M = (M 4096): cluster 256, task 128
axis N = (N 4096): task 256
axis K = (K 4096): loop 64
grid M, N
b tile by tma.load to cluster 4
mma by wgmma.m64n256k16.bf16, tile 128x256
producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 4, epilogue stages 2""",
    "boxes of lanes": """
axis G = (G 128): task 64
axis M = (p 28, q 28): task 64 as 8x8
axis K = (K 9): whole
grid G, M
raster contiguous
mma by loops
lanes vector 2, box 2x2
waves 4""",
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_written_down_printed_and_read(name):
    text = PLANS[name].strip()
    plan = parse_plan(text)
    assert "\n".join(plan.lines()) == text
    assert parse_plan(str(plan)) == plan
    assert hash(parse_plan(str(plan))) == hash(plan)


@pytest.mark.parametrize("name", PLANS)
def test_every_line_is_part_of_a_plan(name):
    lines = PLANS[name].strip().splitlines()
    for place in range(len(lines)):
        left = "\n".join(lines[:place] + lines[place + 1 :])
        try:
            other = parse_plan(left)
        except ArgumentError:
            continue
        assert other != parse_plan(PLANS[name]), lines[place]


def test_the_types_hold_what_the_text_says():
    plan = parse_plan(PLANS["GEMM on Ampere, asynchronous copies without roles"])
    route = Hop("cp.async.16", "shared", 3), Hop("ldmatrix.x4", "register", 2)
    assert plan.operand("a") == ValuePlacement("a", None, "tile", route=route)
    assert plan.operand("c").route == (Hop("st.global.16", "shared", 1, out=True),)
    assert plan.operand("c").reuse
    assert plan.occupancy == Occupancy(workgroups=1, registers=216)
    box = parse_plan(PLANS["attention, a box of (group, query) rows"]).axis("rows")
    assert box == Axis(
        "rows", (Digit("GQ", 4, 4), Digit("M", 4096, 4096)), (Split("task", 192, box=(4, 48)), Split("wave", 96))
    )
    assert parse_plan(PLANS["boxes of lanes"]).lanes == LaneTile(2, (2, 2))
    direct = parse_plan(PLANS["direct convolution in grid, thread-group and iteration blocks"])
    assert direct.axis("rows").peeled == (1, 1)
    assert [cut.unroll for cut in direct.axis("rows").splits] == [1, 1, 1, 2, 1]


# -- version 1 --------------------------------------------------------------------------------------------------------

OLD = [
    (r"raster (\d+), (\w+)", lambda m: f" group {m[1]} {_ORDERS[m[2]]}"),
    (r"raster (\d+)", lambda m: f" group {m[1]}"),
    (r"raster (\w+)", lambda m: f" {_ORDERS[m[1]]}"),
    (r"grid (.*)", r"tasks \1"),
    (r"loops (.*)", r"order \1"),
    (r"split kernel after (\w+)", r"apart \1"),
    (r"parts (.*)", r"split \1"),
    (r"overlap delayed store", "overlap defer"),
    (r"overlap mma ahead", "overlap ahead"),
    (r"overlap ordered", "overlap turns"),
    (r"(\w+) strip at (\w+)(, stream)?", lambda m: f"{m[1]} staged at {m[2]} as lines{m[3] or ', keep'}"),
    (r"(\w+) (halo|panel) at (\w+)", r"\1 staged at \3 as \2, keep"),
    (r"(\w+ (?:in place|packed at bind))", r"\1, keep"),
    (r"repack (\w+): aligned rows", r"\1 in rows, keep"),
    (r"repack (\w+): im2col", r"\1 in panels, keep"),
    (r"repack (\w+): padded rows", r"\1 in padded rows, keep"),
    (r"repack (\w+): block-diagonal (\d+)", r"\1 in \2 diagonal blocks, keep"),
    (r"(\w+ by .*), tile (.*)", r"\1, block \2"),
    (
        r"producer (.*), consumer (.*), stages (\d+)(, joint)?(?:, halo stages (\d+))?(?:, resident stages (\d+))?"
        r", epilogue stages (\d+)(, store per group)?(, pingpong)?",
        lambda m: (
            f"roles load {m[1]}, multiply {m[2]}, ring {m[3]}{' together' if m[4] else ''}"
            f"{f', halo {m[5]}' if m[5] else ''}{f', once {m[6]}' if m[6] else ''}, stored {m[7]}"
            f"{' apart' if m[8] else ''}{m[9] or ''}"
        ),
    ),
]
_ORDERS = {"cyclic": "strided", "contiguous": "contiguous", "dynamic": "dynamic", "reversed": "backward"}


def in_version_1(plan: str) -> str:
    """A plan's text as version 1 had it."""
    lines: list[str] = []
    for line in plan.splitlines():
        old = next((re.sub(form, new, line) for form, new in OLD if re.fullmatch(form, line)), line)
        if line.startswith("raster "):
            lines[-1] += old
        else:
            lines.append(old)
    return "\n".join(lines)


def test_every_plan_of_the_corpus_is_read_in_both_versions():
    plans = {entry.plan for entry in corpus_text.read().values() if not entry.error}
    assert len(plans) > 1000
    for text in plans:
        plan = parse_plan(text)
        assert "\n".join(plan.lines()) == text
        if "rows of K" in text:  # version 1 had no such copies
            continue
        old = in_version_1(text)
        assert not re.search(r"grid|raster|loops [A-Z]|tile|producer|repack|strip|parts", old), old
        assert parse_plan(old) == plan
        assert parse_plan(old.replace("\n", "; ")) == plan


def test_a_statement_of_version_1_is_no_statement_of_version_2():
    for statement in ("grid M", "raster 8, dynamic", "split kernel after mma", "x halo at K", "mma by loops"):
        assert as_version_2(statement) is None


def test_a_plan_of_version_1_makes_the_same_kernel():
    sizes, hopper = {"M": 300, "N": 520, "K": 200}, machine("hopper")
    kernel = kernels.gemm("nt", "bf16", "bf16")
    made = kernel_for(kernel, sizes, machine=hopper)
    old = in_version_1(made.text("plan"))
    assert "roles load" in old
    again = kernel_for(kernel, sizes, machine=hopper, plan=old)
    assert again.text("plan") == made.text("plan")
    assert again.text("block") == made.text("block")


# -- what is wrong with a text ----------------------------------------------------------------------------------------

AXES = "axis M = (M 64): task 16, loop 8; axis K = (n 4, k 16): loop 8; "
WRONG = {
    "gird M": "did you mean `grid M`?",
    "grid M; rastre 8": "did you mean `raster 8`?",
    "grid M; raster 8, dynamc": "did you mean `raster 8, dynamic`?",
    "taks M": "did you mean `grid M`?",
    "a tlie by tma.load to shared 2": "did you mean `a tile by tma.load to shared 2`?",
    "a tile by tma.load to shred 2": "shred is no memory: it is one of register, shared",
    "a tile by tma.load to shared 0": "0 is no count",
    "a tile": "says neither where it is copied nor by what",
    "x halo at J": "J is no point: it is one of start, task, M, K",
    "repack x: alined rows": "did you mean `repack x: aligned rows`?",
    "raster 8": "no line says the tasks that it orders",
    "grid M; raster 0": "0 is no count",
    "loops M.2": "M.2: `axis M = (M 64): task 16, loop 8` has 1 loops",
    "axis N = (p 8, q 8): task 16 as 4x5": "a box 4x5 has 20 elements, not 16",
    "axis N = (p 8, q 8): task 16 as 4x2x2": "a box has a side for each digit of N: p, q",
    "axis N = (N 8): wvae 4": "did you mean `axis N = (N 8): wave 4`?",
    "occupancy persistant": "did you mean `occupancy persistent`?",
    "mma by a.b, tile 8x8; producer 1 wave 40 registers, consumer 4 waves 200 registers, stages 4": "`epilogue stages`",
    "split kernel behind mma": "it is written `split kernel after PRODUCT`",
    "roles lod 1 wave": "it is written `producer 1 wave",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_with_a_text_is_said(text):
    with pytest.raises(ArgumentError, match="plan: ") as refused:
        parse_plan(AXES + text)
    assert WRONG[text] in str(refused.value)


UNLOWERED = {
    "axis M = (M 300): task 64": ("axis M = (M 300): cluster 128, task 64", "splits by cluster"),
    "axis N = (N 520): task": ("axis N = (N 520): wave 8, task", "splits by wave"),
    "(K 200): loop 64": ("(K 200): loop 64 unroll 2", "loops that a plan unrolls"),
    "loop 64": ("loop 64, peel 1 0", "iterations that a plan peels"),
    "mma by": ("a tile by tma.load to shared 4\nmma by", "routes that a plan says"),
    "mma b": ("p kept in register\nmma b", "places of values between products"),
    "launch early": ("occupancy workgroups 2\nlaunch early", "an occupancy that a plan says"),
    "launch": ("lanes vector 4\nlaunch", "tiles of lanes"),
    "grid M, N\nraster 5": ("grid M, N\nraster longest first", "an order of tasks by their length"),
}


@pytest.fixture(scope="module")
def chosen_for_unlowered():
    """A kernel, its sizes, and the plan that is chosen for Hopper."""
    kernel, sizes = kernels.gemm("nt", "bf16", "bf16"), {"M": 300, "N": 520, "K": 200}
    return kernel, sizes, kernel_for(kernel, sizes, machine=machine("hopper")).text("plan")


@pytest.mark.parametrize("old", UNLOWERED)
def test_what_the_lowering_lacks_is_refused_by_the_line(old, chosen_for_unlowered):
    kernel, sizes, plan = chosen_for_unlowered
    new, why = UNLOWERED[old]
    edited = re.sub(re.escape(old), new, plan, count=1) if old in plan else ""
    assert edited, plan
    with pytest.raises(ArgumentError, match=f"plan: `.*`: lowering lacks {why}") as refused:
        kernel_for(kernel, sizes, machine=machine("hopper"), plan=edited)
    line = re.search("plan: `(.*?)`", str(refused.value))
    assert line is not None
    assert line[1] in edited
