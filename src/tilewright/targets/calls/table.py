"""Plain calls like one before: one native function finds the launch that goes with the arguments, and makes it.

A *table* belongs to one callable. It holds a *record* for each kind of call that was checked at length. The function
describes the arguments in words: of a numpy array or a torch tensor its type, element type, device, extents and
strides; of one of Python's numbers, short texts and lists of integers its value. It looks the words up. A record with
the same words says what is left to do: copies of arrays that are not contiguous, outputs, the launch, and the result.
Without such a record the function changes nothing and returns `UNLIKE`; the call is then checked at length.

Of two arrays, one of which is written, a record also says whether they overlap, and at what distance. Arrays at
another distance are another kind of call. So is another value of TILEWRIGHT_THREADS, for which launches are made.

The table that torch's operators use asks nothing of gradients and of tracers: the dispatcher has asked already.
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
"""The function returns this if no call before was like this one."""


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
    """Machine code that has the functions of `TEXT`."""

    def address(self, name: str) -> int:
        """The address of a function."""


class SmallCopy(NamedTuple):
    """An array of few elements of which a call uses a contiguous copy, which it makes by itself.

    `place` is its number among the arguments and outputs. `dims` are its (extents, strides) in the order of the
    copy's dimensions. `unit` is the unit of strides, in bytes. `read` says whether the copy has its elements before the
    launch; `written`, whether they are written back after it.
    """

    place: int
    dims: tuple[tuple[int, int], ...]
    itemsize: int
    unit: int
    read: bool
    written: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return self.itemsize * prod(extent for extent, _ in self.dims)

    @staticmethod
    def takes(itemsize: int, elements: int) -> bool:
        """True if a call may copy an argument by itself: its element size is supported, and its bytes are few."""
        return itemsize in SIZES and itemsize * elements < LEAST


def merged_dims(dims: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the fewest (extent, stride) that visit the same elements in the same order.

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
    """An argument of which a call uses a contiguous copy, made by `make`; `back` writes it to the argument again."""

    argument: int
    make: Callable[[Any], Any]
    back: Callable[[Any, Any], Any] | None


class Output(NamedTuple):
    """An array that a call makes, and what makes of it what the caller gets; None: the array itself."""

    make: Callable[[], Any]
    finish: Callable[[Any], Any] | None = None


class CallLaunch(NamedTuple):
    """The native function `i32 (data, addresses)` that launches, its data, and who raises for what it answers."""

    function: int
    data: int
    keeper: Any
    trouble: Callable[[int, tuple[Any, ...]], None] | None = None


class FixedTensor(NamedTuple):
    """An argument that must be one tensor in a state: its Python object, torch's count of writes, its address."""

    argument: int
    tensor: int
    version: int
    address: int


class Description(NamedTuple):
    """The words that describe the arguments of a call, and their addresses; 0: a number."""

    words: Array
    addresses: list[int]
    dtypes: tuple[Any, ...]
    """The element types of arrays, of which words are the addresses."""


class Extent(NamedTuple):
    """The bytes of an array from its first element: the lowest, and the one behind the highest."""

    low: int
    high: int


class CallRecord:
    """The steps of calls of one kind: copies, outputs, the launch, the result."""

    def __init__(
        self,
        given: int,
        launch: CallLaunch,
        outputs: Sequence[Output] = (),
        copies: Sequence[Copy | SmallCopy] = (),
        pairs: Sequence[tuple[int, int, int, int, int, int]] = (),
        told: Sequence[int] = (),
        telling: Callable[[Any], Any] | None = None,
        room: int = 0,
        workspaces: Sequence[Callable[[], Any]] = (),
        fixed: Sequence[FixedTensor] = (),
        alive: Array | None = None,
    ):
        """Write the record's words for the native function: what to copy, what to make, what to launch.

        `given` is the number of arguments; `pairs` are words of two arrays as `pair_of` gives them (how they overlap);
        `told` are the arguments that `telling` is called with after the launch (torch counts writes to tensors).
        `room` is how many bytes of memory stay with the launch. `workspaces` make arrays, after the outputs, that
        the call drops when it returns. `fixed` are arguments that must be one tensor each: the record is for them
        alone, for as long as the word `alive` is not 0.
        """
        assert alive is not None or not fixed
        self.alive = alive
        makers = [*(o.make for o in outputs), *workspaces]
        self.room = room
        told = () if telling is None else told
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
            "tell": np.array(told, np.int64),
        }
        words = {
            "given": given, "outputs": len(makers), "results": len(outputs), "pairs": len(pairs),
            "copies": len(large), "smalls": len(small), "told": len(told), "fixes": len(fixed),
            "alive": 0 if alive is None else alive.ctypes.data,
            "variable": ctypes.addressof(_VARIABLE), "threads": 0 if value is None else ctypes.addressof(value),
            "launch": launch.function, "launched": launch.data, "keeper": id(self),
            "trouble": _address(launch.trouble), "telling": _address(telling),
            **{name: table.ctypes.data for name, table in tables.items()},
        }  # fmt: skip
        self.words = np.array([words[name] for name in RECORD], np.int64)
        self._kept = (launch, tuple(outputs), tuple(workspaces), tuple(copies), dims, tables, value, telling)

    def is_valid(self) -> bool:
        """False if it was for tensors that are gone."""
        return self.alive is None or bool(self.alive[0])


def _address(thing: object) -> int:
    return 0 if thing is None else id(thing)


def pair_of(a: int, b: int, extents: Sequence[Extent], addresses: Sequence[int]) -> tuple[int, int, int, int, int, int]:
    """The words of two arrays as they lie now: apart, or at the distance that they have now.

    >>> whole = [Extent(0, 8), Extent(0, 4)]
    >>> pair_of(0, 1, whole, [96, 128]), pair_of(0, 1, whole, [96, 100])
    ((0, 1, -4, 8, 0, 32), (0, 1, -4, 8, 1, 4))
    """
    low, high = extents[a].low - extents[b].high, extents[a].high - extents[b].low
    distance = addresses[b] - addresses[a]
    return a, b, low, high, int(low < distance < high), distance


class _Kept:
    """The objects whose addresses are words of a table: they live as long as it."""

    __slots__ = ("entries", "kinds", "others")

    def __init__(self, entries: Any, kinds: tuple[tuple[Description, CallRecord], ...], others: tuple[Any, ...]):
        self.entries, self.kinds, self.others = entries, kinds, others


_tables: weakref.WeakSet[CallTable] = weakref.WeakSet()


class CallTable:
    """The kinds of calls that one callable remembers; `call` and `call_below` are the native function.

    `call` asks of tensors whether gradients or calls are recorded. `call_below` does not: who calls it has.
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
            "array_type": id(np.ndarray), "tensor_type": _address(self._tensor), "parameter_type": _address(parameter),
            "float_type": id(float), "int_type": id(int), "bool_type": id(bool),
            "look": 0 if exchange is None else exchange.look, "following": _address(following),
            "negated": _address(negated), "grads": id(_GRADS), "recording": _address(recording),
            "text_type": id(str), "list_type": id(list),
            "false": id(False), "unlike": id(UNLIKE), "none": id(None),
            "version": id(_VERSION), "at_length": AT_LENGTH.ctypes.data,
        }  # fmt: skip
        self._words = np.array([words[name] for name in TABLE], np.int64)
        self._words_below = self._words.copy()
        self._words_below[[TABLE.index("following"), TABLE.index("grads")]] = 0
        method = _Method(b"call_like", code.address("call_like"), _FASTCALL, None)
        # a builtin knows only addresses of what it works with: it keeps all of that
        self._kept = _Kept(entries, (), (code, method, exchange, parameter, following, negated, recording))
        self.call: Callable[..., Any] = _new(ctypes.addressof(method), self._words, self._kept)
        """Makes a call like one before and returns what its caller gets; `UNLIKE` where there was none."""
        self.call_below: Callable[..., Any] = _new(ctypes.addressof(method), self._words_below, self._kept)
        place, many = ctypes.c_void_p, ctypes.c_int64
        self._describe = ctypes.PYFUNCTYPE(many, place, place, many, place, place)(code.address("describe"))
        self._hash = ctypes.CFUNCTYPE(many, place, many)(code.address("hash"))
        _tables.add(self)

    @property
    def kinds(self) -> tuple[tuple[Description, CallRecord], ...]:
        """Return (description, record) of each kind of call that the table remembers."""
        return self._kept.kinds

    def knows_tensors(self) -> bool:
        """True if the table describes torch tensors; torch may have been imported since it was made."""
        return self._tensor is not None

    def described(self, args: Sequence[Any]) -> Description | None:
        """The description of arguments; None where one of them cannot be described."""
        if len(args) > ARGUMENTS:
            return None
        objects = np.array([id(a) for a in args], np.int64)
        words, at = np.zeros(WORDS, np.int64), np.zeros(ARGUMENTS, np.int64)
        places = (self._words_below, objects, words, at)
        table, given, described, addresses = (int(array.ctypes.data) for array in places)
        count = self._describe(table, given, len(args), described, addresses)
        if count < 0:
            return None
        dtypes = tuple(a.dtype for a in args if isinstance(a, np.ndarray))
        return Description(words[:count].copy(), at[: len(args)].tolist(), dtypes)

    def replace(self, kinds: Sequence[tuple[Description, CallRecord]]) -> None:
        """Remember these kinds of calls, (description, record) each, instead of those before."""
        entries = np.zeros(1 + len(ENTRY) * len(kinds), np.int64)
        entries[0] = len(kinds)
        for place, (description, record) in enumerate(kinds):
            start, words = 1 + len(ENTRY) * place, description.words
            here = int(words.ctypes.data)
            entry = self._hash(here, len(words)), len(words), here, record.words.ctypes.data
            entries[start : start + len(ENTRY)] = entry
        before = self._kept.entries, self._kept.kinds  # in use until the words are set
        self._kept.entries, self._kept.kinds = entries, tuple(kinds)
        for table in (self._words, self._words_below):
            table[TABLE.index("entries")] = entries.ctypes.data
        del before

    def forget(self) -> None:
        """Forget all calls."""
        self.replace(())


def after_fork() -> None:
    """In a forked process: the workers are gone for which launches were made."""
    for table in list(_tables):
        table.forget()
