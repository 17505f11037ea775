"""Operators that are learnt: the first call of its kind is observed, later ones are one native call.

What `run` of an operator hands to its kernel must come from its arguments in ways that can be told: a view that begins
where the argument does (`as_called`), a view or a copy in another shape (`reshaped`), or a `constant`. Its result is
the kernel's output, a view of it, or a contiguous copy of that (`packed`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.targets.calls.observing import observed, observer
from tilewright.targets.cpu.operator_cache import OperatorCache


def as_called(tensor: Any) -> Any:
    """A tensor as layers and kernels are called with it, without gradients.

    On the host it lies as it lies: a call like it is known by its strides, and copies it. On a GPU it is contiguous:
    launches there are not learnt for copies.
    """
    plain = tensor.detach()
    return plain if plain.is_cpu else plain.contiguous()


def reshaped(tensor: Any, shape: tuple[int, ...]) -> Any:
    """A tensor as `as_called` gives it, in another shape: a view, or a copy where there is none."""
    plain = as_called(tensor)
    other = plain.reshape(shape)
    if other.data_ptr() != plain.data_ptr():
        _tell_of_copy(other, plain)
    return other


def packed(tensor: Any) -> Any:
    """A tensor without gaps, and without gradients: itself, or a copy."""
    plain = tensor.detach()
    contiguous = plain.contiguous()
    if contiguous is not plain:
        _tell_of_copy(contiguous, plain)
    return contiguous


def _tell_of_copy(copy: Any, tensor: Any) -> None:
    events = observer()
    if events is not None:
        events.copies.append((copy, tensor))


def constant(like: Any, shape: tuple[int, ...], value: float) -> Any:
    """A tensor of one number for an argument that was left out, where `like` lies and of its element type."""
    tensor = like.new_full(shape, value)
    events = observer()
    if events is not None:
        events.constants.append(tensor)
    return tensor


class OperatorCalls(OperatorCache):
    """The calls that were learnt of one operator."""

    __slots__ = ("_learns", "_unlearnable")
    MOST = 4096
    """Forms of arguments, at most, that are known not to be learnt; then all are forgotten."""

    def __init__(self, learns: bool = True) -> None:
        super().__init__()
        self._learns = learns
        self._unlearnable: set[Any] = set()

    def run(self, form: Any, compute: Callable[..., Any], args: Sequence[Any]) -> Any:
        """The result of a call that was checked, `compute(*args)`; `form` is that of its arguments."""
        if not self._is_learnable(form, args):
            return compute(*args)
        apart = _apart(args)
        with observed() as events:
            result = compute(*apart)
        if not self.learn(apart, result if isinstance(result, tuple) else (result,), events):
            if len(self._unlearnable) >= self.MOST:
                self._unlearnable.clear()
            self._unlearnable.add(form)
        return result

    def _is_learnable(self, form: Any, args: Sequence[Any]) -> bool:
        """Whether a call on the host may be learnt: its tensors are plain ones."""
        if not self._learns or form in self._unlearnable:
            return False
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        return all(t.is_cpu for t in tensors) and self.describe(args) is not None


def _apart(args: Sequence[Any]) -> list[Any]:
    """The arguments, each with memory of its own: arrays of a kernel are then told apart by where they lie.

    Of two that begin at one address the first one is copied: weights, which are known by who they are, come later.
    """
    later: set[int] = set()
    apart = list(args)
    for n in reversed(range(len(apart))):
        tensor = apart[n]
        if not isinstance(tensor, torch.Tensor):
            continue
        if tensor.data_ptr() in later:
            span = 1 + sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
            memory = tensor.detach().as_strided((span,), (1,)).clone()
            apart[n] = memory.as_strided(tensor.shape, tensor.stride())
        later.add(apart[n].data_ptr())
    return apart
