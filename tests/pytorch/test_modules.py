"""Modules beside torch's: the same parameters, state and results; and models whose modules are swapped."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import tilewright.torch
from tilewright.errors import ArgumentError
from tilewright.torch import packed

OURS = tilewright.torch.nn

MODULES: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = {
    "Linear": ((5, 7), {}, (2, 3, 5)),
    "Conv1d": ((4, 6, 3), {"stride": 2, "padding": 1, "groups": 2}, (2, 4, 9)),
    "Conv2d": ((4, 6, (3, 2)), {"padding": "same", "padding_mode": "reflect", "bias": False}, (2, 4, 7, 6)),
    "Conv3d": ((4, 6, 2), {"dilation": 2}, (2, 4, 5, 6, 4)),
    "MaxPool1d": ((3,), {"stride": 2, "padding": 1}, (2, 4, 9)),
    "MaxPool2d": (((3, 2),), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}, (2, 4, 7, 6)),
    "MaxPool3d": ((2,), {}, (4, 5, 6, 4)),
    "AdaptiveAvgPool1d": ((1,), {}, (2, 4, 9)),
    "AdaptiveAvgPool2d": (((1, 1),), {}, (2, 4, 7, 6)),
    "AdaptiveAvgPool3d": ((1,), {}, (4, 5, 6, 4)),
    "LayerNorm": (((3, 5),), {}, (2, 3, 5)),
    "RMSNorm": ((5,), {"eps": 1e-6}, (2, 3, 5)),
    "GroupNorm": ((2, 4), {}, (2, 4, 3, 5)),
    "Softmax": ((1,), {}, (2, 4, 3)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_torchs_state_and_results(name: str) -> None:
    torch.manual_seed(0)
    args, options, shape = MODULES[name]
    theirs, ours = getattr(nn, name)(*args, **options), getattr(OURS, name)(*args, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    assert repr(ours) == repr(theirs)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(shape)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
    back = getattr(nn, name)(*args, **options)
    back.load_state_dict(ours.state_dict())
    assert torch.equal(back(x), theirs(x))
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(again(x), ours(x))
    torch.testing.assert_close(ours.double()(x.double()), theirs.double()(x.double()))


def test_a_module_trains_as_torchs_does() -> None:
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 3, 2))
    ours = tilewright.torch.replace(theirs).model
    assert [type(m).__module__ for m in ours][::3] == ["tilewright.torch.nn"] * 2
    x, goal = torch.randn(5, 3, 6, 5), torch.randn(5, 2)
    for model in (theirs, ours):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            (model(x) - goal).square().mean().backward()
            optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_weights_are_packed_once_while_no_gradient_can_be_asked_for() -> None:
    layer, x = OURS.Linear(5, 4), torch.ones(3, 5)
    layer(x)
    assert layer.weight not in packed._LAYERS
    with torch.no_grad():
        layer(x)
        (kept,) = packed._LAYERS[layer.weight].values()
        layer(x)
        assert list(packed._LAYERS[layer.weight].values()) == [kept]
        layer.weight.zero_()
        assert torch.equal(layer(x), layer.bias.expand(3, 4))


def test_an_unknown_activation_is_named() -> None:
    with pytest.raises(ArgumentError, match="activation='tanh': there are relu, gelu"):
        OURS.Linear(3, 2, activation="tanh")


# -- replace ----------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + x)


class Network(nn.Module):
    """Small, with what ResNets have: a stem, blocks with a residual, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.SiLU())
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.norm, self.pool, self.head = nn.GroupNorm(2, 8), nn.AdaptiveAvgPool2d(1), nn.Linear(8, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.pool(self.norm(self.blocks(self.stem(x)))).flatten(1)).softmax(-1)


class Branching(Network):
    """torch.fx cannot follow it: what it does depends on values."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) if x.sum() > -1e9 else x


def network(kind: type[nn.Module] = Network) -> Any:
    torch.manual_seed(0)
    model = kind()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.weight, module.bias):
                nn.init.normal_(tensor)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return model.eval()


X = torch.linspace(-1, 1, 2 * 3 * 17 * 19).view(2, 3, 17, 19)


def test_a_model_in_eval_mode_is_swapped_folded_and_fused() -> None:
    model = network()
    with torch.no_grad():
        expected = model(X)
        report = tilewright.torch.replace(model)
        torch.testing.assert_close(report.model(X), expected)
        assert torch.equal(model(X), expected)  # the given model is as it was
    assert set(report.swapped) == {
        *("stem.0", "blocks.0.conv1", "blocks.0.conv2", "blocks.1.conv1", "blocks.1.conv2"),
        *("norm", "pool", "head"),
    }
    assert report.folded == {
        "stem.1": "stem.0",
        **{f"blocks.{n}.bn{k}": f"blocks.{n}.conv{k}" for n in (0, 1) for k in (1, 2)},
    }
    of_blocks = [
        {f"blocks.{n}.relu": f"blocks.{n}.conv1", f"blocks.{n}.add, relu_1": f"blocks.{n}.conv2"} for n in (0, 1)
    ]
    assert report.fused == {"stem.2": "stem.0", **of_blocks[0], **of_blocks[1]}
    assert report.kept == {}
    assert "8 swapped, 5 folded, 5 fused, 0 kept" in str(report)


@pytest.mark.filterwarnings("ignore")  # of compilers
def test_a_swapped_model_is_one_graph_and_keeps_channels_last() -> None:
    model = network()
    swapped = tilewright.torch.replace(model).model.to(memory_format=torch.channels_last)
    x = X.to(memory_format=torch.channels_last)
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(swapped, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), model(X))
        assert swapped.norm(swapped.blocks(swapped.stem(x))).is_contiguous(memory_format=torch.channels_last)


def test_a_model_that_torch_fx_cannot_follow_is_folded_within_its_parts_only() -> None:
    model = network(Branching)
    report = tilewright.torch.replace(model)
    with torch.no_grad():
        torch.testing.assert_close(report.model(X), model(X))
    assert "stem.1" not in report.folded  # the model's code may call the children of a Sequential one by one
    assert report.kept["stem.1"].startswith("torch.fx cannot follow the model (TraceError")
    assert len(report.folded) == 4


def test_a_training_model_keeps_what_cannot_be_folded() -> None:
    report = tilewright.torch.replace(network().train())
    assert not report.folded
    assert report.swapped["norm"].startswith("GroupNorm(")
    assert report.kept["stem.1"] == "a batch norm is folded in eval mode only: call model.eval() first"
    report.model(X).sum().backward()


class Shared(nn.Module):
    """A convolution that is called twice, once before a batch norm; and one whose result is returned too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.seen, self.bn2 = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.last, self.act = nn.Linear(19, 4), nn.GELU(approximate="tanh")

    def forward(self, x: Any) -> Any:
        between = self.seen(self.bn(self.conv(self.conv(x))))
        return self.act(self.last(self.bn2(between))), between


def test_what_others_see_is_not_folded() -> None:
    model = Shared().eval()
    nn.init.normal_(model.bn.running_mean)
    nn.init.normal_(model.bn2.running_mean)
    report = tilewright.torch.replace(model)
    assert report.folded == {}
    assert report.fused == {"act": "last"}
    with torch.no_grad():
        torch.testing.assert_close(report.model(X), model(X))


def test_tied_weights_stay_tied_and_unfolded() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)).eval()
    model[2].weight = model[0].weight
    report = tilewright.torch.replace(model)
    assert report.folded == {}
    assert report.model[0].weight is report.model[2].weight


def test_classes_of_their_own_and_other_types_are_kept_with_a_reason() -> None:
    class Mine(nn.Linear):
        pass

    complex_layer = nn.Linear(2, 2, dtype=torch.complex64)
    report = tilewright.torch.replace(nn.ModuleDict({"mine": Mine(2, 2), "complex": complex_layer}))
    assert report.kept == {
        "mine": "Mine is a class of its own; torch.nn.Linear itself is swapped",
        "complex": "weight holds torch.complex64; operators take f16, bf16, f32 and f64",
    }


def test_parts_that_torch_itself_would_pass_by_are_kept() -> None:
    """They were said to be swapped, and torch's own path computed them in eval mode."""
    report = tilewright.torch.replace(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval())
    assert not report.swapped
    assert report.kept["linear1"].startswith("TransformerEncoderLayer, which it is part of, takes its weights itself")


def test_a_model_that_is_one_module_is_swapped_and_hooks_stay() -> None:
    layer = nn.Linear(3, 2)
    seen = []
    layer.register_forward_hook(lambda *_: seen.append(1))
    report = tilewright.torch.replace(layer, inplace=True)
    assert type(report.model) is OURS.Linear
    assert report.model.weight is layer.weight
    report.model(torch.ones(1, 3))
    assert seen == [1]
    with pytest.raises(ArgumentError, match=r"model=3: a torch\.nn\.Module"):
        tilewright.torch.replace(3)
