"""Memory as the interpreter sees it: buffers that know what was written and by whom, and tensors and views in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import OutOfBoundsFault, RaceFault, UninitialisedFault
from tilewright.interpret.block.accesses import READ, WRITE, Sharing, Watch
from tilewright.interpret.block.clocks import Clock
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.core import Op
from tilewright.ir.printer import op_text
from tilewright.ir.tensors import TensorType, numbers

if TYPE_CHECKING:
    from tilewright.interpret.block.channels import Hold

Array = np.ndarray[Any, np.dtype[Any]]

_ATOMICS: dict[str, Any] = {"add": np.add, "min": np.minimum, "max": np.maximum}


def at_line(op: Op) -> str:
    """Where an operation stands, for messages."""
    where = "" if op.loc is None else f" ({op.loc})"
    return f"`{op_text(op)}`{where}"


_DID = {READ: ("reads", "read"), WRITE: ("writes", "wrote")}
"""What reports say of an access, and of one before it."""


class Buffer:
    """A piece of memory, flat; what of it is initialised; and, where somebody may race for it, who touched it."""

    def __init__(self, name: str, data: Array, space: str, initialised: bool):
        self.name, self.data, self.space = name, data, space
        self.initialised = np.full(data.size, initialised)
        self.given = initialised  # from the beginning to the end
        self.watch: Watch | None = None
        self.sharing: Sharing | None = None
        self.staged: Array | None = None  # what was written as part of a channel's stage

    def alike(self, **changes: Any) -> Buffer:
        """The same memory, seen otherwise: as another element type, or with nothing of it initialised."""
        other = object.__new__(Buffer)
        other.__dict__ = {**self.__dict__, **changes}
        other.given = self.given and "initialised" not in changes
        return other

    def read(self, places: Array, clock: Clock, op: Op) -> Array:
        """The elements at these places."""
        self._require_written(places, op)
        self._note(READ, places, clock, op)
        found: Array = self.data[places]
        return found

    def write(
        self, places: Array, values: Any, clock: Clock, op: Op, staged: bool = False, in_order: bool = False
    ) -> None:
        """These elements become the values: each one value, unless they are written in order and the last stays."""
        self._note(WRITE, places, clock, op)
        self.data[places] = values
        self.initialised[places] = True
        if staged and self.staged is None:
            self.staged = np.zeros(self.data.size, bool)
        if self.staged is not None:
            self.staged[places] = staged
        if not in_order:
            self._check_once(places, values, op)

    def combine(self, places: Array, values: Array, how: str, clock: Clock, op: Op) -> None:
        """Each element, and each value for it, become one by the atomic operation, step by step."""
        self._require_written(places, op)
        self._note(how, places, clock, op)
        function = _ATOMICS[how]
        for place, value in zip(places, values, strict=True):
            self.data[place] = function(self.data[place], value)

    def _require_written(self, places: Array, op: Op) -> None:
        if not self.given and not self.initialised[places].all():
            place = int(np.asarray(places)[~self.initialised[places]][0])
            raise UninitialisedFault(f"{at_line(op)} reads element {place} of {self.name}, which nothing wrote", op.loc)

    def _note(self, kind: str, places: Array, clock: Clock, op: Op) -> None:
        """Notes an access; raises if it is a race."""
        if self.sharing is None and self.watch is None:
            return
        flat = np.asarray(places).reshape(-1)
        does, _ = _DID.get(kind, ("combines into", ""))
        if self.sharing is not None and (shared := self.sharing.note(kind, flat, clock.task)) is not None:
            place, before = shared
            _, did = _DID.get(before, ("", "combined into"))
            raise RaceFault(
                f"{at_line(op)} {does} element {place} of {self.name}, which another task, or another worker, "
                f"{did}: nothing orders them",
                op.loc,
            )
        if self.watch is not None and (found := self.watch.note(kind, flat, clock, op)) is not None:
            place, other = found
            raise RaceFault(
                f"{at_line(op)} {does} element {place} of {self.name}, and nothing orders it after "
                f"{at_line(other)}: a wait, a barrier or a release is missing",
                op.loc,
            )

    def _check_once(self, places: Array, values: Any, op: Op) -> None:
        """That no element was given two values."""
        stored = self.data[places]
        given = np.asarray(values).astype(stored.dtype, copy=False)
        if np.array_equal(stored, given):
            return
        given = np.broadcast_to(given, stored.shape)
        bad = (stored != given) & ((stored == stored) | (given == given))
        if bad.any():
            place = int(np.broadcast_to(places, bad.shape)[bad][0])
            raise RaceFault(f"{at_line(op)} writes two values to element {place} of {self.name}", op.loc)


@dataclass(eq=False)
class TensorMemory:
    """A tensor in a buffer: a shape, strides, perhaps a swizzle, perhaps a stage that must be held to touch it."""

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    swizzle: Any = None
    offset: int = 0
    hold: Hold | None = None
    staged: bool = False

    @classmethod
    def whole(cls, buffer: Buffer, kind: TensorType) -> TensorMemory:
        """The tensor of that type at the start of a buffer."""
        return cls(buffer, numbers(kind.shape, kind), numbers(kind.steps, kind), kind.swizzle)

    def stage(self, number: int, hold: Hold) -> TensorMemory:
        """One entry of the first dimension, held."""
        offset = self.offset + number * self.strides[0]
        return TensorMemory(self.buffer, self.shape[1:], self.strides[1:], self.swizzle, offset, hold, True)

    def locate(self, coordinates: tuple[Any, ...], op: Op) -> tuple[TensorMemory, Any, Any]:
        """(the tensor at the bottom, places in its buffer, which of them count); None: all count."""
        place: Any = self.offset
        for coordinate, stride in zip(coordinates, self.strides, strict=True):
            place = place + (coordinate if stride == 1 else coordinate * stride)
        if self.swizzle is not None:
            place = self.swizzle(place)
        return self, place, None

    def check(self, op: Op) -> None:
        """That the stage, if it is one, may be touched now."""
        if self.hold is not None:
            self.hold.check(op)


@dataclass(eq=False)
class TensorWindow:
    """A view: coordinates of a tensor as expressions of its own."""

    base: TensorMemory | TensorWindow
    op: Op
    values: Mapping[str, int]
    shape: tuple[int, ...]
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.names = tuple(s.name for s in self.op.attrs["over"])

    @property
    def hold(self) -> Hold | None:
        """The stage it lies in."""
        return self.base.hold

    def check(self, op: Op) -> None:
        """That the stage, if it is in one, may be touched now."""
        self.base.check(op)

    def locate(self, coordinates: tuple[Any, ...], op: Op) -> tuple[TensorMemory, Any, Any]:
        """(the tensor at the bottom, places in its buffer, which of them count); None: all count."""
        values = {**self.values, **dict(zip(self.names, coordinates, strict=True))}
        inside: Any = None
        found = []
        for dim, ((e, loose), size) in enumerate(zip(self.op.attrs["at"], self.base.shape, strict=True)):
            c = evaluated(e, values)
            if not within(c, size):
                ok = (c >= 0) & (c < size)
                if not loose:
                    bad = c if isinstance(c, int) else int(np.asarray(c)[~np.asarray(ok)].reshape(-1)[0])
                    raise OutOfBoundsFault(
                        f"{at_line(op)} through {at_line(self.op)}: coordinate {dim}, {e}, is {bad}, not in 0..{size}; "
                        "if that may be, mark it with ?",
                        op.loc or self.op.loc,
                    )
                inside = ok if inside is None else inside & ok
                c = np.clip(c, 0, size - 1)
            found.append(c)
        bottom, places, further = self.base.locate(tuple(found), op)
        if further is not None:
            inside = further if inside is None else inside & further
        return bottom, places, inside


def one_memory(one: TensorMemory | TensorWindow, other: TensorMemory | TensorWindow) -> bool:
    """Whether two tensors lie in one piece of memory."""
    while isinstance(one, TensorWindow):
        one = one.base
    while isinstance(other, TensorWindow):
        other = other.base
    return np.may_share_memory(one.buffer.data, other.buffer.data)


def overlapping(one: TensorMemory | TensorWindow, other: TensorMemory | TensorWindow, op: Op) -> bool:
    """Whether two tensors have an element of memory in common."""
    if not one_memory(one, other):
        return False
    (_, mine, inside), (_, others, there) = (m.locate(grid(m.shape), op) for m in (one, other))
    mine, inside = spread(mine, inside, one.shape)
    others, there = spread(others, there, other.shape)
    return bool(np.isin(mine[inside], others[there]).any())


def require_apart(
    target: TensorMemory | TensorWindow,
    to: tuple[Any, ...],
    source: TensorMemory | TensorWindow,
    at: tuple[Any, ...],
    op: Op,
) -> None:
    """That an operation, element by element, writes no element that it reads for another one.

    `to` and `at` are the elements' coordinates in the target and in the source.
    """
    if not one_memory(target, source):
        return
    shape = np.broadcast_shapes(*(np.shape(c) for c in (*to, *at)))
    bottom, written, there = target.locate(to, op)
    written, there = spread(written, there, shape)
    _, read, here = source.locate(at, op)
    read, here = spread(read, here, shape)
    number = np.arange(read.size).reshape(shape)
    writer = np.full(bottom.buffer.data.size, -1)
    writer[written[there]] = number[there]
    bad = here & (writer[read] >= 0) & (writer[read] != number)
    if bad.any():
        raise RaceFault(
            f"{at_line(op)} writes element {int(read[bad][0])} of {bottom.buffer.name}, which it reads for another "
            "element: in which order elements are done is not said; copy them elsewhere first",
            op.loc,
        )


def within(c: Any, size: int) -> bool:
    """Whether a coordinate, or each of an array of them, lies in 0..size."""
    if isinstance(c, np.ndarray):
        return not c.size or bool(c.min() >= 0 and c.max() < size)
    return bool(0 <= c < size)


@lru_cache(maxsize=1024)
def grid(shape: tuple[int, ...]) -> tuple[Array, ...]:
    """The coordinates of every element, as arrays that broadcast to the shape: the same ones each time, to be read."""
    found = tuple(np.ogrid[tuple(slice(0, n) for n in shape)]) if shape else ()
    for axis in found:
        axis.setflags(write=False)
    return found


@lru_cache(maxsize=1024)
def box(axes: tuple[Any, ...], what: str) -> tuple[tuple[int, ...], Mapping[str, Array]]:
    """The extents of some axes, and their coordinates by name, as `grid` gives them; `what` they are of is for errors.

    The same ones each time: an operation's axes are looked at whenever it is done.
    """
    shape = numbers(tuple(s.upper + 1 for s in axes), what)
    return shape, dict(zip((s.name for s in axes), grid(shape), strict=True))


def full(array: Any, shape: tuple[int, ...]) -> Array:
    """The array at the full shape."""
    found = np.asarray(array)
    return found if found.shape == shape else np.broadcast_to(found, shape)


def spread(places: Any, inside: Any, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Places and which of them count, at the full shape."""
    return full(places, shape), np.ones(shape, bool) if inside is None else full(inside, shape)
