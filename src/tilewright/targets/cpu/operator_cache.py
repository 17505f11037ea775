"""Remembered calls of torch's operators on the host, from an operator's arguments to its results.

An operator computes its result by one kernel. The first call of its kind is checked fully and observed
(`calls.observing`): this shows which arrays of the kernel are arguments of the operator, perhaps with other extents and
strides or copied, and which are its results. Later calls are compared with it, and launched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tilewright.runtime.outputs import LEAST, maker
from tilewright.runtime.tensors import Form
from tilewright.targets.calls.describing import reads_arrays
from tilewright.targets.calls.learnt import LearntCalls
from tilewright.targets.calls.observing import KeptWeights, KernelCall, Observed
from tilewright.targets.calls.table import CallRecord, Copy, Description, FixedTensor, Output, SmallCopy
from tilewright.targets.cpu.calling import call_launch
from tilewright.targets.cpu.launch_cache import ROOM, copied_arrays, copies_of, room_of
from tilewright.targets.cpu.pool import pool

KINDS = 1024
"""The most kinds of calls that one operator remembers."""
Dims = tuple[tuple[int, int], ...]
"""(extent, stride) of each dimension of a contiguous array in a tensor's memory; strides count elements."""


class OperatorCache(LearntCalls):
    """The launches that one operator remembers of its calls on the host."""

    def describe(self, args: Sequence[Any]) -> Description | None:
        """Return the Description of the arguments `args`: 64-bit words (types, extents, strides, values of numbers) and
        the addresses of arrays. Calls with equal words are of one kind. Return None if an argument cannot be described.
        """
        if not reads_arrays():
            return None
        return self.table_for(pool().code, args).described(args)

    def learn(self, args: Sequence[Any], results: Sequence[Any], events: Observed) -> bool:
        """Remember a successful call of the operator, so that later calls of the same kind repeat its launch. `args`
        and `results` are those of the operator. `events` were recorded during the call. Return True if the call is
        remembered. Return False if no record can repeat it, for example because it made several kernel calls.
        """
        described = self.describe(args)
        if described is None or len(events.calls) != 1 or len(events.weights) > 1:
            return False
        (call,) = events.calls
        room = room_of(call.whole)
        fixed = _fixed(args, events.weights)
        if room is None or fixed is None:
            return False
        sources = _sources(args, results, call, events)
        if sources is None:
            return False
        record = _record(args, results, call, sources, (room, fixed, events.weights))
        if record is None:
            return False
        for packed in events.weights:
            packed.life.known_to.add(self)
        self.remember(described, record, KINDS, ROOM)
        return True


# -- where the arrays of a kernel come from ---------------------------------------------------------------


class _Source(NamedTuple):
    """The origin of a kernel's array: `place` is the number of its tensor among the operator's arguments, then results.

    `view` is a tensor in the memory of that argument or result, with other extents and strides; the array is the view,
    or a contiguous copy of it. If a result was copied from the array instead, `dims` are (extent, stride) of the
    result's dimensions, in the array's memory order.
    """

    place: int
    view: Any = None
    dims: Dims | None = None


def _sources(
    args: Sequence[Any], results: Sequence[Any], call: KernelCall, events: Observed
) -> list[_Source | None] | None:
    """Return [origin of the array, ...] for the arrays of the host program that the kernel call `call` launched. The
    origin is an argument or a result of the operator, or a contiguous copy of one. It is None for an array that is the
    same in every call, such as a constant.

    `args` and `results` are those of the operator. `events` has the copies and constants that were observed. Return
    None in place of the list if the origin of an array is unknown, or if a result is not written by exactly one array.
    """
    arrays = [*call.args, *(array for array, _ in call.outputs)]
    argument_at = {_address(a): n for n, a in enumerate(args) if _is_array(a)}
    result_at = {_address(a): len(args) + n for n, a in enumerate(results)}
    copied_from = {_address(copy): source for copy, source in events.copies}
    constants = {_address(c) for c in events.constants}
    sources: list[_Source | None] = []
    for place, written in zip(call.places, call.whole.written, strict=True):
        array = None if place is None else arrays[place]
        if array is None or not _is_array(array):
            sources.append(None)
            continue
        address = _address(array)
        if written:
            source = _source_of_result(address, array, result_at, results, len(args), copied_from)
        elif address in argument_at:
            source = _Source(argument_at[address], array)
        elif address in copied_from and _address(copied_from[address]) in argument_at and _is_contiguous(array):
            source = _Source(argument_at[_address(copied_from[address])], copied_from[address])
        elif address in constants:
            sources.append(None)
            continue
        else:
            source = None
        if source is None:
            return None
        sources.append(source)
    of_results = [s.place for s in sources if s is not None and s.place >= len(args)]
    return sources if sorted(of_results) == list(range(len(args), len(args) + len(results))) else None


def _source_of_result(
    at: int,
    array: Any,
    result_at: Mapping[int, int],
    results: Sequence[Any],
    first: int,
    copied_from: Mapping[int, Any],
) -> _Source | None:
    """Return the origin of `array`, which the kernel wrote at the address `at`: the result of the operator that has the
    array's memory, or that was copied from it. Return None if there is no such result, or if a result was copied from
    an array that is not contiguous, or from a tensor that is not dense (`_in_memory_order`).

    `result_at` is {address: number of the result}. The numbers of `results` begin with `first`. `copied_from` is
    {address of a copy: tensor that was copied}.
    """
    if at in result_at:
        return _Source(result_at[at], array)
    for n, result in enumerate(results):
        source = copied_from.get(_address(result))
        if source is not None and _address(source) == at and _is_contiguous(array):
            dims = _in_memory_order(source, result)
            return None if dims is None else _Source(first + n, dims=dims)
    return None


def _in_memory_order(source: Any, copy: Any) -> Dims | None:
    """Return ((extent, stride in `copy`), ...) of the dimensions, sorted by their strides in `source`, largest first.
    `source` and `copy` are tensors of one shape. Dimensions of extent 1 are left out; if all are, the result is ((1,
    1),). Return None if `source` is not dense: it has gaps in memory, overlapping elements or broadcast dimensions
    (stride 0). Strides count elements.
    """
    order = sorted(range(source.dim()), key=lambda n: (-source.stride(n), n))
    dims = [(source.shape[n], copy.stride(n), source.stride(n)) for n in order if source.shape[n] != 1]
    step = 1
    for extent, _, stride in reversed(dims):
        if stride != step:
            return None
        step *= extent
    return tuple((extent, stride) for extent, stride, _ in dims) or ((1, 1),)


def _is_array(value: Any) -> bool:
    """True if `value` is a numpy array or a torch tensor (the test is whether it has an attribute `ndim`)."""
    return hasattr(value, "ndim")


def _address(array: Any) -> int:
    """Return the address of the first element of `array`, a numpy array or torch tensor."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr())


def _is_contiguous(array: Any) -> bool:
    """True if `array`, a numpy array or torch tensor, is contiguous in row-major order."""
    return bool(array.flags.c_contiguous if isinstance(array, np.ndarray) else array.is_contiguous())


def _fixed(args: Sequence[Any], weights: Sequence[KeptWeights]) -> list[FixedTensor] | None:
    """Return the arguments that must be the same, unchanged tensors in all calls of a record: those that were packed
    into `weights`. `args` are the arguments of the operator. Return None if a packed tensor is not in `args`.
    """
    places = {id(a): n for n, a in enumerate(args)}
    tensors = [each for packed in weights for each in packed.tensors]
    if any(id(tensor) not in places for tensor, _, _ in tensors):
        return None
    return [FixedTensor(places[id(tensor)], id(tensor), version, at) for tensor, version, at in tensors]


# -- the record -------------------------------------------------------------------------------------------


def _record(
    args: Sequence[Any],
    results: Sequence[Any],
    call: KernelCall,
    sources: Sequence[_Source | None],
    validity: tuple[int, Sequence[FixedTensor], Sequence[KeptWeights]],
) -> CallRecord | None:
    """Return the CallRecord that repeats the operator's call in native code. Return None in these cases: the kernel
    writes to an argument; a copy is needed that a record cannot make; a result has gaps in memory; a result and the
    array that the kernel wrote have different numbers of elements.

    `args` and `results` are those of the operator. `sources` has the origin of each array of the kernel call `call`
    (see `_sources`). `validity` is (bytes of memory that the launch keeps, tensors that must stay the same, packed
    weights). The launch drops its references to arrays that later calls replace.
    """
    room, fixed, weights = validity
    whole, code = call.whole, pool().code
    numbers = [None if s is None else s.place for s in sources]
    if any(n is not None and n < len(args) for n, w in zip(numbers, whole.written, strict=True) if w):
        return None
    views = {s.place: s.view for s in sources if s is not None and s.view is not None}
    addresses = [_address(a) if _is_array(a) else 0 for a in (*args, *results)]
    for source, array in zip(sources, whole.arrays, strict=True):
        if source is not None and source.dims is not None:
            addresses[source.place] = array.ctypes.data  # the result is copied from it
    copied = copied_arrays(views, whole, numbers, addresses)
    if copied is None:
        return None
    zeroed = {_address(array) for array, zeros in call.outputs if zeros}
    outputs: list[Output] = []
    result_copies: list[SmallCopy] = []
    for n, result in enumerate(results, len(args)):
        (place,) = [k for k, m in enumerate(numbers) if m == n]
        array, source = whole.arrays[place], sources[place]
        assert source is not None
        dims = source.dims
        if n in copied:
            dims = tuple(zip(source.view.shape, source.view.stride(), strict=True))
        if array.size != result.numel() or not _has_no_gaps(result):
            return None
        output, small = _output(result, array, n, dims, _address(array) in zeroed)
        outputs.append(output)
        result_copies += [] if small is None else [small]
    of_args = {n: dtype for n, dtype in copied.items() if n < len(args)}
    copies = [_copy_of_view(copy, args, views) for copy in copies_of(views, of_args)]
    launch, _ = whole.launches[0]
    alive = weights[0].life.alive if weights else None
    record = CallRecord(
        len(args),
        call_launch(code, launch, numbers),
        outputs,
        [*copies, *result_copies],
        room=room,
        fixed=fixed,
        alive=alive,
    )
    launch.drop_replaced_arrays(numbers)
    return record


def _copy_of_view(copy: Copy | SmallCopy, args: Sequence[Any], views: Mapping[int, Any]) -> Copy | SmallCopy:
    """Return `copy`, changed so that it copies a view of its argument in `args`. The view has the extents and strides
    of `views`[argument number], a tensor in the memory of the argument. `copy` is returned unchanged if it is a
    SmallCopy, or if the argument already has these extents and strides.
    """
    if isinstance(copy, SmallCopy):
        return copy
    argument, view = args[copy.argument], views[copy.argument]
    if (argument.shape, argument.stride()) == (view.shape, view.stride()):
        return copy
    return copy._replace(make=partial(_copied_as, copy.make, tuple(view.shape), view.stride()))


def _copied_as(make: Callable[[Any], Any], shape: tuple[int, ...], strides: tuple[int, ...], tensor: Any) -> Any:
    """Return the copy that `make` makes of `tensor`, viewed with `shape` and `strides` (in elements)."""
    return make(tensor.as_strided(shape, strides))


def _output(result: Any, array: Any, place: int, dims: Dims | None, zeroed: bool) -> tuple[Output, SmallCopy | None]:
    """Return (output, small copy or None): how each call creates one result of the operator.

    `result` is the tensor that the operator returned, and `array` is what the kernel wrote. `place` is the number of
    the result among arguments and results. `dims` is None if both have the same memory. Otherwise it is ((extent,
    stride), ...) of the result in the memory order of `array`. `zeroed` says that the kernel needs zeros in `array`.

    | `array` | `dims` | the kernel writes to | the result is |
    |---|---|---|---|
    | small, not zeroed | None | a new tensor | this tensor |
    | small, not zeroed, SmallCopy takes it | given | the stack | a new tensor that the SmallCopy fills |
    | other | None | memory from a pool | a view of this memory |
    | other | given | memory from a pool | a new tensor, copied from this memory |
    """
    torch: Any = sys.modules["torch"]
    shape, strides = tuple(result.shape), result.stride()
    make = partial(torch.empty_strided, shape, strides, dtype=result.dtype)
    is_small = array.nbytes < LEAST and not zeroed
    if is_small and dims is None:
        return Output(make), None
    if is_small and dims is not None and SmallCopy.takes(array.itemsize, array.size):
        return Output(make), SmallCopy(place, dims, array.itemsize, array.itemsize, False, True)
    as_tensor = Form([result]).finisher(array.dtype)
    assert as_tensor is not None
    pooled = maker((array.size,), array.dtype, zeroed)
    if dims is None:
        return Output(pooled, lambda elements: as_tensor(elements).as_strided(shape, strides)), None
    extents, steps = (tuple(column) for column in zip(*dims, strict=True))

    def placed(elements: Any) -> Any:
        """Return a new result with the elements of `elements`, the array that the kernel wrote."""
        goal = make()
        goal.as_strided(extents, steps).copy_(as_tensor(elements).view(extents))
        return goal

    return Output(pooled, placed), None


def _has_no_gaps(tensor: Any) -> bool:
    """True if the torch tensor `tensor` has as many elements as the memory from its first to its last element."""
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return bool(last + 1 == prod(tensor.shape))
