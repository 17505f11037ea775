"""The library `torch.ops.tilewright`: what makes a function one operator for everything in torch that follows calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from tilewright.errors import ArgumentError, MissingBackward
from tilewright.targets.calls.table import UNLIKE
from tilewright.torch.batching import looped
from tilewright.torch.learning import OperatorCalls

NAMESPACE = "tilewright"
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
"""Owns the operators: they live as long as it."""
AUTOCAST = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
"""Devices, and the dispatch keys of their autocast rules."""

Backward = Callable[[Any, tuple[Any, ...], Any, Sequence[bool]], Sequence[Any]]
"""(gradient, inputs, output, which inputs need a gradient) -> a gradient or None for each input."""


@dataclass(frozen=True)
class Result:
    """An operator's result before it is computed: shape, element type, device, and how it lies in memory."""

    shape: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device
    channels_last: bool = False
    """Whether dimension 1 is innermost in memory; otherwise it is contiguous."""

    def empty(self) -> Any:
        """A tensor of this form whose values are not set."""
        if not self.channels_last:
            return torch.empty(self.shape, dtype=self.dtype, device=self.device)
        n, c, *sizes = self.shape
        return torch.empty((n, *sizes, c), dtype=self.dtype, device=self.device).movedim(-1, 1)


def is_channels_last(x: Any) -> bool:
    """Whether dimension 1 of a tensor is innermost in memory; where it might be either, no."""
    return x.dim() > 2 and not x.is_contiguous() and bool(x.movedim(1, -1).is_contiguous())


@dataclass(frozen=True)
class Definition:
    """An operator: its schema, what it computes, and what torch's transforms make of it.

    `check` raises for arguments that do not fit and gives the result's form: fake tensors and real ones go through it
    alike. It may look at forms alone, not at values. `run` takes that form, then the arguments, and computes the result
    of real tensors. It is learnt where it calls one kernel, with what functions of `torch.learning` give.
    """

    name: str
    schema: str
    check: Callable[..., Result | tuple[Result, ...]]
    run: Callable[..., Any]
    backward: Backward | None = None
    keeps_output: bool = False
    """Whether the backward reads the output."""
    vmap: Callable[..., tuple[Any, Any]] | None = None
    """torch's rule `(info, in_dims, *args) -> (result, out_dim)`; None: one call for each element of the batch."""
    learns: bool = True
    """Whether calls are learnt; False: each does more than the first one shows."""
    autocast: str | None = None
    """"lower" casts floats to autocast's type, "f32" widens them; None leaves them."""
    uncast: tuple[str, ...] = ()
    """Arguments that autocast leaves as they are: they are in the type of sums already."""


class CheckedForms:
    """A check of real tensors that is made once for arguments of the same forms.

    >>> seen = []
    >>> checked = CheckedForms(lambda x, n: seen.append(n) or Result((n,), x.dtype, x.device))
    >>> [checked(form_of(args), args).shape for args in ((torch.ones(2), n) for n in (3, 3, 4))], seen
    ([(3,), (3,), (4,)], [3, 4])
    """

    MOST = 4096
    """Forms, at most, that are remembered; then all are forgotten."""

    def __init__(self, check: Callable[..., Result | tuple[Result, ...]]):
        self._check = check
        self._known: dict[Any, Result | tuple[Result, ...]] = {}

    def __call__(self, form: Any, args: Sequence[Any]) -> Result | tuple[Result, ...]:
        """The form of the result of arguments that have this `form_of`; raises for arguments that do not fit."""
        expected = self._known.get(form)
        if expected is None:
            expected = self._check(*args)
            if len(self._known) >= self.MOST:
                self._known.clear()
            self._known[form] = expected
        return expected


def form_of(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return all that a check may see of arguments, as a key."""
    return tuple([_form(a) for a in args])


def _form(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    return (list, *value) if isinstance(value, list | tuple) else (type(value), value)


def define(definition: Definition) -> Any:
    """The operator `torch.ops.tilewright.NAME`, registered with all its rules."""
    name = _free_name(definition.name)
    qualified = f"{NAMESPACE}::{name}"
    torch.library.define(qualified, definition.schema, lib=LIBRARY, tags=_tags())
    packet = getattr(getattr(torch.ops, NAMESPACE), name)

    calls, checked = OperatorCalls(definition.learns), CheckedForms(definition.check)

    def run(*args: Any) -> Any:
        result = calls.call_below(*args)
        if result is not UNLIKE:
            return result
        key = form_of(args)
        expected = checked(key, args)
        # torch.jit.trace follows the operator, not what it is made of.
        with _Untraced():
            return calls.run(key, partial(definition.run, expected), args)

    def fake(*args: Any) -> Any:
        expected = definition.check(*args)
        return tuple(e.empty() for e in expected) if isinstance(expected, tuple) else expected.empty()

    torch.library.impl(qualified, "CompositeExplicitAutograd", run, lib=LIBRARY)
    torch.library.register_fake(qualified, fake, lib=LIBRARY)
    vmap = definition.vmap or looped(name, packet.default)
    torch.library.register_vmap(qualified, vmap, lib=LIBRARY)
    LIBRARY.impl(name, _differentiated(definition, packet.default, calls), "Autograd")
    if definition.autocast is not None:
        for device, key in AUTOCAST.items():
            LIBRARY.impl(name, _cast_before(packet.default, device, key, definition), key)
    return packet


def _free_name(name: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ArgumentError(f"name={name!r}: an operator's name is letters, digits and _, as in name='row_sums'")
    if hasattr(getattr(torch.ops, NAMESPACE), name):
        raise ArgumentError(f"name={name!r}: torch.ops.{NAMESPACE}.{name} exists already; choose another name")
    return name


def _tags() -> tuple[Any, ...]:
    """Results lie in memory as arguments do: compilers keep the strides that were traced."""
    exact = getattr(torch.Tag, "needs_exact_strides", None) or torch.Tag.needs_fixed_stride_order
    return (torch.Tag.pt2_compliant_tag, exact)


# -- autograd ---------------------------------------------------------------------------------------------


def _differentiated(definition: Definition, operator: Any, calls: OperatorCalls) -> Callable[..., Any]:
    """The kernel of the dispatch key Autograd: it records the operator where a gradient may be asked for.

    torch.library.register_autograd would do, but for torch.func.grad and its kin, which refuse what it registers. They
    call this kernel once for each of their levels: what it records is of one level.
    """

    def forward(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args)

    function = type(
        f"{definition.name}_recorded",
        (torch.autograd.function._SingleLevelFunction,),
        {
            "forward": staticmethod(forward),
            "setup_context": staticmethod(_saving(definition)),
            "backward": staticmethod(_backward(definition)),
        },
    )

    any_requires_grad, is_tracing = torch._C._any_requires_grad, torch._C._is_tracing
    count_modes, current_transform = torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack

    def call(*args: Any) -> Any:
        if forward_ad._current_level >= 0:
            _refuse_tangents(definition.name, args)
        if any_requires_grad(*args) and torch.is_grad_enabled():
            with enable_single_level_autograd_function():
                return function.apply(*args)  # type: ignore[attr-defined]
        if not (is_tracing() or count_modes() or current_transform()):  # plain tensors would only get to `run`
            result = calls.call_below(*args)
            if result is not UNLIKE:
                return result
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args)

    return call


def _refuse_tangents(name: str, args: Sequence[Any]) -> None:
    """Raises where torch follows derivatives forward, in which those of an operator would be lost."""
    if not torch._C._is_fwd_grad_enabled():
        return
    for value in args:
        if isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None:
            raise MissingBackward(
                f"torch.ops.{NAMESPACE}.{name} has no derivative in forward mode (jvp, jacfwd): use torch.func.vjp"
            )


def _saving(definition: Definition) -> Callable[..., None]:
    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors = [a for a in inputs if isinstance(a, torch.Tensor)]
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.count = len(inputs)
        ctx.others = [None if isinstance(a, torch.Tensor) else (a,) for a in inputs]
        ctx.is_tuple = isinstance(output, tuple)
        if definition.backward is not None:
            ctx.save_for_backward(*tensors, *(outputs if definition.keeps_output else ()))

    return setup


def _backward(definition: Definition) -> Callable[..., Any]:
    arguments = torch._C.parse_schema(f"{NAMESPACE}::{definition.name}{definition.schema}").arguments

    def backward(ctx: Any, *gradients: Any) -> Any:
        if definition.backward is None:
            raise MissingBackward(
                f"torch.ops.{NAMESPACE}.{definition.name} has no backward: call it under torch.no_grad(), or use "
                "torch's own function where gradients are needed"
            )
        saved = iter(ctx.saved_tensors)
        given = [next(saved) if each is None else each[0] for each in ctx.others]
        left_out = arguments[len(given) :]
        inputs = (*given, *(a.default_value for a in left_out))
        rest = tuple(saved)
        output = None if not rest else rest if ctx.is_tuple else rest[0]
        needed = [*ctx.needs_input_grad, *[False] * len(left_out)]
        gradients_of_inputs = definition.backward(gradients if ctx.is_tuple else gradients[0], inputs, output, needed)
        return tuple(gradients_of_inputs)[: ctx.count]

    return backward


# -- autocast ---------------------------------------------------------------------------------------------


def _cast_before(operator: Any, device: str, key: str, definition: Definition) -> Callable[..., Any]:
    """The operator on arguments that are cast as autocast says."""
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    uncast = {n for n, a in enumerate(operator._schema.arguments) if a.name in definition.uncast}

    def call(*args: Any) -> Any:
        dtype = torch.float32 if definition.autocast == "f32" else torch.get_autocast_dtype(device)
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return operator(*(a if n in uncast else _cast(a, dtype, device) for n, a in enumerate(args)))

    return call


def _cast(value: Any, dtype: torch.dtype, device: str) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.device.type != device:
        return value
    return value if value.dtype is torch.float64 else value.to(dtype)


# -- jit.trace --------------------------------------------------------------------------------------------


class _Untraced:
    """While it is entered, torch.jit.trace records nothing."""

    def __enter__(self) -> None:
        self._state = torch._C._get_tracing_state()
        if self._state is not None:
            torch._C._set_tracing_state(None)

    def __exit__(self, *_: object) -> None:
        if self._state is not None:
            torch._C._set_tracing_state(self._state)
