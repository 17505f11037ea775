"""Copy atoms: single instructions that move elements between memory and registers, or between memories.

An atom answers a copy request with instructions that do it, or with the reason why it cannot. An instruction is the
atom with constant arguments; it can be executed, so that an answer can be checked against its request:

>>> from tilewright.algebra import Layout
>>> from tilewright.machine.lanes import lane_load
>>> from tilewright.ir.dtypes import f32
>>> atom = lane_load("load.8", "global", 8, wave=4)
>>> request = CopyRequest(
...     (8,), f32, Place("global", Layout((8,))), Place("register", Layout((4, 2), (2, 1)))
... )
>>> answer = atom.answer(request)
>>> print(*answer)
load.8(offsets=(0, 2, 4, 6), active=(True, True, True, True), value=0)
>>> registers = np.zeros((4, 2), np.float32)
>>> for instruction in answer:
...     instruction.run(np.arange(8, dtype=np.float32), registers)
>>> registers.reshape(-1)
array([0., 1., 2., 3., 4., 5., 6., 7.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from tilewright.algebra import size
from tilewright.machine.request import SPACES, CopyRequest, Place
from tilewright.machine.views import Condition, MemoryView, ViewRequest

Array = np.ndarray[Any, np.dtype[Any]]
Arguments: TypeAlias = Mapping[str, Any]
Hint: TypeAlias = Literal["keep", "stream", "bypass"]


class Refused(Exception):
    """Raised by a rule of an atom that cannot do a copy. `CopyAtom.answer` returns it as a `CopyRefusal`."""


@dataclass(frozen=True)
class CopyRefusal:
    """The reason why an atom cannot do a copy, as one sentence."""

    atom: str
    reason: str

    def __str__(self) -> str:
        return f"{self.atom}: {self.reason}"


@dataclass(frozen=True)
class Instruction:
    """A copy atom with constant arguments: one instruction of a program. Offsets and strides count elements."""

    atom: CopyAtom
    arguments: Arguments

    def run(self, source: Array, target: Array) -> None:
        """Execute the instruction: read the array `source`, write the array `target` in place.

        Memory is a flat array; registers are an array indexed [lane, value].
        """
        self.atom.run(source, target, **self.arguments)

    def __str__(self) -> str:
        return f"{self.atom.name}({', '.join(f'{name}={value}' for name, value in self.arguments.items())})"


def cut_row(bytes_along: int, widths: tuple[int, ...], chunk: int) -> tuple[tuple[int, int], ...]:
    """Cut a row of `bytes_along` bytes into pieces; return ((bytes of a piece, number of such pieces), ...) in row
    order.

    `widths` are the allowed widths in bytes, widest first. If one of them divides the row, all pieces have the widest
    width that does. Otherwise the row gets as many pieces as possible of each width, widest first, and then of `chunk`
    bytes. Return () if no width divides the row, and the row is no multiple of `chunk` or shorter than all widths, or
    `chunk` is 0.

    >>> cut_row(192, (128, 64, 32), 16), cut_row(400, (128, 64, 32), 16), cut_row(40, (128, 64, 32), 16)
    (((64, 3),), ((128, 3), (16, 1)), ())
    """
    even = next((n for n in widths if bytes_along % n == 0), None)
    if even is not None:
        return ((even, bytes_along // even),)
    if not chunk or bytes_along % chunk or bytes_along < min(widths, default=0):
        return ()
    pieces, rest = [], bytes_along
    for width in (*widths, chunk):
        count, rest = divmod(rest, width)
        pieces += [(width, count)] if count else []
    return tuple(pieces)


@dataclass(frozen=True)
class CopyAtom:
    """One instruction that moves elements.

    `source` and `target` are spaces; `alike` names spaces that the instruction reaches as it does global memory.
    `layout` gives, for the bytes of an element and the arguments, the element that each register (lane, value) of the
    register side holds; `meaning` executes the instruction *through that layout only*, in place. `rule` returns the
    arguments of the instructions that do a request, or raises `Refused`. `on_views` yields, for views with symbolic
    coordinates, the conditions on open sizes under which there are such instructions, or raises `Refused`.
    `bytes_moved` is the most that one instruction moves; None: a box of any size. `hint` is the treatment of caches:
    keep, stream or bypass. `completes` names what makes an asynchronous copy visible; None: it is visible when the
    instruction returns. `rows` are the row lengths in bytes that a box may have in shared memory if the copy swizzles
    it, widest first, and `chunk` the bytes that the swizzle moves together. Strides of rows in global memory are
    multiples of `pitch` bytes. If the rows of a box are positions of a sliding window, `furthest` is the largest step
    from one position to the next, in elements. `features` are CPU or GPU features that the instruction needs.
    """

    name: str
    source: str
    target: str
    layout: Callable[[int, Arguments], Any]
    meaning: Callable[..., None]
    rule: Callable[[CopyAtom, CopyRequest], Iterable[Arguments]]
    on_views: Callable[[ViewRequest], Iterable[Condition]]
    bytes_moved: int | None = None
    features: tuple[str, ...] = ()
    hint: Hint = "keep"
    completes: str | None = None
    alike: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    chunk: int = 0
    pitch: int = 1
    furthest: int = 1

    def __post_init__(self) -> None:
        for space in (self.source, self.target, *self.alike):
            if space not in SPACES:
                raise ValueError(f"{self.name}: there is no space {space!r}; there are {', '.join(SPACES)}")

    @property
    def asynchronous(self) -> bool:
        """Return True if the copy is asynchronous: the program must wait before the copied elements are visible."""
        return self.completes is not None

    def row_pieces(self, bytes_along: int) -> tuple[tuple[int, int], ...]:
        """Cut rows of `bytes_along` bytes into pieces that boxes in shared memory may have as rows.

        Return ((bytes of a piece, number of such pieces), ...) in row order; () if there is no such cut. See `cut_row`.
        """
        return cut_row(bytes_along, self.rows, self.chunk)

    def run(self, source: Array, target: Array, **arguments: Any) -> None:
        """Execute the instruction with these constant `arguments`: read `source`, write `target` in place.

        Memory is a flat array; registers are an array indexed [lane, value].
        """
        self.meaning(self.layout(source.dtype.itemsize, arguments), source, target, **arguments)

    def answer(self, request: CopyRequest) -> tuple[Instruction, ...] | CopyRefusal:
        """Return the instructions that do the copy `request`, in order. If this atom cannot do it, return a CopyRefusal
        with the reason.
        """
        try:
            self._need_spaces(request)
            return tuple(Instruction(self, arguments) for arguments in self.rule(self, request))
        except Refused as refused:
            return CopyRefusal(self.name, str(refused))

    def conditions(self, request: ViewRequest) -> tuple[Condition, ...] | CopyRefusal:
        """Return the conditions on open sizes (known only at the call) under which this atom can copy between the views
        of `request`.

        The conditions cover all loop iterations. () means that the atom always can do the copy; a condition that no
        size satisfies is the constant 0. If the atom cannot do the copy for another reason, return a CopyRefusal with
        this reason: for example, if elements of the source may be out of bounds and are to get another value than 0.
        """
        try:
            self._need_spaces(request)
            source = request.source
            if isinstance(source, MemoryView) and any(source.may_leave) and request.otherwise != 0:
                raise Refused(f"what lies outside {source.name} arrives as zero, not as {request.otherwise}")
            return tuple(self.on_views(request))
        except Refused as refused:
            return CopyRefusal(self.name, str(refused))

    def _need_spaces(self, request: CopyRequest | ViewRequest) -> None:
        """Raise Refused unless the request copies from the atom's source space to its target space, and its elements
        are whole bytes.

        An atom for global memory also takes the spaces in `self.alike`. Elements of type bool count as whole bytes.
        """
        for side, atom_space, requested in (
            ("from", self.source, request.source.space),
            ("to", self.target, request.target.space),
        ):
            if requested != atom_space and not (atom_space == "global" and requested in self.alike):
                raise Refused(f"it copies {side} {atom_space}, not {side} {requested}")
        if request.dtype.bits != 8 * request.size and request.dtype.kind != "bool":
            raise Refused(f"elements of {request.dtype} are {request.dtype.bits} bits, not whole bytes")


def table(layout: Any) -> Array:
    """Return a layout's values at all coordinates of its modes, as an array with one dimension for each mode.

    >>> from tilewright.algebra import Layout
    >>> table(Layout((2, 3), (3, 1)))
    array([[0, 1, 2],
           [3, 4, 5]])
    """
    values: Array = np.asarray(layout(*np.indices([size(mode) for mode in layout.shape])))
    return values


def need_alignment(place: Place, offsets: Array, size: int, alignment: int) -> None:
    """Raise Refused unless all of `offsets` are at addresses that are multiples of `alignment` bytes.

    `offsets` count elements of `size` bytes from the start of the memory of `place`. The alignment of the memory itself
    must also be a multiple, if it is known.
    """
    if place.alignment is not None and place.alignment % alignment:
        raise Refused(f"the memory is aligned to {place.alignment} bytes, and {alignment} are needed")
    wrong = offsets[offsets * size % alignment != 0]
    if wrong.size:
        raise Refused(f"offset {wrong[0]} is at byte {wrong[0] * size}, which is not {alignment}-byte aligned")


def integers(values: Array) -> tuple[int, ...]:
    """Return the elements of an array of any shape as one flat tuple of Python ints."""
    return tuple(int(v) for v in values.reshape(-1))


def flags(values: Array) -> tuple[bool, ...]:
    """Return the elements of an array of any shape as one flat tuple of Python bools."""
    return tuple(bool(v) for v in values.reshape(-1))
