"""Phases: splits an MMA whose operand is zero unless h - r + 1 is even into MMAs over half as many taps.

    %0 = read %dy over=[h, r, f] at=[(h - r + 1)//2 ..., f]      : bf16[H, R, F]
    %1 = read %w  over=[r, f, c] at=[f, r, c]                     : bf16[R, F, C]
    write %total, %dx over=[h, c] at=[h, c]                       f32[H, C]

    %0 = read %dy over=[u, p, q, f] at=[u + p - q, f] otherwise=0       : bf16[H_1, H_0, R_1, F]
    %1 = read %w  over=[q, p, f, c] at=[f, 2*q - p + 1, c] otherwise=0  : bf16[R_1, H_0, F, C]
    write %total, %dx over=[u, p, c] at=[2*u + p, c]                    f32[H_1, H_0, C]

The phase p determines which taps r are multiplied with an element h (`congruences`). h and r become linear expressions
of new indices u, q and p, for which h - r + 1 is always a multiple of 2, so that accesses need no division. Taps past
the last one read zeros; elements past the ends are not written. With a stride s and a dilation d there are s/gcd(s, d)
phases; elements that no tap reaches are one more dimension of the operand, along which all but the first read zeros.
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
from tilewright.plan.boxes import numbers_of
from tilewright.plan.general import ALIKE, only_adds
from tilewright.plan.writes import TABLED
from tilewright.rewrite.congruences import SAME, Congruence, Congruences, conjuncts, tiles_of
from tilewright.rewrite.rewriter import Rewriter, places, without_unused

Sizes = Mapping[Symbol, int]
InPhases = tuple[Program, dict[Symbol, int], Collection[Op]]
"""A program, the sizes of its dimensions, and its free loops."""


def in_phases(
    program: Program, sizes: Sizes, free: Collection[Op], *, named: Collection[str] = (), only_even: bool = False
) -> InPhases:
    """Return (program with every congruence split into phases, its sizes, its free loops); unchanged if it has none.

    A congruence is an operand of an MMA that is zero unless a sum of indices is a multiple of a number. Summed
    dimensions in `named` (names in a given plan) are not split. With `only_even`, all phases of a split must have
    equally many taps. `free` are the loops with the same result for every tile size.
    """
    rewritten: InPhases = program, dict(sizes), free
    with building():
        while (split := _split_one(*rewritten, named, only_even)) is not None:
            rewritten = split
    return rewritten


def _split_one(
    program: Program, sizes: Sizes, free: Collection[Op], named: Collection[str], only_even: bool
) -> InPhases | None:
    """Return (program, sizes, free loops) with one congruence split into phases; None if none can be split.

    A congruence is an operand of an MMA that is zero unless a sum of indices is a multiple of a number. `named` are
    summed dimensions that are not split; with `only_even`, all phases must have equally many taps. `free` are the loops
    with the same result for every tile size.
    """
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
    """Return (program without selects whose condition is the congruence itself, its free loops).

    Over phases, the condition is true everywhere, if every element has a tap that solves the congruence; otherwise
    selects stay. `free` are the loops with the same result for every tile size.
    """
    remaining = {
        op: [c for c in conjuncts(op.operands[0], finder.makers) if not finder.is_same(c, congruence)]
        for op in program.walk()
        if op.name == "select" and gcd(congruence.step, congruence.modulus) == 1
    }
    remaining = {
        op: rest for op, rest in remaining.items() if len(rest) < len(conjuncts(op.operands[0], finder.makers))
    }
    if not remaining:
        return program, free
    rewrite = _Unconditional(remaining)
    body = without_unused(rewrite.body(program.body))
    return replace(program, body=body), {rewrite.kept[op] for op in free if op in rewrite.kept}


class _Unconditional(Rewriter):
    """Rewrites selects with fewer conditions: `left` maps each select to the conditions that remain."""

    def __init__(self, left: Mapping[Op, list[Value]]):
        super().__init__()
        self.left = left

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return `dims`: tiles keep their dimensions."""
        return dims

    def access(self, op: Op) -> Mapping[str, object]:
        """Return {}: reads and writes keep their attributes."""
        return {}

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten operations of the list `given` to `ops`; a select without conditions is replaced by its
        operand.
        """
        for op in given:
            if op not in self.left:
                super().block([op], ops)
                continue
            condition: Value | None = None
            for c in map(self.of, self.left[op]):
                if condition is not None:
                    conjunction = Op(TILE.ops["and_"], (condition, c), {}, (), (), op.loc)
                    assert conjunction.spec.result_types is not None
                    conjunction.results = tuple(map(Value, conjunction.spec.result_types(conjunction)))
                    ops.append(conjunction)
                condition = c if condition is None else ops[-1].result
            if condition is None:
                self.values[op.result] = self.of(op.operands[1])
            else:
                operands = (condition, *map(self.of, op.operands[1:]))
                ops.append(Op(op.spec, operands, op.attrs, (Value(op.result.type, op.result.name),), (), op.loc))
                self.values[op.result] = ops[-1].result


@dataclass(frozen=True)
class _Numbers:
    """How the kept index h and the summed index r of a congruence follow from the indices of phases.

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
        """Return modulus*u + first + turn*p + e: the index along the kept dimension of element (u, e) of phase p."""
        return self.congruence.modulus * u + self.first + self.turn * p + e

    def summed(self, q: Expr, p: Expr) -> Expr:
        """Return phases*q + tap + along*p: the index along the summed dimension of tap q of phase p."""
        return self.phases * q + self.tap + self.along * p


def _numbers(congruence: Congruence, kept: int, summed: int) -> _Numbers:
    """Return how indices follow from phases (_Numbers), for dimensions with `kept` and `summed` elements.

    Elements are numbered by their index, which is linear in the phase if there are two; or by the tap that reaches
    them, which may begin before the first element. The numbering with fewer elements is taken.
    """
    common_divisor = gcd(congruence.step, congruence.modulus)
    phases = congruence.modulus // common_divisor
    taps = -(-summed // phases)
    turn, start = -congruence.sign * congruence.step, -congruence.sign * congruence.rest
    offsets = [start + turn * p + e for p in (0, phases - 1) for e in (0, common_divisor - 1)]
    least, most = -(max(offsets) // congruence.modulus), (kept - 1 - min(offsets)) // congruence.modulus
    by_tap = _Numbers(
        congruence, most - least + 1, phases, common_divisor, taps, congruence.modulus * least + start, turn, 0, 1
    )
    count = -(-kept // congruence.modulus)
    if (phases, common_divisor) != (2, 1) or by_tap.count <= count:
        return by_tap
    tap = congruence.rest % 2  # the tap that reaches h = 0; odd elements have the other one
    return _Numbers(congruence, count, phases, common_divisor, taps, 0, 1, tap, 1 - 2 * tap)


class _Phases(Rewriter):
    """Rewrites a program over the phases of one congruence."""

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
        """True if coordinates of the operand that has both dimensions depend on the phase."""

    @property
    def is_even(self) -> bool:
        """True if all phases have equally many filter taps."""
        return self.numbers.taps * self.numbers.phases == self.size(self.congruence.summed)

    # -- whether it can be done ----------------------------------------------------------------------------

    def applies(self) -> bool:
        """True if rewriting the program over phases keeps its meaning."""
        congruence = self.congruence
        records = self.program.records
        if any(
            not e.symbols.isdisjoint((congruence.kept, congruence.summed)) for r in records for e in _exprs(r.attrs)
        ):
            return False
        return all(self._fits(op) for op in self.program.walk())

    def _fits(self, op: Op) -> bool:
        """True if rewriting the operation over phases keeps its meaning, or if it has neither dimension of the
        congruence.
        """
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
        """Return ("select",) if `op` is a select of zeros whose condition lacks the summed dimension; () otherwise."""
        is_plain = op.name == "select" and _has_zero(op, self.program.makers())
        return ("select",) if is_plain and self.congruence.summed not in op.operands[0].type.dims else ()

    def _fits_product(self, op: Op) -> bool:
        """True if rewriting an MMA over phases keeps its meaning.

        It must sum over all taps of an element, and read zeros past the last tap, or sum over no tap.
        """
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
        """True if the operand `value` is zero for taps that phases number past the last one, or if there are no such
        taps.
        """
        r = self.congruence.summed
        if self.is_even:
            return True
        op = self.program.makers().get(value)
        while op is not None and op.name in SAME:
            op = self.program.makers().get(op.operands[0])
        return op is not None and op.name == "read" and op.attrs.get("otherwise", 0) == 0 and self._drops_outside(op, r)

    def _drops_outside(self, op: Op, dim: Symbol) -> bool:
        """True if a read or write is out of bounds at all indices of phases that give no element of `dim`."""
        extent, index_expression = self.size(dim), self.at[dim]
        symbols = [s for s in self.over_ if s in index_expression.symbols]
        grid = _grid({s: self.extents[d] for d, s in zip(self.dims, self.over_, strict=True) if s in symbols})
        index = np.asarray(evaluate(index_expression, grid))
        if ((index >= 0) & (index < extent)).all():
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
            at, index = np.asarray(evaluate(e, grid)), np.asarray(evaluate(index_expression, grid))
            if not ((at >= 0) & (at < self.size(d)) & ((index < 0) | (index >= extent))).any():
                return True
        return False

    # -- the program over phases ---------------------------------------------------------------------------

    def run(self) -> InPhases:
        """Return (program over phases, its sizes, its free loops, those with the same result for every tile size)."""
        rewritten = replace(self.program, body=without_unused(self.body(self.program.body)))
        verify(rewritten)
        return rewritten, self.sizes, {self.kept[op] for op in self.free if op in self.kept}

    def goes(self, op: Op) -> bool:
        """True if `op` is the loop over taps, which is removed: the MMA sums over them."""
        return op.attrs["axis"] is self.congruence.summed

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the dimensions over phases of a tile with the dimensions `dims`."""
        return tuple(x for d in dims for x in self._made(d, dims))

    def _made(self, dim: Expr, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the dimensions that replace `dim` in a tile with the dimensions `dims`; all but the first have extent
        > 1.
        """
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
        """Return the iterators `over`, coordinates `at` and perhaps `otherwise` of a read or write over phases."""
        kind, before, _ = places(op)
        if {self.congruence.kept, self.congruence.summed}.isdisjoint(kind.dims):
            return {}
        index_of = dict(zip(self.dims, self.over_, strict=True)) | dict(zip(kind.dims, before, strict=True))
        over = tuple(index_of[d] for d in self.over(kind.dims))
        zero = {"otherwise": 0} if op.name == "read" and "otherwise" not in op.attrs else {}
        return {"over": over, "at": self._access_at(op), **zero}

    def _access_at(self, op: Op) -> tuple[Expr, ...]:
        """Return the memory coordinates of a read or write as expressions of the indices of phases."""
        kind, over, at = places(op)
        images = Substitution({s: self.at[d] for d, s in zip(kind.dims, over, strict=True) if d in self.at})
        return tuple(images(self.values_of(e)) for e in at)


def _has_zero(op: Op, makers: Mapping[Value, Op]) -> bool:
    """True if a select gives the number 0 where its condition is false."""
    maker = makers.get(op.operands[2])
    return maker is not None and maker.name in ("fill", "scalar") and maker.attrs["value"] == 0


def _new(name: str, taken: set[str]) -> Symbol:
    """Return a symbol called `name`, with underscores behind it if that is in `taken`; its name is added there."""
    while name in taken:
        name += "_"
    taken.add(name)
    return symbol(name, 0)


def _grid(extents: Mapping[Symbol, int]) -> dict[Symbol, np.ndarray]:
    """Return {symbol: array of its indices, shaped to broadcast with the others}."""
    return dict(zip(extents, np.ogrid[tuple(slice(0, n) for n in extents.values())], strict=True))


def _exprs(attrs: Mapping[str, object]) -> list[Expr]:
    """Return the expressions among attribute values, and in tuples among them."""
    return [e for v in attrs.values() for e in (v if isinstance(v, tuple) else (v,)) if isinstance(e, Expr)]
