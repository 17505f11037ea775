"""Calls like one before, on the host: arrays of the same shapes, strides and types. Only addresses are new.

The first call of its kind is checked at length and bound. Later ones are compared with it (`targets.calls`), and
launched. Arguments may be numpy arrays and torch tensors on the CPU; those that are not contiguous are copied.
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
from tilewright.targets.calls.learnt import LearntCalls, telling_of
from tilewright.targets.calls.observing import tell_of_call
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
"""The kinds of calls, at most, that are remembered."""
STACK = 16 << 10
"""Bytes of copies, at most, that a call makes on its stack."""
ROOM = 64 << 20
"""Bytes of workspaces and scratch memory, at most, that stay with them; a call that needs more makes them anew."""


class LaunchCache(LearntCalls):
    """The launches learnt from the calls of one executable on the host."""

    def learn(
        self,
        args: Sequence[Any],
        outputs: Sequence[tuple[Array, bool]],
        whole: Whole | None,
        places: Sequence[int | None],
    ) -> None:
        """A call was right, which bound a `whole` host program; another one like it may be done so.

        `outputs` are those that the call made, and whether they must hold zeros before it. `places` says which of
        the call's arguments, and of the outputs after them, each argument of the host program is; None: it stays. Each
        is the memory of that array, or a contiguous copy of it, converted to the program's element type.
        """
        if whole is None or tell_of_call(args, outputs, whole, places):
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
        given = [n for n in range(len(args)) if addresses[n]]
        extents = [_extent_of(args[n]) if n in given else Extent(0, 0) for n in range(len(args))]
        pairs = [pair_of(w, other, extents, addresses) for w in written if w in given for other in given if other != w]
        form = Form(args)
        record = CallRecord(
            len(args),
            call_launch(code, launch, moved),
            [Output(maker(a.shape, a.dtype, zeroed), form.finisher(a.dtype)) for a, zeroed in outputs],
            copies_of(dict(enumerate(args)), copied, written),
            pairs,
            [n for n in sorted(written) if n in given and torch_of(args[n]) is not None],
            telling_of(sys.modules.get("torch")),
            room=room,
        )
        launch.let_go(moved)
        self.remember(described, record, KINDS, ROOM)


def room_of(whole: Whole) -> int | None:
    """Bytes that stay with the launches of a host program; None: they cannot be learnt."""
    (launch, slots), *others = whole.launches
    is_entry = isinstance(launch, EntryLaunch) and slots == tuple(range(len(whole.arrays)))
    if not reads_arrays() or others or not is_entry:
        return None
    room: int = launch.room
    return room if room <= ROOM and all(a.size for a in whole.arrays) else None


def copied_arrays(
    given: Mapping[int, Any], whole: Whole, moved: Sequence[int | None], addresses: Sequence[int]
) -> dict[int, np.dtype[Any]] | None:
    """The arrays of which the host program has copies, and their element type there.

    `given` are arrays by their place among the arguments and outputs of a call. None where its launches are not for
    other arrays: what is done once has used one, or it is no copy.
    """
    copied: dict[int, np.dtype[Any]] = {}
    for place, (array, n) in enumerate(zip(whole.arrays, moved, strict=True)):
        if n is None:
            continue
        if place in whole.fixed:
            return None
        if array.ctypes.data == addresses[n] and array.flags.c_contiguous:
            continue
        if n not in given or not given[n].ndim or _count(given[n]) != array.size or not array.flags.c_contiguous:
            return None
        if copied.setdefault(n, array.dtype) != array.dtype:
            return None
    uses = [n for n in moved if n is not None]
    return None if any(uses.count(n) > 1 for n in copied) else copied


def _count(argument: Any) -> int:
    return int(argument.size if isinstance(argument, np.ndarray) else argument.numel())


def _extent_of(argument: Any) -> Extent:
    """The bytes of an array or tensor, from its first element."""
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
    """The copies of the arguments at these places, and of others like them: contiguous, and of these element types."""
    copies: list[Copy | SmallCopy] = []
    on_stack = 0
    for place, dtype in copied.items():
        array, size = arrays[place], dtype.itemsize
        is_numpy = isinstance(array, np.ndarray)
        strides, unit = (array.strides, 1) if is_numpy else (array.stride(), size)
        kind = dtype if is_numpy else torch_dtype_of(sys.modules["torch"], dtype)
        small = SmallCopy(place, _dims(array.shape, strides), size, unit, True, place in written)
        if array.dtype == kind and SmallCopy.takes(size, _count(array)) and on_stack + small.nbytes <= STACK:
            copies.append(small)
            on_stack += small.nbytes
        elif is_numpy:
            back = np.copyto if place in written else None
            copies.append(Copy(place, partial(_filled, maker(array.shape, dtype)), back))
        else:
            copies.append(_copy_of_tensor(array, place, kind, place in written))
    return copies


def _copy_of_tensor(tensor: Any, place: int, dtype: Any, written: bool) -> Copy:
    torch: Any = sys.modules["torch"]
    is_strided = dtype is tensor.dtype and not tensor.is_contiguous()
    make = torch.Tensor.contiguous if is_strided else partial(_converted, torch, dtype)
    return Copy(place, make, torch.Tensor.copy_ if written else None)


def _dims(extents: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(extents, strides, strict=True))


def _filled(make: Callable[[], Array], array: Array) -> Array:
    copy = make()
    np.copyto(copy, array, casting="unsafe")
    return copy


def _converted(torch: Any, dtype: Any, tensor: Any) -> Any:
    return tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)
