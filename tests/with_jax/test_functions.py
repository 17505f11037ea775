"""Compiled kernels as functions of JAX: `tilewright.jax.function`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact import assert_same, small, squares, two_devices
from jax.sharding import PartitionSpec as Spec

import tilewright
import tilewright.jax
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import ArgumentError, MissingBackward, TracedArgument
from tilewright.kernels import (
    activation,
    gather_rows,
    gemm,
    histogram,
    layer_norm,
    reduction,
    running_sum,
    scatter_rows,
    softmax,
    transpose,
)

GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
M, N = tkl.sym.M, tkl.sym.N


def product(**options: Any) -> Any:
    return tilewright.jax.function(tilewright.compile(gemm("nn", "f32")), **options)


def by_products(inputs: Any, outputs: Any, cotangents: Any) -> Any:
    (a, b), (outer,) = inputs, cotangents
    return outer @ b.T, a.T @ outer


# -- transforms ------------------------------------------------------------------------------------------------


def test_a_kernel_runs_alone_and_under_jit():
    a, b, run = small(7, 12), small(12, 5, seed=1), product()
    assert_same(run(a, b), a @ b)
    assert_same(jax.jit(lambda a, b: run(b=b, a=a * 2) + 1)(a, b), 2 * a @ b + 1)
    assert isinstance(run(a, b), jax.Array)


def test_one_function_takes_other_shapes():
    run = jax.jit(product())
    for m, k, n in ((1, 1, 1), (3, 17, 5), (64, 96, 80), (33, 65, 129)):
        a, b = small(m, k), small(k, n, seed=1)
        assert_same(run(a, b), a @ b)


def test_a_named_backward_is_used():
    a, b = small(7, 12), small(12, 5, seed=1)
    run = product(backward=by_products)
    for transform in (lambda f: f, jax.jit):
        assert_same(transform(squares(run))(a, b), squares(jnp.matmul)(a, b))


def test_a_backward_that_can_be_derived_gives_second_derivatives():
    a, b = small(3, 4), small(4, 2, seed=1)
    run = product(backward=by_products)

    def twice(function: Any) -> Any:
        return jax.grad(lambda a: (jax.grad(lambda a: (function(a, b) ** 2).sum())(a) ** 2).sum())(a)

    assert_same(twice(run), twice(jnp.matmul))


def test_a_backward_may_leave_derivatives_out():
    a, b = small(7, 12), small(12, 5, seed=1)
    run = product(backward=lambda inputs, outputs, cotangents: (cotangents[0] @ inputs[1].T, None))
    by_a, by_b = squares(run)(a, b)
    assert_same(by_a, squares(jnp.matmul)(a, b)[0])
    assert_same(by_b, np.zeros_like(b))


def test_a_backward_gets_the_outputs():
    run = tilewright.jax.function(
        tilewright.compile(activation("relu")),
        backward=lambda inputs, outputs, cotangents: ((outputs[0] > 0) * cotangents[0],),
    )
    x = small(5, 9)
    assert_same(squares(run)(x), squares(jax.nn.relu)(x))


def test_a_derivative_without_a_backward_is_refused():
    a, b, run = small(3, 4), small(4, 2, seed=1), product()
    for transform in (
        lambda f: jax.grad(lambda a: f(a, b).sum())(a),
        lambda f: jax.jit(jax.grad(lambda a: f(a, b).sum()))(a),
        lambda f: jax.jvp(f, (a, b), (a, b)),
        lambda f: jax.vmap(jax.grad(lambda a: f(a, b).sum()))(a[None]),
    ):
        with pytest.raises(MissingBackward, match=r"gemm has no derivative: name one, .*backward="):
            transform(run)
    assert_same(
        jax.grad(lambda x: (x * run(jax.lax.stop_gradient(x), b).sum()).sum())(a), np.full_like(a, (a @ b).sum())
    )


def test_a_backward_of_too_few_derivatives_is_refused():
    run = product(backward=lambda inputs, outputs, cotangents: cotangents)
    with pytest.raises(ArgumentError, match=r"gemm: its backward gave .*; it must be a tuple of 2"):
        squares(run)(small(3, 4), small(4, 2))
    with pytest.raises(ArgumentError, match=r"backward=3: a function"):
        product(backward=3)
    with pytest.raises(
        ArgumentError, match=r"backward is called with \(inputs, outputs, cotangents\), and takes \(g\)"
    ):
        product(backward=lambda g: g)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (2, 1)])
def test_vmap_is_one_call(axes):
    run = product(backward=by_products)
    sizes = {0: (3, 0, 0), 1: (0, 3, 0), 2: (0, 0, 3), None: (0, 0, 0)}
    a, b = (
        small(*(n for pair in zip(sizes[axis], (*shape, 0), strict=True) for n in pair if n), seed=seed)
        for axis, shape, seed in ((axes[0], (5, 6), 0), (axes[1], (6, 4), 1))
    )
    batched = jax.vmap(run, axes)
    assert_same(batched(a, b), jax.vmap(jnp.matmul, axes)(a, b))
    assert str(jax.make_jaxpr(batched)(a, b)).count("ffi_call") == 1
    assert "scan" not in str(jax.make_jaxpr(batched)(a, b))
    assert_same(jax.vmap(squares(run), axes)(a, b), jax.vmap(squares(jnp.matmul), axes)(a, b))


# -- vmap with a batch dimension -----------------------------------------------------------------------------------


def buffers_of_call(function: Any, *arrays: Any) -> str:
    """Return the types of arguments and results of the only custom call in a function's lowered program."""
    (line,) = [x for x in jax.jit(function).lower(*arrays).as_text().splitlines() if "custom_call @tilewright" in x]
    return line.rpartition(" : ")[2]


@pytest.mark.parametrize("axes", [0, 1, 2])
def test_a_batch_is_merged_with_the_dimension_that_is_named(axes):
    shape = [5, 6]
    shape.insert(axes, 3)
    a, b, run = small(*shape), small(6, 4, seed=1), product(backward=by_products, batch="M")
    batched = jax.vmap(run, (axes, None))
    assert_same(batched(a, b), jax.vmap(jnp.matmul, (axes, None))(a, b))
    assert buffers_of_call(batched, a, b) == "(tensor<15x6xf32>, tensor<6x4xf32>) -> tensor<15x4xf32>"
    assert_same(jax.vmap(squares(run), (axes, None))(a, b), jax.vmap(squares(jnp.matmul), (axes, None))(a, b))
    assert_same(squares(batched)(a, b), squares(jax.vmap(jnp.matmul, (axes, None)))(a, b))


def test_vmaps_within_vmaps_are_merged_with_one_dimension():
    a, b, run = small(2, 3, 5, 6), small(6, 4, seed=1), product(batch="M")
    batched = jax.vmap(jax.vmap(run, (0, None)), (0, None))
    assert_same(batched(a, b), a @ b)
    assert buffers_of_call(batched, a, b) == "(tensor<30x6xf32>, tensor<6x4xf32>) -> tensor<30x4xf32>"
    assert_same(batched(small(0, 3, 5, 6), b), np.zeros((0, 3, 5, 4), np.float32))
    assert_same(batched(small(2, 3, 5, 0), small(0, 4)), np.zeros((2, 3, 5, 4), np.float32))


@pytest.mark.parametrize("axes", [(None, 0), (0, 0)])
def test_a_batch_of_an_argument_without_the_dimension_is_not_merged(axes):
    a, b = small(*(3,) * (axes[0] == 0), 5, 6), small(3, 6, 4, seed=1)
    run = product(batch="M")
    assert_same(jax.vmap(run, axes)(a, b), jax.vmap(jnp.matmul, axes)(a, b))
    both = jax.vmap(jax.vmap(run, (0, None)), (None, 0))  # rows are merged, members of b are not
    a = small(2, 5, 6)
    assert_same(both(a, b), a[None] @ b[:, None])
    assert buffers_of_call(both, a, b) == "(tensor<1x10x6xf32>, tensor<3x6x4xf32>) -> tensor<3x10x4xf32>"


@tkw.wave()
def scaled(
    scale: tkl.f32,
    x: tkl.Memory[M, N, GLOBAL, tkl.f32],
    row: tkl.Memory[M, GLOBAL, tkl.f32],
    double: tkl.Memory[M, N, GLOBAL, tkl.f32],
    y: tkl.Memory[M, N, GLOBAL, tkl.f32],
) -> None:
    value = tkw.read(x) * scale + tkw.read(row)
    tkw.write(value, y)
    tkw.write(value + value, double)


def test_several_outputs_and_arrays_without_a_batch_are_merged():
    run = tilewright.jax.function(tilewright.compile(scaled), batch="M")
    x, row = small(3, 5, 4), small(5, seed=1)
    batched = jax.vmap(lambda x, row: run(2.0, x, row), (0, None))
    value = x * 2 + row[:, None]
    assert_same(batched(x, row), (2 * value, value))
    numbers = np.arange(3, dtype=np.float32)
    found = jax.vmap(lambda n, x: run(n, x, row))(numbers, x)  # a number has no dimension: a call for each member
    value = x * numbers[:, None, None] + row[:, None]
    assert_same(found, (2 * value, value))


def test_an_output_that_is_given_is_merged_too():
    run = tilewright.jax.function(tilewright.compile_text(INCREASED), batch="M")
    x, y = small(2, 4, 3), small(4, 3, seed=1)
    assert_same(jax.vmap(run, (0, None))(x, y), x + y)
    assert buffers_of_call(jax.vmap(run, (0, None)), x, y).startswith("(tensor<8x3xf32>, tensor<8x3xf32>)")


INCREASED = """block increased(%x: in global f32 (M, N), %y: inout global f32 (M, N))
  param M in 1..100, N = 3
{
  tasks m in 0..M {
    %row = view %x (j N) -> [m, j]
    %to = view %y (j N) -> [m, j]
    map %to = %to + %row
  }
}"""


def test_a_batch_dimension_that_the_kernel_lacks_is_refused():
    for kernel, options, batch in (
        (gemm("nn", "f32"), {}, "N"),
        (gemm("nn", "f32"), {}, "Q"),
        (gemm("nn", "f32"), {}, 3),
        (gemm("nn", "f32"), {"M": 5}, "M"),
        (reduction("sum"), {}, "N"),
    ):
        with pytest.raises(ArgumentError, match=rf"batch={batch!r}: no input, or not every output of \w+ has it as"):
            tilewright.jax.function(tilewright.compile(kernel, options), batch=batch)


def test_vmaps_within_vmaps():
    a, b, run = small(3, 5, 6), small(2, 6, 4, seed=1), product()
    both = jax.jit(jax.vmap(jax.vmap(run, (0, None)), (None, 0)))
    assert_same(both(a, b), a[None] @ b[:, None])
    deep = jax.vmap(jax.vmap(jax.vmap(run, (None, 0)), (0, None)), (0, 0))
    c, d = small(2, 3, 5, 6), small(2, 4, 6, 7, seed=1)
    assert_same(deep(c, d), c[:, :, None] @ d[:, None])
    assert_same(jax.vmap(run, (0, None))(small(0, 5, 6), b[0]), np.zeros((0, 5, 4), np.float32))


@pytest.mark.parametrize("check", [True, False])
def test_shard_map_over_two_devices(check):
    mesh, run = two_devices(), product(backward=by_products)
    a, b = small(14, 12), small(12, 5, seed=1)
    specs = {"in_specs": (Spec("i"), Spec()), "out_specs": Spec("i")}
    parted = jax.shard_map(run, mesh=mesh, check_vma=check, **specs)
    found = jax.jit(parted)(a, b)
    assert_same(found, a @ b)
    assert len(found.sharding.device_set) == 2
    if check:  # b is one for both devices: its derivative is summed over them
        assert_same(squares(parted)(a, b), squares(jnp.matmul)(a, b))


def test_kernels_within_scan_and_checkpoint():
    run, a, b = product(backward=by_products), small(5, 5), small(5, 5, seed=1)
    found, _ = jax.lax.scan(lambda c, _: (run(c, b) % 7, None), a, None, length=3)
    wanted = a
    for _ in range(3):
        wanted = (wanted @ b) % 7
    assert_same(found, wanted)
    assert_same(squares(jax.checkpoint(run))(a, b), squares(jnp.matmul)(a, b))


def test_sharded_arrays_are_gathered_where_nobody_parts_the_call():
    mesh, run = two_devices(), product()
    a, b = small(14, 12), small(12, 5, seed=1)
    there = jax.device_put(a, jax.sharding.NamedSharding(mesh, Spec("i")))
    assert_same(jax.jit(run)(there, b), a @ b)


def test_bf16_goes_both_ways():
    run = tilewright.jax.function(tilewright.compile(gemm("nt", "bf16", "bf16")))
    a, b = (jnp.asarray(small(5, 12, seed=s), jnp.bfloat16) for s in (0, 1))
    found = jax.jit(run)(a, b)
    assert_same(found, (a.astype(np.float32) @ b.astype(np.float32).T).astype(jnp.bfloat16))


def test_f64_needs_x64():
    run = tilewright.jax.function(tilewright.compile(gemm("nn", "f64")))
    a, b = small(3, 4, dtype=np.float64), small(4, 2, seed=1, dtype=np.float64)
    with pytest.raises(ArgumentError, match=r"argument a holds float64, which JAX narrows now; .*jax_enable_x64"):
        run(a, b)
    with jax.enable_x64(True):
        assert_same(jax.jit(run)(a, b), a @ b)


# -- kernels of every kind ------------------------------------------------------------------------------------


def same_as_plain(executable: Any, *arrays: Any) -> None:
    """The function gives the same bits as a plain call."""
    run = tilewright.jax.function(executable)
    assert_same(jax.jit(run)(*arrays), executable(*arrays))


def test_kernels_give_the_same_bits_as_plain_calls():
    x = np.random.default_rng(0).standard_normal((37, 53)).astype(np.float32)
    for kernel in (softmax(), activation("gelu"), reduction("sum"), running_sum(), transpose((1, 0))):
        same_as_plain(tilewright.compile(kernel), x)
    weights = x[0].copy(), x[1].copy()
    same_as_plain(tilewright.compile(layer_norm()), x, *weights)
    half = x.astype(np.float16)
    same_as_plain(tilewright.compile(gemm("nt", "f16")), half, half)
    same_as_plain(tilewright.compile(gemm("tn", "i8")), small(9, 7, dtype=np.int8), small(9, 5, dtype=np.int8))


def test_an_output_that_is_given_starts_as_it_is_and_stays():
    run = tilewright.jax.function(tilewright.compile(scatter_rows("f32")))
    rows, index = small(3, 5), np.array([4, 0, 2], np.int32)
    plain = tilewright.compile(scatter_rows("f32"))
    given = np.full((6, 5), 7, np.float32)
    wanted = given.copy()
    plain(rows, index, wanted)
    assert_same(jax.jit(run)(rows, index, given), wanted)
    assert (given == 7).all()
    assert_same(jax.vmap(run, (0, None, None))(rows[None], index, given), wanted[None])


def test_an_output_that_is_left_out_starts_as_zeros():
    run = tilewright.jax.function(tilewright.compile(histogram(), {"BINS": 4}))
    x = np.array([0, 3, 3, 1, 0, 3], np.int32)
    for _ in range(3):
        assert_same(jax.jit(run)(x), np.array([2, 1, 0, 3], np.int32))
    assert_same(run(x, np.full(4, 10, np.int32)), np.array([12, 11, 10, 13], np.int32))
    both = np.stack([x, x[::-1] // 2])
    assert_same(jax.vmap(run)(both), np.stack([np.bincount(row, minlength=4) for row in both]).astype(np.int32))


@tkw.wave()
def shifted(x: tkl.Memory[M, GLOBAL, tkl.i32], y: tkl.Memory[M, GLOBAL, tkl.i32], by: tkl.i32) -> None:
    tkw.write(tkw.read(x) + by, y)


def test_an_argument_of_integers_has_no_derivative():
    run = tilewright.jax.function(
        tilewright.compile(gather_rows()),
        backward=lambda inputs, outputs, cotangents: (jnp.zeros_like(inputs[0]).at[inputs[1]].add(cotangents[0]), None),
    )
    table, index = small(5, 3), np.array([3, 0, 3], np.int32)
    found = jax.jit(jax.grad(lambda table, index: (run(table, index) ** 2).sum()))(table, index)
    assert_same(found, jax.grad(lambda table: (table[index] ** 2).sum())(table))


def test_numbers_may_be_traced():
    run, x = tilewright.jax.function(tilewright.compile(shifted)), np.arange(5, dtype=np.int32)
    assert_same(run(x, 3), x + np.int32(3))
    assert_same(jax.jit(lambda x, n: run(x, n))(x, 3), x + np.int32(3))
    assert_same(jax.vmap(run, (None, 0))(x, np.arange(3, dtype=np.int32)), np.arange(3, dtype=np.int32)[:, None] + x)
    with pytest.raises(ArgumentError, match=r"argument by is 1099511627776; it must be an integer"):
        run(x, 2**40)
    with pytest.raises(ArgumentError, match=r"argument by is 'x'"):
        run(x, "x")


START = tkl.sym.START


@tkw.wave([tkw.WorkgroupConstraint(M, 4, 0, apply_fn=lambda group: 4 * group + START)])
def from_there(start: tkl.i32, x: tkl.Memory[M, GLOBAL, tkl.f32], y: tkl.Memory[M, GLOBAL, tkl.f32]) -> None:
    tkw.set_symbol(START, start)
    tkw.write(tkw.read(x) + 1.0, y)


def test_a_number_that_decides_about_sizes_needs_a_value():
    run, x = tilewright.jax.function(tilewright.compile(from_there)), small(7)
    for start in (1, 3):  # workgroups begin there: what lies before is not written, and starts as zeros
        wanted = np.where(np.arange(7) < start, 0, x + 1).astype(np.float32)
        assert_same(run(start, x), wanted)
        assert_same(jax.jit(run, static_argnums=0)(start, x), wanted)
        assert_same(jax.jit(lambda x, start=start: run(np.int32(start), x))(x), wanted)
    with pytest.raises(TracedArgument, match=r"argument start decides about sizes, and is a tracer of JAX"):
        jax.jit(run)(1, x)


def test_dynamic_sizes_share_machine_code():
    executable = tilewright.compile(gemm("nn", "f32"), dynamic=["M"])
    run = jax.jit(tilewright.jax.function(executable))
    for rows in (5, 64, 131):
        a, b = small(rows, 24), small(24, 16, seed=1)
        assert_same(run(a, b), a @ b)
    assert len(executable._kernels) == 1


def test_empty_arrays_are_not_computed():
    run = product()
    assert_same(run(small(0, 4), small(4, 3)), np.zeros((0, 3), np.float32))
    assert_same(run(small(2, 0), small(0, 3)), np.zeros((2, 3), np.float32))


DOUBLE = """block double(%x: in global f32 (M, N), %y: out global f32 (M, N))
  param M in 1..100, N = 3
{
  tasks m in 0..M {
    %row = view %x (j N) -> [m, j]
    %to = view %y (j N) -> [m, j]
    map %to = %row + %row
  }
}"""
ADDED = """host added(%x: in global f32 (4, 8), %y: inout global f32 (4, 8))
{
  %t = workspace global f32 (4, 8)
  launch twice(%x, %t) workers 2
  launch add(%t, %y) workers 2
}

block twice(%x: in global f32 (4, 8), %y: out global f32 (4, 8))
{
  tasks m in 0..4 {
    %row = view %x (j 8) -> [m, j]
    %to = view %y (j 8) -> [m, j]
    map %to = %row + %row
  }
}

block add(%x: in global f32 (4, 8), %y: inout global f32 (4, 8))
{
  tasks m in 0..4 {
    %row = view %x (j 8) -> [m, j]
    %to = view %y (j 8) -> [m, j]
    map %to = %to + %row
  }
}"""


def test_block_and_host_programs_are_taken():
    double = tilewright.jax.function(tilewright.compile_text(DOUBLE))
    x = small(5, 3)
    assert_same(jax.jit(double)(x), 2 * x)
    assert_same(jax.vmap(double)(small(2, 4, 3)), 2 * small(2, 4, 3))
    added = tilewright.jax.function(tilewright.compile_text(ADDED))
    x, y = small(4, 8), small(4, 8, seed=1)
    assert_same(jax.jit(added)(x, y), 2 * x + y)
    assert_same(jax.vmap(added, (0, None))(np.stack([x, x + 1]), y), np.stack([2 * x + y, 2 * x + 2 + y]))
    with pytest.raises(ArgumentError, match=r"added: the argument y is missing"):
        added(x)


# -- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_wrong_arrays_are_refused_by_name(transform):
    a, b, run = small(3, 4), small(4, 2, seed=1), transform(product())
    for arrays, says in (
        ((a, b.T), r"argument b has shape \(2, 4\); its dimension 0 must be K = 4, not 2"),
        ((a, b.astype(np.float16)), r"argument b holds f16; it must hold f32"),
        ((a, b[0]), r"argument b has shape \(2,\); it must have the 2 dimensions"),
        ((a,), r"the argument b is missing"),
        ((a, None), r"argument b is None; it must be an array"),
        ((a, b, a, a), r"takes 3 arguments"),
    ):
        with pytest.raises(ArgumentError, match=says):
            run(*arrays)
    with pytest.raises(ArgumentError, match=r"argument b is a list; tilewright.jax takes arrays of JAX and numpy"):
        product()(a, [[1.0]])


def test_what_is_no_code_for_this_cpu_is_refused():
    for executable, says in (
        (
            tilewright.compile(gemm("nn", "f32"), target="executor"),
            r"gemm is compiled for 'executor', which XLA cannot",
        ),
        (gemm("nn", "f32"), r"tilewright.jax takes what tilewright.compile or compile_text gives, not"),
        (tilewright.compile_text(DOUBLE, "interpreter"), r"double is compiled for 'interpreter', which XLA cannot"),
    ):
        with pytest.raises(ArgumentError, match=says):
            tilewright.jax.function(executable)
    with pytest.raises(ArgumentError, match=r"params=.*: these are for programs of compile_text"):
        product(params={"M": 3})


def test_a_tracer_given_to_a_plain_kernel_is_pointed_here():
    plain = tilewright.compile(gemm("nn", "f32"))
    with pytest.raises(TracedArgument, match=r"argument a is a tracer of JAX .*; use tilewright.jax"):
        jax.jit(plain)(small(3, 4), small(4, 2))
