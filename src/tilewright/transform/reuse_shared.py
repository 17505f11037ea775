"""Reuse of shared memory: tensors that are never needed at the same time share one allocation, if memory is short.

tasks t in 0..1 {                           tasks t in 0..1 {
                                              %room = alloc shared bf16 (128, 64)
  for k in 0..9 {                             for k in 0..9 {
    %a = alloc shared bf16 (128, 64)            %a = view %room (i0 128, i1 64) -> [i0, i1]
    ...                                         ...
  for l in 0..9 {                             for l in 0..9 {
    %b = alloc shared bf16 (124, 64)            %b = view %room (i0 124, i1 64) -> [i0, i1]

Here %b belongs to the last block of a task, which has fewer rows and is emitted separately. Waves synchronise after
each operation on shared memory, so a tensor is written only after all reads of the one before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.algebra.expr import Const, as_expr, index
from tilewright.analysis.thread_layout import frames_of
from tilewright.analysis.views import Places
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Block, Op, Program, Value, walk_block
from tilewright.ir.tensors import TensorType
from tilewright.machine import Machine
from tilewright.transform.spill_shared import put_views


@dataclass
class SharedRoom:
    """An allocation of shared memory, the tensors that share it, and the index of the operation until
    which it is used.
    """

    first: TensorType
    sizes: list[int]
    tensors: list[Op]
    until: int

    def takes(self, kind: TensorType) -> bool:
        """True if a tensor of type `kind` can share the allocation: it has the same element type and the same number of
        dimensions.
        """
        return kind.dtype is self.first.dtype and len(kind.shape) == len(self.sizes)

    def growth(self, kind: TensorType) -> int:
        """Return the number of elements by which the extents of the allocation would have to grow for a tensor of type
        `kind`, summed over the dimensions. For a tensor of (60, 16), an allocation of (64, 8) would have to grow by 8.
        Return 0 if the tensor fits.
        """
        return sum(max(0, int(n) - m) for n, m in zip(kind.shape, self.sizes, strict=True))

    def add(self, op: Op, until: int) -> None:
        """Record that the tensor which `op` allocates shares this allocation, until the operation with index `until`.
        The allocation's extents grow to those of the tensor if they are smaller.
        """
        self.sizes = [max(int(n), m) for n, m in zip(op.attrs["type"].shape, self.sizes, strict=True)]
        self.tensors.append(op)
        self.until = until

    def place(self, block: Block) -> dict[Op, Op]:
        """Insert the shared allocation at the start of `block`, in place. Return {`alloc` operation of a tensor that
        shares it: view of the shared allocation}; the views are not inserted.
        """
        shape = tuple(map(as_expr, self.sizes))
        kind = self.first if self.first.shape == shape else TensorType("shared", self.first.dtype, shape)
        tensor = Value(kind, "_".join((*(op.results[0].name or "" for op in self.tensors[:2]), "room")))
        block.ops.insert(0, Op(BLOCK.ops["alloc"], (), {"type": kind}, (tensor,), loc=self.tensors[0].loc))
        views = {}
        for op in self.tensors:
            over = tuple(index(f"i{n}", extent) for n, extent in enumerate(op.attrs["type"].shape))
            attrs = {"over": over, "at": tuple((i, False) for i in over)}
            views[op] = Op(BLOCK.ops["view"], (tensor,), attrs, op.results, loc=op.loc)
        return views


def reuse_shared_memory(program: Program, machine: Machine) -> None:
    """Let tensors in shared memory that are never needed at the same time share one allocation of the task, by changing
    the block program in place. Only tensors of constant size, without a swizzle, and with the same element type and
    number of dimensions share. Nothing changes in a program without tasks. `machine` decides which tensors lanes hold
    in registers; those do not share.
    """
    tasks = next((op for op in program.body.ops if op.name == "tasks"), None)
    if tasks is None:
        return
    places = Places(program, program.makers())
    in_registers = frames_of(program, places, machine).tensors
    rooms: list[SharedRoom] = []
    for op, life in sorted(_lives(tasks.blocks[0], places), key=lambda op_and_life: op_and_life[1].start):
        kind = op.attrs["type"]
        if not _is_plain(kind) or op.results[0] in in_registers:
            continue
        free = [room for room in rooms if room.until <= life.start and room.takes(kind)]
        if free:
            min(free, key=lambda room: room.growth(kind)).add(op, life.stop)
        else:
            rooms.append(SharedRoom(kind, [int(n) for n in kind.shape], [op], life.stop))
    views: dict[Op, Op] = {}
    for room in rooms:
        if len(room.tensors) > 1:
            views |= room.place(tasks.blocks[0])
    put_views(program, views)


def _lives(block: Block, places: Places, before: int = 0) -> Iterator[tuple[Op, range]]:
    """Yield (`alloc` operation, range of the indices of the operations from its first to its last use) for the tensors
    allocated in `block` and in the blocks inside it. A tensor without a use is left out. Tensors of inner blocks come
    first.

    Operations are numbered in program order; the first of `block` has the number `before`. A tensor that is used inside
    a loop or branch, but allocated outside, is needed for all of the loop or branch. `places` finds the tensor below
    views.
    """
    spans: dict[Op, range] = {}
    used: dict[Value, list[Op]] = {}
    for op in block.ops:
        first, before = before, before + 1
        for inner in op.blocks:
            yield from _lives(inner, places, before)
            before += sum(1 for _ in walk_block(inner))
        spans[op] = range(first, before)
        for value in (v for x in (op, *(x for b in op.blocks for x in walk_block(b))) for v in x.operands):
            used.setdefault(places.root(value), []).append(op)
    for op in block.ops:
        users = used.get(op.results[0]) if op.name == "alloc" else None
        if users:
            yield op, range(spans[users[0]].start, spans[users[-1]].stop)


def _is_plain(kind: object) -> bool:
    """True if `kind` is the type of a tensor in memory with constant extents and without a swizzle."""
    return isinstance(kind, TensorType) and kind.swizzle is None and all(isinstance(n, Const) for n in kind.shape)
