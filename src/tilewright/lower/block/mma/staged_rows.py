"""Stages rows of A once for all blocks of a task, in planes of the atom's K.

    %staged = alloc shared bf16 (2, 1743, 32)                                   [K / 32][rows][32]
    %x_view = view %x (l 30, q 57, b 2, c 32) -> [0, 28*t + l - 1 ?, q - 1 ?, 32*b + c]
    copy %x_view -> %staged_view else 0

Rows run on from image line to image line, with the padding between. Filter taps that slide along the lines read the
same rows, shifted: a halo tile. The zeros that end a line also begin the next. For other taps, rows are staged once for
each tap, [tap][K / 32][rows][32]: an im2col panel.
"""

from __future__ import annotations

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Value
from tilewright.lower.block.accesses import TileAccess, access_of, bounds_marks
from tilewright.lower.block.lazy_tiles import Load, pieces
from tilewright.lower.block.lowering import Lowering
from tilewright.plan.microkernel import Microkernel
from tilewright.plan.tile_register_tasks import LineLayout, TileRegisterMma


def staged(low: Lowering, plan: TileRegisterMma, walk: LineLayout, read: Op, kernel: Microkernel) -> Load:
    """Emit the copy of a task's rows of A to the task's own memory, with zeros out of bounds; return the Load of an
    element of the copy.

    `read` is the read of A; `walk` has the image lines of a task. `plan` names M, N and K, and the filter taps that
    slide along the lines: all of these share one copy; other taps have copies of their own. `kernel` has the atom's K
    and the rows of an accumulator tile. If a tile reads rows behind the last line, they are filled with zeros.
    """
    scope = low.scope
    w, kind, depth, axes = low.writer, read.results[0].type, kernel.atom.shape[2], plan.axes
    other_taps = [d for d in kind.dims if d in axes.deep and d not in plan.shifts]
    last = {d: scope.number(d) - 1 for d in plan.shifts}
    lines = walk.lines + sum(last[d] * lines_down for d, (lines_down, _) in plan.shifts.items())
    shift = sum(last[d] * columns_down for d, (_, columns_down) in plan.shifts.items())
    count = lines * walk.pitch
    extra_rows = kernel.rows + shift - (walk.pitch - walk.length) if plan.shifts else -count % kernel.rows
    outer = [*map(scope.number, other_taps), int(pieces(scope.number(axes.k), depth))]
    held = w.alloc(kind.dtype, (*outer, count + extra_rows, depth), "staged")
    if extra_rows:  # blocks read rows behind the last line
        *before, i, c = w.axes((*outer, extra_rows, depth))
        behind = w.view(held, (*before, i, c), [(e, False) for e in (*before, count + i, c)])
        w.emit("fill", (behind,), value=0)
    over = w.axes((lines, walk.pitch, *outer, depth))
    line, place, *taps, chunk, c = over
    first, row = scope.part(axes.m)[0], walk.pitch * line + place
    known: dict[Expr, Expr] = {d: scope.part(d)[0] for d in kind.dims} | dict.fromkeys(plan.shifts, as_expr(0))
    known |= {axes.m: first + row, **dict(zip(other_taps, taps, strict=True))}
    access = access_of(low, read, read.operands[0], kind.dims, ())
    source = _in_chunks(low, access, known, axes.k, over, depth * chunk + c)
    goal = w.view(held, over, [(e, False) for e in (*taps, chunk, row, c)])
    w.emit("copy", (source, goal), otherwise=0)
    at = scope.coordinate(axes.m) - first
    for d, (lines_down, columns_down) in plan.shifts.items():
        at = at + (lines_down * walk.pitch + columns_down) * scope.coordinate(d)
    k = scope.coordinate(axes.k)
    return Load(held, (*map(scope.coordinate, other_taps), k // depth, at, k % depth))


def _in_chunks(
    low: Lowering, access: TileAccess, known: dict[Expr, Expr], k: Expr, over: tuple[Symbol, ...], at: Expr
) -> Value:
    """Emit the view of A from which its rows are copied, and return the view.

    The last two of its iterators `over` are (chunk of K, index in the chunk); a chunk has the atom's K. `k` is the
    dimension K, `at` the index along K. `known` is {other dimension of A: index}; `access` has A's memory coordinates.
    If the last chunk goes past the end of K, and memory goes on there, the result is a view of a view that ends with K.
    """
    w, k_extent, coordinate = low.writer, low.scope.number(k), low.scope.coordinate(k)
    chunk, c = over[-2:]
    count, depth = (int(s.hi) + 1 for s in (chunk, c))
    is_last_of_memory = any(e is coordinate and n == k_extent for e, n in zip(access.at, access.shape, strict=True))
    ends_with_memory = count * depth == k_extent or is_last_of_memory
    *rest, t = w.axes([*(int(s.hi) + 1 for s in over[:-2]), k_extent])
    images = Substitution({low.scope.coordinate(d): e for d, e in {**known, k: at if ends_with_memory else t}.items()})
    places = list(zip(map(images, access.at), bounds_marks(low.scope, access, images), strict=True))
    if ends_with_memory:
        return w.view(access.tensor, over, places)
    part = w.view(access.tensor, (*rest, t), places)
    return w.view(part, over, [*((e, False) for e in over[:-2]), (at, True)])
