"""Refusal of arguments that torch or JAX traces: they have no values, or calls on them are recorded.

A kernel reads the memory of its arguments and writes the memory of its outputs. A tracer sees neither: the result would
be a constant in its graph, without a derivative, or computed from memory that holds other numbers. torch and JAX are
never imported here: an argument can only be traced if its program has imported them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any

from tilewright.errors import TracedArgument

_OUTSIDE = "call this outside the trace"
_OPERATOR = (
    f"{_OUTSIDE}, or call an operator, which is recorded as one node: one of tilewright.torch, or your own "
    "(torch.library.custom_op)"
)


def refuse_traced(argument: Any, where: str) -> None:
    """Raise TracedArgument if torch or JAX traces `argument`, so that it has no values or calls on it are recorded.

    `where` names the argument in the message.

    >>> refuse_traced(1.0, "x")
    """
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    tensor = getattr(torch, "Tensor", None)  # absent while torch is still being imported
    if tensor is not None and isinstance(argument, tensor):
        reason = _traced_by_torch(argument, torch, tensor)
    else:
        reason = None if torch is None else _proxy_of_torch(argument)
        reason = reason if jax is None or reason is not None else _traced_by_jax(argument, jax)
    if reason is not None:
        raise TracedArgument(f"{where} is {reason}")


def is_transforming(torch: Any) -> bool:
    """True if torch now records or transforms calls: by a trace, a dispatch mode (FakeTensorMode), or a transform such
    as vmap or grad.

    `torch` is the module.
    """
    return _torch_state(torch).is_transforming()


def following_of(torch: Any) -> Callable[[], bool]:
    """Return a function without arguments that returns what `is_transforming(torch)` returns. `torch` is the module.

    It is faster than `is_transforming`, since it looks the module's state up only once, here.
    """
    return _torch_state(torch).is_transforming


# -- JAX ------------------------------------------------------------------------------------------------------


def _traced_by_jax(argument: Any, jax: Any) -> str | None:
    """Return the error text that says why `argument` is refused, if it is a tracer of JAX; else None. `jax` is the
    module."""
    tracer = getattr(getattr(jax, "core", None), "Tracer", None)
    if tracer is None or not isinstance(argument, tracer):
        return None
    return (
        f"a tracer of JAX ({type(argument).__name__}), which has no values while jax.jit, grad or vmap traces; use "
        "tilewright.jax, whose functions JAX traces, or call this outside of them, or through jax.pure_callback, which "
        "calls it with values"
    )


# -- torch ----------------------------------------------------------------------------------------------------


def _proxy_of_torch(argument: Any) -> str | None:
    """Return the error text that says why `argument` is refused, if it is a proxy of torch.fx (a stand-in without
    values); else None."""
    proxy = getattr(sys.modules.get("torch.fx"), "Proxy", None)
    if proxy is None or not isinstance(argument, proxy):
        return None
    return (
        f"a {type(argument).__name__} of torch.fx.symbolic_trace, which has no values; {_OUTSIDE}, or in a function "
        "that torch.fx.wrap makes one node"
    )


def _traced_by_torch(argument: Any, torch: Any, tensor: Any) -> str | None:
    """Return the error text that says why the torch tensor `argument` is refused, with a remedy; None if it is
    accepted.

    A tensor is refused in four cases: its class overrides torch's dispatch; a function transform (vmap, grad) is at
    work; a trace records calls; or it has a forward-mode tangent. `torch` is the module, `tensor` the class
    torch.Tensor.
    """
    ask = _torch_state(torch)
    if type(argument) is not tensor:
        reason = _own_dispatch(argument, tensor)
        if reason is not None:
            return reason
    if ask.is_wrapped(argument) or ask.is_functional(argument):
        return _transformed(argument, ask)
    if not ask.is_transforming():
        return None
    recorder = _recorder(ask)
    if recorder is not None:
        return f"a tensor while {recorder} records what is done; the result would be a constant there: {_OPERATOR}"
    if ask.forward_level() >= 0 and ask.is_forward_enabled() and ask.unpack_dual(argument).tangent is not None:
        return (
            "a dual tensor (torch.autograd.forward_ad), whose tangent would be lost; pass unpack_dual(...).primal, or "
            "call this in the forward of a torch.autograd.Function that has a jvp"
        )
    return None


def _own_dispatch(argument: Any, tensor: Any) -> str | None:
    """Return the error text that says why `argument` is refused, if its class overrides `__torch_dispatch__`; else
    None.

    The memory of these tensors, for example of a FakeTensor, does not hold their values. `tensor` is the class
    torch.Tensor.
    """
    kind = type(argument)
    if kind.__torch_dispatch__ is tensor.__torch_dispatch__:
        return None
    if kind.__name__ == "FakeTensor":
        return f"a FakeTensor, which has a shape and no values, as torch.export and FakeTensorMode make it; {_OPERATOR}"
    return f"a {kind.__name__}, a tensor with operations of its own (__torch_dispatch__); pass a plain tensor"


def _transformed(argument: Any, ask: _TorchState) -> str:
    """Return the error text that says why `argument`, a tensor under a function transform, is refused, with a remedy.

    `ask` is the state of the torch module; it tells which transform it is: vmap; grad, vjp or jvp; or functionalize.
    """
    if ask.is_batched(argument):
        return (
            "a tensor under torch.vmap, which stands for a batch of them; call this outside, on the whole batch, or "
            "call an operator with a rule of vmap: one of tilewright.torch, or your own (torch.library.custom_op)"
        )
    if ask.is_differentiated(argument):
        return (
            "a tensor under torch.func.grad, vjp or jvp, whose derivative would be lost; call this outside, or in the "
            "forward of a torch.autograd.Function with a setup_context"
        )
    return f"a tensor under torch.func.functionalize, whose memory is not its value; {_OPERATOR}"


def _recorder(ask: _TorchState) -> str | None:
    """Return the name of the torch tracer that records calls now, such as "torch.jit.trace"; None if there is none.

    `ask` is the state of the torch module.
    """
    if ask.is_jit_tracing():
        return "torch.jit.trace"
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    if proxies is not None and proxies.get_proxy_mode() is not None:
        return "make_fx or torch.export"
    return "FakeTensorMode" if ask.count_modes() and ask.is_faking() else None


class _NoLevel:
    """Stands for torch's forward-mode differentiation in versions that lack it."""

    _current_level = -1


class _TorchState:
    """Functions of torch that tell whether calls or tensors are traced or transformed. If a version of torch lacks one,
    its replacement answers that nothing is.
    """

    def __init__(self, torch: Any):
        def function(path: str, otherwise: Any = False) -> Callable[..., Any]:
            """Return torch's function at the dotted path `path`; if it is missing, a function that returns
            `otherwise`."""
            question = reduce(lambda part, name: getattr(part, name, None), path.split("."), torch)
            return (lambda *_: otherwise) if question is None else question

        self.is_jit_tracing = function("_C._is_tracing")
        self.is_wrapped = function("_C._functorch.is_functorch_wrapped_tensor")
        self.is_batched = function("_C._functorch.is_batchedtensor")
        self.is_differentiated = function("_C._functorch.is_gradtrackingtensor")
        self.is_functional = function("_is_functional_tensor")
        self.current_transform = function("_C._functorch.peek_interpreter_stack", None)
        self.count_modes = function("_C._len_torch_dispatch_stack", 0)
        self.unpack_dual = function("autograd.forward_ad.unpack_dual")
        self.is_forward_enabled = function("_C._is_fwd_grad_enabled")
        self._mode, self._faking = (
            function("_C._get_dispatch_mode", None),
            function("_C._TorchDispatchModeKey.FAKE", None),
        )
        self._forward = getattr(getattr(torch, "autograd", None), "forward_ad", None)

        key = getattr(getattr(getattr(torch, "_C", None), "DispatchKey", None), "PreDispatch", None)
        is_included = function("_C._dispatch_tls_is_dispatch_key_included")
        self.is_transforming = self._transforming((lambda _: False) if key is None else is_included, key)
        """True if a trace, mode or transform follows calls now."""

    def _transforming(self, is_included: Callable[[Any], bool], key: Any) -> Callable[[], bool]:
        """Return a function without arguments: True if a trace, a dispatch mode or a function transform is active in
        torch now.

        Every plain call uses that function, so it is short. `key` is torch's dispatch key for modes before dispatch;
        `is_included(key)` is True while one is active.
        """
        is_jit_tracing, count_modes, current_transform = self.is_jit_tracing, self.count_modes, self.current_transform
        forward: Any = self._forward if hasattr(self._forward, "_current_level") else _NoLevel

        def is_transforming() -> bool:
            """True if a trace, a dispatch mode or a function transform is active in torch now."""
            return bool(
                is_jit_tracing()
                or count_modes()
                or current_transform()
                or forward._current_level >= 0
                or is_included(key)
            )

        return is_transforming

    def is_faking(self) -> bool:
        """True while torch's FakeTensorMode is active, in which new tensors have no values."""
        return self._mode(self._faking) is not None

    def forward_level(self) -> int:
        """Return the nesting level of torch's forward-mode differentiation; -1 if none is active."""
        return getattr(self._forward, "_current_level", -1)


@lru_cache(maxsize=4)
def _torch_state(torch: Any) -> _TorchState:
    """Return the _TorchState of the module `torch`; it is created at the first call and cached."""
    return _TorchState(torch)
