"""Arguments and results of functions on arrays: their types and memory, and the target on which a call runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.errors import ArgumentError, ProgramError
from tilewright.ir.dtypes import DType, DTypeLike, element_type, from_numpy
from tilewright.limits import written
from tilewright.runtime.device_arrays import DeviceArray, array_of, made_like
from tilewright.runtime.outputs import maker
from tilewright.runtime.scripts import Whole
from tilewright.runtime.tensors import Form, torch_dtype_of, torch_of
from tilewright.runtime.traced import refuse_traced
from tilewright.targets.calls.table import UNLIKE
from tilewright.targets.cpu.launch_cache import LaunchCache
from tilewright.targets.gpu.again import GpuLaunchCache
from tilewright.targets.names import CPU, CUDA, GPU, is_gpu
from tilewright.targets.registry import check_target, gpu_machine

Array = np.ndarray[Any, np.dtype[Any]]


def array(value: Any, name: str, ranks: tuple[int, ...] = ()) -> Any:
    """Return `value` as a contiguous array: a numpy array for data on the host, a `DeviceArray` for data on a GPU.

    `value` is a numpy array, torch tensor, DLPack object or nested list; an array that is contiguous already is not
    copied. `ranks` are the allowed numbers of dimensions (empty: at least 2). Raise `ArgumentError` for another number,
    or if `value` is no array; `name` is the argument's name in the error text.

    >>> array([[1, 2]], "x").shape
    (1, 2)
    """
    result = _array_of_lists(value, name) if isinstance(value, list | tuple) else array_of(value, name)
    result = _contiguous(result, name) if isinstance(result, DeviceArray) else np.ascontiguousarray(result)
    if result.ndim not in ranks if ranks else result.ndim < 2:
        expected = " or ".join(map(str, ranks)) or "at least 2"
        raise ArgumentError(f"{name} has shape {result.shape}, {result.ndim} dimensions; it takes {expected}")
    return result


def _contiguous(array: DeviceArray, name: str) -> DeviceArray:
    """Return the device array `array` if it is contiguous, otherwise a contiguous copy that torch makes.

    Raise `ArgumentError` for an array that is not contiguous and is no torch tensor; `name` is the argument's name in
    the error text.
    """
    if array.packed:
        return array
    if not hasattr(array.given, "contiguous"):
        raise ArgumentError(f"{name} lies on a device, and is not contiguous; pass a contiguous copy of it")
    copy: DeviceArray = array_of(array.given.contiguous(), name)
    return copy


def _array_of_lists(value: Any, name: str) -> Array:
    """Return the nested lists of numbers `value` as a numpy array.

    Raise `ArgumentError` for lists of unequal lengths or of other objects; `name` is the argument's name in the error
    text.
    """
    for entry in _non_numbers(value):
        refuse_traced(entry, f"{name}, in a list,")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as fault:  # for example nested lists of unequal lengths
        raise ArgumentError(f"{name}={written(value, 80)} is no array of numbers: {fault}") from None
    if array.dtype.kind in "OSUMmV":
        raise ArgumentError(f"{name}={written(value, 80)} is no array of numbers: it holds {array.dtype}")
    return array


def _non_numbers(value: Any, depth: int = 8) -> Iterator[Any]:
    """Yield the entries of the nested lists `value` that are neither numbers nor lists, down to `depth` levels of
    nesting.
    """
    for entry in value if depth else ():
        if isinstance(entry, list | tuple):
            yield from _non_numbers(entry, depth - 1)
        elif not isinstance(entry, bool | int | float | np.generic):
            yield entry


def in_place(value: Any, name: str) -> Any:
    """Return `value` as an array that shares its memory: a numpy array on the host, a `DeviceArray` on a GPU.

    Raise `ArgumentError` if `value` is not contiguous, or no array; `name` is the argument's name in the error text.
    """
    array = array_of(value, name)
    if not (array.packed if isinstance(array, DeviceArray) else array.flags.c_contiguous):
        raise ArgumentError(f"{name} is not contiguous; pass np.ascontiguousarray({name})")
    return array


def bias_of(value: Any, kind: DType, count: int, what: str) -> Any:
    """Return the bias `value` as an array of the accumulator type of `kind`, the element type of the data.

    A bias that has this type already is not copied. A converted bias stays on its device, except that GPU arrays that
    are no torch tensors become numpy arrays on the host. Raise `ArgumentError` unless the bias has one dimension of
    `count` elements; `what` names these elements in the error text, such as "filters".
    """
    bias = array(value, "bias", (1,))
    if bias.size != count:
        raise ArgumentError(f"bias has {bias.size} elements; there are {count} {what}")
    accumulator = kind.accumulator.numpy
    if bias.dtype == accumulator:
        return bias
    torch = None if isinstance(bias, np.ndarray) else torch_of(bias.given)
    if torch is not None:
        return array_of(bias.given.to(torch_dtype_of(torch, accumulator)), "bias")
    return on_host(bias).astype(accumulator)


def dtype_of(array: Any, name: str) -> DType:
    """Return the element type of `array`. Raise `ArgumentError` if Tilewright has no such type; `name` is the
    argument's name in the error text.
    """
    element_type_ = from_numpy(array.dtype)
    if element_type_ is None:
        raise ArgumentError(f"{name} holds {array.dtype}, which is no element type here")
    return element_type_


def out_type(given: DTypeLike | None, kind: DType) -> DType:
    """Return the element type of a result: the option `given`, or `kind`, the type of the data, if `given` is None.

    Raise `ArgumentError` if `given` is no element type.
    """
    try:
        return kind if given is None else element_type(given, "out_dtype")
    except ProgramError as fault:
        raise ArgumentError(fault.what) from None


def extents_text(extents: Any) -> str:
    """Return the numbers `extents` as text for an error message: (3, 4) -> "3x4"."""
    return "x".join(map(str, extents))


# -- the memory that arrays are in ----------------------------------------------------------------------


def known_target(target: str | None) -> str | None:
    """Return `target` unchanged if it is None or the name of a target, such as "cpu" or "cuda".

    Raise `ArgumentError` for any other value.
    """
    if target is not None:
        check_target(target, (GPU,))
    return target


def target_for(given: str | None, arrays: dict[str, Any]) -> str:
    """Return the name of the target on which a call runs: `given`, unless it is None.

    If `given` is None, the target is "cuda" if one of the `arrays` ({argument name: array}) is on a GPU, otherwise
    "cpu". Raise `ArgumentError` if `given` is a CPU and an array is on a GPU.

    >>> target_for(None, {"x": np.zeros(1)}), target_for("cuda", {"x": np.zeros(1)})
    ('cpu', 'cuda')
    """
    on_gpu = [name for name, a in arrays.items() if isinstance(a, DeviceArray)]
    if given is None:
        return CUDA if on_gpu else CPU
    if on_gpu and not is_gpu(given):
        raise ArgumentError(
            f"target={given!r}: {on_gpu[0]} lies on a GPU; leave target= out to run there, or pass {on_gpu[0]}.cpu()"
        )
    return given


def result(target: str, others: Sequence[Any], shape: tuple[int, ...], kind: DType) -> Any:
    """Return a new, uninitialised array of this `shape` and element type `kind`, for the result of a call on `target`.

    For a CPU it is a numpy array. For a GPU it is on the GPU of the first device array in `others`, the call's other
    arrays; torch allocates it if that array is a torch tensor. If none of `others` is on a device, the result is a
    numpy array of zeros.
    """
    if not is_gpu(target):
        return maker(shape, kind.numpy)()
    from tilewright.compiler.device import memory_near

    return made_like(list(others), shape, kind, lambda arrays: memory_near(gpu_machine(target), arrays))


def returned(array: Any, form: Form) -> Any:
    """Return `array`, a result, in the form that the caller gets.

    A device array becomes the object that it stands for, such as a torch tensor. A numpy array becomes a torch tensor
    if `form` says so; otherwise it is returned as it is.
    """
    return array.given if isinstance(array, DeviceArray) else form.of(array)


def on_host(array: Any) -> Array:
    """Return the elements of `array` as a numpy array: `array` itself if it is a numpy array, a copy if it
    is on a GPU.
    """
    if not isinstance(array, DeviceArray):
        host_array: Array = array
        return host_array
    from tilewright.compiler.device import memory_near

    return memory_near(gpu_machine(CUDA), [array]).numpy(array)


def on_device(array: Any, target: str, others: Sequence[Any]) -> DeviceArray:
    """Return `array` in the memory of a GPU: `array` itself if it is on this GPU, otherwise a copy.

    The GPU is that of the first of `others` (the call's other arrays) that is on a GPU. If none is, the GPU is that of
    `target`, and an array on any GPU is returned as it is.
    """
    device_array = next((o for o in others if isinstance(o, DeviceArray)), None)
    if isinstance(array, DeviceArray) and (device_array is None or array.device == device_array.device):
        return array
    # A copy beside a torch tensor must be a torch tensor too: remembered calls need its object.
    if device_array is not None and device_array.given is not device_array:
        copy: DeviceArray = array_of(
            Form([device_array.given]).of(on_host(array)).to(device_array.given.device), "weight"
        )
        return copy
    from tilewright.compiler.device import memory_near

    memory = memory_near(gpu_machine(target), others)
    copy_on_device: DeviceArray = memory.empty(array.shape, array.dtype)
    memory.copy(on_host(array), copy_on_device)
    return copy_on_device


# -- remembered calls -----------------------------------------------------------------------------------


def is_on_gpu(value: Any) -> bool:
    """Return True if `value` is a torch tensor on a CUDA device. Other arrays on a GPU give False."""
    return torch_of(value) is not None and bool(value.is_cuda)


class Learnt:
    """The launches remembered from calls of one layer, or of one function with the same options: `on_gpu` and
    `on_host`.
    """

    __slots__ = ("on_gpu", "on_host")

    def __init__(self) -> None:
        self.on_gpu, self.on_host = GpuLaunchCache(), LaunchCache()

    def call(self, *args: Any) -> Any:
        """Repeat the launch of a remembered call with arguments of the same types, shapes and strides as `args`; return
        its result.

        If there is no such call, do nothing and return `UNLIKE`.
        """
        result = self.on_host.call(*args)
        return self.on_gpu.call(*args) if result is UNLIKE else result

    def learn_on_host(self, given: Sequence[Any], out: Any, whole: Whole | None, names: Sequence[str]) -> None:
        """Remember a successful call on the host, so that `call` with arguments of the same types, shapes and strides
        repeats its launches.

        `given` are the call's arrays, `out` is its result; `names` are the kernel's names for these arrays, the result
        last. `whole` is the bound kernel as a list of launches; if it is None, nothing is remembered.
        """
        if whole is not None:
            index_of = {name: n for n, name in enumerate(names)}
            self.on_host.learn(given, [(out, False)], whole, [index_of.get(name) for name in whole.names])


def option(value: Any) -> Any:
    """Return `value`, an option of a call, as a part of a hashable key: None and texts unchanged, other values as
    (type, repr).
    """
    return value if value is None or isinstance(value, str) else (type(value), repr(value))


@lru_cache(maxsize=256)
def learnt_of(function: str, *options: Any) -> Learnt:
    """Return the cache of remembered launches for calls of the function named `function` with these `options`
    (hashable).

    Equal arguments give the same cache, which is empty at first. Only the 256 caches used last are kept.
    """
    return Learnt()
