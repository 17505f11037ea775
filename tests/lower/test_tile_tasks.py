"""Tasks of several products in tile registers: exact on the interpreter and on this CPU, with delayed stores."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from test_tiled import TILES
from tile_checks import own_cache  # noqa: F401

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError

GLOBAL, bf16, f32 = tkl.GLOBAL_ADDRESS_SPACE, tkl.bf16, tkl.f32
B, M, N, K, L = (getattr(tkl.sym, s) for s in "BMNKL")


def product(x: Any, w: Any, k: Any) -> Any:
    @tkw.iterate(k, init_args=[tkl.Register[M, N, f32](0)])
    def total(acc: Any) -> Any:
        return tkw.mma(tkw.read(x), tkw.read(w), acc)

    return total


@tkw.wave()
def gated(
    x: tkl.Memory[M, K, GLOBAL, bf16],
    w: tkl.Memory[N, K, GLOBAL, bf16],
    u: tkl.Memory[N, K, GLOBAL, bf16],
    r: tkl.Memory[M, N, GLOBAL, f32],
    y: tkl.Memory[M, N, GLOBAL, f32],
):
    tkw.write(tkw.maximum(product(x, w, K), 0.0) * product(x, u, K) + tkw.read(r), y)


@tkw.wave()
def two_terms(
    x: tkl.Memory[M, K, GLOBAL, bf16],
    a: tkl.Memory[N, K, GLOBAL, bf16],
    z: tkl.Memory[M, L, GLOBAL, bf16],
    b: tkl.Memory[N, L, GLOBAL, bf16],
    y: tkl.Memory[M, N, GLOBAL, f32],
):
    tkw.write(product(x, a, K) + product(z, b, L), y)


@tkw.wave()
def batched(
    x: tkl.Memory[B, M, K, GLOBAL, bf16],
    w: tkl.Memory[B, N, K, GLOBAL, bf16],
    u: tkl.Memory[B, N, K, GLOBAL, bf16],
    y: tkl.Memory[B, M, N, GLOBAL, f32],
):
    one, other = (tkw.mma(tkw.read(x), tkw.read(v), tkl.Register[B, M, N, f32](0)) for v in (w, u))
    tkw.write(one - 2.0 * other, y)


KERNELS = {"gated": gated, "two terms": two_terms, "batched": batched}
SYMBOLS = {"gated": "MNK", "two terms": "MNKL", "batched": "BMNK"}
EXTENTS = {
    "rows and columns that end within tiles": (70, 41, 64, 96),
    "a ragged K": (35, 33, 50, 70),
    "fewer rows than a tile": (5, 64, 96, 32),
    "one tile": (16, 32, 32, 32),
    "several tasks": (333, 130, 33, 64),
}


def inputs(name: str, extents: tuple[int, ...]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The arguments of a kernel but its output, and what it gives."""
    (m, n, k, depth), rng = extents, np.random.default_rng(sum(extents))
    shapes = {
        "gated": {"x": (m, k), "w": (n, k), "u": (n, k), "r": (m, n)},
        "two terms": {"x": (m, k), "a": (n, k), "z": (m, depth), "b": (n, depth)},
        "batched": {"x": (3, m, k), "w": (3, n, k), "u": (3, n, k)},
    }[name]
    data = {x: rng.integers(-2, 3, shape).astype(np.float32) for x, shape in shapes.items()}
    if name == "gated":
        wanted = np.maximum(data["x"] @ data["w"].T, 0) * (data["x"] @ data["u"].T) + data["r"]
    elif name == "two terms":
        wanted = data["x"] @ data["a"].T + data["z"] @ data["b"].T
    else:
        one, other = (data["x"] @ data[v].transpose(0, 2, 1) for v in "wu")
        wanted = one - 2 * other
    return {x: v.astype(bf16.numpy) if x != "r" else v for x, v in data.items()}, wanted


def exact(name: str, extents: tuple[int, ...], **options: Any) -> Any:
    """The compiled kernel, after its results were found exact."""
    arrays, wanted = inputs(name, extents)
    sizes = dict(zip("MNKL", extents, strict=True)) | {"B": 3}
    run = kernel_for(KERNELS[name], {s: sizes[s] for s in SYMBOLS[name]}, **options)
    y = np.full(wanted.shape, np.nan, np.float32)
    run.bind({**arrays, "y": y})()
    np.testing.assert_array_equal(y, wanted)
    return run


@pytest.mark.parametrize("extents", EXTENTS.values(), ids=list(EXTENTS))
@pytest.mark.parametrize("name", KERNELS)
def test_several_products_in_tile_registers_are_exact(name: str, extents: tuple[int, ...]) -> None:
    """Under the best plan, and others with and without delayed stores and copied rows."""
    run = exact(name, extents, machine=TILES)
    exact(name, extents, target="cpu")
    plans = [str(each.plan) for each in run.choice.candidates if "delayed store" in str(each.plan)]
    assert plans
    for plan in {"panel" in plan: plan for plan in plans}.values():
        exact(name, extents, machine=TILES, plan=plan)
        exact(name, extents, machine=TILES, plan=plan.replace("; overlap delayed store", ""))


def test_accumulators_of_two_products_went_through_memory() -> None:
    """Each product had loops of its own over all tiles of a task, and its results were loaded and stored."""
    run = exact("gated", (64, 96, 64, 32), machine=TILES)
    text = run.text("block")
    assert "overlap delayed store" in run.text("plan")
    assert "overlap defer" in text
    assert text.count("copy %x_view -> %left") == 1, "both products use A while registers hold it"
    assert text.count("mma %sums") == 2


PLAN = """axis M = (M 70): task 64, loop 16
axis N = (N 41): task 41, loop 32
axis K = (K 64): unit 32
grid M, N
loops N, M, K
x panel at task
w packed at bind
u packed at bind
mma by amx.bf16, tile 16x32
mma2 by amx.bf16, tile 16x32
overlap delayed store
"""


@pytest.mark.parametrize(
    ("old", "new"), [("task 64", "task 16"), ("x panel at task", "x in place"), ("overlap delayed store\n", "")]
)
def test_a_plan_that_is_given_is_bound(old: str, new: str) -> None:
    plan = PLAN.replace(old, new)
    run = exact("gated", (70, 41, 64, 96), machine=TILES, plan=plan)
    assert run.text("plan") == plan
    assert run.choice.cycles > 0


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("loops N, M, K", "loops M, N, K", "says `loops N, M, K`"),
        ("loops N, M, K\n", "", "says `loops N, M, K`"),
        ("unit 32", "unit 16", "says `axis K = .*: unit 32`"),
        ("(K 64): unit 32", "(K 64): whole", "says `axis K = .*: unit 32`"),
        ("loop 16", "loop 32", "says `axis M = .*loop 16`"),
        ("u packed at bind\n", "", "says `u packed at bind`"),
        ("x panel at task\n", "", "says `x in place`"),
        ("x panel at task", "x strip at task", "says `x panel at task`"),
        ("tile 16x32", "tile 32x32", "take 12 registers of 8"),
        ("mma2 by amx.bf16, tile 16x32", "mma2 by amx.bf16, tile 16x16", "tiles of one size"),
        ("mma2 by amx.bf16, tile 16x32\n", "", "each of the 2 products needs a line"),
        ("overlap delayed store", "overlap mma ahead", "overlap delayed store"),
    ],
)
def test_a_plan_with_another_statement_is_refused(old: str, new: str, why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        kernel_for(gated, {"M": 70, "N": 41, "K": 64}, machine=TILES, plan=PLAN.replace(old, new))


def test_rows_with_a_ragged_k_are_copied() -> None:
    plan = PLAN.replace("(K 64)", "(K 50)").replace("x panel at task", "x in place")
    with pytest.raises(ArgumentError, match="others are copied: `x panel at task`"):
        kernel_for(gated, {"M": 70, "N": 41, "K": 50}, machine=TILES, plan=plan)


def test_products_of_a_chain_have_no_such_task() -> None:
    @tkw.wave()
    def chain(
        x: tkl.Memory[M, K, GLOBAL, bf16],
        w: tkl.Memory[L, K, GLOBAL, bf16],
        u: tkl.Memory[N, L, GLOBAL, bf16],
        y: tkl.Memory[M, N, GLOBAL, f32],
    ):
        between = tkw.mma(tkw.read(x), tkw.read(w), tkl.Register[M, L, f32](0))
        tkw.write(tkw.mma(tkw.cast(between, bf16), tkw.read(u), tkl.Register[M, N, f32](0)), y)

    plan = PLAN.replace("grid", "axis L = (L 40): whole\ngrid")
    with pytest.raises(ArgumentError, match="several products in tile registers has packed operands, and"):
        kernel_for(chain, {"M": 70, "N": 41, "K": 64, "L": 40}, machine=TILES, plan=plan)


def test_k_of_many_steps_has_no_such_task() -> None:
    plan = PLAN.replace("(K 64)", "(K 2336)")
    with pytest.raises(ArgumentError, match="K has more than 72 steps"):
        kernel_for(gated, {"M": 70, "N": 41, "K": 2336}, machine=TILES, plan=plan)


def test_accumulators_that_start_from_zero_were_filled_in_memory_and_loaded() -> None:
    """A K loop in one iteration carried them; as no loop, the products start in registers."""

    @tkw.wave()
    def low_rank(
        x: tkl.Memory[M, K, GLOBAL, bf16],
        w: tkl.Memory[N, K, GLOBAL, bf16],
        a: tkl.Memory[L, K, GLOBAL, bf16],
        b: tkl.Memory[N, L, GLOBAL, bf16],
        y: tkl.Memory[M, N, GLOBAL, f32],
    ):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, f32](0), tkl.Register[M, L, f32](0)])
        def both(acc: Any, low: Any) -> Any:
            return tkw.mma(tkw.read(x), tkw.read(w), acc), tkw.mma(tkw.read(x), tkw.read(a), low)

        acc, low = both
        tkw.write(tkw.mma(tkw.cast(low, bf16), tkw.read(b), acc), y)

    sizes, rng = {"M": 70, "N": 41, "K": 50, "L": 33}, np.random.default_rng(4)
    shapes = {"x": (70, 50), "w": (41, 50), "a": (33, 50), "b": (41, 33)}
    data = {name: rng.integers(-1, 2, shape).astype(np.float32) for name, shape in shapes.items()}
    wanted = data["x"] @ data["w"].T + (data["x"] @ data["a"].T) @ data["b"].T
    for options in ({"machine": TILES}, {"target": "cpu"}):
        run, y = kernel_for(low_rank, sizes, **options), np.full((70, 41), np.nan, np.float32)
        run.bind({**{name: v.astype(bf16.numpy) for name, v in data.items()}, "y": y})()
        np.testing.assert_array_equal(y, wanted)
    text = kernel_for(low_rank, sizes, machine=TILES).text("block")
    assert "= f32(0.0)" not in text
    assert "fill %sums 0" in text


def test_rows_that_two_loops_read_were_copied_twice() -> None:
    """Loops over K each read A; without the loops, these are one read, one copy, and one load in a K step."""
    text = exact("gated", (64, 96, 50, 32), machine=TILES).text("block")
    assert text.count("alloc shared bf16") == 1
    assert len(re.findall(r"copy %staged_view\w* -> %left", text)) == 1
