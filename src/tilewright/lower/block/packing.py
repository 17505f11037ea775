"""Packs operand B in the order in which accumulator tiles read it: where it is used, or once before the program runs.

An argument that several tasks read is packed completely by a program of its own, at every call; a B that the program
computes is packed in the task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.algebra.expr import ZERO, Const, Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import Size, linear_step
from tilewright.ir.attrs import Range
from tilewright.ir.block import BLOCK
from tilewright.ir.core import Block, Program, Value
from tilewright.ir.tensors import TensorType
from tilewright.ir.tile_formulas import converted
from tilewright.ir.verifier import verify
from tilewright.lower.block.lazy_tiles import Load, Parts, Tile, load, only_load
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.packed_orders import BlockOrder, Order, Pack
from tilewright.lower.block.storage import Storage
from tilewright.lower.block.writer import BlockWriter, extent
from tilewright.plan.microkernel import Axes, Microkernel
from tilewright.plan.model import cores

PAGE = 4096
"""The most bytes of a block of N that one packing task writes, if it reads whole rows: a page of memory."""
Images = Callable[[Sequence[Expr]], Substitution]
"""A function from indices along (outer dimensions, K, N) to the substitution of coordinates by them."""


def pack_here(
    storage: Storage, b: Tile, parts: Parts, axes: Axes, outer: list[Expr], kernel: Microkernel
) -> tuple[Value, BlockOrder]:
    """Emit the packing of B's current part into the worker's memory; return (packed tensor, its order).

    `b` is the Tile of B. `axes` names M, N and K; `outer` are B's other dimensions; `kernel` has the atom and the
    accumulator tile; `parts` is {dimension: (first index, extent)}.
    """
    tile, source = storage.load_of(b, kernel.atom.b.dtype)
    dims = (*outer, axes.k, axes.n)
    order = _order(kernel, axes, outer, lambda d: parts[d][1])
    packed = storage.writer.part(storage.writer.alloc(tile.dtype, order.shape, "packed"), order.shape)

    def images(indices: Sequence[Expr]) -> Substitution:
        """Return the substitution of B's coordinate symbols by `indices`, which count from the start of each part."""
        return Substitution(
            {storage.scope.coordinate(d): parts[d][0] + at for d, at in zip(dims, indices, strict=True)}
        )

    over = storage.writer.axes(order.shape)
    _copy(storage.writer, source, images, order, over, over, packed)
    return packed, order


def pack_before(
    low: Lowering, b: Tile, parts: Parts, axes: Axes, outer: list[Expr], kernel: Microkernel
) -> tuple[Value, BlockOrder] | None:
    """Return (tensor, order): a new argument of the program, which has all of B packed before the program runs, and its
    packed order.

    None if B cannot be packed before, such as an operand that is computed (see `packed_before`), or if an extent
    depends on data. None also unless the current part begins at a whole block of N and a whole atom of K, and ends at a
    whole atom of K or with K. `b` is the Tile of B; `axes` names M, N and K; `outer` are B's other dimensions; `kernel`
    has the accumulator tile; `parts` is {dimension: (first index, extent)}.
    """
    if any(d in low.scope.bases or not d.symbols.isdisjoint(low.scope.bound) for d in (*outer, axes.k, axes.n)):
        return None  # its extents depend on data
    first, width = parts[axes.k]
    depth_of_atom, offset_in_atom, size = kernel.atom.shape[2], first % kernel.atom.shape[2], low.scope.size(axes.k)
    ends_with_atom = width % depth_of_atom in (0, ZERO) or first + width is as_expr(size)
    if offset_in_atom is not ZERO or parts[axes.n][0] % kernel.columns is not ZERO or not ends_with_atom:
        return None
    order = _order(kernel, axes, outer, low.scope.size)
    packed = packed_before(low, b, (*outer, axes.k, axes.n), order)
    return None if packed is None else (packed, order)


def packed_before(low: Lowering, b: Tile, dims: tuple[Expr, ...], order: Order) -> Value | None:
    """Return a new argument of the program: all of B over `dims`, packed in `order` before the program runs. None if B
    cannot be packed before the program, or if packing does not pay.

    B must be a plain load from an argument that the program only reads, with coordinates that depend on `dims` alone
    and are proved to be in bounds. No dimension may have a data-dependent start, or go past its end in some workgroups.
    Packing pays if several tasks or iterations read B, if the plan packs operands, or if the machine's shared memory is
    limited. The packing program is added to `low.arguments.packs`, once for equal requests.
    """
    load = only_load(b.formula)
    source = None if load is None else low.arguments.source(load.tensor)
    if load is None or source is None or load.tensor.type.role != "in" or not _is_read_again(low, b):
        return None
    scope = low.scope
    coordinates = [scope.coordinate(d) for d in dims]
    if not all(e.symbols <= set(coordinates) for e in load.at) or any(
        d in scope.bases or d in scope.reach for d in dims
    ):
        return None
    shape = low.arguments.shapes[source]
    if not all(scope.is_inside(e, n) for e, n in zip(load.at, shape, strict=True)):
        return None
    key = (load, dims, order)
    if key not in low.arguments.packs:
        low.arguments.packs[key] = _program(low, load, source, coordinates, order)
    return low.arguments.packs[key].packed


def _order(kernel: Microkernel, axes: Axes, outer: list[Expr], width: Callable[[Expr], Size]) -> BlockOrder:
    """Return the packed order of B (a BlockOrder) for the accumulator tiles of `kernel`; emit nothing.

    `width(d)` is the extent of dimension d; `axes` names M, N and K; `outer` are B's dimensions beside K and N.
    """
    around, deep = (tuple(width(d) for d in dims if d in outer) for dims in (axes.around, axes.deep))
    return BlockOrder(kernel, around, deep, width(axes.n), width(axes.k))


def _is_read_again(low: Lowering, b: Tile) -> bool:
    """True if packing B before the program pays: the part of a dimension that B lacks moves with tasks or loops, so
    that B is read again.

    Always True if the plan packs operands, or if the machine's shared memory is limited.
    """
    if low.bound.packed or low.machine.spaces["shared"].bytes is not None:
        return True
    moving = [d for d, (first, _) in low.scope.parts.items() if not isinstance(first, Const)]
    return any(d not in b.dims for d in (*low.task.shared, *moving))


def _program(low: Lowering, element: Load, source: Value, coordinates: list[Symbol], order: Order) -> Pack:
    """Return the Pack of an argument: a program that packs the argument in `order`, the argument, and the packed
    tensor.

    A task of the program packs one block of N. On a CPU, if B is contiguous along N, a task packs a few K steps of all
    blocks of N instead, and so reads whole rows of B. `source` is the argument, `element` a load of an element of B
    from `source`; `coordinates` are the symbols of this load along (outer dimensions, K, N).
    """
    name, kind = low.writer.fresh(f"packed_{source.name}"), element.tensor.type
    extents = tuple(map(as_expr, order.shape))
    argument = Value(kind, source.name)
    target = Value(TensorType("global", order.dtype, extents, role="out"), name)
    w = BlockWriter(low.machine.lanes, low.scope.opened.symbols, low.machine.limits)  # one wave
    for name_in_use in (source.name or "argument", name, *(s.name for s in low.scope.opened.symbols)):
        w.fresh(name_in_use)
    names, before = [f"o{n}" for n in range(len(order.around))], len(order.around)
    steps = _steps_of_rows(low, order, element, coordinates[-1])
    counts = (*order.shape[:before], as_expr(order.shape[-5]) // steps if steps else order.shape[before])
    ranges = tuple(Range.of(w.fresh(n), 0, e) for n, e in zip([*names, "e" if steps else "f"], counts, strict=True))
    *outer, task = (r.symbol for r in ranges)
    inner, body = Block(()), Block(())

    def images(places: Sequence[Expr]) -> Substitution:
        """Return the substitution of B's coordinate symbols by the expressions `places`."""
        return Substitution(dict(zip(coordinates, places, strict=True)))

    def copy(block: Expr, shape: tuple[Size, ...], first: Expr) -> None:
        """Emit the copy of the block number `block` of N, from K step `first` on. `shape` has the extents of the packed
        axes behind that of the blocks.
        """
        over = w.axes(shape)
        at = (*outer, block, *over[:-5], over[-5] + first, *over[-4:]) if steps else (*outer, block, *over)
        goal = w.view(target, over, [(e, False) for e in at])
        _copy(w, Load(argument, element.at), images, order, over, at, goal)

    with w.inside(inner):
        rest = order.shape[before + 1 :]
        if steps:
            with w.loop("f", as_expr(order.shape[before])) as block:
                copy(block, (*rest[:-5], steps, *rest[-4:]), steps * task)
        else:
            copy(task, rest, ZERO)
    with w.inside(body):
        w.emit("tasks", ranges=ranges, blocks=(inner,))
    used = {s for e in (*extents, *kind.shape) for s in e.symbols}
    records = low.scope.opened.records() if used else []
    program = Program(BLOCK, f"pack_{name.removeprefix('packed_')}", (argument, target), body, records)
    verify(program)
    return Pack(program, source, Value(replace(target.type, role="in"), name))


def _steps_of_rows(low: Lowering, order: Order, element: Load, column: Symbol) -> int:
    """Return the number of K steps of a packing task that reads whole rows of B; 0 if a task takes a block of N.

    A task reads rows on a CPU if B is contiguous along N, and K has at least one step for each core. The result divides
    the number of all steps of K. In these steps, a task writes at most a page of each block of N, unless one step is
    larger. `element` loads an element of B; `column` is the symbol of its coordinate along N.
    """
    if low.machine.lanes is not None or not isinstance(order, BlockOrder):
        return 0
    steps = order.shape[-5]
    across_rows = any(column in e.symbols for e in element.at[:-1]) or linear_step(element.at[-1], column) != 1
    if across_rows or not isinstance(steps, int) or steps < cores(low.machine):
        return 0
    step_bytes = order.microkernel.atom.shape[2] * order.microkernel.columns * order.dtype.bits // 8
    most = min(steps // cores(low.machine), PAGE // step_bytes)
    return max(n for n in range(1, max(1, most) + 1) if steps % n == 0)


def _copy(
    w: BlockWriter,
    element: Load,
    images: Images,
    order: Order,
    over: tuple[Symbol, ...],
    at: tuple[Expr, ...],
    held: Value,
) -> None:
    """Emit the copy of B to the tensor `held` in packed order, converted to the element type of `held`; padding gets
    zeros.

    `element` loads an element of B. `at` are the packed coordinates, as expressions of the iterators `over`. `images`
    maps indices along (outer dimensions, K, N) to the substitution of B's coordinate symbols.
    """
    places, padded = order.source(at), any(zeros for _, zeros in order.ends)
    if not padded:
        view = w.viewed(element, over, images(places))
    else:  # first a view that ends with the part: past it, memory may have other elements
        is_walked_by_dim = [
            bool(e.symbols & set(over)) or zeros for e, (_, zeros) in zip(places, order.ends, strict=True)
        ]
        exact_axes = w.axes([n for (n, _), is_walked in zip(order.ends, is_walked_by_dim, strict=True) if is_walked])
        numbers = iter(exact_axes)
        unpadded = w.viewed(
            element,
            exact_axes,
            images([next(numbers) if is_walked else e for e, is_walked in zip(places, is_walked_by_dim, strict=True)]),
        )
        marked = [
            (e, zeros)
            for e, (_, zeros), is_walked in zip(places, order.ends, is_walked_by_dim, strict=True)
            if is_walked
        ]
        view = w.view(unpadded, over, marked)
    otherwise = 0 if padded else None
    if held.type.dtype is element.tensor.type.dtype:
        w.emit("copy", (view, held), otherwise=otherwise)
        return
    sizes = [extent(s) for s in over]
    between = w.alloc(element.tensor.type.dtype, sizes, "narrow")
    w.emit("copy", (view, w.part(between, sizes)), otherwise=otherwise)
    formula = converted(load(between, *over), between.type.dtype, held.type.dtype)
    w.map(held, over, formula, Substitution({}))
