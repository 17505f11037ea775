"""The library `torch.ops.tilewright`: registers operators, with rules for tracing and differentiating them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from tilewright.errors import ArgumentError, MissingBackward
from tilewright.targets.calls.table import UNLIKE
from tilewright.torch.batching import loop_rule
from tilewright.torch.learning import OperatorCalls

NAMESPACE = "tilewright"
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
"""Owns the operators: they are registered as long as it exists."""
AUTOCAST = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
"""The dispatch key of the autocast rules of each type of device."""

Backward = Callable[[Any, tuple[Any, ...], Any, Sequence[bool]], Sequence[Any]]
"""(gradient of output, inputs, output or None, which inputs need a gradient) -> gradient or None for each input."""


@dataclass(frozen=True)
class Result:
    """The shape, dtype, device and memory format of an operator's result, known before it is computed."""

    shape: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device
    channels_last: bool = False
    """True if dimension 1 is innermost in memory; False: the result is contiguous."""

    def empty(self) -> Any:
        """Return an uninitialised tensor of this shape, dtype, device and memory format."""
        if not self.channels_last:
            return torch.empty(self.shape, dtype=self.dtype, device=self.device)
        n, c, *sizes = self.shape
        return torch.empty((n, *sizes, c), dtype=self.dtype, device=self.device).movedim(-1, 1)


def is_channels_last(x: Any) -> bool:
    """True if dimension 1 of the tensor `x` is innermost in memory (channels last), and the elements have no gaps.

    False if `x` has less than 3 dimensions, or is also contiguous in the usual order.
    """
    return x.dim() > 2 and not x.is_contiguous() and bool(x.movedim(1, -1).is_contiguous())


@dataclass(frozen=True)
class Definition:
    """An operator: its schema, its computation, and its rules for autograd, vmap and autocast.

    `check` raises for arguments that do not fit and returns the result's shape, dtype and device. It gets fake or real
    tensors and must not read their values. `run` takes that `Result`, then the arguments, and computes the result of
    real tensors. A call is learnt if it calls one kernel, with arrays from the functions of `torch.learning`.
    """

    name: str
    schema: str
    check: Callable[..., Result | tuple[Result, ...]]
    run: Callable[..., Any]
    backward: Backward | None = None
    keeps_output: bool = False
    """True if the backward reads the output."""
    vmap: Callable[..., tuple[Any, Any]] | None = None
    """torch's rule `(info, in_dims, *args) -> (result, out_dim)`; None: one call for each element of the batch."""
    learns: bool = True
    """True if later calls may repeat the launch of an observed one; False: a call may do more than the first shows."""
    autocast: str | None = None
    """"lower" casts floats to autocast's dtype, "f32" casts them to float32; None leaves them unchanged."""
    uncast: tuple[str, ...] = ()
    """Names of arguments that autocast leaves unchanged, because they already have the accumulator's type."""


class CheckedForms:
    """A check of real tensors that runs once for all arguments with equal `argument_key`.

    >>> seen = []
    >>> checked = CheckedForms(lambda x, n: seen.append(n) or Result((n,), x.dtype, x.device))
    >>> [checked(argument_key(args), args).shape for args in ((torch.ones(2), n) for n in (3, 3, 4))], seen
    ([(3,), (3,), (4,)], [3, 4])
    """

    MOST = 4096
    """The most results that are remembered; beyond that, all are forgotten."""

    def __init__(self, check: Callable[..., Result | tuple[Result, ...]]):
        """Take the operator's `check`, as in `Definition`."""
        self._check = check
        self._known: dict[Any, Result | tuple[Result, ...]] = {}

    def __call__(self, key: Any, args: Sequence[Any]) -> Result | tuple[Result, ...]:
        """Return the `Result` of a call with the arguments `args`, a tuple for several results. `key` is
        `argument_key(args)`.

        Raise the error of the operator's check if the arguments do not fit.
        """
        expected = self._known.get(key)
        if expected is None:
            expected = self._check(*args)
            if len(self._known) >= self.MOST:
                self._known.clear()
            self._known[key] = expected
        return expected


def argument_key(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return a hashable key of an operator's arguments: equal keys mean that a check gives equal results.

    It is a tuple with an entry for each argument: (shape, strides, dtype, device) of a tensor, else type and value.
    """
    return tuple([_value_key(a) for a in args])


def _value_key(value: Any) -> Any:
    """Return a hashable key of one argument.

    It is (shape, strides, dtype, device) for a tensor, (list, *elements) for a list or tuple, and else (type, value).
    """
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    return (list, *value) if isinstance(value, list | tuple) else (type(value), value)


def define(definition: Definition) -> Any:
    """Register the operator `torch.ops.tilewright.NAME` that `definition` describes, and return it.

    The operator gets functions for real and for fake tensors, rules for autograd and vmap, and a rule for autocast if
    `definition.autocast` is not None. Raise ArgumentError if the name is no identifier, or is used already.
    """
    name = _require_unused_name(definition.name)
    qualified = f"{NAMESPACE}::{name}"
    torch.library.define(qualified, definition.schema, lib=LIBRARY, tags=_tags())
    packet = getattr(getattr(torch.ops, NAMESPACE), name)

    calls, checked = OperatorCalls(definition.learns), CheckedForms(definition.check)

    def run(*args: Any) -> Any:
        """Return the operator's result on real tensors; `args` are all arguments of the call.

        If a recorded launch fits the call, the launch is repeated. Otherwise the arguments are checked, unless
        arguments with the same `argument_key` were, and `definition.run` computes the result.
        """
        result = calls.call_below(*args)
        if result is not UNLIKE:
            return result
        key = argument_key(args)
        expected = checked(key, args)
        # torch.jit.trace records the operator, not the calls inside it.
        with _Untraced():
            return calls.run(key, partial(definition.run, expected), args)

    def fake(*args: Any) -> Any:
        """Return an uninitialised tensor of the shape and dtype of the operator's result; a tuple of them for several
        results.

        `args`, which may be fake tensors or meta tensors without values, are checked first. The operator is also
        registered in Inductor, if that is imported.
        """
        _register_in_inductor(packet.default)
        expected = definition.check(*args)
        return tuple(form.empty() for form in expected) if isinstance(expected, tuple) else expected.empty()

    torch.library.impl(qualified, "CompositeExplicitAutograd", run, lib=LIBRARY)
    torch.library.register_fake(qualified, fake, lib=LIBRARY)
    vmap = definition.vmap or loop_rule(name, packet.default)
    torch.library.register_vmap(qualified, vmap, lib=LIBRARY)
    LIBRARY.impl(name, _autograd_kernel(definition, packet.default, calls), "Autograd")
    if definition.autocast is not None:
        for device, key in AUTOCAST.items():
            LIBRARY.impl(name, _autocast_kernel(packet.default, device, key, definition), key)
    return packet


def _require_unused_name(name: Any) -> str:
    """Return `name` unchanged. Raise ArgumentError unless it is an identifier (letters, digits, `_`) that names no
    operator of the library yet."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ArgumentError(f"name={name!r}: an operator's name is letters, digits and _, as in name='row_sums'")
    if hasattr(getattr(torch.ops, NAMESPACE), name):
        raise ArgumentError(f"name={name!r}: torch.ops.{NAMESPACE}.{name} exists already; choose another name")
    return name


def _tags() -> tuple[Any, ...]:
    """Return the two torch.Tag that all operators have, as a tuple.

    The first says that the operator complies with torch.compile. The second says that compilers must keep the strides
    of the traced tensors.
    """
    exact = getattr(torch.Tag, "needs_exact_strides", None) or torch.Tag.needs_fixed_stride_order
    return (torch.Tag.pt2_compliant_tag, exact)


def _register_in_inductor(operator: Any) -> None:
    """Register `operator` in Inductor, so that generated code calls the operator itself, with the strides of the traced
    tensors.

    Do nothing if Inductor is not imported or has the operator already. Inductor would register it when it first meets
    it. But torch 2.11 first formats the operator's arguments for a log message, and each argument contains the whole
    expression that computes it: in networks with residuals that text grows exponentially.
    """
    lowering = sys.modules.get("torch._inductor.lowering")
    constraint_of_tag = getattr(lowering, "tag_to_layout_constraint", None)
    if lowering is not None and constraint_of_tag is not None and operator not in lowering.lowerings:
        lowering.make_fallback(operator, layout_constraint=constraint_of_tag(_tags()[1]))


# -- autograd ---------------------------------------------------------------------------------------------


def _autograd_kernel(definition: Definition, operator: Any, calls: OperatorCalls) -> Callable[..., Any]:
    """Return the operator's function for the dispatch key Autograd: it takes the operator's arguments and returns the
    result.

    It records the call for autograd if an argument requires a gradient. `definition` has the backward, `calls` has the
    recorded launches, and `operator` computes the result below autograd.

    torch.library.register_autograd is not used: torch.func.grad and similar transforms reject operators registered with
    it. They call this function once for each of their levels, and each call records one level.
    """

    def forward(*args: Any) -> Any:
        """Return the operator's result for `args`, computed below autograd: this level of autograd records nothing.

        Both modes of differentiation, which torch disables in this function, are enabled again: outer levels of
        torch.func's transforms, which call the operator again, need them.
        """
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), torch._C._AutoDispatchBelowAutograd():
            return operator(*args)

    function = type(
        f"{definition.name}_recorded",
        (torch.autograd.function._SingleLevelFunction,),
        {
            "forward": staticmethod(forward),
            "setup_context": staticmethod(_context_setup(definition)),
            "backward": staticmethod(_backward_function(definition)),
        },
    )

    any_requires_grad, is_tracing = torch._C._any_requires_grad, torch._C._is_tracing
    count_modes, current_transform = torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack

    def call(*args: Any) -> Any:
        """Return the operator's result for `args`, and record the call for the backward if an argument requires a
        gradient.

        If nothing is recorded, traced or transformed, a recorded launch that fits the call is repeated without torch's
        dispatcher. Raise MissingBackward if an argument carries a forward-mode derivative.
        """
        if forward_ad._current_level >= 0:
            _refuse_forward_mode(definition.name, args)
        if any_requires_grad(*args) and torch.is_grad_enabled():
            with enable_single_level_autograd_function():
                return function.apply(*args)  # type: ignore[attr-defined]
        if not (is_tracing() or count_modes() or current_transform()):  # no tracing or transforms: skip the dispatcher
            result = calls.call_below(*args)
            if result is not UNLIKE:
                return result
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args)

    return call


def _refuse_forward_mode(name: str, args: Sequence[Any]) -> None:
    """Raise MissingBackward if one of `args` carries a forward-mode derivative (jvp), which the operator would drop.

    `args` are all arguments of the call, `name` is the operator's name in the error. Nothing is raised where torch has
    disabled forward mode.
    """
    if not torch._C._is_fwd_grad_enabled():
        return
    for value in args:
        if isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None:
            raise MissingBackward(
                f"torch.ops.{NAMESPACE}.{name} has no derivative in forward mode (jvp, jacfwd): use torch.func.vjp"
            )


def _context_setup(definition: Definition) -> Callable[..., None]:
    """Return the function `setup_context` of a torch.autograd.Function for the operator that `definition` describes.

    The function saves a call's arguments, and its output if the backward reads that.
    """

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Set attributes of `ctx` that the backward needs: the arguments of the call, and the output if
        `definition.keeps_output`.

        `inputs` are all arguments, tensors and others; `output` is a tensor or a tuple. Tensors are saved only if the
        definition has a backward.
        """
        tensors = [a for a in inputs if isinstance(a, torch.Tensor)]
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.count = len(inputs)
        ctx.others = [None if isinstance(a, torch.Tensor) else (a,) for a in inputs]
        ctx.is_tuple = isinstance(output, tuple)
        if definition.backward is not None:
            ctx.save_for_backward(*tensors, *(outputs if definition.keeps_output else ()))

    return setup


def _backward_function(definition: Definition) -> Callable[..., Any]:
    """Return the function `backward` of a torch.autograd.Function for the operator that `definition` describes.

    It takes (context, *gradients of the outputs) and returns a tuple with a gradient or None for each argument of the
    call, computed by `definition.backward`. It raises MissingBackward if that is None.
    """
    arguments = torch._C.parse_schema(f"{NAMESPACE}::{definition.name}{definition.schema}").arguments

    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return a tuple with a gradient or None for each argument that the call passed, computed by
        `definition.backward`.

        `gradients` are with respect to the outputs. `ctx` has what `setup` saved. Arguments that the call left out have
        their defaults. Raise MissingBackward if the definition has no backward.
        """
        if definition.backward is None:
            raise MissingBackward(
                f"torch.ops.{NAMESPACE}.{definition.name} has no backward: call it under torch.no_grad(), or use "
                "torch's own function where gradients are needed"
            )
        saved = iter(ctx.saved_tensors)
        passed = [next(saved) if other is None else other[0] for other in ctx.others]
        defaulted = arguments[len(passed) :]
        inputs = (*passed, *(a.default_value for a in defaulted))
        saved_outputs = tuple(saved)
        output = None if not saved_outputs else saved_outputs if ctx.is_tuple else saved_outputs[0]
        needed = [*ctx.needs_input_grad, *[False] * len(defaulted)]
        gradients_of_inputs = definition.backward(gradients if ctx.is_tuple else gradients[0], inputs, output, needed)
        return tuple(gradients_of_inputs)[: ctx.count]

    return backward


# -- autocast ---------------------------------------------------------------------------------------------


def _autocast_kernel(operator: Any, device: str, key: str, definition: Definition) -> Callable[..., Any]:
    """Return the function that replaces `operator` under autocast: it casts the tensors, then calls the operator.

    `device` is the type of device ("cpu") whose tensors are cast. `key` ("AutocastCPU") is its dispatch key, which is
    switched off during the call. `definition` names the dtype, and the arguments that are not cast.
    """
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    uncast = {n for n, a in enumerate(operator._schema.arguments) if a.name in definition.uncast}

    def call(*args: Any) -> Any:
        """Return the operator's result on `args`, after casting their float tensors: to float32 if
        `definition.autocast` is "f32", else to autocast's dtype.

        float64 tensors and arguments named in `definition.uncast` are not cast.
        """
        dtype = torch.float32 if definition.autocast == "f32" else torch.get_autocast_dtype(device)
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return operator(*(a if n in uncast else _cast(a, dtype, device) for n, a in enumerate(args)))

    return call


def _cast(value: Any, dtype: torch.dtype, device: str) -> Any:
    """Return `value` converted to `dtype` if it is a floating-point tensor on a device of type `device`.

    float64 tensors and all other values are returned unchanged.
    """
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.device.type != device:
        return value
    return value if value.dtype is torch.float64 else value.to(dtype)


# -- jit.trace --------------------------------------------------------------------------------------------


class _Untraced:
    """A context in which torch.jit.trace records nothing."""

    def __enter__(self) -> None:
        """Clear the tracing state of torch.jit.trace, if a trace is running, and keep it for `__exit__`."""
        self._state = torch._C._get_tracing_state()
        if self._state is not None:
            torch._C._set_tracing_state(None)

    def __exit__(self, *_: object) -> None:
        """Restore the tracing state that `__enter__` has cleared."""
        if self._state is not None:
            torch._C._set_tracing_state(self._state)
