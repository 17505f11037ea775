"""Remembered calls of executables on the host: a later call with the same shapes, strides and types only has new
addresses.

The first call of its kind is checked fully and bound. Later calls are compared with it (`targets.calls`), and launched.
Arguments may be numpy arrays and torch tensors on the CPU; those that are not contiguous are copied.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any

import numpy as np

from tilewright.runtime.outputs import maker
from tilewright.runtime.scripts import Whole
from tilewright.runtime.tensors import Form, torch_dtype_of, torch_of
from tilewright.targets.calls.describing import reads_arrays
from tilewright.targets.calls.learnt import LearntCalls, write_counter_of
from tilewright.targets.calls.observing import report_call
from tilewright.targets.calls.table import (
    CallRecord,
    Copy,
    Extent,
    Output,
    SmallCopy,
    pair_of,
)
from tilewright.targets.cpu.calling import call_launch
from tilewright.targets.cpu.entry import EntryLaunch
from tilewright.targets.cpu.pool import pool

Array = np.ndarray[Any, np.dtype[Any]]
KINDS = 256
"""The most kinds of calls that an executable remembers."""
STACK = 16 << 10
"""The most bytes of copies that a call makes on its stack."""
ROOM = 64 << 20
"""The most bytes that remembered calls keep: packed operands, and workspaces that are not shared."""


class LaunchCache(LearntCalls):
    """The launches that one executable remembers of its calls on the host."""

    def learn(
        self,
        args: Sequence[Any],
        outputs: Sequence[tuple[Array, bool]],
        whole: Whole | None,
        places: Sequence[int | None],
    ) -> None:
        """Remember a successful call, so that later calls of the same kind repeat its launch.

        Nothing is remembered in these cases: `whole` is None; an observer records the call (the call is reported to
        it); an output has no elements; the arguments cannot be described; one launch with other addresses cannot repeat
        the call.

        `outputs` are pairs (array that the call allocated, True if it must be filled with zeros first). `whole`
        describes the bound host program. `places` has one entry for each array of `whole`: its number in `args`
        followed by `outputs`, or None if every call uses the same array. An array of `whole` may be a contiguous,
        converted copy of an argument. If the call is remembered, its launch drops the references to arrays that later
        calls replace.
        """
        if whole is None or report_call(args, outputs, whole, places):
            return
        room = room_of(whole)
        if room is None or not all(a.size for a, _ in outputs):
            return
        code = pool().code
        table = self.table_for(code, args)
        described = table.described(args)
        if described is None:
            return
        addresses = described.addresses + [a.ctypes.data for a, _ in outputs]
        moved = [None if place is None or not addresses[place] else place for place in places]
        copied = copied_arrays(dict(enumerate(args)), whole, moved, addresses)
        if copied is None:
            return
        written = {n for n, writes in zip(moved, whole.written, strict=True) if n is not None and writes}
        launch, _ = whole.launches[0]
        array_args = [n for n in range(len(args)) if addresses[n]]
        extents = [_extent_of(args[n]) if n in array_args else Extent(0, 0) for n in range(len(args))]
        pairs = [
            pair_of(w, other, extents, addresses)
            for w in written
            if w in array_args
            for other in array_args
            if other != w
        ]
        form = Form(args)
        record = CallRecord(
            len(args),
            call_launch(code, launch, moved),
            [Output(maker(a.shape, a.dtype, zeroed), form.finisher(a.dtype)) for a, zeroed in outputs],
            copies_of(dict(enumerate(args)), copied, written),
            pairs,
            [n for n in sorted(written) if n in array_args and torch_of(args[n]) is not None],
            write_counter_of(sys.modules.get("torch")),
            room=room,
        )
        launch.drop_replaced_arrays(moved)
        self.remember(described, record, KINDS, ROOM)


def room_of(whole: Whole) -> int | None:
    """Return the bytes of memory that the launch of `whole` keeps while its call is remembered. `whole` describes a
    bound host program. Return None if the call cannot be remembered: there are several launches, an array without
    elements, or no machine-code entry; the launch needs more than ROOM bytes; or native code cannot read numpy arrays
    here.
    """
    (launch, slots), *others = whole.launches
    is_entry = isinstance(launch, EntryLaunch) and slots == tuple(range(len(whole.arrays)))
    if not reads_arrays() or others or not is_entry:
        return None
    room: int = launch.room
    return room if room <= ROOM and all(a.size for a in whole.arrays) else None


def copied_arrays(
    given: Mapping[int, Any], whole: Whole, moved: Sequence[int | None], addresses: Sequence[int]
) -> dict[int, np.dtype[Any]] | None:
    """Return {number of an array in the call: element type of the copy} for the arrays that the host program `whole`
    reads or writes as contiguous copies. Return None if its launch cannot be repeated with other arrays.

    `given` is {number: array} of the call's arguments. `moved` has one entry for each array of `whole`: its number in
    the call, or None if every call uses the same array. `addresses` are the addresses of the call's arrays, by number.
    """
    copied: dict[int, np.dtype[Any]] = {}
    for place, (array, n) in enumerate(zip(whole.arrays, moved, strict=True)):
        if n is None:
            continue
        if place in whole.fixed:
            return None
        if array.ctypes.data == addresses[n] and array.flags.c_contiguous:
            continue
        if (
            n not in given
            or not given[n].ndim
            or _element_count(given[n]) != array.size
            or not array.flags.c_contiguous
        ):
            return None
        if copied.setdefault(n, array.dtype) != array.dtype:
            return None
    uses = [n for n in moved if n is not None]
    return None if any(uses.count(n) > 1 for n in copied) else copied


def _element_count(argument: Any) -> int:
    """Return the number of elements of `argument`, a numpy array or torch tensor."""
    return int(argument.size if isinstance(argument, np.ndarray) else argument.numel())


def _extent_of(argument: Any) -> Extent:
    """Return the bytes that the numpy array or torch tensor `argument` spans, relative to its first element: the
    lowest, and one past the highest. The lowest is negative if the array has negative strides.
    """
    if isinstance(argument, np.ndarray):
        steps, size = argument.strides, argument.itemsize
    else:
        size = argument.element_size()
        steps = tuple(s * size for s in argument.stride())
    reaches = [(n - 1) * s for n, s in zip(argument.shape, steps, strict=True)]
    return Extent(sum(min(r, 0) for r in reaches), sum(max(r, 0) for r in reaches) + size)


def copies_of(
    arrays: Mapping[int, Any], copied: Mapping[int, np.dtype[Any]], written: Set[int] = frozenset()
) -> list[Copy | SmallCopy]:
    """Return the contiguous copies of arguments that a remembered call makes. `arrays` is {number: argument}, and
    `copied` is {number: element type of the copy}. A small copy without conversion is made on the call's stack, if all
    copies there have at most STACK bytes. Copies of arguments with a number in `written` are copied back after the
    launch.
    """
    copies: list[Copy | SmallCopy] = []
    on_stack = 0
    for number, dtype in copied.items():
        array, size = arrays[number], dtype.itemsize
        is_numpy = isinstance(array, np.ndarray)
        strides, unit = (array.strides, 1) if is_numpy else (array.stride(), size)
        kind = dtype if is_numpy else torch_dtype_of(sys.modules["torch"], dtype)
        small = SmallCopy(number, _dims(array.shape, strides), size, unit, True, number in written)
        if array.dtype == kind and SmallCopy.takes(size, _element_count(array)) and on_stack + small.nbytes <= STACK:
            copies.append(small)
            on_stack += small.nbytes
        elif is_numpy:
            back = np.copyto if number in written else None
            copies.append(Copy(number, partial(_copy_into, maker(array.shape, dtype)), back))
        else:
            copies.append(_copy_of_tensor(array, number, kind, number in written))
    return copies


def _copy_of_tensor(tensor: Any, place: int, dtype: Any, written: bool) -> Copy:
    """Return the Copy for argument number `place` of a call, the torch tensor `tensor`. The copy is contiguous and has
    the torch type `dtype`. It is copied back after the launch if `written`.
    """
    torch: Any = sys.modules["torch"]
    is_strided = dtype is tensor.dtype and not tensor.is_contiguous()
    make = torch.Tensor.contiguous if is_strided else partial(_converted, torch, dtype)
    return Copy(place, make, torch.Tensor.copy_ if written else None)


def _dims(extents: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return ((extent, stride), ...) for the dimensions of an array with these `extents` and `strides`."""
    return tuple(zip(extents, strides, strict=True))


def _copy_into(make: Callable[[], Array], array: Array) -> Array:
    """Create an array with `make`, copy the elements of `array` into it, converted to its type, and return the new
    array.
    """
    copy = make()
    np.copyto(copy, array, casting="unsafe")
    return copy


def _converted(torch: Any, dtype: Any, tensor: Any) -> Any:
    """Return a new, contiguous copy of the torch tensor `tensor`, converted to the torch type `dtype`. `torch` is the
    module torch.
    """
    return tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)
