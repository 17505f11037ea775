"""Calls inside what torch and JAX trace or transform: right, or refused by a typed error that says why."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from frameworks import calls, references, small

import tilewright
from tilewright.errors import ArgumentError, TracedArgument

pytestmark = pytest.mark.filterwarnings("ignore")  # frameworks warn of what they will no longer have
NAMES = ("matmul", "conv2d", "Linear", "Conv2d", "weight", "bias", "kernel", "executor", "text")
SOME = ("matmul", "Conv2d", "kernel")


@pytest.fixture(scope="module")
def made() -> Any:
    return calls()


def refused(trace: Any, call: tuple[Any, str, tuple[int, ...]], says: str, x: Any) -> str:
    """The message of the error that a call gives inside a trace; it names the argument."""
    function, name, _ = call
    with pytest.raises(TracedArgument, match=f"(?s){name} is .*{says}") as report:
        trace(lambda x: function(x), x)  # tracers want a function, not an object that is called
    return str(report.value)


# -- torch: what is recorded ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_call_inside_a_trace_of_torch_was_baked_in_as_a_constant(made: Any, name: str) -> None:
    torch = pytest.importorskip("torch")
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.from_numpy(small(*made[name][2]))
    traced = refused(torch.jit.trace, made[name], r"torch\.jit\.trace records", x)
    assert "torch.library.custom_op" in traced
    for options in ({}, {"pre_dispatch": True}):
        refused(lambda f, x, o=options: make_fx(f, **o)(x), made[name], "make_fx or torch.export records", x)
    for mode in ("fake", "symbolic"):
        refused(lambda f, x, m=mode: make_fx(f, tracing_mode=m)(x), made[name], "a FakeTensor", x)
    refused(lambda f, x: torch.fx.symbolic_trace(f), made[name], r"a Proxy of torch\.fx\.symbolic_trace", x)


@pytest.mark.parametrize("name", SOME)
def test_torch_export_is_refused_by_name(made: Any, name: str) -> None:
    torch = pytest.importorskip("torch")

    class Around(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, function: Any):
            super().__init__()
            self.function = function

        def forward(self, x: Any) -> Any:
            return self.function(x)

    def export(function: Any, x: Any) -> Any:
        return torch.export.export(Around(function), (x,), strict=False)

    refused(export, made[name], "a FakeTensor", torch.from_numpy(small(*made[name][2])))


@pytest.mark.parametrize("name", NAMES)
def test_tensors_without_values_are_refused_by_name(made: Any, name: str) -> None:
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.from_numpy(small(*made[name][2]))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        refused(lambda f, x: f(x), made[name], "tensor while FakeTensorMode records", x)
    refused(lambda f, x: f(x), made[name], "a FakeTensor, which has a shape and no values", fake)
    with pytest.raises(ArgumentError, match=f"{made[name][1]} lies on the device meta, where tensors have no values"):
        made[name][0](x.to("meta"))


def test_a_tensor_with_operations_of_its_own_is_refused() -> None:
    torch = pytest.importorskip("torch")

    class Wrapped(torch.Tensor):  # type: ignore[misc, name-defined]
        @staticmethod
        def __new__(cls: Any, inner: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise NotImplementedError

    with pytest.raises(TracedArgument, match=r"a is a Wrapped, a tensor with operations of its own .*pass a plain"):
        tilewright.matmul(Wrapped(torch.ones(2, 3)), torch.ones(3, 2))

    class Named(torch.Tensor):  # type: ignore[misc, name-defined]
        pass

    x = torch.ones(2, 3).as_subclass(Named)
    assert torch.equal(tilewright.matmul(x, torch.ones(3, 2)), torch.full((2, 2), 3.0))


# -- torch: transforms of functions ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_transforms_of_functions_read_memory_that_was_not_the_value(made: Any, name: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(small(*made[name][2]))
    refused(lambda f, x: torch.vmap(f)(x[None]), made[name], r"a tensor under torch\.vmap", x)

    def differentiated(f: Any, x: Any) -> Any:
        return torch.func.grad(lambda x: torch.as_tensor(f(x)).sum())(x)

    def along(f: Any, x: Any) -> Any:
        return torch.func.jvp(f, (x,), (torch.ones_like(x),))

    for function in (differentiated, along):
        refused(function, made[name], r"a tensor under torch\.func\.grad, vjp or jvp", x)
    refused(lambda f, x: torch.func.functionalize(f)(x), made[name], r"a tensor under torch\.func\.functionalize", x)


@pytest.mark.parametrize("name", SOME)
def test_the_tangent_of_a_dual_tensor_was_lost(made: Any, name: str) -> None:
    torch = pytest.importorskip("torch")
    from torch.autograd import forward_ad

    x = torch.from_numpy(small(*made[name][2]))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        refused(lambda f, x: f(x), made[name], "a dual tensor", dual)
        assert torch.equal(made[name][0](forward_ad.unpack_dual(dual).primal), references(torch)[name](x))


def test_an_operator_around_a_call_is_traced() -> None:
    torch = pytest.importorskip("torch")
    from torch.fx.experimental.proxy_tensor import make_fx

    layer = tilewright.Linear(small(7, 5, seed=1), small(7, seed=3))

    @torch.library.custom_op("tilewright_tests::linear", mutates_args=(), schema="(Tensor x) -> Tensor")
    def linear(x: Any) -> Any:
        return layer(x)

    @linear.register_fake
    def _(x: Any) -> Any:
        return x.new_empty(*x.shape[:-1], 7)

    @linear.register_vmap
    def _(info: Any, dims: Any, x: Any) -> Any:
        return linear(x.movedim(dims[0], 0)), 0

    class Around(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return linear(x * 2) + 1

    around = Around()
    given, other = (torch.from_numpy(small(3, 5, seed=seed)) for seed in (4, 5))
    wanted = (2 * other) @ torch.from_numpy(small(7, 5, seed=1)).T + torch.from_numpy(small(7, seed=3)) + 1
    for trace in (
        torch.jit.trace,
        lambda f, x: make_fx(f)(x),
        lambda f, x: make_fx(f, tracing_mode="fake")(x),
        lambda f, x: torch.export.export(f, (x,)).module(),
        lambda f, x: torch.compile(f, backend="eager", fullgraph=True),
    ):
        assert torch.equal(trace(around, given)(other), wanted)
    batch = torch.from_numpy(small(2, 3, 5, seed=6))
    assert torch.equal(torch.vmap(around)(batch), around(batch))
    needs = given.clone().requires_grad_()  # the implementation of an operator gets it as it is
    assert torch.equal(linear(needs), layer(given))


# -- torch: gradients -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["matmul", "conv2d", "Linear", "Conv2d", "kernel"])
def test_a_tensor_that_requires_grad_was_refused_where_none_is_recorded(made: Any, name: str) -> None:
    torch = pytest.importorskip("torch")
    function, argument, shape = made[name]
    x = torch.from_numpy(small(*shape)).requires_grad_()
    wanted = references(torch)[name](x.detach())
    with pytest.raises(ArgumentError, match=rf"{argument} needs gradients .*\.detach\(\), or call this under torch"):
        function(x)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(function(x), wanted)
            assert torch.equal(function(x * 1), wanted)


def test_autograd_functions_and_wave_take_tensors_that_require_grad() -> None:
    torch = pytest.importorskip("torch")
    from frameworks import negated

    from tilewright.compat import wave as compat

    class Product(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(a: Any, b: Any) -> Any:
            return tilewright.matmul(a, b)

        @staticmethod
        def setup_context(context: Any, inputs: Any, output: Any) -> None:
            context.save_for_backward(*inputs)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            a, b = context.saved_tensors
            return Product.apply(gradient, b.T), Product.apply(a.T, gradient)

        @staticmethod
        def jvp(context: Any, da: Any, db: Any) -> Any:
            return 0 * (da @ torch.zeros(5, 4))

    a, b = (torch.from_numpy(small(*shape)).requires_grad_() for shape in ((3, 5), (5, 4)))
    Product.apply(a, b).square().sum().backward()
    mine = a.grad, b.grad
    a.grad = b.grad = None
    (a @ b).square().sum().backward()
    assert torch.equal(mine[0], a.grad)
    assert torch.equal(mine[1], b.grad)
    by_functions = torch.func.grad(lambda a: Product.apply(a, b.detach()).square().sum())(a.detach())
    assert torch.equal(by_functions, a.grad)
    run = compat.wave_compile(compat.WaveCompileOptions(subs={}), negated)
    with torch.no_grad():
        assert torch.equal(run(a), -a)
        out = torch.zeros(3, 5)
        run(a, out)
        assert torch.equal(out, -a)


# -- torch.compile --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["matmul", "Conv2d", "kernel", "executor", "text"])
def test_torch_compile_failed_with_a_fake_tensor(made: Any, name: str) -> None:
    torch = pytest.importorskip("torch")
    function, _, shape = made[name]
    wanted = references(torch)[name]

    def around(x: Any) -> Any:
        return (function(x * 2) + 1).relu()

    compiled = torch.compile(around, backend="aot_eager")
    for seed in range(3):
        x = torch.from_numpy(small(*shape, seed=seed))
        assert torch.equal(compiled(x), (wanted(x * 2) + 1).relu())
    if name in ("matmul", "Conv2d"):  # other sizes, too
        x = torch.from_numpy(small(*(n + 1 for n in shape[:-1]), shape[-1]))
        assert torch.equal(compiled(x), (wanted(x * 2) + 1).relu())
    assert torch.equal(torch.compile(function, backend="aot_eager")(x), wanted(x))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Tilewright"):
        torch.compile(lambda x: function(x) + 1, backend="aot_eager", fullgraph=True)(x)


def test_layers_and_kernels_are_made_under_torch_compile() -> None:
    torch = pytest.importorskip("torch")
    from frameworks import negated

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.from_numpy(small(7, 5, seed=1)))
            with torch.no_grad():
                self.layer = tilewright.Linear(self.weight)

        def forward(self, x: Any) -> Any:
            fresh = tilewright.Linear(self.weight, activation="relu")(x)
            return self.layer(x) + fresh + tilewright.compile(negated)(self.layer(x)) * 2

    model = Model()
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        for seed in range(2):
            x = torch.from_numpy(small(3, 5, seed=seed))
            plain = x @ model.weight.T
            assert torch.equal(compiled(x), plain.relu() - plain)
            model.weight += 1  # seen by the layer, under torch.compile too


# -- layers follow their weights ------------------------------------------------------------------------------


def test_a_layer_used_its_old_weights_after_torch_changed_them() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(small(3, 5))
    whole = torch.from_numpy(small(9, 5, seed=1))
    weight, bias = whole[1:8], torch.from_numpy(small(7, seed=2))
    layer = tilewright.Linear(weight, bias)
    turned = tilewright.Linear(whole.T[:, 1:].T)  # not contiguous: the layer holds a copy
    shallow, deep = copy.copy(layer), copy.deepcopy(layer)
    before = layer(x)

    def right(*layers: Any) -> bool:
        return all(torch.equal(each(x), x @ weight.T + bias) for each in layers)

    assert right(layer, shallow, deep)
    assert torch.equal(turned(x), x @ whole[1:].T)
    for change in (
        lambda: weight.add_(1),
        lambda: whole.mul_(2),
        lambda: bias.sub_(3),
        lambda: weight.detach()[2].zero_(),
        lambda: torch._foreach_add_([weight, bias], 1),
        lambda: weight.copy_(torch.from_numpy(small(7, 5, seed=3))),
    ):
        change()
        assert right(layer, shallow)
        assert torch.equal(turned(x), x @ whole[1:].T)
    with torch.inference_mode():
        weight.add_(1)
    assert right(layer, shallow)
    assert torch.equal(deep(x), before)  # a deep copy has weights of its own
    weight.data = weight.data + 5
    assert right(layer)
    out = torch.empty(3, 7)
    launch = layer.bind(x, out)
    launch()
    assert torch.equal(out, x @ weight.T + bias)
    weight.add_(1)
    bound = layer.bind(x, out)
    bound()
    assert torch.equal(out, x @ weight.T + bias)


def test_what_torch_does_not_count_is_seen_after_refresh() -> None:
    torch = pytest.importorskip("torch")
    x, weight = torch.from_numpy(small(1, 5, 6, 3)), torch.from_numpy(small(4, 3, 2, 3, seed=1))
    layer = tilewright.Conv2d(weight)
    layer(x)
    for change in (lambda: weight.data.add_(1), lambda: np.add(weight.numpy(), 1, out=weight.numpy())):
        change()
        layer.refresh()
        assert torch.equal(layer(x), tilewright.conv2d(x, weight))
    weight.resize_(4, 3, 1, 3)
    with pytest.raises(ArgumentError, match="weight is 4x3x1x3 of float32 now; the layer was made of 4x3x2x3"):
        layer(x)


def test_inference_tensors_have_no_version_and_are_read_in_every_call() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(small(3, 5))
    with torch.inference_mode():
        weight = torch.from_numpy(small(7, 5, seed=1)).clone()
        layer = tilewright.Linear(weight)
        assert torch.equal(layer(x), x @ weight.T)
        weight.add_(1)
        assert torch.equal(layer(x), x @ weight.T)
    assert torch.equal(layer(x), x @ weight.T)


def test_a_layer_of_parameters_is_refused_where_their_gradients_are_recorded() -> None:
    torch = pytest.importorskip("torch")
    weight, x = torch.nn.Parameter(torch.from_numpy(small(7, 5, seed=1))), torch.from_numpy(small(3, 5))
    with torch.no_grad():
        layer = tilewright.Linear(weight)
        optimizer = torch.optim.SGD([weight], lr=0.5)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert torch.equal(layer(x), x @ weight.T)
    with pytest.raises(ArgumentError, match="weight needs gradients"):
        layer(x)


def test_what_a_kernel_writes_is_counted_by_torch(made: Any) -> None:
    torch = pytest.importorskip("torch")
    x, weight = torch.from_numpy(small(3, 5)), torch.from_numpy(small(3, 5, seed=1))
    layer = tilewright.Linear(weight)
    for name in ("kernel", "executor", "text"):
        layer(x)
        made[name][0](x, weight)
        assert torch.equal(layer(x), x @ weight.T)
        made[name][0](weight.clone(), out=weight)
        assert torch.equal(layer(x), x @ weight.T)
    needs = torch.ones(3, 5, requires_grad=True)
    product = weight * needs  # saves weight
    made["kernel"][0](x, weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


# -- JAX ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_tracer_of_jax_was_an_attribute_error(made: Any, name: str) -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(small(*made[name][2]))
    for trace in (
        lambda f, x: jax.jit(f)(x),
        lambda f, x: jax.vmap(f)(x[None]),
        lambda f, x: jax.grad(lambda x: f(x).sum())(x),
        lambda f, x: jax.jvp(f, (x,), (x,)),
        lambda f, x: jax.make_jaxpr(f)(x),
        jax.eval_shape,
    ):
        assert "use tilewright.jax" in refused(trace, made[name], "a tracer of JAX", x)


def test_jax_calls_kernels_with_values_and_by_callback() -> None:
    jax = pytest.importorskip("jax")
    a, b = small(3, 5), small(5, 4, seed=1)
    host = jax.devices("cpu")[0]
    assert np.array_equal(tilewright.matmul(jax.device_put(a, host), jax.device_put(b, host)), a @ b)

    @jax.jit
    def around(a: Any) -> Any:
        return jax.pure_callback(tilewright.matmul, jax.ShapeDtypeStruct((3, 4), np.float32), a * 2, b) + 1

    assert np.array_equal(around(a), (2 * a) @ b + 1)


def test_an_array_that_jax_has_let_go_of_was_a_type_error() -> None:
    jax = pytest.importorskip("jax")
    gone = jax.numpy.ones((3, 5))
    gone.delete()
    for call, name, _ in (made for name, made in calls().items() if name in SOME and name != "Conv2d"):
        with pytest.raises(ArgumentError, match=f"{name} .*cannot be read by way of DLPack"):
            call(gone)


def test_a_number_that_is_traced_is_refused() -> None:
    from frameworks import GLOBAL, M

    import tilewright.lang as tkl
    import tilewright.wave as tkw

    @tkw.wave()
    def shifted(x: tkl.Memory[M, GLOBAL, tkl.i32], y: tkl.Memory[M, GLOBAL, tkl.i32], by: tkl.i32) -> None:
        tkw.write(tkw.read(x) + by, y)

    run, x = tilewright.compile(shifted), np.arange(3, dtype=np.int32)
    jax = pytest.importorskip("jax")
    torch = pytest.importorskip("torch")
    with pytest.raises(TracedArgument, match="argument by is a tracer of JAX"):
        jax.jit(lambda n: run(x, n))(3)
    with pytest.raises(TracedArgument, match="argument by is a Proxy"):
        torch.fx.symbolic_trace(lambda n: run(x, n))
    with pytest.raises(TracedArgument, match="a, in a list, is a tracer of JAX"):
        jax.jit(lambda n: tilewright.matmul([[n, n]], x))(1.0)
