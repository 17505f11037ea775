"""Executables are called as Python functions are: by name, with `out=`, and with a signature that says so."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import ArgumentError

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
TARGETS = ["executor", "cpu"]


@tkw.wave()
def linear(
    x: tkl.Memory[M, K, GLOBAL, tkl.f32],
    w: tkl.Memory[N, K, GLOBAL, tkl.f32],
    bias: tkl.Memory[N, GLOBAL, tkl.f32],
    y: tkl.Memory[M, N, GLOBAL, tkl.f32],
):
    @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
    def total(acc):
        return tkw.mma(tkw.read(x), tkw.read(w), acc)

    tkw.write(total + tkw.read(bias), y)


@tkw.wave()
def both(
    total: tkl.Memory[M, GLOBAL, tkl.f32],
    x: tkl.Memory[M, N, GLOBAL, tkl.f32],
    most: tkl.Memory[M, GLOBAL, tkl.f32],
):
    """Two outputs, one before the input."""
    tkw.write(tkw.sum(tkw.read(x), dim=N), total)
    tkw.write(tkw.max(tkw.read(x), dim=N), most)


X, W = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(4, 3)
BIAS = np.arange(4, dtype=np.float32)
WANTED = X @ W.T + BIAS


@pytest.mark.parametrize("target", TARGETS)
def test_arguments_by_name(target):
    run = tilewright.compile(linear, target=target)
    assert np.array_equal(run(w=W, bias=BIAS, x=X), WANTED)
    assert np.array_equal(run(X, w=W, bias=BIAS), WANTED)
    assert np.array_equal(run(X, W, bias=BIAS), WANTED)
    result = np.empty_like(WANTED)
    assert run(X, W, BIAS, y=result) is None
    assert np.array_equal(result, WANTED)


@pytest.mark.parametrize("target", TARGETS)
def test_out_is_filled_and_returned(target):
    run = tilewright.compile(linear, target=target)
    for call in (lambda out: run(X, W, BIAS, out=out), lambda out: run(x=X, w=W, bias=BIAS, out=out)):
        result = np.full((2, 4), np.nan, np.float32)
        assert call(result) is result
        assert np.array_equal(result, WANTED)


@pytest.mark.parametrize("target", TARGETS)
def test_several_outputs(target):
    run = tilewright.compile(both, target=target)
    total, most = run(x=X)
    assert (total.tolist(), most.tolist()) == ([3, 12], [2, 5])
    given = np.zeros(2, np.float32), np.zeros(2, np.float32)
    assert run(X, out=given) is given
    assert (given[0].tolist(), given[1].tolist()) == ([3, 12], [2, 5])
    one = np.zeros(2, np.float32)
    assert run(X, total=one).tolist() == [2, 5]  # the one that was left out
    assert one.tolist() == [3, 12]


def test_a_bound_call_takes_names_too():
    if TARGETS[-1] is None:
        pytest.skip("machine code is for x86")
    run = tilewright.compile(linear, target="cpu")
    result = np.empty_like(WANTED)
    run.bind(x=X, w=W, bias=BIAS, out=result)()
    assert np.array_equal(result, WANTED)
    assert run.benchmark(X, W, BIAS, out=result, seconds=0.001)["calls"] >= 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: run(X, W, BIAS, colour=1), "linear has no argument colour; it takes x, w, bias, y, and out="),
        (lambda run: run(X, W, bias=BIAS, x=X), "the argument x is given twice, by position and by name"),
        (lambda run: run(x=X, w=W), "the argument bias is missing; it takes x, w, bias, y"),
        (lambda run: run(X, W, BIAS, X, X, out=X), "the argument y is given twice, by position and by name"),
        (lambda run: run(X, W, BIAS, y=X, out=X), "the output y is given twice, by name and as out="),
        (lambda run: run(None, w=W, bias=BIAS), "argument x is None, and is no output"),
    ],
)
def test_what_a_call_by_name_refuses(call, message):
    with pytest.raises(ArgumentError, match=message):
        call(tilewright.compile(linear, target="executor"))


def test_several_outputs_are_a_tuple():
    with pytest.raises(ArgumentError, match="out= takes a tuple of 2 arrays: total, most"):
        tilewright.compile(both, target="executor")(X, out=np.zeros(2, np.float32))


def test_an_argument_called_out_is_that_argument():
    run = tilewright.compile(tilewright.kernels.attention(4, "f32"), target="executor")
    q = np.zeros((1, 1, 3, 2), np.float32)
    result = np.empty((1, 1, 3, 2), np.float32)
    assert run(q, q, v=q, out=result) is result
    assert list(inspect.signature(run).parameters) == ["q", "k", "v", "out", "debug_logs"]


@pytest.mark.parametrize("target", TARGETS)
def test_the_signature_is_the_kernels(target):
    found = inspect.signature(tilewright.compile(linear, target=target))
    assert list(found.parameters)[:4] == ["x", "w", "bias", "y"]
    assert found.parameters["x"].annotation == "f32[M, K]"
    assert found.parameters["x"].default is inspect.Parameter.empty
    assert found.parameters["y"].default is None
    found.bind(X, W, bias=BIAS, out=X)  # what the signature allows, a call does
    with pytest.raises(TypeError):
        found.bind(X)


def test_an_output_before_an_input_has_no_default():
    assert str(inspect.signature(tilewright.compile(both, target="executor"))).startswith(
        "(total: 'f32[M]', x: 'f32[M, N]', most: 'f32[M]' = None, *,"
    )


TEXT = """block double(%x: in global f32 (M, N), %y: out global f32 (M, N))
  param M in 1..65536, N = 3
{
  tasks m in 0..M {
    %row = view %x (j N) -> [m, j]
    %to = view %y (j N) -> [m, j]
    map %to = %row + %row
  }
}"""


@pytest.mark.parametrize("target", ["interpreter", *TARGETS[1:]])
def test_programs_of_lower_levels_are_called_the_same_way(target):
    run = tilewright.compile_text(TEXT, target)
    assert np.array_equal(run(x=X), 2 * X)
    result = np.empty_like(X)
    assert run(X, out=result) is result
    assert np.array_equal(result, 2 * X)
    assert run(X, y=result) is None
    assert list(inspect.signature(run).parameters) == ["x", "y", "out", "params"]
    with pytest.raises(ArgumentError, match="double has no argument z; it takes x, y, and out="):
        run(X, z=X)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("level", [5, None, "blok", [], np.ones(3), {"M": 4}])
def test_a_level_that_is_no_text_was_a_type_error(target, level):
    run = tilewright.compile(linear, target=target)
    with pytest.raises(ArgumentError, match=r"^level=.*: linear on .* has 'tile'"):
        run.text(level)


def test_the_level_of_a_kernel_for_one_size_and_of_a_text():
    kernel, _ = tilewright.Linear(W).kernel(X)
    made = tilewright.compile_text("block double(%x: in global f32 (4), %y: out global f32 (4))\n{\n  map %y = %x\n}\n")
    for owner in (kernel, made):
        with pytest.raises(ArgumentError, match=r"level=\{'M': 0\}: .* on cpu has .*'block'"):
            owner.text({"M": 0})
        with pytest.raises(ArgumentError, match="did you mean block"):
            owner.text("blcok")


@pytest.mark.parametrize("symbols", ["M", 5, [("M", 4)], {5: 1}, {None: 1}])
def test_sizes_that_are_no_dictionary_were_an_attribute_error(symbols):
    with pytest.raises(ArgumentError, match=r"^symbols"):
        tilewright.compile(linear).text("plan", symbols)


@pytest.mark.parametrize("seconds", ["x", None, -1, float("nan"), float("inf"), 1j, True])
def test_seconds_of_a_benchmark(seconds):
    y = np.empty_like(WANTED)
    run = tilewright.compile(linear)
    with pytest.raises(ArgumentError, match=r"seconds=.*: a number of seconds, 0 or more"):
        run.benchmark(X, W, BIAS, y, seconds=seconds)
    assert run.benchmark(X, W, BIAS, y, seconds=0)["calls"] == 1


@pytest.mark.parametrize("arrays", ["x", {"a": X}, {5: X}, {"a": 1, "b": 2, "c": 3}, [X]])
def test_arrays_of_a_kernel_for_one_size(arrays):
    kernel, _ = tilewright.Linear(W).kernel(X)
    with pytest.raises(ArgumentError, match=r"arrays|argument a is int"):
        kernel.benchmark(arrays)


class Traced:
    __name__ = "Traced"
    trace = 5


@pytest.mark.parametrize("kernel", [Traced(), Traced, lambda x: x, len, None, np, 5, b"tile"])
def test_what_has_a_trace_and_is_no_kernel_was_called(kernel):
    with pytest.raises(ArgumentError, match=r"compile takes a kernel \(a function under @tkw.wave or @tb.kernel\)"):
        tilewright.compile(kernel)


@pytest.mark.parametrize("option", ["strict", "lenient", "require_atoms"])
def test_an_option_that_is_no_bool(option):
    with pytest.raises(ArgumentError, match=rf"^{option}=array.*: True or False"):
        tilewright.compile(linear, **{option: np.ones(2)})


def test_dynamic_sizes_that_are_an_array_had_no_truth_value():
    with pytest.raises(ArgumentError, match="dynamic: 5 is no size"):
        tilewright.compile(linear, dynamic=np.array([5, 6]))
