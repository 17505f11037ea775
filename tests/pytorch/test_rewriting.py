"""Code of modules that `replace` rewrites: sums and activations go into the kernel before, where that is the same."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional

import tilewright.torch


def numbers(*shape: int) -> Any:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(sum(shape))).float()


class Given(nn.Module):
    """Modules of small integers, and code that is given."""

    def __init__(self, code: Callable[[Any, Any], Any]):
        super().__init__()
        self.code = code
        self.conv, self.conv2 = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.linear, self.relu = nn.Linear(5, 5), nn.ReLU(inplace=True)
        for parameter in self.parameters():
            parameter.data.copy_(numbers(*parameter.shape))

    def forward(self, x: Any) -> Any:
        return self.code(self, x)


def replaced(code: Callable[[Any, Any], Any]) -> Any:
    """The report on a module with this code, which gives the same results as before."""
    model = Given(code).eval()
    report = tilewright.torch.replace(model)
    with torch.no_grad():
        for n in (2, 3):
            x = numbers(n, 4, 6, 5)
            assert torch.equal(report.model(x.clone()), model(x.clone()))
    return report


def twice_with_one_relu(self: Any, x: Any) -> Any:
    out = self.relu(self.conv(x))
    out = self.conv2(out)
    out += x
    return self.relu(out)


def with_functions(self: Any, x: Any) -> Any:
    return functional.silu(x * 0 + self.linear(functional.relu(self.conv2(x)).add(x)).relu_())


def a_sum_of_two_convolutions(self: Any, x: Any) -> Any:
    return torch.add(self.conv(x), self.conv2(x))


def called_twice(self: Any, x: Any) -> Any:
    return self.conv(self.conv(x).relu()) + x


def smaller_residual(self: Any, x: Any) -> Any:
    return functional.relu(self.conv(x) + x[:, :1, :1])


def a_number(self: Any, x: Any) -> Any:
    return self.conv(x) + x.shape[0]


FUSED = {
    twice_with_one_relu: {"relu": "conv", "iadd, relu_1": "conv2"},
    with_functions: {"relu": "conv2", "relu_": "linear"},  # a sum that comes after an activation stays
    a_sum_of_two_convolutions: {"add": "conv2"},
    called_twice: {"relu": "conv", "add": "conv"},
    smaller_residual: {"add, relu": "conv"},
    a_number: {"add": "conv"},
}


@pytest.mark.parametrize("code", FUSED, ids=lambda code: code.__name__)
def test_sums_and_activations_are_fused(code: Callable[[Any, Any], Any]) -> None:
    """They stayed where an activation was a function or was called twice, and where a residual was added."""
    assert replaced(code).fused == FUSED[code]


def others_see_the_result(self: Any, x: Any) -> Any:
    out = self.conv(x)
    return functional.relu(out) + out


def others_see_what_is_written(self: Any, x: Any) -> Any:
    seen = x
    x += self.conv(x)
    return x * seen


def written_between(self: Any, x: Any) -> Any:
    y = x + 1
    out = self.conv(y)
    y.mul_(2)
    return out + y


def scaled(self: Any, x: Any) -> Any:
    return torch.add(self.conv(x), x, alpha=2)


def the_same_twice(self: Any, x: Any) -> Any:
    out = self.conv(x)
    return out + out


@pytest.mark.parametrize(
    "code", [others_see_the_result, others_see_what_is_written, written_between, scaled, the_same_twice]
)
def test_what_would_differ_is_not_fused(code: Callable[[Any, Any], Any]) -> None:
    assert replaced(code).fused == {}


def asks_for_types(self: Any, x: Any) -> Any:
    return self.conv(x) + x if isinstance(x, torch.Tensor) else self.conv(x[0])


class Asking(Given):
    def forward(self, x: Any) -> Any:
        return asks_for_types(self, x) if isinstance(x, torch.Tensor) else x


class Optional(Given):
    def forward(self, x: Any, mask: Any = None) -> Any:
        out = self.conv(x) + x
        return out if mask is None else out * mask


class Keeping(Given):
    def forward(self, x: Any) -> Any:
        self.last = self.conv(x) + x
        return self.last


class Noisy(Given):
    def forward(self, x: Any) -> Any:
        return self.conv(x) + x + torch.rand(1)


@pytest.mark.parametrize("kind", [Asking, Optional, Keeping, Noisy])
def test_code_that_torch_fx_would_not_follow_in_all_is_left_alone(kind: type[Given]) -> None:
    model = kind(a_number).eval()
    report = tilewright.torch.replace(model)
    assert (report.fused, type(report.model)) == ({}, kind)
    assert not isinstance(getattr(report.model, "last", None), torch.fx.Proxy)


def test_hooks_and_training_keep_the_code() -> None:
    hooked = Given(twice_with_one_relu).eval()
    hooked.register_forward_hook(lambda *_: None)
    assert tilewright.torch.replace(hooked).fused == {}
    assert tilewright.torch.replace(Given(twice_with_one_relu)).fused == {}
    part = Given(twice_with_one_relu).eval()
    part.conv2.register_forward_hook(lambda *_: None)
    assert tilewright.torch.replace(part).fused == {"relu": "conv"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.width, self.unused = nn.Linear(5, 5), 5, nn.Parameter(torch.ones(2))

    def forward(self, x: Any) -> Any:
        return x + self.inner(x)


def test_a_rewritten_module_keeps_state_attributes_and_copies() -> None:
    model = nn.Sequential(Block(), Block()).eval()
    report = tilewright.torch.replace(model)
    assert report.fused == {"0.add": "0.inner", "1.add": "1.inner"}
    assert list(report.model.state_dict()) == list(model.state_dict())
    assert (type(report.model), report.model[0].width) == (nn.Sequential, 5)
    x = numbers(3, 5)
    with torch.no_grad():
        expected = model(x)
        for each in (report.model, copy.deepcopy(report.model), pickle.loads(pickle.dumps(report.model))):
            torch.testing.assert_close(each(x), expected)
        again = tilewright.torch.replace(report.model)
        assert again.swapped == {}
        torch.testing.assert_close(again.model(x), expected)
        report.model[0].inner.weight.zero_()
        torch.testing.assert_close(report.model[0](x), x + report.model[0].inner.bias)


@pytest.mark.filterwarnings("ignore")  # of compilers
def test_a_rewritten_model_is_one_graph() -> None:
    model = nn.Sequential(Block(), Block()).eval()
    swapped = tilewright.torch.replace(model).model
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(swapped, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(numbers(3, 5)), model(numbers(3, 5)))


class Residual(nn.Module):
    """A convolution whose result is added to its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: Any) -> Any:
        """[n, 8, h, w] to the same."""
        return self.conv(x) + x


@pytest.mark.filterwarnings("ignore")  # of compilers
def test_inductor_writes_no_text_of_an_operator_behind_many_residuals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text has each argument with all that it is computed from: its length doubles with every residual."""
    from torch._inductor import config, exc

    written = []
    monkeypatch.setattr(exc.OperatorIssue, "operator_str", lambda *given: written.append(given[0]))
    torch._dynamo.reset()
    model = nn.Sequential(*(Residual() for _ in range(3)), nn.AdaptiveAvgPool2d(1)).eval()
    x = numbers(2, 8, 5, 3).to(memory_format=torch.channels_last)
    replaced = tilewright.torch.replace(model).model
    with config.patch(force_disable_caches=True), torch.no_grad():
        given = torch.compile(replaced, fullgraph=True, backend="inductor")(x)
        assert torch.allclose(given, model(x), rtol=1e-4, atol=1e-5)
    assert written == []
