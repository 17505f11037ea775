"""The interface between the GPU code generator and a machine: each method emits the instructions of one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter


Accuracy = Literal["full", "coarse", "absolute"]
"""How accurate a function must be: "full": 2 units in the last place; "coarse": relative error of 2^-17, results below
2^-126 may become 0; "absolute": absolute error of about 2^-22."""


class Dialect(Protocol):
    """The instructions of one machine. Each method emits code through the emitter `e`; strings are LLVM values, or
    addresses in shared memory as LLVM values of type i32."""

    wave_group: int
    """Waves in an aligned group (4 for a warpgroup): roles begin at multiples of it if any role sets its
    registers or multiplies by several waves at once."""

    def module(self, e: Emitter) -> str:
        """Return the text of the LLVM module: the kernel function with its arguments, around the lines that `e` has
        emitted. Interface method.
        """

    def thread(self, e: Emitter) -> str:
        """Emit the read of the thread's number in its workgroup, and return it, an i32. Interface method."""

    def worker(self, e: Emitter) -> str:
        """Emit the read of the workgroup's number in the grid, and return it, an i32. Interface method."""

    def workers(self, e: Emitter) -> str:
        """Emit the read of the number of workgroups in the grid, and return it, an i32. Interface method."""

    def rank(self, e: Emitter) -> str:
        """Emit the read of the workgroup's number in its cluster, and return it, an i32. Interface method."""

    def sync_cluster_at_end(self, e: Emitter) -> None:
        """Emit a barrier for all threads of the cluster. It is emitted at the end of the kernel, so that no workgroup
        ends while another one may still access its shared memory. Interface method.
        """

    def uniform(self, e: Emitter, value: str) -> str:
        """Emit code that tells the compiler that the i32 `value` is equal in all lanes of the wave, and return the
        value. The caller guarantees that it is equal. Interface method.
        """

    def begin(self, e: Emitter, barriers: list[tuple[int, int]]) -> None:
        """Emit the start of the kernel. The first thread initialises `barriers`, a list of (offset in shared memory,
        number of arrivals). Then all threads of the workgroup, or of its cluster, wait until this is done. Interface
        method.
        """

    def wait_for_previous_launch(self, e: Emitter, allows_next: bool) -> None:
        """Emit the wait for the end of the previous launch in the stream, which may still run when this launch begins.
        If `allows_next`, the next launch may begin now, and runs up to its own wait. Otherwise it begins when this
        launch has finished. Interface method.
        """

    def check_registers(self, roles: list[tuple[int, int | None]]) -> None:
        """Raise ProgramError if the roles of a workgroup need more registers than the machine has. `roles` is [(number
        of threads, registers of each thread)], where None is the default number of registers. Interface method.
        """

    def registers(self, e: Emitter, count: int, threads: int) -> None:
        """Emit the instruction that sets the number of registers of each thread of the current role to `count`.
        `threads` is the number of threads of the workgroup. Interface method.
        """

    def meet(self, e: Emitter, barrier: str, threads: int) -> None:
        """Emit a barrier for `threads` threads of the workgroup. `barrier` is the number of the hardware barrier, an
        LLVM value. Interface method.
        """

    def sync_lanes(self, e: Emitter) -> None:
        """Emit a barrier for the lanes of the wave. After it, each lane sees the earlier writes of the other lanes.
        Interface method.
        """

    def arrive(self, e: Emitter, address: str, everywhere: bool) -> None:
        """Emit one arrival at the counting barrier (mbarrier) at `address`. If `everywhere`, emit an arrival at this
        barrier in each workgroup of the cluster. Interface method.
        """

    def expect(self, e: Emitter, address: str, count: int) -> None:
        """Emit that the current phase of the counting barrier (mbarrier) at `address` also waits for `count` bytes of
        bulk copies. This is not an arrival. Interface method.
        """

    def keep_registers(self, e: Emitter, fragments: Sequence[Value]) -> None:
        """Emit a use of the registers of `fragments`, so that they stay allocated up to this point. MMAs of the loop
        before it read them in each iteration. Interface method.
        """

    def force_computed(self, e: Emitter, fragments: Sequence[Value]) -> None:
        """Emit a use of the values of `fragments` that the compiler does not move. They are therefore computed before
        the code that follows, which may wait. Interface method.
        """

    def await_(self, e: Emitter, address: str, parity: str) -> None:
        """Emit the wait until the counting barrier (mbarrier) at `address` has completed its phase of the parity
        `parity`, 0 or 1 (an LLVM value). Interface method.
        """

    def fence(self, e: Emitter) -> None:
        """Emit a fence. After it, earlier stores of this lane to shared memory are visible to asynchronous copies and
        multiplications. Interface method.
        """

    def copy_in(self, e: Emitter, op: Op) -> None:
        """Emit the asynchronous bulk copy `op` from global to shared memory. One lane executes it. Interface method."""

    def copy_lanes(self, e: Emitter, op: Op) -> None:
        """Emit the asynchronous copy `op` from global to shared memory. Each lane copies a few contiguous elements.
        Interface method.
        """

    def land(self, e: Emitter, address: str) -> None:
        """Emit that the counting barrier (mbarrier) at `address` also waits for the asynchronous copies that this lane
        has issued. Its expected number of arrivals does not change. Interface method.
        """

    def copy_out(self, e: Emitter, op: Op) -> None:
        """Emit the asynchronous bulk copy `op` from shared to global memory. One lane executes it. Interface method."""

    def seal(self, e: Emitter) -> None:
        """Emit the end of the current group of bulk copies from shared memory (commit_group in PTX).
        Interface method.
        """

    def drain(self, e: Emitter, pending: int) -> None:
        """Emit the wait until at most `pending` groups of bulk copies still read shared memory. Interface method."""

    def load(self, e: Emitter, op: Op) -> bool:
        """Emit the load `op` of a fragment by one instruction of the whole wave, and return True. Emit nothing and
        return False if there is no such instruction for `op`; each lane must then load its elements. Interface method.
        """

    def store(self, e: Emitter, op: Op) -> bool:
        """Emit the store `op` of a fragment by one instruction of the whole wave, and return True. Emit nothing and
        return False if there is no such instruction for `op`; each lane must then store its elements. Interface method.
        """

    def load_streaming(self, e: Emitter, address: str, words: int) -> list[str]:
        """Emit a load of `words` words of 32 bits (1, 2 or 4) from global memory, with the hint that caches evict the
        data first. Return the words as LLVM values of type i32. `address` is a pointer that is aligned to the loaded
        bytes. Interface method.
        """

    def multiply(self, e: Emitter, op: Op) -> None:
        """Emit C += A * B for `op`, an MMA by an atom. Interface method."""

    def wait_products(self, e: Emitter, pending: int, sums: tuple[Value, ...]) -> None:
        """Emit the wait until at most `pending` groups of asynchronous multiplications are in flight. `sums` are the
        accumulators that may be used after the wait. Interface method.
        """

    def fresh_register(self, e: Emitter, number: float, dtype: DType) -> str | None:
        """Emit the constant `number` of the type `dtype` in a new register, and return it as an LLVM value. Emit
        nothing and return None if an ordinary constant is as good. Interface method.

        Accumulators are initialised with it. If an accumulator were copied from the register of another one, the copy
        would wait for the MMA of that register.
        """

    def from_lane(self, e: Emitter, value: str, lane: str) -> str:
        """Emit a shuffle: return the i32 `value` of the lane with the number `lane`. `lane` is an LLVM value that may
        differ between lanes. Interface method.
        """

    def as_one_word(self, e: Emitter, word: str) -> str:
        """Emit code that keeps `word`, an i32 with packed values, in one register, and return an i32. LLVM cannot split
        the returned i32 into one register for each value. Interface method.
        """

    def any_lane(self, e: Emitter, test: str) -> str:
        """Emit a vote, and return an i1 that is equal in all lanes: true if the i1 `test` is true in at least one lane
        of the wave. Interface method.
        """

    def function(self, e: Emitter, name: str, values: list[str], accuracy: Accuracy) -> str | None:
        """Emit the f32 function `name`, such as "exp", of the LLVM values `values` with instructions of the machine,
        and return the result. Emit nothing and return None if the machine has no instructions for it with the accuracy
        `accuracy`. Interface method.
        """

    def rounds_pairs(self, e: Emitter, kind: DType) -> bool:
        """True if the machine has an instruction that rounds two f32 to two floats of the type `kind`. Emit nothing.
        Interface method.
        """

    def pair(self, e: Emitter, low: str, high: str, kind: DType) -> str:
        """Emit the rounding of the f32 values `low` and `high` to the type `kind`. Return both as an LLVM vector of two
        elements, `low` first. Interface method.
        """

    def pair_of_bytes(self, e: Emitter, low: str, high: str) -> str:
        """Emit the conversion of the i8 values `low` and `high` to bf16. Return both as an LLVM vector of two elements,
        `low` first. It is called only if `rounds_pairs` is true for bf16. Interface method.
        """
