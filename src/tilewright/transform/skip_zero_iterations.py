"""Loops without the iterations that only multiply zeros, such as taps of a filter that are known to be out of bounds.

    for k in 0..2 {                                        for k in 0..(4 - p)//2 {
      %view = view %w (...) -> [..., 2*k + p ?, ...]         of 3 taps, tap 2 + p is out of bounds if p is 1
      copy %view -> %tile else 0
      mma %sums += %rows * %tile

The pass runs on block programs before roles are split, so that both roles do the same iterations. It knows nothing of
convolutions: it looks for copies that are out of bounds as a whole, and for MMAs of the tiles that they fill.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import Substitution, indices_in_bounds, linear_form
from tilewright.ir.attrs import Range, kind_of
from tilewright.ir.core import Op, Program, Value, walk_block

PASSED = frozenset({"view", "barrier", "for", "copy", "mma"})
"""Operations of an iteration that change only tiles of this iteration, or accumulators by MMAs."""

Iterations = tuple[Expr, Expr]
"""The first iteration that is needed, and the end of the iterations."""


def without_empty_rounds(program: Program) -> None:
    """Narrow the K loops of a block program, in place: iterations that would only add zeros are dropped. An iteration
    is dropped if an operand tile that all MMAs of the loop use lies out of bounds, so that it is all zeros.

    Only loops of one range with step 1 and without `unroll` are narrowed, and only if they do nothing but load tiles
    and multiply them. If a narrowed loop is in a nest of loops with nothing else in them, the nest becomes one loop
    over several ranges.
    """
    makers, roots = program.makers(), _roots(program)
    narrowed: set[Op] = set()
    for loop in [op for op in program.walk() if op.name == "for" and len(op.attrs["ranges"]) == 1]:
        (r,) = loop.attrs["ranges"]
        if r.step != 1 or loop.attrs.get("unroll") or not _only_multiplies(loop, program, roots):
            continue
        needed = _needed_iterations(loop, makers, roots)
        if needed is not None and needed != (r.lo, r.hi):
            _narrow(loop, r, Range.of(r.symbol.name, *needed))
            narrowed.add(loop)
    for loop in [op for op in program.walk() if op.name == "for"] if narrowed else ():
        _join_inner(loop, narrowed)


def _join_inner(loop: Op, narrowed: set[Op]) -> None:
    """Turn `loop` and the loops nested in it into one loop over several ranges, in place, if one of them is in
    `narrowed`. Stop at a loop that contains more than another loop, that has attributes other than `ranges`, or that
    has limits which depend on an outer loop. `loop` is added to `narrowed` if it changes.
    """
    while len(loop.blocks) == 1 and len(loop.blocks[0].ops) == 1:
        (inner,) = loop.blocks[0].ops
        ranges = (*loop.attrs["ranges"], *inner.attrs.get("ranges", ()))
        outer = {r.symbol for r in loop.attrs["ranges"]}
        is_plain = inner.name == "for" and inner.attrs.keys() == loop.attrs.keys() == {"ranges"}
        if not is_plain or narrowed.isdisjoint((loop, inner)) or len(inner.blocks) != 1:
            return
        if any(not (r.lo.symbols | r.hi.symbols).isdisjoint(outer) for r in inner.attrs["ranges"]):
            return
        loop.attrs["ranges"], loop.blocks = ranges, inner.blocks
        narrowed.add(loop)


def _narrow(loop: Op, before: Range, after: Range) -> None:
    """Replace `before`, the range of `loop`, by the range `after`, in place. In the loop body, the symbol of `after`
    replaces that of `before`.
    """
    loop.attrs["ranges"] = (after,)
    images = Substitution({before.symbol: after.symbol})
    for op in walk_block(loop.blocks[0]):
        for name, value in op.attrs.items():
            kind = op.spec.attrs[name].rstrip("?")
            if kind != "axes" and value is not None:
                op.attrs[name] = kind_of(kind).mapped(value, images)


def _only_multiplies(loop: Op, program: Program, roots: Mapping[Value, Value]) -> bool:
    """True if `loop` has one block, with only views, copies, barriers, loops and at least one MMA, and if its copies
    fill no argument and no tile that an operation outside of `loop` uses. `roots` is {value: allocation or argument
    below its views}.
    """
    inside = [op for block in loop.blocks for op in walk_block(block)]
    filled = {roots[op.operands[1]] for op in inside if op.name == "copy"}
    within = set(inside)
    others = (op for op in program.walk() if op not in within and op.name != "view")
    used = {roots.get(v, v) for op in others for v in op.operands}
    is_plain = all(op.name in PASSED for op in inside) and len(loop.blocks) == 1
    return is_plain and filled.isdisjoint((*program.args, *used)) and any(op.name == "mma" for op in inside)


def _needed_iterations(loop: Op, makers: Mapping[Value, Op], roots: Mapping[Value, Value]) -> Iterations | None:
    """Return (first, end): in all iterations of `loop` outside of this range, its MMAs multiply a tile that is all
    zeros. Only tiles that all of its MMAs use count. Return None if no such tile limits the iterations.

    `makers` is {value: operation that defines it}, and `roots` is {value: allocation or argument below its views}.
    """
    inside = list(walk_block(loop.blocks[0]))
    copies: dict[Value, list[Op]] = {}
    for op in inside:
        if op.name == "copy":
            copies.setdefault(roots[op.operands[1]], []).append(op)
    (r,) = loop.attrs["ranges"]
    iterations: Iterations | None = None
    for tile, copies_of_tile in copies.items():
        if not all(any(roots.get(v) is tile for v in op.operands[1:]) for op in inside if op.name == "mma"):
            continue
        limits = [set(_limits(copy, loop, makers)) for copy in copies_of_tile]
        for first, end in sorted(set.intersection(*limits), key=str):
            lo, hi = iterations or (r.lo, r.hi)
            lo = maximum(lo, first)
            iterations = lo, maximum(lo, minimum(hi, end))
    return iterations


def _limits(copy: Op, loop: Op, makers: Mapping[Value, Op]) -> Iterator[Iterations]:
    """Yield (first, end) for each coordinate of the copy's source that limits the iterations of `loop`: in an iteration
    outside of this range, all elements of the source are out of bounds. Nothing is yielded unless the source is a view
    and the copy fills in 0 for elements out of bounds. `makers` is {value: operation that defines it}.
    """
    view = makers.get(copy.operands[0])
    if copy.attrs.get("otherwise") != 0 or view is None or view.name != "view":
        return
    (r,) = loop.attrs["ranges"]
    varying = {*view.attrs["over"], *_symbols_of(loop)} - {r.symbol}
    for e, extent in _checked_coordinates(view, makers):
        form = linear_form(e, [r.symbol]) if e.symbols.isdisjoint(varying) else None
        coefficient = form[0].get(r.symbol) if form is not None else None
        if form is None or coefficient is None or not coefficient.is_constant:
            continue
        yield indices_in_bounds(int(coefficient), form[1], extent)


def _checked_coordinates(view: Op, makers: Mapping[Value, Op]) -> Iterator[tuple[Expr, Expr]]:
    """Yield (coordinate, extent) for each coordinate of `view` that needs a bounds check, then for those of the views
    below `view`. `extent` is the extent of the dimension in which the coordinate must lie. All coordinates are
    expressions of the axes of `view` and of loop variables. `makers` is {value: operation that defines it}.
    """
    places = view.attrs["at"]
    yield from ((e, n) for (e, may_leave), n in zip(places, view.operands[0].type.shape, strict=True) if may_leave)
    base = makers.get(view.operands[0])
    if base is not None and base.name == "view":
        images = Substitution({s: e for s, (e, _) in zip(base.attrs["over"], places, strict=True)})
        yield from ((images(e), n) for e, n in _checked_coordinates(base, makers))


def _symbols_of(loop: Op) -> set[Symbol]:
    """Return the variables of all loops inside `loop`, without those of `loop` itself."""
    inside = walk_block(loop.blocks[0])
    return {r.symbol for op in inside if op.name == "for" for r in op.attrs["ranges"]}


def _roots(program: Program) -> dict[Value, Value]:
    """Return {value: the allocation or argument below its views} for all results of the program. A result that is no
    view is mapped to itself. Arguments have no entries.
    """
    roots: dict[Value, Value] = {}
    for op in program.walk():
        for result in op.results:
            roots[result] = roots.get(op.operands[0], op.operands[0]) if op.name == "view" else result
    return roots
