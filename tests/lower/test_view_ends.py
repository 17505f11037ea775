"""What lies beside a group's channels, or beside the part of a row that a product sums, never reaches its results.

Neighbours are NaN and infinite: a product of one by a zero shows in a sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_level import on_the_loop_level
from pinned_plans import copied_by_waves, first_plan, in_roles, planned_as

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.driver import bind
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
B, C, F, H, K, M, N, R, S, V, W = (getattr(tkl.sym, name) for name in "BCFHKMNRSVW")


def arguments(found: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        a.name: rng.integers(-2, 3, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy)
        for a in found.module.host.args
    }


def require_exact(kernel: Any, found: Any, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """That a kernel gives what the executor gives, as a block program and as a loop program; the result."""
    *given, out = arrays
    wanted = tilewright.compile(kernel, target="executor")(*(arrays[name] for name in given))
    for executor in (found.executor, on_the_loop_level(found)):
        arrays[out][...] = 99
        executor.bind([arrays[a.name] for a in found.module.host.args])()
        assert np.array_equal(arrays[out], wanted, equal_nan=True)
    return wanted


def by_tma(found: Any) -> bool:
    """Whether the machine itself copies the first argument."""
    lines = [line for program in found.module.programs.values() for line in str(program).splitlines()]
    return any("copy %x" in line and "by tma.load" in line for line in lines)


GROUPED = [
    (40, 24, (3, 3), {"padding": 1}, True),
    (24, 72, (3, 3), {"padding": 2, "dilation": 2}, True),
    (80, 16, (3, 3), {"padding": 1, "bias": True, "activation": "relu"}, True),
    (72, 8, (3, 3), {"padding": ((1, 0), (0, 1)), "stride": 2}, True),
    (40, 24, (1, 1), {}, True),
    (40, 24, (3,), {"padding": 1}, True),
    (40, 8, (2, 2, 2), {"padding": 1}, False),  # a map of an image has five dimensions, and all are its own
    (36, 8, (3, 3), {"padding": 1}, False),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("each", "filters", "taps", "options", "tma"), GROUPED)
def test_a_group_of_nan_leaves_the_others_exact(
    each: int, filters: int, taps: tuple[int, ...], options: dict[str, Any], tma: bool
) -> None:
    kernel = kernels.conv(taps, "bf16", "f32", groups=3, **options)
    image = dict(zip("DHW"[-len(taps) :], (2, 5, 7)[-len(taps) :], strict=True))
    found = kernel_for(kernel, {"N": 2, **image, "CG": each, "F": 3 * filters}, machine=HOPPER)
    assert by_tma(found) == tma
    arrays = arguments(found)
    arrays["x"][..., each : 2 * each] = np.nan
    arrays["x"][..., each] = np.inf
    result = require_exact(kernel, found, arrays)
    groups = result.reshape(-1, 3, filters)
    assert np.isfinite(groups[:, [0, 2]]).all()
    assert np.count_nonzero(groups[:, [0, 2]])
    assert not np.isfinite(groups[:, 1]).all()


def test_what_has_no_dimension_for_its_groups_is_copied_otherwise_and_said() -> None:
    kernel = kernels.conv((2, 2, 2), "bf16", "f32", groups=3, padding=1)
    sizes = {"N": 2, "D": 2, "H": 5, "W": 7, "CG": 40, "F": 24}
    found = planned_as(kernel, sizes, HOPPER, copied_by_waves)
    assert "an image has 3 to 5 dimensions, channels last; %x as (3, 2, 2, 5, 7, 40) has 6" in found.explain()
    require_exact(kernel, found, arguments(found))
    told = kernel_for(kernel, sizes, machine=HOPPER).explain()
    assert "refused  bulk copies: x: it has 6 dimensions where a row has several of a batch" in told


def sliced(first_a: int, first_b: int, k: int) -> Any:
    """A product of parts of rows."""
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    at_a = tkw.IndexMapping(num_iterators=2, inputs={M: i, W: first_a + j}, outputs={M: i, K: j})
    at_b = tkw.IndexMapping(num_iterators=2, inputs={N: i, V: first_b + j}, outputs={N: i, K: j})

    @tkw.wave()
    def product(
        x: tkl.Memory[M, W, GLOBAL, tkl.bf16],
        w: tkl.Memory[N, V, GLOBAL, tkl.bf16],
        y: tkl.Memory[M, N, GLOBAL, tkl.f32],
    ):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0)])
        def total(acc):
            return tkw.mma(tkw.read(x, mapping=at_a), tkw.read(w, mapping=at_b), acc)

        tkw.write(total, y)

    return product.bound({K: k})


@pytest.mark.parametrize(
    ("first", "other", "k", "tma"),
    [(0, 0, 40, True), (8, 0, 40, True), (8, 16, 72, True), (64, 8, 136, True), (3, 0, 40, False), (8, 8, 100, True)],
)
def test_what_lies_beside_a_slice_of_rows_is_not_summed(first: int, other: int, k: int, tma: bool) -> None:
    kernel = sliced(first, other, k)
    found = kernel_for(kernel, {"M": 70, "N": 24, "W": 240, "V": 168}, machine=HOPPER)
    assert by_tma(found) == tma
    assert tma or f"boxes begin at {first} of dimension 1 of %x" in found.explain()
    arrays = arguments(found)
    arrays["x"][:, :first], arrays["x"][:, first + k :] = np.nan, np.inf
    arrays["w"][:, :other], arrays["w"][:, other + k :] = np.inf, np.nan
    assert np.isfinite(require_exact(kernel, found, arrays)).all()


@pytest.mark.parametrize("name", ["x86.amx", "x86.avx512", "aarch64.neon", "ampere"])
@pytest.mark.parametrize(("first", "other", "k"), [(0, 0, 40), (8, 0, 40), (0, 8, 37)])
def test_other_machines_do_not_sum_it_either(first: int, other: int, k: int, name: str) -> None:
    kernel = sliced(first, other, k)
    found = kernel_for(kernel, {"M": 35, "N": 24, "W": 120, "V": 72}, machine=machine(name))
    arrays = arguments(found)
    arrays["x"][:, :first], arrays["x"][:, first + k :] = np.nan, np.inf
    arrays["w"][:, :other], arrays["w"][:, other + k :] = np.inf, np.nan
    wanted = tilewright.compile(kernel, target="executor")(arrays["x"], arrays["w"])
    assert np.isfinite(wanted).all()
    arrays["y"][...] = 99
    found.bind(arrays)()
    assert np.array_equal(arrays["y"], wanted)


def side_by_side(k: int) -> Any:
    """Three products, whose rows lie beside each other in both factors."""
    g, i, j = (tkw.IndexMapping.iterator(n) for n in range(3))
    at_a = tkw.IndexMapping(num_iterators=3, inputs={M: i, W: k * g + j}, outputs={B: g, M: i, K: j})
    at_b = tkw.IndexMapping(num_iterators=3, inputs={N: i, W: k * g + j}, outputs={B: g, N: i, K: j})

    @tkw.wave()
    def products(
        x: tkl.Memory[M, W, GLOBAL, tkl.bf16],
        w: tkl.Memory[N, W, GLOBAL, tkl.bf16],
        y: tkl.Memory[B, M, N, GLOBAL, tkl.f32],
    ):
        @tkw.iterate(K, init_args=[tkl.Register[B, M, N, tkl.f32](0)])
        def total(acc):
            return tkw.mma(tkw.read(x, mapping=at_a), tkw.read(w, mapping=at_b), acc)

        tkw.write(total, y)

    return products.bound({K: k, B: 3})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("k", "tma"), [(40, True), (72, True), (64, True), (36, False)])
def test_batches_within_rows_do_not_meet(k: int, tma: bool) -> None:
    kernel = side_by_side(k)
    found = planned_as(kernel, {"M": 70, "N": 24, "W": 3 * k}, HOPPER, in_roles)
    assert by_tma(found) == tma
    arrays = arguments(found)
    require_exact(kernel, found, arrays)  # the neighbours of both are finite: they would be summed
    arrays["x"][:, k : 2 * k] = np.nan
    result = require_exact(kernel, found, arrays)
    assert np.isfinite(result[[0, 2]]).all()
    assert np.isnan(result[1]).all()


def test_parts_of_a_sum_that_end_within_a_slab_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of a machine know the ends of tensors: parts of channels are then a dimension of both factors."""
    kernel, sizes = kernels.conv((3, 3), "i8", "i32", padding=1), {"N": 2, "H": 3, "W": 3, "C": 256, "F": 64}
    monkeypatch.setattr(bind, "part_step", lambda program, machine: 64)  # slabs of 128
    plan = str(first_plan(kernel, sizes, HOPPER, lambda plan: plan.parts == ("K_0", 2)))
    for said, other in (
        ("parts K_0 2", "parts K_0 4"),
        ("K_0_split 2", "K_0_split 4"),
        ("K_0_part 128", "K_0_part 64"),
    ):
        plan = plan.replace(said, other)
    found = kernel_for(kernel, sizes, machine=HOPPER, plan=plan)
    assert found.plan.parts == ("K_0", 4)
    assert by_tma(found)
    require_exact(kernel, found, arguments(found))


def of_channels(first: int, channels: int, height: int, width: int) -> Any:
    """A convolution 3x3 over some of an image's channels."""
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    image, line, place = i // (height * width), i // width % height, i % width
    r, s = j // (3 * channels), j // channels % 3
    pixel = {N: image, H: line + r - 1, W: place + s - 1, V: first + j % channels}
    taps = {F: i, R: r, S: s, C: j % channels}
    at_x = tkw.IndexMapping(num_iterators=2, inputs=pixel, outputs={M: i, K: j})
    at_w = tkw.IndexMapping(num_iterators=2, inputs=taps, outputs={F: i, K: j})
    at_y = tkw.IndexMapping(num_iterators=2, inputs={M: i, F: j}, outputs={N: image, H: line, W: place, F: j})

    @tkw.wave()
    def convolution(
        x: tkl.Memory[N, H, W, V, GLOBAL, tkl.bf16],
        w: tkl.Memory[F, R, S, C, GLOBAL, tkl.bf16],
        y: tkl.Memory[N, H, W, F, GLOBAL, tkl.f32],
    ):
        @tkw.iterate(K, init_args=[tkl.Register[M, F, tkl.f32](0)])
        def total(acc):
            return tkw.mma(tkw.read(x, mapping=at_x, otherwise=0), tkw.read(w, mapping=at_w), acc)

        tkw.write(total, y, mapping=at_y)

    return convolution.bound({K: 9 * channels, M: N * height * width, R: 3, S: 3, C: channels})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("first", "channels"), [(0, 40), (24, 40), (8, 80)])
def test_channels_beside_those_of_a_convolution_are_not_summed_with_a_halo_tile_or_without(
    first: int, channels: int
) -> None:
    kernel = of_channels(first, channels, 5, 9)
    sizes = {"N": 2, "H": 5, "W": 9, "V": 104, "F": 24}
    plans = [x.plan for x in kernel_for(kernel, sizes, machine=HOPPER).choice.candidates]
    for halo in (True, False):
        plan = next(
            p for p in plans if p.pipeline is not None and bool(p.pipeline.halo_stages) == halo and p.parts is None
        )
        found = kernel_for(kernel, sizes, machine=HOPPER, plan=str(plan))
        assert by_tma(found)
        arrays = arguments(found)
        arrays["x"][..., :first], arrays["x"][..., first + channels :] = np.nan, np.inf
        assert np.isfinite(require_exact(kernel, found, arrays)).all()


def heads(count: int, deep: int) -> Any:
    """Two chained products for each head, whose rows lie beside each other."""
    g, i, j = (tkw.IndexMapping.iterator(n) for n in range(3))
    at_q = tkw.IndexMapping(num_iterators=3, inputs={M: i, W: deep * g + j}, outputs={B: g, M: i, K: j})
    at_k = tkw.IndexMapping(num_iterators=3, inputs={N: i, W: deep * g + j}, outputs={B: g, N: i, K: j})
    at_v = tkw.IndexMapping(num_iterators=3, inputs={N: j, V: 64 * g + i}, outputs={B: g, F: i, N: j})
    at_y = tkw.IndexMapping(num_iterators=3, inputs={B: g, M: i, F: j}, outputs={M: i, V: 64 * g + j})

    @tkw.wave()
    def chained(
        x: tkl.Memory[M, W, GLOBAL, tkl.bf16],
        k: tkl.Memory[N, W, GLOBAL, tkl.bf16],
        v: tkl.Memory[N, V, GLOBAL, tkl.bf16],
        y: tkl.Memory[M, V, GLOBAL, tkl.f32],
    ):
        s = tkw.mma(tkw.read(x, mapping=at_q), tkw.read(k, mapping=at_k), tkl.Register[B, M, N, tkl.f32](0))
        o = tkw.mma(tkw.cast(s, tkl.bf16), tkw.read(v, mapping=at_v), tkl.Register[B, M, F, tkl.f32](0))
        tkw.write(o, y, mapping=at_y)

    return chained.bound({K: deep, F: 64, B: count})


@pytest.mark.parametrize("poisoned", ["x", "k", "v"])
def test_heads_within_rows_do_not_meet(poisoned: str) -> None:
    kernel = heads(3, 40)
    found = kernel_for(kernel, {"M": 70, "N": 64, "W": 120, "V": 192}, machine=HOPPER)
    assert by_tma(found)
    arrays = arguments(found)
    each = 64 if poisoned == "v" else 40
    arrays[poisoned][:, each : 2 * each] = np.nan
    result = require_exact(kernel, found, arrays).reshape(70, 3, 64)
    assert np.isfinite(result[:, [0, 2]]).all()
    assert np.isnan(result[:, 1]).all()
