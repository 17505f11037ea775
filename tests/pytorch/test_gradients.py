"""Gradients of norms, softmax, means and attention beside torch's own, however they are asked for.

Products and convolutions are in test_operators, dropout in test_weighting, MultiheadAttention in test_multihead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from test_opcheck import LAYOUTS
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import tilewright.torch
from tilewright.errors import ArgumentError, BatchLoopWarning, MissingBackward
from tilewright.torch import functional

F = torch.nn.functional
OURS = torch.ops.tilewright


class Case(NamedTuple):
    """A call of a function of `functional`: the shapes of its tensors, None for one that is left out, and options."""

    name: str
    shapes: tuple[tuple[int, ...] | None, ...]
    before: tuple[Any, ...] = ()
    """Arguments after the first tensor, and before the others."""
    options: Mapping[str, Any] = MappingProxyType({})

    def call(self, module: Any, tensors: Any, **others: Any) -> Any:
        x, *rest = tensors
        return getattr(module, self.name)(x, *self.before, *rest, **self.options, **others)

    def tensors(self, kind: Any, seed: int = 0) -> list[Any]:
        generator = torch.Generator().manual_seed(seed)
        shapes = [shape for shape in self.shapes if shape is not None]
        made = iter([torch.randn(*s, generator=generator).to(kind).requires_grad_() for s in shapes])
        return [None if shape is None else next(made) for shape in self.shapes]


HEADS = ((2, 3, 7, 5), (2, 3, 9, 5), (2, 3, 9, 4))
MASK = torch.ones(7, 9).tril(1).bool() & (torch.arange(7)[:, None] != 3)
CASES = {
    "layer_norm": Case("layer_norm", ((3, 5, 7), (7,), (7,)), ((7,),)),
    "layer_norm of several dimensions": Case("layer_norm", ((3, 5, 7), (5, 7), (5, 7)), ((5, 7),), {"eps": 0.1}),
    "layer_norm without a weight": Case("layer_norm", ((9, 13), None, (13,)), ((13,),)),
    "layer_norm without a bias": Case("layer_norm", ((9, 13), (13,), None), ((13,),)),
    "layer_norm of one row": Case("layer_norm", ((13,), None, None), ((13,),)),
    "rms_norm": Case("rms_norm", ((3, 5, 7), (7,)), ((7,),), {"eps": 1e-5}),
    "rms_norm of several dimensions": Case("rms_norm", ((3, 5, 7), (5, 7)), ((5, 7),), {"eps": 0.1}),
    "rms_norm without a weight": Case("rms_norm", ((9, 13), None), ((13,),), {"eps": 1e-5}),
    "group_norm": Case("group_norm", ((3, 6, 5, 4), (6,), (6,)), (2,)),
    "group_norm of each channel": Case("group_norm", ((2, 3, 7), (3,), (3,)), (3,), {"eps": 0.1}),
    "group_norm without pixels": Case("group_norm", ((5, 8), (8,), None), (2,)),
    "group_norm without weights": Case("group_norm", ((2, 4, 3, 2, 3), None, None), (1,)),
    "softmax": Case("softmax", ((3, 5, 7),), (-1,)),
    "softmax along the first dimension": Case("softmax", ((3, 5, 7),), (0,)),
    "adaptive_avg_pool1d": Case("adaptive_avg_pool1d", ((3, 5, 7),), (1,)),
    "adaptive_avg_pool2d": Case("adaptive_avg_pool2d", ((2, 3, 5, 4),), (1,)),
    "adaptive_avg_pool3d": Case("adaptive_avg_pool3d", ((2, 3, 2, 3, 4),), (1,)),
    "attention": Case("scaled_dot_product_attention", HEADS),
    "causal attention": Case("scaled_dot_product_attention", HEADS, (), {"is_causal": True}),
    "causal attention of more queries": Case(
        "scaled_dot_product_attention", ((3, 9, 5), (3, 4, 5), (3, 4, 6)), (), {"is_causal": True, "scale": 0.3}
    ),
    "attention with a mask": Case("scaled_dot_product_attention", HEADS, (), {"attn_mask": MASK}),
    "attention of shared keys": Case(
        "scaled_dot_product_attention", ((2, 6, 7, 5), (2, 3, 9, 5), (2, 3, 9, 4)), (), {"enable_gqa": True}
    ),
    "attention of broadcast keys": Case("scaled_dot_product_attention", ((2, 3, 7, 5), (3, 9, 5), (1, 9, 4))),
}
ATTENTION = [name for name in CASES if "attention" in name]


def present(tensors: Any) -> list[Any]:
    return [t for t in tensors if t is not None]


def gradients(case: Case, module: Any, tensors: Any, **others: Any) -> tuple[Any, list[Any]]:
    """(result, gradients of all tensors), for a gradient of the result that a seed makes."""
    y = case.call(module, tensors, **others)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return y, list(torch.autograd.grad(y, present(tensors), dy))


def as_float64(tensors: Any) -> list[Any]:
    return [None if t is None else t.detach().double().requires_grad_() for t in tensors]


# -- values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_gradients_pass_gradcheck(name: str) -> None:
    case = CASES[name]
    tensors = case.tensors(torch.float64)

    def call(*given: Any) -> Any:
        rest = iter(given)
        return case.call(functional, [None if t is None else next(rest) for t in tensors])

    assert torch.autograd.gradcheck(call, present(tensors), fast_mode=True)


@pytest.mark.parametrize("name", ["softmax", "softmax along the first dimension", "adaptive_avg_pool2d"])
def test_gradients_of_softmax_and_means_have_gradients(name: str) -> None:
    case = CASES[name]
    assert torch.autograd.gradgradcheck(lambda x: case.call(functional, [x]), case.tensors(torch.float64))


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "empty"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_tensors_in_every_layout_are_torchs(name: str, layout: str) -> None:
    case = CASES[name]
    given = case.tensors(torch.float64)
    changed = [None if t is None else LAYOUTS[layout](t.detach()).requires_grad_() for t in given]
    _, expected = gradients(case, F, given)
    for _ in range(2):  # the second time repeats the launches of the first one
        for gradient, other in zip(gradients(case, functional, changed)[1], expected, strict=True):
            torch.testing.assert_close(gradient, other)


BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 0.04, torch.float16: 0.005}
"""Of the largest gradient. Results, weights of attention and gradients of its scores are rounded too."""


@pytest.mark.parametrize("kind", BOUNDS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_gradients_lie_within_bounds_of_float64(name: str, kind: Any) -> None:
    case = CASES[name]
    tensors = case.tensors(kind)
    _, expected = gradients(case, F, as_float64(tensors))
    for gradient, other in zip(gradients(case, functional, tensors)[1], expected, strict=True):
        assert gradient.dtype is kind
        assert (gradient.double() - other).abs().max() <= BOUNDS[kind] * max(1, other.abs().max())


@pytest.mark.parametrize("kind", BOUNDS, ids=str)
def test_sums_over_many_rows_are_rounded_once(kind: Any) -> None:
    """2049 is the first integer that f16 cannot count to one by one; in bf16 it is 257."""
    rows = 4099
    x, weight = torch.randn(rows, 6).to(kind), torch.ones(6, dtype=kind, requires_grad=True)
    bias = torch.zeros(6, dtype=kind, requires_grad=True)
    for y in (functional.layer_norm(x, (6,), weight, bias), functional.group_norm(x, 2, weight, bias)):
        (gradient,) = torch.autograd.grad(y, bias, torch.ones_like(y))
        assert torch.equal(gradient, torch.full((6,), rows).to(kind))


@pytest.mark.parametrize("name", CASES)
def test_one_expanded_gradient_for_all_elements_is_taken(name: str) -> None:
    case = CASES[name]
    results = []
    for module in (functional, F):
        tensors = case.tensors(torch.float64)
        (case.call(module, tensors) * 3).sum().backward()
        results.append([t.grad for t in present(tensors)])
    for gradient, other in zip(*results, strict=True):
        torch.testing.assert_close(gradient, other)


EMPTY = {
    "layer_norm": Case("layer_norm", ((0, 5), (5,), (5,)), ((5,),)),
    "rms_norm": Case("rms_norm", ((0, 5), (5,)), ((5,),), {"eps": 0.1}),
    "group_norm": Case("group_norm", ((0, 4, 3), (4,), (4,)), (2,)),
    "softmax": Case("softmax", ((3, 0, 5),), (1,)),
    "no images": Case("adaptive_avg_pool2d", ((0, 3, 4, 5),), (1,)),
    "no queries": Case("scaled_dot_product_attention", ((2, 3, 0, 5), (2, 3, 4, 5), (2, 3, 4, 6))),
    "no keys": Case("scaled_dot_product_attention", ((2, 3, 4, 5), (2, 3, 0, 5), (2, 3, 0, 6))),
    "no elements of queries": Case("scaled_dot_product_attention", ((2, 3, 4, 0), (2, 3, 5, 0), (2, 3, 5, 6))),
    "no elements of values": Case("scaled_dot_product_attention", ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 0))),
}


@pytest.mark.parametrize("name", EMPTY)
def test_gradients_of_empty_tensors_are_empty_or_zeros(name: str) -> None:
    tensors = EMPTY[name].tensors(torch.float32)
    y, of_tensors = gradients(EMPTY[name], functional, tensors)
    for number, (gradient, tensor) in enumerate(zip(of_tensors, present(tensors), strict=True)):
        assert gradient.shape == tensor.shape
        if name == "no elements of queries" and number == 2:  # each key has the same weight
            dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
            torch.testing.assert_close(gradient, dy.mean(2, keepdim=True).expand(tensor.shape) * 4 / 5)
        else:
            assert not gradient.any()


def test_gradients_of_channels_last_images_are_channels_last() -> None:
    x = torch.randn(2, 4, 5, 3).to(memory_format=torch.channels_last).requires_grad_()
    y = functional.group_norm(x, 2)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert gradient.is_contiguous(memory_format=torch.channels_last)


# -- masks of attention -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_queries_without_a_visible_key_have_no_gradient_and_leave_others_theirs(kind: str) -> None:
    """They were NaN, as those of all keys and values then: NaN times a gradient of 0."""
    mask = MASK if kind == "bool" else torch.zeros(7, 9).masked_fill(~MASK, float("-inf")).double()
    case = CASES["attention"]
    for dropout_p in (0.0, 1e-12):
        tensors = case.tensors(torch.float64)
        _, (dq, dk, dv) = gradients(case, functional, tensors, attn_mask=mask, dropout_p=dropout_p)
        _, expected = gradients(case, F, tensors, attn_mask=mask)
        assert not dq[:, :, 3].any()
        for gradient, other in zip((dq, dk, dv), expected, strict=True):
            torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("shape", [(7, 9), (3, 1, 9), (2, 1, 7, 9), (1,)])
def test_a_mask_has_a_gradient(shape: tuple[int, ...]) -> None:
    results = []
    for module in (functional, F):
        tensors = CASES["attention"].tensors(torch.float64)
        mask = torch.randn(*shape, generator=torch.Generator().manual_seed(2)).double().requires_grad_()
        y = module.scaled_dot_product_attention(*tensors, mask)
        results.append(torch.autograd.grad(y.square().sum(), [*tensors, mask]))
    for gradient, other in zip(*results, strict=True):
        torch.testing.assert_close(gradient, other)


def test_the_operator_names_the_function_that_has_a_gradient_of_the_bias() -> None:
    q, k, v = CASES["attention"].tensors(torch.float32)
    y = OURS.attention(q, k, v, torch.zeros(2, 3, 7, 9, requires_grad=True), False, None)
    with pytest.raises(
        MissingBackward, match=r"^torch\.ops\.tilewright\.attention has no gradient by its bias: [^\n]*$"
    ):
        y.sum().backward()


# -- what is asked for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].name not in ("softmax", "adaptive_avg_pool1d")])
def test_only_gradients_that_are_needed_are_computed(name: str) -> None:
    case = CASES[name]
    tensors = case.tensors(torch.float64)
    _, expected = gradients(case, functional, tensors)
    numbers = [n for n, t in enumerate(tensors) if t is not None]
    for n, other in zip(numbers, expected, strict=True):
        given = [t if t is None else t.detach().requires_grad_(m == n) for m, t in enumerate(tensors)]
        y = case.call(functional, given)
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
        (gradient,) = torch.autograd.grad(y, given[n], dy)
        assert torch.equal(gradient, other)


SECOND = {
    "layer_norm": "layer_norm_gradient",
    "rms_norm": "rms_norm_gradient",
    "group_norm": "group_norm_gradient",
    "attention": "attention_(sums|query_gradient|key_gradient)",
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_are_refused_in_one_line(name: str) -> None:
    tensors = present(CASES[name].tensors(torch.float64))
    first = torch.autograd.grad(CASES[name].call(functional, tensors).square().sum(), tensors, create_graph=True)
    message = rf"^torch\.ops\.tilewright\.{SECOND[name]} has no backward: [^\n]*$"
    with pytest.raises(MissingBackward, match=message):
        first[0].square().sum().backward()
    given = [t.detach() for t in tensors]
    with pytest.raises(MissingBackward, match=message):
        torch.func.jacrev(torch.func.grad(squared(CASES[name], functional)))(*given)


def test_a_write_to_a_saved_tensor_is_refused() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    y = functional.softmax(x, -1)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# -- what follows calls -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of compilers
@pytest.mark.parametrize("name", CASES)
def test_compile_makes_one_graph_of_forward_and_backward(name: str) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    case = CASES[name]
    compiled = torch.compile(
        lambda *tensors: case.call(functional, tensors), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for seed in (1, 2):
        tensors = case.tensors(torch.float64, seed)
        results = [
            torch.autograd.grad(y.square().sum(), present(tensors)) for y in (compiled(*tensors), case.call(F, tensors))
        ]
        for gradient, other in zip(*results, strict=True):
            torch.testing.assert_close(gradient, other)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.filterwarnings("ignore")  # of compilers
def test_inductor_trains_a_network() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    theirs = Transformer()
    ours = tilewright.torch.replace(theirs).model
    compiled = torch.compile(ours, fullgraph=True)
    x = torch.randn(2, 5, 8)
    for model, parameters in ((compiled, ours), (theirs, theirs)):
        model(x).square().sum().backward()
        assert all(p.grad is not None for p in parameters.parameters())
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)


GRADIENT_NODES = {
    "layer_norm": ["layer_norm", "layer_norm_gradient", "layer_norm_weight_gradient"],
    "rms_norm": ["rms_norm", "rms_norm_gradient", "rms_norm_weight_gradient"],
    "group_norm": ["group_norm", "group_norm_gradient", "group_norm_weight_gradient"],
    "softmax": ["softmax", "softmax_gradient"],
    "causal attention": ["attention", "attention_sums", "attention_query_gradient", "attention_key_gradient"],
}


@pytest.mark.parametrize("name", GRADIENT_NODES)
def test_a_traced_backward_keeps_one_node_of_each_operator(name: str) -> None:
    case = CASES[name]

    def differentiate(*tensors: Any) -> Any:
        return torch.autograd.grad(case.call(functional, tensors).sum(), tensors)

    tensors = case.tensors(torch.float32)
    graph = make_fx(differentiate)(*tensors)
    nodes = [str(n.target) for n in graph.graph.nodes if str(n.target).startswith("tilewright")]
    assert nodes == [f"tilewright.{node}.default" for node in GRADIENT_NODES[name]]
    others = case.tensors(torch.float32, 7)
    for gradient, other in zip(graph(*others), differentiate(*others), strict=True):
        assert torch.equal(gradient, other)


def squared(case: Case, module: Any) -> Callable[..., Any]:
    return lambda *tensors: case.call(module, tensors).square().sum()


@pytest.mark.filterwarnings("ignore::tilewright.errors.BatchLoopWarning")
@pytest.mark.parametrize("name", [name for name in CASES if None not in CASES[name].shapes])
def test_transforms_of_functions_differentiate(name: str) -> None:
    case = CASES[name]
    tensors = [t.detach() for t in case.tensors(torch.float64)]
    every = tuple(range(len(tensors)))
    grads = [torch.func.grad(squared(case, module), every) for module in (functional, F)]
    for gradient, other in zip(*(grad(*tensors) for grad in grads), strict=True):
        torch.testing.assert_close(gradient, other)
    batch = [torch.stack([t, 2 * t, t - 1], 1) for t in tensors]
    for dims in ((1,) * len(every), (1, *(None,) * (len(every) - 1)), (*(None,) * (len(every) - 1), 1)):
        given = [b if d == 1 else t for b, t, d in zip(batch, tensors, dims, strict=True)]
        members = [[t if d is None else t.select(1, n) for t, d in zip(given, dims, strict=True)] for n in range(3)]
        expected = [torch.stack(of_tensor) for of_tensor in zip(*(grads[1](*m) for m in members), strict=True)]
        for gradient, other in zip(torch.vmap(grads[0], dims)(*given), expected, strict=True):
            torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize(
    "name", ["layer_norm of one row", "rms_norm without a weight", "group_norm without weights", "softmax", *ATTENTION]
)
def test_gradients_of_a_batch_are_one_call(name: str, recwarn: pytest.WarningsRecorder) -> None:
    case = CASES[name]
    tensors = case.tensors(torch.float64)
    if case.name.endswith("norm"):
        tensors = tensors[:1]
    batch = [torch.stack([t, 2 * t]).detach() for t in tensors]
    torch.vmap(torch.func.grad(squared(case, functional), tuple(range(len(batch)))))(*batch)
    assert not [w for w in recwarn if isinstance(w.message, BatchLoopWarning)]


def test_gradients_of_each_sample_by_weights_loop_and_say_so() -> None:
    x, weight = torch.randn(4, 3, 5), torch.randn(5)
    grad = torch.func.grad(lambda w, x: functional.rms_norm(x, (5,), w, 0.1).sum())
    with pytest.warns(BatchLoopWarning, match="rms_norm_weight_gradient has no batch dimension for these"):
        of_samples = torch.vmap(grad, (None, 0))(weight, x)
    normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.1)
    torch.testing.assert_close(of_samples, normal.sum(1))


@pytest.mark.parametrize("name", CASES)
def test_gradients_under_autocast_have_the_type_of_tensors(name: str) -> None:
    case = CASES[name]
    tensors = case.tensors(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = case.call(functional, tensors)
    assert y.dtype is (torch.bfloat16 if "attention" in name else torch.float32)
    of_tensors = torch.autograd.grad(y.float().square().sum(), present(tensors))
    wide = as_float64(tensors)
    expected = torch.autograd.grad(case.call(F, wide).square().sum(), present(wide))
    for gradient, other in zip(of_tensors, expected, strict=True):
        assert gradient.dtype is torch.float32
        bound = BOUNDS[y.dtype] * max(1, other.abs().max())
        assert (gradient.double() - other).abs().max() <= bound


# -- networks ---------------------------------------------------------------------------------------------------


class Transformer(nn.Module):
    """A layer of a transformer, and a head, with modules that `replace` swaps one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.RMSNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
        self.norm3, self.head, self.softmax = nn.GroupNorm(2, 8), nn.Linear(8, 3), nn.Softmax(-1)

    def forward(self, x: Any) -> Any:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.down(self.act(self.up(self.norm2(x))))
        return self.softmax(self.head(self.norm3(x.transpose(1, 2)).transpose(1, 2)))


@pytest.mark.parametrize("is_inplace", [False, True])
def test_a_swapped_network_trains_as_torchs(is_inplace: bool) -> None:
    torch.manual_seed(0)
    theirs = Transformer().train()
    report = tilewright.torch.replace(theirs)
    assert report.kept == {}
    ours = tilewright.torch.replace(report.model, inplace=True).model if is_inplace else report.model
    losses = []
    for model in (ours, theirs):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(1)
        x, y = torch.randn(4, 6, 8, generator=generator), torch.randint(0, 3, (4, 6), generator=generator)
        of_model = []
        for _ in range(12):
            loss = F.nll_loss(model(x).clamp_min(1e-6).log().flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():  # packs the weights of this step
                of_model.append(F.nll_loss(model(x).clamp_min(1e-6).log().flatten(0, 1), y.flatten()))
        losses.append(torch.stack(of_model))
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-4)
    assert losses[0][-1] < 0.8 * losses[0][0]


def test_calls_without_gradients_are_as_before() -> None:
    layer, x = tilewright.torch.nn.LayerNorm(5), torch.randn(3, 5)
    y = layer(x)
    assert y.requires_grad
    with torch.no_grad():
        assert not layer(x).requires_grad
        assert torch.equal(layer(x), y)
    with torch.inference_mode():
        assert layer(x).is_inference()
        assert torch.equal(layer(x), y)


# -- errors -----------------------------------------------------------------------------------------------------

X = torch.ones(3, 5)
Q, ROWS = torch.ones(2, 3, 4, 5), torch.ones(2, 3, 4)
WRONG: dict[str, Callable[[], Any]] = {
    "dy has shape (3, 4); it must be (3, 5), as x": lambda: OURS.layer_norm_gradient(X, None, X[:, :4], [5], 0.1),
    "x holds torch.float32, dy torch.float64: convert one": lambda: OURS.rms_norm_gradient(
        X, None, X.double(), [5], 0.1
    ),
    "normalized_shape=[4]: the last sizes of x, whose shape is (3, 5)": lambda: OURS.layer_norm_weight_gradient(
        X, X, [4], 0.1
    ),
    "num_groups=2: it must divide the 5 channels of x": lambda: OURS.group_norm_weight_gradient(X, X, 2, 0.1),
    "dy is None; it must be a tensor": lambda: OURS.softmax_gradient(X, None, 0),
    "dim=2: y has 2 dimensions, from -2 to 1": lambda: OURS.softmax_gradient(X, X, 2),
    "dout has shape (2, 3, 4, 4); it must be (2, 3, 4, 5), as the result of attention": lambda: (
        OURS.attention_query_gradient(Q, Q, Q, Q[..., :4], ROWS, ROWS, None, False, None)
    ),
    "along has shape (2, 3, 3); it must be (2, 3, 4), one for each query": lambda: OURS.attention_key_gradient(
        Q, Q, Q, Q, ROWS, ROWS[..., :3], None, False, None
    ),
    "logs holds torch.float64; it must hold torch.float32, as the accumulator": lambda: OURS.attention_key_gradient(
        Q, Q, Q, Q, ROWS.double(), ROWS, None, False, None
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_of_gradients_are_named(message: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        WRONG[message]()
