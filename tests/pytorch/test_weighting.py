"""Attention with dropout: what is dropped, how much, and what stays as it was."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tilewright.errors import ArgumentError
from tilewright.torch import functional

F = torch.nn.functional
OURS = torch.ops.tilewright
attend = functional.scaled_dot_product_attention


def tensors(kind: Any = torch.float32, keys: int = 9) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(*s).to(kind) for s in ((2, 3, 7, 8), (2, 3, keys, 8), (2, 3, keys, 5)))
    return q, k, v


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": True}], ids=str)
def test_the_same_seed_drops_what_torchs_function_drops(kind: Any, options: dict[str, Any]) -> None:
    given = tensors(kind)
    if "attn_mask" in options:
        mask = torch.rand(7, 9) > 0.5
        mask[3] = False
        options = {"attn_mask": mask}
    for seed in (1, 2):
        results = []
        for function in (attend, F.scaled_dot_product_attention):
            torch.manual_seed(seed)
            results.append(function(*given, dropout_p=0.4, **options))
        torch.testing.assert_close(*results, rtol=1e-2 if kind.itemsize == 2 else 1e-5, atol=1e-5)
        assert results[0].dtype is kind


def test_the_mask_of_a_seed_is_that_of_torchs_dropout() -> None:
    """Values that are unit vectors show the weights themselves."""
    q, k, _ = tensors(keys=9)
    unit = torch.eye(9).expand(2, 3, 9, 9)
    torch.manual_seed(5)
    dropped = attend(q, k, unit, dropout_p=0.25)
    torch.manual_seed(5)
    kept = F.dropout(torch.ones(2, 3, 7, 9), 0.25)
    weights = (q.double() @ k.double().mT / 8**0.5).softmax(-1)
    torch.testing.assert_close(dropped.double(), weights * kept.double(), rtol=1e-5, atol=1e-6)
    torch.manual_seed(6)
    assert not torch.equal(attend(q, k, unit, dropout_p=0.25), dropped)


def test_shares_and_means_are_those_of_the_probability() -> None:
    torch.manual_seed(0)
    n, p = 64, 0.3
    q, k, unit = torch.zeros(8, 4, n, 2), torch.zeros(8, 4, n, 2), torch.eye(n).expand(8, 4, n, n)
    weights = attend(q, k, unit, dropout_p=p) * n  # 1 each without dropout
    assert {round(w, 4) for w in weights.unique().tolist()} == {0.0, round(1 / (1 - p), 4)}
    count = weights.numel()
    assert abs((weights == 0).double().mean() - p) < 5 * (p * (1 - p) / count) ** 0.5
    assert abs(weights.double().mean() - 1) < 5 * (p / (1 - p) / count) ** 0.5


def test_no_dropout_is_the_operator_and_all_of_it_is_zeros() -> None:
    q, k, v = tensors()
    state = torch.get_rng_state()
    assert torch.equal(attend(q, k, v, dropout_p=0.0), OURS.attention(q, k, v, None, False, None))
    assert torch.equal(torch.get_rng_state(), state)
    assert not attend(q, k, v, dropout_p=1.0).any()


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_what_is_no_probability_is_named(p: float) -> None:
    with pytest.raises(ArgumentError, match=f"dropout_p={p}: a probability, from 0 to 1"):
        attend(*tensors(), dropout_p=p)


def test_wrong_tensors_are_named_as_without_dropout() -> None:
    q, k, v = tensors()
    for given in ((q, k.double(), v), (q, k[:, :, :, :5], v), (q, k, v[:, :, :4])):
        said = []
        for p in (0.0, 0.5):
            with pytest.raises(ArgumentError) as fault:
                attend(*given, dropout_p=p)
            said.append(str(fault.value))
        assert said[0] == said[1]


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": True}], ids=str)
def test_gradients_of_the_same_seed_are_torchs(options: dict[str, Any]) -> None:
    given = [t.requires_grad_() for t in tensors(torch.float64)]
    if "attn_mask" in options:
        mask = torch.rand(7, 9) > 0.5
        mask[3] = False
        options = {"attn_mask": mask}
    results = []
    for function in (attend, F.scaled_dot_product_attention):
        torch.manual_seed(1)
        results.append(torch.autograd.grad(function(*given, dropout_p=0.4, **options).square().sum(), given))
    for gradient, expected in zip(*results, strict=True):
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.filterwarnings("ignore")  # of compilers
def test_it_is_one_graph_that_drops_the_same(dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v: attend(q, k, v, dropout_p=0.5), fullgraph=True, dynamic=dynamic, backend="aot_eager"
    )
    for keys in (9, 11):
        given = tensors(keys=keys)
        with torch.no_grad():
            torch.manual_seed(4)
            made = compiled(*given)
            torch.manual_seed(4)
            assert torch.equal(made, attend(*given, dropout_p=0.5))
            assert not torch.equal(made, compiled(*given))


def test_vmap_drops_as_it_is_told() -> None:
    q, k, v = (t[:, :1].expand(2, 3, -1, -1) for t in tensors())
    call = lambda q, k, v: attend(q, k, v, dropout_p=0.5)  # noqa: E731
    same = torch.vmap(call, 1, 1, randomness="same")(q, k, v)
    assert torch.equal(same[:, 0], same[:, 1])
    other = torch.vmap(call, 1, 1, randomness="different")(q, k, v)
    assert not torch.equal(other[:, 0], other[:, 1])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(call, 1, 1)(q, k, v)


@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_autocast_lowers_tensors_and_leaves_masks(p: float, mask: str | None) -> None:
    """A mask was cast too, and refused."""
    q, k, v = tensors()
    added = {None: None, "bool": torch.rand(7, 9) > 0.3, "float": torch.randn(7, 9)}[mask]
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = attend(q, k, v, added, p)
    torch.manual_seed(1)
    assert torch.equal(made, attend(*(t.bfloat16() for t in (q, k, v)), added, p))


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_scores_of_nothing_are_zeros(p: float) -> None:
    """Queries without elements gave NaN: the inverse root of their number."""
    _, _, v = tensors()
    q, k = torch.ones(2, 3, 7, 0), torch.ones(2, 3, 9, 0)
    torch.manual_seed(1)
    made = attend(q, k, v, dropout_p=p)
    torch.manual_seed(1)
    torch.testing.assert_close(made, F.scaled_dot_product_attention(q, k, v, dropout_p=p))
