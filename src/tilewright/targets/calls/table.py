"""Tables of remembered calls: one native function finds the launch for the arguments of a call, and makes it.

A *table* belongs to one callable. It holds a *record* for each kind of call that was checked at length. The function
describes the arguments in words: of a numpy array or a torch tensor its type, element type, device, extents and
strides; of one of Python's numbers, short texts and lists of integers its value. It looks the words up. A record with
the same words says what is left to do: copies of arrays that are not contiguous, outputs, the launch, and the result.
Without such a record the function changes nothing and returns `UNLIKE`; the call is then checked at length.

Of two arrays, one of which is written, a record also says whether they overlap, and at what distance. Arrays at
another distance are another kind of call. So is another value of TILEWRIGHT_THREADS, for which launches are made.

The table that torch's operators use does not check for gradients and tracing: the dispatcher has done so.
`targets.cpu` and `targets.nvidia` write records for their launches.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from tilewright.runtime import environment
from tilewright.runtime.exchange import exchange_of
from tilewright.runtime.outputs import LEAST
from tilewright.runtime.traced import following_of
from tilewright.targets.calls.observing import AT_LENGTH
from tilewright.targets.calls.words import ARGUMENTS, ENTRY, RECORD, SIZES, TABLE, WORDS

Array = np.ndarray[Any, np.dtype[Any]]
UNLIKE = NotImplemented
"""The native function returns this if no remembered call fits the arguments."""


class _Method(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FASTCALL = 0x80
_VARIABLE = ctypes.create_string_buffer(environment.THREADS.name.encode())
_GRADS, _VERSION = "requires_grad", "_version"
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


class NativeCode(Protocol):
    """Machine code of the functions in `TEXT` of `calls.following`."""

    def address(self, name: str) -> int:
        """Return the address of the native function `name`. Protocol method: linked machine code implements it."""


class SmallCopy(NamedTuple):
    """A small array that a call copies to contiguous memory on its stack.

    `place` is its number among the arguments and outputs. `dims` are its (extent, stride), in the order of the copy's
    dimensions; `unit` is the unit of strides, in bytes. If `read`, its elements are copied before the launch; if
    `written`, they are copied back after it.
    """

    place: int
    dims: tuple[tuple[int, int], ...]
    itemsize: int
    unit: int
    read: bool
    written: bool

    @property
    def nbytes(self) -> int:
        """The size of the contiguous copy in bytes."""
        return self.itemsize * prod(extent for extent, _ in self.dims)

    @staticmethod
    def takes(itemsize: int, elements: int) -> bool:
        """True if a call may copy an array of `elements` elements of `itemsize` bytes to its stack: `itemsize` is in
        SIZES, and the array has fewer than LEAST bytes.
        """
        return itemsize in SIZES and itemsize * elements < LEAST


def merged_dims(dims: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return dimensions [(extent, stride)] that visit the same elements in the same order as `dims`, with adjacent
    dimensions merged where one stride suffices. Dimensions of extent 1 are dropped, but at least one dimension stays if
    `dims` has any.

    >>> merged_dims([(1, 512), (8, 8), (8, 1), (8, 64)])  # an image [n, c, h, w], channels last
    [(64, 1), (8, 64)]
    >>> merged_dims([(1, 3)])
    [(1, 3)]
    """
    merged: list[tuple[int, int]] = []
    for extent, stride in dims:
        if merged and merged[-1][1] == extent * stride:
            merged[-1] = merged[-1][0] * extent, stride
        elif extent != 1:
            merged.append((extent, stride))
    return merged or list(dims[-1:])


class Copy(NamedTuple):
    """An argument of which a call uses a contiguous copy: `make` returns the copy, `back(argument, copy)` writes it
    back."""

    argument: int
    make: Callable[[Any], Any]
    back: Callable[[Any, Any], Any] | None


class Output(NamedTuple):
    """An array that a call makes with `make`; `finish` turns it into the result that the caller gets (None: the array
    itself)."""

    make: Callable[[], Any]
    finish: Callable[[Any], Any] | None = None


class CallLaunch(NamedTuple):
    """A launch of a remembered call: the address of a native function `i32 (data, addresses)`, and its data. `keeper`
    keeps the data alive. `trouble(code, arrays)` raises the error for a code other than 0."""

    function: int
    data: int
    keeper: Any
    trouble: Callable[[int, tuple[Any, ...]], None] | None = None


class FixedTensor(NamedTuple):
    """An argument that must be one particular tensor, unchanged: its Python object, torch's count of writes, its
    address."""

    argument: int
    tensor: int
    version: int
    address: int


class Description(NamedTuple):
    """The words that describe the arguments of a call, and the arguments' addresses (0 for numbers)."""

    words: Array
    addresses: list[int]
    dtypes: tuple[Any, ...]
    """The arrays' element types: some words are addresses of these objects, which must stay alive."""


class Extent(NamedTuple):
    """The bytes of an array relative to its first element: the lowest, and one past the highest."""

    low: int
    high: int


class CallRecord:
    """The steps that repeat a call of one kind: copies, outputs, the launch, the result."""

    def __init__(
        self,
        given: int,
        launch: CallLaunch,
        outputs: Sequence[Output] = (),
        copies: Sequence[Copy | SmallCopy] = (),
        pairs: Sequence[tuple[int, int, int, int, int, int]] = (),
        counted: Sequence[int] = (),
        telling: Callable[[Any], Any] | None = None,
        room: int = 0,
        workspaces: Sequence[Callable[[], Any]] = (),
        fixed: Sequence[FixedTensor] = (),
        alive: Array | None = None,
    ):
        """Write the record's words for the native function that repeats the call. TILEWRIGHT_THREADS must have its
        present value at later calls.

        `given` is the number of arguments. `outputs` are the arrays that a call allocates and returns, and `copies` the
        contiguous copies of arguments that it makes. `pairs` are results of `pair_of`. After the launch, `telling` is
        called with each argument whose number is in `counted` (torch counts writes to tensors; None: no calls). `room`
        is the number of bytes that the launch keeps. `workspaces` are functions that allocate arrays, whose addresses
        follow those of the outputs; the call frees these arrays when it returns. `fixed` are arguments that must be one
        particular tensor each. The record is valid as long as the word `alive` is not 0 (None: for ever). `fixed`
        requires `alive`.
        """
        assert alive is not None or not fixed
        self.alive = alive
        makers = [*(o.make for o in outputs), *workspaces]
        self.room = room
        counted = () if telling is None else counted
        threads = environment.THREADS.text()
        value = None if threads is None else ctypes.create_string_buffer(threads.encode())
        large, small = [c for c in copies if isinstance(c, Copy)], [c for c in copies if isinstance(c, SmallCopy)]
        dims = [np.array(merged_dims(c.dims), np.int64) for c in small]
        tables = {
            "small": np.array(
                [
                    (c.place, d.ctypes.data, len(d), c.itemsize, c.unit, c.nbytes, c.read, c.written)
                    for c, d in zip(small, dims, strict=True)
                ],
                np.int64,
            ),
            "fixed": np.array(fixed, np.int64),
            "pair": np.array(pairs, np.int64),
            "copy": np.array([(c.argument, id(c.make), 0 if c.back is None else id(c.back)) for c in large], np.int64),
            "makers": np.array([id(make) for make in makers], np.int64),
            "finishers": np.array([0 if o.finish is None else id(o.finish) for o in outputs], np.int64),
            "tell": np.array(counted, np.int64),
        }
        words = {
            "given": given, "outputs": len(makers), "results": len(outputs), "pairs": len(pairs),
            "copies": len(large), "smalls": len(small), "told": len(counted), "fixes": len(fixed),
            "alive": 0 if alive is None else alive.ctypes.data,
            "variable": ctypes.addressof(_VARIABLE), "threads": 0 if value is None else ctypes.addressof(value),
            "launch": launch.function, "launched": launch.data, "keeper": id(self),
            "trouble": _id_or_0(launch.trouble), "telling": _id_or_0(telling),
            **{name: table.ctypes.data for name, table in tables.items()},
        }  # fmt: skip
        self.words = np.array([words[name] for name in RECORD], np.int64)
        self._kept = (launch, tuple(outputs), tuple(workspaces), tuple(copies), dims, tables, value, telling)

    def is_valid(self) -> bool:
        """True if the record may still be used. A record becomes invalid when a particular tensor that it depends on,
        such as packed weights, is freed.
        """
        return self.alive is None or bool(self.alive[0])


def _id_or_0(item: object) -> int:
    """Return `id(item)`, the address of the Python object `item`; 0 if `item` is None."""
    return 0 if item is None else id(item)


def pair_of(a: int, b: int, extents: Sequence[Extent], addresses: Sequence[int]) -> tuple[int, int, int, int, int, int]:
    """Return the words of a record that say how two arrays of a call may overlap: (a, b, low, high, must keep,
    distance).

    `a` and `b` are numbers of arrays in `extents` and `addresses`. `addresses` are the addresses of the arrays' first
    elements. `distance` is the address of b minus that of a. The arrays overlap if low < distance < high. `must keep`
    is 1 if they overlap now: a later call then needs the same distance. It is 0 if they do not: a later call then needs
    arrays that do not overlap. All numbers but a, b and `must keep` are bytes.

    >>> whole = [Extent(0, 8), Extent(0, 4)]
    >>> pair_of(0, 1, whole, [96, 128]), pair_of(0, 1, whole, [96, 100])
    ((0, 1, -4, 8, 0, 32), (0, 1, -4, 8, 1, 4))
    """
    low, high = extents[a].low - extents[b].high, extents[a].high - extents[b].low
    distance = addresses[b] - addresses[a]
    return a, b, low, high, int(low < distance < high), distance


class _Kept:
    """The objects whose addresses are words of a table: they live as long as the table."""

    __slots__ = ("entries", "kinds", "others")

    def __init__(self, entries: Any, kinds: tuple[tuple[Description, CallRecord], ...], others: tuple[Any, ...]):
        self.entries, self.kinds, self.others = entries, kinds, others


_tables: weakref.WeakSet[CallTable] = weakref.WeakSet()


class CallTable:
    """The kinds of calls that one callable remembers; `call` and `call_below` are its native function.

    `call` checks for each tensor whether gradients or calls are recorded. `call_below` leaves that to its caller.
    """

    def __init__(self, code: NativeCode):
        torch = sys.modules.get("torch")
        self._tensor = getattr(torch, "Tensor", None)
        parameter = getattr(getattr(torch, "nn", None), "Parameter", None)
        exchange = None if self._tensor is None else exchange_of(self._tensor)
        if exchange is None:
            self._tensor = parameter = None
        following = None if self._tensor is None else following_of(torch)
        recording = None if self._tensor is None else torch.is_grad_enabled  # type: ignore[union-attr]
        negated = None if self._tensor is None else getattr(self._tensor, "is_neg", None)
        entries = np.zeros(1, np.int64)
        words = {
            "entries": entries.ctypes.data,
            "array_type": id(np.ndarray), "tensor_type": _id_or_0(self._tensor), "parameter_type": _id_or_0(parameter),
            "float_type": id(float), "int_type": id(int), "bool_type": id(bool),
            "look": 0 if exchange is None else exchange.look, "following": _id_or_0(following),
            "negated": _id_or_0(negated), "grads": id(_GRADS), "recording": _id_or_0(recording),
            "text_type": id(str), "list_type": id(list),
            "false": id(False), "unlike": id(UNLIKE), "none": id(None),
            "version": id(_VERSION), "at_length": AT_LENGTH.ctypes.data,
        }  # fmt: skip
        self._words = np.array([words[name] for name in TABLE], np.int64)
        self._words_below = self._words.copy()
        self._words_below[[TABLE.index("following"), TABLE.index("grads")]] = 0
        method = _Method(b"call_like", code.address("call_like"), _FASTCALL, None)
        # the native function has only addresses: the objects are kept alive here
        self._kept = _Kept(entries, (), (code, method, exchange, parameter, following, negated, recording))
        self.call: Callable[..., Any] = _new(ctypes.addressof(method), self._words, self._kept)
        """Repeats a remembered call with new arguments and returns its result; `UNLIKE` if none fits them."""
        self.call_below: Callable[..., Any] = _new(ctypes.addressof(method), self._words_below, self._kept)
        place, many = ctypes.c_void_p, ctypes.c_int64
        self._describe = ctypes.PYFUNCTYPE(many, place, place, many, place, place)(code.address("describe"))
        self._hash = ctypes.CFUNCTYPE(many, place, many)(code.address("hash"))
        _tables.add(self)

    @property
    def kinds(self) -> tuple[tuple[Description, CallRecord], ...]:
        """The remembered calls as pairs (description of the arguments, record that repeats the call)."""
        return self._kept.kinds

    def knows_tensors(self) -> bool:
        """True if the table can describe torch tensors. False if torch was not imported when the table was created, or
        if native code cannot read torch's tensors.
        """
        return self._tensor is not None

    def described(self, args: Sequence[Any]) -> Description | None:
        """Return the Description of the arguments `args`: 64-bit words (types, extents, strides, values of numbers) and
        the addresses of arrays. Calls with equal words are of one kind. Return None if an argument cannot be described,
        such as an object of another type or a text of more than 16 bytes, or if there are too many arguments or words.
        Recorded gradients and tracing by torch are not checked.
        """
        if len(args) > ARGUMENTS:
            return None
        objects = np.array([id(a) for a in args], np.int64)
        words, at = np.zeros(WORDS, np.int64), np.zeros(ARGUMENTS, np.int64)
        arrays = (self._words_below, objects, words, at)
        table, object_ids, described, addresses = (int(array.ctypes.data) for array in arrays)
        count = self._describe(table, object_ids, len(args), described, addresses)
        if count < 0:
            return None
        dtypes = tuple(a.dtype for a in args if isinstance(a, np.ndarray))
        return Description(words[:count].copy(), at[: len(args)].tolist(), dtypes)

    def replace(self, kinds: Sequence[tuple[Description, CallRecord]]) -> None:
        """Replace all remembered calls by `kinds`, pairs (description of the arguments, record that repeats
        the call).
        """
        entries = np.zeros(1 + len(ENTRY) * len(kinds), np.int64)
        entries[0] = len(kinds)
        for number, (description, record) in enumerate(kinds):
            start, words = 1 + len(ENTRY) * number, description.words
            words_address = int(words.ctypes.data)
            entry = self._hash(words_address, len(words)), len(words), words_address, record.words.ctypes.data
            entries[start : start + len(ENTRY)] = entry
        in_use = self._kept.entries, self._kept.kinds  # freed after the words are set
        self._kept.entries, self._kept.kinds = entries, tuple(kinds)
        for table in (self._words, self._words_below):
            table[TABLE.index("entries")] = entries.ctypes.data
        del in_use

    def forget(self) -> None:
        """Drop all remembered calls."""
        self.replace(())


def after_fork() -> None:
    """Drop the remembered calls of all tables. A forked process calls it, because the worker threads of its parent do
    not exist there.
    """
    for table in list(_tables):
        table.forget()
