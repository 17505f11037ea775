"""Operators beside torch's own: equal on small integers, within bounds otherwise, however torch follows calls."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx

from tilewright.errors import ArgumentError, BatchLoopWarning, MissingBackward
from tilewright.torch import functional, packed
from tilewright.torch import nn as torch_modules

F = torch.nn.functional
OURS = torch.ops.tilewright


def numbers(*shape: int, kind: Any = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).to(kind)


# -- results ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_products_are_exactly_torchs_on_small_integers(kind: Any) -> None:
    x, weight, bias = numbers(2, 3, 5, kind=kind), numbers(7, 5, kind=kind), numbers(7, kind=kind)
    assert torch.equal(functional.linear(x, weight, bias), F.linear(x, weight, bias))
    assert torch.equal(functional.linear(x[0, 0], weight), F.linear(x[0, 0], weight))
    assert torch.equal(functional.linear(x, weight, bias, activation="relu"), F.linear(x, weight, bias).relu())
    b = numbers(2, 5, 4, kind=kind)
    assert torch.equal(functional.bmm(x, b), torch.bmm(x, b))
    assert torch.equal(functional.matmul(x, b[0]), x @ b[0])
    vector = numbers(5, kind=kind)
    for left, right in ((x, vector), (vector, b), (vector, vector), (x[0], b), (x[None], b)):  # vectors, broadcasting
        assert torch.equal(functional.matmul(left, right), torch.matmul(left, right))
    added = numbers(1, kind=kind)
    assert torch.equal(functional.linear(x, vector, added[0]), F.linear(x, vector) + added)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [(1, 1, 1, 1), (2, 1, 1, 2), (3, 0, 2, 1), (1, "same", 2, 4), (2, 2, 1, 4)],
)
def test_convolutions_and_their_gradients_are_exactly_torchs(
    rank: int, stride: int, padding: Any, dilation: int, groups: int
) -> None:
    x, weight, bias = numbers(2, 4, *(8, 7, 6)[:rank]), numbers(8, 4 // groups, *(3, 2, 3)[:rank]), numbers(8)
    tensors = [t.requires_grad_() for t in (x, weight, bias)]
    ours, theirs = (getattr(f, f"conv{rank}d") for f in (functional, F))
    made, expected = (f(*tensors, stride, padding, dilation, groups) for f in (ours, theirs))
    assert torch.equal(made, expected)
    assert made.stride() == expected.stride()
    gradient = numbers(*expected.shape)
    for mine, other in zip(*(torch.autograd.grad(y, tensors, gradient) for y in (made, expected)), strict=True):
        assert torch.equal(mine, other)
    assert torch.equal(ours(x[0], weight, bias, stride, padding, dilation, groups), expected[0])


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_residual_is_added_before_the_activation(kind: Any) -> None:
    x, weight, bias, added = (numbers(*s, kind=kind) for s in ((2, 3, 5), (7, 5), (7,), (2, 3, 7)))
    expected = (F.linear(x, weight, bias) + added).relu()
    assert torch.equal(functional.linear(x, weight, bias, activation="relu", residual=added), expected)
    images, filters, added = (numbers(*s, kind=kind) for s in ((2, 4, 6, 5), (8, 2, 3, 3), (2, 8, 6, 5)))
    expected = (F.conv2d(images, filters, padding=1, groups=2) + added).relu()
    for form in (torch.contiguous_format, torch.channels_last):
        tensors = (t.to(memory_format=form) for t in (images, added))
        image, residual = tensors
        made = functional.conv2d(image, filters, padding=1, groups=2, activation="relu", residual=residual)
        assert torch.equal(made, expected)
        assert made.is_contiguous(memory_format=form)
    one = functional.conv2d(images[0], filters, padding=1, groups=2, activation="relu", residual=added[0])
    assert torch.equal(one, expected[0])


def test_a_residual_of_another_shape_or_type_is_added_as_torch_adds() -> None:
    x, weight, images, filters = numbers(2, 3, 5), numbers(7, 5), numbers(2, 4, 6, 5), numbers(8, 4, 3, 3)
    for added in (numbers(7), numbers(4, 2, 3, 7), numbers(2, 3, 7, kind=torch.float64)):
        made, expected = functional.linear(x, weight, residual=added), F.linear(x, weight) + added
        assert torch.equal(made, expected)
        assert made.dtype is expected.dtype
    added = numbers(8, 1, 1)
    assert torch.equal(functional.conv2d(images, filters, residual=added), F.conv2d(images, filters) + added)
    assert torch.equal(functional.linear(x, weight[0], residual=numbers(3)), F.linear(x, weight[0]) + numbers(3))
    with pytest.raises(ArgumentError, match=r"residual has shape \(7,\); it must be \(2, 3, 7\), as the result"):
        OURS.linear(x, weight, None, None, False, numbers(7))
    with pytest.raises(ArgumentError, match=r"x has shape .* 2 dimensions; it takes 4"):
        functional.conv2d(numbers(4, 4), filters, residual=added)


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_gradients_of_a_residual_are_torchs(activation: str | None) -> None:
    act = {None: lambda x: x, "relu": F.relu, "silu": F.silu}[activation]
    cases = [
        (functional.linear, F.linear, ((2, 3, 5), (7, 5), (7,), (2, 3, 7))),
        (functional.conv2d, F.conv2d, ((2, 4, 6, 5), (8, 4, 3, 3), (8,), (2, 8, 4, 3))),
    ]
    for ours, theirs, shapes in cases:
        x, weight, bias, residual = tensors = [numbers(*s, kind=torch.float64).requires_grad_() for s in shapes]
        made = ours(x, weight, bias, activation=activation, residual=residual)
        expected = act(theirs(x, weight, bias) + residual)
        gradient = numbers(*expected.shape, kind=torch.float64)
        for mine, other in zip(*(torch.autograd.grad(y, tensors, gradient) for y in (made, expected)), strict=True):
            torch.testing.assert_close(mine, other)


def test_vmap_takes_residuals_with_their_batch() -> None:
    x, weight, added = numbers(3, 2, 5), numbers(7, 5), numbers(3, 2, 7)
    made = torch.vmap(lambda x, r: functional.linear(x, weight, residual=r))(x, added)
    assert torch.equal(made, F.linear(x, weight) + added)
    shared = torch.vmap(lambda r: functional.linear(x[0], weight, residual=r))(added)
    assert torch.equal(shared, F.linear(x[0], weight) + added)
    images, filters, added = numbers(3, 2, 4, 5, 5), numbers(3, 6, 4, 3, 3), numbers(3, 2, 6, 3, 3)
    made = torch.vmap(lambda x, w, r: functional.conv2d(x, w, residual=r))(images, filters, added)
    assert torch.equal(made, torch.stack([F.conv2d(*t) for t in zip(images, filters, strict=True)]) + added)


def test_a_call_like_one_before_is_not_bound_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of an operator was checked and bound at length, which took longer than many convolutions."""
    kinds = (torch.float32, torch.bfloat16)
    weights, gains = ({kind: numbers(*s, kind=kind) for kind in kinds} for s in ((6, 4, 3, 3), (5,)))

    def call(kind: Any, first: int) -> None:
        x, added = numbers(2, 4, 6, 5, kind=kind) + first, numbers(2, 6, 4, 3, kind=kind)
        functional.conv2d(x, weights[kind], residual=added, keep_packed=True)
        functional.layer_norm(x, (5,), gains[kind], gains[kind])

    for kind in kinds:
        call(kind, 0)
    for name in ("tilewright.ops.layers.Layer._run_unremembered", "tilewright.compiler.native.NativeExecutable._run"):
        monkeypatch.setattr(name, lambda *_: pytest.fail("it was bound again"))
    for kind in kinds:
        call(kind, 1)


def test_channels_last_images_give_channels_last_results() -> None:
    x, weight = numbers(2, 3, 6, 5).to(memory_format=torch.channels_last), numbers(4, 3, 3, 3)
    made = functional.conv2d(x, weight, padding=1)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(made, F.conv2d(x, weight, padding=1))
    assert functional.group_norm(made, 2).is_contiguous(memory_format=torch.channels_last)


def test_channels_last_filters_give_channels_last_results() -> None:
    """A model that was brought to channels last copied every image, where the first one was contiguous."""
    x, weight = numbers(2, 3, 6, 5), numbers(4, 3, 3, 3).to(memory_format=torch.channels_last)
    made, expected = functional.conv2d(x, weight, padding=1), F.conv2d(x, weight, padding=1)
    assert torch.equal(made, expected)
    assert made.stride() == expected.stride()


def test_sums_of_nothing_are_the_bias() -> None:
    bias = numbers(4)
    assert torch.equal(functional.linear(torch.ones(3, 0), torch.ones(4, 0), bias), bias.expand(3, 4))
    assert functional.linear(torch.ones(0, 5), torch.ones(4, 5), bias).shape == (0, 4)
    made = functional.conv2d(torch.ones(2, 0, 3, 3), torch.ones(4, 0, 2, 2), bias, activation="relu")
    assert torch.equal(made, bias.relu().view(4, 1, 1).expand(2, 4, 2, 2))


BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 0.02, torch.float16: 0.003, torch.float64: 1e-13}


@pytest.mark.parametrize("kind", BOUNDS, ids=str)
def test_rows_and_attention_lie_within_bounds_of_float64(kind: Any) -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*s).to(kind) for s in ((3, 4, 5, 6), (5, 6), (5, 6)))
    q, k, v = (torch.randn(*s).to(kind) for s in ((2, 4, 7, 8), (2, 4, 9, 8), (2, 4, 9, 5)))
    mask = torch.rand(7, 9) > 0.5
    mask[3] = False
    calls = {
        "layer_norm": (x, (5, 6), weight, bias),
        "rms_norm": (x, (5, 6), weight),
        "group_norm": (x, 2, weight[0, :4], bias[0, :4]),
        "softmax": (x, 1),
        "scaled_dot_product_attention": (q, k, v, mask),
    }
    for name, given in calls.items():
        wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in given]
        options = {"eps": 1e-5} if name == "rms_norm" else {}
        made, expected = getattr(functional, name)(*given, **options), getattr(F, name)(*wide, **options)
        assert (made.double() - expected).abs().max() <= BOUNDS[kind] * max(1, expected.abs().max()), name
    causal = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    assert (causal - expected).abs().max() <= 4 * BOUNDS[kind]
    shared = functional.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
    expected = F.scaled_dot_product_attention(q.double(), k[:, :2].double(), v[:, :2].double(), enable_gqa=True)
    assert (shared - expected).abs().max() <= 4 * BOUNDS[kind]


# -- gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
def test_linear_passes_gradcheck(activation: str | None) -> None:
    torch.manual_seed(0)
    given = [torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((3, 5), (4, 5), (4,))]
    assert torch.autograd.gradcheck(lambda *a: OURS.linear(*a, activation), given)
    assert torch.autograd.gradgradcheck(lambda *a: OURS.linear(*a, activation), given)


def test_products_and_convolutions_pass_gradcheck_twice() -> None:
    torch.manual_seed(0)

    def double(*shape: int) -> Any:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    calls = [
        (OURS.matmul, [double(2, 3, 4), double(2, 4, 2)]),
        (OURS.matmul, [double(2, 3, 4), double(4, 2), double(2)]),
        (OURS.bmm, [double(2, 3, 4), double(2, 4, 2)]),
        (
            lambda *a: OURS.conv2d(*a, [2, 1], [1, 0], [1, 2], 2, "silu"),
            [double(1, 4, 4, 5), double(2, 2, 2, 2), double(2)],
        ),
        (lambda *a: OURS.conv1d(*a, [1], [0, 1], [1], 1), [double(2, 2, 4), double(3, 2, 2), double(3)]),
    ]
    for call, given in calls:
        assert torch.autograd.gradcheck(call, given)
        assert torch.autograd.gradgradcheck(call, given)


# -- what follows calls -----------------------------------------------------------------------------------------


def nodes(graph: Any) -> list[Any]:
    return [n.target for n in graph.nodes if n.op == "call_function"]


class Convolved(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(numbers(4, 3, 3, 3)), torch.nn.Parameter(numbers(4))

    def forward(self, x: Any) -> Any:
        return functional.conv2d(x, self.weight, self.bias, padding=1)


def test_export_and_make_fx_keep_one_node() -> None:
    x = numbers(2, 3, 5, 6)
    model = Convolved()
    sizes = ({0: torch.export.Dim("n"), 2: torch.export.Dim("h", min=3)},)
    exported = torch.export.export(model, (x,), dynamic_shapes=sizes)
    assert nodes(exported.graph) == [OURS.conv2d.default]
    other = numbers(3, 3, 9, 6)
    assert torch.equal(exported.module()(other), F.conv2d(other, model.weight, model.bias, padding=1))
    traced = make_fx(lambda x, w: functional.linear(x, w))(numbers(3, 5), numbers(4, 5))
    assert nodes(traced.graph) == [OURS.linear.default]
    assert torch.equal(traced(numbers(2, 5), numbers(4, 5)), F.linear(numbers(2, 5), numbers(4, 5)))


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore:`torch.jit:DeprecationWarning")
def test_jit_trace_keeps_one_node() -> None:
    weight = numbers(4, 5)
    traced = torch.jit.trace(lambda x: functional.linear(x, weight), (numbers(3, 5),))
    assert "tilewright::linear" in str(traced.graph)
    assert torch.equal(traced(numbers(2, 5)), F.linear(numbers(2, 5), weight))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.filterwarnings("ignore")  # of compilers
def test_compile_makes_one_graph_and_trains(backend: str) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = Convolved()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for n in (2, 3, 5):
        x = numbers(n, 3, 5, 6)
        (got,) = torch.autograd.grad(compiled(x).relu().sum(), model.weight)
        (expected,) = torch.autograd.grad(F.conv2d(x, model.weight, model.bias, padding=1).relu().sum(), model.weight)
        assert torch.equal(got, expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_vmap_makes_one_call_where_there_is_a_batch_dimension() -> None:
    x, weight = numbers(4, 3, 5), numbers(4, 6, 5)
    assert torch.equal(torch.vmap(lambda x: OURS.linear(x, weight[0]))(x), F.linear(x, weight[0]))
    assert torch.equal(torch.vmap(OURS.linear)(x, weight), torch.bmm(x, weight.mT))
    assert torch.equal(torch.vmap(OURS.matmul, (None, 0))(x[0], weight.mT), x[0] @ weight.mT)
    images, filters, bias = numbers(2, 3, 4, 6, 5), numbers(2, 4, 2, 3, 3), numbers(2, 4)

    def conv(f: Any) -> Any:
        return lambda x, w, b: f(x, w, b, 1, 1, 1, 2)

    for dims in ((0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0)):
        given = [t if d == 0 else t[0] for t, d in zip((images, filters, bias), dims, strict=True)]
        assert torch.equal(torch.vmap(conv(functional.conv2d), dims)(*given), torch.vmap(conv(F.conv2d), dims)(*given))
    q = torch.randn(3, 2, 2, 4, 8)
    torch.testing.assert_close(
        torch.vmap(lambda q: functional.scaled_dot_product_attention(q, q, q))(q),
        F.scaled_dot_product_attention(q, q, q),
    )
    torch.testing.assert_close(torch.vmap(lambda x: OURS.softmax(x, 0))(x), x.softmax(1))


def test_vmap_over_a_bias_loops_and_says_so() -> None:
    x, weight, bias = numbers(3, 5), numbers(4, 5), numbers(2, 4)
    with pytest.warns(BatchLoopWarning, match="linear has no batch dimension for these: torch.vmap calls it 2 times"):
        made = torch.vmap(lambda b: OURS.linear(x, weight, b))(bias)
    assert torch.equal(made, torch.stack([F.linear(x, weight, b) for b in bias]))


def test_vmap_over_a_weight_loops_beside_a_list_of_numbers() -> None:
    """torch gives a list argument a list of vmap dimensions, which was taken for one of them."""
    x, weight = numbers(3, 5), numbers(2, 5)
    with pytest.warns(BatchLoopWarning, match="layer_norm has no batch dimension for these"):
        result = torch.vmap(lambda w: functional.layer_norm(x, (5,), w))(weight)
    torch.testing.assert_close(result, torch.stack([F.layer_norm(x, (5,), w) for w in weight]))


def test_transforms_of_functions_differentiate() -> None:
    x, weight = numbers(4, 3, 5), numbers(6, 5)
    ours, theirs = (torch.func.grad(lambda w, x, f=f: f(x, w).square().sum()) for f in (OURS.linear, F.linear))
    assert torch.equal(torch.vmap(ours, (None, 0))(weight, x), torch.vmap(theirs, (None, 0))(weight, x))
    jacobian = torch.func.jacrev(lambda x: OURS.linear(x, weight))(x[0, 0])
    assert torch.equal(jacobian, weight)


def test_transforms_within_transforms_differentiate_twice() -> None:
    """Second derivatives lacked terms: the inner level computed with gradients disabled, so the outer one saw none."""
    x, weight = numbers(3, 5, kind=torch.float64), numbers(4, 5, kind=torch.float64)
    images, filters = numbers(1, 2, 4, 3, kind=torch.float64), numbers(3, 2, 2, 2, kind=torch.float64)
    calls = [
        (lambda x: functional.linear(x, weight, activation="silu"), lambda x: F.silu(F.linear(x, weight)), x),
        (lambda x: functional.conv2d(x, filters), lambda x: F.conv2d(x, filters), images),
        (lambda x: functional.softmax(x, 0), lambda x: F.softmax(x, 0), x),
    ]
    for ours, theirs, tensor in calls:
        results = [torch.func.jacrev(torch.func.grad(lambda x, f=f: f(x).pow(3).sum()))(tensor) for f in (ours, theirs)]
        torch.testing.assert_close(*results)


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore:`torch.jit:DeprecationWarning")
def test_derivatives_in_forward_mode_are_refused_by_name() -> None:
    """They were lost without a word: torch's tangent is no part of a tensor's memory."""
    x, weight = numbers(3, 5), numbers(4, 5)
    message = r"torch\.ops\.tilewright\.linear has no derivative in forward mode \(jvp, jacfwd\): use torch\.func\.vjp"
    with torch.autograd.forward_ad.dual_level(), pytest.raises(MissingBackward, match=message):
        OURS.linear(torch.autograd.forward_ad.make_dual(x, x), weight)
    with pytest.raises(MissingBackward, match=message):
        torch.func.jvp(lambda x: OURS.linear(x, weight), (x,), (x,))
    with pytest.raises(MissingBackward, match=message):  # forward mode around a gradient
        torch.func.hessian(lambda x: OURS.linear(x, weight).pow(3).sum())(x)


def test_autocast_computes_in_its_type() -> None:
    x, weight = numbers(3, 5), numbers(4, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert functional.linear(x, weight).dtype is torch.bfloat16
        assert functional.linear(x.double(), weight.double()).dtype is torch.float64
        assert functional.softmax(x.bfloat16(), 0).dtype is torch.float32
    assert functional.linear(x, weight).dtype is torch.float32


# -- weights ----------------------------------------------------------------------------------------------------


def test_writes_to_weights_are_seen() -> None:
    x, weight, bias = numbers(3, 5), numbers(4, 5), numbers(4)
    images, filters = numbers(2, 3, 6, 5), numbers(4, 3, 3, 3)
    for _ in range(3):
        assert torch.equal(functional.linear(x, weight, bias, keep_packed=True), F.linear(x, weight, bias))
        assert torch.equal(functional.conv2d(images, filters, keep_packed=True), F.conv2d(images, filters))
        weight += 1
        bias -= 1
        filters.mul_(2)


def followed(way: str, model: Any, x: Any) -> tuple[Any, Any]:
    """(a model as something in torch follows its calls, the weight that it reads)."""
    if way == "compile":
        torch._dynamo.reset()
        return torch.compile(model, fullgraph=True, backend="aot_eager"), model.weight
    if way == "trace":
        return torch.jit.trace(model, (x,)), model.weight
    if way == "export":
        module = torch.export.export(model, (x,)).module()
        return module, module.weight
    graph = make_fx(lambda weight, x: functional.linear(x, weight, keep_packed=True))(model.weight, x)
    return lambda x: graph(model.weight, x), model.weight


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("way", ["compile", "trace", "export", "make_fx"])
def test_weights_written_after_a_call_was_followed_are_seen(way: str) -> None:
    model, x = torch_modules.Linear(5, 4, bias=False), numbers(3, 5)
    with torch.no_grad():
        model.weight.copy_(numbers(4, 5))
        call, weight = followed(way, model, x)
        for _ in range(3):
            assert torch.equal(call(x), F.linear(x, weight))
            weight.mul_(-2).add_(1)


def test_weights_with_other_memory_are_seen() -> None:
    x, weight = numbers(3, 5), torch.nn.Parameter(numbers(4, 5))
    with torch.no_grad():
        functional.linear(x, weight, keep_packed=True)
        weight.data = numbers(4, 5) + 1  # no write that torch counts: another tensor's memory
        assert torch.equal(functional.linear(x, weight, keep_packed=True), F.linear(x, weight))


def test_weights_are_packed_once_for_each_version_and_go_with_their_tensor() -> None:
    x, weight = numbers(3, 5), numbers(4, 5)
    functional.linear(x, weight, keep_packed=True)
    (first,) = packed._LAYERS[weight].values()
    functional.linear(x, weight, keep_packed=True)
    (second,) = packed._LAYERS[weight].values()
    assert first is second
    weight += 1
    functional.linear(x, weight, keep_packed=True)
    (third,) = packed._LAYERS[weight].values()
    assert third is not first
    layer = weakref.ref(third.layer)
    del weight, first, second, third
    gc.collect()
    assert layer() is None


def test_uncounted_writes_are_seen_where_weights_are_not_kept() -> None:
    """gradcheck writes through `tensor.data`, which torch does not count: kept weights would be old ones."""
    x, weight = numbers(3, 5), numbers(4, 5)
    functional.linear(x, weight)
    weight.data.add_(1)
    assert torch.equal(functional.linear(x, weight), F.linear(x, weight))


def test_inference_tensors_are_taken() -> None:
    with torch.inference_mode():
        x, weight = numbers(3, 5), numbers(4, 5)
        for _ in range(2):
            assert torch.equal(functional.linear(x, weight, keep_packed=True), F.linear(x, weight))
            weight += 1


# -- errors -----------------------------------------------------------------------------------------------------

WRONG = {
    "x holds torch.float32, weight torch.float64: convert one": lambda: (numbers(3, 5), numbers(4, 5).double()),
    r"x has shape \(3, 4\), weight \(4, 5\): they do not fit": lambda: (numbers(3, 4), numbers(4, 5)),
    r"weight has shape \(2, 4, 5\), 3 dimensions; it takes 2": lambda: (numbers(3, 5), numbers(2, 4, 5)),
    r"bias has shape \(3,\); it must be \(4,\), one for each row": lambda: (numbers(3, 5), numbers(4, 5), numbers(3)),
    "x holds torch.complex64, for which there are no kernels": lambda: (numbers(3, 5).cfloat(), numbers(4, 5).cfloat()),
    "x lies on the device cpu, weight on meta: move one": lambda: (numbers(3, 5), numbers(4, 5).to("meta")),
    "activation='tanh': there are relu": lambda: (numbers(3, 5), numbers(4, 5), None, "tanh"),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_get_the_same_typed_error_from_every_caller(message: str) -> None:
    given = WRONG[message]()
    with pytest.raises(ArgumentError, match=message):
        OURS.linear(*given)
    with pytest.raises(ArgumentError, match=message):
        OURS.linear(*(a.clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in given))
    with torch.inference_mode(), pytest.raises(ArgumentError, match=message):
        functional.linear(*given[:3], activation=given[3] if len(given) > 3 else None)


def test_wrong_arguments_are_refused_while_shapes_are_traced() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), pytest.raises(ArgumentError, match="they do not fit"):
        OURS.linear(torch.ones(3, 4), torch.ones(4, 5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 0}, r"stride=0: an integer of at least 1"),
        ({"padding": (1, 2, 3)}, r"padding=\[1, 2, 3\]: 2 integers of at least 0, or 4"),
        ({"groups": 3}, "x has 4 channels; weight takes 4 in each of 3 groups"),
        ({"dilation": 9}, r"x has the sizes \(6, 5\): a filter of \(3, 3\) does not fit"),
    ],
)
def test_wrong_options_of_convolutions_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        functional.conv2d(numbers(2, 4, 6, 5), numbers(6, 4, 3, 3), **options)


def test_attention_names_what_it_has_no_kernel_for() -> None:
    q = torch.ones(1, 1, 2, 4)
    with pytest.raises(ArgumentError, match=r"attn_mask holds torch\.float64; it is added in float32"):
        functional.scaled_dot_product_attention(q, q, q, torch.zeros(2, 2).double())
    wide = functional.scaled_dot_product_attention(*[q.double()] * 3, torch.full((2, 2), 1 / 3).double())
    assert torch.equal(wide, q.double())
    with pytest.raises(ArgumentError, match="is_causal=True: attn_mask is given too"):
        functional.scaled_dot_product_attention(q, q, q, torch.zeros(2, 2), is_causal=True)
