"""What most users touch: convolution over one, two or three axes and matrix product, on arrays.

Arrays are numpy's, torch's on the CPU, or anything with DLPack. The result is a torch tensor where the first array
(the image, the left factor) is one, and a numpy array otherwise.

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
from math import prod
from typing import Any, ClassVar

import numpy as np

from tilewright.compiler.compiled import Compiled
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError, ProgramError
from tilewright.ir.dtypes import DType, DTypeLike, element_type, from_numpy, plain_number
from tilewright.kernels.conv import IMAGE, Padding, PerAxis, padding_of, per_axis
from tilewright.kernels.conv import conv as conv_kernel
from tilewright.kernels.elementwise import known_activation
from tilewright.kernels.gemm import gemm as gemm_kernel
from tilewright.limits import written
from tilewright.runtime.arrays import empty
from tilewright.runtime.host import Kept
from tilewright.runtime.overlap import require_own_memory, share_memory
from tilewright.runtime.tensors import Form, as_array

Array = np.ndarray[Any, np.dtype[Any]]


class Conv:
    """A convolution whose weights are packed once for each image size, over as many axes as the weights have.

    Images are [n, ..., c], weights [f, ..., c of a group], outputs [n, ..., f], where ... is width, height and width,
    or depth, height and width. Stride and dilation are a number for all axes or one for each. Padding is "valid"
    (none), "same" (outputs as large as the image; for a stride of 1), a number for all axes, or for each axis a
    number or a pair (before, after). Sums, bias and activation are in f32 (i32 for integers, f64 for f64); the result
    is of the weights' element type unless `out_dtype` says another. `dynamic="batch"` compiles one kernel for all
    batches, `dynamic="image"` one for all batches and image sizes, planned for the first image that comes.

    >>> import numpy as np
    >>> layer = Conv(np.ones((2, 2, 3), np.float32), np.array([0, 1], np.float32), padding=((1, 0),))
    >>> layer
    Conv(weight f32[2, 2, 3], bias, padding=((1, 0),))
    >>> layer(np.ones((1, 2, 3), np.float32))
    array([[[3., 4.],
            [6., 7.]]], dtype=float32)
    """

    rank: ClassVar[int | None] = None
    """The number of axes that the class is for; None: any."""

    def __init__(
        self,
        weight: Any,
        bias: Any = None,
        *,
        stride: PerAxis = 1,
        padding: Padding = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
        activation: str | None = None,
        out_dtype: DTypeLike | None = None,
        dynamic: str | None = None,
    ):
        if dynamic is not None and (not isinstance(dynamic, str) or dynamic not in ("batch", "image")):
            raise ArgumentError(f"dynamic={dynamic!r}: None, 'batch', or 'image', which is both batch and image size")
        self.dynamic = dynamic
        self.weight = _array(weight, "weight", (3, 4, 5) if self.rank is None else (self.rank + 2,))
        if 0 in self.weight.shape:
            raise ArgumentError(f"weight has the shape {self.weight.shape}: nothing to compute")
        filters, *taps, _ = self.weight.shape
        self.stride, self.dilation = (
            per_axis(v, len(taps), n) for v, n in ((stride, "stride"), (dilation, "dilation"))
        )
        self.padding = padding_of(padding, tuple(taps), self.stride, self.dilation)
        if any(n < 0 for ends in self.padding for n in ends):
            raise ArgumentError(f"padding={padding!r}: no number is below 0")
        kind = _dtype(self.weight, "weight")
        count = plain_number(groups)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1 or filters % count:
            raise ArgumentError(f"groups={groups!r}: it must divide the {filters} filters")
        self.activation, self.groups = known_activation(activation), count
        self.out = _out(out_dtype, kind)
        self.bias = None if bias is None else _bias(bias, kind, filters, "filters")
        self._packed: dict[Compiled, Kept] = {}
        self._typical: tuple[int, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": {}}  # copies pack for themselves

    def __repr__(self) -> str:
        kinds = {"stride": 1, "dilation": 1, "padding": (0, 0)}
        options = {n: getattr(self, n) for n, usual in kinds.items() if any(x != usual for x in getattr(self, n))}
        options |= {} if self.groups == 1 else {"groups": self.groups}
        options |= {n: v for n, v in (("activation", self.activation), ("dynamic", self.dynamic)) if v is not None}
        kind = _dtype(self.weight, "weight")
        options |= {} if self.out is kind else {"out_dtype": self.out}
        parts = [f"weight {kind}{list(self.weight.shape)}", *([] if self.bias is None else ["bias"])]
        return f"{type(self).__name__}({', '.join([*parts, *(f'{n}={v!r}' for n, v in options.items())])})"

    def __call__(self, x: Any) -> Any:
        """The convolution of an image; a torch tensor where the image is one."""
        image, form = _array(x, "x", (self.weight.ndim,)), Form([x])
        form.require(self.out, "the result")
        if 0 in image.shape[1:]:
            raise ArgumentError(f"x has the shape {image.shape}: nothing to compute")
        if image.shape[0] == 0:
            return form.of(np.empty((0, *self.sizes(image), self.weight.shape[0]), self.out.numpy))
        kernel, out = self.kernel(image)
        self.bind(image, out, kernel)()
        return form.of(out)

    def sizes(self, image: Array) -> list[int]:
        """The output's size along each axis; raises where the image does not go with the weights."""
        _, *taps, c = self.weight.shape
        _, *extents, channels = image.shape
        if channels != c * self.groups:
            raise ArgumentError(f"x has {channels} channels; the weights take {c} in each of {self.groups} groups")
        if _dtype(image, "x") is not _dtype(self.weight, "weight"):
            raise ArgumentError(f"x holds {image.dtype}, the weights {self.weight.dtype}: convert one")
        rows = zip(extents, taps, self.padding, self.dilation, self.stride, strict=True)
        sizes = [(size + sum(ends) - far * (k - 1) - 1) // step + 1 for size, k, ends, far, step in rows]
        if min(sizes) < 1:
            raise ArgumentError(
                f"x is {_by(extents)}: a filter of {_by(taps)} does not fit, with this padding and dilation"
            )
        return sizes

    def kernel(self, image: Array) -> tuple[Compiled, Array]:
        """The kernel for an image of this shape, and an output for it."""
        sizes = self.sizes(image)
        shape: tuple[int | None, ...] = image.shape[:-1]
        if self.dynamic is not None:
            shape = (None, *shape[1:]) if self.dynamic == "batch" else (None,) * len(shape)
            self._typical = self._typical or image.shape[:-1]
        made = _conv(
            shape,
            self._typical if self.dynamic else (),
            self.weight.shape,
            (_dtype(image, "x").name, self.out.name),
            self.groups,
            self.stride,
            self.padding,
            self.dilation,
            self.bias is not None,
            self.activation,
        )
        return made, empty((image.shape[0], *sizes, self.weight.shape[0]), self.out.numpy)

    def bind(self, image: Array, out: Array, kernel: Compiled | None = None) -> Any:
        """The convolution bound to arrays; a call of the result launches it on what they hold by then.

        Both are contiguous, and `out` has memory of its own.
        """
        image, out = (_in_place(array, name) for array, name in ((image, "x"), (out, "out")))
        require_own_memory(out, "out")
        shape = (image.shape[0], *self.sizes(image), self.weight.shape[0])
        if out.shape != shape or out.dtype != self.out.numpy:
            raise ArgumentError(f"out is {_by(out.shape)} of {out.dtype}; it must be {_by(shape)} of {self.out}")
        if share_memory(out, image):
            raise ArgumentError("out shares memory with x; give them memory of their own")
        made = self.kernel(image)[0] if kernel is None else kernel
        arrays = {"x": image, "w": self.weight, "y": out}
        if self.bias is not None:
            arrays["bias"] = self.bias
        if made not in self._packed:
            self._packed[made] = made.keep(arrays)
        return made.bind(arrays, self._packed[made])


class Conv1d(Conv):
    """`Conv` over width: images [n, w, c], weights [f, s, c].

    >>> import numpy as np
    >>> Conv1d(np.ones((1, 3, 1), np.float32), padding="same")(np.ones((1, 4, 1), np.float32)).reshape(-1)
    array([2., 3., 3., 2.], dtype=float32)
    """

    rank = 1


class Conv2d(Conv):
    """`Conv` over height and width: images [n, h, w, c], weights [f, r, s, c].

    >>> import numpy as np
    >>> layer = Conv2d(np.ones((2, 1, 1, 3), np.float32), np.array([0, 1], np.float32))
    >>> layer(np.ones((1, 1, 2, 3), np.float32)).reshape(2, 2)
    array([[3., 4.],
           [3., 4.]], dtype=float32)
    """

    rank = 2


class Conv3d(Conv):
    """`Conv` over depth, height and width: images [n, d, h, w, c], weights [f, t, r, s, c].

    >>> import numpy as np
    >>> Conv3d(np.ones((1, 2, 1, 1, 3), np.float32))(np.ones((1, 3, 1, 1, 3), np.float32)).reshape(-1)
    array([6., 6.], dtype=float32)
    """

    rank = 3


def conv1d(x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
    """y[n, q, f] = activation(conv(x[n, w, c], w[f, s, c]) + bias[f]), with the options of `Conv`.

    >>> import numpy as np
    >>> conv1d(np.ones((1, 5, 2), np.float32), np.ones((1, 3, 2), np.float32), stride=2).reshape(-1)
    array([6., 6.], dtype=float32)
    """
    return Conv1d(w, bias, **options)(x)


def conv2d(x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
    """y[n, p, q, f] = activation(conv(x[n, h, w, c], w[f, r, s, c]) + bias[f]), with the options of `Conv`.

    Weights are packed on every call; `Conv2d` packs them once.

    >>> import numpy as np
    >>> conv2d(np.ones((1, 2, 2, 1), np.float32), np.ones((1, 2, 2, 1), np.float32), padding=((1, 0), 0)).reshape(-1)
    array([2., 4.], dtype=float32)
    """
    return Conv2d(w, bias, **options)(x)


def conv3d(x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
    """y[n, z, p, q, f] = activation(conv(x[n, d, h, w, c], w[f, t, r, s, c]) + bias[f]), with the options of `Conv`.

    >>> import numpy as np
    >>> conv3d(np.ones((1, 2, 2, 2, 1), np.float32), np.ones((1, 2, 2, 2, 1), np.float32)).reshape(-1)
    array([8.], dtype=float32)
    """
    return Conv3d(w, bias, **options)(x)


def matmul(
    a: Any, b: Any, bias: Any = None, *, activation: str | None = None, out_dtype: DTypeLike | None = None
) -> Any:
    """activation(a[..., m, k] * b[..., k, n] + bias[n]), of a's element type unless `out_dtype` says another.

    The dimensions before the last two count products: both factors have the same, or b is one matrix for all. Where k
    is 0, every sum is 0.

    >>> import numpy as np
    >>> matmul(np.array([[1, 2]], np.float32), np.array([[3], [4]], np.float32))
    array([[11.]], dtype=float32)
    >>> matmul(np.ones((2, 3, 4), np.float32), np.ones((2, 4, 5), np.float32)).shape
    (2, 3, 5)
    """
    known_activation(activation)
    left, right = _array(a, "a"), _array(b, "b")
    kind = _dtype(left, "a")
    *batch, m, k = left.shape
    n = right.shape[-1]
    if right.shape[-2] != k:
        raise ArgumentError(f"a is {_by(left.shape)}, b {_by(right.shape)}: they do not fit")
    if right.ndim > 2 and right.shape[:-2] != tuple(batch):
        raise ArgumentError(
            f"a is {_by(left.shape)}, b {_by(right.shape)}: their batches must be equal, or b one matrix"
        )
    if _dtype(right, "b") is not kind:
        raise ArgumentError(f"a holds {left.dtype}, b {right.dtype}: convert one")
    result, form = _out(out_dtype, kind), Form([a, b])
    form.require(result, "the result")
    added = None if bias is None else _bias(bias, kind, n, "columns")
    out = empty((*batch, m, n), result.numpy)
    if not out.size:
        return form.of(out)
    if k == 0:  # a sum of nothing is one of a single 0
        left, right, k = np.zeros((*batch, m, 1), left.dtype), np.zeros((*right.shape[:-2], 1, n), left.dtype), 1
    count = prod(batch)
    if right.ndim == 2 or count == 1:
        count, m = 1, m * count
    kernel = _matmul((count, m, k, n), (kind.name, result.name), added is not None, activation)
    arrays = {"a": left, "b": right, "c": out}
    if added is not None:
        arrays["bias"] = added
    kernel.bind(arrays)()
    return form.of(out)


@lru_cache(maxsize=512)
def _conv(
    image: tuple[int | None, ...],
    typical: tuple[int, ...],
    weight: tuple[int, ...],
    dtypes: tuple[str, str],
    groups: int,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    bias: bool,
    activation: str | None,
) -> Compiled:
    f, *taps, c = weight
    made = conv_kernel(
        taps,
        *dtypes,
        groups=groups,
        stride=stride,
        padding=padding,
        dilation=dilation,
        bias=bias,
        activation=activation,
    )
    names = ["N", *(s.name for s in IMAGE[-len(taps) :])]
    sizes = {name: size for name, size in zip(names, image, strict=True) if size is not None}
    usual = {name: size for name, size in zip(names, typical, strict=False) if name not in sizes}
    sizes |= {"F": f, "CG" if groups > 1 else "C": c, **usual}
    return kernel_for(made, sizes, dynamic=list(usual), constant=["w"])


@lru_cache(maxsize=512)
def _matmul(sizes: tuple[int, ...], dtypes: tuple[str, str], bias: bool, activation: str | None) -> Compiled:
    count, m, k, n = sizes
    made = gemm_kernel("nn", *dtypes, batched=count > 1, bias=bias, activation=activation)
    batch = {"B": count} if count > 1 else {}
    return kernel_for(made, {**batch, "M": m, "K": k, "N": n})


def _array(value: Any, name: str, ranks: tuple[int, ...] = ()) -> Array:
    """The argument as a contiguous numpy array of so many dimensions; at least two where none are given."""
    found = np.ascontiguousarray(_listed(value, name) if isinstance(value, list | tuple) else as_array(value, name))
    if found.ndim not in ranks if ranks else found.ndim < 2:
        wanted = " or ".join(map(str, ranks)) or "at least 2"
        raise ArgumentError(f"{name} has shape {found.shape}, {found.ndim} dimensions; it takes {wanted}")
    return found


def _listed(value: Any, name: str) -> Array:
    """An array of numbers that are given as lists."""
    try:
        found = np.asarray(value)
    except (TypeError, ValueError) as fault:  # nested lists of unequal lengths, say
        raise ArgumentError(f"{name}={written(value, 80)} is no array of numbers: {fault}") from None
    if found.dtype.kind in "OSUMmV":
        raise ArgumentError(f"{name}={written(value, 80)} is no array of numbers: it holds {found.dtype}")
    return found


def _in_place(value: Any, name: str) -> Array:
    """The argument as a numpy array that shares its memory, which must be contiguous."""
    found: Array = as_array(value, name)
    if not found.flags.c_contiguous:
        raise ArgumentError(f"{name} is not contiguous; pass np.ascontiguousarray({name})")
    return found


def _bias(value: Any, kind: DType, count: int, what: str) -> Array:
    found = _array(value, "bias", (1,))
    if found.size != count:
        raise ArgumentError(f"bias has {found.size} elements; there are {count} {what}")
    return found.astype(kind.accumulator.numpy)


def _dtype(array: Array, name: str) -> DType:
    found = from_numpy(array.dtype)
    if found is None:
        raise ArgumentError(f"{name} holds {array.dtype}, which is no element type here")
    return found


def _out(given: DTypeLike | None, kind: DType) -> DType:
    try:
        return kind if given is None else element_type(given, "out_dtype")
    except ProgramError as fault:
        raise ArgumentError(fault.what) from None


def _by(extents: Any) -> str:
    return "x".join(map(str, extents))
