"""The hand-written block programs come out of plans: a tile program, a plan, and the text at three sets of parameters.

Each case lowers a tile program by a plan that is given, and compares the block program with the text, both in normal
form (`block_forms`). What a text's parameters are called in the plan stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from block_forms import differences, most_registers, normal, skeleton

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.ir.block import parse_block
from tilewright.ir.core import Program
from tilewright.kernels.conv import conv
from tilewright.kernels.gemm import gemm
from tilewright.targets.registry import machine

EXAMPLES = Path(__file__).parents[2] / "examples" / "block"
EARLY = ("machine hopper\n", "machine hopper\n  launch programmatic\n")


@dataclass(frozen=True)
class Case:
    """A text with parameters, and the tile program, sizes and plan from which it follows."""

    text: str
    params: Mapping[str, int]
    kernel: Any
    sizes: tuple[str, ...]
    """The parameters that are sizes of the tile program."""
    machine: str
    plan: str
    called: Mapping[str, str] = field(default_factory=dict)
    """Arguments that are called otherwise in the text."""
    constant: tuple[str, ...] = ()

    def lowered(self) -> Program:
        """The block program of the plan."""
        sizes = {name: self.params[name] for name in self.sizes}
        made = kernel_for(self.kernel, sizes, plan=self.plan, machine=machine(self.machine), constant=self.constant)
        assert str(made.plan).split("; ") == [line.strip() for line in self.plan.strip().splitlines()]
        return parse_block(made.text("block"))

    def written(self, edit: tuple[str, str] | None = None) -> Program:
        """The text's program, perhaps with one thing changed."""
        text = (EXAMPLES / f"{self.text}.block").read_text()
        if edit is not None:
            assert edit[0] in text
            text = text.replace(*edit)
        return parse_block(text)


def roles(groups: int) -> str:
    """Producer and consumers of a pipeline with so many warpgroups."""
    spare = 72 - 16 * groups
    own = min(240, (512 - spare) // groups // 8 * 8)
    return f"producer 1 wave {spare} registers, consumer {4 * groups} waves {own} registers"


def product(**params: int) -> Case:
    """gemm_hopper."""
    p = SimpleNamespace(**params)
    plan = f"""
        axis M = (M {p.M}): task {p.BM}
        axis N = (N {p.N}): task {p.BN}
        axis K = (K {p.K}): loop 64
        grid M, N
        raster {p.GROUP}
        mma by wgmma.m64n{p.BN}k16.bf16, tile {p.BM}x{p.BN}
        {roles(p.WG)}, stages {p.STAGES}, epilogue stages 2
        launch plain"""
    return Case("gemm_hopper", params, gemm("nt", "bf16", "bf16"), ("M", "N", "K"), "hopper", plan, {"c": "d"})


def turns(**params: int) -> Case:
    """gemm_hopper_pingpong."""
    p = SimpleNamespace(**params)
    plan = f"""
        axis M = (M {p.M}): task {p.BM}
        axis N = (N {p.N}): task {p.BN}
        axis K = (K {p.K}): loop 64
        grid M, N
        raster {p.GROUP}
        mma by wgmma.m64n{p.BN}k16.bf16, tile {p.BM}x{p.BN}
        producer 1 wave 40 registers, consumer 8 waves 232 registers, stages {p.STAGES}, epilogue stages 2, pingpong
        launch plain"""
    kernel = gemm("nt", "bf16", "bf16")
    return Case("gemm_hopper_pingpong", params, kernel, ("M", "N", "K"), "hopper", plan, {"c": "d"})


IMAGES = ("N", "H", "W", "C", "F")


def outputs(p: SimpleNamespace, stride: int) -> tuple[int, int]:
    """The height and width of a convolution's output."""
    return (p.H + 2 * p.PAD - p.R) // stride + 1, (p.W + 2 * p.PAD - p.S) // stride + 1


def implicit(**params: int) -> Case:
    """conv_hopper."""
    p = SimpleNamespace(**params)
    high, wide = outputs(p, p.STRIDE)
    taps = [f"axis K_2 = (K_2 {p.R}): loop 1", f"axis K_1 = (K_1 {p.S}): loop 1", f"axis K_0 = (K_0 {p.C}): loop 64"]
    lines = [
        f"axis M = (M {p.N * high * wide}): task {p.BM}",
        f"axis F = (F {p.F}): task {p.BN}",
        *(taps if p.R * p.S > 1 else [f"axis K = (K {p.C}): loop 64"]),
        "grid M, F",
        f"mma by wgmma.m64n{p.BN}k16.bf16, tile {p.BM}x{p.BN}",
        f"{roles(p.WG)}, stages {p.STAGES}, epilogue stages {min(2, p.BN // 64)}",
        "launch plain",
    ]
    kernel = conv((p.R, p.S), "bf16", stride=p.STRIDE, padding=p.PAD)
    return Case("conv_hopper", params, kernel, IMAGES, "hopper", "\n".join(lines))


def around(**params: int) -> Case:
    """conv_hopper_halo."""
    p = SimpleNamespace(**params)
    plan = f"""
        axis M = (M_2 {p.N}, M_1 {p.H}, M_0 {p.W + 2} of {p.W}): task M_2 2
        axis F = (F {p.F}): task {p.BN}
        axis K_2 = (K_2 3): loop 1
        axis K_1 = (K_1 3): loop 3
        axis K_0 = (K_0 {p.C}): loop 64
        grid M, F
        loops K_0, K_2, K_1
        x halo at K_0
        w panel at K_2
        mma by wgmma.m64n{p.BN}k16.bf16, tile 128x{p.BN}
        {roles(2)}, stages {p.WSTAGES}, halo stages {p.XSTAGES}, epilogue stages 1
        launch plain"""
    return Case("conv_hopper_halo", params, conv((3, 3), "bf16", padding=1), IMAGES, "hopper", plan)


def in_tiles(**params: int) -> Case:
    """conv_amx."""
    p = SimpleNamespace(**params)
    high, wide = outputs(p, 1)
    hint = {0: "", 1: ", stream"}
    lines = [
        *([f"axis m_2 = (m_2 {p.N}): task 1"] if p.N > 1 else []),
        f"axis rows = (m_1 {high}, m_0 {p.W + p.PAD} of {wide}): task m_1 {p.STRIP}, loop 32, unit 16",
        f"axis columns = (f_0 {p.F}): task {p.F // p.SPLIT}, loop 32, unit 16",
        f"axis depth = (k_2 {p.R}, k_1 {p.S}, k_0 {p.C}): unit k_2 1, unit k_1 1, unit k_0 32",
        f"grid {'m_2, ' if p.N > 1 else ''}rows, columns",
        "loops columns, rows, depth",
        f"x strip at task{hint[p.STREAM_X]}",
        f"w packed at bind{hint[p.STREAM_W]}",
        "atom amx.bf16",
        "overlap delayed store",
    ]
    kernel = conv((p.R, p.S), "bf16", padding=p.PAD)
    return Case("conv_amx", params, kernel, IMAGES, "x86.amx", "\n".join(lines), {"packed_w": "w"}, ("w",))


def by_vectors(**params: int) -> Case:
    """conv_avx512."""
    p = SimpleNamespace(**params)
    high, wide = outputs(p, p.STRIDE)
    depth = f"loop k_2 1, unit k_1 1, loop k_0 {p.DEPTH}, unit k_0 1"
    lines = [
        *([f"axis m_2 = (m_2 {p.N}): task 1"] if p.N > 1 else []),
        f"axis rows = (m_1 {high}, m_0 {wide}): task m_1 1, loop m_1 1, loop {p.PIX}, unit 1",
        f"axis columns = (f_0 {p.F}): task {p.F // p.SPLIT}, loop 32, unit 16",
        f"axis depth = (k_2 {p.R}, k_1 {p.S}, k_0 {p.C}): {depth}",
        f"grid columns, {'m_2, ' if p.N > 1 else ''}rows",
        "raster contiguous",
        "loops columns, rows, depth",
        "x in place",
        "w packed at bind",
        "atom avx512.f32",
    ]
    kernel = conv((p.R, p.S), "f32", stride=p.STRIDE, padding=p.PAD)
    return Case("conv_avx512", params, kernel, IMAGES, "x86.avx512", "\n".join(lines), {"packed_w": "w"}, ("w",))


B, T, U, D, E, BK = (getattr(tkl.sym, name) for name in ("B", "T", "U", "D", "E", "BK"))
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
Rows, Keys = tkl.Memory[B, T, D, GLOBAL, tkl.bf16], tkl.Memory[B, U, D, GLOBAL, tkl.bf16]
Values, Means = tkl.Memory[B, U, E, GLOBAL, tkl.bf16], tkl.Memory[B, T, E, GLOBAL, tkl.bf16]


@tkw.wave([tkw.TilingConstraint(U, BK)])
def attention(q: Rows, k: Keys, v: Values, o: Means, lse: tkl.Memory[B, T, GLOBAL, tkl.f32]):
    """Attention with the logarithm of each row's sum, as attention_hopper computes it."""
    start = tkl.Register[B, T, tkl.f32](-1e30), tkl.Register[B, T, tkl.f32](0), tkl.Register[B, T, E, tkl.f32](0)

    @tkw.iterate(U, init_args=list(start))
    def walk(best, rowsum, acc):
        scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[B, T, U, tkl.f32](0)) * 0.18033688011112042
        higher = tkw.max(scores, best, dim=U)
        scale, weights = tkw.exp2(best - higher), tkw.exp2(scores - higher)
        rowsum = tkw.sum(weights, rowsum * scale, dim=U)
        return higher, rowsum, tkw.mma(tkw.cast(weights, tkl.bf16), tkw.read(v), acc * scale)

    best, rowsum, acc = walk
    tkw.write(tkw.cast(acc / rowsum, tkl.bf16), o)
    tkw.write(tkw.log2(rowsum) + best, lse)


def heads(**params: int) -> Case:
    """attention_hopper."""
    p = SimpleNamespace(**params)
    plan = f"""
        axis B = (B {p.B}): task 1
        axis T = (T {p.T}): task 64
        axis E = (E 64): whole
        axis D = (D 64): whole
        axis U = (U {p.U}): loop {p.BK}
        grid B, T
        mma by wgmma.m64n{p.BK}k16.bf16, tile 64x{p.BK}
        mma2 by wgmma.m64n64k16.bf16.ra.tb, tile 64x64
        producer 1 wave 40 registers, consumer 4 waves 240 registers, stages {p.STAGES}, joint, epilogue stages 1
        launch plain"""
    kernel = attention.bound({BK: p.BK, D: 64, E: 64})
    return Case("attention_hopper", params, kernel, ("B", "T", "U"), "hopper", plan)


CASES = {
    "gemm_hopper": (
        product(M=256, N=256, K=256, BM=128, BN=128, STAGES=4, GROUP=8, WG=2),
        product(M=1160, N=392, K=200, BM=128, BN=256, STAGES=3, GROUP=4, WG=2),
        product(M=4096, N=136, K=72, BM=192, BN=64, STAGES=5, GROUP=2, WG=3),
    ),
    "gemm_hopper_pingpong": (
        turns(M=256, N=256, K=256, BM=64, BN=128, STAGES=4, GROUP=8),
        turns(M=1000, N=392, K=200, BM=128, BN=128, STAGES=3, GROUP=4),
        turns(M=4096, N=136, K=72, BM=64, BN=256, STAGES=2, GROUP=2),
    ),
    "conv_hopper": (
        implicit(N=2, H=14, W=14, C=64, F=64, R=3, S=3, STRIDE=1, PAD=1, BM=128, BN=64, STAGES=4, WG=2),
        implicit(N=3, H=15, W=9, C=128, F=192, R=3, S=3, STRIDE=2, PAD=1, BM=192, BN=128, STAGES=3, WG=3),
        implicit(N=5, H=14, W=14, C=192, F=136, R=1, S=1, STRIDE=2, PAD=0, BM=64, BN=64, STAGES=5, WG=1),
    ),
    "conv_hopper_halo": (
        around(N=4, H=7, W=7, C=128, F=64, BN=64, XSTAGES=3, WSTAGES=4),
        around(N=5, H=6, W=8, C=64, F=256, BN=128, XSTAGES=2, WSTAGES=3),
        around(N=3, H=12, W=3, C=192, F=128, BN=64, XSTAGES=4, WSTAGES=2),
    ),
    "conv_amx": (
        in_tiles(N=1, H=56, W=56, C=64, F=64, R=3, S=3, PAD=1, STRIP=28, SPLIT=1, CHUNK=64, STREAM_X=1, STREAM_W=0),
        in_tiles(N=3, H=10, W=9, C=32, F=128, R=3, S=3, PAD=1, STRIP=5, SPLIT=2, CHUNK=32, STREAM_X=0, STREAM_W=1),
        in_tiles(N=2, H=12, W=14, C=96, F=96, R=5, S=5, PAD=2, STRIP=6, SPLIT=3, CHUNK=96, STREAM_X=1, STREAM_W=0),
    ),
    "conv_avx512": (
        by_vectors(N=1, H=56, W=56, C=64, F=64, R=3, S=3, STRIDE=1, PAD=1, PIX=14, SPLIT=1, DEPTH=4),
        by_vectors(N=3, H=10, W=12, C=8, F=128, R=3, S=3, STRIDE=1, PAD=1, PIX=6, SPLIT=2, DEPTH=8),
        by_vectors(N=2, H=15, W=15, C=12, F=64, R=5, S=5, STRIDE=2, PAD=2, PIX=4, SPLIT=1, DEPTH=4),
    ),
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("text", CASES)
def test_a_text_comes_out_of_a_plan(text, place):
    case = CASES[text][place]
    derived = normal(case.lowered(), called=case.called)
    assert differences(derived, normal(case.written(), case.params)) == []


@pytest.mark.parametrize("text", [name for name in CASES if "hopper" in name])
def test_a_text_that_is_launched_early_comes_out_of_a_plan_that_says_so(text):
    case = CASES[text][1]
    early = replace(case, plan=case.plan.replace("launch plain", "launch early"))
    derived = normal(early.lowered(), called=case.called)
    assert differences(derived, normal(case.written(EARLY), case.params)) == []
    assert differences(derived, normal(case.written(), case.params)) != []


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("gemm_hopper", EARLY),
        ("gemm_hopper", ("registers OWN", "registers (OWN - 8)")),
        ("gemm_hopper", ("%sb else 0", "%sb")),
        ("gemm_hopper", ("64*k + c ?]\n        copy %gb", "64*k + c]\n        copy %gb")),
        ("gemm_hopper", ("BN*n + 64*j + c ?", "BN*n + 64*j + c")),
        ("gemm_hopper", ("let n = u%(GROUP*TN)//tall", "let n = u//GROUP%TN")),
        ("gemm_hopper", ("0..BN//64 unroll", "0..BN//64")),
        ("gemm_hopper_pingpong", (" overlap pingpong", "")),
        ("conv_hopper", ("s - PAD ?, 64*c + k]", "s - PAD + 1 ?, 64*c + k]")),
        ("conv_hopper", ("(m + i)//(P*Q) ?, (m + i)//Q%P*S", "(m + i)//(P*Q), (m + i)//Q%P*S")),
        ("conv_hopper", ("for r in 0..R, s in 0..S,", "for s in 0..S, r in 0..R,")),
        ("conv_hopper", ("by tma.load.im2col", "by tma.load")),
        ("conv_hopper_halo", ("  fill %slack 0\n", "")),
        ("conv_hopper_halo", ("  barrier\n", "")),
        ("conv_hopper_halo", ("let ROWS = 64 + 2*LINE + 2 ", "let ROWS = 64 + 2*LINE + 4 ")),
        ("conv_hopper_halo", ("i%64 + LINE*r + s, k]", "i%64 + LINE*s + r, k]")),
        ("conv_hopper_halo", ("        release %images\n", "")),
        ("conv_hopper_halo", ("[2*pair + g ?, h, q ?,", "[2*pair + g ?, h, q,")),
        ("conv_amx", ("LINE*r + s, c]", "LINE*s + r, c]")),
        ("conv_amx", (" overlap defer", "")),
        ("conv_amx", ("fill %tail 0\n", "")),
        ("conv_amx", ("stream STREAM_X", "stream STREAM_W")),
        ("conv_avx512", (" peel [1, 1]", "")),
        ("conv_avx512", ("max(0, -top)", "0")),
        ("conv_avx512", (" skip", "")),
        ("conv_avx512", (" schedule contiguous", "")),
    ],
)
def test_another_text_is_told_apart(text, edit):
    case = CASES[text][1]
    derived = normal(case.lowered(), called=case.called)
    assert differences(derived, normal(case.written(edit), case.params)) != []


ATTENTION = (
    heads(B=2, T=128, U=192, BK=64, STAGES=2),
    heads(B=3, T=192, U=256, BK=128, STAGES=3),
    heads(B=5, T=64, U=288, BK=96, STAGES=4),
)


@pytest.mark.parametrize("case", ATTENTION, ids=["64", "128", "96"])
def test_attention_has_the_same_loops_channels_copies_products_and_shared_bytes_and_not_more_registers(case):
    derived, text, hopper = case.lowered(), case.written(), machine(case.machine)
    assert differences(skeleton(normal(derived)), skeleton(normal(text, case.params))) == []
    assert most_registers(derived, hopper) <= most_registers(text, hopper, case.params)


@pytest.mark.parametrize(
    "edit",
    [
        ("        copy %gv -> %sv by tma.load\n", ""),
        ("      release %queries\n", ""),
        ("[b, BK*u + j, d]\n        copy %gv", "[b, BK*u + j, d]\n        copy %gk"),
        ("%tk (d 64, j BK) -> [j, d]", "%tk (d 64, j BK) -> [j, 63 - d]"),
        ("  %os = alloc shared bf16 (1, 64, 64) swizzle <3,3,3>", "  %os = alloc shared bf16 (1, 64, 64)"),
    ],
)
def test_other_attention_is_told_apart(edit):
    case = ATTENTION[0]
    other = case.written(edit)
    assert differences(skeleton(normal(case.lowered())), skeleton(normal(other, case.params))) != []


def test_registers_that_are_read_later_are_counted():
    text = """
        block f(%x: in global f32 (32), %y: out global f32 (32)) machine hopper waves 1 {
          %a = alloc register f32 (32) by (32,1):(1,0)
          %b = alloc register f32 (32) by (32,1):(1,0)
          %c = alloc register f32 (32) by (32,1):(1,0)
          tasks t in 0..1 {
            copy %x -> %a
            map %b = %a + %a
            map %c = %b + %b
            copy %c -> %y
          }
        }"""
    hopper = machine("hopper")
    assert most_registers(parse_block(text), hopper) == 1
    assert most_registers(parse_block(text.replace("%b + %b", "%b + %a")), hopper) == 2
