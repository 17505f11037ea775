"""Operators and replaced models on a GPU: streams, CUDA graphs, modes without gradients, devices that differ.

Run by `python -m pytest -m gpu tests/pytorch/test_on_a_gpu.py` where torch sees a Hopper GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import tilewright.torch
from tilewright.errors import ArgumentError, TargetError
from tilewright.torch import functional

F = torch.nn.functional
LONG = 400_000_000
"""Cycles for which a stream is kept busy: some tenths of a second."""

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]


def numbers(*shape: int, kind: Any = torch.bfloat16) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).to("cuda", kind)


class Block(nn.Module):
    """Two convolutions with a residual, and a product; small integers, so that results are exact."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1)
        self.relu, self.linear = nn.ReLU(inplace=True), nn.Linear(16, 24)
        for parameter in self.parameters():
            parameter.data.copy_(torch.randint(-1, 2, parameter.shape))

    def forward(self, x: Any) -> Any:
        out = self.conv2(self.relu(self.conv1(x)))
        out += x
        return self.linear(self.relu(out).mean((2, 3)))


def block(kind: Any = torch.float32) -> tuple[Any, Any, Any]:
    """(a model, the same with its modules swapped, an argument)."""
    torch.manual_seed(0)
    model = Block().eval().to("cuda", kind, memory_format=torch.channels_last)
    report = tilewright.torch.replace(model)
    assert report.fused == {"relu": "conv1", "iadd, relu_1": "conv2"}
    x = numbers(3, 16, 8, 8, kind=kind).to(memory_format=torch.channels_last)
    return model, report.model, x


def assert_near(result: Any, expected: Any) -> None:
    """Results differ by the rounding of what is between modules, beside the largest of them."""
    share = 2e-2 if expected.dtype is torch.bfloat16 else 1e-5
    assert (result - expected).abs().max() <= share * expected.abs().max()


CALLS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[tuple[int, ...], ...]]] = {
    "linear": (lambda x, w, b, r: functional.linear(x, w, b, residual=r), (72, 64), ((40, 64), (40,), (72, 40))),
    "matmul": (functional.matmul, (72, 64), ((64, 40),)),
    "deep matmul": (functional.matmul, (64, 16384), ((16384, 64),)),  # parts of sums in a workspace
    "conv2d": (partial(functional.conv2d, padding=1, activation="relu"), (2, 16, 9, 7), ((24, 16, 3, 3), (24,))),
    "kept conv2d": (partial(functional.conv2d, padding=1, keep_packed=True), (2, 16, 9, 7), ((24, 16, 3, 3), (24,))),
    "max_pool2d": (lambda x: functional.max_pool2d(x, 3, 2, 1), (2, 16, 9, 7), ()),
    "adaptive_avg_pool2d": (lambda x: functional.adaptive_avg_pool2d(x, 1), (2, 16, 9, 7), ()),
    "layer_norm": (lambda x: functional.layer_norm(x, (64,)), (72, 64), ()),
    "softmax": (lambda x: functional.softmax(x, -1), (72, 64), ()),
    "attention": (lambda x: functional.scaled_dot_product_attention(x, x, x), (2, 3, 128, 64), ()),
}
"""Functions; the shapes of their first argument, and of the others."""


def call_of(name: str) -> tuple[Callable[[Any], Any], Any]:
    """(A function of one tensor, such a tensor). What else it takes is on the device: copies from the host wait."""
    function, shape, others = CALLS[name]
    tensors = [numbers(*other) for other in others]
    return lambda x: function(x, *tensors), numbers(*shape)


def late(x: Any) -> Any:
    """A tensor that gets x's values after the current stream was busy for a while."""
    goal = torch.zeros_like(x)
    torch.cuda._sleep(LONG)
    goal.copy_(x)
    return goal


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_runs_on_the_current_stream(name: str) -> None:
    call, x = call_of(name)
    expected = call(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for _ in range(2):  # the second call is like the first one
        with torch.cuda.stream(stream):
            result = call(late(x))
        stream.synchronize()
        assert torch.equal(result, expected)


@pytest.mark.parametrize("name", CALLS)
def test_two_streams_do_not_wait_for_each_other(name: str) -> None:
    call, x = call_of(name)
    expected, of_more = call(x), call(x + 1)
    torch.cuda.synchronize()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    for stream in (first, second):  # memory for each of them: torch waits for the GPU where it asks for more
        with torch.cuda.stream(stream):
            call(x + 1), torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        result = call(late(x))
        done = torch.cuda.Event()
        done.record()
    with torch.cuda.stream(second):
        other = call(x + 1)
    second.synchronize()
    assert not done.query()
    assert torch.equal(other, of_more)
    first.synchronize()
    assert torch.equal(result, expected)


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_is_captured_in_a_cuda_graph(name: str) -> None:
    """It asked the driver for a workspace, and its bias went through the host: neither can be in a graph."""
    call, x = call_of(name)
    more = x + 1
    expected, of_more = call(x), call(more)
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    results = []
    for graph in graphs:
        with torch.cuda.graph(graph):
            results.append(call(x) + call(x))
    del graph
    for n in range(3):
        x.copy_(more if n else x)
        wanted = call(x)  # a call between replays has a workspace of its own
        graphs[-1].replay()
        assert torch.equal(results[-1], wanted + wanted)
        if n == 1:
            assert torch.equal(wanted, of_more)
            graphs.pop(0), results.pop(0)  # the memory of a graph that is gone is nobody else's
            torch.cuda.empty_cache()
        elif not n:
            assert torch.equal(wanted, expected)


def test_weights_that_are_not_packed_yet_are_refused_in_a_graph() -> None:
    x, weight = numbers(72, 64), numbers(40, 64)
    graph, expected = torch.cuda.CUDAGraph(), functional.linear(x, weight)
    with torch.cuda.graph(graph):
        with pytest.raises(TargetError, match="make the same call once before the capture"):
            functional.linear(x, weight, keep_packed=True)
        result = functional.linear(x, weight)
    graph.replay()
    assert torch.equal(result, expected)


def test_weights_that_a_graph_reads_stay_when_others_take_their_place() -> None:
    """Packed weights were freed when the tensor was written to, and replays read what lay there next."""
    x, weight = numbers(2, 16, 9, 7), numbers(24, 16, 3, 3)
    call = partial(functional.conv2d, weight=weight, padding=1, keep_packed=True)
    expected = call(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(x)
    weight.add_(1)
    changed = call(x)
    assert not torch.equal(changed, expected)
    rest = [torch.full((1 << 16,), torch.nan, device="cuda") for _ in range(64)]
    graph.replay()
    assert torch.equal(result, expected) or torch.equal(result, changed)
    assert rest[0].isnan().all()


def test_weights_of_a_graph_that_is_gone_are_freed_while_the_next_one_is_captured() -> None:
    """The driver ended the capture in which memory was given back."""
    for _ in range(4):
        x, weight = numbers(2, 16, 9, 7), numbers(24, 16, 3, 3)
        expected = functional.conv2d(x, weight, padding=1, keep_packed=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = functional.conv2d(x, weight, padding=1, keep_packed=True)
        graph.replay()
        assert torch.equal(result, expected)
        torch.cuda.synchronize()
        del graph, result, weight


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_is_captured_in_a_cuda_graph(kind: Any) -> None:
    model, swapped, x = block(kind)
    with torch.no_grad():
        expected, of_more = swapped(x), swapped(x + 1)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                swapped(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = swapped(x)
        graph.replay()
        assert torch.equal(result, expected)
        x.add_(1)
        graph.replay()
        assert torch.equal(result, of_more)
        assert_near(result, model(x))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_modes_without_gradients_give_the_same(kind: Any) -> None:
    model, swapped, x = block(kind)
    expected = swapped(x).detach()
    assert_near(expected, model(x).detach())
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            for _ in range(2):
                result = swapped(x)
                assert torch.equal(result, expected)
                assert not result.requires_grad
    with torch.inference_mode():  # of inference tensors torch counts no writes: they are packed for each call
        weight, rows = numbers(40, 64), numbers(72, 64)
        for _ in range(2):
            assert torch.equal(functional.linear(rows, weight, keep_packed=True), F.linear(rows, weight))
            weight.add_(1)


def test_a_write_to_weights_is_seen() -> None:
    layer, x = tilewright.torch.nn.Linear(64, 40, device="cuda", dtype=torch.bfloat16), numbers(72, 64)
    with torch.no_grad():
        for value in (0, 1, 2):
            layer.weight.fill_(value)
            layer.bias.fill_(1)
            for _ in range(2):
                assert_near(layer(x), F.linear(x, layer.weight, layer.bias))


@pytest.mark.filterwarnings("ignore")  # of compilers
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_replaced_model_is_one_graph(mode: str, kind: Any) -> None:
    _, swapped, x = block(kind)
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(swapped, fullgraph=True, mode=mode)
        for n in range(4):
            assert_near(compiled(x + n).clone(), swapped(x + n))


def test_tensors_of_two_devices_are_named() -> None:
    with pytest.raises(ArgumentError, match=r"x lies on the device cuda:0, weight on cpu: move one"):
        functional.linear(numbers(3, 8), torch.ones(4, 8))
    with pytest.raises(ArgumentError, match=r"x lies on the device cpu, residual on cuda:0: move one"):
        functional.linear(torch.ones(3, 8), torch.ones(4, 8), residual=numbers(3, 4, kind=torch.float32))
    with pytest.raises(ArgumentError, match=r"x lies on the device cuda:0, weight on cpu: move one"):
        tilewright.torch.nn.Conv2d(4, 6, 3)(numbers(1, 4, 5, 5, kind=torch.float32))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch sees one GPU")
def test_an_operator_runs_where_its_tensors_lie() -> None:
    x, weight = numbers(72, 64), numbers(40, 64)
    expected = functional.linear(x, weight)
    result = functional.linear(x.to("cuda:1"), weight.to("cuda:1"))
    assert result.device == torch.device("cuda:1")
    assert torch.equal(result.to(x.device), expected)
