"""Which tensors of a task lie in registers, and how their elements are distributed over the lanes of all its waves.

A block program stores the result of one operation for the next in shared memory. If every operation accesses such a
tensor element by element, or reduces it along a dimension, no lane needs an element of another lane: each lane keeps
its own elements in registers. One rule makes this possible: *equal dimensions are distributed equally*. Dimensions are
equal if an operation iterates over them with one axis. Then a map moves no data; a reduction combines values, then
lanes, then waves, and its result is known to all lanes that share a row.

    %v = alloc shared f32 (4, 1024)         M: 4 waves, N: 32 lanes x 4 contiguous elements x 8 vectors
    reduce %v -> %sum along 1               %sum is over M: the same in all lanes of a wave
    map %w = %v/%sum_view                   every lane has its operands

A dimension that is contiguous in global memory is distributed in vectors of 16 bytes, adjacent vectors to adjacent
lanes. Extents need not divide: lanes past the end load nothing. A tensor that is read at shifted coordinates
(`shifted`; such a tensor is called a window) is not distributed along them: every lane has all of it, if that is no
more than a few vectors where it is contiguous.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple

import numpy as np

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr, index
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.analysis.needless_barriers import needless
from tilewright.analysis.shifted import Seen, Shifted, composed_access, shifted_of
from tilewright.analysis.views import Places
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.tensors import RegisterType, TensorType, numbers
from tilewright.limits import VECTOR
from tilewright.machine import Machine

VECTORS = 3
"""The least number of vectors of a row that a lane has before several lanes share the row: lanes reduce their own
elements first."""


@dataclass(frozen=True, eq=False)
class Dim:
    """A dimension of a task: `extent` coordinates in vectors of `width` contiguous elements, distributed over `threads`
    threads whose numbers differ by `stride`.
    """

    extent: int
    width: int
    threads: int
    stride: int

    @property
    def vectors(self) -> int:
        """Return the number of vectors of this dimension that each lane has, rounded up."""
        return -(-self.extent // (self.width * self.threads))

    @property
    def ragged(self) -> bool:
        """Return True if some lanes have vectors past the end: the extent is no multiple of the vector width times the
        number of threads.
        """
        return self.extent % (self.width * self.threads) != 0

    def thread_index(self, wave: Expr, lane: Expr, lanes: int) -> Expr:
        """Return the index of a lane among the threads of this dimension, from 0 to `self.threads` - 1, as an
        expression.

        `wave` is the number of the lane's wave, `lane` the lane's number in this wave; `lanes` is the number of lanes
        of a wave.
        """
        if self.stride >= lanes:
            return wave // (self.stride // lanes) % self.threads
        in_wave = lanes // self.stride
        if self.threads <= in_wave:
            return lane // self.stride % self.threads
        return lane // self.stride + in_wave * (wave % (self.threads // in_wave))


Dims = tuple[Dim, ...]
"""The dimensions of a lane's values: vectors of the first dimension slowest, elements within a vector fastest."""


def held(dims: Dims) -> int:
    """Return the number of values that a lane has of a tensor whose dimensions are distributed as `dims`, values past
    the end included.
    """
    return prod(d.vectors * d.width for d in dims)


def digits(dims: Dims) -> list[tuple[Dim, bool, int]]:
    """Return the digits (mixed-radix parts) of the index of a lane's value over `dims`, slowest first, as triples.

    A triple is (dimension, False for vectors or True for elements within a vector, number of them). The vectors of all
    dimensions come before the elements.
    """
    return [*((d, False, d.vectors) for d in dims), *((d, True, d.width) for d in dims if d.width > 1)]


def matching_values(dims: Dims, of: Dims) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return an int array that gives, for each of a lane's values over `dims`, the number of its value over `of` with
    the same coordinates.

    `of` are some of the dimensions `dims`. The array says how a tensor over `of` is broadcast over `dims`.

    >>> rows, columns = Dim(2, 1, 1, 1), Dim(8, 2, 1, 1)
    >>> matching_values((rows, columns), (rows,)).tolist()
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    outer = digits(dims)
    count = held(dims)
    grid = np.indices([n for _, _, n in outer]).reshape(len(outer), count)
    index = np.zeros(count, np.int64)
    digit_values = {(d, fast): values for (d, fast, _), values in zip(outer, grid, strict=True)}
    for d, fast, n in digits(of):
        index = index * n + digit_values[d, fast]
    return index


@dataclass(frozen=True)
class Turn:
    """A transposing copy: operand number `operand` is contiguous along axis `source`, the written tensor along axis
    `target`.
    """

    operand: int
    source: int
    target: int


LEAST = 8
"""The least extent of both axes for which a tile is transposed."""


class Frames:
    """Which tensors of a block program lie in registers, and how the axes of each operation are distributed."""

    def __init__(self, program: Program, chain: Places, threads: int, machine: Machine):
        self._chain, self.threads, self.lanes = chain, threads, machine.lanes or 1
        self.access, self.registers = machine.lane_access, machine.register_file
        self.tensors: dict[Value, tuple[Dim | None, ...]] = {}
        """For each tensor in registers, its dimensions; None for a dimension of extent 1."""
        self.axes: dict[Op, tuple[Dim | None, ...]] = {}
        """For each operation on registers, the dimension of each axis that it iterates over; None for extent 1."""
        self.transposes: dict[Op, Turn] = {}
        """Operations from memory to memory whose source is transposed on the way."""
        self.followed: set[Op] = set()
        """Reductions over several waves that need no barrier between iterations: another reduction has one."""
        self.stored: set[Op] = set()
        """Reductions whose result is only stored to memory: only the lanes that store it need it."""
        self.has_private_memory = False
        """True if no lane reads what another lane stored: memory that is written is used by one operation only."""
        self.needless: set[Op] = set()
        """Barriers that are not needed, because what was accessed since the last one lies in registers."""
        if threads > 0 and threads & (threads - 1) == 0:
            self._assign_registers(program)
            self.needless = needless(program, chain, self.tensors)

    def _assign_registers(self, program: Program) -> None:
        """Decide which tensors of `program` lie in registers, and how each operation's axes are distributed over lanes.

        Nothing is returned; the fields of this object are set: `tensors`, `axes`, `transposes`, `followed`, `stored`
        and `has_private_memory`.
        """
        as_bits = {self._chain.root(op.operands[0]) for op in program.walk() if op.name == "bitcast"}
        plain_tensors = [
            op.results[0]
            for op in program.walk()
            if op.name == "alloc" and _is_plain(op.attrs["type"]) and op.results[0] not in as_bits
        ]
        ops = [op for op in program.walk() if op.name not in ("alloc", "view", "bitcast", "barrier", "let")]
        candidates = dict.fromkeys(plain_tensors)
        for op in ops:
            for number, value in enumerate(op.operands):
                root = self._chain.root(value)
                if root in candidates and not self._can_hold_operand(op, number):
                    del candidates[root]
        distributable = [op for op in ops if is_framed(op)]
        classes, dims = self._distribute(program, distributable, candidates)
        for op in distributable:
            axes = tuple(dims.get(classes.find((op, i))) for i in range(len(box(op))))
            uses_registers = any(self._chain.root(v) in self.tensors for v in op.operands)
            if op.name == "scan":
                if held(tuple(d for d in axes if d is not None)) <= self.registers.tensor_values:
                    self.axes[op] = axes
                continue
            if op.name == "reduce" and not uses_registers:
                result_dims = tuple(d for i, d in enumerate(axes) if d is not None and i != op.attrs["along"])
                if held(result_dims) > self.registers.lane_values:  # no lane has registers for that number of results
                    continue
            turn = None if uses_registers or op.name not in ("map", "copy") else self._find_transpose(op)
            if turn is not None:
                self.transposes[op] = turn
            elif op.name == "reduce" or uses_registers or classes.is_together(op, axes):
                self.axes[op] = axes

        self.stored = {op for op in self.axes if op.name == "reduce" and self._is_only_stored(op, ops)}
        self.has_private_memory = self._has_private_memory(ops)
        self._collect_followed(program.body)

    def _distribute(
        self, program: Program, distributable: list[Op], candidates: dict[Value, None]
    ) -> tuple[_Classes, dict[Node, Dim]]:
        """Distribute tensors over lanes; return (classes of axes that are distributed equally, {class: its Dim}).

        `candidates` are the tensors to distribute, `distributable` the operations that may work on registers. Both are
        changed: tensors that cannot be distributed, and windows that do not fit registers, are removed from
        `candidates`; an operation with two axes in one class is removed from `distributable`. The field `tensors` of
        this object is set.
        """
        while True:
            classes = _Classes(self, distributable, candidates)
            conflict, dropped = classes.conflict(), classes.windows_across_lanes()
            if conflict is not None:
                distributable.remove(conflict)
                dropped = {self._chain.root(v) for v in conflict.operands}
            elif not dropped:
                dims = classes.dims()
                self.tensors = {t: classes.dims_of(t, dims) for t in candidates}
                self._keep_within_registers(program, classes.windows)
                dropped = {t for t in classes.windows if t not in self.tensors}
                if not dropped:
                    return classes, dims
            for tensor in dropped:
                candidates.pop(tensor, None)

    def _can_hold_operand(self, op: Op, number: int) -> bool:
        """Return True if lanes can hold operand number `number` of `op` in registers.

        They can if `op` accesses the operand element by element. They also can if `op` is a map or copy that only reads
        the operand at shifted coordinates, such as x[i + 1], and if these coordinates involve all axes of `op`.
        """
        through = self.through(op.operands[number])
        if not is_framed(op) or through is None:
            return False
        shifts = [seen for seen in through if isinstance(seen, Shifted)]
        if not shifts:
            return True
        if op.name not in ("map", "copy") or number == target_number(op):
            return False
        axes = [seen for seen in through if isinstance(seen, int)] + [axis for seen in shifts for axis, _ in seen.steps]
        single = [i for i, e in enumerate(box(op)) if e is as_expr(1)]
        return {*axes, *single} == set(range(len(box(op))))  # nobody else reads the same

    def _collect_followed(self, block: Block) -> None:
        """Add to `self.followed` the reductions over several waves in `block` that need no barrier between loop
        iterations.

        If a block has two or more such reductions, the barrier of one separates two runs of another. Blocks within
        `block` are visited too.
        """
        reductions = [op for op in block.ops if op.name == "reduce" and self.waves_per_row(op) > 1]
        self.followed |= set(reductions) if len(reductions) > 1 else set()
        for op in block.ops:
            for inner in op.blocks:
                self._collect_followed(inner)

    def _is_only_stored(self, op: Op, ops: Sequence[Op]) -> bool:
        """Return True if the result of the reduction `op` is only stored to memory, by maps and copies over all axes
        that are not reduced.

        Return True also if the result is not in registers; return False if `op` adds to the former contents of its
        result. `ops` are all operations of the program.
        """
        result = self._chain.root(op.operands[1])
        if op.attrs.get("accumulate"):
            return False
        if result not in self.tensors:
            return True
        result_dims = {d for i, d in enumerate(self.axes[op]) if d is not None and i != op.attrs["along"]}
        for user in ops:
            if user is op or result not in {self._chain.root(v) for v in user.operands}:
                continue
            target = self._chain.root(user.operands[target_number(user)])
            if user.name not in ("map", "copy") or user not in self.axes or target in self.tensors:
                return False
            if {d for d in self.axes[user] if d is not None} != result_dims:
                return False
        return True

    def waves_per_row(self, op: Op) -> int:
        """Return the number of waves that share a row (the elements along the reduced axis) of the reduction `op`.

        Return 1 if each wave has whole rows, or if `op` does not work on registers.
        """
        reduced = self.axes[op][op.attrs["along"]] if op in self.axes else None
        return 1 if reduced is None else reduced.stride * reduced.threads // max(self.lanes, reduced.stride)

    def _find_transpose(self, op: Op) -> Turn | None:
        """Return the Turn (operand number, its contiguous axis, the target's contiguous axis) of a transposing map or
        copy `op`.

        The operand is the first one that is contiguous along another axis than the target, if both axes have at least 8
        (LEAST) elements. Return None if there is no such operand.
        """
        axes = tuple(index(f"axis{i}", int(e)) for i, e in enumerate(box(op)))
        written_operand = target_number(op)
        target = self.contiguous_axis(op.operands[written_operand], axes)
        for i, value in enumerate(op.operands):
            source = self.contiguous_axis(value, axes) if i != written_operand else None
            if source is None or target is None or source == target:
                continue
            if min(int(axes[source].hi), int(axes[target].hi)) + 1 >= LEAST:
                return Turn(i, source, target)
        return None

    def _has_private_memory(self, ops: Sequence[Op]) -> bool:
        """Return True if no lane can read what another lane stored.

        That is so if each tensor in memory that may be written is an argument that only one of the operations `ops`
        uses.
        """
        memory = [v for op in ops for v in {self._chain.root(v) for v in op.operands} if isinstance(v.type, TensorType)]
        uses = Counter(v for v in memory if v not in self.tensors and v.type.role != "in")
        return all(count == 1 and v.type.role is not None for v, count in uses.items())

    def _keep_within_registers(self, program: Program, windows: Collection[Value]) -> None:
        """Remove the largest tensors from `self.tensors` until the tensors that are live at once fit a lane's
        registers.

        `program` tells which tensors are live at once. `windows` are the tensors that are read at shifted coordinates;
        lanes hold them packed as in memory, several values to a register.
        """
        sizes = {t: held(tuple(d for d in dims if d is not None)) for t, dims in self.tensors.items()}
        registers = self.registers  # windows are held as they lie in memory, so that several values of theirs share one
        sizes |= {t: -(-sizes[t] * t.type.dtype.numpy.itemsize // registers.word_bytes) for t in windows}
        budget = min(registers.lane_values, registers.core_values // self.threads)

        def too_large() -> bool:
            """True if the largest tensor, or all tensors live at once, need too many registers."""
            largest_size = max((n for t, n in sizes.items() if t not in windows), default=0)
            return (
                largest_size > min(registers.tensor_values, budget // 2)
                or _live_registers(program.body, sizes) > budget
            )

        while sizes and too_large():
            largest = max(sizes, key=lambda t: sizes[t])
            del sizes[largest], self.tensors[largest]

    def is_argument(self, value: Value) -> bool:
        """Return True if `value` is an argument of the program, or a view of one."""
        return self._chain.makers.get(self._chain.root(value)) is None

    def root(self, value: Value) -> Value:
        """Return the tensor below all views and bitcasts of `value`; `value` itself if it is neither a view nor a
        bitcast.
        """
        return self._chain.root(value)

    def through(self, value: Value) -> tuple[Seen, ...] | None:
        """Return how the view `value` accesses each dimension of the tensor below it, as a tuple.

        An entry is the number of the view's axis that covers the dimension, a `Shifted` coordinate (constant plus steps
        along axes), or None for extent 1. A `value` that is no view covers its dimensions in order: (0, 1, 2). Return
        None if a dimension is accessed in another way, or if a bitcast is between `value` and the tensor.
        """
        op = self._chain.makers.get(value)
        if op is None or op.name not in ("view", "bitcast"):
            return tuple(range(len(value.type.shape)))
        below = self.through(op.operands[0]) if op.name == "view" else None
        if below is None:
            return None
        over, shape, base = op.attrs["over"], value.type.shape, op.operands[0].type.shape
        seen: list[Seen] = []
        for (e, may_leave), size in zip(op.attrs["at"], base, strict=True):
            if isinstance(e, Symbol) and e in over and not may_leave and shape[over.index(e)] is size:
                seen.append(over.index(e))
            elif isinstance(e, Const) and e.value == 0 and size is as_expr(1):
                seen.append(None)
            elif not may_leave and (shift := shifted_of(e, over)) is not None:
                seen.append(shift)
            else:
                return None
        return tuple(composed_access(x, seen) for x in below)

    def contiguous_axis(self, value: Value, axes: Sequence[Symbol], *, shared: bool = False) -> int | None:
        """Return the index in `axes` of the axis along which `value` is contiguous in memory; None if there is none.

        `axes` has a symbol for each dimension of `value`. Return None also unless `value` is a packed (row-major)
        argument or a view of one; with `shared`, an unswizzled tensor that the program allocates counts too.
        """
        coordinates, tensor = self._coordinates(value, axes, shared)
        if tensor is None:
            return None
        for number, s in enumerate(axes):
            if _coefficient(coordinates[-1], s) == 1 and not any(s in e.symbols for e in coordinates[:-1]):
                return number
        offset = _offset(coordinates, tensor)  # rows may run on
        return next((number for number, s in enumerate(axes) if _coefficient(offset, s) == 1), None)

    def steps(self, value: Value, axes: Sequence[Symbol]) -> list[int | None]:
        """Return the stride of `value` along each of `axes`, in elements of the argument of which it is a view.

        `axes` has a symbol for each dimension of `value`. An entry is None if `value` is broadcast along the axis, if
        the stride is not a constant, or if `value` is no view of a packed (row-major) argument.
        """
        coordinates, tensor = self._coordinates(value, axes, False)
        offset = None if tensor is None else _offset(coordinates, tensor)
        return [None if offset is None else _coefficient(offset, s) for s in axes]

    def axes_of(self, value: Value, axes: Sequence[Symbol]) -> set[Symbol]:
        """Return the set of those `axes` on which the memory coordinates of `value` depend.

        `value` is broadcast along all other axes. `axes` has a symbol for each dimension of `value`.
        """
        coordinates, _ = self._coordinates(value, axes, True)
        return {s for e in coordinates for s in e.symbols if s in axes}

    def alignment(self, value: Value, axes: Sequence[Symbol], row_axis: int) -> int:
        """Return the greatest number of elements that is known to divide the memory offset of each row of `value`; 1 if
        none is known.

        Rows run along axis number `row_axis` of `axes`, which has a symbol for each dimension of `value`. Rows at the
        offsets 0, 24 and 48 give 24.
        """
        coordinates, tensor = self._coordinates(value, axes, True)
        return (
            1 if tensor is None else Substitution({axes[row_axis]: as_expr(0)})(_offset(coordinates, tensor)).multiple
        )

    def _coordinates(self, value: Value, axes: Sequence[Symbol], shared: bool) -> tuple[tuple[Expr, ...], Value | None]:
        """Return (coordinates, tensor): the element at `axes` of `value` is the element at `coordinates` of `tensor`.

        `axes` has a symbol for each dimension of `value`. Views of views are followed: for `x[i + 4]`, a view of x over
        i, and the axis s, the result is ((s + 4,), x). For a `value` that is no view, the coordinates are `axes`.

        `tensor` is None unless it is a packed (row-major) argument or, with `shared`, an allocated unswizzled tensor
        with constant extents; it is None for a tensor of rank 0 too.
        """
        coordinates: tuple[Expr, ...] = tuple(axes)
        op = self._chain.makers.get(value)
        while op is not None and op.name == "view":
            images = Substitution(dict(zip(op.attrs["over"], coordinates, strict=True)))
            coordinates = tuple(images(self._chain.expanded(e)) for e, _ in op.attrs["at"])
            value = op.operands[0]
            op = self._chain.makers.get(value)
        is_memory = op is None or (shared and op.name == "alloc" and _is_plain(value.type))
        return coordinates, value if is_memory and coordinates and value.type.strides is None else None


def _offset(at: tuple[Expr, ...], argument: Value) -> Expr:
    """Return the flat row-major index of the coordinates `at` in the packed tensor `argument`, as an expression.

    In a tensor with 8 columns, (i, j) gives 8*i + j.
    """
    shape = argument.type.shape
    rows = (e * prod(shape[dim + 1 :], start=as_expr(1)) for dim, e in enumerate(at))
    return sum(rows, start=as_expr(0))


def _live_registers(block: Block, sizes: Mapping[Value, int]) -> int:
    """Return the number of a lane's registers that the tensors allocated in `block` need at once.

    `sizes` is {tensor: its registers}; tensors without an entry count 0. Nested blocks count too; of the blocks of all
    `if` operations only the one with the most registers counts.
    """
    allocated = sum(sizes.get(op.results[0], 0) for op in block.ops if op.name == "alloc")
    inner = [(op.name, _live_registers(inner_block, sizes)) for op in block.ops for inner_block in op.blocks]
    return (
        allocated
        + sum(count for name, count in inner if name != "if")
        + max((count for name, count in inner if name == "if"), default=0)
    )


def frames_of(program: Program, chain: Places, machine: Machine) -> Frames:
    """Return the Frames of `program`: which tensors lie in registers, and how the axes of operations are distributed.

    Nothing is distributed on a machine without lanes (a CPU), if the number of threads is no power of two, or if waves
    have roles (producer, consumer). `chain` resolves views to the tensors below.
    """
    record, roles = program.record("waves"), any(op.name == "role" for op in program.body.ops)
    waves = 1 if record is None else numbers((record.attrs["count"],), "waves")[0]
    return Frames(program, chain, 0 if roles or machine.lanes is None else waves * machine.lanes, machine)


def _coefficient(e: Expr, axis: Symbol) -> int | None:
    """Return the coefficient of the symbol `axis` in `e`, as an int: 3*i + j -> 3 for i.

    Return None if `e` does not depend on `axis`, if `e` is not linear in `axis`, or if the coefficient is not a
    constant.
    """
    linear = linear_form(e, [axis]) if axis in e.symbols else None
    coefficient = None if linear is None else linear[0].get(axis)
    return coefficient.value if isinstance(coefficient, Const) else None


def box(op: Op) -> tuple[Expr, ...]:
    """Return the extents over which `op`, an elementwise operation, a reduction or a scan, iterates: the shape of its
    first operand.

    For a reduction the first operand is the source.
    """
    shape: tuple[Expr, ...] = op.operands[0].type.shape
    return shape


def target_number(op: Op) -> int:
    """Return the number of the operand that `op`, a map, a copy or a fill, writes: 1 for a copy, else 0."""
    return 1 if op.name == "copy" else 0


def operand_axes(op: Op, number: int) -> tuple[int, ...]:
    """Return a tuple with the axis of `op` for each dimension of its operand number `number`: (0, 1, ...) for most
    operands.

    The result of a reduction lacks the reduced axis: a reduction of (M, N, K) along axis 1 gives (0, 2) for its result.
    """
    axes = range(len(box(op)))
    return tuple(i for i in axes if not (op.name == "reduce" and number == 1 and i == op.attrs["along"]))


def is_framed(op: Op) -> bool:
    """Return True if `op` can work on registers: an elementwise operation, a reduction or a scan with constant extents
    above 0.

    Return False if the operation names an atom, reduces several sources at once, or has an operand that is a register
    tensor already.
    """
    if op.name not in ("map", "copy", "fill", "reduce", "scan") or "by" in op.attrs:
        return False
    if op.name in ("reduce", "scan") and (len(op.operands) != 2 or not isinstance(op.attrs["with"], str)):
        return False
    if any(isinstance(v.type, RegisterType) for v in op.operands):
        return False
    return all(isinstance(e, Const) and e.value > 0 for v in op.operands for e in v.type.shape)


def _is_plain(kind: object) -> bool:
    """Return True if `kind` is the type of an unswizzled tensor in memory with constant extents, which could lie in
    registers.
    """
    if not isinstance(kind, TensorType) or kind.swizzle is not None:
        return False
    return all(isinstance(e, Const) and e.value > 0 for e in kind.shape)


Node = tuple[Op | Value, int]


class _Vote(NamedTuple):
    """The data that is contiguous along a class of axes: its bytes, its smallest element, the alignment of its rows.

    `moved` are bytes of arguments, `shared` bytes of shared memory. `least` is the smallest element size in bytes,
    `alignment` the alignment in elements of rows that are written (0: none is).
    """

    moved: int
    shared: int
    least: int
    alignment: int


class _Classes:
    """Classes of axes of operations and dimensions of tensors that must be distributed equally over lanes (a union-find
    structure).
    """

    def __init__(self, frames: Frames, ops: Sequence[Op], tensors: Iterable[Value]):
        self._frames, self._ops, self._above = frames, ops, dict[Node, Node]()
        self.windows: set[Value] = set()
        """Tensors that are read at shifted coordinates."""
        undistributed: set[Node] = set()
        self._inside = inside = set(tensors)
        for op in ops:
            for number, value in enumerate(op.operands):
                root = frames.root(value)
                axes, through = operand_axes(op, number), frames.through(value)
                if root in inside and through is not None:
                    for i, seen in enumerate(through):
                        if isinstance(seen, int):
                            self._join((root, i), (op, axes[seen]))
                        elif seen is not None:
                            self.windows.add(root)
                            undistributed |= {(root, i), *((op, axes[axis]) for axis, _ in seen.steps)}
        self._undistributed = {self.find(node) for node in undistributed}
        """The classes that are not distributed: every lane has all their elements."""

    def find(self, node: Node) -> Node:
        """Return the representative of the class of `node`: two nodes are in one class if and only if they have the
        same one.

        A node is an (operation, axis) or a (tensor, dimension). Nodes of one class are distributed over lanes equally.
        """
        while node in self._above:
            node = self._above[node]
        return node

    def _join(self, a: Node, b: Node) -> None:
        """Merge the classes of the nodes `a` and `b`, so that both are distributed over lanes equally.

        A node is an (operation, axis) or a (tensor, dimension).
        """
        a, b = self.find(a), self.find(b)
        if a != b:
            self._above[a] = b

    def _classes_of(self, op: Op) -> list[Node]:
        """Return the class of each axis of `op` whose extent is not 1, as a list of representatives.

        Axes of one class are distributed over lanes equally.
        """
        return [self.find((op, i)) for i, e in enumerate(box(op)) if e is not as_expr(1)]

    def conflict(self) -> Op | None:
        """Return the first operation with two axes (of extents other than 1) in one class; None if there is none.

        Axes of one class are distributed over the same threads, which is impossible for two axes of one operation.
        """
        return next((op for op in self._ops if len(set(self._classes_of(op))) < len(self._classes_of(op))), None)

    def dims_of(self, tensor: Value, dims: Mapping[Node, Dim]) -> tuple[Dim | None, ...]:
        """Return how each dimension of `tensor` is distributed over lanes: a tuple of Dim, or None for extent 1.

        `dims` is {class of axes: its Dim}, the result of the method `dims`.
        """
        return tuple(dims.get(self.find((tensor, i))) for i in range(len(tensor.type.shape)))

    def windows_across_lanes(self) -> set[Value]:
        """Return the tensors read at shifted coordinates (sliding windows) that are too large for one lane to hold
        completely.

        A window is too large if it has more contiguous bytes than a lane may own, if the data of adjacent lanes is
        farther apart than that, or if an operation that reads it would need larger registers than a loop program may
        have.
        """
        votes, extents = self._contiguity(), self._extents()
        own_bytes, distances = self._frames.access.own_bytes, self._lane_distances()
        too_large = {c for c in self._undistributed if c in votes and extents.get(c, 1) * votes[c].least > own_bytes}
        too_large |= {c for c in self._undistributed if distances.get(c, 0) > own_bytes}
        exceeding = {self._frames.root(v) for op in self._ops if self._exceeds_a_lane(op, extents) for v in op.operands}
        return {
            tensor
            for tensor in self.windows
            if tensor in exceeding or any(self.find((tensor, i)) in too_large for i in range(len(tensor.type.shape)))
        }

    def _exceeds_a_lane(self, op: Op, extents: Mapping[Node, int]) -> bool:
        """Return True if `op` would need registers with more elements, over all lanes of a wave, than a loop program
        may have (2**14).

        Only axes that are not distributed count: every lane has all elements along them. `extents` is {class of axes:
        extent}.
        """
        own_axes = [c for c in self._classes_of(op) if c in self._undistributed]
        return prod(extents.get(c, 1) for c in own_axes) * self._frames.lanes > VECTOR.most

    def _lane_distances(self) -> dict[Node, int]:
        """Return {class of axes along which an argument is contiguous: bytes between the data of adjacent lanes}.

        For one argument the distance is the smallest stride along its other axes. If several arguments are contiguous
        along the class, the largest distance counts. Classes along which no argument is contiguous are left out.
        """
        distances: dict[Node, int] = {}
        for op in self._ops:
            for number, value in enumerate(op.operands):
                axes = tuple(index(f"axis{i}", int(e)) for i, e in enumerate(value.type.shape))
                contiguous, steps = self._frames.contiguous_axis(value, axes), self._frames.steps(value, axes)
                other_strides = [n for i, n in enumerate(steps) if i != contiguous and n and int(axes[i].hi) > 0]
                if contiguous is not None and other_strides:
                    c = self.find((op, operand_axes(op, number)[contiguous]))
                    distances[c] = max(distances.get(c, 0), min(other_strides) * value.type.dtype.numpy.itemsize)
        return distances

    def _extents(self) -> dict[Node, int]:
        """Return {class: extent} for the axes of all operations; classes of extent 1 are left out.

        Axes of one class are distributed over lanes equally, and have the same extent.
        """
        sizes = ((self.find((op, i)), int(e)) for op in self._ops for i, e in enumerate(box(op)))
        return {c: n for c, n in sizes if n != 1}

    def dims(self) -> dict[Node, Dim]:
        """Return {class of axes: the Dim that says how it is distributed over lanes} for all classes.

        Classes that meet in operations, directly or through others, are distributed together.
        """
        extents, meets = self._extents(), dict[Node, set[Node]]()
        for op in self._ops:
            classes = self._classes_of(op)
            for c in classes:
                meets.setdefault(c, set()).update(set(classes) - {c})
        distributions: dict[Node, Dim] = {}
        votes = self._contiguity()
        for group in _components(extents, meets):
            distributions |= self._distribute_group(group, extents, meets, votes)
        return distributions

    def is_together(self, op: Op, axes: tuple[Dim | None, ...]) -> bool:
        """Return True if a lane should load several values of the memory-to-memory operation `op` at once, because this
        is faster.

        That is so if a lane has vectors, or if a lane has several single elements and memory is contiguous along an
        axis of `op`: loads are then coalesced across lanes and in flight together. `axes` has the Dim of each axis of
        `op`.
        """
        dims = tuple(d for d in axes if d is not None)
        if any(d.width > 1 for d in dims):
            return True
        return held(dims) > 1 and not set(self._classes_of(op)).isdisjoint(self._contiguity())

    def _contiguity(self) -> dict[Node, _Vote]:
        """Return {class of axes along which memory is contiguous: a _Vote with bytes, element size and alignment}.

        Classes along which no memory is contiguous are left out.
        """
        votes: dict[Node, _Vote] = {}
        for op in self._ops:
            for number, value in enumerate(op.operands):
                axes = tuple(index(f"axis{i}", int(e)) for i, e in enumerate(value.type.shape))
                contiguous = self._frames.contiguous_axis(
                    value, axes, shared=self._frames.root(value) not in self._inside
                )
                if contiguous is None:
                    continue
                read = self._frames.axes_of(value, axes)
                node = self.find((op, operand_axes(op, number)[contiguous]))
                size = value.type.dtype.numpy.itemsize
                moved, shared, least, alignment = votes.get(node, _Vote(0, 0, size, 0))
                bytes_read = size * prod(int(e) for e, axis in zip(value.type.shape, axes, strict=True) if axis in read)
                is_argument = self._frames.is_argument(value)
                moved, shared = moved + bytes_read * is_argument, shared + bytes_read * (not is_argument)
                if op.name in ("map", "copy", "fill") and number == target_number(op):
                    alignment = gcd(alignment, self._frames.alignment(value, axes, contiguous))
                votes[node] = _Vote(moved, shared, min(least, size), alignment)
        return votes

    def _reduced_classes(self) -> set[Node]:
        """Return the classes of axes along which a reduction or a scan combines elements, as a set of representatives.

        Axes of one class are distributed over lanes equally.
        """
        return {self.find((op, op.attrs["along"])) for op in self._ops if op.name in ("reduce", "scan")}

    def _distribute_group(
        self,
        group: list[Node],
        extents: Mapping[Node, int],
        neighbours_of: Mapping[Node, set[Node]],
        votes: Mapping[Node, _Vote],
    ) -> dict[Node, Dim]:
        """Return {class: its Dim, the distribution over lanes} for the classes in `group`.

        The group has all classes that meet in operations, directly or through others. Classes that never meet in one
        operation share threads. `extents` is {class: extent}, `neighbours_of` is {class: classes that meet it in an
        operation}, `votes` is {class: data that is contiguous along it}.
        """
        vector = self._frames.access.vector_bytes
        undistributed_widths = {c: _width(extents[c], votes.get(c), vector) for c in group if c in self._undistributed}
        distributions = {c: Dim(extents[c], width, 1, 1) for c, width in undistributed_widths.items()}
        group = [c for c in group if c not in distributions]
        slots: list[list[Node]] = []
        for c in group:
            shareable = [s for s in slots if neighbours_of[c].isdisjoint(s)]
            shareable.sort(key=lambda s: extents[s[0]] != extents[c])
            if shareable:
                shareable[0].append(c)
            else:
                slots.append([c])
        if not slots:
            return distributions
        reduced, no_vote = self._reduced_classes(), _Vote(0, 0, 0, 0)

        def rank(slot: list[Node]) -> tuple[int, bool, int]:
            """Return the sort key of `slot`, classes that share threads: arguments' contiguous data first, reduced
            classes late, since reducing within a lane needs no shuffles.
            """
            moved, shared = (max(n) for n in zip(*(votes.get(c, no_vote)[:2] for c in slot), strict=True))
            return -moved, not reduced.isdisjoint(slot), -shared

        slots.sort(key=rank)
        widths = {c: _width(extents[c], votes.get(c), vector) if c in slots[0] else 1 for c in group}
        if not distributions.keys().isdisjoint(
            votes
        ):  # vectors lie in windows: no lane has several while others have none
            idle = self._frames.threads // prod(1 << (n - 1).bit_length() for n in _vectors(slots, extents, widths))
            widths = {c: width // gcd(width, max(1, idle)) for c, width in widths.items()}
        vectors = _vectors(slots, extents, widths)
        moved = max((widths[c] * votes[c].least for c in slots[0] if c in votes), default=vector)
        line = self._frames.access.line_bytes
        share = min(self._frames.lanes, line // 2 // moved)
        combined = not reduced.isdisjoint(slots[0])
        counts = _threads_per_slot(self._frames.threads, vectors, combined, line // vector, share)
        stride = 1
        for slot, count in zip(slots, counts, strict=True):
            shared_dims: dict[tuple[int, int], Dim] = {}
            for c in slot:
                key = extents[c], widths[c]
                distributions[c] = shared_dims.setdefault(key, Dim(*key, count, stride))
            stride *= count
        return distributions


def _vectors(slots: Sequence[list[Node]], extents: Mapping[Node, int], widths: Mapping[Node, int]) -> list[int]:
    """Return a list with a number for each of `slots`: how many vectors the longest of its classes has.

    A slot is a list of classes of axes that share threads. `extents` is {class: extent}, `widths` is {class: elements
    per vector}.
    """
    return [max(-(-extents[c] // widths[c]) for c in slot) for slot in slots]


def _width(extent: int, vote: _Vote | None, vector: int) -> int:
    """Return the number of elements of a lane's vector along a dimension of `extent` elements.

    The vector has at most `vector` bytes, and its width divides `extent` and the alignment of rows that are written.
    `vote` has the element size and this alignment. The width is 1 if `vote` is None, that is, if memory is not
    contiguous along the dimension.
    """
    return 1 if vote is None else gcd(vector // vote.least, extent, vote.alignment)


def _threads_per_slot(threads: int, vectors: list[int], combined: bool, line: int, share: int) -> list[int]:
    """Return how many of `threads` go along each slot, a set of dimensions that share threads; the product is
    `threads`.

    `vectors` is the number of vectors along each slot. The first slot is contiguous in memory; a cache line has `line`
    of its vectors. If the first slot is reduced (`combined`) and there are many rows, up to `share` lanes share a row,
    each with at least 3 vectors: lanes reduce their own elements first. Otherwise as many lanes as possible are
    adjacent along the first slot, unless fewer lanes leave fewer vectors past the end.

    >>> [_threads_per_slot(256, each, True, 8, 8) for each in ([1024, 2], [64, 32], [3, 5])]
    [[128, 2], [8, 32], [32, 8]]
    >>> _threads_per_slot(256, [127, 32], True, 8, 32), _threads_per_slot(256, [33, 32], True, 8, 32)
    ([32, 8], [8, 32])
    >>> [_threads_per_slot(256, each, False, 8, 8) for each in ([64, 32], [65, 32], [3, 5])]
    [[64, 4], [8, 32], [32, 8]]
    >>> _threads_per_slot(4, [64, 32], False, 8, 4)
    [4, 1]
    """
    padded = [1 << (n - 1).bit_length() for n in vectors]
    rows = prod(padded[1:])
    first = min(line, padded[0], threads)
    while combined and first < share and vectors[0] >= 2 * first * VECTORS:
        first *= 2
    if not combined:
        choices = [first << n for n in range(threads.bit_length()) if first << n <= min(threads, padded[0])]
        first = min(reversed(choices), key=lambda n: -(-vectors[0] // n) * n)
    first = min(padded[0], max(first, threads // rows))
    counts, left = [first], threads // first
    for n in padded[1:]:
        counts.append(min(n, left))
        left //= counts[-1]
    counts[0] *= left
    return counts


def _components(nodes: Iterable[Node], neighbours_of: Mapping[Node, set[Node]]) -> list[list[Node]]:
    """Return the connected components of a graph, as lists of nodes; nodes in a list, and lists by their first node,
    are in the order of `nodes`.

    `nodes` is iterated several times. `neighbours_of` is {node: its neighbours}.
    """
    components: list[list[Node]] = []
    visited: set[Node] = set()
    for start in nodes:
        if start in visited:
            continue
        group, open_ = [], [start]
        visited.add(start)
        while open_:
            node = open_.pop()
            group.append(node)
            neighbours = [n for n in nodes if n in neighbours_of[node] and n not in visited]
            visited.update(neighbours)
            open_ += neighbours
        components.append([n for n in nodes if n in group])
    return components
