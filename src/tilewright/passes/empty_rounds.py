"""Loops without rounds that only multiply zeros: a tap outside the filter, known before the loop begins.

    for k in 0..2 {                                        for k in 0..(4 - p)//2 {
      %view = view %w (...) -> [..., 2*k + p ?, ...]         of 3 taps, the one at 2 + p is none where p is 1
      copy %view -> %tile else 0
      mma %sums += %rows * %tile

It is a pass over block programs before roles are split, so that both roles go over the same rounds. Nothing in it knows
convolutions: it sees copies that leave their tensor as a whole, and MMAs of the tiles that they fill.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import Substitution, indices_in_bounds, linear_form
from tilewright.ir.attrs import Range, kind_of
from tilewright.ir.core import Op, Program, Value, walk_block

PASSED = frozenset({"view", "barrier", "for", "copy", "mma"})
"""Operations that change nothing beyond a round but by MMAs: copies fill tiles that the round uses."""

Rounds = tuple[Expr, Expr]
"""The first round that is done, and the end."""


def without_empty_rounds(program: Program) -> None:
    """Narrow the loops of a block program, in place, to rounds in which an operand of their MMAs is not all zeros.

    Loops that have nothing but a narrowed one in them, or that a narrowed one has nothing but, are one loop with it:
    MMAs of short loops then follow each other without a wait between.
    """
    makers, roots = program.makers(), _roots(program)
    narrowed: set[Op] = set()
    for loop in [op for op in program.walk() if op.name == "for" and len(op.attrs["ranges"]) == 1]:
        (r,) = loop.attrs["ranges"]
        if r.step != 1 or loop.attrs.get("unroll") or not _only_multiplies(loop, program, roots):
            continue
        rounds = _rounds(loop, makers, roots)
        if rounds is not None and rounds != (r.lo, r.hi):
            _narrow(loop, r, Range.of(r.symbol.name, *rounds))
            narrowed.add(loop)
    for loop in [op for op in program.walk() if op.name == "for"] if narrowed else ():
        _join_inner(loop, narrowed)


def _join_inner(loop: Op, narrowed: set[Op]) -> None:
    """Make a nest of loops, of which one was narrowed, one loop with several ranges, in place."""
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
    """Give a loop another range, in place; its body gets the symbol that knows the new limits."""
    loop.attrs["ranges"] = (after,)
    images = Substitution({before.symbol: after.symbol})
    for op in walk_block(loop.blocks[0]):
        for name, value in op.attrs.items():
            kind = op.spec.attrs[name].rstrip("?")
            if kind != "axes" and value is not None:
                op.attrs[name] = kind_of(kind).mapped(value, images)


def _only_multiplies(loop: Op, program: Program, roots: Mapping[Value, Value]) -> bool:
    """True if a loop does nothing but fill tiles of its own and multiply them."""
    inside = [op for block in loop.blocks for op in walk_block(block)]
    filled = {roots[op.operands[1]] for op in inside if op.name == "copy"}
    within = set(inside)
    others = (op for op in program.walk() if op not in within and op.name != "view")
    used = {roots.get(v, v) for op in others for v in op.operands}
    is_plain = all(op.name in PASSED for op in inside) and len(loop.blocks) == 1
    return is_plain and filled.isdisjoint((*program.args, *used)) and any(op.name == "mma" for op in inside)


def _rounds(loop: Op, makers: Mapping[Value, Op], roots: Mapping[Value, Value]) -> Rounds | None:
    """Return the rounds in which, for all MMAs of a loop, both operands may have elements; None if all may have."""
    inside = list(walk_block(loop.blocks[0]))
    copies: dict[Value, list[Op]] = {}
    for op in inside:
        if op.name == "copy":
            copies.setdefault(roots[op.operands[1]], []).append(op)
    (r,) = loop.attrs["ranges"]
    rounds: Rounds | None = None
    for tile, of_tile in copies.items():
        if not all(any(roots.get(v) is tile for v in op.operands[1:]) for op in inside if op.name == "mma"):
            continue
        limits = [set(_limits(copy, loop, makers)) for copy in of_tile]
        for first, end in sorted(set.intersection(*limits), key=str):
            lo, hi = rounds or (r.lo, r.hi)
            lo = maximum(lo, first)
            rounds = lo, maximum(lo, minimum(hi, end))
    return rounds


def _limits(copy: Op, loop: Op, makers: Mapping[Value, Op]) -> Iterator[Rounds]:
    """Yield (first, end) of the rounds in which a copy is not outside its tensor as a whole, for each coordinate."""
    view = makers.get(copy.operands[0])
    if copy.attrs.get("otherwise") != 0 or view is None or view.name != "view":
        return
    (r,) = loop.attrs["ranges"]
    varying = {*view.attrs["over"], *_symbols_of(loop)} - {r.symbol}
    for e, extent in _loose(view, makers):
        form = linear_form(e, [r.symbol]) if e.symbols.isdisjoint(varying) else None
        factor = form[0].get(r.symbol) if form is not None else None
        if form is None or factor is None or not factor.is_constant:
            continue
        yield indices_in_bounds(int(factor), form[1], extent)


def _loose(view: Op, makers: Mapping[Value, Op]) -> Iterator[tuple[Expr, Expr]]:
    """Yield (coordinate, extent) of the coordinates of a view, and of views it is of, that may be out of bounds."""
    places = view.attrs["at"]
    yield from ((e, n) for (e, loose), n in zip(places, view.operands[0].type.shape, strict=True) if loose)
    of = makers.get(view.operands[0])
    if of is not None and of.name == "view":
        images = Substitution({s: e for s, (e, _) in zip(of.attrs["over"], places, strict=True)})
        yield from ((images(e), n) for e, n in _loose(of, makers))


def _symbols_of(loop: Op) -> set[Symbol]:
    """Return the symbols that operations inside a loop define."""
    inside = walk_block(loop.blocks[0])
    return {r.symbol for op in inside if op.name == "for" for r in op.attrs["ranges"]}


def _roots(program: Program) -> dict[Value, Value]:
    """Return {value: the allocation or argument that it is a view of}."""
    roots: dict[Value, Value] = {}
    for op in program.walk():
        for result in op.results:
            roots[result] = roots.get(op.operands[0], op.operands[0]) if op.name == "view" else result
    return roots
