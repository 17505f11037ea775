"""Programs with several products in roles: what lies between products stays in registers, and the numbers are right."""

import re

import numpy as np
import pytest
from pinned_plans import in_roles, planned_as

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import compile_text, kernels
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

BF16 = tkl.bf16.numpy
HOPPER = machine("hopper")


def attended(q, k, v, bias, causal):
    """Attention in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.einsum("bhmd,bhnd->bhmn", q, k) / np.sqrt(q.shape[-1]) + (0 if bias is None else bias)
    if causal:
        m, n = np.indices(scores.shape[-2:])
        scores = np.where(n <= m, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhmn,bhne->bhme", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("shape", "tile", "causal", "bias"),
    [
        ((1, 2, 128, 256, 128, 128), 128, False, False),
        ((2, 1, 150, 200, 64, 64), 128, True, False),  # neither rows nor keys are whole tiles
        ((1, 1, 70, 200, 128, 72), 64, True, True),
        ((1, 1, 65, 40, 64, 64), 32, False, True),  # tiles of keys that are no whole row of shared memory
    ],
)
def test_attention_between_products_stays_in_registers(shape, tile, causal, bias):
    b, h, m, n, d, e = shape
    sizes = dict(zip("BHMNDE", shape, strict=True))
    kernel = kernels.attention(tile, "bf16", causal=causal, bias=bias)
    text = planned_as(kernel, sizes, HOPPER, lambda plan: in_roles(plan) and plan.overlap != "none").text("block")
    products = re.findall(r"mma .* using wgmma\.m64n\d+k16\.bf16(\.ra|\.ra\.tb)?\n", text)
    assert products == [".ra", ".ra", ".ra.tb", ".ra.tb"]  # the next before the last of this round
    assert [len(re.findall(rf"bf16{name}\.a\b", text)) for name in (r"\.ra", r"\.ra\.tb")] == [1, 1]  # A, in registers
    assert [line.split()[0] for line in text.splitlines() if "alloc shared" in line] == [
        *("%slabs_ring", "%slabs_1_ring", "%slabs_2_ring", "%result_ring")
    ]
    rng = np.random.default_rng(sum(shape))
    inputs = [rng.standard_normal(s).astype(BF16) for s in ((b, h, m, d), (b, h, n, d), (b, h, n, e))]
    more = rng.standard_normal((b, h, m, n)).astype(np.float32) if bias else None
    found = compile_text(text, "interpreter")(*inputs, *([] if more is None else [more]))
    np.testing.assert_allclose(found.astype(np.float64), attended(*inputs, more, causal), atol=2e-2, rtol=2e-2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("shape", "causal", "bias", "selections"),
    [
        ((1, 1, 200, 200, 64, 64), True, False, ["first_M + i0"]),  # what queries see ends with the keys
        ((1, 1, 200, 150, 64, 64), True, False, ["first_M + i0", "149"]),  # some see all, and past the end
        ((1, 1, 150, 200, 64, 72), False, False, ["199"]),
        ((1, 1, 150, 200, 64, 64), False, True, ["199"]),
    ],
)
def test_keys_past_the_end_are_hidden_once(shape, causal, bias, selections):
    """Scores, weights and rounded weights were masked one after the other, in registers of their own: spills."""
    b, h, m, n, d, e = shape
    sizes = dict(zip("BHMNDE", shape, strict=True))
    made = kernel_for(kernels.attention(128, "bf16", causal=causal, bias=bias), sizes, target="gpu:hopper")
    found = re.findall(r"select\(\[.* <= (.*)\], ", made.text("block"))
    assert sorted(set(found)) == sorted(selections)
    rng = np.random.default_rng(sum(shape))
    inputs = [rng.standard_normal(s).astype(BF16) for s in ((b, h, m, d), (b, h, n, d), (b, h, n, e))]
    more = rng.standard_normal((b, h, m, n)).astype(np.float32) if bias else None
    wanted = attended(*inputs, more, causal)
    for level in ("block", "loop"):
        got = compile_text(made.text(level), "interpreter")(*inputs, *([] if more is None else [more]))
        np.testing.assert_allclose(got.astype(np.float64), wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dynamic", [["N"], ["B", "M"], ["B", "H", "M", "N"]])
def test_attention_of_open_sizes_is_done_in_roles(causal, dynamic):
    typical = {"B": 1, "H": 1, "M": 100, "N": 100, "D": 64, "E": 64}
    made = kernel_for(kernels.attention(64, "bf16", causal=causal), typical, target="gpu:hopper", dynamic=dynamic)
    assert "producer" in made.text("plan")
    rng = np.random.default_rng(len(dynamic))
    for m, n in ((1, 1), (5, 64), (70, 130)):
        sizes = typical | {d: v for d, v in (("B", 2), ("H", 2), ("M", m), ("N", n)) if d in dynamic}
        b, h, m, n = (sizes[d] for d in "BHMN")
        inputs = [rng.standard_normal((b, h, rows, 64)).astype(BF16) for rows in (m, n, n)]
        for level in ("block", "loop") if n == 64 else ("loop",):
            found = np.full((b, h, m, 64), np.nan, BF16)
            compile_text(made.text(level), "interpreter")(*inputs, found)
            wanted = attended(*inputs, None, causal)
            np.testing.assert_allclose(found.astype(np.float64), wanted, atol=2e-2, rtol=2e-2)


def test_the_loop_program_of_attention_says_the_same():
    sizes = {"B": 1, "H": 1, "M": 70, "N": 130, "D": 64, "E": 64}
    kernel = tilewright.compile(kernels.attention(64, "bf16", causal=True), target="gpu:hopper")
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal((1, 1, n, 64)).astype(BF16) for n in (70, 130, 130)]
    block, loop = (compile_text(kernel.text(level, sizes), "interpreter")(*inputs) for level in ("block", "loop"))
    np.testing.assert_array_equal(block.astype(np.float32), loop.astype(np.float32))


def test_what_a_plan_of_several_products_says_can_be_given_back():
    sizes = {"B": 2, "H": 16, "M": 4096, "N": 4096, "D": 128, "E": 128}
    attention = kernels.attention(128, "bf16")
    text = tilewright.compile(attention, target="gpu:hopper").text("plan", sizes)
    assert (
        "producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 2, epilogue stages 2, store per group"
        in text
    )
    assert tilewright.compile(attention, target="gpu:hopper", plan=text).text("plan", sizes) == text


def test_what_a_step_brings_may_be_handed_over_together():
    sizes = {"B": 1, "H": 1, "M": 70, "N": 130, "D": 64, "E": 64}
    kernel, hopper = kernels.attention(64, "bf16"), machine("hopper")
    plan = """
        axis M = (M 70): task 64
        axis E = (E 64): task 64
        axis B = (B 1): whole
        axis H = (H 1): whole
        axis D = (D 64): whole
        axis N = (N 130): loop 64
        grid M, E
        mma by wgmma.m64n64k16.bf16, tile 64x64
        mma2 by wgmma.m64n64k16.bf16.ra.tb, tile 64x64
        producer 1 wave 40 registers, consumer 4 waves 200 registers, stages 2, epilogue stages 1"""
    together = plan.replace("stages 2", "stages 2, joint")
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal((1, 1, n, 64)).astype(BF16) for n in (70, 130, 130)]
    found = []
    for given, channels in ((plan, 3), (together, 2)):
        text = kernel_for(kernel, sizes, machine=hopper, plan=given).text("block")
        assert len(re.findall("from load to multiply", text)) == channels
        found.append(compile_text(text, "interpreter")(*inputs))
    np.testing.assert_array_equal(*found)
    with pytest.raises(tilewright.errors.ArgumentError, match="ahead of the other is not handed over together"):
        kernel_for(kernel, sizes, machine=hopper, plan=f"{together}; overlap mma ahead")


def seen(text):
    """The rounds that loops over keys go, and the conditions under which scores are masked."""
    return re.findall(r"for k_N in (.*) \{", text), re.findall(r"if \((.*)\) \{", text)


def test_tiles_that_a_mask_hides_are_left_out_and_only_those_on_its_edge_are_masked():
    sizes = {"B": 2, "H": 16, "M": 4096, "N": 4096, "D": 128, "E": 128}
    causal = kernels.attention(128, "bf16", causal=True)
    rounds, masked = seen(tilewright.compile(causal, target="gpu:hopper").text("block", sizes))
    last, masked_from = "(first_M + 127)//128 + 1", "min((first_M + 127)//128 + 1, max(-((-first_M + 126)//128), 1))"
    assert rounds == [f"0..{last}", f"1..{masked_from}", f"{masked_from}..{last}"]
    assert masked == ["first_M <= 126"]
    rounds, masked = seen(tilewright.compile(kernels.attention(128, "bf16"), target="gpu:hopper").text("block", sizes))
    assert rounds == ["0..32", "1..32"]
    assert masked == []


def test_a_loop_whose_body_would_change_what_it_carries_goes_over_all_tiles():
    """As attention, but what is hidden counts 0, which is no neutral element of the maximum."""
    m, n, d = tkl.sym.M, tkl.sym.N, tkl.sym.D
    space = tkl.GLOBAL_ADDRESS_SPACE

    @tkw.wave([tkw.TilingConstraint(n, 64)])
    def hidden(
        q: tkl.Memory[m, d, space, tkl.bf16],
        k: tkl.Memory[n, d, space, tkl.bf16],
        v: tkl.Memory[n, d, space, tkl.bf16],
        out: tkl.Memory[m, d, space, tkl.f32],
    ):
        @tkw.iterate(n, init_args=[tkl.Register[m, tkl.f32](-9.0), tkl.Register[m, d, tkl.f32](0)])
        def walk(highest, total):
            scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[m, n, tkl.f32](0))
            scores = tkw.select(tkw.self_index(n) <= tkw.self_index(m), scores, 0.0)
            return tkw.max(scores, highest, dim=n), tkw.mma(tkw.cast(scores, tkl.bf16), tkw.read(v), total)

        highest, total = walk
        tkw.write(total + highest, out)

    sizes = {"M": 130, "N": 192, "D": 64}
    text = planned_as(
        hidden, sizes, HOPPER, lambda plan: in_roles(plan) and plan.overlap != "none" and "N 192): loop 64" in str(plan)
    ).text("block")
    masked_from = "max(-((-first_M + 62)//64), 1)"
    assert seen(text)[0] == ["0..3", f"1..{masked_from}", f"{masked_from}..3"]
    rng = np.random.default_rng(3)
    inputs = [rng.integers(-2, 3, (rows, 64)).astype(BF16) for rows in (130, 192, 192)]
    wanted = tilewright.compile(hidden, target="executor")(*inputs)
    np.testing.assert_array_equal(compile_text(text, "interpreter")(*inputs), wanted)


def test_a_factor_that_is_computed_from_an_argument_is_held_for_all_rounds():
    """Its loop carries a sum, and is not one product that goes over what it sums."""
    m, n, d, space = tkl.sym.M, tkl.sym.N, tkl.sym.D, tkl.GLOBAL_ADDRESS_SPACE

    @tkw.wave([tkw.TilingConstraint(n, 64)])
    def doubled(
        q: tkl.Memory[m, d, space, tkl.bf16],
        k: tkl.Memory[n, d, space, tkl.bf16],
        v: tkl.Memory[n, d, space, tkl.bf16],
        out: tkl.Memory[m, d, space, tkl.f32],
    ):
        @tkw.iterate(n, init_args=[tkl.Register[m, d, tkl.f32](0)])
        def total(acc):
            scores = tkw.mma(tkw.read(q) * 2.0, tkw.read(k), tkl.Register[m, n, tkl.f32](0))
            return tkw.mma(tkw.cast(scores, tkl.bf16), tkw.read(v), acc)

        tkw.write(total, out)

    sizes = {"M": 128, "N": 192, "D": 64}
    text = planned_as(doubled, sizes, HOPPER, lambda p: in_roles(p) and "axis N = (N 192): loop 64" in p.lines()).text(
        "block"
    )
    assert len(re.findall(r"map %left = .*2.0", text)) == 1
    rng = np.random.default_rng(3)
    inputs = [rng.integers(-2, 3, (count, 64)).astype(BF16) for count in (128, 192, 192)]
    wanted = tilewright.compile(doubled, target="executor")(*inputs)
    np.testing.assert_array_equal(compile_text(text, "interpreter")(*inputs), wanted)


def test_rows_that_see_nothing_in_a_tile_are_no_numbers_only_where_they_see_nothing_at_all():
    """A row's maximum is then still the lowest number, which overflows where it is scaled."""
    sizes = {"B": 1, "H": 1, "M": 64, "N": 128, "D": 64, "E": 64}
    attention = kernels.attention(64, "bf16", bias=True)
    text = tilewright.compile(attention, target="gpu:hopper").text("block", sizes)
    rng = np.random.default_rng(8)
    inputs = [rng.standard_normal((1, 1, n, 64)).astype(BF16) for n in (64, 128, 128)]
    bias = np.zeros((1, 1, 64, 128), np.float32)
    bias[..., 5:20, :64] = -np.inf
    found = compile_text(text, "interpreter")(*inputs, bias)
    np.testing.assert_allclose(found.astype(np.float64), attended(*inputs, bias, False), atol=2e-2, rtol=2e-2)


def test_a_program_without_products_has_a_plan_on_machines_with_roles():
    sizes = {"M": 64, "N": 128}
    made = kernel_for(kernels.softmax("f32"), sizes, machine=machine("hopper"))
    assert made.plan.pipeline is None
    assert "refused  a pipeline: there is no product" in made.explain()
