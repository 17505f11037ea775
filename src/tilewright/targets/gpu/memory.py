"""Loads and stores of a lane: as wide as its values lie side by side, under the conditions they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.algebra.expr import Const, Expr
from tilewright.algebra.expr_rules import linear
from tilewright.codegen.text import element, literal
from tilewright.ir.core import Op, Value
from tilewright.ir.tensors import TensorType
from tilewright.passes.places import swizzled

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter

WIDEST, WORD = 16, 4
"""Bytes that one instruction moves for a lane, and of a register."""


@dataclass(frozen=True)
class MemoryRun:
    """Values of a lane that are moved at once: the first, how many, where, under which condition."""

    first: int
    count: int
    place: Expr
    when: Expr | None
    askew: bool = False
    """Whether the place is no multiple of the length."""


def _runs(e: Emitter, op: Op, *, askew: bool = False) -> list[MemoryRun]:
    """The lane's values in runs that lie side by side, at places that are multiples of their length; with `askew`, runs
    of which only a word could be moved at once begin anywhere."""
    register, memory = op.operands
    axes = e.lane_axis(op)
    count = e.values(register)
    kind: TensorType = memory.type
    size = kind.dtype.numpy.itemsize
    places = [e.at_value(op.attrs["at"][0], axes, i) for i in range(count)]
    when = op.attrs.get("when")
    conditions = [None if when is None else e.at_value(when, axes, i) for i in range(count)]
    most = max(1, WIDEST // size)
    if kind.swizzle is not None:
        most = min(most, 1 << kind.swizzle.base)
    found: list[MemoryRun] = []
    i = 0
    while i < count:
        width = most
        while width > 1 and (places[i].multiple % width or not _together(places, conditions, i, width)):
            width //= 2
        anywhere = askew and width * size <= WORD and _together(places, conditions, i, most)
        width = most if anywhere else width
        found.append(MemoryRun(i, width, swizzled(kind.swizzle, places[i]), conditions[i], anywhere))
        i += width
    return found


def _together(places: list[Expr], conditions: list[Expr | None], first: int, width: int) -> bool:
    if first + width > len(places):
        return False
    for i in range(1, width):
        apart = places[first + i] - places[first]
        if not isinstance(apart, Const) or apart.value != i or conditions[first + i] is not conditions[first]:
            return False
    return True


def pointer(e: Emitter, memory: Value, place: Expr, size: int) -> str:
    """The address of an element."""
    if memory.type.space == "shared":
        address = e.address(memory, place, size)
        return e.w.once((memory, place, "pointer"), f"inttoptr i32 {address} to ptr addrspace(3)")
    constant, _ = linear(place)
    moved = place - constant  # neighbouring places have that in common
    offset = e.w.integer(moved * size)
    base = e.w.once((memory, moved), f"getelementptr i8, ptr addrspace(1) {e.pointers[memory]}, i64 {offset}")
    if constant == 0:
        return base
    return e.w.once((memory, place), f"getelementptr i8, ptr addrspace(1) {base}, i64 {constant * size}")


def _forms(kind: str, size: int, count: int) -> tuple[str, str]:
    """(the type that is moved, the type of the values): elements of less than 32 bits travel in words."""
    values = f"<{count} x {kind}>" if count > 1 else kind
    total = size * count
    if count == 1 or size >= 4 or total < 4:
        return values, values
    return (f"<{total // 4} x i32>" if total > 4 else "i32"), values


def _words(e: Emitter, address: str, space: int, total: int, *, stream: bool) -> list[str]:
    """Elements of less than a word, `total` bytes of them, each word loaded by itself; the back end joins the loads."""
    if stream:
        return e.dialect.load_streaming(e, address, total // WORD)
    found = []
    for n in range(0, total, WORD):
        place = e.w.value(f"getelementptr i8, ptr addrspace({space}) {address}, i64 {n}") if n else address
        found.append(e.w.value(f"load i32, ptr addrspace({space}) {place}, align {WORD if n else total}"))
    return found


def _joined(e: Emitter, words: list[str]) -> tuple[str, str]:
    """(the type, the value) of words as one vector."""
    if len(words) == 1:
        return "i32", words[0]
    kind, text = f"<{len(words)} x i32>", "poison"
    for n, word in enumerate(words):
        text = e.w.value(f"insertelement {kind} {text}, i32 {word}, i32 {n}")
    return kind, text


def _askew(e: Emitter, address: str) -> list[str]:
    """Four words that begin anywhere: those of the two places of 16 bytes in which they lie, moved.

    What else lies there is on the same page of memory, whosever it is; nothing is made of it.
    """
    w = e.w
    number = w.value(f"ptrtoint ptr addrspace(1) {address} to i64")
    words: list[str] = []
    for reach in (0, WIDEST - 2):  # where they end in the first of these places, it is both
        place = w.value(f"and i64 {w.value(f'add i64 {number}, {reach}')}, {-WIDEST}")
        pointer = w.value(f"inttoptr i64 {place} to ptr addrspace(1)")
        text = w.value(f"load <4 x i32>, ptr addrspace(1) {pointer}, align {WIDEST}")
        words += [w.value(f"extractelement <4 x i32> {text}, i32 {n}") for n in range(4)]
    moved = w.value(f"trunc i64 {number} to i32")
    for far in (2, 1):  # by two words, by one, by half of one
        wide = w.value(f"icmp ne i32 {w.value(f'and i32 {moved}, {WORD * far}')}, 0")
        words = [
            w.value(f"select i1 {wide}, i32 {words[n + far]}, i32 {words[n]}")
            for n in range(min(4 + far, len(words) - far))
        ]
    bits = w.value(f"shl i32 {w.value(f'and i32 {moved}, 2')}, 3")
    w.declare("i32 @llvm.fshr.i32(i32, i32, i32)")
    return [w.value(f"call i32 @llvm.fshr.i32(i32 {words[n + 1]}, i32 {words[n]}, i32 {bits})") for n in range(4)]


def _parts(e: Emitter, words: list[str], size: int, kind: str) -> list[str]:
    """Values of `size` bytes as parts of words: halves, or bytes.

    So what widens a part starts from its word. Of a vector of words, LLVM would make one of parts, and take each part
    out before it is widened.
    """
    whole, found = f"i{8 * size}", []
    for word in words:
        for low in range(0, 8 * WORD, 8 * size):
            bits = e.w.value(f"lshr i32 {word}, {low}") if low else word
            part = e.w.value(f"trunc i32 {bits} to {whole}")
            found.append(part if kind == whole else e.w.value(f"bitcast {whole} {part} to {kind}"))
    return found


def _streams(op: Op, size: int, count: int) -> bool:
    """Whether so many elements of an operation are loaded as words that caches evict first."""
    return bool(op.attrs.get("stream")) and size * count >= WORD


def load(e: Emitter, op: Op) -> None:
    """Each value becomes its element, or the `else` number."""
    target, memory = op.operands
    kind, size = element(target.type.dtype), target.type.dtype.numpy.itemsize
    number = op.attrs.get("otherwise", 0)
    other, space = literal(number, target.type.dtype), 3 if memory.type.space == "shared" else 1

    def one(run: MemoryRun) -> None:
        moved, values = _forms(kind, size, run.count)
        address = pointer(e, memory, run.place, size)
        if _streams(op, size, run.count):
            moved, text = _joined(e, e.dialect.load_streaming(e, address, size * run.count // WORD))
        else:
            text = e.w.value(f"load {moved}, ptr addrspace({space}) {address}, align {size * run.count}")
        if moved != values:
            text = e.w.value(f"bitcast {moved} {text} to {values}")
        for n in range(run.count):
            part = text if run.count == 1 else e.w.value(f"extractelement {values} {text}, i32 {n}")
            e.put(target, run.first + n, part)

    def brought(run: MemoryRun, address: str) -> list[str]:
        if run.askew:
            return _askew(e, address)
        return _words(e, address, space, size * run.count, stream=_streams(op, size, run.count))

    def in_words(run: MemoryRun, condition: str | None) -> None:
        """Values under the condition are words: a half or a byte by itself would take a register, and be taken out
        of its word where it is loaded, which waits for it."""
        address = pointer(e, memory, run.place, size)
        if condition is None:
            words = brought(run, address)
        else:
            slots = [e.w.slot("i32") for _ in range(size * run.count // WORD)]
            others = int(np.full(WORD // size, number, target.type.dtype.numpy).view(np.int32)[0])
            for slot in slots:
                e.w.line(f"store i32 {others}, ptr {slot}")
            with e.w.when(condition):
                for slot, word in zip(slots, brought(run, address), strict=True):
                    e.w.line(f"store i32 {word}, ptr {slot}")
            words = [e.dialect.whole(e, e.w.value(f"load i32, ptr {slot}")) for slot in slots]
        for n, part in enumerate(_parts(e, words, size, kind)):
            e.put(target, run.first + n, part)

    for run in _runs(e, op, askew=size == 2 and space == 1):
        always = run.when is None or (isinstance(run.when, Const) and run.when.value)
        condition = None if always or run.when is None else e.w.condition(run.when)
        is_bytes = size == 1 and run.count >= WORD and condition is not None
        if run.askew or is_bytes or (kind == "bfloat" and run.count > 1):
            in_words(run, condition)
        elif condition is None:
            one(run)
        else:
            for n in range(run.count):
                e.put(target, run.first + n, other)
            with e.w.when(condition):
                one(run)


def store(e: Emitter, op: Op) -> None:
    """Each value under its condition."""
    source, memory = op.operands
    kind, size = element(source.type.dtype), source.type.dtype.numpy.itemsize

    def one(run: MemoryRun) -> None:
        space = 3 if memory.type.space == "shared" else 1
        moved, values = _forms(kind, size, run.count)
        text = e.get(source, run.first)
        if run.count > 1:
            parts = [text, *(e.get(source, run.first + n) for n in range(1, run.count))]
            text = "poison"
            for n, part in enumerate(parts):
                text = e.w.value(f"insertelement {values} {text}, {kind} {part}, i32 {n}")
        if moved != values:
            text = e.w.value(f"bitcast {values} {text} to {moved}")
        address = pointer(e, memory, run.place, size)
        e.w.line(f"store {moved} {text}, ptr addrspace({space}) {address}, align {size * run.count}")

    for run in _runs(e, op):
        if run.when is None or (isinstance(run.when, Const) and run.when.value):
            one(run)
            continue
        with e.w.when(e.w.condition(run.when)):
            one(run)


_ATOMIC = {"add": ("add", "fadd"), "max": ("max", "fmax"), "min": ("min", "fmin")}


def atomic(e: Emitter, op: Op) -> None:
    """Each value is combined into its element as one step."""
    source, memory = op.operands
    kind, dtype = element(source.type.dtype), source.type.dtype
    whole, fraction = _ATOMIC[op.attrs["how"]]
    word = fraction if dtype.is_float else ("u" + whole if dtype.numpy.kind in "ub" and whole != "add" else whole)
    axes = e.lane_axis(op)
    for i in range(e.values(source)):
        place = swizzled(memory.type.swizzle, e.at_value(op.attrs["at"][0], axes, i))
        when = None if "when" not in op.attrs else e.at_value(op.attrs["when"], axes, i)

        def one(i: int = i, place: Expr = place) -> None:
            space = 3 if memory.type.space == "shared" else 1
            address = pointer(e, memory, place, dtype.numpy.itemsize)
            text = e.get(source, i)
            e.w.value(f"atomicrmw {word} ptr addrspace({space}) {address}, {kind} {text} monotonic")

        if when is None:
            one()
            continue
        with e.w.when(e.w.condition(when)):
            one()
