"""The rows of a task, copied once for all its blocks of sums, in planes of an atom's K.

    %staged = alloc shared bf16 (2, 1743, 32)                                   [K / 32][rows][32]
    %x_view = view %x (l 30, q 57, b 2, c 32) -> [0, 28*t + l - 1 ?, q - 1 ?, 32*b + c]
    copy %x_view -> %staged_view else 0

Rows run on from line to line, with what lies between them. Taps of a convolution that slide along the lines read the
same rows a little further on: a halo tile. The zeros that end a line also begin the next. For other taps rows are
staged apart, [tap][K / 32][rows][32]: an im2col panel.
"""

from __future__ import annotations

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Value
from tilewright.passes.tile.accesses import TileAccess, access_of, loose
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.values import Load, pieces
from tilewright.plan.microkernel import Microkernel
from tilewright.plan.tiled import Tiled, Walk


def staged(low: Lowering, plan: Tiled, walk: Walk, read: Op, how: Microkernel) -> Load:
    """Emit the copy of a task's rows of A, with zeros out of bounds; return the Load of an element in the copy."""
    scope = low.scope
    w, kind, depth, axes = low.writer, read.results[0].type, how.atom.shape[2], plan.axes
    taps_apart = [d for d in kind.dims if d in axes.deep and d not in plan.shifts]
    last = {d: scope.number(d) - 1 for d in plan.shifts}
    lines = walk.lines + sum(last[d] * down for d, (down, _) in plan.shifts.items())
    along = sum(last[d] * further for d, (_, further) in plan.shifts.items())
    count = lines * walk.pitch
    past = how.rows + along - (walk.pitch - walk.length) if plan.shifts else -count % how.rows
    outer = [*map(scope.number, taps_apart), int(pieces(scope.number(axes.k), depth))]
    held = w.alloc(kind.dtype, (*outer, count + past, depth), "staged")
    if past:  # rows that blocks read behind the last line
        *before, i, c = w.axes((*outer, past, depth))
        behind = w.view(held, (*before, i, c), [(e, False) for e in (*before, count + i, c)])
        w.emit("fill", (behind,), value=0)
    over = w.axes((lines, walk.pitch, *outer, depth))
    line, place, *taps, chunk, c = over
    first, row = scope.part(axes.m)[0], walk.pitch * line + place
    known: dict[Expr, Expr] = {d: scope.part(d)[0] for d in kind.dims} | dict.fromkeys(plan.shifts, as_expr(0))
    known |= {axes.m: first + row, **dict(zip(taps_apart, taps, strict=True))}
    access = access_of(low, read, read.operands[0], kind.dims, ())
    source = _in_chunks(low, access, known, axes.k, over, depth * chunk + c)
    goal = w.view(held, over, [(e, False) for e in (*taps, chunk, row, c)])
    w.emit("copy", (source, goal), otherwise=0)
    at = scope.coordinate(axes.m) - first
    for d, (down, further) in plan.shifts.items():
        at = at + (down * walk.pitch + further) * scope.coordinate(d)
    k = scope.coordinate(axes.k)
    return Load(held, (*map(scope.coordinate, taps_apart), k // depth, at, k % depth))


def _in_chunks(
    low: Lowering, access: TileAccess, known: dict[Expr, Expr], k: Expr, over: tuple[Symbol, ...], at: Expr
) -> Value:
    """Return the view of A that is copied, with K in chunks of an atom's depth; `at` is the index in K.

    If other elements lie past the end of K in memory (another group or tap), a view of K alone comes first, so that
    they are out of bounds.
    """
    w, deep, coordinate = low.writer, low.scope.number(k), low.scope.coordinate(k)
    chunk, c = over[-2:]
    count, depth = (int(s.hi) + 1 for s in (chunk, c))
    alone = any(e is coordinate and n == deep for e, n in zip(access.at, access.shape, strict=True))
    whole = count * depth == deep or alone
    *rest, t = w.axes([*(int(s.hi) + 1 for s in over[:-2]), deep])
    images = Substitution({low.scope.coordinate(d): e for d, e in {**known, k: at if whole else t}.items()})
    places = list(zip(map(images, access.at), loose(low.scope, access, images), strict=True))
    if whole:
        return w.view(access.tensor, over, places)
    part = w.view(access.tensor, (*rest, t), places)
    return w.view(part, over, [*((e, False) for e in over[:-2]), (at, True)])
