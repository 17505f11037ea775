"""Wrong arguments through operators of torch: typed errors that name the argument, as of other callers."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bad_input import INPUTS, right
from test_opcheck import ARGUMENTS

import tilewright
import tilewright.torch
from tilewright.errors import ArgumentError
from tilewright.kernels import gemm
from tilewright.torch import functional
from tilewright.torch.checks import require_same_dtype

SAID_OTHERWISE = {"extent": "argument b: dimension 0 is 2; K is 3 here"}
OF_TORCH = ("device", "no array", "missing")
"""torch itself refuses these: a schema says which arguments are tensors."""


@pytest.fixture(scope="module")
def operator() -> Any:
    return tilewright.torch.operator(tilewright.compile(gemm("nn", "f32")), "of_test_bad_input")


@pytest.mark.parametrize("name", [name for name in INPUTS if name not in OF_TORCH])
def test_a_wrong_argument_of_a_kernels_operator_is_named(name: str, operator: Any) -> None:
    spoil, says = INPUTS[name]
    given = [torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in spoil(*right())[:2]]
    with pytest.raises(ArgumentError, match=SAID_OTHERWISE.get(name, says)):
        operator(*given)


def test_a_tensor_of_another_device_is_named(operator: Any) -> None:
    with pytest.raises(ArgumentError, match="a lies on the device meta, b on cpu"):
        operator(torch.empty(4, 3, device="meta"), torch.ones(3, 5))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_none_for_a_tensor_is_named_by_every_operator(name: str) -> None:
    """torch passes None on, and an attribute of it was asked for."""
    packet = getattr(torch.ops.tilewright, name)
    given = ARGUMENTS[name](torch.float32, 2)
    needed = [n for n, a in enumerate(packet.default._schema.arguments) if str(a.type) == "Tensor"]
    assert needed
    for place in needed:
        spoilt = [None if n == place else a for n, a in enumerate(given)]
        called = packet.default._schema.arguments[place].name
        with pytest.raises(ArgumentError, match=f"^{called} is None; it must be a tensor"):
            packet(*spoilt)


def test_none_for_a_weight_that_is_kept_is_named() -> None:
    """Calls like one before asked for its version."""
    ours, geometry = torch.ops.tilewright, ([1, 1], [0, 0], [1, 1], 1)
    with pytest.raises(ArgumentError, match=r"^weight is None; it must be a tensor"):
        ours.linear(torch.ones(2, 3), None, None, None, True)
    with pytest.raises(ArgumentError, match=r"^weight is None; it must be a tensor"):
        ours.conv2d(torch.ones(1, 2, 5, 5), None, None, *geometry, None, True)


@pytest.mark.parametrize("name", ["linear", "matmul", "bmm", "softmax", "layer_norm"])
def test_a_sparse_tensor_is_named_by_every_operator(name: str) -> None:
    """`linear` passed on what torch said of a reshape."""
    first, *others = ARGUMENTS[name](torch.float32, 2)
    with pytest.raises(ArgumentError, match=r"^[ax] is sparse or packed .*; pass [ax].to_dense\(\)"):
        getattr(torch.ops.tilewright, name)(first.to_sparse(), *others)


FUNCTIONS = {
    "linear": (torch.ones(2, 3), torch.ones(5, 3)),
    "matmul": (torch.ones(2, 3), torch.ones(3, 5)),
    "bmm": (torch.ones(1, 2, 3), torch.ones(1, 3, 5)),
    "conv1d": (torch.ones(1, 2, 9), torch.ones(4, 2, 3)),
    "conv2d": (torch.ones(1, 2, 9, 9), torch.ones(4, 2, 3, 3)),
    "max_pool1d": (torch.ones(1, 2, 9), 2),
    "max_pool2d": (torch.ones(1, 2, 9, 9), 2),
    "max_pool3d": (torch.ones(1, 2, 9, 9, 9), 2),
    "adaptive_avg_pool1d": (torch.ones(1, 2, 9), 1),
    "adaptive_avg_pool2d": (torch.ones(1, 2, 9, 9), 1),
    "adaptive_avg_pool3d": (torch.ones(1, 2, 9, 9, 9), 1),
    "softmax": (torch.ones(2, 3), -1),
    "layer_norm": (torch.ones(2, 3), (3,)),
    "rms_norm": (torch.ones(2, 3), (3,)),
    "group_norm": (torch.ones(2, 4, 3), 2),
    "scaled_dot_product_attention": (torch.ones(1, 2, 3, 4),) * 3,
}


@pytest.mark.parametrize("wrong", [None, np.ones((2, 3), np.float32)], ids=["None", "numpy"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_name_what_is_no_tensor(name: str, wrong: Any) -> None:
    given = FUNCTIONS[name]
    for place, value in enumerate(given):
        if isinstance(value, torch.Tensor):
            spoilt = [wrong if n == place else a for n, a in enumerate(given)]
            with pytest.raises(ArgumentError, match=r"^\w+ is of type \w+; it must be a tensor of torch"):
                getattr(tilewright.torch.functional, name)(*spoilt)


MISFITS = {
    "key has another batch": (
        [(2, 3, 4, 8), (3, 3, 5, 8), (3, 3, 5, 8)],
        {},
        r"query has shape \(2, 3, 4, 8\), key has ",
    ),
    "value has other heads": (
        [(2, 3, 4, 8), (1, 5, 8), (2, 4, 5, 8)],
        {},
        r"value has shape \(2, 4, 5, 8\): of each dim",
    ),
    "six heads for four": (
        [(1, 6, 4, 8), (1, 4, 5, 8), (1, 4, 5, 8)],
        {"enable_gqa": True},
        "key .* divide the 6 heads",
    ),
    "four heads of values": ([(6, 4, 8), (3, 5, 8), (4, 5, 8)], {"enable_gqa": True}, "value .* divide the 6 heads"),
    "no heads of keys": (
        [(6, 4, 8), (0, 5, 8), (0, 5, 8)],
        {"enable_gqa": True},
        "key .* 0 heads .* divide the 6 heads",
    ),
    "matrices": (
        [(4, 8), (5, 8), (5, 8)],
        {"enable_gqa": True},
        r"query has shape \(4, 8\); its heads are dimension -3",
    ),
    "keys are a matrix": ([(6, 4, 8), (5, 8), (5, 8)], {"enable_gqa": True}, r"key has shape \(5, 8\); its heads"),
    "mask of other queries": (
        [(1, 6, 4, 8), (1, 6, 5, 8), (1, 6, 5, 8), (3, 5)],
        {},
        r"attn_mask has shape \(3, 5\); it",
    ),
    "mask of a batch": ([(6, 4, 8), (6, 5, 8), (6, 5, 8), (2, 6, 4, 5)], {}, r"broadcastable to \(6, 4, 5\)"),
}
"""{fault: shapes of query, key, value and mask, options, what the error names}."""


@pytest.mark.parametrize("is_fake", [False, True], ids=["eager", "fake"])
@pytest.mark.parametrize("name", MISFITS)
def test_shapes_that_do_not_fit_an_attention_were_errors_of_torch(name: str, is_fake: bool) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    shapes, options, says = MISFITS[name]
    with FakeTensorMode() if is_fake else nullcontext(), pytest.raises(ArgumentError, match=says):
        tilewright.torch.functional.scaled_dot_product_attention(*map(torch.ones, shapes), **options)


@pytest.mark.parametrize("is_fake", [False, True], ids=["eager", "fake"])
def test_batches_of_matrices_that_do_not_broadcast_were_errors_of_torch(is_fake: bool) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    says = r"a has shape \(7, 2, 4, 8\), b has shape \(3, 8, 5\): of each dimension before the last two"
    with FakeTensorMode() if is_fake else nullcontext(), pytest.raises(ArgumentError, match=says):
        tilewright.torch.functional.matmul(torch.ones(7, 2, 4, 8), torch.ones(3, 8, 5))


MODULES = {
    "Linear": ((3, 5), (2, 3)),
    "Conv1d": ((2, 4, 3), (1, 2, 9)),
    "Conv2d": ((2, 4, 3), (1, 2, 9, 9)),
    "Conv3d": ((2, 4, 3), (1, 2, 5, 5, 5)),
    "MaxPool1d": ((3,), (1, 2, 9)),
    "MaxPool2d": ((3,), (1, 2, 9, 9)),
    "MaxPool3d": ((3,), (1, 2, 5, 5, 5)),
    "AdaptiveAvgPool1d": ((1,), (1, 2, 9)),
    "AdaptiveAvgPool2d": ((1,), (1, 2, 9, 9)),
    "AdaptiveAvgPool3d": ((1,), (1, 2, 5, 5, 5)),
    "LayerNorm": ((3,), (2, 3)),
    "RMSNorm": ((3,), (2, 3)),
    "GroupNorm": ((2, 4), (2, 4, 3)),
    "Softmax": ((1,), (2, 3)),
    "MultiheadAttention": ((8, 2), (3, 1, 8)),
}
"""Arguments of each module, and the shape of what it takes."""


def called(name: str, x: Any) -> Any:
    args, _ = MODULES[name]
    module = getattr(tilewright.torch.nn, name)(*args)
    return module(x, x, x) if name == "MultiheadAttention" else module(x)


def test_every_module_is_asked() -> None:
    assert {ours.__name__ for ours in tilewright.torch.nn.SWAPS.values()} == set(MODULES)


@pytest.mark.parametrize("grads", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("name", MODULES)
def test_modules_name_what_is_wrong(name: str, grads: bool) -> None:
    x = torch.ones(MODULES[name][1])
    with torch.set_grad_enabled(grads):
        if name != "Softmax" and "Pool" not in name:  # they have no weights to differ from
            with pytest.raises(ArgumentError, match=r"^\w+ holds torch\.float64, \w+ torch\.float32: convert one"):
                called(name, x.double())
            with pytest.raises(ArgumentError, match=r"^\w+ lies on the device meta, \w+ on cpu: move one"):
                called(name, x.to("meta"))
        with pytest.raises(
            ArgumentError, match=r"holds torch\.complex64, for which there are no kernels|: convert one"
        ):
            called(name, x.cfloat())
        with pytest.raises(ArgumentError, match=r"^\w+ is of type ndarray; it must be a tensor of torch"):
            called(name, x.numpy())
        with pytest.raises(ArgumentError, match=r"dimensions|they do not fit|normalized_shape=|num_groups=|shape"):
            called(name, torch.ones(()))


def test_an_unknown_activation_after_a_residual_of_another_shape_was_a_key_error() -> None:
    x, weight, images, filters = torch.ones(3, 4), torch.ones(5, 4), torch.ones(1, 2, 6), torch.ones(3, 2, 3)
    for call in (
        lambda: functional.linear(x, weight, activation="tan", residual=torch.ones(1)),
        lambda: functional.conv1d(images, filters, activation="tan", residual=torch.ones(1)),
    ):
        with pytest.raises(ArgumentError, match="activation='tan': there are relu, gelu, gelu_tanh, silu, and None"):
            call()


def test_dtypes_of_tensors_that_are_all_none() -> None:
    with pytest.raises(ArgumentError, match="x is None; it must be a tensor"):
        require_same_dtype({"x": None, "weight": None})
