"""Calls on torch's tensors like one before: no check is lost, and results are tensors."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright
import tilewright.lang as tkl
import tilewright.torch
import tilewright.wave as tkw
from tilewright.compiler.native import NativeExecutable
from tilewright.errors import ArgumentError, MissingBackward, TracedArgument

M, N = tkl.sym.M, tkl.sym.N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
OURS = torch.ops.tilewright


def kernel(kind: Any) -> Any:
    @tkw.wave()
    def minus(x: tkl.Memory[M, N, GLOBAL, kind], y: tkl.Memory[M, N, GLOBAL, kind], z: tkl.Memory[M, N, GLOBAL, kind]):
        tkw.write(tkw.read(x) - tkw.read(y), z)

    return minus


def numbers(*shape: int, start: int = 0, dtype: Any = None) -> Any:
    values = torch.arange(start, start + int(np.prod(shape))).remainder(13)
    return values.to(dtype or torch.float32).reshape(shape)


@pytest.fixture
def at_length(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels whose calls were checked at length."""
    names: list[str] = []
    whole = NativeExecutable._run

    def run(self: Any, *args: Any) -> Any:
        names.append(self.name)
        return whole(self, *args)

    monkeypatch.setattr(NativeExecutable, "_run", run)
    return names


@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("columns", [5, 2100])
def test_calls_on_tensors_were_checked_at_length_each_time(at_length: list[str], kind: str, columns: int) -> None:
    run, dtype = tilewright.compile(kernel(getattr(tkl, kind))), {"f32": torch.float32, "bf16": torch.bfloat16}[kind]
    for start in range(4):
        y = numbers(3, columns, start=3 * start, dtype=dtype)
        wide = numbers(3, 2 * columns, start=start, dtype=dtype)
        for x in (numbers(3, columns, dtype=dtype), wide[:, ::2], numbers(columns, 3, dtype=dtype).T):
            z = run(x, y)
            assert (type(z), z.dtype) == (torch.Tensor, dtype)
            assert torch.equal(z, x - y)
    assert len(at_length) == 3


@pytest.mark.parametrize("columns", [5, 700])
def test_torch_is_told_of_outputs_that_are_written(at_length: list[str], columns: int) -> None:
    run = tilewright.compile(kernel(tkl.f32))
    room, packed = torch.zeros(3, 2 * columns), torch.zeros(3, columns)
    for start in range(3):
        x, y = numbers(3, columns, start=start), numbers(3, columns, start=3 * start)
        for out in (room[:, 1::2], packed):
            before = out._version
            assert run(x, y, out=out) is out
            assert out._version > before
            assert torch.equal(out, x - y)
        assert not room[:, ::2].any()
    assert len(at_length) == 2


def test_a_kernel_that_was_called_with_arrays_before_torch_takes_tensors_and_both(at_length: list[str]) -> None:
    run = tilewright.compile(kernel(tkl.f32))
    x, y = numbers(3, 5), numbers(3, 5, start=4)
    for _ in range(2):
        assert np.array_equal(run(x.numpy(), y.numpy()), (x - y).numpy())
        assert torch.equal(run(x, y), x - y)
        assert torch.equal(run(x, y.numpy()), x - y)
        assert isinstance(run(x.numpy(), y), np.ndarray)
    assert len(at_length) == 4


@pytest.mark.filterwarnings("ignore")  # of frameworks
def test_tensors_that_are_not_their_memory_are_still_refused_or_checked() -> None:
    run = tilewright.compile(kernel(tkl.f32))
    x, y = numbers(3, 5), numbers(3, 5, start=4)
    run(x, y), run(x, y)
    for wrong, says in {
        "is a negated view": torch._neg_view(x),
        "is sparse": x.to_sparse(),
        "lies on the device meta": x.to("meta"),
        "needs gradients": x.clone().requires_grad_(),
        "holds f64": x.double(),
        "must have the 2 dimensions": x[0],
    }.items():
        with pytest.raises(ArgumentError, match=wrong):
            run(says, y)
    with pytest.raises(TracedArgument, match=r"under torch\.vmap"):
        torch.vmap(lambda x: run(x, y))(x[None])
    with pytest.raises(TracedArgument, match=r"torch\.jit\.trace"):
        torch.jit.trace(lambda x: run(x, y), (x,))
    with torch.no_grad():
        assert torch.equal(run(torch.nn.Parameter(x), y), x - y)


def test_an_output_that_is_an_input_is_computed_in_place_each_time(at_length: list[str]) -> None:
    run = tilewright.compile(kernel(tkl.f32))
    x, y = numbers(3, 5), numbers(3, 5, start=4)
    for _ in range(4):
        run(x, y, x)
    assert torch.equal(x, numbers(3, 5) - 4 * y)
    assert len(at_length) == 2
    assert torch.equal(run(x, y), x - y)


def test_a_call_keeps_none_of_its_tensors() -> None:
    run = tilewright.compile(kernel(tkl.f32))
    for _ in range(2):
        x, y = numbers(3, 5), numbers(3, 5)
        gone = [weakref.ref(t) for t in (x, y, run(x, y))]
        del x, y
        gc.collect()
        assert [ref() for ref in gone] == [None] * 3


# -- operators --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of frameworks
def test_an_operator_checked_and_looked_up_everything_at_each_call(at_length: list[str]) -> None:
    run = tilewright.torch.operator(kernel(tkl.f32), "of_test_minus")
    for start in range(4):
        x, y = numbers(3, 5, start=start), numbers(3, 5, start=3 * start)
        assert torch.equal(run(x, y), x - y)
        assert torch.equal(run(x, torch.nn.Parameter(y).detach()), x - y)
        with torch.inference_mode():
            assert torch.equal(run(x + 1, y), x + 1 - y)
    assert len(at_length) == 1
    with pytest.raises(ArgumentError, match="dimension 1 is 4"):
        run(x, y[:, :4])
    assert torch.equal(run(torch._neg_view(x), y), -x - y)
    assert torch.equal(torch.vmap(run)(x[None], y[None])[0], x - y)


@pytest.mark.filterwarnings("ignore")  # of frameworks
def test_an_operator_like_before_is_seen_by_modes_traces_and_autograd() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    a, b = numbers(3, 4), numbers(4, 5)
    OURS.matmul(a, b), OURS.matmul(a, b)
    with Seeing():
        assert torch.equal(OURS.matmul(a, b), a @ b)
    assert "tilewright.matmul.default" in seen
    traced = torch.jit.trace(lambda a: OURS.matmul(a, b), (a,))
    assert torch.equal(traced(a + 1), (a + 1) @ b)
    weight = b.clone().requires_grad_()
    OURS.matmul(a, weight).sum().backward()
    assert torch.equal(weight.grad, a.T @ torch.ones(3, 5))
    run = tilewright.torch.operator(kernel(tkl.f32), "of_test_minus_without_backward")
    run(a, a), run(a, a)
    with pytest.raises(MissingBackward):
        run(a, a.clone().requires_grad_()).sum().backward()


@pytest.mark.parametrize("keep", [False, True])
def test_layers_of_operators_see_other_weights(keep: bool) -> None:
    x, weight, bias = numbers(2, 3, 6), numbers(5, 6), numbers(5)
    filters, image = numbers(4, 3, 3, 3), numbers(2, 3, 6, 5)
    for start in range(3):
        assert torch.equal(OURS.linear(x, weight, bias, None, keep), x @ weight.T + bias)
        got = OURS.conv2d(image, filters, None, [1, 1], [1, 1], [1, 1], 1, None, keep)
        assert torch.equal(got, torch.conv2d(image, filters, padding=1))
        assert got.is_contiguous()
        weight += start + 1
        filters -= 1
    assert torch.equal(OURS.linear(x[0, 0], weight, None, "relu", keep), (weight @ x[0, 0]).relu())
    assert torch.equal(OURS.linear(x, numbers(6, 5).T, bias, None, keep), x @ numbers(6, 5) + bias)


def test_a_bias_of_the_operands_type_is_widened_at_each_call() -> None:
    a, b = numbers(3, 4, dtype=torch.bfloat16), numbers(4, 5, dtype=torch.bfloat16)
    for start in range(3):
        bias = numbers(5, start=start, dtype=torch.bfloat16)
        wanted = (a.float() @ b.float() + bias.float()).bfloat16()
        assert torch.equal(OURS.matmul(a, b, bias), wanted)
        assert torch.equal(OURS.linear(a, b.T, bias), wanted)


def test_wrong_arguments_of_operators_are_named_though_calls_are_compared_first() -> None:
    x, weight, bias = numbers(1, 3, 4, 4), numbers(2, 3, 3, 3), None
    for given, says in (
        ((x[0, 0, 0], weight, bias, [1, 1], [1, 1], [1, 1], 1), "x has shape"),
        ((x, weight[0, 0, 0], bias, [1, 1], [1, 1], [1, 1], 1), "weight has shape"),
        ((x, weight, bias, [1, 1], [1, 1, 1], [1, 1], 1), "padding="),
        ((x, weight, bias, [1], [1, 1], [1, 1], 1), "stride="),
    ):
        for keep in (False, True):
            with pytest.raises(ArgumentError, match=says):
                OURS.conv2d(*given, None, keep)
    with pytest.raises(ArgumentError, match="they do not fit"):
        OURS.matmul(x, weight)
    with pytest.raises(ArgumentError, match="weight has shape"):
        OURS.linear(x, x, None, None, True)


@pytest.mark.parametrize("keep", [False, True])
def test_a_residual_is_not_taken_for_the_bias_of_a_call_before(keep: bool) -> None:
    """Their tensors stand in the same place: the check of a residual's shape was left out."""
    x, weight, bias = numbers(3, 5), numbers(7, 5, start=2), numbers(7, start=3)
    images, filters = numbers(2, 3, 6, 5), numbers(7, 3, 3, 3, start=1)
    geometry = [1, 1], [1, 1], [1, 1], 1
    for _ in range(3):
        OURS.linear(x, weight, bias, None, keep)
        OURS.conv2d(images, filters, bias, *geometry, None, keep)
    with pytest.raises(ArgumentError, match=r"residual has shape \(7,\); it must be \(3, 7\), as the result"):
        OURS.linear(x, weight, None, None, keep, bias)
    with pytest.raises(ArgumentError, match=r"residual has shape \(7,\); it must be \(2, 7, 6, 5\), as the result"):
        OURS.conv2d(images, filters, None, *geometry, None, keep, bias)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_calls_with_residuals_are_checked_at_length_once(
    keep: bool, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, filters = numbers(7, 5, start=2), numbers(7, 3, 3, 3, start=1)
    bias = numbers(7, start=3) if has_bias else None
    geometry = [1, 1], [1, 1], [1, 1], 1

    def check(start: int) -> None:
        x, images = numbers(4, 3, 5, start=start), numbers(2, 3, 6, 5, start=start)
        added, more = numbers(4, 7, 3, start=start).mT, numbers(2, 7, 6, 5, start=start + 1)
        result = OURS.linear(x, weight, bias, "relu", keep, added)
        expected = torch.nn.functional.linear(x, weight, bias) + added
        assert torch.equal(result, expected.relu())
        result = OURS.conv2d(images, filters, bias, *geometry, None, keep, more)
        assert torch.equal(result, torch.nn.functional.conv2d(images, filters, bias, padding=1) + more)

    check(0)
    monkeypatch.setattr("tilewright.ops.layers.Layer._run_unremembered", lambda *_: pytest.fail("checked again"))
    monkeypatch.setattr("tilewright.torch.library.CheckedForms.__call__", lambda *_: pytest.fail("checked again"))
    check(1)
