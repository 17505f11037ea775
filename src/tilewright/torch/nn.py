"""Modules with the parameters, options and `state_dict` of `torch.nn`, computed by Tilewright's kernels.

Each derives from torch's module of the same name, but its forward calls Tilewright's kernels. If no gradient of the
weights can be asked for, as under torch.no_grad(), weights are packed once, and again after each write that torch
counts; it counts none through `tensor.data`. Max pooling has no backward: asking for one raises.
"""

from __future__ import annotations

from typing import Any

import torch

from tilewright.errors import ArgumentError
from tilewright.kernels.elementwise import known_activation
from tilewright.torch import functional
from tilewright.torch.multihead import MultiheadAttention
from tilewright.torch.packed import may_keep_packed
from tilewright.torch.pooling import why_no_average_pool, why_no_max_pool


class Activated:
    """Base of modules with an epilogue, an activation applied before the accumulator is rounded: Linear, convolutions.

    The option `activation` is "relu", "gelu", "gelu_tanh", "silu" or None. A call may pass another activation, and a
    residual that is added before it.
    """

    activation: str | None = None

    def _epilogue(self: Any, residual: Any, activation: str | None) -> dict[str, Any]:
        """Return {"activation": ..., "residual": ..., "keep_packed": ...}, keyword arguments for `functional.linear` or
        `conv1d` to `conv3d`.

        `residual` is passed on. `activation` None stands for the module's own activation. keep_packed is True if no
        gradient of the module's weight can be asked for now.
        """
        applied = self.activation if activation is None else activation
        return {"activation": applied, "residual": residual, "keep_packed": may_keep_packed(self.weight)}

    def _with_activation(self, description: str) -> str:
        """Return the text `description` with the module's activation appended: "3, 8" -> "3, 8, activation='silu'". It
        is unchanged if the module has no activation."""
        return description if self.activation is None else f"{description}, activation={self.activation!r}"


class Linear(Activated, torch.nn.Linear):
    """`torch.nn.Linear`, with a residual and an `activation` applied before the accumulator is rounded.

    >>> Linear(3, 2, activation="relu")
    Linear(in_features=3, out_features=2, bias=True, activation='relu')
    """

    def __init__(self, *args: Any, activation: str | None = None, **options: Any):
        """Take the arguments of torch's class, and the activation."""
        super().__init__(*args, **options)
        self.activation = known_activation(activation)

    def forward(self, input: Any, residual: Any = None, activation: str | None = None) -> Any:
        """Return activation(input[..., k] * weight[n, k] + bias[n] + residual[..., n]).

        `activation` None stands for the module's own activation; `residual` None adds nothing. Raise ArgumentError if
        the tensors do not fit.
        """
        return functional.linear(input, self.weight, self.bias, **self._epilogue(residual, activation))

    def extra_repr(self) -> str:
        """Return the module's sizes and options for its printed form: "in_features=3, out_features=2, bias=True,
        activation='relu'"."""
        return self._with_activation(super().extra_repr())


class _Convolution(Activated):
    """Base of Conv1d, Conv2d and Conv3d: the constructor, the forward and the printed form."""

    def __init__(self, *args: Any, activation: str | None = None, **options: Any):
        """Take the arguments of torch's class, and the activation."""
        super().__init__(*args, **options)
        self.activation = known_activation(activation)

    def forward(self: Any, input: Any, residual: Any = None, activation: str | None = None) -> Any:
        """Return activation(convolution of `input` with the module's weight + bias + residual).

        `activation` None stands for the module's own activation; `residual` None adds nothing. If the module's padding
        mode is not "zeros", torch pads the input first. Raise ArgumentError if the tensors do not fit.
        """
        padding = self.padding
        if self.padding_mode != "zeros":
            input = torch.nn.functional.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return getattr(functional, f"conv{len(self.kernel_size)}d")(
            input,
            self.weight,
            self.bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
            **self._epilogue(residual, activation),
        )

    def extra_repr(self: Any) -> str:
        """Return the module's sizes and options for its printed form: "3, 8, kernel_size=(3, 3), stride=(1, 1),
        activation='silu'"."""
        return str(self._with_activation(torch.nn.modules.conv._ConvNd.extra_repr(self)))


class Conv1d(_Convolution, torch.nn.Conv1d):
    """`torch.nn.Conv1d`, with a residual and an `activation` applied before the accumulator is rounded."""


class Conv2d(_Convolution, torch.nn.Conv2d):
    """`torch.nn.Conv2d`, with a residual and an `activation` applied before the accumulator is rounded.

    >>> Conv2d(3, 8, 3, stride=2, activation="silu")
    Conv2d(3, 8, kernel_size=(3, 3), stride=(2, 2), activation='silu')
    """


class Conv3d(_Convolution, torch.nn.Conv3d):
    """`torch.nn.Conv3d`, with a residual and an `activation` applied before the accumulator is rounded."""


class LayerNorm(torch.nn.LayerNorm):
    """`torch.nn.LayerNorm`."""

    def forward(self, input: Any) -> Any:
        """Return `input` normalised over its last dimensions, of extents `normalized_shape`, times the weight, plus the
        bias."""
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm`."""

    def forward(self, input: Any) -> Any:
        """Return `input` divided by its root mean square over its last dimensions, of extents `normalized_shape`, times
        the weight."""
        return functional.rms_norm(input, self.normalized_shape, self.weight, self.eps)


class GroupNorm(torch.nn.GroupNorm):
    """`torch.nn.GroupNorm`."""

    def forward(self, input: Any) -> Any:
        """Return `input` [n, c, ...] with each image normalised over each of `num_groups` groups of channels, times the
        weight, plus the bias."""
        return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class Softmax(torch.nn.Softmax):
    """`torch.nn.Softmax`; `dim` must be given."""

    def forward(self, input: Any) -> Any:
        """Return the softmax of `input` along the module's `dim`. If `dim` is None, torch chooses a dimension, computes
        the softmax and warns."""
        if self.dim is None:
            return super().forward(input)  # torch chooses a dimension, and warns
        return functional.softmax(input, self.dim)


class MaxPool:
    """Base of MaxPool1d, MaxPool2d and MaxPool3d: the constructor and the forward."""

    def __init__(self: Any, *args: Any, **options: Any):
        """Take the arguments of torch's class; `ceil_mode` and `return_indices` must be False."""
        super().__init__(*args, **options)
        why = why_no_max_pool(self.ceil_mode, self.return_indices)
        if why is not None:
            raise ArgumentError(why)

    def forward(self: Any, input: Any) -> Any:
        """Return the largest element of each window of `input`, [n, c, ...] or [c, ...]. The module's options describe
        the windows."""
        return self._function(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class MaxPool1d(MaxPool, torch.nn.MaxPool1d):
    """`torch.nn.MaxPool1d`, without a backward; `ceil_mode` and `return_indices` must be False."""

    _function = staticmethod(functional.max_pool1d)


class MaxPool2d(MaxPool, torch.nn.MaxPool2d):
    """`torch.nn.MaxPool2d`, without a backward; `ceil_mode` and `return_indices` must be False.

    >>> MaxPool2d(3, stride=2, padding=1)(torch.arange(6.0).view(1, 1, 2, 3)).ravel()
    tensor([4., 5.])
    """

    _function = staticmethod(functional.max_pool2d)


class MaxPool3d(MaxPool, torch.nn.MaxPool3d):
    """`torch.nn.MaxPool3d`, without a backward; `ceil_mode` and `return_indices` must be False."""

    _function = staticmethod(functional.max_pool3d)


class AdaptiveAvgPool:
    """Base of AdaptiveAvgPool1d, AdaptiveAvgPool2d and AdaptiveAvgPool3d: the constructor and the forward."""

    def __init__(self: Any, *args: Any, **options: Any):
        """Take the arguments of torch's class; `output_size` must be 1 along each axis."""
        super().__init__(*args, **options)
        why = why_no_average_pool(self.output_size)
        if why is not None:
            raise ArgumentError(why)

    def forward(self: Any, input: Any) -> Any:
        """Return the mean of each channel of `input`, [n, c, ...] or [c, ...], over the spatial axes, whose extents are
        1 in the result."""
        return self._function(input, self.output_size)


class AdaptiveAvgPool1d(AdaptiveAvgPool, torch.nn.AdaptiveAvgPool1d):
    """`torch.nn.AdaptiveAvgPool1d` for the output size 1."""

    _function = staticmethod(functional.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(AdaptiveAvgPool, torch.nn.AdaptiveAvgPool2d):
    """`torch.nn.AdaptiveAvgPool2d` for the output size 1.

    >>> AdaptiveAvgPool2d(1)(torch.arange(6.0).view(1, 1, 2, 3)).ravel()
    tensor([2.5000])
    """

    _function = staticmethod(functional.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(AdaptiveAvgPool, torch.nn.AdaptiveAvgPool3d):
    """`torch.nn.AdaptiveAvgPool3d` for the output size 1."""

    _function = staticmethod(functional.adaptive_avg_pool3d)


_NORMS = (LayerNorm, RMSNorm, GroupNorm, Softmax)
_MEANS = (AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d)
_WITH_BACKWARD = (Linear, Conv1d, Conv2d, Conv3d, *_NORMS, *_MEANS, MultiheadAttention)
WITHOUT_BACKWARD = (MaxPool1d, MaxPool2d, MaxPool3d)
"""Classes here that have no backward, and so cannot be trained."""
SWAPS: dict[type, type] = {getattr(torch.nn, ours.__name__): ours for ours in (*_WITH_BACKWARD, *WITHOUT_BACKWARD)}
"""For each class of torch's modules, the class here that computes the same."""
