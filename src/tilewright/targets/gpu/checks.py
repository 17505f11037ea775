"""Checks that arrays are what a GPU program takes: shapes, types, strides, alignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.errors import ArgumentError
from tilewright.ir.core import Program
from tilewright.runtime.device_arrays import DeviceArray
from tilewright.runtime.sizes import extent


def check_arrays(program: Program, arrays: Sequence[Any], sizes: Mapping[str, int]) -> None:
    """Raise ArgumentError unless the arrays fit the arguments of `program`, in order: shape, element type, strides,
    alignment to 16 bytes on the device, and writeability on the host. `sizes` is {name of an open size: value}.
    """
    for array, arg in zip(arrays, program.args, strict=True):
        _check(program, array, arg, sizes)


def _check(program: Program, array: Any, arg: Any, sizes: Mapping[str, int]) -> None:
    """Raise ArgumentError unless `array` fits `arg`, an argument of `program`: shape, element type and strides. An
    array on the device must be aligned to 16 bytes. An array of the host must be writeable if the program writes it.
    `sizes` is {name of an open size: value}.
    """
    kind, name = arg.type, arg.name
    shape = tuple(extent(e, sizes, name, dim) for dim, e in enumerate(kind.shape))
    takes = f"{program.name} takes"
    if tuple(array.shape) != shape:
        raise ArgumentError(f"{name} has the shape {tuple(array.shape)}; {takes} {shape}")
    if array.dtype != kind.dtype.numpy:
        raise ArgumentError(f"{name} holds {array.dtype}; {takes} {kind.dtype}")
    _check_strides(program, array, arg, sizes)
    if isinstance(array, DeviceArray) and array.pointer % 16:
        raise ArgumentError(f"{name} does not lie at a multiple of 16 bytes; pass a copy of it")
    if isinstance(array, np.ndarray) and kind.role != "in" and not array.flags.writeable:
        raise ArgumentError(f"{name} is written, but the array given is read-only")


def _check_strides(program: Program, array: Any, arg: Any, sizes: Mapping[str, int]) -> None:
    """Raise ArgumentError unless `array` has the strides that `arg`, an argument of `program`, states. If `arg` states
    no strides, `array` must be contiguous. If it does, `array` must be on the device, and its elements must not
    coincide if the program writes it. `sizes` is {name of an open size: value}.
    """
    kind, name = arg.type, arg.name
    if kind.strides is None:
        packed = array.packed if isinstance(array, DeviceArray) else array.flags.c_contiguous
        if not packed:
            raise ArgumentError(
                f"{name} is not contiguous, and {program.name} takes {kind}, without gaps; pass a contiguous "
                "copy of it, or state its strides in the text"
            )
        return
    wanted = tuple(extent(e, sizes, name, dim) for dim, e in enumerate(kind.strides))
    if not isinstance(array, DeviceArray):
        raise ArgumentError(
            f"{name} is an array of the host; {program.name} takes it with the strides {wanted}, as {kind}: "
            "pass one that lies so on the device"
        )
    if any(n > 1 and s != w for n, s, w in zip(array.shape, array.strides, wanted, strict=True)):
        raise ArgumentError(f"{name} has the strides {array.strides}; {program.name} takes {wanted}, as {kind}")
    if kind.role != "in" and array.coincides:
        raise ArgumentError(
            f"{name} is written, but its shape {array.shape} and strides {array.strides} may make elements coincide"
        )
