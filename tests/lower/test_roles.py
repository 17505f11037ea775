"""Products in roles, on machines that copy by themselves: what a planned kernel computes, and how it is written."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from every_plan import every_plan
from pinned_plans import copied_by_waves, first_plan, on_operands_as_they_lie

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.plan.text import parse_plan
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
QUICK = replace(HOPPER, limits=replace(HOPPER.limits, gather_cycles=0, gather_latency=0))
"""One whose waves copy as fast as TMA does: factors are never copied to other rows first."""
BF16 = tkl.bf16.numpy


def integers(*shape):
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


def planned(kernel, sizes, **more):
    """The kernel for Hopper, run on the interpreter and found to be what the executor gives."""
    made = kernel_for(kernel, sizes, **{"machine": HOPPER, **more})
    *inputs, result = made.module.host.args
    arrays = {a.name: integers(*map(int, a.type.shape)).astype(a.type.dtype.numpy) for a in inputs}
    wanted = tilewright.compile(kernel, target="executor")(*arrays.values())
    found = np.full(wanted.shape, np.nan, wanted.dtype)
    made.bind({**arrays, result.name: found})()
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))
    return made


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sizes", [(200, 136, 200), (72, 264, 136), (5, 8, 8), (1500, 1104, 64)])
def test_a_product_is_loaded_by_one_role_and_multiplied_by_another(sizes):
    kernel, extents = kernels.gemm("nt", "bf16", "bf16"), dict(zip("MNK", sizes, strict=True))
    made = planned(kernel, extents, plan=first_plan(kernel, extents, HOPPER, on_operands_as_they_lie))
    text = made.text("block")
    assert re.search(r"role load waves 1 .*role multiply waves \d+ ", text, re.S)
    assert text.count("by tma.load") == 2
    assert "by tma.store" in text
    assert re.search(r"mma %\w+ \+= %\w+_ready \* ", text)
    assert "barrier" not in text


@pytest.mark.parametrize("sizes", [(1, 200, 136), (70, 1, 72), (1, 1, 77)])
def test_a_single_row_or_column_is_a_tile_too(sizes):
    """A dimension of one element is none that tasks cut: such products were done by one wave a task."""
    kernel, extents = kernels.gemm("nt", "bf16", "bf16"), dict(zip("MNK", sizes, strict=True))
    planned(kernel, extents, plan=first_plan(kernel, extents, HOPPER, on_operands_as_they_lie))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("transposes", ["nn", "tn", "tt"])
@pytest.mark.parametrize("sizes", [(200, 136, 200), (64, 320, 72)])
def test_factors_lie_in_shared_memory_as_they_lie_in_memory(transposes, sizes):
    made = planned(kernels.gemm(transposes, "bf16", "bf16"), dict(zip("MNK", sizes, strict=True)))
    forms = re.search(r"using wgmma\.m64n\d+k16\.bf16(\S*)", made.text("block"))[1]
    turned = made.plan.products[0].transposed  # the factors change places
    assert forms == {"nn": ".ta" if turned else ".tb", "tn": ".ta.tb", "tt": ".tb" if turned else ".ta"}[transposes]
    assert "role load waves 1" in made.text("block")


def test_an_epilogue_is_computed_by_who_multiplies():
    made = planned(kernels.gemm("nt", "bf16", "bf16", bias=True, activation="relu"), {"M": 130, "N": 72, "K": 64})
    assert re.search(r"map %\w+ = bf16\(relu\(%\w+ \+ %bias", made.text("block"))


@pytest.mark.parametrize("out", ["f32", "bf16"])
def test_results_of_both_widths_leave_through_shared_memory(out):
    text = planned(kernels.gemm("nt", "bf16", out), {"M": 70, "N": 72, "K": 72}).text("block")
    assert re.search(r"copy %result_\w+ -> %c_view by tma.store", text)


def test_halves_of_those_who_multiply_take_tasks_in_turn():
    small = replace(HOPPER, limits=replace(HOPPER.limits, cores=2))
    kernel, sizes = kernels.gemm("nt", "bf16", "bf16"), {"M": 300, "N": 136, "K": 72}
    turns = first_plan(kernel, sizes, small, lambda plan: plan.pipeline and plan.pipeline.pingpong)
    made = planned(kernel, sizes, machine=small, plan=turns)
    assert "overlap pingpong" in made.text("block")
    assert ", pingpong\n" in made.text("plan")
    assert kernel_for(kernel, sizes, machine=small, plan=made.text("plan")).text("block") == made.text("block")


CONVS = [
    ((2, 9, 7, 64, 72), {"padding": 1}),
    ((3, 8, 6, 128, 64), {"padding": 1, "stride": 2}),
    ((1, 7, 5, 64, 64), {"bias": True}),
    ((2, 32, 16, 64, 64), {"padding": 1}),  # rows of 192 pixels, which divide lines
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("shape", "how"), CONVS)
def test_a_convolution_is_loaded_tap_by_tap(shape, how):
    kernel, sizes = kernels.conv((3, 3), "bf16", **how), dict(zip("NHWCF", shape, strict=True))
    plan = first_plan(
        kernel, sizes, HOPPER, lambda plan: on_operands_as_they_lie(plan) and not plan.products[0].transposed
    )
    made = planned(kernel, sizes, plan=plan)
    assert "by tma.load.im2col" in made.text("block")


@pytest.mark.parametrize(
    ("shape", "how"),
    [((1, 7, 5, 3, 40), {"padding": 1, "dilation": 2, "bias": True}), ((2, 5, 6, 20, 72), {"padding": 1, "stride": 3})],
)
def test_what_the_machine_does_not_copy_itself_is_copied_by_waves(shape, how):
    kernel, sizes = kernels.conv((3, 3), "bf16", **how), dict(zip("NHWCF", shape, strict=True))
    made = planned(kernel, sizes, machine=QUICK, plan=first_plan(kernel, sizes, QUICK, copied_by_waves))
    assert "role load waves 4" in made.text("block")
    assert "a tensor map takes multiples of 16" in made.explain()


def test_a_product_whose_rows_are_no_multiple_of_16_bytes_is_copied_by_waves():
    made = planned(kernels.gemm("nt", "bf16", "bf16"), {"M": 33, "N": 41, "K": 77}, machine=QUICK)
    assert "by tma" not in made.text("block")
    assert "role load waves 4" in made.text("block")
    again = planned(kernels.gemm("nt", "bf16", "bf16"), {"M": 33, "N": 41, "K": 77}, plan=made.text("plan"))
    assert again.text("block") == made.text("block")  # a plan said so, and was refused
    made = planned(kernels.gemm("nt", "bf16", "bf16"), {"M": 33, "N": 41, "K": 72})
    assert "role load waves 1" in made.text("block")
    assert re.search(r"copied by waves: copy %result_\w+ -> %c_view: tma.store: ", made.explain())


def test_a_plan_with_roles_is_read_back_and_may_be_pinned():
    kernel, sizes = kernels.gemm("nt", "bf16", "bf16"), {"M": 200, "N": 136, "K": 200}
    text = kernel_for(kernel, sizes, machine=HOPPER).text("plan")
    assert parse_plan(text).pipeline is not None
    assert planned(kernel, sizes, plan=text).text("plan") == text
    (block,) = parse_plan(text).products
    other = re.sub(r"axis M = (.*): task \d+", r"axis M = \1: task 128", text)
    other = re.sub(r"axis N = (.*): task \d+", r"axis N = \1: task 128", other)
    other = other.replace(str(block), "mma by wgmma.m64n128k16.bf16, tile 128x128")
    other = re.sub(
        r"producer.*",
        "producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 6, epilogue stages 2",
        other,
    )
    assert "(128, 128)" in planned(kernel, sizes, plan=other).text("block")


def test_a_plan_whose_waves_copy_themselves_is_read_back():
    """Such a plan fitted none of the candidates, which were those of the machine's own copies."""
    kernel, sizes = kernels.gemm("nt", "bf16", "f32"), {"M": 70, "N": 72, "K": 50}
    first, *_, last = every_plan(kernel, sizes, HOPPER, copied_by_waves)
    for plan in (first, last):
        made = planned(kernel, sizes, plan=plan)
        assert "role load waves 4" in made.text("block")
        assert planned(kernel, sizes, plan=made.text("plan")).plan == made.plan == plan


def test_few_long_sums_are_taken_apart_and_added_up():
    kernel, sizes = kernels.gemm("nt", "bf16", "bf16", bias=True, activation="relu"), {"M": 40, "N": 24, "K": 1300}
    near = replace(HOPPER, limits=replace(HOPPER.limits, following_cycles=0, cores=4))  # a second program costs little
    made = planned(kernel, sizes, machine=near)
    _, parts = made.plan.parts
    assert parts > 2
    assert f"%partial_sums = workspace global f32 ({parts}, 40, 24)" in made.text("host")
    text = made.text("plan")
    assert kernel_for(kernel, sizes, machine=near, plan=text).text("plan") == text
    fewer = planned(
        kernel,
        sizes,
        machine=near,
        plan=re.sub(
            f"parts K {parts}",
            "parts K 4",
            re.sub("K_split \\d+", "K_split 4", re.sub("K_part \\d+", "K_part 384", text)),
        ),
    )
    assert fewer.plan.parts == ("K", 4)


def test_parts_that_are_many_are_added_up_in_parts_themselves():
    """Memory between programs had one name for all of them, and a shape that was another's."""
    kernel, sizes = kernels.gemm("nt", "bf16", "bf16"), {"M": 16, "N": 64, "K": 32768}
    row = replace(HOPPER, limits=replace(HOPPER.limits, launch_cycles=0, l2_rate=1.0))
    plan = str(first_plan(kernel, sizes, row, lambda plan: plan.parts == ("K", 64)))
    for said, other in (("K_split 64", "K_split 512"), ("K_part 512", "K_part 64"), ("parts K 64", "parts K 512")):
        plan = plan.replace(said, other)
    once = kernel_for(kernel, sizes, machine=HOPPER, plan=plan)
    assert once.text("host").count("workspace") == 1  # a third launch would take longer
    made = planned(kernel, sizes, machine=row, plan=plan)
    between = re.findall(r"%(\w+) = workspace global f32 \((\d+), 16, 64\)", made.text("host"))
    names, counts = zip(*between, strict=True)
    assert len(set(names)) == len(names) == 2
    assert int(counts[0]) > int(counts[1]) > 1


def test_parts_are_added_up_by_all_cores():
    """Tasks of functions of elements were so large that a few cores had all of them."""
    made = kernel_for(kernels.gemm("nt", "bf16", "bf16"), {"M": 512, "N": 512, "K": 16384}, machine=HOPPER)
    assert made.plan.parts is not None
    assert re.search(r"launch gemm\(%c, %partial_sums\) workers 132", made.text("host"))


def test_results_in_narrow_rows_cost_more():
    """A tile of 144 columns left in nine pieces of 32 bytes, and was taken for as good as one whose rows are whole."""
    (product,) = kernel_for(
        kernels.gemm("nt", "bf16", "bf16"), dict(zip("MNK", (1000,) * 3, strict=True)), machine=HOPPER
    ).plan.products
    assert product.columns * 2 % 128 == 0


def test_a_sum_is_not_taken_apart_where_there_are_tasks_enough():
    made = kernel_for(kernels.gemm("nt", "bf16", "bf16"), {"M": 2048, "N": 2048, "K": 2048}, machine=HOPPER)
    assert made.plan.parts is None


def test_roles_that_do_not_fit_are_refused():
    kernel, sizes = kernels.gemm("nt", "bf16", "bf16"), {"M": 200, "N": 136, "K": 200}
    text = re.sub(r"(?<!epilogue )stages \d+", "stages 80", kernel_for(kernel, sizes, machine=HOPPER).text("plan"))
    with pytest.raises(ArgumentError, match=r"plan: `axis K .*`producer .*stages 80.*`: shared memory: \d+ bytes"):
        kernel_for(kernel, sizes, machine=HOPPER, plan=text)


def test_tiles_follow_from_the_machine_and_the_sizes():
    """What fills all cores with the largest tiles: the shapes whose best tiles are known."""
    square = kernels.gemm("nt", "bf16", "bf16")

    def tile(kernel, **sizes):
        (product,) = kernel_for(kernel, sizes, machine=HOPPER).plan.products
        return product.rows, product.columns

    assert tile(square, M=4096, N=4096, K=4096) in ((128, 256), (256, 128))
    assert tile(square, M=512, N=512, K=512) in ((64, 32), (32, 64), (64, 64))
    image = kernels.conv((3, 3), "bf16", padding=1)
    assert tile(image, N=32, H=28, W=28, C=128, F=128) == (192, 128)


def test_a_product_of_f32_is_not_rounded_unless_it_asks_for_that():
    """Atoms that round their factors to tf32 were taken for products of f32 without a word."""
    (product,) = kernel_for(kernels.gemm("nt", "f32"), {"M": 64, "N": 64, "K": 64}, machine=HOPPER).plan.products
    assert product.atom is None or "tf32" not in product.atom


def scattered_product():
    """A product whose rows are written where data say."""
    M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
    space, i, j = tkl.GLOBAL_ADDRESS_SPACE, tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    d0 = tkw.IndexMapping.dynamic_val(0)
    rows = tkw.IndexMapping(2, {M: i, N: j}, {M: d0, N: j}, dynamic_val_mappings={M: i})

    @tkw.wave()
    def scattered(
        a: tkl.Memory[M, K, space, tkl.bf16],
        b: tkl.Memory[N, K, space, tkl.bf16],
        where: tkl.Memory[M, space, tkl.i32],
        c: tkl.Memory[M, N, space, tkl.f32],
    ):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def total(acc):
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        tkw.write(total, c, mapping=rows, mapping_dynamic_vals=(tkw.read(where),))

    return scattered


def test_rows_that_are_written_where_data_say_are_not_extended():
    """Rows past the end would be written too, to wherever the index that is read there says."""
    scattered, sizes = scattered_product(), {"M": 70, "N": 72, "K": 64}  # one step of K, which is not split
    made = kernel_for(scattered, sizes, machine=HOPPER)
    assert made.plan.pipeline is None
    assert "it writes where data say" in made.explain()
    with pytest.raises(ArgumentError, match="it writes where data say"):
        kernel_for(scattered, sizes, machine=HOPPER, plan=first_plan(scattered, sizes, HOPPER, on_operands_as_they_lie))


def test_what_merges_parts_writes_where_data_say():
    """The rows of parts may be extended: these lie in memory of their own."""
    scattered, sizes = scattered_product(), {"M": 70, "N": 72, "K": 72}
    plan = first_plan(scattered, sizes, HOPPER, lambda p: p.parts == ("K", 2) and p.products[0].columns >= sizes["M"])
    made = kernel_for(scattered, sizes, machine=HOPPER, plan=plan)
    assert made.plan.pipeline is not None
    parts, _, merge = made.text("block").partition("block scattered(")
    assert "scatter %" in merge
    assert "scatter %" not in parts
    a, b, where = integers(70, 72), integers(72, 72), np.random.default_rng(3).permutation(70).astype(np.int32)
    c, wanted = np.full((70, 72), np.nan, np.float32), np.empty((70, 72), np.float32)
    made.bind({"a": a.astype(BF16), "b": b.astype(BF16), "where": where, "c": c})()
    wanted[where] = a @ b.T
    np.testing.assert_array_equal(c, wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        (kernels.gemm("tt", "f64", "f64"), {"M": 18, "N": 20, "K": 2600}),
        (kernels.conv((2, 2), "f64", "f64", padding=1), {"N": 1, "H": 3, "W": 4, "C": 601, "F": 33}),
        (kernels.conv((2,), "f32", "f32", groups=2, precision="tf32"), {"N": 1, "W": 9, "CG": 700, "F": 40}),
    ],
)
def test_sums_that_shared_memory_does_not_hold_are_brought_in_parts(kernel, sizes):
    """All of a sum was brought at once by programs that are not done in roles, and refused where that was too much."""
    made = planned(kernel, sizes)
    assert made.plan.pipeline is None
    assert any(split.level == "loop" for axis in made.plan.axes if axis.name == "K" for split in axis.splits)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        *((kernels.gemm(how, "f32", "f32"), {"M": 130, "N": 75, "K": 45}) for how in ("nt", "nn", "tn", "tt")),
        (kernels.gemm("nn", "f32", "f32", bias=True, activation="relu"), {"M": 33, "N": 260, "K": 68}),
        (kernels.conv((3, 2), "f32", "f32", padding=1, stride=2), {"N": 2, "H": 9, "W": 7, "C": 36, "F": 40}),
        (kernels.conv((3, 3), "f32", "f32", padding=1), {"N": 1, "H": 5, "W": 8, "C": 5, "F": 33}),
        (kernels.conv((1, 1), "f32", "f32", groups=2), {"N": 1, "H": 6, "W": 5, "CG": 20, "F": 64}),
    ],
)
def test_f32_is_multiplied_by_lanes_from_shared_memory(kernel, sizes):
    """Factors as they lie, rows that TMA does not read, ends of all dimensions."""
    made = planned(kernel, sizes)
    assert made.plan.pipeline is not None
    assert made.plan.products[0].atom.startswith("fma.m64n")


def test_f32_that_may_be_rounded_to_tf32_is_multiplied_so_from_shared_memory():
    """Factors were rounded in shared memory before, in a program without roles."""
    made = planned(kernels.gemm("nt", "f32", "f32", precision="tf32"), {"M": 70, "N": 40, "K": 100})
    assert ".tf32" in made.plan.products[0].atom
    assert made.plan.pipeline is not None
    planned(kernels.conv((3,), "f32", padding=1, precision="tf32"), {"N": 2, "W": 9, "C": 32, "F": 24})
    a = np.array([[1 + 2.0**-10, 1 + 2.0**-11, 1 + 2.0**-11 + 2.0**-12, -1 - 2.0**-11]], np.float32)
    found = np.full((1, 4), np.nan, np.float32)
    cut = kernel_for(kernels.gemm("nt", "f32", "f32", precision="tf32"), {"M": 1, "N": 4, "K": 4}, machine=HOPPER)
    cut.bind({"a": a, "b": np.eye(4, dtype=np.float32), "c": found})()
    assert found.tolist() == [[1 + 2.0**-10, 1, 1, -1]]


def test_groups_whose_channels_begin_within_16_bytes_are_copied_by_waves():
    """TMA stopped with an illegal instruction where a box began at 6 bytes of a line."""
    kernel, sizes = kernels.conv((1, 2), "bf16", "f32", groups=2), {"N": 1, "H": 3, "W": 5, "CG": 4, "F": 16}
    made = planned(kernel, sizes, plan=first_plan(kernel, sizes, HOPPER, copied_by_waves))
    assert "tma.load" not in made.text("block")
    assert "dimension 0 of %x as (2, 1, 3, 5, 4) has a stride of 4 elements, 8 bytes" in made.explain()
