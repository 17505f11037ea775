"""Chooses the source of each operand of an MMA by an atom: in place, panel, packed, staged, in registers, computed,
halo.
"""

from __future__ import annotations

from tilewright.algebra.expr import ZERO, Const, Expr, as_expr
from tilewright.analysis.flat_memory import Size, linear_step
from tilewright.errors import ProgramError
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType
from tilewright.ir.tile_formulas import converted
from tilewright.lower.block.accesses import marked, memory_step
from tilewright.lower.block.lazy_tiles import Load, Tile, loads, most, only_load, pieces
from tilewright.lower.block.mma.computed import Computed
from tilewright.lower.block.mma.halo_tile import halo_sources
from tilewright.lower.block.mma.in_place import InPlace, Stepped
from tilewright.lower.block.mma.in_registers import InRegisters
from tilewright.lower.block.mma.packed import Packed, PanelOfA
from tilewright.lower.block.mma.product import AtomProduct
from tilewright.lower.block.mma.source import OperandSource
from tilewright.lower.block.mma.staged import Staged, is_given
from tilewright.lower.block.packing import pack_before, pack_here
from tilewright.plan.model import element_bytes, l2, stays_in_l1

NEAR = 4
"""B is read in place if the elements that a block reads span no more than 1/NEAR of the L2 cache."""


def sources_of(product: AtomProduct, a: Tile, b: Tile, in_task: bool) -> tuple[OperandSource, OperandSource]:
    """Return (source of A, source of B) for an MMA by an atom: how each operand is copied or read.

    With `in_task`, a task keeps tile registers for the MMA, and A may also be rows that the task has staged. For halo
    tiles, and for an atom that reads shared memory, `in_task` is not used. Allocations and copies that come before the
    K loops are emitted here.
    """
    if product.low.bound.halo_taps is not None:
        return halo_sources(product, a, b, product.low.bound.halo_taps)
    if product.microkernel.slab is not None:
        return _staged_sources(product, a, b)
    return (_left_of_task(product, a) if in_task else _left(product, a)), _right(product, b)


def _staged_sources(product: AtomProduct, a: Tile, b: Tile) -> tuple[OperandSource, OperandSource]:
    """Return (source of A, source of B) for an atom that reads operands from shared memory.

    K steps of B are copied to shared memory. So are K steps of A if the atom reads A from shared memory, or if A is an
    argument that the program only reads, of the atom's element type. Otherwise A is computed in registers: one K step
    at a time if all its loads are from arguments that the program only reads, and the plan does not do all of K at
    once; else for all of K at once.
    """
    kernel, axes = product.microkernel, product.axes
    left: OperandSource
    if not kernel.a_in_registers or is_given(a, kernel.atom.a.dtype):
        left = Staged.of(product, a, axes.m)
    elif not kernel.all_of_k_at_once and all(x.is_given for x in loads(a.formula)):
        left = Computed.of(product, a)
    else:
        left = InRegisters.of(product, a)
    return left, Staged.of(product, b, axes.n)


def _left_of_task(product: AtomProduct, a: Tile) -> OperandSource:
    """Return the source of operand A of the MMA `product`, in a task that keeps accumulators in tile registers.

    A is usable if it is an argument that is only read, or staged rows (input rows copied to the worker's memory), and
    has the atom's type. There are three sources:

    - any other A: in place if the atom can read it so, else a panel (a zero-padded copy, contiguous along K);
    - a usable A that may be out of bounds: a buffer to which one K step at a time is copied, with zeros;
    - any other usable A: in place.

    Allocations and panels are emitted here. Raise a ProgramError if A is a usable argument, and K is not whole atoms.
    """
    low, kernel = product.low, product.microkernel
    source = only_load(a.formula) if a.dtype is kernel.atom.a.dtype else None
    staged_tensors = {rows.tensor for rows in low.task.operands.values() if rows is not None}
    if source is None or not (source.is_given or source.tensor in staged_tensors):
        return _left(product, a)
    depth, width = kernel.atom.shape[2], product.width(product.axes.k)
    if source.is_given and width % depth not in (0, ZERO):
        raise ProgramError(f"operand A is read in place, but K = {width} ends within a step of {depth}: stage its rows")
    if not any(low.storage.marks_of_load.get(source, ())):
        return InPlace(product, source)
    return Stepped(product, source, product.w.alloc(kernel.atom.a.dtype, (kernel.rows, depth), "step"))


def _left(p: AtomProduct, a: Tile) -> OperandSource:
    """Return the source of operand A: in place if the atom can read it so, else a panel, for which the copy is emitted
    here.

    To be read in place, A must have the atom's type, whole atoms of K and of rows, and be contiguous along K. The panel
    is contiguous along K, and padded with zeros to whole atoms.
    """
    kernel, axes = p.microkernel, p.axes
    m, _, k = kernel.atom.shape
    source = only_load(a.formula) if a.dtype is kernel.atom.a.dtype else None
    has_whole_atoms = source is not None and p.width(axes.k) % k in (0, ZERO) and _has_rows(p, source, a.dims, m)
    if source is not None and has_whole_atoms and (k == 1 or memory_step(p.low.scope, source, axes.k) == 1):
        return InPlace(p, source)
    outer = [d for d in (*axes.around, *axes.deep) if d in a.dims]
    row_count = p.width(axes.m)
    row_unit = m if isinstance(row_count, int) else kernel.rows  # with an open M, the last block is a full one
    deep, rows = pieces(p.width(axes.k), k) * k, pieces(row_count, row_unit) * row_unit
    panel = _panel(p, a, kernel.atom.a.dtype, outer, (axes.m, rows), (axes.k, deep))
    return PanelOfA(p, panel, outer)


def _has_rows(p: AtomProduct, source: Load, dims: tuple[Expr, ...], unit: int) -> bool:
    """True if whole atoms of `unit` rows can read the operand that `source` loads in place.

    They can if the current part of M is whole atoms. Otherwise atoms read rows past the end of the part: the number of
    rows must then be an int, and the tensor must be in shared memory and have these rows. `dims` are the operand's
    dimensions.
    """
    rows = p.width(p.axes.m)
    if rows % unit in (0, ZERO) or not isinstance(rows, int):
        return rows % unit in (0, ZERO)
    past = {p.axes.m: -(-rows // unit) * unit}
    over = p.w.axes([past.get(d) or p.width(d) for d in dims])
    images = p.low.scope.images(dims, p.parts, over)
    places = marked([images(e) for e in source.at], source.tensor.type.shape)
    return source.tensor.type.space == "shared" and not any(mark for _, mark in places)


def _panel(
    p: AtomProduct, a: Tile, dtype: DType, outer: list[Expr], rows: tuple[Expr, Size], deep: tuple[Expr, Size]
) -> Value:
    """Emit the copy of operand `a` to a new tensor [outer][rows][deep] of the type `dtype`, padded with zeros; return
    the tensor.

    `rows` is (M dimension, padded extent), `deep` is (K dimension, padded extent), `outer` are the other dimensions of
    `a`.
    """
    sizes = [*(p.width(d) for d in outer), rows[1], deep[1]]
    held = p.w.alloc(dtype, sizes, "panel")
    dims = (*outer, rows[0], deep[0])
    over = p.w.axes([p.width(d) for d in dims])
    if sizes[-2:] != [p.width(rows[0]), p.width(deep[0])]:
        p.w.emit("fill", (p.w.part(held, sizes),), value=0)
    target = p.w.view(held, over, [(s, False) for s in over])
    formula = converted(a.formula, a.dtype, dtype)
    p.w.map(target, over, formula, p.low.scope.images(dims, p.parts, over))
    return held


def _right(p: AtomProduct, b: Tile) -> OperandSource:
    """Return the source of operand B: the first of these that applies.

    - in place, if the atom can read B so and caches hold B well;
    - packed once for several accumulator tiles, if that was emitted before (`p.packed`);
    - packed by a program that runs before, if B is an argument that several tasks or iterations read;
    - in place, if the atom can read B so;
    - packed here, by emitted code.
    """
    kernel, axes = p.microkernel, p.axes
    n = kernel.atom.shape[1]
    source = only_load(b.formula) if b.dtype is kernel.atom.b.dtype else None
    is_unpacked = kernel.k_pack == 1 and not p.low.bound.packed
    is_direct = is_unpacked and source is not None and _is_contiguous_along_n(p, source) and _is_readable(p, source, n)
    if is_direct and source is not None and _is_near(p, source):
        return InPlace(p, source)
    outer = [d for d in (*axes.around, *axes.deep) if d in b.dims]
    if p.packed is not None:
        return Packed(p, *p.packed, outer, dict.fromkeys((*outer, axes.k, axes.n), as_expr(0)))
    packed_before_program = pack_before(p.low, b, p.parts, axes, outer, kernel)
    if packed_before_program is not None:
        return Packed(p, *packed_before_program, outer, {d: p.parts[d][0] for d in (*outer, axes.k, axes.n)})
    if is_direct and source is not None:
        return InPlace(p, source)
    packed, order = pack_here(p.low.storage, b, p.parts, axes, outer, kernel)
    return Packed(p, packed, order, outer, dict.fromkeys((*outer, axes.k, axes.n), as_expr(0)))


def _is_contiguous_along_n(p: AtomProduct, source: Load) -> bool:
    """True if elements of the operand that `source` loads are contiguous in memory along N."""
    return memory_step(p.low.scope, source, p.axes.n) == 1


def _is_readable(p: AtomProduct, source: Load, n: int) -> bool:
    """True if vectors of `n` columns of B can be read in place: the extent of N is a multiple of `n`.

    If that extent is known only at the call, True if B is an argument that is only read; a vector may then be cut off
    at the end of B. `source` is the load of B.
    """
    wide = p.width(p.axes.n)
    if isinstance(wide, Expr):
        return source.tensor.type.role == "in" and p.low.arguments.source(source.tensor) is not None
    return wide % n == 0


def _is_near(p: AtomProduct, source: Load) -> bool:
    """True if B, which `source` loads, need not be packed, as caches hold it as well in place.

    True in four cases: the size of M depends on data; there is only one block of rows, so that B is read once; a stride
    of B is known only at the call; the elements that a block reads span at most a quarter (1 / NEAR) of L2, and L1
    keeps them as well as packed ones.
    """
    low, m = p.low, p.axes.m
    if not m.symbols.isdisjoint(low.scope.bound):
        return True
    if most(low.scope.size(m)) <= p.microkernel.rows:
        return True
    stride, k_stride = 1, 0
    for e, n in reversed(list(zip(source.at, source.tensor.type.shape, strict=True))):
        k_stride += stride * (linear_step(e, low.scope.coordinate(p.axes.k)) or 0)
        if not isinstance(n, Const):  # the stride is known only at the call
            return True
        stride *= n.value
    limits, each, rows = low.machine.limits, element_bytes(source.tensor.type.dtype), most(p.width(p.axes.k))
    if k_stride * rows * each > l2(limits) / NEAR:
        return False
    row = p.microkernel.columns * each
    return stays_in_l1(limits, rows, row, k_stride * each) or not stays_in_l1(limits, rows, row, row)
