"""What most users touch: convolution and matrix product on arrays.

>>> import numpy as np, tilewright
>>> x, w = np.ones((1, 4, 5, 3), np.float32), np.ones((2, 3, 3, 3), np.float32)
>>> tilewright.conv2d(x, w, padding=1)[0, :, :, 0]
array([[12., 18., 18., 18., 12.],
       [18., 27., 27., 27., 18.],
       [18., 27., 27., 27., 18.],
       [12., 18., 18., 18., 12.]], dtype=float32)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.algebra.expr import Symbol
from tilewright.compiler.contraction import ContractionKernel
from tilewright.compiler.kernels import resolve
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DType, dtype, from_numpy
from tilewright.kernels.conv import conv2d as conv_kernel
from tilewright.kernels.gemm import gemm as gemm_kernel
from tilewright.plan.contraction import recognise

Array = np.ndarray[Any, np.dtype[Any]]
Pair = int | tuple[int, int]


def conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
    activation: str | None = None,
    out_dtype: str | None = None,
) -> Array:
    """y[n, p, q, f] = activation(conv(x[n, h, w, c], w[f, r, s, c]) + bias[f]).

    Sums, bias and activation are in f32 (i32 for integers, f64 for f64); the result is of x's element type unless
    `out_dtype` says another. Weights are packed on every call; `Conv2d` packs them once.
    """
    layer = Conv2d(
        w,
        bias,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        activation=activation,
        out_dtype=out_dtype,
    )
    return layer(x)


class Conv2d:
    """A convolution whose weights are packed once for each image size.

    >>> import numpy as np
    >>> layer = Conv2d(np.ones((2, 1, 1, 3), np.float32), np.array([0, 1], np.float32))
    >>> layer(np.ones((1, 1, 2, 3), np.float32)).reshape(2, 2)
    array([[3., 4.],
           [3., 4.]], dtype=float32)
    """

    def __init__(
        self,
        weight: Any,
        bias: Any = None,
        *,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        activation: str | None = None,
        out_dtype: str | None = None,
    ):
        self.weight = _array(weight, "weight", 4)
        self.stride, self.padding, self.dilation = (
            _pair(v, n) for v, n in ((stride, "stride"), (padding, "padding"), (dilation, "dilation"))
        )
        kind = _dtype(self.weight, "weight")
        self.activation, self.groups = activation, groups
        self.out = kind if out_dtype is None else dtype(out_dtype)
        if not isinstance(groups, int) or groups < 1 or self.weight.shape[0] % groups:
            raise ArgumentError(f"groups={groups!r}: it must divide the {self.weight.shape[0]} filters")
        self.bias = None if bias is None else _array(bias, "bias", 1).astype(kind.accumulator.numpy)
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise ArgumentError(f"bias has {self.bias.shape[0]} elements; there are {self.weight.shape[0]} filters")
        self._packed: dict[Any, Array] = {}

    def __call__(self, x: Any) -> Array:
        """The convolution of an image."""
        image = _array(x, "x", 4, empty=True)
        if image.shape[0] == 0:
            return np.empty((0, *self.sizes(image), self.weight.shape[0]), self.out.numpy)
        kernel, out = self.kernel(image)
        self.bind(image, out, kernel)()
        return out

    def sizes(self, image: Array) -> list[int]:
        """The output's height and width; raises where the image does not go with the weights."""
        _, r, s, c = self.weight.shape
        _, h, w, channels = image.shape
        if channels != c * self.groups:
            raise ArgumentError(f"x has {channels} channels; the weights take {c} in each of {self.groups} groups")
        if _dtype(image, "x") is not _dtype(self.weight, "weight"):
            raise ArgumentError(f"x holds {image.dtype}, the weights {self.weight.dtype}: convert one")
        sizes = []
        for size, taps, axis in ((h, r, 0), (w, s, 1)):
            count = (size + 2 * self.padding[axis] - self.dilation[axis] * (taps - 1) - 1) // self.stride[axis] + 1
            if count < 1:
                raise ArgumentError(f"x is {h}x{w}: a filter of {r}x{s} does not fit, with this padding and dilation")
            sizes.append(count)
        return sizes

    def kernel(self, image: Array) -> tuple[ContractionKernel, Array]:
        """The kernel for an image of this shape, and an output for it."""
        sizes = self.sizes(image)
        f, r, s, c = self.weight.shape
        n, h, w, _ = image.shape
        made = _conv(
            (n, h, w, c, f, r, s),
            (_dtype(image, "x").name, self.out.name),
            self.groups,
            self.stride,
            self.padding,
            self.dilation,
            self.bias is not None,
            self.activation,
        )
        return made, np.empty((n, *sizes, f), self.out.numpy)

    def bind(self, image: Array, out: Array, kernel: ContractionKernel | None = None) -> Any:
        """The convolution bound to arrays; a call of the result launches it."""
        made = self.kernel(image)[0] if kernel is None else kernel
        if made not in self._packed:
            self._packed[made] = made.pack(self.weight)
        arrays = {"x": image, "y": out}
        if self.bias is not None:
            arrays["bias"] = self.bias
        return made.bind(arrays, self._packed[made])


def matmul(a: Any, b: Any, bias: Any = None, *, activation: str | None = None, out_dtype: str | None = None) -> Array:
    """activation(a[m, k] * b[k, n] + bias[n]), of a's element type unless `out_dtype` says another.

    >>> import numpy as np
    >>> matmul(np.array([[1, 2]], np.float32), np.array([[3], [4]], np.float32))
    array([[11.]], dtype=float32)
    """
    left, right = _array(a, "a", 2, empty=True), _array(b, "b", 2, empty=True)
    kind = _dtype(left, "a")
    if left.shape[1] != right.shape[0]:
        raise ArgumentError(
            f"a is {left.shape[0]}x{left.shape[1]}, b {right.shape[0]}x{right.shape[1]}: they do not fit"
        )
    if _dtype(right, "b") is not kind:
        raise ArgumentError(f"a holds {left.dtype}, b {right.dtype}: convert one")
    result = kind if out_dtype is None else dtype(out_dtype)
    if 0 in (left.shape[0], right.shape[1]):
        return np.empty((left.shape[0], right.shape[1]), result.numpy)
    if left.shape[1] == 0:
        raise ArgumentError("a has no columns: there is nothing to add up")
    kernel = _matmul((*left.shape, right.shape[1]), (kind.name, result.name), bias is not None, activation)
    out = np.empty((left.shape[0], right.shape[1]), result.numpy)
    arrays = {"a": left, "b": right, "c": out}
    if bias is not None:
        arrays["bias"] = _array(bias, "bias", 1).astype(kind.accumulator.numpy)
    kernel.bind(arrays)()
    return out


@lru_cache(maxsize=512)
def _conv(
    sizes: tuple[int, ...],
    dtypes: tuple[str, str],
    groups: int,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    bias: bool,
    activation: str | None,
) -> ContractionKernel:
    n, h, w, c, f, r, s = sizes
    made, symbols = conv_kernel(
        (r, s),
        *dtypes,
        groups=groups,
        stride=stride,
        padding=padding,
        dilation=dilation,
        bias=bias,
        activation=activation,
    )
    of_group = {"CG": c} if groups > 1 else {"C": c}
    return _planned(made, symbols, {"N": n, "H": h, "W": w, "F": f, **of_group})


@lru_cache(maxsize=512)
def _matmul(sizes: tuple[int, ...], dtypes: tuple[str, str], bias: bool, activation: str | None) -> ContractionKernel:
    m, k, n = sizes
    made = gemm_kernel("nn", *dtypes, bias=bias, activation=activation)
    return _planned(made, {}, {"M": m, "K": k, "N": n})


def _planned(kernel: Any, symbols: dict[Any, Any], sizes: dict[str, int]) -> ContractionKernel:
    """The kernel's contraction for these sizes, planned and compiled."""
    program = kernel.trace()
    known: dict[Any, Any] = dict(symbols)
    named = {s.name: s for a in program.args for d in a.type.dims for s in d.symbols if isinstance(s, Symbol)}
    known |= {named[name]: value for name, value in sizes.items()}
    bound = {s: int(e) for s, e in resolve(known).items()}
    found = recognise(program, bound)
    if isinstance(found, str):
        raise ArgumentError(f"{program.name}: {found}")
    return ContractionKernel(found)


def _pair(value: Pair, name: str) -> tuple[int, int]:
    found = (value, value) if isinstance(value, int) else tuple(value)
    least = 0 if name == "padding" else 1
    if len(found) != 2 or any(not isinstance(v, int) or v < least for v in found):
        raise ArgumentError(f"{name}={value!r}: an integer of at least {least}, or two, for height and width")
    return found[0], found[1]


def _array(value: Any, name: str, dims: int, empty: bool = False) -> Array:
    """The argument as a contiguous numpy array; anything that speaks DLPack is taken."""
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    found = np.ascontiguousarray(value)
    if found.ndim != dims:
        raise ArgumentError(f"{name} has {found.ndim} dimensions; it takes {dims}")
    if 0 in (found.shape[1:] if empty and dims == 4 else () if empty else found.shape):
        raise ArgumentError(f"{name} has the shape {found.shape}: nothing to compute")
    return found


def _dtype(array: Array, name: str) -> DType:
    found = from_numpy(array.dtype)
    if found is None:
        raise ArgumentError(f"{name} holds {array.dtype}, which is no element type here")
    return found
