"""MMA in block kernels: a multiplication atom repeated over a tile and over an arrangement of waves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.algebra import size
from tilewright.analysis.distribution import interleaved_layout
from tilewright.block.moving import copy, registers
from tilewright.block.partition import partition
from tilewright.block.tensor import Tensor, tensor_of
from tilewright.block.tracing import number, trace
from tilewright.errors import LayoutError, ProgramError
from tilewright.ir.location import author_location
from tilewright.ir.tensors import Distribution, numbers
from tilewright.limits import written
from tilewright.machine import MultiplyAtom, UnknownName


class Mma:
    """A multiplication atom with an arrangement of waves (in CK: the traits of a blockwise GEMM).

    `waves` = (rows, columns) waves share the tile of C. By default each wave has one contiguous block of C. With
    `interleaved` the waves' atoms alternate, as CK's do: atom (i, j) of a wave is atom (i*rows + wave row, j*columns +
    wave column) of C.
    """

    def __init__(self, atom: str, waves: Sequence[Any] | None = None, *, interleaved: bool = False):
        current = trace("Mma")
        if current.machine is None:
            raise ProgramError(f"the kernel names no machine, so {atom} has no meaning", author_location())
        try:
            self.row: MultiplyAtom = current.machine.multiply_atom(atom)
        except UnknownName as fault:
            raise ProgramError(f"Mma: {fault}", author_location()) from None
        self.atom = atom
        self.waves = None if waves is None else tuple(number(w, "Mma: waves") for w in waves)
        self.interleaved = interleaved

    def a(self, rows: Any, columns: Any) -> Tensor:
        """Emit one `alloc` and return it: an uninitialised register tensor for operand A of shape (rows, columns) = (M,
        K), distributed over threads as the atom reads it. Raise a ProgramError if this Mma is interleaved and the atoms
        of all waves do not divide the shape.
        """
        return self._fragment("a", rows, columns)

    def b(self, rows: Any, columns: Any) -> Tensor:
        """Emit one `alloc` and return it: an uninitialised register tensor for operand B of shape (rows, columns) = (K,
        N), distributed over threads as the atom reads it. Raise a ProgramError if this Mma is interleaved and the atoms
        of all waves do not divide the shape.
        """
        return self._fragment("b", rows, columns)

    def c(self, rows: Any, columns: Any) -> Tensor:
        """Emit one `alloc` and return it: an uninitialised register tensor for the accumulator of shape (rows, columns)
        = (M, N), distributed over threads as the atom writes it. Raise a ProgramError if this Mma is interleaved and
        the atoms of all waves do not divide the shape.
        """
        return self._fragment("c", rows, columns)

    def __call__(self, acc: Tensor, a: Tensor, b: Tensor, *, skip: bool = False) -> None:
        """Emit one `mma`: acc += a * b. With `skip`, operand elements out of bounds of their tensors are left out of
        the sum.
        """
        operands = tuple(tensor_of(t, "mma") for t in (acc, a, b))
        trace("mma").emit("mma", operands, {"atom": self.atom, "skip": skip or None})

    def gemm(self, acc: Tensor, a: Tensor, b: Tensor) -> None:
        """Emit the operations that add a * b^T to the accumulator `acc`, with `a` (M, K) and `b` (N, K) in shared
        memory: CK's blockwise_gemm.

        They are those of `fa, fb = mma.a(M, K), mma.b(K, N)`; `tb.copy(a, fa)`; `tb.copy(b.T, fb)`; `mma(acc, fa, fb)`.
        An operand with three dimensions (K0, M, K1) is viewed as (M, K0*K1) first: `a.merge((1,), (0, 2))`.
        """
        a, b = (operand.merge((1,), (0, 2)) if len(operand.shape) == 3 else operand for operand in (a, b))
        fa, fb = self.a(*a.shape), self.b(*b.shape[::-1])
        copy(a, fa)
        copy(b.T, fb)
        self(acc, fa, fb)

    def _fragment(self, which: str, rows: Any, columns: Any) -> Tensor:
        """Emit one `alloc` and return it: an uninitialised register tensor of shape (rows, columns) for operand `which`
        ("a", "b" or "c"), distributed over the threads as the atom needs it.

        Raise a ProgramError if this Mma is interleaved and the atoms of all waves do not divide the shape.
        """
        operand = getattr(self.row, which)
        distribution = Distribution(operand=f"{self.atom}.{which}", waves=self.waves)
        if self.interleaved:
            shape = numbers((number(rows, "Mma: rows"), number(columns, "Mma: columns")), f"{self.atom}.{which}")
            waves = (1, 1) if self.waves is None else numbers(self.waves, "Mma: waves")
            try:
                distribution = Distribution(layout=interleaved_layout(self.row, which, shape, waves))
            except LayoutError as fault:
                raise ProgramError(f"Mma: {fault}", author_location(2)) from None
        return registers(operand.dtype, (rows, columns), distribution, fallback=f"fragment_{which}")


def blockwise_copy(
    source: Tensor,
    target: Tensor,
    threads: Any,
    vector: tuple[int, int] | None = None,
    *,
    otherwise: Any = None,
) -> None:
    """Emit one `alloc` of registers and two copies, from `source` to the registers and on to `target`. Each thread
    moves a contiguous block: CK's blockwise_copy.

    `threads` is a layout from thread coordinates to thread numbers, with one mode for each dimension. `vector` =
    (dimension, elements) chooses the copy atom in which a lane moves that many elements along that dimension; without
    it no atom is named. `otherwise` replaces source elements out of bounds. Raise a ProgramError if `vector` does not
    divide the elements of a thread along its dimension, or if the machine has no such atom, and a BadPartition if the
    threads do not divide the tile.
    """
    for tensor in (source, target):
        tensor_of(tensor, "blockwise_copy")
    pair: Any = vector
    if pair is not None and (not isinstance(pair, tuple | list) or len(pair) != 2):
        text = f"blockwise_copy: vector={written(vector, 80)} is no pair (dimension, elements)"
        raise ProgramError(text, author_location())
    extents = tuple(target.shape)
    owners = partition(extents, threads, "block", None if vector is None else vector[0])
    if vector is not None:
        length = int(extents[vector[0]]) // size(threads, vector[0])
        if length % vector[1]:
            raise ProgramError(
                f"blockwise_copy: vector={vector}: each thread has {length} elements along dimension {vector[0]}, "
                f"which are no multiple of {vector[1]}",
                author_location(),
            )
    staged = registers(target.dtype, extents, owners, fallback="staged")
    copy(source, staged, otherwise=otherwise, by=_lane_atom(source, staged, vector))
    copy(staged, target, by=_lane_atom(staged, target, vector))


def _lane_atom(source: Tensor, target: Tensor, vector: tuple[int, int] | None) -> str | None:
    """Return the name of the copy atom with which each lane moves `vector[1]` elements from the memory of `source` to
    the memory of `target`; None if `vector` is None.

    Raise a ProgramError if the kernel's machine has no atom of this width.
    """
    if vector is None:
        return None
    machine = trace("blockwise_copy").machine
    if machine is None or machine.lanes is None:
        raise ProgramError("blockwise_copy: vector= needs a machine whose lanes have addresses", author_location(2))
    spaces = [getattr(t.type, "space", "register") for t in (source, target)]
    wave_bytes = vector[1] * target.dtype.bits // 8 * machine.lanes
    atoms = machine.copies_between(*spaces)
    for atom in atoms:
        if atom.bytes_moved == wave_bytes:
            return atom.name
    widths = sorted({a.bytes_moved // machine.lanes * 8 // target.dtype.bits for a in atoms if a.bytes_moved} - {0})
    raise ProgramError(
        f"blockwise_copy: vector={vector}: a lane of {machine.name} moves {', '.join(map(str, widths))} elements of "
        f"{target.dtype} from {spaces[0]} to {spaces[1]} memory at once, not {vector[1]}",
        author_location(2),
    )
