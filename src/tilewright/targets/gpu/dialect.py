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
        """Return the text of the LLVM module: the kernel function with its arguments, around the lines that were
        emitted."""

    def thread(self, e: Emitter) -> str:
        """Return the thread's number in its workgroup, an i32."""

    def worker(self, e: Emitter) -> str:
        """Return the workgroup's number, an i32."""

    def workers(self, e: Emitter) -> str:
        """Return the number of workgroups, an i32."""

    def rank(self, e: Emitter) -> str:
        """Return the workgroup's number in its cluster, an i32."""

    def sync_cluster_at_end(self, e: Emitter) -> None:
        """Emit a cluster barrier for all threads: no workgroup ends while another may still access its shared
        memory."""

    def uniform(self, e: Emitter, value: str) -> str:
        """Return an i32 that is the same in all lanes of the wave, in a form that shows it to the machine as
        uniform."""

    def begin(self, e: Emitter, barriers: list[tuple[int, int]]) -> None:
        """Emit the start of the kernel: the first thread initialises the `barriers`, (offset in shared memory,
        arrivals) each; then all threads of the workgroup, or of its cluster, wait for it."""

    def wait_for_previous_launch(self, e: Emitter, allows_next: bool) -> None:
        """Emit the wait for the previous launch of the stream, which may still be running when this one begins. If
        `allows_next`, the next launch may start now and run up to the same wait; else when this one ends."""

    def check_registers(self, roles: list[tuple[int, int | None]]) -> None:
        """Raise ProgramError if the roles need more registers than the machine has; `roles` are (threads, registers of
        each thread or None for the default)."""

    def registers(self, e: Emitter, count: int, threads: int) -> None:
        """Emit the change of the role's register count to `count` for each thread; `threads` is the size of the
        workgroup."""

    def meet(self, e: Emitter, barrier: str, threads: int) -> None:
        """Emit a barrier of `threads` threads that all use the barrier number `barrier`."""

    def together(self, e: Emitter) -> None:
        """Emit a barrier of the wave's lanes, after which each sees the others' writes."""

    def arrive(self, e: Emitter, address: str, everywhere: bool) -> None:
        """Emit one arrival at the counting barrier at `address`; with `everywhere`, at that barrier in each workgroup
        of the cluster."""

    def expect(self, e: Emitter, address: str, count: int) -> None:
        """Make the barrier at `address` also wait for `count` bytes of bulk copies."""

    def keep_registers(self, e: Emitter, fragments: Sequence[Value]) -> None:
        """Keep the registers of `fragments` alive up to here: MMAs of the preceding loop read them in every
        iteration."""

    def force_computed(self, e: Emitter, fragments: Sequence[Value]) -> None:
        """Make sure that the values of `fragments` are computed before the code that follows, even if that waits."""

    def await_(self, e: Emitter, address: str, parity: str) -> None:
        """Emit the wait until the barrier at `address` has completed the phase of that parity."""

    def fence(self, e: Emitter) -> None:
        """Make the lane's stores to shared memory visible to asynchronous copies and multiplications."""

    def copy_in(self, e: Emitter, op: Op) -> None:
        """Emit an asynchronous bulk copy to shared memory, issued by one lane."""

    def copy_lanes(self, e: Emitter, op: Op) -> None:
        """Emit an asynchronous copy of a few contiguous elements to shared memory by each lane."""

    def land(self, e: Emitter, address: str) -> None:
        """Make the barrier at `address` wait for the asynchronous copies that this lane has issued."""

    def copy_out(self, e: Emitter, op: Op) -> None:
        """Emit an asynchronous bulk copy from shared memory, issued by one lane."""

    def seal(self, e: Emitter) -> None:
        """Close the current group of bulk copies from shared memory."""

    def drain(self, e: Emitter, pending: int) -> None:
        """Wait until at most `pending` groups of bulk copies still read shared memory."""

    def load(self, e: Emitter, op: Op) -> bool:
        """Emit the load of a fragment by a collective instruction of the wave; return False if each lane must load by
        itself."""

    def store(self, e: Emitter, op: Op) -> bool:
        """Emit the store of a fragment by a collective instruction of the wave; return False if each lane must store by
        itself."""

    def load_streaming(self, e: Emitter, address: str, words: int) -> list[str]:
        """Load 1, 2 or 4 words of 32 bits which caches evict first, and return them; `address` is a multiple of their
        size."""

    def multiply(self, e: Emitter, op: Op) -> None:
        """Emit a multiplication atom."""

    def settle(self, e: Emitter, pending: int, sums: tuple[Value, ...]) -> None:
        """Wait until at most `pending` groups of asynchronous multiplications are in flight; `sums` are their
        accumulators."""

    def fresh_register(self, e: Emitter, number: float, dtype: DType) -> str | None:
        """Return a constant in a register of its own; None if an ordinary constant will do.

        Accumulators start this way: if they were copied from another accumulator's register, they would wait for its
        MMA.
        """

    def from_lane(self, e: Emitter, value: str, lane: str) -> str:
        """Return the i32 `value` that lane number `lane` has."""

    def as_one_word(self, e: Emitter, word: str) -> str:
        """Return an i32 that holds two packed values, in a form that LLVM cannot split into a register for each."""

    def any_lane(self, e: Emitter, test: str) -> str:
        """Return an i1, the same in all lanes: whether the i1 `test` holds in any lane of the wave."""

    def function(self, e: Emitter, name: str, values: list[str], accuracy: Accuracy) -> str | None:
        """Emit a function of f32 by the machine's own instructions and return the result; None if there are none for
        it."""

    def rounds_pairs(self, e: Emitter, kind: DType) -> bool:
        """True if one instruction rounds two f32 to floats of type `kind`."""

    def pair(self, e: Emitter, low: str, high: str, kind: DType) -> str:
        """Return two f32, rounded to type `kind`, as a vector of two elements."""

    def pair_of_bytes(self, e: Emitter, low: str, high: str) -> str:
        """Return two i8, converted to bf16, as a vector of two elements, on machines that round pairs to bf16."""
