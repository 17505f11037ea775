"""Calls of operators that are learnt: the first call of a kind is observed, later ones repeat its kernel launch
without Python.

For this, every array that `run` of an operator passes to its kernel must be traceable to an argument: a view that
begins at the argument's address (`as_kernel_argument`), a view or copy with another shape (`as_reshaped_argument`), or
a `constant`. The operator's result is the kernel's output, a view of it, or a contiguous copy (`as_contiguous`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.targets.calls.observing import observed, observer
from tilewright.targets.cpu.operator_cache import OperatorCache


def as_kernel_argument(tensor: Any) -> Any:
    """Return `tensor` detached from autograd, as kernels take it: with its strides if it is on the CPU, else
    contiguous.

    On a GPU, the result is a copy if `tensor` is not contiguous; a call with such a copy is not learnt (recorded, to be
    repeated by later calls).
    """
    plain = tensor.detach()
    return plain if plain.is_cpu else plain.contiguous()


def as_reshaped_argument(tensor: Any, shape: tuple[int, ...]) -> Any:
    """Return `tensor` detached and reshaped to `shape`, as a kernel's argument: a view if possible, else a copy.

    `shape` may contain -1, as in torch's reshape. A copy that the reshape makes is reported to the observer of the
    operator's call, so that later calls that repeat the launch copy too.
    """
    plain = as_kernel_argument(tensor)
    reshaped_tensor = plain.reshape(shape)
    if reshaped_tensor.data_ptr() != plain.data_ptr():
        _record_copy(reshaped_tensor, plain)
    return reshaped_tensor


def as_contiguous(tensor: Any) -> Any:
    """Return `tensor` detached from autograd and contiguous: a view of it if it is contiguous, else a copy.

    A copy is reported to the observer of the operator's call, so that later calls that repeat the launch copy too.
    """
    plain = tensor.detach()
    contiguous = plain.contiguous()
    if contiguous is not plain:
        _record_copy(contiguous, plain)
    return contiguous


def _record_copy(copy: Any, tensor: Any) -> None:
    """Report to the observer of this thread's operator call that `copy` is a copy of `tensor`. Do nothing if there is
    no observer."""
    events = observer()
    if events is not None:
        events.copies.append((copy, tensor))


def constant(like: Any, shape: tuple[int, ...], value: float) -> Any:
    """Return a tensor of the given `shape` filled with `value`, with the device and dtype of the tensor `like`.

    It stands for an argument that the call leaves out, such as a weight of ones. The observer of this thread's operator
    call, if there is one, is told that the tensor is a constant.
    """
    tensor = like.new_full(shape, value)
    events = observer()
    if events is not None:
        events.constants.append(tensor)
    return tensor


class OperatorCalls(OperatorCache):
    """The learnt calls of one operator: kernel launches that later calls repeat, if their arguments have the same
    shapes, strides and dtypes.
    """

    __slots__ = ("_learns", "_unlearnable")
    MOST = 4096
    """The most kinds of calls remembered as not learnable; beyond that, all are forgotten."""

    def __init__(self, learns: bool = True) -> None:
        """Start without learnt calls; with `learns` False, no call is ever learnt."""
        super().__init__()
        self._learns = learns
        self._unlearnable: set[Any] = set()

    def run(self, key: Any, compute: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Return `compute(*args)`, the operator's result, and record its kernel launch for later calls, if possible.

        `key` is `argument_key(args)`. If a call cannot be recorded, its key is remembered, and later calls with this
        key are only computed. All such keys are forgotten when there are MOST of them and another one comes. While a
        call is recorded, `compute` gets copies of tensors that begin at the address of a later argument. The caller has
        checked `args`.
        """
        if not self._is_learnable(key, args):
            return compute(*args)
        separate = _without_shared_addresses(args)
        with observed() as events:
            result = compute(*separate)
        if not self.learn(separate, result if isinstance(result, tuple) else (result,), events):
            if len(self._unlearnable) >= self.MOST:
                self._unlearnable.clear()
            self._unlearnable.add(key)
        return result

    def _is_learnable(self, key: Any, args: Sequence[Any]) -> bool:
        """True if it makes sense to try to record a call with the arguments `args`, of which `key` is the
        `argument_key`.

        Four conditions must hold: all tensors are on the host; the launch table can describe all arguments; no call
        with this key failed to be recorded before; and the constructor got `learns=True`.
        """
        if not self._learns or key in self._unlearnable:
            return False
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        return all(t.is_cpu for t in tensors) and self.describe(args) is not None


def _without_shared_addresses(args: Sequence[Any]) -> list[Any]:
    """Return a list of `args`, in which a tensor that begins at the address of a later tensor is replaced by a copy.

    Copies have the same values and strides. Then an array of a kernel has the address of one argument only. The earlier
    tensor is the one copied, because weights, which are recognised by identity, come later.
    """
    addresses: set[int] = set()
    separate = list(args)
    for n in reversed(range(len(separate))):
        tensor = separate[n]
        if not isinstance(tensor, torch.Tensor):
            continue
        if tensor.data_ptr() in addresses:
            span = 1 + sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
            memory = tensor.detach().as_strided((span,), (1,)).clone()
            separate[n] = memory.as_strided(tensor.shape, tensor.stride())
        addresses.add(separate[n].data_ptr())
    return separate
