"""Multiplications by fma as LLVM IR: one fma for each of a lane's accumulators and each k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.codegen.text import element, literal
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Value
from tilewright.machine import MultiplyAtom, RegisterOperand
from tilewright.targets.nvidia.wgmma import ROWS, Descriptor

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter

ROW, CHUNK = 128, 16
"""Bytes of a row of shared memory, and of a chunk, which the swizzle moves as a whole."""
TOGETHER = 4
"""Elements of f32 in a chunk."""
WRITTEN_OUT = 2048
"""The most fma instructions of a lane that are unrolled: more do not fit in the instruction cache."""


def multiply(e: Emitter, op: Op, atom: MultiplyAtom) -> None:
    """Emit C += A * B for the operation `op` with fma instructions. `atom` says whether A and B are in registers or in
    shared memory.
    """
    (outer if isinstance(atom.a, RegisterOperand) else from_shared)(e, op, atom)


def outer(e: Emitter, op: Op, atom: MultiplyAtom) -> None:
    """Emit C += A * B for the operation `op` with fma instructions, with A and B in registers, whose layouts `atom`
    describes. In each k step, the lane adds the outer product of its elements of A and B to its accumulators. If `op`
    has the attribute `fresh`, the accumulators start at zero.
    """
    c, a, b = op.operands
    assert isinstance(atom.a, RegisterOperand)
    assert isinstance(atom.b, RegisterOperand)
    kind, rows = element(c.type.dtype), atom.shape[0]
    rows_of = {int(atom.a.layout(0, v)): v for v in range(atom.a.values)}
    columns_of = {int(atom.b.layout(0, v)): v for v in range(atom.b.values)}
    e.w.declare(f"{kind} @llvm.fma.{c.type.dtype}({kind}, {kind}, {kind})")
    zero = literal(0, c.type.dtype)
    for step in range(e.values(a) // atom.a.values):
        begins = bool(op.attrs.get("fresh")) and not step
        left = [e.get(a, step * atom.a.values + v) for v in range(atom.a.values)]
        right = [e.get(b, step * atom.b.values + v) for v in range(atom.b.values)]
        for v in range(atom.c.values):
            column, row = divmod(int(atom.c.layout(0, v)), rows)
            x, y = left[rows_of[row]], right[columns_of[column]]
            before = zero if begins else e.get(c, v)
            call = f"call {kind} @llvm.fma.{c.type.dtype}({kind} {x}, {kind} {y}, {kind} {before})"
            e.put(c, v, e.w.value(call))


def from_shared(e: Emitter, op: Op, atom: MultiplyAtom) -> None:
    """Emit C += A * B for the operation `op` with fma instructions, with A and B in shared memory, in rows of 128
    bytes. `atom` describes the layouts. Each load has 16 bytes. If `op` has the attribute `fresh`, the accumulators
    start at zero. Raise ProgramError if A or B has another memory layout.

    A loop over k with at most WRITTEN_OUT fma instructions for a lane is unrolled. Longer loops have two k steps in
    each iteration.
    """
    c, a, b = op.operands
    kind = element(c.type.dtype)
    w, (rows, _, deep) = e.w, atom.shape
    w.declare(f"{kind} @llvm.fma.{c.type.dtype}({kind}, {kind}, {kind})")
    positions = [divmod(int(atom.c.layout(0, v)), rows) for v in range(atom.c.values)]
    number = _first_position(e, atom)
    left = _Rows(e, a, Descriptor(op, atom, "a"), w.value(f"urem i32 {number}, {rows}"), [i for _, i in positions])
    right = _Rows(e, b, Descriptor(op, atom, "b"), w.value(f"udiv i32 {number}, {rows}"), [j for j, _ in positions])
    if op.attrs.get("fresh"):
        for v in range(atom.c.values):
            e.put(c, v, literal(0, c.type.dtype))

    def multiply_step(step: str) -> None:
        """Emit all fma instructions of one k step. It has as many k as the atom is deep. `step` is the number of the
        step, an LLVM value.
        """
        for k in range(deep):
            a_values, b_values = left.loaded(step, k), right.loaded(step, k)
            for v, (j, i) in enumerate(positions):
                factors = f"{kind} {a_values[i]}, {kind} {b_values[j]}"
                e.put(c, v, w.value(f"call {kind} @llvm.fma.{c.type.dtype}({factors}, {kind} {e.get(c, v)})"))

    steps = left.steps
    if steps * deep * atom.c.values <= WRITTEN_OUT:
        for n in range(steps):
            multiply_step(str(n))
        return
    with w.loop("0", str(steps), "2") as step:
        multiply_step(step)
        multiply_step(w.value(f"add i32 {step}, 1"))


def _first_position(e: Emitter, atom: MultiplyAtom) -> str:
    """Emit the position in C (column-major) of this lane's first accumulator of `atom`, and return it, an i32."""
    w, total, step = e.w, "0", 1
    wave = w.value(f"and i32 {e.wave}, {atom.c.lanes // e.lanes - 1}")
    lane = w.value(f"add i32 {e.lane}, {w.value(f'mul i32 {wave}, {e.lanes}')}")
    for size, stride in zip(atom.c.layout.shape[0], atom.c.layout.stride[0], strict=True):
        digit = w.value(f"urem i32 {w.value(f'udiv i32 {lane}, {step}')}, {size}")
        total = w.value(f"add i32 {total}, {w.value(f'mul i32 {digit}, {stride}')}")
        step *= size
    return total


class _Rows:
    """The rows of A, or the columns of B, that a lane multiplies: row `first` and those at distances `places` from it.

    With k fastest, each is a row of memory. Otherwise each row of memory is one k, and a chunk holds four neighbours.
    """

    def __init__(self, e: Emitter, memory: Value, descriptor: Descriptor, first: str, places: list[int]):
        self.e, w, size = e, e.w, descriptor.size
        self.places, self.steps, self.transposed = dict.fromkeys(places), descriptor.steps, descriptor.transposed
        self.chunks: dict[int, list[str]] = {}
        slab, period = ROW // size, ROW * ROWS
        self.group_stride = (descriptor.slabs if self.transposed else descriptor.groups) * size
        """Bytes between slabs (m or n fastest), or between groups of eight rows (k fastest)."""
        step = TOGETHER * ROW if self.transposed else CHUNK
        if [m * size for m in descriptor.moves] != [step * n for n in range(self.steps)]:
            raise ProgramError(f"%{memory.name}: lanes multiply a slab along k, whose steps follow one another")
        begin = e.address(memory, descriptor.begin, size)
        starts = descriptor.begin.multiple * size % period == 0
        if self.transposed:
            if not starts:
                raise ProgramError(f"%{memory.name}: a factor begins at a multiple of {period} bytes, as swizzles do")
            above = w.value(f"mul i32 {w.value(f'udiv i32 {first}, {slab}')}, {self.group_stride}")
            self.turn: str | None = w.value(f"mul i32 {w.value(f'urem i32 {first}, {slab}')}, {size}")
            self.base = w.value(f"add i32 {begin}, {above}")
            return
        within, above = w.value(f"urem i32 {first}, {ROWS}"), w.value(f"udiv i32 {first}, {ROWS}")
        moved = w.value(
            f"add i32 {w.value(f'mul i32 {within}, {ROW}')}, {w.value(f'mul i32 {above}, {self.group_stride}')}"
        )
        self.base = w.value(f"add i32 {begin}, {moved}")
        """The address of the lane's first row, before the swizzle."""
        self.turn = w.value(f"mul i32 {within}, {CHUNK}") if starts and self.group_stride % period == 0 else None
        """The lane's contribution to the swizzle of a chunk; None: it must be computed from addresses."""

    def loaded(self, step: str, k: int) -> dict[int, str]:
        """Return {distance of the row from `first`: LLVM value} of the operand's elements for one k. `step` is the
        number of the k step, an LLVM value, and `k` (0 to 3) is the number of k in the step. The loads are emitted at
        this call. If k is fastest in memory, all four k of the step are loaded by the call with `k` 0, and later calls
        emit nothing.
        """
        if self.transposed:
            return self._along_rows(step, k)
        if k == 0:
            self.chunks = self._along_k(step)
        return {n: values[k] for n, values in self.chunks.items()}

    def _along_k(self, step: str) -> dict[int, list[str]]:
        """Emit the loads of one k step if k is fastest in memory. `step` is the number of the step, an LLVM value.
        Return {distance of the row from `first`: [LLVM values of its four k]}.
        """
        w, values_of = self.e.w, {}
        chunk = w.once((self, step, "chunk"), f"mul i32 {step}, {CHUNK}")
        for n in self.places:
            row_offset = n % ROWS * ROW + n // ROWS * self.group_stride
            if self.turn is None:
                address = w.value(f"add i32 {self.base}, {row_offset}")
                turn = w.value(f"and i32 {w.value(f'lshr i32 {address}, 3')}, {ROW - CHUNK}")
                address_of_chunk, row_offset = w.value(f"add i32 {address}, {w.value(f'xor i32 {turn}, {chunk}')}"), 0
            else:
                address_of_chunk = self._swizzled_address((step, n % ROWS), chunk, n % ROWS * CHUNK)
            values_of[n] = self._load(address_of_chunk, row_offset)
        return values_of

    def _along_rows(self, step: str, k: int) -> dict[int, str]:
        """Emit the loads of one k if rows are fastest in memory: 16 bytes hold four neighbouring rows. `step` is the
        number of the k step, an LLVM value, and `k` (0 to 3) is the number of k in the step. Return {distance of the
        row from `first`: LLVM value}.
        """
        w, values_of, slab = self.e.w, dict[int, str](), ROW // CHUNK * TOGETHER
        step_offset = w.once((self, step, "down"), f"mul i32 {step}, {TOGETHER * ROW}")
        period = w.once((self, step, "period"), f"mul i32 {step}, {TOGETHER * CHUNK}")
        chunk = w.once((self, step, "chunk"), f"and i32 {period}, {ROW - 1}")
        for n in (n for n in self.places if n % TOGETHER == 0):
            swizzled = self._swizzled_address((step, k, n % slab), chunk, k * CHUNK ^ n % slab // TOGETHER * CHUNK)
            place = w.once((self, step, swizzled), f"add i32 {swizzled}, {step_offset}")
            values = self._load(place, k * ROW + n // slab * self.group_stride)
            values_of |= {n + i: value for i, value in enumerate(values)}
        return values_of

    def _swizzled_address(self, key: tuple[object, ...], chunk: str, more: int) -> str:
        """Emit the swizzled address of a chunk of 16 bytes, and return it, an i32. The offset of the chunk is `chunk`,
        an LLVM value, XOR the constant `more`. Calls with equal `key` share one address.
        """
        w = self.e.w
        partly_swizzled = w.once((self, key[0], "moved"), f"xor i32 {self.turn}, {chunk}")
        swizzled = w.once((self, key, "turned"), f"xor i32 {partly_swizzled}, {more}")
        return w.once((self, key, "place"), f"add i32 {self.base}, {swizzled}")

    def _load(self, place: str, below: int) -> list[str]:
        """Emit the load of 16 bytes in shared memory, `below` bytes after the address `place` (an i32). Return the four
        floats.
        """
        w = self.e.w
        pointer = w.once((place, "pointer"), f"inttoptr i32 {place} to ptr addrspace(3)")
        if below:
            pointer = w.value(f"getelementptr i8, ptr addrspace(3) {pointer}, i32 {below}")
        text = w.value(f"load <{TOGETHER} x float>, ptr addrspace(3) {pointer}, align {CHUNK}")
        return [w.value(f"extractelement <{TOGETHER} x float> {text}, i32 {k}") for k in range(TOGETHER)]
