"""Arguments and results of functions on arrays: what they are, where they lie, and the target that follows."""

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
from tilewright.targets.gpu.again import Again
from tilewright.targets.names import CPU, CUDA, GPU, is_gpu
from tilewright.targets.registry import check_target, gpu_machine

Array = np.ndarray[Any, np.dtype[Any]]


def array(value: Any, name: str, ranks: tuple[int, ...] = ()) -> Any:
    """The argument as a contiguous array, of numpy or of a device, of so many dimensions; two at least.

    >>> array([[1, 2]], "x").shape
    (1, 2)
    """
    taken = _listed(value, name) if isinstance(value, list | tuple) else array_of(value, name)
    taken = _packed(taken, name) if isinstance(taken, DeviceArray) else np.ascontiguousarray(taken)
    if taken.ndim not in ranks if ranks else taken.ndim < 2:
        wanted = " or ".join(map(str, ranks)) or "at least 2"
        raise ArgumentError(f"{name} has shape {taken.shape}, {taken.ndim} dimensions; it takes {wanted}")
    return taken


def _packed(array: DeviceArray, name: str) -> DeviceArray:
    """An array on a device without gaps: itself, or torch's copy of it."""
    if array.packed:
        return array
    if not hasattr(array.given, "contiguous"):
        raise ArgumentError(f"{name} lies on a device, and is not contiguous; pass a contiguous copy of it")
    copied: DeviceArray = array_of(array.given.contiguous(), name)
    return copied


def _listed(value: Any, name: str) -> Array:
    """An array of numbers that are given as lists."""
    for part in _leaves(value):
        refuse_traced(part, f"{name}, in a list,")
    try:
        listed = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as fault:  # nested lists of unequal lengths, say
        raise ArgumentError(f"{name}={written(value, 80)} is no array of numbers: {fault}") from None
    if listed.dtype.kind in "OSUMmV":
        raise ArgumentError(f"{name}={written(value, 80)} is no array of numbers: it holds {listed.dtype}")
    return listed


def _leaves(value: Any, depth: int = 8) -> Iterator[Any]:
    """The entries of nested lists that are no numbers; no argument here has more dimensions."""
    for part in value if depth else ():
        if isinstance(part, list | tuple):
            yield from _leaves(part, depth - 1)
        elif not isinstance(part, bool | int | float | np.generic):
            yield part


def in_place(value: Any, name: str) -> Any:
    """The argument as an array that shares its memory, which must be contiguous."""
    taken = array_of(value, name)
    if not (taken.packed if isinstance(taken, DeviceArray) else taken.flags.c_contiguous):
        raise ArgumentError(f"{name} is not contiguous; pass np.ascontiguousarray({name})")
    return taken


def bias_of(value: Any, kind: DType, count: int, what: str) -> Any:
    """A bias in the type of sums: itself, or a copy; where it lies, but on the host if torch does not convert it."""
    bias = array(value, "bias", (1,))
    if bias.size != count:
        raise ArgumentError(f"bias has {bias.size} elements; there are {count} {what}")
    wanted = kind.accumulator.numpy
    if bias.dtype == wanted:
        return bias
    torch = None if isinstance(bias, np.ndarray) else torch_of(bias.given)
    if torch is not None:
        return array_of(bias.given.to(torch_dtype_of(torch, wanted)), "bias")
    return on_host(bias).astype(wanted)


def dtype_of(array: Any, name: str) -> DType:
    """The element type of an array."""
    kind = from_numpy(array.dtype)
    if kind is None:
        raise ArgumentError(f"{name} holds {array.dtype}, which is no element type here")
    return kind


def out_type(given: DTypeLike | None, kind: DType) -> DType:
    """The element type of a result: the one given, or that of the data."""
    try:
        return kind if given is None else element_type(given, "out_dtype")
    except ProgramError as fault:
        raise ArgumentError(fault.what) from None


def by(extents: Any) -> str:
    """Extents as one says them: 3x4."""
    return "x".join(map(str, extents))


def known_precision(precision: Any) -> str | None:
    """To what factors may be rounded."""
    if precision is not None and not (isinstance(precision, str) and precision == "tf32"):
        raise ArgumentError(f"precision={written(precision, 80)}: 'tf32', which rounds factors of f32, or None")
    return None if precision is None else "tf32"


# -- where they lie -------------------------------------------------------------------------------------


def known_target(target: str | None) -> str | None:
    """A target, or None for the one that follows from where arrays lie."""
    if target is not None:
        check_target(target, (GPU,))
    return target


def target_for(given: str | None, arrays: dict[str, Any]) -> str:
    """The target of a call: the one that is named, else where its arrays lie.

    >>> target_for(None, {"x": np.zeros(1)}), target_for("cuda", {"x": np.zeros(1)})
    ('cpu', 'cuda')
    """
    away = [name for name, a in arrays.items() if isinstance(a, DeviceArray)]
    if given is None:
        return CUDA if away else CPU
    if away and not is_gpu(given):
        raise ArgumentError(
            f"target={given!r}: {away[0]} lies on a GPU; leave target= out to run there, or pass {away[0]}.cpu()"
        )
    return given


def result(target: str, others: Sequence[Any], shape: tuple[int, ...], kind: DType) -> Any:
    """A fresh array for a result: on the device where one of the others lies there, on the host otherwise."""
    if not is_gpu(target):
        return maker(shape, kind.numpy)()
    from tilewright.compiler.device import memory_near

    return made_like(list(others), shape, kind, lambda arrays: memory_near(gpu_machine(target), arrays))


def returned(array: Any, form: Form) -> Any:
    """A result as callers get it."""
    return array.given if isinstance(array, DeviceArray) else form.of(array)


def on_host(array: Any) -> Array:
    """What an array holds, for the host to read."""
    if not isinstance(array, DeviceArray):
        held: Array = array
        return held
    from tilewright.compiler.device import memory_near

    return memory_near(gpu_machine(CUDA), [array]).numpy(array)


def on_device(array: Any, target: str, others: Sequence[Any]) -> DeviceArray:
    """An array in the memory of the GPU that the others lie on: itself, or a copy of it."""
    there = next((o for o in others if isinstance(o, DeviceArray)), None)
    if isinstance(array, DeviceArray) and (there is None or array.device == there.device):
        return array
    if there is not None and there.given is not there:  # as one of torch's too, which calls like this one need
        moved: DeviceArray = array_of(Form([there.given]).of(on_host(array)).to(there.given.device), "weight")
        return moved
    from tilewright.compiler.device import memory_near

    memory = memory_near(gpu_machine(target), others)
    goal: DeviceArray = memory.empty(array.shape, array.dtype)
    memory.copy(on_host(array), goal)
    return goal


# -- calls like one before ------------------------------------------------------------------------------


def is_on_gpu(value: Any) -> bool:
    """Whether it is a torch tensor on a GPU."""
    return torch_of(value) is not None and bool(value.is_cuda)


class Learnt:
    """The launches learnt from calls of a function with the same options, or of a layer: on GPUs, and on the host."""

    __slots__ = ("on_gpu", "on_host")

    def __init__(self) -> None:
        self.on_gpu, self.on_host = Again(), LaunchCache()

    def call(self, *args: Any) -> Any:
        """Makes a call like one before, wherever it was, and returns its result; `UNLIKE`: there was none like it."""
        result = self.on_host.call(*args)
        return self.on_gpu.call(*args) if result is UNLIKE else result

    def learn_on_host(self, given: Sequence[Any], out: Any, whole: Whole | None, names: Sequence[str]) -> None:
        """A call of a kernel was right; `names` are what the kernel calls the given arrays and, last, the result."""
        if whole is not None:
            place = {name: n for n, name in enumerate(names)}
            self.on_host.learn(given, [(out, False)], whole, [place.get(name) for name in whole.names])


def option(value: Any) -> Any:
    """An option as what `learnt_of` tells apart; None and texts are themselves."""
    return value if value is None or isinstance(value, str) else (type(value), repr(value))


@lru_cache(maxsize=256)
def learnt_of(function: str, *options: Any) -> Learnt:
    """Return the launches learnt from calls of a function with these options."""
    return Learnt()
