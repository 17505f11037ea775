"""Calls of operators like one before: from an operator's own arguments to its result, without a look at length."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_opcheck import ARGUMENTS, LAYOUTS

import tilewright.torch
from tilewright.kernels import gated_silu
from tilewright.targets.calls.observing import observed
from tilewright.torch.learning import OperatorCalls

OURS = torch.ops.tilewright


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that are looked at in Python."""
    seen: list[Any] = []
    run = OperatorCalls.run

    def counted(self: OperatorCalls, form: Any, compute: Callable[..., Any], args: Any) -> Any:
        seen.append(form)
        return run(self, form, compute, args)

    monkeypatch.setattr(OperatorCalls, "run", counted)
    return seen


def assert_learnt(call: Callable[..., Any], first: list[Any], others: list[list[Any]], runs: list[Any]) -> None:
    """Calls with other tensors like the first ones are native, and give what calls at length give."""
    call(*first)
    count = len(runs)
    for args in others:
        result = call(*args)
        assert len(runs) == count
        with observed():
            expected = call(*args)
        assert len(runs) == count + 1
        count += 1
        for ours, wanted in zip(*(r if isinstance(r, tuple) else (r,) for r in (result, expected)), strict=True):
            assert torch.equal(ours, wanted)
            assert ours.stride() == wanted.stride()


def changed(args: list[Any], by: int) -> list[Any]:
    """Other tensors of the same forms, which hold other numbers."""
    return [_changed(a, by) if isinstance(a, torch.Tensor) else a for a in args]


def _changed(tensor: Any, by: int) -> Any:
    memory = torch.empty(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=tensor.dtype)
    other = memory.as_strided(tensor.shape, tensor.stride())
    generator = torch.Generator().manual_seed(by)
    return other.copy_(torch.randint(-2, 3, tensor.shape, generator=generator))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "empty"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_only_products_were_found_without_python(name: str, layout: str, kind: Any, runs: list[Any]) -> None:
    given = [LAYOUTS[layout](a) if isinstance(a, torch.Tensor) else a for a in ARGUMENTS[name](kind, 3)]
    assert_learnt(getattr(OURS, name), given, [changed(given, n) for n in (1, 2)], runs)


@pytest.mark.parametrize(
    "name",
    [
        *("linear", "conv2d", "softmax", "layer_norm", "group_norm", "conv_image_gradient"),
        *("max_pool2d", "adaptive_avg_pool2d"),
    ],
)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_results_that_do_not_fit_on_the_stack(name: str, layout: str, runs: list[Any]) -> None:
    given = [LAYOUTS[layout](a) if isinstance(a, torch.Tensor) else a for a in ARGUMENTS[name](torch.float32, 97)]
    assert_learnt(getattr(OURS, name), given, [changed(given, n) for n in (1, 2)], runs)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_softmax_along_each_dimension(dim: int, runs: list[Any]) -> None:
    x = torch.arange(3 * 5 * 7.0).reshape(3, 5, 7).remainder(11)
    assert_learnt(OURS.softmax, [x, dim], [[x.flip(0), dim], [x.flip(1), dim]], runs)


def test_one_tensor_given_twice_is_not_taken_for_one_argument(runs: list[Any]) -> None:
    """The kernel's arrays were told apart by their addresses: b would be read where a lies."""
    a, b = torch.arange(25.0).reshape(5, 5), torch.arange(25.0).reshape(5, 5).flip(0)
    assert torch.equal(OURS.matmul(a, a), a @ a)
    count = len(runs)
    for left, right in ((a, b), (b, a), (b, b)):
        assert torch.equal(OURS.matmul(left, right), left @ right)
    wide = a[:1].expand(5, 5)
    assert torch.equal(OURS.matmul(wide, wide), wide @ wide)
    assert len(runs) == count + 1
    assert torch.equal(OURS.linear(a, b, None, None, False, a), a @ b.T + a)
    assert torch.equal(OURS.linear(a, b, None, None, False, b), a @ b.T + b)


def test_options_are_part_of_what_is_compared(runs: list[Any]) -> None:
    x, weight = torch.arange(-4.0, 4).reshape(1, 2, 4), torch.ones(3, 2, 3)
    options = [
        (stride, padding, activation)
        for stride in ([1], [2])
        for padding in ([0], [1], [1, 0], [0, 1])
        for activation in (None, "relu")
    ]
    for _ in range(2):
        for stride, padding, activation in options:
            before, after = (padding * 2)[:2]
            expected = torch.conv1d(torch.nn.functional.pad(x, (before, after)), weight, stride=stride)
            expected = expected if activation is None else expected.relu()
            result = OURS.conv1d(x, weight, None, stride, padding, [1], 1, activation)
            assert torch.equal(result, expected)
    assert len(runs) == len(options)


def test_kept_weights_are_those_of_the_tensor(runs: list[Any]) -> None:
    x, weights = torch.eye(5, 4), [torch.full((3, 4), float(n)) for n in range(3)]
    for _ in range(2):
        for n, weight in enumerate(weights):
            assert (OURS.linear(x, weight, None, None, True)[:4] == n).all()
    assert len(runs) == 3
    weights[1].add_(5)
    for _ in range(2):
        assert (OURS.linear(x, weights[1], None, None, True)[:4] == 6).all()
    assert len(runs) == 4
    weights[2].data = torch.full((3, 4), 7.0)
    assert (OURS.linear(x, weights[2], None, None, True)[:4] == 7).all()


def test_kept_weights_of_a_tensor_that_is_gone_are_no_other_ones() -> None:
    """A new tensor may have the Python object, the memory and the count of writes of one that is gone."""
    x, parameter = torch.eye(5, 4), torch.zeros(3, 4)
    for n in range(20):
        parameter.fill_(n)
        assert (OURS.linear(x, parameter.data, None, None, True)[:4] == n).all()


def test_packed_weights_go_with_their_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[OperatorCalls] = []
    remember = OperatorCalls.remember

    def remembered(self: OperatorCalls, *args: Any) -> None:
        learnt.append(self)
        remember(self, *args)

    monkeypatch.setattr(OperatorCalls, "remember", remembered)
    x, weight = torch.ones(11, 13), torch.ones(17, 13)
    OURS.linear(x, weight, None, None, True)
    (calls,) = learnt
    assert calls.table is not None
    count = len(calls.table.kinds)
    del weight
    gc.collect()
    assert len(calls.table.kinds) < count


def test_arguments_of_a_call_are_let_go() -> None:
    import weakref

    x, weight = torch.ones(1, 3, 9, 7), torch.ones(5, 3, 2, 2)
    OURS.conv2d(x, weight, None, [1, 1], [0, 0], [1, 1], 1)
    seen = [weakref.ref(x), weakref.ref(weight)]
    del x, weight
    gc.collect()
    assert [ref() for ref in seen] == [None, None]


def test_what_is_left_out_stays_what_it_is(runs: list[Any]) -> None:
    """The tensor of ones in place of a weight was made for the first call."""
    x = torch.arange(15.0).reshape(3, 5)
    first = OURS.layer_norm(x, [5], None, None, 1e-5)
    gc.collect()
    rest = [torch.full((5,), torch.nan) for _ in range(64)]
    assert torch.equal(OURS.layer_norm(x.clone(), [5], None, None, 1e-5), first)
    assert len(runs) == 1
    assert rest[0].isnan().all()


def test_any_kernel_is_learnt(runs: list[Any]) -> None:
    gated = tilewright.torch.operator(gated_silu("f32"), "of_test_learnt")
    given = [torch.ones(3, 5), torch.ones(3, 5)]
    assert_learnt(gated, given, [changed(given, n) for n in (1, 2)], runs)


def test_a_call_that_is_not_learnt_is_made_all_the_same(runs: list[Any]) -> None:
    empty = torch.ones(0, 4)
    for _ in range(2):
        assert OURS.linear(empty, torch.ones(3, 4)).shape == (0, 3)
    nothing = torch.ones(2, 0)
    for _ in range(2):
        assert (OURS.linear(nothing, torch.ones(3, 0), torch.ones(3)) == 1).all()
