"""Products whose atom has its rows along N: few rows of C are columns of the atom, which may be as few."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from pinned_plans import first_plan, in_roles
from test_roles import BF16, HOPPER, integers, planned

import tilewright
from tilewright import compile_text, kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.plan.text import parse_plan

PRODUCT = kernels.gemm("nt", "bf16", "bf16")


def sizes_of(*sizes):
    return dict(zip("MNK", sizes, strict=True))


def transposed(kernel, sizes, machine=HOPPER, **like):
    """The best plan that is transposed, perhaps with a tile of so many rows and columns."""

    def is_like(plan):
        (product,) = plan.products
        return in_roles(plan) and product.transposed and all(getattr(product, name) == n for name, n in like.items())

    return first_plan(kernel, sizes, machine, is_like)


def is_transposed(*sizes, machine=HOPPER):
    (product,) = kernel_for(PRODUCT, sizes_of(*sizes), machine=machine).plan.products
    return product.transposed


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("m", "out"), [(1, "bf16"), (3, "f32"), (16, "f32"), (33, "bf16")])
@pytest.mark.parametrize(("n", "k"), [(200, 136), (41, 77), (136, 72), (203, 200)])
def test_few_rows_are_exact_with_ragged_ends(m, n, k, out):
    kernel, sizes = kernels.gemm("nt", "bf16", out), sizes_of(m, n, k)
    made = planned(kernel, sizes, plan=transposed(kernel, sizes))
    assert " transposed" in made.text("plan")
    assert re.search(r"%slab_ring = alloc shared bf16 \(\d+, 64, 64\)", made.text("block"))  # rows of the second factor


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tile", [(96, 128), (40, 64), (24, 128), (64, 192), (16, 256)])
def test_tiles_of_several_atoms_and_groups_leave_in_slabs(tile):
    sizes = sizes_of(90, 330, 72)  # no fewer rows: wider tiles than those that cover them are not listed
    made = planned(PRODUCT, sizes, plan=transposed(PRODUCT, sizes, rows=tile[0], columns=tile[1]))
    assert "by tma.store" not in made.text("block")  # rows of C are no multiple of 16 bytes
    sizes = sizes_of(90, 328, 72)
    made = planned(PRODUCT, sizes, plan=transposed(PRODUCT, sizes, rows=tile[0], columns=tile[1]))
    assert "by tma.store" in made.text("block")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("out", "tile"), [("bf16", (8, 64)), ("bf16", (32, 128)), ("f32", (24, 128))])
def test_its_loop_program_computes_the_same(out, tile):
    kernel, sizes = kernels.gemm("nt", "bf16", out), sizes_of(30, 136, 72)
    plan = transposed(kernel, sizes, rows=tile[0], columns=tile[1])
    run = compile_text(kernel_for(kernel, sizes, target="gpu:hopper", plan=plan).text("loop"), "interpreter")
    a, b = (integers(rows, 72).astype(BF16) for rows in (30, 136))
    wanted = tilewright.compile(kernel, target="executor")(a, b)
    np.testing.assert_array_equal(run(a, b).astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize(("transposes", "forms"), [("nn", ".ta"), ("tn", ".ta.tb"), ("tt", ".tb")])
def test_factors_lie_as_they_lie_in_memory(transposes, forms):
    kernel, sizes = kernels.gemm(transposes, "bf16", "bf16"), sizes_of(72, 136, 72)
    plan = transposed(kernel, sizes)
    assert plan.products[0].atom.endswith(f"k16.bf16{forms}")
    planned(kernel, sizes, plan=plan)


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.gemm("nt", "f8e4m3fn", "bf16"),
        kernels.gemm("nt", "f16", "f16"),
        kernels.gemm("nt", "f32", "f32", precision="tf32"),
    ],
    ids=["f8", "f16", "tf32"],
)
def test_products_of_all_types_may_be_transposed(kernel):
    sizes = sizes_of(5, 200, 144)
    planned(kernel, sizes, plan=transposed(kernel, sizes))


def test_an_epilogue_has_its_bias_along_the_atom_s_rows():
    kernel, sizes = kernels.gemm("nt", "bf16", "bf16", bias=True, activation="relu"), sizes_of(5, 75, 72)
    planned(kernel, sizes, plan=transposed(kernel, sizes))


def test_a_convolution_may_have_its_filters_along_the_atom_s_rows():
    kernel, sizes = kernels.conv((3, 3), "bf16", padding=1), {"N": 1, "H": 3, "W": 5, "C": 64, "F": 72}
    planned(kernel, sizes, plan=transposed(kernel, sizes))


def test_long_sums_of_few_rows_are_taken_apart():
    near = replace(HOPPER, limits=replace(HOPPER.limits, following_cycles=0, cores=8))
    made = planned(PRODUCT, sizes_of(3, 72, 1312), machine=near)
    assert made.plan.products[0].transposed
    assert made.plan.parts is not None
    text = made.text("host")
    assert text.count("launch programmatic") == len(re.findall(r"launch \w+\(", text)) == 2


@pytest.mark.sampled(7)
@pytest.mark.parametrize("m", [1, 2, 3, 4, 8, 13, 16])
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (8192, 8192), (4096, 14336), (11008, 4096)])
def test_few_rows_are_columns_of_the_atom(m, n, k):
    (product,) = kernel_for(PRODUCT, sizes_of(m, n, k), machine=HOPPER).plan.products
    assert product.transposed
    assert product.rows <= -(-m // 8) * 8  # nothing is multiplied that is not there, but for the last columns


@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (8192, 8192, 1024), (2048, 2048, 2048), (16384, 256, 1024)])
def test_many_rows_are_rows_of_the_atom(sizes):
    assert not is_transposed(*sizes)


def test_few_columns_are_columns_of_the_atom_too():
    assert not is_transposed(4096, 16, 4096)


def test_the_orientation_follows_from_the_machine_s_atoms():
    """Where all atoms are as wide as they are high, nothing is won."""
    wide = {name: atom for name, atom in HOPPER.multiply.items() if atom.shape[1] % 64 == 0}
    assert is_transposed(16, 4096, 4096)
    assert not is_transposed(16, 4096, 4096, machine=replace(HOPPER, multiply=wide))


def test_rows_outside_a_tensor_cost_what_the_machine_says():
    """Tiles that end where the tensor does are preferred where boxes that do not are slow."""
    free, dear = (
        kernel_for(
            PRODUCT,
            sizes_of(1000, 1000, 1000),
            machine=replace(HOPPER, limits=replace(HOPPER.limits, outside_row=cycles)),
        ).plan.products[0]
        for cycles in (0, 20)
    )
    assert -1000 % dear.rows + -1000 % dear.columns < -1000 % free.rows + -1000 % free.columns


def test_what_the_second_cache_keeps_is_moved_faster():
    cold = replace(HOPPER, limits=replace(HOPPER.limits, warm=1.0))
    sizes = sizes_of(1, 4096, 4096)
    assert (
        kernel_for(PRODUCT, sizes, machine=cold).choice.bound > kernel_for(PRODUCT, sizes, machine=HOPPER).choice.bound
    )
    sizes = sizes_of(4, 8192, 8192)
    assert (
        kernel_for(PRODUCT, sizes, machine=cold).choice.bound == kernel_for(PRODUCT, sizes, machine=HOPPER).choice.bound
    )


def test_a_transposed_plan_is_read_back_and_pinned():
    sizes = sizes_of(16, 136, 200)
    text = kernel_for(PRODUCT, sizes, machine=HOPPER).text("plan")
    assert re.search(r"tile \d+x64 transposed", text)
    assert parse_plan(text).products[0].transposed
    assert "\n".join(parse_plan(text).lines()) == text.strip()
    assert planned(PRODUCT, sizes, plan=text).text("plan") == text
    with pytest.raises(ArgumentError, match="do not share 8x64 in whole atoms of 64x8"):
        kernel_for(PRODUCT, sizes, machine=HOPPER, plan=text.replace(" transposed", ""))


def test_a_product_without_roles_is_not_transposed():
    kernel, sizes = kernels.gemm("nt", "f64"), {"M": 16, "N": 64, "K": 32}
    text = kernel_for(kernel, sizes, machine=HOPPER).text("plan")
    said = re.sub(r"(tile \d+x\d+)", r"\1 transposed", text)
    assert said != text
    with pytest.raises(ArgumentError, match="only products of a pipeline are transposed"):
        kernel_for(kernel, sizes, machine=HOPPER, plan=said)
