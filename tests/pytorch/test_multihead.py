"""The module MultiheadAttention beside torch's: the same state and results, and what `replace` says of it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import tilewright.torch
from tilewright.errors import ArgumentError

OURS = tilewright.torch.nn


def pair(*args: Any, **options: Any) -> tuple[Any, Any]:
    """torch's module and this one, with the same parameters, none of them zero."""
    torch.manual_seed(0)
    theirs, ours = (make(*args, **options).eval() for make in (nn.MultiheadAttention, OURS.MultiheadAttention))
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def compare(theirs: Any, ours: Any, *given: Any, **options: Any) -> None:
    with torch.no_grad():
        for mine, other in zip(ours(*given, **options), theirs(*given, **options), strict=True):
            if other is None:
                assert mine is None
                continue
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
            assert mine.shape == other.shape


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True},
        {"bias": False, "kdim": 5, "vdim": 7},
        {"add_bias_kv": True, "batch_first": True},
        {"add_zero_attn": True},
    ],
    ids=str,
)
def test_results_are_torchs(options: dict[str, Any], need_weights: bool) -> None:
    theirs, ours = pair(12, 3, **options)
    n, m, s = 2, 4, 6
    q, k, v = torch.randn(m, n, 12), torch.randn(s, n, options.get("kdim", 12)), torch.randn(s, n, theirs.vdim)
    padding = torch.zeros(n, s, dtype=torch.bool)
    padding[0, 4:] = True
    hidden, added = torch.ones(m, s).triu(2).bool(), torch.randn(n * 3, m, s)
    for mask, padded in ((None, None), (hidden, None), (added, None), (hidden, padding), (None, padding)):
        given = [t.transpose(0, 1) for t in (q, k, v)] if options.get("batch_first") else (q, k, v)
        compare(theirs, ours, *given, attn_mask=mask, key_padding_mask=padded, need_weights=need_weights)
    compare(
        theirs, ours, q, k, v, need_weights=need_weights, average_attn_weights=False
    ) if not theirs.batch_first else None
    compare(theirs, ours, q[:, 0], k[:, 0], v[:, 0], attn_mask=added[:3], need_weights=need_weights)


def test_one_tensor_for_all_three_and_a_causal_mask_are_taken() -> None:
    theirs, ours = pair(12, 3, batch_first=True)
    x = torch.randn(2, 5, 12)
    compare(theirs, ours, x, x, x)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    compare(theirs, ours, x, x, x, attn_mask=causal, is_causal=True, need_weights=False)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert ours(x, x, x, attn_mask=causal, need_weights=False)[0].dtype is torch.bfloat16


def test_dropout_of_weights_is_torchs() -> None:
    theirs, ours = (m.train() for m in pair(12, 3, dropout=0.4))
    x, y = torch.randn(4, 2, 12), torch.randn(6, 2, 12)
    with torch.no_grad():
        torch.manual_seed(3)
        mine = ours(x, y, y)
        torch.manual_seed(3)
        other = theirs(x, y, y)
    for each, expected in zip(mine, other, strict=True):
        torch.testing.assert_close(each, expected, rtol=1e-5, atol=1e-5)


def test_weights_that_are_written_in_place_are_seen() -> None:
    theirs, ours = pair(8, 2)
    x = torch.randn(3, 1, 8)
    for _ in range(3):
        compare(theirs, ours, x, x, x)
        with torch.no_grad():
            for module in (theirs, ours):
                module.in_proj_weight.mul_(1.5)
                module.out_proj.weight.add_(0.25)


def test_state_copies_and_text_are_torchs() -> None:
    theirs, ours = pair(8, 2, batch_first=True)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert theirs.load_state_dict(ours.state_dict()).missing_keys == []
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert torch.equal(again(x, x, x)[0], ours(x, x, x)[0])


@pytest.mark.filterwarnings("ignore")  # of compilers
def test_it_is_one_graph() -> None:
    theirs, ours = pair(8, 2, batch_first=True)
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, x, x, need_weights=False)[0], theirs(x, x, x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("options", [{}, {"kdim": 5, "vdim": 7, "add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_gradients_of_inputs_and_parameters_are_torchs(options: dict[str, Any], need_weights: bool) -> None:
    results = []
    for module in pair(12, 3, **options):
        torch.manual_seed(1)
        shapes = ((4, 2, 12), (6, 2, module.kdim), (6, 2, module.vdim))
        given = [torch.randn(*s, requires_grad=True) for s in shapes]
        mask = torch.ones(4, 6).triu(3).bool()
        output, weights = module.train()(*given, attn_mask=mask, need_weights=need_weights)
        loss = output.square().sum() + (0 if weights is None else weights.square().sum())
        results.append(torch.autograd.grad(loss, [*given, *module.parameters()]))
    for expected, gradient in zip(*results, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)


def test_a_query_without_a_visible_key_makes_no_gradient_nan() -> None:
    """Its weights were NaN: they passed through the product with zeros to all keys and values."""
    _, ours = pair(8, 2)
    x = torch.randn(3, 1, 8, requires_grad=True)
    hidden = torch.zeros(3, 3, dtype=torch.bool)
    hidden[1] = True
    for need_weights in (True, False):
        loss = ours(x, x, x, attn_mask=hidden, need_weights=need_weights)[0].square().sum()
        for gradient in torch.autograd.grad(loss, [x, *ours.parameters()]):
            assert gradient.isfinite().all()


def test_wrong_arguments_are_named() -> None:
    _, ours = pair(8, 2, batch_first=True)
    x = torch.randn(2, 3, 8)
    with pytest.raises(ArgumentError, match="value is of type NoneType; it must be a tensor of torch"):
        ours(x, x, None)
    with pytest.raises(ArgumentError, match="key has 2 dimensions; all have 3, or 2 without a batch"):
        ours(x, x[0], x)
    with pytest.raises(ArgumentError, match=r"attn_mask has shape \(3, 4\); it must be \(3, 3\) or \(4, 3, 3\)"):
        ours(x, x, x, attn_mask=torch.zeros(3, 4))
    with pytest.raises(ArgumentError, match=r"key_padding_mask has shape \(3,\); it must be \(2, 3\)"):
        ours(x, x, x, key_padding_mask=torch.zeros(3))
    with pytest.raises(ArgumentError, match=r"attn_mask holds torch\.int64; it must hold bool or floats"):
        ours(x, x, x, attn_mask=torch.zeros(3, 3, dtype=torch.int64))
    with pytest.raises(ArgumentError, match="is_causal=True says what attn_mask is"):
        ours(x, x, x, is_causal=True)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        return x + self.attention(y, y, y, need_weights=False)[0]


def test_models_have_it_swapped() -> None:
    model, x = Encoder().eval(), torch.randn(2, 5, 8)
    report = tilewright.torch.replace(model)
    assert list(report.swapped) == ["norm", "attention"]
    assert report.swapped["attention"] == "MultiheadAttention(embed_dim=8, num_heads=2, batch_first=True)"
    assert report.kept == {}
    assert type(report.model.attention) is OURS.MultiheadAttention
    with torch.no_grad():
        torch.testing.assert_close(report.model(x), model(x), rtol=1e-5, atol=1e-5)
    assert list(tilewright.torch.replace(model.train()).swapped) == ["norm", "attention"]
