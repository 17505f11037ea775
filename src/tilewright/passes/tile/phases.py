"""Phases: a product whose operand is zero but where h - r + 1 is even, as products over half as many taps.

    %0 = read %dy over=[h, r, f] at=[(h - r + 1)//2 ..., f]      : bf16[H, R, F]
    %1 = read %w  over=[r, f, c] at=[f, r, c]                     : bf16[R, F, C]
    write %total, %dx over=[h, c] at=[h, c]                       f32[H, C]

    %0 = read %dy over=[u, p, q, f] at=[u + p - q, f] otherwise=0       : bf16[H_1, H_0, R_1, F]
    %1 = read %w  over=[q, p, f, c] at=[f, 2*q - p + 1, c] otherwise=0  : bf16[R_1, H_0, F, C]
    write %total, %dx over=[u, p, c] at=[2*u + p, c]                    f32[H_1, H_0, C]

The phase p tells which taps r meet an element h (`congruences`): h and r become numbers of u, q and p, all linear, so
that h - r + 1 is a multiple of 2 for all of them. Whatever divided that sum divides no more. Taps past the last one
read zeros, elements past the ends are not written. With a stride s and a dilation d there are s/gcd(s, d) phases, and
elements that no tap meets are one more dimension of the operand, along which all but the first read zeros.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution, evaluate
from tilewright.ir.core import Op, Program, Value, building
from tilewright.ir.printer import program_symbols
from tilewright.ir.tile import TILE, accessed
from tilewright.ir.verifier import verify
from tilewright.passes.tile.congruences import SAME, Congruence, Congruences, conjuncts, tiles_of
from tilewright.passes.tile.rewriting import Rewriter, places, without_unused
from tilewright.plan.boxes import numbers_of
from tilewright.plan.general import ALIKE, only_adds
from tilewright.plan.written import TABLED

Sizes = Mapping[Symbol, int]
InPhases = tuple[Program, dict[Symbol, int], Collection[Op]]
"""A program, the sizes of its dimensions, and its free loops."""


def in_phases(
    program: Program, sizes: Sizes, free: Collection[Op], *, named: Collection[str] = (), only_even: bool = False
) -> InPhases:
    """Return (the program with every congruence taken apart into phases, its sizes, its free loops (same result for
    every tile size)).

    Sums over dimensions in `named` stay as they are: a given plan names them. With `only_even`, so do sums whose phases
    do not all have equally many taps. The program is returned as it is if no operand of an MMA is zero by a congruence.
    """
    rewritten: InPhases = program, dict(sizes), free
    with building():
        while (following := _next(*rewritten, named, only_even)) is not None:
            rewritten = following
    return rewritten


def _next(
    program: Program, sizes: Sizes, free: Collection[Op], named: Collection[str], only_even: bool
) -> InPhases | None:
    """Return the program with one congruence taken apart; None if there is none that can be."""
    finder = Congruences(program, sizes)
    for congruence in finder.proposed():
        if str(congruence.summed) in named or not finder.holds(congruence):
            continue
        plain, loops = _without_condition(program, free, finder, congruence)
        rewrite = _Phases(plain, sizes, loops, congruence)
        if (rewrite.is_even or not only_even) and rewrite.applies():
            return rewrite.run()
    return None


def _without_condition(
    program: Program, free: Collection[Op], finder: Congruences, congruence: Congruence
) -> tuple[Program, Collection[Op]]:
    """Return (the program without selects whose condition is the congruence itself, its free loops).

    Only a congruence that some tap solves for every element can go: in phases it holds everywhere.
    """
    same = {
        op: [c for c in conjuncts(op.operands[0], finder.makers) if not finder.is_same(c, congruence)]
        for op in program.walk()
        if op.name == "select" and gcd(congruence.step, congruence.modulus) == 1
    }
    same = {op: rest for op, rest in same.items() if len(rest) < len(conjuncts(op.operands[0], finder.makers))}
    if not same:
        return program, free
    rewrite = _Unconditional(same)
    body = without_unused(rewrite.body(program.body))
    return replace(program, body=body), {rewrite.kept[op] for op in free if op in rewrite.kept}


class _Unconditional(Rewriter):
    """Rewrites selects with fewer conditions: `left` has the conditions that stay, for each."""

    def __init__(self, left: Mapping[Op, list[Value]]):
        super().__init__()
        self.left = left

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the dimensions as they are."""
        return dims

    def access(self, op: Op) -> Mapping[str, object]:
        """Return no changes."""
        return {}

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten operations; a select without a condition is what it selects."""
        for op in given:
            if op not in self.left:
                super().block([op], ops)
                continue
            condition: Value | None = None
            for c in map(self.of, self.left[op]):
                if condition is not None:
                    both = Op(TILE.ops["and_"], (condition, c), {}, (), (), op.loc)
                    assert both.spec.result_types is not None
                    both.results = tuple(map(Value, both.spec.result_types(both)))
                    ops.append(both)
                condition = c if condition is None else ops[-1].result
            if condition is None:
                self.values[op.result] = self.of(op.operands[1])
            else:
                operands = (condition, *map(self.of, op.operands[1:]))
                ops.append(Op(op.spec, operands, op.attrs, (Value(op.result.type, op.result.name),), (), op.loc))
                self.values[op.result] = ops[-1].result


@dataclass(frozen=True)
class _Numbers:
    """How indices h (kept) and r (summed) follow from phases.

    h is modulus*u + first + turn*p + e with u < `count`, p < `phases` and e < `apart`; r is phases*q + tap + along*p
    with q < `taps`.
    """

    congruence: Congruence
    count: int
    phases: int
    apart: int
    taps: int
    first: int
    turn: int
    tap: int
    along: int

    def kept(self, u: Expr, p: Expr, e: Expr) -> Expr:
        """Return the index along the kept dimension."""
        return self.congruence.modulus * u + self.first + self.turn * p + e

    def summed(self, q: Expr, p: Expr) -> Expr:
        """Return the index along the summed dimension."""
        return self.phases * q + self.tap + self.along * p


def _numbers(congruence: Congruence, kept: int, summed: int) -> _Numbers:
    """Return how indices follow from phases, for dimensions with `kept` and `summed` elements.

    Of two ways to number elements the one with fewer is taken: by their place, which is linear in the phase for two
    phases; or by the tap that they meet, which may begin before the first element.
    """
    apart = gcd(congruence.step, congruence.modulus)
    phases = congruence.modulus // apart
    taps = -(-summed // phases)
    turn, start = -congruence.sign * congruence.step, -congruence.sign * congruence.rest
    ends = [start + turn * p + e for p in (0, phases - 1) for e in (0, apart - 1)]
    least, most = -(max(ends) // congruence.modulus), (kept - 1 - min(ends)) // congruence.modulus
    by_tap = _Numbers(congruence, most - least + 1, phases, apart, taps, congruence.modulus * least + start, turn, 0, 1)
    count = -(-kept // congruence.modulus)
    if (phases, apart) != (2, 1) or by_tap.count <= count:
        return by_tap
    tap = congruence.rest % 2  # of h = 0: an odd step meets odd elements by the other tap
    return _Numbers(congruence, count, phases, apart, taps, 0, 1, tap, 1 - 2 * tap)


class _Phases(Rewriter):
    """Rewrites a program over the phases of a congruence."""

    def __init__(self, program: Program, sizes: Sizes, free: Collection[Op], congruence: Congruence):
        super().__init__()
        self.program, self.sizes, self.free, self.congruence = program, dict(sizes), free, congruence
        size = numbers_of(sizes)
        self.size = size
        self.numbers = _numbers(congruence, size(congruence.kept), size(congruence.summed))
        taken = {s.name for s in (*program_symbols(program), *sizes)}
        dims = [
            _new(f"{congruence.kept}_1", taken),
            _new(f"{congruence.kept}_0", taken),
            _new(f"{congruence.kept}_2", taken),
        ]
        self.dims = (*dims, _new(f"{congruence.summed}_1", taken))
        """The dimensions of u, p, e and q."""
        numbers = self.numbers
        extents = (numbers.count, numbers.phases, numbers.apart, numbers.taps)
        self.extents = dict(zip(self.dims, extents, strict=True))
        self.sizes |= self.extents
        self.over_ = tuple(symbol(f"at_{d}", 0, self.extents[d] - 1) for d in self.dims)
        u, p, e, q = (s if self.extents[d] > 1 else as_expr(0) for d, s in zip(self.dims, self.over_, strict=True))
        self.at = {congruence.kept: numbers.kept(u, p, e), congruence.summed: numbers.summed(q, p)}
        self.values_of = Substitution(dict(sizes))
        self.by_phase = any(
            self.over_[1] in x.symbols
            for op in program.walk()
            if op.name == "read" and {congruence.kept, congruence.summed} <= set(op.result.type.dims)
            for x in self._access_at(op)
        )
        """True if the operand that is zero by the congruence depends on the phase."""

    @property
    def is_even(self) -> bool:
        """True if all phases have equally many taps."""
        return self.numbers.taps * self.numbers.phases == self.size(self.congruence.summed)

    # -- whether it can be done ----------------------------------------------------------------------------

    def applies(self) -> bool:
        """True if the program means the same in phases."""
        congruence = self.congruence
        records = self.program.records
        if any(
            not e.symbols.isdisjoint((congruence.kept, congruence.summed)) for r in records for e in _exprs(r.attrs)
        ):
            return False
        return all(self._fits(op) for op in self.program.walk())

    def _fits(self, op: Op) -> bool:
        """True if an operation means the same in phases, or has neither dimension."""
        h, r = self.congruence.kept, self.congruence.summed
        dims = tiles_of(op)
        if any(not {h, r}.isdisjoint(d.symbols) for d in dims if not isinstance(d, Symbol)):
            return False
        if op.name == "iterate" and op.attrs["axis"] in (h, r):
            return op.attrs["axis"] is r and op in self.free and only_adds(op)
        if dims.isdisjoint((h, r)):
            return True
        if op.name not in ALIKE or op.attrs.get("lookups") or op.attrs.get("bounds"):
            return False
        if op.name == "mma":
            return self._fits_product(op)
        if op.name == "write":
            return r not in dims and self._drops_outside(op, h)
        return op.name in ("read", "iterate", "yield", *SAME, *self._selects(op)) or r not in dims

    def _selects(self, op: Op) -> tuple[str, ...]:
        """Return the name of a select that treats the summed dimension as its other operands do, in a tuple."""
        is_plain = op.name == "select" and _has_zero(op, self.program.makers())
        return ("select",) if is_plain and self.congruence.summed not in op.operands[0].type.dims else ()

    def _fits_product(self, op: Op) -> bool:
        """True if an MMA sums over all taps of an element, or over no taps at all."""
        h, r = self.congruence.kept, self.congruence.summed
        a, b, acc = (set(v.type.dims) for v in op.operands)
        if h not in acc or r in acc:
            return False
        if r not in a | b:
            return True
        if r not in a & b or (h in a) == (h in b):
            return False
        return self._is_zero_past(op.operands[1 if h in a else 0])

    def _is_zero_past(self, value: Value) -> bool:
        """True if there are no taps past the last one, or the operand with the taps is zero there."""
        r = self.congruence.summed
        if self.is_even:
            return True
        op = self.program.makers().get(value)
        while op is not None and op.name in SAME:
            op = self.program.makers().get(op.operands[0])
        return op is not None and op.name == "read" and op.attrs.get("otherwise", 0) == 0 and self._drops_outside(op, r)

    def _drops_outside(self, op: Op, dim: Symbol) -> bool:
        """True if a read or write leaves memory wherever phases number no element of a dimension."""
        extent, whole = self.size(dim), self.at[dim]
        symbols = [s for s in self.over_ if s in whole.symbols]
        grid = _grid({s: self.extents[d] for d, s in zip(self.dims, self.over_, strict=True) if s in symbols})
        place = np.asarray(evaluate(whole, grid))
        if ((place >= 0) & (place < extent)).all():
            return True
        memory, kind, _ = accessed(op)
        _, over, _ = places(op)
        sizes = {s: self.size(d) for d, s in zip(kind.dims, over, strict=True) if d is not dim}
        sizes |= {s: self.extents[d] for d, s in zip(self.dims, self.over_, strict=True)}
        for e, d in zip(self._access_at(op), memory.type.sizes, strict=True):
            used = {s: sizes[s] for s in {*e.symbols, *symbols} if s in sizes}
            if d is None or e.symbols - used.keys() or prod(used.values()) > TABLED:
                continue
            grid = _grid(used)
            at, place = np.asarray(evaluate(e, grid)), np.asarray(evaluate(whole, grid))
            if not ((at >= 0) & (at < self.size(d)) & ((place < 0) | (place >= extent))).any():
                return True
        return False

    # -- the program over phases ---------------------------------------------------------------------------

    def run(self) -> InPhases:
        """Return (the program over phases, its sizes, its free loops (same result for every tile size))."""
        rewritten = replace(self.program, body=without_unused(self.body(self.program.body)))
        verify(rewritten)
        return rewritten, self.sizes, {self.kept[op] for op in self.free if op in self.kept}

    def goes(self, op: Op) -> bool:
        """True if a loop over taps is eliminated: the MMA sums over them."""
        return op.attrs["axis"] is self.congruence.summed

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the dimensions of a tile over phases."""
        return tuple(x for d in dims for x in self._made(d, dims))

    def _made(self, dim: Expr, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the dimensions that replace one of a tile's; those of extent 1 are left out, but for one."""
        (u, p, e, q), h, r = self.dims, self.congruence.kept, self.congruence.summed
        replacement: tuple[Symbol, ...]
        if dim is h:
            replacement = (u, p, e) if r not in dims or self.by_phase else (u, e)
            return tuple(d for d in replacement if d is u or self.extents[d] > 1)
        if dim is r:
            replacement = (q,) if h in dims else (q, p)
            return tuple(d for d in replacement if d is q or self.extents[d] > 1)
        return (dim,)

    def access(self, op: Op) -> dict[str, object]:
        """Return the iterators and coordinates of a read or write over phases."""
        kind, before, _ = places(op)
        if {self.congruence.kept, self.congruence.summed}.isdisjoint(kind.dims):
            return {}
        index_of = dict(zip(self.dims, self.over_, strict=True)) | dict(zip(kind.dims, before, strict=True))
        over = tuple(index_of[d] for d in self.over(kind.dims))
        zero = {"otherwise": 0} if op.name == "read" and "otherwise" not in op.attrs else {}
        return {"over": over, "at": self._access_at(op), **zero}

    def _access_at(self, op: Op) -> tuple[Expr, ...]:
        """Return the coordinates of a read or write over phases."""
        kind, over, at = places(op)
        images = Substitution({s: self.at[d] for d, s in zip(kind.dims, over, strict=True) if d in self.at})
        return tuple(images(self.values_of(e)) for e in at)


def _has_zero(op: Op, makers: Mapping[Value, Op]) -> bool:
    """True if a select gives the number 0 where its condition does not hold."""
    maker = makers.get(op.operands[2])
    return maker is not None and maker.name in ("fill", "scalar") and maker.attrs["value"] == 0


def _new(name: str, taken: set[str]) -> Symbol:
    """Return a symbol whose name, made from `name`, is not taken; now it is."""
    while name in taken:
        name += "_"
    taken.add(name)
    return symbol(name, 0)


def _grid(extents: Mapping[Symbol, int]) -> dict[Symbol, np.ndarray]:
    """Return {index: its numbers, shaped to broadcast with the others}."""
    return dict(zip(extents, np.ogrid[tuple(slice(0, n) for n in extents.values())], strict=True))


def _exprs(attrs: Mapping[str, object]) -> list[Expr]:
    """Return the expressions among attribute values, and in tuples of them."""
    return [e for v in attrs.values() for e in (v if isinstance(v, tuple) else (v,)) if isinstance(e, Expr)]
