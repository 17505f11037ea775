"""Gradients of the operator `attention`: each is an operator of its own, computed by one kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tilewright.compiler.kernels import compile
from tilewright.errors import ArgumentError
from tilewright.kernels.attention_gradients import attention_key_gradient, attention_query_gradient, attention_sums
from tilewright.torch.attention import TILE, batch_rule, check, kernel_scale
from tilewright.torch.checks import (
    require_float,
    require_same_device,
    require_same_dtype,
    require_shape,
    require_tensor,
    torch_dtype_of,
)
from tilewright.torch.learning import as_kernel_argument
from tilewright.torch.library import Definition, Result, define

_OPTIONS = "Tensor? bias, bool is_causal, float? scale"
_TENSORS = f"Tensor q, Tensor k, Tensor v, Tensor dout, Tensor logs, Tensor along, {_OPTIONS}"


@lru_cache(maxsize=512)
def _kernel(make: Callable[..., Any], options: tuple[Any, ...], target: str) -> Any:
    """Return the compiled kernel that `make` describes, from a cache.

    `make` is a function of `tilewright.kernels.attention_gradients`. `options` are (element type, True for the causal
    mask, True if there is a bias, scale or None); `target` is a device type ("cpu").
    """
    kind, causal, bias, scale = options
    return compile(make(TILE, kind, causal=causal, bias=bias, scale=scale), strict=True, target=target)


def _call_kernel(
    make: Callable[..., Any], inputs: tuple[Any, ...], outputs: tuple[Any, ...], options: tuple[Any, ...]
) -> None:
    """Call the kernel that `make` describes, which writes to the tensors `outputs`. Nothing is returned.

    `make` is a function of `tilewright.kernels.attention_gradients`. `inputs` are the kernel's input tensors without
    the bias; the queries come first. `options` are (bias or None, is_causal, scale).
    """
    q, (bias, is_causal, scale) = inputs[0], options
    key = (require_float(q, "q").name, is_causal, bias is not None, kernel_scale(q, scale))
    tensors = inputs if bias is None else (*inputs, bias)
    _kernel(make, key, q.device.type)(*map(as_kernel_argument, tensors), *outputs)


# -- the log-sum-exp of scores ------------------------------------------------------------------------------


def _check_sums(q: Any, k: Any, bias: Any, is_causal: bool, scale: float | None) -> Result:
    """Return the shape [b, h, m], dtype (f32 or f64) and device of the log-sum-exp of each row of scores, as a
    `Result`.

    `q` is [b, h, m, d], `k` is [b, h, n, d], and `bias` is [b, h, m, n] or None. Raise ArgumentError if they do not
    fit. `is_causal` and `scale` are not used.
    """
    check(q, k, k, bias, is_causal, scale)
    return Result(tuple(q.shape[:3]), torch_dtype_of(require_float(q, "q").accumulator), q.device)


def _run_sums(expected: Result, q: Any, k: Any, *options: Any) -> Any:
    """Return the log-sum-exp of each row of scores of the real tensors `q` and `k`, by one kernel.

    `expected` is the `Result` of `_check_sums`. `options` are bias, is_causal and scale. Two cases need no kernel: an
    empty result, and no keys, which gives -inf.
    """
    logs = expected.empty()
    if not logs.numel():
        return logs
    if not k.shape[2]:
        return logs.fill_(float("-inf"))
    _call_kernel(attention_sums, (q, k), (logs,), options)
    return logs


ATTENTION_SUMS = define(
    Definition(
        "attention_sums",
        f"(Tensor q, Tensor k, {_OPTIONS}) -> Tensor",
        _check_sums,
        _run_sums,
        vmap=batch_rule("attention_sums"),
    )
)


# -- the gradients with respect to queries, and to keys and values ------------------------------------------


def _check_tensors(
    q: Any, k: Any, v: Any, dout: Any, logs: Any, along: Any, bias: Any, is_causal: bool, scale: float | None
) -> None:
    """Raise ArgumentError unless the arguments of an operator that computes a gradient of `attention` fit.

    `q`, `k`, `v`, `bias`, `is_causal` and `scale` are the arguments of `attention`. `dout` has the shape and dtype of
    its result. `logs` (log-sum-exp) and `along` (sum of output * dout) have a number for each query: [b, h, m], in the
    accumulator's type, f32 or f64.
    """
    output = check(q, k, v, bias, is_causal, scale)
    tensors = {"dout": dout, "logs": logs, "along": along}
    for name, tensor in tensors.items():
        require_tensor(tensor, name)
    require_same_device({"q": q, **tensors})
    require_same_dtype({"q": q, "dout": dout})
    require_shape(dout, "dout", output.shape, "as the result of attention")
    sums = _check_sums(q, k, bias, is_causal, scale)
    for name, tensor in (("logs", logs), ("along", along)):
        require_shape(tensor, name, sums.shape, "one for each query")
        if tensor.dtype is not sums.dtype:
            raise ArgumentError(f"{name} holds {tensor.dtype}; it must hold {sums.dtype}, as the accumulator")


def _check_query_gradient(*args: Any) -> Result:
    """Return the shape, dtype and device of the gradient with respect to the queries, as a `Result`: those of the
    queries.

    `args` are the arguments of `_check_tensors`. Raise ArgumentError if they do not fit.
    """
    _check_tensors(*args)
    q = args[0]
    return Result(tuple(q.shape), q.dtype, q.device)


def _run_query_gradient(expected: Result, *args: Any) -> Any:
    """Return the gradient of attention with respect to the queries, by one kernel.

    `args` are the arguments of `_check_tensors`; the tensors are real. `expected` is the `Result` of
    `_check_query_gradient`. If one of the first six tensors is empty, return zeros without a kernel.
    """
    tensors, options = args[:6], args[6:]
    dq = expected.empty()
    if not all(t.numel() for t in tensors):
        return dq.zero_()
    _call_kernel(attention_query_gradient, tensors, (dq,), options)
    return dq


ATTENTION_QUERY_GRADIENT = define(
    Definition(
        "attention_query_gradient",
        f"({_TENSORS}) -> Tensor",
        _check_query_gradient,
        _run_query_gradient,
        vmap=batch_rule("attention_query_gradient"),
    )
)


def _check_key_gradient(*args: Any) -> tuple[Result, Result]:
    """Return two `Result`s with the shapes, dtypes and devices of the gradients with respect to keys and values, in
    this order.

    They are those of the keys and of the values. `args` are the arguments of `_check_tensors`. Raise ArgumentError if
    they do not fit.
    """
    _check_tensors(*args)
    _, k, v, *_ = args
    return Result(tuple(k.shape), k.dtype, k.device), Result(tuple(v.shape), v.dtype, v.device)


def _run_key_gradient(expected: tuple[Result, Result], *args: Any) -> tuple[Any, Any]:
    """Return (gradient of attention with respect to the keys, gradient with respect to the values), by one kernel.

    `args` are the arguments of `_check_tensors`; the tensors are real. `expected` has the `Result` of each gradient. If
    `v` or `dout` is empty, return zeros without a kernel.
    """
    tensors, options = args[:6], args[6:]
    dk, dv = (form.empty() for form in expected)
    if not dv.numel() or not tensors[3].numel():
        return dk.zero_(), dv.zero_()
    _call_kernel(attention_key_gradient, tensors, (dk, dv), options)
    return dk, dv


ATTENTION_KEY_GRADIENT = define(
    Definition(
        "attention_key_gradient",
        f"({_TENSORS}) -> (Tensor, Tensor)",
        _check_key_gradient,
        _run_key_gradient,
        vmap=batch_rule("attention_key_gradient"),
    )
)
