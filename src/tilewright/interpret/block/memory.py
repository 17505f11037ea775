"""Memory in the interpreter: buffers that record which elements were written and by whom, and tensors and views in
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol
from tilewright.errors import OutOfBoundsFault, RaceFault, UninitialisedFault
from tilewright.interpret.block.accesses import READ, WRITE, Sharing, Watch
from tilewright.interpret.block.clocks import Clock
from tilewright.interpret.block.places import MOST_ELEMENTS, Coordinates, Pattern, flat_places, pattern
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.core import Op
from tilewright.ir.printer import op_text
from tilewright.ir.tensors import TensorType, numbers

if TYPE_CHECKING:
    from tilewright.interpret.block.channels import Hold

Array = np.ndarray[Any, np.dtype[Any]]

_ATOMICS: dict[str, Any] = {"add": np.add, "min": np.minimum, "max": np.maximum}


def at_line(op: Op) -> str:
    """Return the text of `op` with its source line, for error messages: "`fill %x 0` (line 3)"."""
    line = "" if op.loc is None else f" ({op.loc})"
    return f"`{op_text(op)}`{line}"


_DID = {READ: ("reads", "read"), WRITE: ("writes", "wrote")}
"""The verbs for an access, and for an earlier access, in messages."""


class Buffer:
    """A flat piece of memory, which of its elements are initialised, and, where races are possible, who accessed each
    element.
    """

    def __init__(self, name: str, data: Array, space: str, initialised: bool):
        self.name, self.data, self.space = name, data, space
        self.initialised = np.full(data.size, initialised)
        self.given = initialised  # whether every element is initialised
        self.watch: Watch | None = None
        self.sharing: Sharing | None = None
        self.staged: Array | None = None  # which elements were written through a stage of a channel

    def alike(self, **changes: Any) -> Buffer:
        """Return a new Buffer over the same memory, with the attributes in `changes` replaced, such as `data` viewed as
        another element type, or `initialised` with no element marked.
        """
        copy = object.__new__(Buffer)
        copy.__dict__ = {**self.__dict__, **changes}
        copy.given = self.given and "initialised" not in changes
        return copy

    def read(self, places: Array, clock: Clock, op: Op) -> Array:
        """Return the elements number `places` of the buffer, for operation `op` of the actor with vector clock `clock`.
        Record the access.

        Raise an UninitialisedFault if an element was never written, and a RaceFault if the read races with another
        access.
        """
        self._require_written(places, op)
        self._record_access(READ, places, clock, op)
        elements: Array = self.data.take(places)
        return elements

    def write(
        self, places: Array, values: Any, clock: Clock, op: Op, staged: bool = False, has_one_value: bool = False
    ) -> None:
        """Set the elements number `places` to `values`, for operation `op` of the actor with vector clock `clock`.

        Record the access, and mark the elements as initialised, and as written through a pipeline stage if `staged`.
        Raise a RaceFault if the write races with another access, or writes two different values to one element. With
        `has_one_value`, two values are not tested: the caller knows that there is one, or wants the last value.
        """
        self._record_access(WRITE, places, clock, op)
        self.data[places] = values
        self.initialised[places] = True
        if staged and self.staged is None:
            self.staged = np.zeros(self.data.size, bool)
        if self.staged is not None:
            self.staged[places] = staged
        if not has_one_value:
            self._require_one_value(places, values, op)

    def combine(self, places: Array, values: Array, reduction: str, clock: Clock, op: Op) -> None:
        """Update elements in place by the atomic operation `reduction` ("add", "min" or "max"), one by one.

        Element number `places[i]` becomes `reduction` of its value and `values[i]`; a number may occur several times.
        The access is recorded for the operation `op` of the actor (a wave or an asynchronous copy) with vector clock
        `clock`. Raise an UninitialisedFault if an element was never written, and a RaceFault if the access races with
        another access.
        """
        self._require_written(places, op)
        self._record_access(reduction, places, clock, op)
        function = _ATOMICS[reduction]
        for place, value in zip(places, values, strict=True):
            self.data[place] = function(self.data[place], value)

    def _require_written(self, places: Array, op: Op) -> None:
        """Raise an UninitialisedFault if one of the elements number `places`, which `op` reads, was never written."""
        if not self.given and not self.initialised.take(places).all():
            place = int(np.asarray(places)[~self.initialised[places]][0])
            raise UninitialisedFault(f"{at_line(op)} reads element {place} of {self.name}, which nothing wrote", op.loc)

    def _record_access(self, kind: str, places: Array, clock: Clock, op: Op) -> None:
        """Record an access by `op` to the elements number `places`; raise a RaceFault if it races with an earlier
        access of another task or another actor.

        `kind` is "read", "write" or an atomic operation, `clock` the vector clock of the actor (a wave or an
        asynchronous copy). Do nothing if no race is possible: the buffer has neither `sharing` nor `watch`.
        """
        if self.sharing is None and self.watch is None:
            return
        elements = np.asarray(places).reshape(-1)
        does, _ = _DID.get(kind, ("combines into", ""))
        if self.sharing is not None and (shared := self.sharing.note(kind, elements, clock.task)) is not None:
            place, earlier_kind = shared
            _, did = _DID.get(earlier_kind, ("", "combined into"))
            raise RaceFault(
                f"{at_line(op)} {does} element {place} of {self.name}, which another task, or another worker, "
                f"{did}: nothing orders them",
                op.loc,
            )
        if self.watch is not None and (race := self.watch.note(kind, elements, clock, op)) is not None:
            place, other = race
            raise RaceFault(
                f"{at_line(op)} {does} element {place} of {self.name}, and nothing orders it after "
                f"{at_line(other)}: a wait, a barrier or a release is missing",
                op.loc,
            )

    def _require_one_value(self, places: Array, values: Any, op: Op) -> None:
        """Raise a RaceFault if the write of `values` to `places`, which `op` has just done, wrote two different values
        to one element.

        The test is that each element of the buffer now equals its value in `values`.
        """
        stored = self.data.take(places)
        written = np.asarray(values).astype(stored.dtype, copy=False)
        if np.array_equal(stored, written):
            return
        written = np.broadcast_to(written, stored.shape)
        differs = (stored != written) & ((stored == stored) | (written == written))
        if differs.any():
            place = int(np.broadcast_to(places, differs.shape)[differs][0])
            raise RaceFault(f"{at_line(op)} writes two values to element {place} of {self.name}", op.loc)


@dataclass(eq=False)
class TensorMemory:
    """A tensor in a buffer: shape, strides, and possibly a swizzle. If it is a stage of a channel, `hold` must allow
    each access.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    swizzle: Any = None
    offset: int = 0
    hold: Hold | None = None
    staged: bool = False

    @classmethod
    def whole(cls, buffer: Buffer, kind: TensorType) -> TensorMemory:
        """Return the tensor of type `kind` that begins at the start of `buffer`. Raise a ProgramError if an extent or
        stride is not constant.
        """
        return cls(buffer, numbers(kind.shape, kind), numbers(kind.steps, kind), kind.swizzle)

    def stage(self, number: int, hold: Hold | None) -> TensorMemory:
        """Return entry `number` of the first dimension as a tensor in the same memory: one stage of a channel.

        The tensor stores `hold`, a wave's right to access the stage; each access to the tensor is checked against
        `hold` (None: not checked).
        """
        offset = self.offset + number * self.strides[0]
        return TensorMemory(self.buffer, self.shape[1:], self.strides[1:], self.swizzle, offset, hold, True)

    def locate(self, coordinates: tuple[Any, ...], op: Op) -> tuple[TensorMemory, Any, Any]:
        """Return (this tensor, element numbers in its buffer at `coordinates`, None). The None is the mask of a view's
        `locate`: all coordinates count as in bounds, and are not tested.

        `coordinates` has one number or array for each dimension. `op` is not used.
        """
        element: Any = self.offset
        if type(coordinates) is Coordinates and coordinates.size <= MOST_ELEMENTS:
            element = flat_places(coordinates, self.strides) + element
            return self, element if self.swizzle is None else self.swizzle(element), None
        for coordinate, stride in zip(coordinates, self.strides, strict=True):
            element = element + (coordinate if stride == 1 else coordinate * stride)
        if self.swizzle is not None:
            element = self.swizzle(element)
        return self, element, None

    def has_distinct_places(self, coordinates: tuple[Any, ...]) -> bool:
        """Return False: for a tensor that is no view, it is not known whether the elements at `coordinates` have
        different addresses.
        """
        return False

    def check(self, op: Op) -> None:
        """Raise a ProtocolFault if the tensor is a channel's stage that was committed or released before the access
        `op`.
        """
        if self.hold is not None:
            self.hold.check(op)


@dataclass(eq=False)
class TensorWindow:
    """A view: its coordinates as expressions of its own axes, on the tensor or view `base`."""

    base: TensorMemory | TensorWindow
    op: Op
    values: Mapping[str, int]
    shape: tuple[int, ...]

    @property
    def hold(self) -> Hold | None:
        """The right of a wave to access the channel stage that contains the view; None if the view is not in a
        stage.
        """
        return self.base.hold

    def check(self, op: Op) -> None:
        """Raise a ProtocolFault if the view is in a channel's stage that was committed or released before the access
        `op`.
        """
        self.base.check(op)

    def locate(self, coordinates: tuple[Any, ...], op: Op) -> tuple[TensorMemory, Any, Any]:
        """Return (the tensor that the view is in, element numbers in its buffer at `coordinates`, mask of the
        coordinates in bounds).

        `coordinates` has one number or array for each dimension of the view. The mask is None if all are in bounds;
        coordinates out of bounds are clipped. Raise an OutOfBoundsFault, for the access `op`, if a coordinate that is
        not marked with `?` is out of bounds.
        """
        if type(coordinates) is Coordinates and type(self.base) is TensorMemory:
            places = self._places_in_bounds(coordinates, self.base)
            if places is not None:
                return self.base, places, None
        names = axis_names(self.op.attrs["over"])
        values = {**self.values, **dict(zip(names, coordinates, strict=True))}
        in_bounds: Any = None
        base_coordinates = []
        for dim, ((e, may_leave), size) in enumerate(zip(self.op.attrs["at"], self.base.shape, strict=True)):
            coordinate = evaluated(e, values)
            if not within(coordinate, size):
                valid = (coordinate >= 0) & (coordinate < size)
                if not may_leave:
                    bad = (
                        coordinate
                        if isinstance(coordinate, int)
                        else int(np.asarray(coordinate)[~np.asarray(valid)].reshape(-1)[0])
                    )
                    raise OutOfBoundsFault(
                        f"{at_line(op)} through {at_line(self.op)}: coordinate {dim}, {e}, is {bad}, not in 0..{size}; "
                        "if that may be, mark it with ?",
                        op.loc or self.op.loc,
                    )
                in_bounds = valid if in_bounds is None else in_bounds & valid
                coordinate = np.clip(coordinate, 0, size - 1)
            base_coordinates.append(coordinate)
        bottom, places, base_in_bounds = self.base.locate(tuple(base_coordinates), op)
        if base_in_bounds is not None:
            in_bounds = base_in_bounds if in_bounds is None else in_bounds & base_in_bounds
        return bottom, places, in_bounds

    def has_distinct_places(self, coordinates: tuple[Any, ...]) -> bool:
        """True if the elements at `coordinates` are known to have different addresses in the buffer.

        It is known if the view has a `Pattern` (a cached table of element numbers) without duplicates. False means that
        it is not known: there is no pattern, or the pattern has an address twice.
        """
        if type(coordinates) is not Coordinates or type(self.base) is not TensorMemory:
            return False
        view_pattern = self._pattern(coordinates, self.base)
        return view_pattern is not None and view_pattern.is_one_to_one

    def _pattern(self, coordinates: Coordinates, base: TensorMemory) -> Pattern | None:
        """Return the `Pattern` of the elements at `coordinates` in `base`, the tensor that is viewed: a cached table of
        their element numbers, up to an offset. Return None if there is no pattern (see `pattern`).
        """
        attrs = self.op.attrs
        return pattern(coordinates, axis_names(attrs["over"]), expressions(attrs["at"]), base.strides)

    def _places_in_bounds(self, coordinates: Coordinates, base: TensorMemory) -> Array | None:
        """Return the element numbers at `coordinates` in the buffer of `base`, the tensor that is viewed, from a cached
        `Pattern`.

        Return None if there is no pattern, or if a coordinate is out of bounds.
        """
        view_pattern = self._pattern(coordinates, base)
        offset = None if view_pattern is None else view_pattern.offset(self.values, base.shape)
        return None if view_pattern is None or offset is None else view_pattern.at(base.offset + offset, base.swizzle)


@lru_cache(maxsize=1024)
def axis_names(axes: tuple[Symbol, ...]) -> tuple[str, ...]:
    """Return the names of the symbols `axes`; the result is cached."""
    return tuple(s.name for s in axes)


@lru_cache(maxsize=1024)
def expressions(at: tuple[tuple[Expr, bool], ...]) -> tuple[Expr, ...]:
    """Return the expressions of `at`, the coordinates of a view as pairs (expression, True if it may be out of bounds).
    The result is cached.
    """
    return tuple(e for e, _ in at)


def one_memory(one: TensorMemory | TensorWindow, other: TensorMemory | TensorWindow) -> bool:
    """True if the tensors or views `one` and `other` are in the same buffer memory, even if they have no common
    element.
    """
    while isinstance(one, TensorWindow):
        one = one.base
    while isinstance(other, TensorWindow):
        other = other.base
    return np.may_share_memory(one.buffer.data, other.buffer.data)


def overlapping(one: TensorMemory | TensorWindow, other: TensorMemory | TensorWindow, op: Op) -> bool:
    """True if the tensors or views `one` and `other` have a common element of memory. `op` is named in
    error messages.
    """
    if not one_memory(one, other):
        return False
    (_, elements, in_bounds), (_, other_elements, other_in_bounds) = (
        tensor.locate(grid(tensor.shape), op) for tensor in (one, other)
    )
    elements, in_bounds = spread_over(elements, in_bounds, one.shape)
    other_elements, other_in_bounds = spread_over(other_elements, other_in_bounds, other.shape)
    return bool(np.isin(elements[in_bounds], other_elements[other_in_bounds]).any())


def require_no_overlap(
    target: TensorMemory | TensorWindow,
    to: tuple[Any, ...],
    source: TensorMemory | TensorWindow,
    at: tuple[Any, ...],
    op: Op,
) -> None:
    """Raise a RaceFault if the elementwise operation `op` writes an element of memory that it also reads for another
    element.

    `to` are the coordinates in `target`, and `at` the coordinates in `source`, of the elements of the operation.
    Reading and writing an element for the same result is allowed.
    """
    if not one_memory(target, source):
        return
    shape = np.broadcast_shapes(*(np.shape(c) for c in (*to, *at)))
    memory, written, written_in_bounds = target.locate(to, op)
    written, written_in_bounds = spread_over(written, written_in_bounds, shape)
    _, read, read_in_bounds = source.locate(at, op)
    read, read_in_bounds = spread_over(read, read_in_bounds, shape)
    number = np.arange(read.size).reshape(shape)
    writer = np.full(memory.buffer.data.size, -1)
    writer[written[written_in_bounds]] = number[written_in_bounds]
    bad = read_in_bounds & (writer[read] >= 0) & (writer[read] != number)
    if bad.any():
        raise RaceFault(
            f"{at_line(op)} writes element {int(read[bad][0])} of {memory.buffer.name}, which it reads for another "
            "element: in which order elements are done is not said; copy them elsewhere first",
            op.loc,
        )


def within(c: Any, size: int) -> bool:
    """True if 0 <= c < size for the coordinate `c`, or for all coordinates if `c` is an array."""
    if isinstance(c, np.ndarray):
        if c.dtype == np.int64:  # one test for both ends: as unsigned numbers, negative ones are the greatest
            return not c.size or bool(c.view(np.uint64).max() < size)
        return not c.size or bool(c.min() >= 0 and c.max() < size)
    return bool(0 <= c < size)


@lru_cache(maxsize=1024)
def grid(shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Return the coordinates of all elements of a tensor with this shape, one read-only array for each dimension.

    The arrays broadcast to the shape: (2, 3) -> arrays of shapes (2, 1) and (1, 3). The result is cached.
    """
    return Coordinates(tuple(np.ogrid[tuple(slice(0, n) for n in shape)])) if shape else ()


@lru_cache(maxsize=1024)
def box(axes: tuple[Any, ...], what: str) -> tuple[tuple[int, ...], Mapping[str, Array]]:
    """Return (extents of the symbols `axes`, {symbol name: array of the symbol's values}).

    The arrays broadcast to the extents, as in `grid`. `what` names the operation in error messages. The result is
    cached.
    """
    shape = numbers(tuple(s.upper + 1 for s in axes), what)
    return shape, dict(zip((s.name for s in axes), grid(shape), strict=True))


@lru_cache(maxsize=1024)
def lane_pattern(axes: tuple[Symbol, ...], at: tuple[Expr, ...], strides: tuple[int, ...], what: str) -> Pattern | None:
    """Return the Pattern of the elements at the coordinates `at`, expressions of the symbols `axes` and of loop
    variables.

    `strides` are the strides of the memory; `what` names the operation in error messages. Return None if there are no
    `axes`, or if `pattern` returns None. The result is cached.
    """
    shape, _ = box(axes, what)
    coordinates = grid(shape)
    return pattern(coordinates, axis_names(axes), at, strides) if isinstance(coordinates, Coordinates) else None


def full(array: Any, shape: tuple[int, ...]) -> Array:
    """Return `array`, a number or array, broadcast to `shape`. The result may be a read-only view."""
    values = np.asarray(array)
    return values if values.shape == shape else np.broadcast_to(values, shape)


def spread_over(places: Any, inside: Any, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return (`places`, mask of the places in bounds), both broadcast to `shape`.

    `inside` is the mask in a shape that broadcasts to `shape`; None: all places are in bounds.
    """
    return full(places, shape), np.ones(shape, bool) if inside is None else full(inside, shape)
