"""Products whose operand has no free dimension: exact on every machine, planned as GEMMs with one row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.ir.tile import parse_tile
from tilewright.lang.global_symbols import WORKGROUP_0
from tilewright.rewrite.unit_rows import with_unit_rows
from tilewright.targets.registry import machine

B, E, G, K, M, N, T = (getattr(tkl.sym, name) for name in "BEGKMNT")
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
MACHINES = ("x86.avx2", "x86.avx512", "x86.amx", "aarch64.neon", "ampere", "hopper", "cdna3", "xe")
SIZES = {"B": 3, "E": 24, "G": 40, "K": 40, "M": 17, "N": 24, "T": 5}

SOURCE = """tile f(%x: global f32[K], %w: global f32[N, K], %y: global f32[N], %z: global f32[K])
  symbols K, N
{
  %0 = read %x : f32[K]
  %1 = relu %0 : f32[K]
  %2 = fill value=0 : f32[N]
  %3 = read %w : f32[N, K]
  %4 = mma %1, %3, %2 : f32[N]
  %5 = exp %4 : f32[N]
  write %5, %y
  write %0, %z
}
"""


def product(spec: str, looped: bool, dtype: Any = tkl.bf16) -> Any:
    """The einsum of two arguments as a kernel, with or without a loop over the last dimension that it sums."""
    (left, right), result = spec.split("->")[0].split(","), spec.split("->")[1]
    a, b, c = ([getattr(tkl.sym, d.upper()) for d in dims] for dims in (left, right, result))
    summed = [d for d in a if d in b and d not in c]

    @tkw.wave()
    def kernel(
        x: tkl.Memory[(*a, GLOBAL, dtype)], w: tkl.Memory[(*b, GLOBAL, dtype)], y: tkl.Memory[(*c, GLOBAL, tkl.f32)]
    ) -> None:
        zero = tkl.Register[(*c, tkl.f32)](0.0)
        if looped:

            @tkw.iterate(summed[-1], init_args=[zero])
            def total(acc: Any) -> Any:
                return tkw.mma(tkw.read(x), tkw.read(w), acc)

        else:
            total = tkw.mma(tkw.read(x), tkw.read(w), zero)
        tkw.write(total, y)

    return kernel


def sizes_of(spec: str) -> dict[str, int]:
    return {d.upper(): SIZES[d.upper()] for d in spec if d.isalpha()}


def data(spec: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    left, right = spec.split("->")[0].split(",")
    rng = np.random.default_rng(len(spec))
    x, w = (rng.integers(-3, 4, [SIZES[d.upper()] for d in dims]) for dims in (left, right))
    return x.astype(tkl.bf16.numpy), w.astype(tkl.bf16.numpy), np.einsum(spec, x, w)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("spec", ["k,nk->n", "bk,bkn->bn", "ge,g->e"])
def test_an_operand_without_rows_does_not_store_sixteen_rows_to_one(spec: str, looped: bool, name: str) -> None:
    x, w, wanted = data(spec)
    y = np.full(wanted.shape, np.nan, np.float32)
    kernel_for(product(spec, looped), sizes_of(spec), machine=machine(name)).bind({"x": x, "w": w, "y": y})()
    assert np.array_equal(y, wanted)


@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize(
    "spec", ["k,nk->n", "nk,k->n", "bk,bkn->bn", "bkn,bk->bn", "ge,g->e", "bk,bk->b", "bk,bnk->nb"]
)
@pytest.mark.filterwarnings("ignore::tilewright.errors.FastPathLost")
def test_such_products_run_on_this_cpu(spec: str, looped: bool) -> None:
    x, w, wanted = data(spec)
    y = np.full(wanted.shape, np.nan, np.float32)
    tilewright.compile(product(spec, looped))(x, w, out=y)
    assert np.array_equal(y, wanted)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["hopper", "cdna3", "x86.amx"])
@pytest.mark.parametrize("looped", [False, True])
def test_experts_gathered_row_by_row(looped: bool, name: str) -> None:
    t, n, k = (tkw.IndexMapping.iterator(i) for i in range(3))
    expert = tkw.IndexMapping(
        num_iterators=3,
        inputs={E: tkw.IndexMapping.dynamic_val(0), N: n, K: k},
        outputs={T: t, N: n, K: k},
        dynamic_val_mappings={T: t},
    )

    @tkw.wave()
    def kernel(
        x: tkl.Memory[T, K, GLOBAL, tkl.bf16],
        which: tkl.Memory[T, GLOBAL, tkl.i32],
        w: tkl.Memory[E, N, K, GLOBAL, tkl.bf16],
        y: tkl.Memory[T, N, GLOBAL, tkl.f32],
    ) -> None:
        chosen, zero = tkw.read(which), tkl.Register[T, N, tkl.f32](0.0)

        def add(acc: Any) -> Any:
            return tkw.mma(tkw.read(x), tkw.read(w, mapping=expert, mapping_dynamic_vals=(chosen,)), acc)

        total = tkw.iterate(K, init_args=[zero])(add) if looped else add(zero)
        tkw.write(total, y)

    rng = np.random.default_rng(1)
    which = rng.integers(0, SIZES["E"], SIZES["T"]).astype(np.int32)
    x, w = (rng.integers(-3, 4, [SIZES[d] for d in dims]) for dims in ("TK", "ENK"))
    y = np.full((SIZES["T"], SIZES["N"]), np.nan, np.float32)
    arrays = {"x": x.astype(tkl.bf16.numpy), "which": which, "w": w.astype(tkl.bf16.numpy), "y": y}
    kernel_for(kernel, {d: SIZES[d] for d in "TENK"}, machine=machine(name)).bind(arrays)()
    assert np.array_equal(y, np.einsum("tk,tnk->tn", x, w[which]))


@pytest.mark.parametrize("order", ["MG", "GM"])
def test_a_unit_dimension_beside_the_rows_does_not_cost_attention_its_roles(order: str) -> None:
    rows = tuple(getattr(tkl.sym, d) for d in order)

    @tkw.wave([tkw.TilingConstraint(N, 64)])
    def attention(
        q: tkl.Memory[(B, *rows, K, GLOBAL, tkl.bf16)],
        k: tkl.Memory[B, N, K, GLOBAL, tkl.bf16],
        v: tkl.Memory[B, N, E, GLOBAL, tkl.bf16],
        o: tkl.Memory[(B, *rows, E, GLOBAL, tkl.f32)],
    ) -> None:
        start = [tkl.Register[(B, *rows, tkl.f32)](-1e6), tkl.Register[(B, *rows, tkl.f32)](0.0)]

        @tkw.iterate(N, init_args=[*start, tkl.Register[(B, *rows, E, tkl.f32)](0.0)])
        def rows_done(most: Any, total: Any, acc: Any) -> Any:
            scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[(B, *rows, N, tkl.f32)](0.0))
            larger = tkw.max(scores, most, dim=N)
            weights, scale = tkw.exp2(scores - larger), tkw.exp2(most - larger)
            acc = tkw.mma(tkw.cast(weights, tkl.bf16), tkw.read(v), acc * scale)
            return larger, tkw.sum(weights, total * scale, dim=N), acc

        _, total, acc = rows_done
        tkw.write(acc / total, o)

    sizes = {"B": 2, "G": 1, "M": 40, "N": 100, "K": 64, "E": 64}
    rng = np.random.default_rng(2)
    q, k, v = (rng.integers(-1, 2, [sizes[d] for d in dims]) for dims in (f"B{order}K", "BNK", "BNE"))
    o = np.full([sizes[d] for d in f"B{order}E"], np.nan, np.float32)
    kernel = kernel_for(attention, sizes, machine=machine("hopper"))
    arrays = {name: array.astype(tkl.bf16.numpy) for name, array in (("q", q), ("k", k), ("v", v))}
    kernel.bind({**arrays, "o": o})()
    scores = np.einsum("bmk,bnk->bmn", q.reshape(2, 40, 64), k).astype(float)
    weights = np.exp2(scores - scores.max(-1, keepdims=True))
    wanted = weights @ v / weights.sum(-1, keepdims=True)
    assert np.abs(o.reshape(wanted.shape) - wanted).max() < 2e-6
    assert "role" in kernel.text("block")


@pytest.mark.parametrize("target", ["executor", "cpu"])
def test_workgroups_tell_where_a_row_without_their_dimension_goes(target: str) -> None:
    """A write that lacks the dimension of its workgroups had no place for the unit dimension: a KeyError."""

    @tkw.wave([tkw.WorkgroupConstraint(B, 1, 0)])
    def kernel(
        x: tkl.Memory[B, K, GLOBAL, tkl.bf16],
        w: tkl.Memory[N, K, GLOBAL, tkl.bf16],
        y: tkl.Memory[B, N, GLOBAL, tkl.f32],
    ) -> None:
        k = tkw.IndexMapping.iterator(0)
        row = tkw.IndexMapping(num_iterators=1, inputs={B: WORKGROUP_0, K: k}, outputs={K: k})
        total = tkw.mma(tkw.read(x, mapping=row), tkw.read(w), tkl.Register[N, tkl.f32](0.0))
        tkw.write(total, y)

    rng = np.random.default_rng(3)
    x, w = (rng.integers(-3, 4, [SIZES[d] for d in dims]) for dims in ("BK", "NK"))
    y = np.full((SIZES["B"], SIZES["N"]), np.nan, np.float32)
    tilewright.compile(kernel, target=target)(x.astype(tkl.bf16.numpy), w.astype(tkl.bf16.numpy), out=y)
    assert np.array_equal(y, x @ w.T)


def test_what_is_computed_from_the_result_has_the_dimension_and_reads_stay_where_they_are() -> None:
    program = parse_tile(SOURCE)
    made = with_unit_rows(program, ())
    assert made is not None
    text = str(made[0])
    assert text.count("read %x") == 2  # with the dimension for the product, without it for %z
    assert "exp" in text
    assert with_unit_rows(made[0], ()) is None
