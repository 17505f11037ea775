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
        """Return the text of the whole LLVM module: the kernel function with its arguments, around the lines that were
        emitted.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def thread(self, e: Emitter) -> str:
        """Emit the read of the thread's number in its workgroup, and return it, an i32.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def worker(self, e: Emitter) -> str:
        """Emit the read of the workgroup's number in the grid, and return it, an i32.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def workers(self, e: Emitter) -> str:
        """Emit the read of the number of workgroups in the grid, and return it, an i32.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def rank(self, e: Emitter) -> str:
        """Emit the read of the workgroup's number in its cluster, and return it, an i32.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def sync_cluster_at_end(self, e: Emitter) -> None:
        """Emit a cluster barrier for all threads: no workgroup ends while another may still access its shared memory.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def uniform(self, e: Emitter, value: str) -> str:
        """Emit code that shows the machine that the i32 `value` is the same in all lanes of the wave, and return it. It
        must be the same in all lanes.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def begin(self, e: Emitter, barriers: list[tuple[int, int]]) -> None:
        """Emit the start of the kernel: the first thread initialises the `barriers`, given as [(offset in shared
        memory, number of arrivals)]; then all threads of the workgroup, or of its cluster, wait until that is done.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def wait_for_previous_launch(self, e: Emitter, allows_next: bool) -> None:
        """Emit the wait for the end of the stream's previous launch, which may still be running when this one begins.
        If `allows_next`, the next launch may start now and run up to the same wait; else it starts when this one ends.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def check_registers(self, roles: list[tuple[int, int | None]]) -> None:
        """Raise ProgramError if the roles of a workgroup need more registers than the machine has. `roles` are [(number
        of threads, registers of each thread, or None for the default)].

        An interface method with an empty body: each machine's dialect implements it.
        """

    def registers(self, e: Emitter, count: int, threads: int) -> None:
        """Emit the instruction that changes the register count of the current role to `count` for each thread.
        `threads` is the number of threads of the workgroup.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def meet(self, e: Emitter, barrier: str, threads: int) -> None:
        """Emit a barrier among `threads` threads of the workgroup; `barrier` is the number of the hardware barrier that
        they all use, an LLVM value.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def sync_lanes(self, e: Emitter) -> None:
        """Emit a barrier of the wave's lanes, after which each lane sees the others' earlier writes.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def arrive(self, e: Emitter, address: str, everywhere: bool) -> None:
        """Emit one arrival at the counting barrier at `address`. With `everywhere`, it arrives at that barrier in each
        workgroup of the cluster.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def expect(self, e: Emitter, address: str, count: int) -> None:
        """Emit that the current phase of the counting barrier at `address` also waits for `count` bytes of bulk copies.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def keep_registers(self, e: Emitter, fragments: Sequence[Value]) -> None:
        """Emit a use of the registers of `fragments`, so that they stay alive up to here: MMAs of the preceding loop
        read them in every iteration.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def force_computed(self, e: Emitter, fragments: Sequence[Value]) -> None:
        """Emit a use of the values of `fragments` that the compiler cannot move, so that they are computed before the
        code that follows, which may wait.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def await_(self, e: Emitter, address: str, parity: str) -> None:
        """Emit the wait until the counting barrier at `address` has completed the phase whose number has the `parity` 0
        or 1 (an LLVM value).

        An interface method with an empty body: each machine's dialect implements it.
        """

    def fence(self, e: Emitter) -> None:
        """Emit a fence: this lane's earlier stores to shared memory become visible to asynchronous copies and
        multiplications.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def copy_in(self, e: Emitter, op: Op) -> None:
        """Emit the asynchronous bulk copy `op` from global to shared memory, issued by one lane.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def copy_lanes(self, e: Emitter, op: Op) -> None:
        """Emit the asynchronous copy `op` from global to shared memory, in which each lane copies a few contiguous
        elements.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def land(self, e: Emitter, address: str) -> None:
        """Emit that the counting barrier at `address` waits for the asynchronous copies that this lane has issued; its
        count of arrivals does not change.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def copy_out(self, e: Emitter, op: Op) -> None:
        """Emit the asynchronous bulk copy `op` from shared to global memory, issued by one lane.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def seal(self, e: Emitter) -> None:
        """Emit the end of the current group of bulk copies from shared memory (commit_group in PTX).

        An interface method with an empty body: each machine's dialect implements it.
        """

    def drain(self, e: Emitter, pending: int) -> None:
        """Emit the wait until at most `pending` groups of bulk copies still read shared memory.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def load(self, e: Emitter, op: Op) -> bool:
        """Emit the load `op` of a fragment (a register tensor spread over the wave's lanes) by a collective instruction
        of the wave. Return False, and emit nothing, if each lane must load its values by itself.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def store(self, e: Emitter, op: Op) -> bool:
        """Emit the store `op` of a fragment (a register tensor spread over the wave's lanes) by a collective
        instruction of the wave. Return False, and emit nothing, if each lane must store its values by itself.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def load_streaming(self, e: Emitter, address: str, words: int) -> list[str]:
        """Emit a load of 1, 2 or 4 words of 32 bits from global memory, which caches are to evict first, and return the
        words as i32. `address` is a pointer whose value is a multiple of the loaded bytes.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def multiply(self, e: Emitter, op: Op) -> None:
        """Emit the instructions of C += A * B for `op`, an MMA by an atom.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def wait_products(self, e: Emitter, pending: int, sums: tuple[Value, ...]) -> None:
        """Emit the wait until at most `pending` groups of asynchronous multiplications are in flight. `sums` are the
        accumulators that may be used after it.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def fresh_register(self, e: Emitter, number: float, dtype: DType) -> str | None:
        """Emit a constant `number` of type `dtype` in a register of its own, and return it; None if an ordinary
        constant will do.

        Accumulators start this way: if they were copied from another accumulator's register, they would wait for its
        MMA.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def from_lane(self, e: Emitter, value: str, lane: str) -> str:
        """Emit a shuffle, and return its result: the i32 `value` of the lane whose number is `lane`, an LLVM value that
        may differ between lanes.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def as_one_word(self, e: Emitter, word: str) -> str:
        """Emit code that keeps `word`, an i32 with two packed values, in one register: LLVM cannot split the returned
        i32 into a register for each value.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def any_lane(self, e: Emitter, test: str) -> str:
        """Emit a vote: return an i1, the same in all lanes, that is true if the i1 `test` holds in any lane of the
        wave.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def function(self, e: Emitter, name: str, values: list[str], accuracy: Accuracy) -> str | None:
        """Emit the f32 function `name` (such as "exp" or "tanh") of the LLVM values `values`, by the machine's own
        instructions, and return the result. None if there are no such instructions with that accuracy.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def rounds_pairs(self, e: Emitter, kind: DType) -> bool:
        """True if the machine has an instruction that rounds two f32 to two floats of type `kind`. Nothing is emitted.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def pair(self, e: Emitter, low: str, high: str, kind: DType) -> str:
        """Emit the rounding of the f32 values `low` and `high` to type `kind`, and return both as an LLVM vector of two
        elements.

        An interface method with an empty body: each machine's dialect implements it.
        """

    def pair_of_bytes(self, e: Emitter, low: str, high: str) -> str:
        """Emit the conversion of the i8 values `low` and `high` to bf16, and return both as an LLVM vector of two
        elements. It is asked only if the machine rounds pairs to bf16.

        An interface method with an empty body: each machine's dialect implements it.
        """
