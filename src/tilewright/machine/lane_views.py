"""Conditions for lane copies between views: each lane has an address of its own and moves an aligned run of elements.

A run is contiguous along one axis of the box and begins at a multiple of its length. So along that axis the tensor's
stride is 1, every other stride is a multiple of the run, and the tensor ends between runs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import numpy as np

from tilewright.algebra import eq, index
from tilewright.algebra.expr import Const, Expr
from tilewright.machine.copy import Refused
from tilewright.machine.ends import with_ends
from tilewright.machine.views import Condition, MemoryView, RegisterView, ViewRequest, is_number, multiple, weight


def register_conditions(request: ViewRequest, width: int, wave: int) -> Iterator[Condition]:
    """Yield the conditions on open sizes (known only at the call) under which lanes can do `request`.

    `request` is a copy between memory and registers. Each lane moves `width` bytes with one instruction; `wave` is the
    number of lanes of a wave. Nothing is yielded if the copy is always possible. If no sizes allow it, Refused is
    raised, or a condition that is the constant 0 is yielded.
    """
    registers, memory = request.sides()
    count = run_length(request, width)
    lanes, values = registers.elements.shape
    if lanes % wave:
        raise Refused(f"{registers.name} has {lanes} lanes, not whole waves of {wave}")
    if values % count:
        raise Refused(
            f"a lane holds {values} values of {registers.name}, no multiple of the {count} that {width} bytes are"
        )
    yield from _run_conditions(request, memory, _axis_of(registers, request.box, count), count, width, whole=True)


def transfer_conditions(request: ViewRequest, width: int) -> Iterator[Condition]:
    """Yield the conditions on open sizes (known only at the call) under which lanes can do `request`.

    `request` is a copy from memory to shared memory. Each lane moves `width` bytes with one instruction. Elements past
    the end of the source arrive as zeros; the target must be in bounds everywhere. If no sizes allow the copy, Refused
    is raised, or a condition that is the constant 0 is yielded.
    """
    source, target = request.source, request.target
    assert isinstance(source, MemoryView)
    assert isinstance(target, MemoryView)
    count = run_length(request, width)
    if any(target.may_leave):
        raise Refused(f"part of the box may lie outside {target.name}, and it has no mask for writing")
    # runs go along the axis that is contiguous in the target
    axis = next((a for a, s in enumerate(request.axes) if is_number(weight(target.offset(), s), 1)), None)
    if axis is None and count > 1:
        raise Refused(f"runs of {count} elements are not neighbours in {target.name}: no stride is 1")
    if axis is not None and request.box[axis] % count:
        raise Refused(
            f"rows of {request.box[axis]} elements are not whole runs of {count}, the {width} bytes of a lane"
        )
    yield from _run_conditions(request, target, axis, count, width, whole=True)
    yield from _run_conditions(request, source, axis, count, width, whole=False)


def run_length(request: ViewRequest, width: int) -> int:
    """Return the number of elements of `request` in `width` bytes, which a lane moves; raise Refused unless it is a
    whole number.
    """
    if width % request.size:
        raise Refused(f"a lane moves {width} bytes, which is no multiple of an element's {request.size}")
    return width // request.size


def _axis_of(registers: RegisterView, box: tuple[int, ...], count: int) -> int | None:
    """Return the number of the box axis along which each run of `count` consecutive values of a lane is contiguous.

    `box` is the shape of the copied elements, `registers` says which of them each lane holds. Return None if `count` is
    1. Raise Refused if a run is not contiguous along one axis, or does not begin at a multiple of `count`.
    """
    if count == 1:
        return None
    runs = registers.elements.reshape(-1, count)
    coordinates = np.unravel_index(runs, box, order="F")
    moving = [d for d, c in enumerate(coordinates) if (c != c[:, :1]).any()]
    if len(moving) != 1 or (np.diff(coordinates[moving[0]], axis=1) != 1).any():
        raise Refused(f"{count} values of a lane of {registers.name} are not neighbours along one dimension")
    starts = coordinates[moving[0]][:, 0]
    if (starts % count).any():
        raise Refused(
            f"{count} values of a lane of {registers.name} begin at element {starts[starts % count != 0][0]} of "
            f"dimension {moving[0]}, no multiple of {count}"
        )
    return moving[0]


def _run_conditions(
    request: ViewRequest, view: MemoryView, axis: int | None, count: int, width: int, whole: bool
) -> Iterator[Condition]:
    """Yield the conditions on open sizes (known only at the call) under which each run is contiguous and aligned.

    A run is the `count` elements, `width` bytes together, that one lane moves with one instruction. `view` is the
    memory side of `request`. `axis` is the number of the box axis along which runs lie, or None for runs of one
    element.

    In the dimension along the runs, each run must begin at a multiple of `count`. With `whole`, no run may be cut off
    by the end of the tensor: if that dimension may be out of bounds, its extent must be a multiple of `count`. Offsets
    in each other dimension must be multiples of `count` elements. Raise Refused if the tensor's alignment is too small,
    if the swizzle separates elements of a run, or if no dimension of the tensor is contiguous along the runs.
    """
    what = f"{width} bytes a lane"
    if view.alignment % width:
        raise Refused(f"{view.name} is aligned to {view.alignment} bytes; {what} need {width}")
    if view.swizzle is not None and (1 << view.swizzle.base) % count:
        raise Refused(f"the swizzle {view.swizzle} of {view.name} tears runs of {count} elements apart")
    cutting = () if axis is None else tuple(end for end in view.ends if request.axes[axis] in end.symbols)
    view = with_ends(replace(view, ends=cutting), request.axes).joined(request.axes)
    along = None
    if axis is not None:
        along = yield from _dimension_along(request, view, axis, count)
        runs = index("run", request.box[axis] // count)
        view = view.substituted({request.axes[axis]: runs * count})
    for d, (coordinate, stride, extent) in enumerate(zip(view.coordinates, view.strides, view.shape, strict=True)):
        if d == along:
            yield from multiple(
                coordinate,
                count,
                f"runs of {count} elements of {view.name} begin at {coordinate} in dimension {d}, not always a "
                f"multiple of {count}: {what} must be aligned",
            )
            if whole and view.may_leave[d]:
                yield from multiple(
                    extent,
                    count,
                    f"{view.name} has {extent} elements in dimension {d}, no multiple of {count}: its edge cuts a run; "
                    "a narrower copy ends there",
                )
            continue
        stride_bytes = stride * request.size
        reason = (
            f"the stride of dimension {d} of {view.name} is {stride_bytes} bytes, no multiple of the {width} that a "
            "lane moves at once: its rows are not aligned"
        )
        if not multiple(coordinate * stride, count, reason):
            continue
        # a symbolic stride must be a multiple; with a constant stride, coordinate * stride must be
        yield from multiple(stride if not isinstance(stride, Const) else coordinate * stride, count, reason)


def _dimension_along(request: ViewRequest, view: MemoryView, axis: int, count: int) -> Generator[Condition, None, int]:
    """Return the dimension of `view` along which runs of `count` elements lie, as the return value of this generator.

    It is the only dimension whose coordinate depends on axis number `axis` of the box of `request`; the coordinate must
    grow by 1 with the axis, and the stride must be 1. If the stride is symbolic, the condition that it is 1 is yielded.
    Raise Refused if there is no such dimension, or if its stride is another number.
    """
    symbol = request.axes[axis]
    steps: list[tuple[int, Expr | None]] = [
        (d, weight(c, symbol)) for d, c in enumerate(view.coordinates) if symbol in c.symbols
    ]
    if len(steps) != 1 or not is_number(steps[0][1], 1):
        raise Refused(
            f"dimension {axis} of the box does not walk one dimension of {view.name} element by element: "
            f"runs of {count} are not neighbours"
        )
    d = steps[0][0]
    stride = view.strides[d]
    reason = f"dimension {d} of {view.name} has stride {stride}; runs of {count} elements need stride 1"
    if isinstance(stride, Const) and stride.value != 1:
        raise Refused(reason)
    if not isinstance(stride, Const):
        yield Condition(eq(stride, 1), reason)
    return d
