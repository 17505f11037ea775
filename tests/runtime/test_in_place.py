"""Calls in place: an output that is the array of an input, where the program shows that this is right."""

import warnings

import numpy as np
import pytest
from loop_level import on_the_loop_level
from tile_checks import own_cache  # noqa: F401

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import NativeExecutable, kernel_for
from tilewright.errors import AliasingWarning, ArgumentError
from tilewright.lang.global_symbols import GLOBAL_ADDRESS_SPACE, WORKGROUP_0
from tilewright.targets.registry import machine

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
DTYPES = [tkl.f32, tkl.f16, tkl.bf16, tkl.i8, tkl.i32]
f32_mn = tkl.Memory[M, N, GLOBAL_ADDRESS_SPACE, tkl.f32]
i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)


def mapped(inputs, outputs=None):
    return tkw.IndexMapping(
        num_iterators=2, inputs=dict(zip((M, N), inputs, strict=True)), outputs=outputs or {M: i, N: j}
    )


def biased(dtype):
    """Three inputs, of which one is broadcast, and one output."""
    whole, row = (tkl.Memory[(*dims, GLOBAL_ADDRESS_SPACE, dtype)] for dims in ((M, N), (N,)))

    @tkw.wave()
    def kernel(x: whole, b: row, z: whole, y: whole):
        t = tkw.read(x)
        tkw.write(tkw.select(t > 1, t * t + tkw.read(b), t - tkw.read(z)), y)

    return kernel


def laid_out(array, form):
    """A copy: packed, by columns, or with gaps."""
    if form == "gaps":
        room = np.zeros((2 * array.shape[0], array.shape[1] + 3), array.dtype)
        room[::2, 1:-2] = array
        return room[::2, 1:-2]
    return array.copy(order=form)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", [{"target": "executor"}, {}, {"dynamic": ["M"]}, {"dynamic": ["M", "N"]}], ids=str)
def test_an_elementwise_kernel_in_place_was_refused(dtype, options):
    rng = np.random.default_rng(0)
    run, by_meaning = tilewright.compile(biased(dtype), **options), tilewright.compile(biased(dtype), target="executor")
    for shape in ((3, 5), (1, 1), (211, 129)):
        x, z = (rng.integers(-4, 5, shape).astype(dtype.numpy) for _ in range(2))
        b = rng.integers(-4, 5, shape[1]).astype(dtype.numpy)
        wanted, squared = by_meaning(x, b, z), by_meaning(x, b, x)
        for form in ("C", "F", "gaps"):
            first, second, both, named = (laid_out(a, form) for a in (x, z, x, x))
            assert run(first, b, z, first) is None
            assert run(x, b, second, second) is None
            assert run(both, b, both, both) is None
            assert run(named, b, z, out=named) is named
            for found, right in ((first, wanted), (second, wanted), (both, squared), (named, wanted)):
                assert np.array_equal(found, right), (shape, form)
        assert np.array_equal(run(x, b, z), wanted)  # with memory of its own it is as before


def test_what_is_bound_in_place_runs_in_place_each_time():
    @tkw.wave()
    def doubled(x: f32_mn, y: f32_mn):
        tkw.write(tkw.read(x) * 2.0, y)

    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    run = tilewright.compile(doubled)
    launch = run.bind(x, x)
    launch()
    launch()
    assert np.array_equal(x, 4 * np.arange(15).reshape(3, 5))
    run(x, x)
    assert "%y: inout global f32 (3, 5)" in run.text("block")


@pytest.mark.parametrize("shape", [(3, 5), (130, 67), (2, 300)])
def test_in_place_on_a_gpu_s_interpreter(shape):
    rng = np.random.default_rng(1)
    x, z = (rng.integers(-4, 5, shape).astype(np.float32) for _ in range(2))
    b = rng.integers(-4, 5, shape[1]).astype(np.float32)
    program = biased(tkl.f32).trace()
    run = NativeExecutable(program, {}, "gpu:hopper", machine=machine("hopper"))
    wanted = tilewright.compile(program, target="executor")(x, b, z)
    run(x, b, z, x)
    assert np.array_equal(x, wanted)


@pytest.mark.parametrize("target", ["executor", "cpu"])
def test_an_access_with_a_mapping_in_place(target):
    """Column n + 1 becomes twice itself; column 0 is not written."""

    @tkw.wave()
    def kernel(x: f32_mn, y: f32_mn):
        t = tkw.read(x, mapping=mapped((i, j + 1)), otherwise=0)
        tkw.write(t * 2.0, y, mapping=mapped((i, j), {M: i, N: j + 1}))

    x = np.arange(1, 16, dtype=np.float32).reshape(3, 5)
    wanted = np.where(np.arange(5) > 0, 2 * x, x)
    tilewright.compile(kernel, target=target)(x, x)
    assert np.array_equal(x, wanted)


@pytest.mark.parametrize("target", ["executor", "cpu"])
def test_another_output_keeps_what_was_read_before(target):
    @tkw.wave()
    def kernel(x: f32_mn, y: f32_mn, z: f32_mn):
        t = tkw.read(x)
        tkw.write(t * 2.0, y)
        tkw.write(t + 1.0, z)

    run = tilewright.compile(kernel, target=target)
    given = np.arange(77, dtype=np.float32).reshape(7, 11)
    x, other = given.copy(), np.zeros_like(given)
    run(x, x, other)
    assert np.array_equal(x, 2 * given)
    assert np.array_equal(other, given + 1)
    x = given.copy()
    run(x, other, x)
    assert np.array_equal(x, given + 1)
    assert np.array_equal(other, 2 * given)
    with pytest.raises(ArgumentError, match="the output y shares memory with z, and z is an output too"):
        run(given, x, x)


def softmax(x, y):
    t = tkw.read(x)
    e = tkw.exp(t - tkw.max(t, dim=N))
    tkw.write(e / tkw.sum(e, dim=N), y)


def doubled_in_a_loop(x, y):
    @tkw.iterate(N, init_args=[tkl.Register[M, tkl.f32](0.0)])
    def total(acc):
        tkw.write(tkw.read(x) * 2.0, y)
        return tkw.sum(tkw.read(x), acc, dim=N)


def read_again(x, y):
    tkw.write(tkw.read(x) * 2.0, y)
    tkw.write(tkw.read(x) + 1.0, y)


def read_after(x, y):
    tkw.write(tkw.read(x) * 2.0, y)
    tkw.debug_log(tkw.read(x), label="after")


def by_workgroup(x, y):
    t = tkw.read(x)
    tkw.write(t * tkw.scalar(WORKGROUP_0, tkl.f32), y)


def meeting(x, y):
    halves = mapped((i, j), {M: i, N: j // 2})
    tkw.write(tkw.read(x, mapping=mapped((i, j // 2))) + tkw.cast(tkw.self_index(N), tkl.f32), y, mapping=halves)


@pytest.mark.parametrize("target", ["executor", "cpu"])
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (softmax, "`max` puts elements of different places together"),
        (lambda x, y: tkw.write(tkw.cumsum(tkw.read(x), dim=N), y), "`cumsum` puts elements of different places"),
        (lambda x, y: tkw.write(tkw.read(x, mapping=mapped((j, i))), y), "x is read at other places than y is written"),
        (
            lambda x, y: tkw.write(tkw.read(x) + tkw.read(x, mapping=mapped((i, j + 1)), otherwise=0), y),
            "x is read at other places than y is written",
        ),
        (doubled_in_a_loop, "they are read or written inside a loop or a conditional"),
        (read_again, "only what one `write` alone fills can be computed in place"),
        (read_after, "memory is read after the write to y"),
        (lambda x, y: tkw.atomic_add(tkw.read(x), y), "only what one `write` alone fills can be computed in place"),
        (by_workgroup, "its workgroups follow each other"),
        (meeting, "elements of the write to y may meet at one place"),
    ],
)
def test_what_is_not_known_to_be_right_in_place_is_refused_with_the_reason(target, body, why):
    @tkw.wave([tkw.WorkgroupConstraint(M, 2, 0)])
    def kernel(x: f32_mn, y: f32_mn):
        body(x, y)

    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    before = x.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AliasingWarning)
        run = tilewright.compile(kernel, target=target)
    with pytest.raises(ArgumentError, match=f"the output y shares memory with x, and {why}.*memory of their own"):
        run(x, x)
    assert np.array_equal(x, before)


@pytest.mark.parametrize("target", ["executor", "cpu"])
def test_arrays_that_overlap_in_part_are_refused_still(target):
    @tkw.wave()
    def doubled(x: f32_mn, y: f32_mn):
        tkw.write(tkw.read(x) * 2.0, y)

    run, room = tilewright.compile(doubled, target=target), np.arange(40, dtype=np.float32).reshape(5, 8)
    for x, y in (
        (room[1:], room[:-1]),
        (room[:, 1:], room[:, :-1]),
        (room[::-1], room),
        (room[:4, :4], room[:4, :4].T),
    ):
        with pytest.raises(ArgumentError, match="shares memory with x, and they are not the same elements"):
            run(x, y)
    run(room[:, ::2], room[:, 1::2])
    assert np.array_equal(room[:, 1::2], 2 * room[:, ::2])


def test_arguments_that_are_declared_otherwise_are_refused():
    @tkw.wave()
    def turned(x: f32_mn, y: tkl.Memory[N, M, GLOBAL_ADDRESS_SPACE, tkl.f32]):
        tkw.write(tkw.read(x), y)

    x = np.ones((3, 3), np.float32)
    with pytest.raises(ArgumentError, match=r"they are declared as global f32\[M, N\] and as global f32\[N, M\]"):
        tilewright.compile(turned)(x, x)


def residual(data):
    """A product and what is added to it, which may be where the result goes."""

    @tkw.wave()
    def kernel(
        a: tkl.Memory[M, K, GLOBAL_ADDRESS_SPACE, data],
        b: tkl.Memory[N, K, GLOBAL_ADDRESS_SPACE, data],
        r: f32_mn,
        y: f32_mn,
    ):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def total(acc):
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        tkw.write(total + tkw.read(r), y)

    return kernel


@pytest.mark.sampled(6)
@pytest.mark.parametrize("sizes", [(3, 5, 7), (65, 33, 70), (130, 129, 64)])
@pytest.mark.parametrize("on", ["executor", "cpu", "hopper"])
def test_a_residual_may_be_where_the_result_goes(sizes, on):
    m, n, k = sizes
    rng = np.random.default_rng(2)
    data = tkl.f32 if on == "cpu" else tkl.bf16
    a, b = (rng.integers(-3, 4, shape).astype(data.numpy) for shape in ((m, k), (n, k)))
    r = rng.integers(-3, 4, (m, n)).astype(np.float32)
    wanted = a.astype(np.float32) @ b.astype(np.float32).T + r
    program = residual(data).trace()
    if on == "hopper":
        run = NativeExecutable(program, {}, "gpu:hopper", machine=machine("hopper"))
    else:
        run = tilewright.compile(program, target=on)
    run(a, b, r, r)
    assert np.array_equal(r, wanted)


@pytest.mark.parametrize("shape", [(5, 3), (130, 67), (40, 512)])
def test_a_gpu_s_tasks_in_place_are_many_and_each_lane_has_its_own_elements(shape):
    """Flat rows that are read and written were one task, and all were copied first."""

    @tkw.wave()
    def kernel(y: f32_mn):
        t = tkw.read(y)
        tkw.write(t * t - 2.0, y)

    made = kernel_for(kernel, dict(zip("MN", shape, strict=True)), machine=machine("hopper"))
    assert "before" not in made.text("block")
    assert shape == (5, 3) or "tasks t in 0..1 " not in made.text("block")
    x = np.random.default_rng(3).integers(-4, 5, shape).astype(np.float32)
    wanted = x * x - 2
    on_the_loop_level(made).bind([x])()
    assert np.array_equal(x, wanted)
