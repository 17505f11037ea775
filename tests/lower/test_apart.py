"""Programs that are done as two, with a value in memory between: when, by which plans, and that numbers are right."""

import re
from dataclasses import replace

import numpy as np
import pytest
from every_plan import plans_from_the_best

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.plan.text import parse_plan
from tilewright.targets.registry import machine

BF16 = tkl.bf16.numpy
M, N, K, F, SPACE = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.F, tkl.GLOBAL_ADDRESS_SPACE
MLP = {"M": 8192, "N": 1024, "K": 1024, "F": 4096}
ROWS = {"M": 4096, "N": 4096, "K": 1024}


@tkw.wave([tkw.TilingConstraint(F, 64)])
def two_layers(
    x: tkl.Memory[M, K, SPACE, tkl.bf16],
    w1: tkl.Memory[F, K, SPACE, tkl.bf16],
    w2: tkl.Memory[N, F, SPACE, tkl.bf16],
    y: tkl.Memory[M, N, SPACE, tkl.f32],
):
    @tkw.iterate(F, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
    def total(acc):
        hidden = tkw.mma(tkw.read(x), tkw.read(w1), tkl.Register[M, F, tkl.f32](0.0))
        hidden = tkw.maximum(hidden, tkl.Register[M, F, tkl.f32](0.0)) * 0.5
        return tkw.mma(tkw.cast(hidden, tkl.bf16), tkw.read(w2), acc)

    tkw.write(total, y)


@tkw.wave()
def layers_with_gelu(
    x: tkl.Memory[M, K, SPACE, tkl.bf16],
    w1: tkl.Memory[F, K, SPACE, tkl.bf16],
    w2: tkl.Memory[N, F, SPACE, tkl.bf16],
    y: tkl.Memory[M, N, SPACE, tkl.bf16],
):
    hidden = tkw.mma(tkw.read(x), tkw.read(w1), tkl.Register[M, F, tkl.f32](0.0))
    hidden = tkw.cast(tilewright.kernels.elementwise.gelu(hidden), tkl.bf16)
    tkw.write(tkw.cast(tkw.mma(hidden, tkw.read(w2), tkl.Register[M, N, tkl.f32](0.0)), tkl.bf16), y)


@tkw.wave()
def scaled_by_its_largest(
    a: tkl.Memory[M, K, SPACE, tkl.bf16], b: tkl.Memory[N, K, SPACE, tkl.bf16], y: tkl.Memory[M, N, SPACE, tkl.f32]
):
    @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
    def c(acc):
        return tkw.mma(tkw.read(a), tkw.read(b), acc)

    tkw.write(c - tkw.max(c, dim=N), y)


def softmax_of(c):
    e = tkw.exp(c - tkw.max(c, dim=N))
    return e / tkw.sum(e, dim=N)


@tkw.wave()
def product_and_softmax(
    a: tkl.Memory[M, K, SPACE, tkl.bf16], b: tkl.Memory[N, K, SPACE, tkl.bf16], y: tkl.Memory[M, N, SPACE, tkl.f32]
):
    c = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0))
    tkw.write(softmax_of(c), y)


@tkw.wave()
def rounded_product_and_softmax(
    a: tkl.Memory[M, K, SPACE, tkl.bf16], b: tkl.Memory[N, K, SPACE, tkl.bf16], y: tkl.Memory[M, N, SPACE, tkl.f32]
):
    c = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0))
    tkw.write(softmax_of(tkw.cast(tkw.cast(c, tkl.bf16), tkl.f32)), y)


@tkw.wave()
def three_layers(
    x: tkl.Memory[M, K, SPACE, tkl.bf16],
    w1: tkl.Memory[F, K, SPACE, tkl.bf16],
    w2: tkl.Memory[N, F, SPACE, tkl.bf16],
    w3: tkl.Memory[K, N, SPACE, tkl.bf16],
    y: tkl.Memory[M, K, SPACE, tkl.f32],
):
    one = tkw.cast(tkw.relu(tkw.mma(tkw.read(x), tkw.read(w1), tkl.Register[M, F, tkl.f32](0.0))), tkl.bf16)
    two = tkw.cast(tkw.relu(tkw.mma(one, tkw.read(w2), tkl.Register[M, N, tkl.f32](0.0))), tkl.bf16)
    tkw.write(tkw.mma(two, tkw.read(w3), tkl.Register[M, K, tkl.f32](0.0)), y)


def row_of(name, **limits):
    """A machine with other limits."""
    row = machine(name)
    return replace(row, limits=replace(row.limits, **limits))


def ran(made, low=-1, high=2):
    """(what a kernel gives for small integers, what the tile program means by them); results are poisoned before."""
    rng = np.random.default_rng(4)
    *inputs, result = made.module.host.args
    arrays = {a.name: rng.integers(low, high, [int(n) for n in a.type.shape]).astype(BF16) for a in inputs}
    found = np.full([int(n) for n in result.type.shape], np.nan, result.type.dtype.numpy)
    made.bind({**arrays, result.name: found})()
    return found, arrays


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kernel", "sizes", "through"),
    [
        (two_layers, {"M": 70, "N": 300, "K": 64, "F": 128}, "bf16"),  # 300 columns are no atom's
        (two_layers, {"M": 33, "N": 72, "K": 40, "F": 200}, "bf16"),
        (scaled_by_its_largest, {"M": 70, "N": 320, "K": 64}, "f32"),
        (scaled_by_its_largest, {"M": 5, "N": 1000, "K": 72}, "f32"),
    ],
)
def test_a_value_goes_through_memory_in_its_own_type_and_results_are_exact(kernel, sizes, through):
    soon = row_of("hopper", launch_cycles=0)  # two launches cost nothing
    plan = next(
        plans_from_the_best(kernel, sizes, soon, lambda p: p.split_after == "mma" and p.then.split_after is None)
    )
    made = kernel_for(kernel, sizes, machine=soon, plan=plan)
    assert f"%between: in global {through}" in made.text("block")
    again = kernel_for(kernel, sizes, machine=soon, plan=made.text("plan"))
    assert again.text("plan") == made.text("plan")
    assert again.text("block") == made.text("block")
    found, arrays = ran(made)
    np.testing.assert_array_equal(found, tilewright.compile(kernel, target="executor")(*arrays.values()))


@pytest.mark.parametrize(("kernel", "through"), [(product_and_softmax, "f32"), (rounded_product_and_softmax, "bf16")])
def test_a_softmax_after_a_product_keeps_the_type_that_the_program_says(kernel, through):
    made = kernel_for(kernel, {"M": 37, "N": 520, "K": 48}, machine=row_of("hopper", launch_cycles=0))
    assert f"%between = workspace global {through} (37, 520)" in made.text("host")
    found, arrays = ran(made)
    a, b = (x.astype(np.float64) for x in arrays.values())
    exponents = a @ b.T  # exact, in bf16 too
    weights = np.exp(exponents - exponents.max(1, keepdims=True))
    # relative: roundings of the sum and of the exponent, a few of exp and of the division
    bound = (520 + 6 * np.abs(exponents).max() + 16) * 2.0**-24
    np.testing.assert_allclose(found, weights / weights.sum(1, keepdims=True), rtol=bound)


def test_what_is_longer_than_two_programs_is_taken_apart_again():
    sizes = {"M": 70, "N": 320, "K": 200, "F": 304}
    made = kernel_for(three_layers, sizes, machine=row_of("hopper", launch_cycles=0))
    assert [made.plan.split_after, made.plan.then.split_after, made.plan.then.then.split_after] == ["mma", "mma", None]
    assert parse_plan(made.text("plan")) == made.plan
    found, arrays = ran(made)
    np.testing.assert_array_equal(found, tilewright.compile(three_layers, target="executor")(*arrays.values()))


def test_the_plan_says_both_programs_and_the_explanation_both_times():
    made = kernel_for(product_and_softmax, ROWS, machine=machine("hopper"))
    first, second = made.text("plan").split("then\n")
    assert first.endswith(
        "producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 5, epilogue stages 2, pingpong\n"
        "split kernel after mma\nlaunch early\n"
    )
    assert (
        second
        == "axis M = (M 4096): task 1\naxis N = (N 4096): whole\ngrid M\nraster reversed\nwaves 8\nlaunch early\n"
    )
    explained = made.explain()
    assert "product_and_softmax on hopper as two kernels, split after mma: predicted" in explained
    assert re.search(r"refused  no pipeline: 1\d\.\d+ of the time", explained)  # as one kernel
    assert "product_and_softmax_before on hopper with 132 workers, with a pipeline" in explained


def test_the_second_program_can_be_edited_and_left_out():
    text = kernel_for(product_and_softmax, ROWS, machine=machine("hopper")).text("plan")
    edited = text.replace("waves 8\n", "waves 4\n")
    made = kernel_for(product_and_softmax, ROWS, machine=machine("hopper"), plan=edited)
    assert made.text("plan") == edited
    assert "waves 4" in made.text("block")
    alone = text[: text.index("then\n")]
    assert kernel_for(product_and_softmax, ROWS, machine=machine("hopper"), plan=alone).text("plan") == text


def test_each_program_is_launched_as_its_plan_says():
    made = kernel_for(product_and_softmax, ROWS, machine=machine("hopper"))
    text = made.text("plan")
    first, second = text.split("then\n")

    def plainly(part):
        return part.replace("launch early", "launch plain")

    for plan, early in (
        (text, [True, True]),
        (f"{first}then\n{plainly(second)}", [True, False]),
        (f"{plainly(first)}then\n{second}", [False, True]),
        (plainly(text), [False, False]),
    ):
        again = kernel_for(product_and_softmax, ROWS, machine=machine("hopper"), plan=plan)
        assert again.text("plan") == plan
        assert ["\n  launch programmatic\n" in str(program) for program in again.module.programs.values()] == early
    unsaid = text.replace("launch early\n", "")
    assert kernel_for(product_and_softmax, ROWS, machine=machine("hopper"), plan=unsaid).text("plan") == text


def test_a_machine_that_launches_in_one_way_refuses_the_other():
    few = {"M": 5, "N": 3000, "K": 640}
    cpu = kernel_for(scaled_by_its_largest, few, machine=row_of("x86.avx512", cores=64)).text("plan")
    assert "then\n" in cpu
    assert "x86.avx512 has no launches that begin while another ends" in refused(
        scaled_by_its_largest, few, cpu.replace("then", "launch early\nthen"), row_of("x86.avx512", cores=64)
    )
    assert "`launch early`: x86.avx512 has no launches" in refused(
        scaled_by_its_largest, few, f"{cpu}launch early", row_of("x86.avx512", cores=64)
    )
    plain = cpu.replace("then\n", "launch plain\nthen\n") + "launch plain\n"
    again = kernel_for(scaled_by_its_largest, few, machine=row_of("x86.avx512", cores=64), plan=plain)
    assert again.text("plan") == cpu


def test_what_was_written_last_is_read_first_where_the_cache_does_not_hold_all_of_it():
    held = kernel_for(rounded_product_and_softmax, {**ROWS, "M": 2048}, machine=machine("hopper"))
    assert "grid M\nwaves 4\n" in held.text("plan")
    made = kernel_for(product_and_softmax, ROWS, machine=machine("hopper"))
    assert "[-t_M + 4095," in made.text("block")
    smaller = row_of("hopper", l2_bytes=1000, launch_cycles=0)
    ragged = kernel_for(scaled_by_its_largest, {"M": 71, "N": 520, "K": 72}, machine=smaller)
    text = ragged.text("plan")
    assert "grid M\nraster reversed\n" in text
    for plan in (text, text.replace("axis M = (M 71): task 1\n", "axis M = (M 71): task 3\n")):
        again = kernel_for(scaled_by_its_largest, {"M": 71, "N": 520, "K": 72}, machine=smaller, plan=plan)
        assert again.text("plan") == plan
        found, arrays = ran(again)
        wanted = tilewright.compile(scaled_by_its_largest, target="executor")(*arrays.values())
        np.testing.assert_array_equal(found, wanted)
    first = re.sub(r"grid M, N\n(raster \d+\n)?", "grid M, N\nraster reversed\n", text, count=1)
    assert "is for programs without products" in refused(scaled_by_its_largest, {"M": 71, "N": 520, "K": 72}, first)


def refused(kernel, sizes, plan, row=None):
    with pytest.raises(ArgumentError) as fault:
        kernel_for(kernel, sizes, machine=row or machine("hopper"), plan=plan)
    return str(fault.value)


def test_plans_of_two_programs_are_refused_by_their_line():
    text = kernel_for(product_and_softmax, ROWS, machine=machine("hopper")).text("plan")
    wrong = refused(product_and_softmax, ROWS, text.replace("split kernel after mma", "split kernel after mma2"))
    assert "`split kernel after mma2`: no value computed from mma2 is all that the rest needs of it; allowed: " in wrong
    assert "allowed: `split kernel after mma`" in wrong
    assert "`then` stands between two kernels, and no `split kernel after PRODUCT` says that there are two" in refused(
        product_and_softmax, ROWS, text.replace("split kernel after mma\n", "")
    )
    assert "axis N: task 8: tasks cannot split it" in refused(
        product_and_softmax, ROWS, text.replace("axis N = (N 4096): whole", "axis N = (N 4096): task 8")
    )
    gemm, sizes = tilewright.kernels.gemm("nt", "bf16", "bf16"), {"M": 256, "N": 256, "K": 256}
    plan = kernel_for(gemm, sizes, machine=machine("hopper")).text("plan")
    assert "`split kernel after mma`: nothing that is computed from a product is all" in refused(
        gemm, sizes, plan + "split kernel after mma"
    )


def test_a_split_names_its_bytes_relative_to_those_that_the_program_moves_and_not_to_its_arguments():
    """The scores of long sequences are 64 times as large as queries, keys, values and result together."""
    sizes = {"B": 1, "H": 16, "M": 16384, "N": 16384, "D": 64, "E": 64}
    made = kernel_for(kernels.attention(64, "f32"), sizes, machine=machine("hopper"))
    assert made.plan.split_after is None
    assert (
        "refused  two kernels, split after mma: 16384 MiB lie between them, 64 times the bytes that the program moves"
        in made.explain()
    )


def test_launches_that_take_long_are_worth_one_kernel():
    slow = row_of("hopper", launch_cycles=10_000_000, following_cycles=10_000_000)
    made = kernel_for(product_and_softmax, ROWS, machine=slow)
    assert made.plan.split_after is None
    assert "refused  two kernels, split after mma: at least 1." in made.explain()
    between = {"M": 8200, "N": 512, "K": 1024}  # what is longer than moving the value, and less than two programs
    found = kernel_for(
        scaled_by_its_largest, between, machine=row_of("hopper", launch_cycles=1000, following_cycles=1000)
    ).explain()
    assert re.search(r"refused  two kernels, split after mma; .*: 1\.\d+ of the time", found)
    assert "two kernels, split after mma: at least" not in found


@pytest.mark.parametrize("name", ["x86.amx", "x86.avx512", "aarch64.neon"])
def test_cpus_whose_cores_all_have_tasks_do_rows_after_a_product_in_its_kernel(name):
    made = kernel_for(product_and_softmax, ROWS, machine=row_of(name, cores=64))
    assert made.plan.split_after is None
    assert "a kernel without products follows, for which caches hold the values" in made.explain()


def test_few_rows_leave_cores_of_a_cpu_idle_and_are_done_as_two_programs():
    sizes = {"M": 5, "N": 3000, "K": 640}
    many = row_of("x86.avx512", cores=64)
    made = kernel_for(scaled_by_its_largest, sizes, machine=many)
    assert made.plan.split_after == "mma"
    found, arrays = ran(made)
    wanted = tilewright.compile(scaled_by_its_largest, target="executor")(*arrays.values())
    np.testing.assert_array_equal(found, wanted)
    here = tilewright.compile(scaled_by_its_largest, target="cpu", plan=APART_HERE)
    np.testing.assert_array_equal(here(*arrays.values()), wanted)
    assert here.text("host").count("launch scaled_by_its_largest") == 2


APART_HERE = (
    "axis M = (M 5): task 5; axis N = (N 3000): task 100; axis K = (K 640): whole; grid M, N; split kernel after mma"
)


@pytest.mark.parametrize(("function", "turns"), [(tkw.erf, True), (tkw.relu, False)])
def test_functions_at_the_end_run_beside_the_next_products(function, turns):
    """They took as long as a third of the products where nothing ran beside them."""

    @tkw.wave()
    def ended(
        a: tkl.Memory[M, K, SPACE, tkl.bf16], b: tkl.Memory[N, K, SPACE, tkl.bf16], y: tkl.Memory[M, N, SPACE, tkl.bf16]
    ):
        c = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0))
        tkw.write(tkw.cast(function(c), tkl.bf16), y)

    made = kernel_for(ended, {"M": 8192, "N": 4096, "K": 2048}, machine=machine("hopper"))
    assert made.plan.pipeline.pingpong == turns
