"""Modules with the parameters, options and `state_dict` of `torch.nn`, computed by Tilewright's kernels.

Each derives from torch's module of the same name, and differs in what computes it. Where no gradient of the weights can
be asked for, as under torch.no_grad(), weights are packed once and packed anew when torch counts a write to them; it
counts none through `tensor.data`. Norms, softmax and attention have no backward: they compute, and refuse to be
differentiated.
"""

from __future__ import annotations

from typing import Any

import torch

from tilewright.kernels.elementwise import known_activation
from tilewright.torch import functional
from tilewright.torch.multihead import MultiheadAttention
from tilewright.torch.packed import stays_packed


class Activated:
    """The option `activation` of modules that multiply: "relu", "gelu", "gelu_tanh", "silu" or None.

    A call may say another for itself, and add a residual before it.
    """

    activation: str | None = None

    def _ending(self: Any, residual: Any, activation: str | None) -> dict[str, Any]:
        """Return the arguments of a call's epilogue: activation, residual, and whether packed weights are kept."""
        applied = self.activation if activation is None else activation
        return {"activation": applied, "residual": residual, "keep_packed": stays_packed(self.weight)}

    def _with_activation(self, told: str) -> str:
        """Return the module's description, its activation too."""
        return told if self.activation is None else f"{told}, activation={self.activation!r}"


class Linear(Activated, torch.nn.Linear):
    """`torch.nn.Linear`, with a residual and an `activation` that are applied before sums are rounded.

    >>> Linear(3, 2, activation="relu")
    Linear(in_features=3, out_features=2, bias=True, activation='relu')
    """

    def __init__(self, *args: Any, activation: str | None = None, **options: Any):
        super().__init__(*args, **options)
        self.activation = known_activation(activation)

    def forward(self, input: Any, residual: Any = None, activation: str | None = None) -> Any:
        """activation(input * weight + bias + residual)."""
        return functional.linear(input, self.weight, self.bias, **self._ending(residual, activation))

    def extra_repr(self) -> str:
        """Sizes and options."""
        return self._with_activation(super().extra_repr())


class _Convolution(Activated):
    """The common parts of convolutions over any number of axes."""

    def __init__(self, *args: Any, activation: str | None = None, **options: Any):
        super().__init__(*args, **options)
        self.activation = known_activation(activation)

    def forward(self: Any, input: Any, residual: Any = None, activation: str | None = None) -> Any:
        """activation(convolution of input and weight + bias + residual)."""
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
            **self._ending(residual, activation),
        )

    def extra_repr(self: Any) -> str:
        """Sizes and options."""
        return str(self._with_activation(torch.nn.modules.conv._ConvNd.extra_repr(self)))


class Conv1d(_Convolution, torch.nn.Conv1d):
    """`torch.nn.Conv1d`, with a residual and an `activation` that are applied before sums are rounded."""


class Conv2d(_Convolution, torch.nn.Conv2d):
    """`torch.nn.Conv2d`, with a residual and an `activation` that are applied before sums are rounded.

    >>> Conv2d(3, 8, 3, stride=2, activation="silu")
    Conv2d(3, 8, kernel_size=(3, 3), stride=(2, 2), activation='silu')
    """


class Conv3d(_Convolution, torch.nn.Conv3d):
    """`torch.nn.Conv3d`, with a residual and an `activation` that are applied before sums are rounded."""


class LayerNorm(torch.nn.LayerNorm):
    """`torch.nn.LayerNorm`, without a backward."""

    def forward(self, input: Any) -> Any:
        """The input, normalised over its last dimensions."""
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm`, without a backward."""

    def forward(self, input: Any) -> Any:
        """The input, divided by the root of its mean square over the last dimensions."""
        return functional.rms_norm(input, self.normalized_shape, self.weight, self.eps)


class GroupNorm(torch.nn.GroupNorm):
    """`torch.nn.GroupNorm`, without a backward."""

    def forward(self, input: Any) -> Any:
        """The input, normalised over groups of channels."""
        return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class Softmax(torch.nn.Softmax):
    """`torch.nn.Softmax`, without a backward; `dim` must be given."""

    def forward(self, input: Any) -> Any:
        """The softmax of the input along a dimension."""
        if self.dim is None:
            return super().forward(input)  # torch guesses one, and warns
        return functional.softmax(input, self.dim)


SWAPS: dict[type, type] = {
    getattr(torch.nn, ours.__name__): ours
    for ours in (Linear, Conv1d, Conv2d, Conv3d, LayerNorm, RMSNorm, GroupNorm, Softmax, MultiheadAttention)
}
"""Modules of torch, and those here that compute the same."""
WITHOUT_BACKWARD = (LayerNorm, RMSNorm, GroupNorm, Softmax, MultiheadAttention)
"""Modules here that cannot be trained."""
