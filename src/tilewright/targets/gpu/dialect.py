"""What a machine must say in its own words: each method writes the instructions of one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter


Accuracy = Literal["full", "coarse", "absolute"]
"""How good a function must be: to two units in the last place; to 2^-17 of its value, results below 2^-126 being 0; or
to some 2^-22, whatever its value."""


class Dialect(Protocol):
    """The instructions of one machine; texts are LLVM values, addresses in shared memory are i32."""

    waves_together: int
    """Roles begin at multiples of so many waves, where one says how many registers it has, or multiplies by many."""

    def module(self, e: Emitter) -> str:
        """The module: the kernel with its arguments around the lines that were written."""

    def thread(self, e: Emitter) -> str:
        """The thread's number in its workgroup."""

    def worker(self, e: Emitter) -> str:
        """The workgroup's number."""

    def workers(self, e: Emitter) -> str:
        """How many workgroups there are."""

    def rank(self, e: Emitter) -> str:
        """The workgroup's number in its cluster."""

    def together_at_the_end(self, e: Emitter) -> None:
        """All threads of the cluster meet: none ends while another may still reach into its memory."""

    def uniform(self, e: Emitter, value: str) -> str:
        """A number that is the same in all lanes of the wave, so that the machine knows it is."""

    def begin(self, e: Emitter, barriers: list[tuple[int, int]]) -> None:
        """The first thread prepares barriers, (offset, arrivals); then the workgroup, or its cluster, meets."""

    def after_the_launch_before(self, e: Emitter, lets_in: bool) -> None:
        """Waits for the launch before, which may still go on; the next one may begin as far as this now, or at the
        end."""

    def check_registers(self, roles: list[tuple[int, int | None]]) -> None:
        """Raises where roles, (threads, registers of each or None), ask for more registers than there are."""

    def registers(self, e: Emitter, count: int, threads: int) -> None:
        """The role has so many registers from here on; `threads` are those of the workgroup."""

    def meet(self, e: Emitter, barrier: str, threads: int) -> None:
        """Threads that name the same barrier meet."""

    def together(self, e: Emitter) -> None:
        """The lanes of the wave meet: what each did before, all see."""

    def arrive(self, e: Emitter, address: str, everywhere: bool) -> None:
        """One arrival at a counting barrier, or at the same one of each workgroup of the cluster."""

    def expect(self, e: Emitter, address: str, count: int) -> None:
        """The barrier waits for so many bytes too."""

    def kept(self, e: Emitter, fragments: Sequence[Value]) -> None:
        """The lane's values of these, which products of a loop took in every round, were needed until here."""

    def computed(self, e: Emitter, fragments: Sequence[Value]) -> None:
        """The lane's values of these are computed before what follows, if it waits."""

    def await_(self, e: Emitter, address: str, parity: str) -> None:
        """Until the phase of that parity is complete."""

    def fence(self, e: Emitter) -> None:
        """What the lane stored is there for what goes on by itself."""

    def copy_in(self, e: Emitter, op: Op) -> None:
        """A copy to shared memory that goes on by itself, by one lane."""

    def copy_lanes(self, e: Emitter, op: Op) -> None:
        """A copy of a few neighbours to shared memory that goes on by itself, by each lane."""

    def land(self, e: Emitter, address: str) -> None:
        """The barrier waits for what the lane has begun to copy."""

    def copy_out(self, e: Emitter, op: Op) -> None:
        """A copy from shared memory that goes on by itself, by one lane."""

    def seal(self, e: Emitter) -> None:
        """Closes a group of copies out."""

    def drain(self, e: Emitter, pending: int) -> None:
        """Until at most so many groups of copies still read."""

    def load(self, e: Emitter, op: Op) -> bool:
        """Loads a fragment by an instruction of the wave's own; False: by each lane's loads."""

    def store(self, e: Emitter, op: Op) -> bool:
        """Stores a fragment by an instruction of the wave's own; False: by each lane's stores."""

    def load_streaming(self, e: Emitter, address: str, words: int) -> list[str]:
        """So many i32, 1, 2 or 4, which caches evict first; the address is a multiple of their size."""

    def multiply(self, e: Emitter, op: Op) -> None:
        """A product."""

    def settle(self, e: Emitter, pending: int, sums: tuple[Value, ...]) -> None:
        """Until at most so many groups of products are under way."""

    def own_register(self, e: Emitter, number: float, dtype: DType) -> str | None:
        """A number in a register of its own, written here; None: it may as well be a constant.

        Sums begin so: a copy from another sum's register would make it wait for that one's products.
        """

    def from_lane(self, e: Emitter, value: str, lane: str) -> str:
        """An i32 of another lane."""

    def whole(self, e: Emitter, word: str) -> str:
        """An i32 that holds two values and stays one: LLVM would have a register for each where it depends on a
        condition what they are."""

    def any(self, e: Emitter, test: str) -> str:
        """Whether a test, an i1, holds in some lane of the wave: the same i1 in all of them."""

    def function(self, e: Emitter, name: str, values: list[str], accuracy: Accuracy) -> str | None:
        """A function of f32 that the machine has instructions for."""

    def rounds_pairs(self, e: Emitter, kind: DType) -> bool:
        """Whether two f32 are rounded to floats of a smaller type by one instruction."""

    def pair(self, e: Emitter, low: str, high: str, kind: DType) -> str:
        """Two f32 rounded to a vector of two elements of such a type."""

    def pair_of_bytes(self, e: Emitter, low: str, high: str) -> str:
        """Two i8 as a vector of two bfloat, where pairs are rounded to that type."""
