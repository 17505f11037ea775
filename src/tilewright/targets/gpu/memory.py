"""Loads and stores of a lane's values: each as wide as contiguous values and shared conditions allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.algebra.expr import Const, Expr
from tilewright.algebra.expr_rules import linear
from tilewright.analysis.flat_memory import swizzled
from tilewright.codegen.text import element, literal
from tilewright.ir.core import Op, Value
from tilewright.ir.tensors import TensorType

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter

WIDEST, WORD = 16, 4
"""Bytes that one instruction moves for a lane, and bytes of a register."""


@dataclass(frozen=True)
class MemoryRun:
    """Contiguous values of a lane that one instruction moves: the first, their number, their place (an element offset),
    and the condition under which they are moved (None: always)."""

    first: int
    count: int
    place: Expr
    when: Expr | None
    misaligned: bool = False
    """True if the place need not be a multiple of the run's length."""


def _runs(e: Emitter, op: Op, *, misaligned: bool = False) -> list[MemoryRun]:
    """Split the elements that a lane moves in the load or store `op` into runs that one instruction can move, and
    return the runs in order. A run is contiguous in memory, has one condition, has at most 16 bytes, and is aligned to
    its length. If `misaligned`, contiguous elements that are aligned to 4 bytes or less form runs of 16 bytes at any
    address.
    """
    register, memory = op.operands
    axes = e.lane_axis(op)
    count = e.values(register)
    kind: TensorType = memory.type
    size = kind.dtype.numpy.itemsize
    offsets = [e.at_value(op.attrs["at"][0], axes, i) for i in range(count)]
    when = op.attrs.get("when")
    conditions = [None if when is None else e.at_value(when, axes, i) for i in range(count)]
    widest = max(1, WIDEST // size)
    if kind.swizzle is not None:
        widest = min(widest, 1 << kind.swizzle.base)
    runs: list[MemoryRun] = []
    i = 0
    while i < count:
        width = widest
        while width > 1 and (offsets[i].multiple % width or not _is_contiguous(offsets, conditions, i, width)):
            width //= 2
        anywhere = misaligned and width * size <= WORD and _is_contiguous(offsets, conditions, i, widest)
        width = widest if anywhere else width
        runs.append(MemoryRun(i, width, swizzled(kind.swizzle, offsets[i]), conditions[i], anywhere))
        i += width
    return runs


def _is_contiguous(places: list[Expr], conditions: list[Expr | None], first: int, width: int) -> bool:
    """True if the `width` elements from number `first` on have consecutive `places` (offsets in elements) and the same
    condition in `conditions`. False also if there are fewer than `width` elements from there on.
    """
    if first + width > len(places):
        return False
    for i in range(1, width):
        distance = places[first + i] - places[first]
        if not isinstance(distance, Const) or distance.value != i or conditions[first + i] is not conditions[first]:
            return False
    return True


def pointer(e: Emitter, memory: Value, place: Expr, size: int) -> str:
    """Emit the pointer to an element of the tensor `memory`, in shared or global memory, and return it as an LLVM
    value. `place` is the offset of the element, in elements of `size` bytes.
    """
    if memory.type.space == "shared":
        address = e.address(memory, place, size)
        return e.w.once((memory, place, "pointer"), f"inttoptr i32 {address} to ptr addrspace(3)")
    constant, _ = linear(place)
    moved = place - constant  # neighbouring elements share this part
    offset = e.w.integer(moved * size)
    base = e.w.once((memory, moved), f"getelementptr i8, ptr addrspace(1) {e.pointers[memory]}, i64 {offset}")
    if constant == 0:
        return base
    return e.w.once((memory, place), f"getelementptr i8, ptr addrspace(1) {base}, i64 {constant * size}")


def _moved_types(kind: str, size: int, count: int) -> tuple[str, str]:
    """Return (LLVM type that one instruction moves, LLVM type of the values as a vector) for `count` elements of the
    LLVM type `kind` with `size` bytes each. The types differ for several elements of fewer than 4 bytes that have at
    least 4 bytes together: they are moved as words.

    >>> _moved_types("half", 2, 8), _moved_types("float", 4, 4)
    (('<4 x i32>', '<8 x half>'), ('<4 x float>', '<4 x float>'))
    """
    values = f"<{count} x {kind}>" if count > 1 else kind
    total = size * count
    if count == 1 or size >= 4 or total < 4:
        return values, values
    return (f"<{total // 4} x i32>" if total > 4 else "i32"), values


def _load_words(e: Emitter, address: str, space: int, total: int, *, stream: bool) -> list[str]:
    """Emit the load of `total` bytes from the pointer `address`, and return them as a list of i32 values. `space` is
    the number of the LLVM address space. If `stream`, the load has the hint that caches evict the data first.
    """
    if stream:
        return e.dialect.load_streaming(e, address, total // WORD)
    words = []
    for n in range(0, total, WORD):
        word_address = e.w.value(f"getelementptr i8, ptr addrspace({space}) {address}, i64 {n}") if n else address
        words.append(e.w.value(f"load i32, ptr addrspace({space}) {word_address}, align {WORD if n else total}"))
    return words


def _join_words(e: Emitter, words: list[str]) -> tuple[str, str]:
    """Emit the vector of the i32 values `words`, and return (its LLVM type, its LLVM value). A single word is returned
    as an i32.
    """
    if len(words) == 1:
        return "i32", words[0]
    kind, text = f"<{len(words)} x i32>", "poison"
    for n, word in enumerate(words):
        text = e.w.value(f"insertelement {kind} {text}, i32 {word}, i32 {n}")
    return kind, text


def _load_misaligned(e: Emitter, address: str) -> list[str]:
    """Emit the load of 16 bytes from `address`, any even address in global memory, and return them as four i32 values.
    Two aligned loads are emitted, and their words are shifted.

    The loads may read beyond the 16 bytes, but only in the aligned 16-byte blocks that contain them, and so never on
    another page.
    """
    w = e.w
    number = w.value(f"ptrtoint ptr addrspace(1) {address} to i64")
    words: list[str] = []
    for reach in (0, WIDEST - 2):  # both loads are of one block if the bytes end in it
        aligned_address = w.value(f"and i64 {w.value(f'add i64 {number}, {reach}')}, {-WIDEST}")
        pointer = w.value(f"inttoptr i64 {aligned_address} to ptr addrspace(1)")
        vector = w.value(f"load <4 x i32>, ptr addrspace(1) {pointer}, align {WIDEST}")
        words += [w.value(f"extractelement <4 x i32> {vector}, i32 {n}") for n in range(4)]
    low_bits = w.value(f"trunc i64 {number} to i32")
    for step in (2, 1):  # by two words, by one, by half of one
        wide = w.value(f"icmp ne i32 {w.value(f'and i32 {low_bits}, {WORD * step}')}, 0")
        words = [
            w.value(f"select i1 {wide}, i32 {words[n + step]}, i32 {words[n]}")
            for n in range(min(4 + step, len(words) - step))
        ]
    bits = w.value(f"shl i32 {w.value(f'and i32 {low_bits}, 2')}, 3")
    w.declare("i32 @llvm.fshr.i32(i32, i32, i32)")
    return [w.value(f"call i32 @llvm.fshr.i32(i32 {words[n + 1]}, i32 {words[n]}, i32 {bits})") for n in range(4)]


def _split_words(e: Emitter, words: list[str], size: int, kind: str) -> list[str]:
    """Emit the split of the i32 values `words` into elements of `size` bytes (1 or 2). Return the elements, low bits
    first, as LLVM values of the type `kind`.
    """
    integer_type, values = f"i{8 * size}", []
    for word in words:
        for low in range(0, 8 * WORD, 8 * size):
            bits = e.w.value(f"lshr i32 {word}, {low}") if low else word
            part = e.w.value(f"trunc i32 {bits} to {integer_type}")
            values.append(part if kind == integer_type else e.w.value(f"bitcast {integer_type} {part} to {kind}"))
    return values


def _streams(op: Op, size: int, count: int) -> bool:
    """True if the load `op` has the attribute `stream` (caches evict the data first), and `count` elements of `size`
    bytes have at least 4 bytes together.
    """
    return bool(op.attrs.get("stream")) and size * count >= WORD


def load(e: Emitter, op: Op) -> None:
    """Emit the load `op`: each lane loads the elements that it holds of a register from a tensor in memory. The
    operands are the target register and the tensor. Contiguous elements are loaded together. Elements for which the
    condition of `op` fails get the number `otherwise` of `op` (0 if there is none).
    """
    target, memory = op.operands
    kind, size = element(target.type.dtype), target.type.dtype.numpy.itemsize
    number = op.attrs.get("otherwise", 0)
    other, space = literal(number, target.type.dtype), 3 if memory.type.space == "shared" else 1

    def load_plain(run: MemoryRun) -> None:
        """Emit the load of `run` by one instruction, and write its elements to the target register. Two elements of one
        byte are loaded as one i16, and then separated.
        """
        if size == 1 and run.count == 2:
            word = e.w.value(f"load i16, ptr addrspace({space}) {pointer(e, memory, run.place, size)}, align 2")
            for n, part in enumerate(_split_words(e, [e.w.value(f"zext i16 {word} to i32")], size, kind)[:2]):
                e.put(target, run.first + n, part)
            return
        moved, values = _moved_types(kind, size, run.count)
        address = pointer(e, memory, run.place, size)
        if _streams(op, size, run.count):
            moved, text = _join_words(e, e.dialect.load_streaming(e, address, size * run.count // WORD))
        else:
            text = e.w.value(f"load {moved}, ptr addrspace({space}) {address}, align {size * run.count}")
        if moved != values:
            text = e.w.value(f"bitcast {moved} {text} to {values}")
        for n in range(run.count):
            part = text if run.count == 1 else e.w.value(f"extractelement {values} {text}, i32 {n}")
            e.put(target, run.first + n, part)

    def load_run(run: MemoryRun, address: str) -> list[str]:
        """Emit the load of `run` from the pointer `address`, and return its elements as i32 words."""
        if run.misaligned:
            return _load_misaligned(e, address)
        return _load_words(e, address, space, size * run.count, stream=_streams(op, size, run.count))

    def load_as_words(run: MemoryRun, condition: str | None) -> None:
        """Emit the load of `run` as i32 words, and write its elements to the target register. If `condition`, an i1,
        fails, the elements get the number `otherwise` (None: no condition).

        The condition selects whole words. For single halves or bytes, LLVM would use one register each and extract them
        right after the load, which would have to wait.
        """
        address = pointer(e, memory, run.place, size)
        if condition is None:
            words = load_run(run, address)
        else:
            slots = [e.w.slot("i32") for _ in range(size * run.count // WORD)]
            others = int(np.full(WORD // size, number, target.type.dtype.numpy).view(np.int32)[0])
            for slot in slots:
                e.w.line(f"store i32 {others}, ptr {slot}")
            with e.w.when(condition):
                for slot, word in zip(slots, load_run(run, address), strict=True):
                    e.w.line(f"store i32 {word}, ptr {slot}")
            words = [e.dialect.as_one_word(e, e.w.value(f"load i32, ptr {slot}")) for slot in slots]
        for n, part in enumerate(_split_words(e, words, size, kind)):
            e.put(target, run.first + n, part)

    for run in _runs(e, op, misaligned=size == 2 and space == 1):
        always = run.when is None or (isinstance(run.when, Const) and run.when.value)
        condition = None if always or run.when is None else e.w.condition(run.when)
        is_bytes = size == 1 and run.count >= WORD and condition is not None
        if run.misaligned or is_bytes or (kind == "bfloat" and run.count > 1):
            load_as_words(run, condition)
        elif condition is None:
            load_plain(run)
        else:
            for n in range(run.count):
                e.put(target, run.first + n, other)
            with e.w.when(condition):
                load_plain(run)


def store(e: Emitter, op: Op) -> None:
    """Emit the store `op`: each lane stores the elements that it holds of the source register (first operand) to a
    tensor in memory (second operand). Contiguous elements are stored together. Elements for which the condition fails
    are not stored.
    """
    source, memory = op.operands
    kind, size = element(source.type.dtype), source.type.dtype.numpy.itemsize

    def store_run(run: MemoryRun) -> None:
        """Emit the store of `run` by one instruction."""
        space = 3 if memory.type.space == "shared" else 1
        moved, values = _moved_types(kind, size, run.count)
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
            store_run(run)
            continue
        with e.w.when(e.w.condition(run.when)):
            store_run(run)


_ATOMIC = {"add": ("add", "fadd"), "max": ("max", "fmax"), "min": ("min", "fmin")}


def atomic(e: Emitter, op: Op) -> None:
    """Emit an atomic add, max or min (attribute `how`) of each element that the lane holds of the source register
    (first operand) into a tensor in memory (second operand). Elements for which the condition fails are skipped. Memory
    order is relaxed.
    """
    source, memory = op.operands
    kind, dtype = element(source.type.dtype), source.type.dtype
    integer_operation, float_operation = _ATOMIC[op.attrs["how"]]
    word = (
        float_operation
        if dtype.is_float
        else ("u" + integer_operation if dtype.numpy.kind in "ub" and integer_operation != "add" else integer_operation)
    )
    axes = e.lane_axis(op)
    for i in range(e.values(source)):
        place = swizzled(memory.type.swizzle, e.at_value(op.attrs["at"][0], axes, i))
        when = None if "when" not in op.attrs else e.at_value(op.attrs["when"], axes, i)

        def update(i: int = i, place: Expr = place) -> None:
            """Emit the atomic instruction for element number `i` of the lane. `place` is its offset in the tensor, in
            elements.
            """
            space = 3 if memory.type.space == "shared" else 1
            address = pointer(e, memory, place, dtype.numpy.itemsize)
            text = e.get(source, i)
            e.w.value(f"atomicrmw {word} ptr addrspace({space}) {address}, {kind} {text} monotonic")

        if when is None:
            update()
            continue
        with e.w.when(e.w.condition(when)):
            update()
