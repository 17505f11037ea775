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
    """Skip multiplications by zeros in MMAs, as in a strided transposed convolution.

    Return (new program, {dimension: extent}, counterparts of the loops `free` in it). An MMA operand may be zero unless
    a sum of two indices, one of the result and one of filter taps, is a multiple of a number. The result's index is
    then split into phases (residues modulo that number). Each phase is multiplied with only those taps that meet
    operand elements other than zero. This is repeated until no operand allows it; without such an operand, nothing
    changes.

    Taps named in `named`, a collection of dimension names, are not split. With `only_even`, all phases must get equally
    many taps. `sizes` is {dimension: extent}. `free` holds the loops that give the same result for every tile size.
    """
    rewritten: InPhases = program, dict(sizes), free
    with building():
        while (split := _split_one(*rewritten, named, only_even)) is not None:
            rewritten = split
    return rewritten


def _split_one(
    program: Program, sizes: Sizes, free: Collection[Op], named: Collection[str], only_even: bool
) -> InPhases | None:
    """Split one index of the result into phases, as `in_phases` does repeatedly; None if no congruence allows it.

    A congruence says that a sum of two indices is a multiple of a number. Return (new program, {dimension: extent},
    counterparts of the loops `free` in it). The parameters are those of `in_phases`.
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
    """Remove tests of `congruence` from the conditions of selects; return (new program, counterparts of the loops
    `free`).

    `congruence` says that a sum of two indices is a multiple of a number; a later rewrite makes it true everywhere.
    Both results are returned unchanged if no select tests it, or if its step and modulus have a common divisor: no tap
    then reaches some elements of the result. `finder` finds the tests. `free` holds the loops that give the same result
    for every tile size.
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
        """Return `dims` unchanged: tiles keep their dimensions."""
        return dims

    def access(self, op: Op) -> Mapping[str, object]:
        """Return {}: the read or write `op` keeps its attributes."""
        return {}

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten form of each operation in the list `given` to `ops`.

        A select in `self.left` tests only the conditions that remain. If none remains, its first choice replaces it.
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

    h is modulus*u + first + turn*p + e with u < `count`, p < `phases` and e < `offsets`; r is phases*q + tap + along*p
    with q < `taps`.
    """

    congruence: Congruence
    count: int
    phases: int
    offsets: int
    taps: int
    first: int
    turn: int
    tap: int
    along: int

    def kept(self, u: Expr, p: Expr, e: Expr) -> Expr:
        """Return the index along the kept dimension (of the MMA's result): modulus*u + first + turn*p + e, as an
        expression.

        `p` is the phase (a residue of the index), `u` counts elements of a phase, and `e` is the offset among
        neighbours of one phase.
        """
        return self.congruence.modulus * u + self.first + self.turn * p + e

    def summed(self, q: Expr, p: Expr) -> Expr:
        """Return the index along the summed dimension (of filter taps): phases*q + tap + along*p, as an expression.

        `p` is the phase (a residue of the result's index), and `q` counts the taps of a phase.
        """
        return self.phases * q + self.tap + self.along * p


def _numbers(congruence: Congruence, kept: int, summed: int) -> _Numbers:
    """Return a _Numbers: formulas for the result's index h and the tap's index r, for which `congruence` is always
    true.

    They are in terms of a phase p (a residue of h) and of indices u and q within a phase. If h - r + 1 must be even,
    they may be h = 2*u + p and r = 2*q - p + 1. `kept` and `summed` are the extents along h and r. The result's
    elements can be numbered by the tap that reaches them, where h may begin below 0; or, for two phases, by h itself.
    The numbering with fewer elements is returned.
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
        used_names = {s.name for s in (*program_symbols(program), *sizes)}
        dims = [
            _new(f"{congruence.kept}_1", used_names),
            _new(f"{congruence.kept}_0", used_names),
            _new(f"{congruence.kept}_2", used_names),
        ]
        self.dims = (*dims, _new(f"{congruence.summed}_1", used_names))
        """The dimensions of u, p, e and q."""
        numbers = self.numbers
        extents = (numbers.count, numbers.phases, numbers.offsets, numbers.taps)
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
        """True if all phases have equally many taps. A phase is a residue of the result's index, with the taps that
        reach it.
        """
        return self.numbers.taps * self.numbers.phases == self.size(self.congruence.summed)

    # -- whether it can be done ----------------------------------------------------------------------------

    def applies(self) -> bool:
        """True if the program keeps its meaning when it is rewritten over phases (residues of the result's index).

        No constraint may use the dimension of the result or that of taps, and each operation must allow it: loops over
        taps only add MMAs, writes have no taps, and so on.
        """
        congruence = self.congruence
        records = self.program.records
        if any(
            not e.symbols.isdisjoint((congruence.kept, congruence.summed)) for r in records for e in _exprs(r.attrs)
        ):
            return False
        return all(self._fits(op) for op in self.program.walk())

    def _fits(self, op: Op) -> bool:
        """True if the operation `op` keeps its meaning when the program is rewritten over phases (residues of the
        result's index).

        An operation on tiles without the dimension of the result and that of taps does. No dimension may be computed
        from the two. Loops over taps may only add MMAs, and no loop may run over the result's dimension. Writes must
        not have taps, and must drop elements past the end. Only reads, MMAs, casts, permutes, loops and selects of 0
        may have taps. An operation with one of the two dimensions must not depend on coordinates.
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
        """Return ("select",), a name to add to the allowed operations, if `op` is such a select; () otherwise.

        The select must give the constant 0 where its condition is false, and its condition must not depend on taps.
        """
        is_plain = op.name == "select" and _has_zero(op, self.program.makers())
        return ("select",) if is_plain and self.congruence.summed not in op.operands[0].type.dims else ()

    def _fits_product(self, op: Op) -> bool:
        """True if the MMA `op` keeps its meaning when the program is rewritten over phases (residues of the result's
        index).

        Its result must have this dimension, and no taps. If it sums taps, exactly one operand must have the result's
        dimension, and the other operand must be zero past the last tap.
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
        """True if the operand `value` is a read, perhaps cast or permuted, that gives 0 for taps past the last one.

        Also True if all phases have equally many taps: no tap is past the last one then.
        """
        r = self.congruence.summed
        if self.is_even:
            return True
        op = self.program.makers().get(value)
        while op is not None and op.name in SAME:
            op = self.program.makers().get(op.operands[0])
        return op is not None and op.name == "read" and op.attrs.get("otherwise", 0) == 0 and self._drops_outside(op, r)

    def _drops_outside(self, op: Op, dim: Symbol) -> bool:
        """True if `op`, rewritten over phases, is provably out of bounds wherever the index along `dim` is out of
        range.

        `op` is a read or write. The index is out of range if it is below 0 or past the end of `dim`. Also True if it
        never is.
        """
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
        """Return (program over phases, {dimension: extent}, counterparts of the loops `self.free` in it).

        The new program has a dimension of phases (residues of the result's index). Each phase has only the filter taps
        that are not multiplied with zeros.
        """
        rewritten = replace(self.program, body=without_unused(self.body(self.program.body)))
        verify(rewritten)
        return rewritten, self.sizes, {self.kept[op] for op in self.free if op in self.kept}

    def is_removed(self, op: Op) -> bool:
        """True if the loop `op` runs over the filter taps. Its body then replaces it: the MMA itself sums over taps."""
        return op.attrs["axis"] is self.congruence.summed

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the dimensions that replace `dims`, those of a tile, in the program over phases (residues of the
        result's index).

        Other dimensions than that of the result and that of taps stay.
        """
        return tuple(x for d in dims for x in self._replacement(d, dims))

    def _replacement(self, dim: Expr, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the dimensions that replace `dim` in a tile with the dimensions `dims`.

        The result's dimension becomes three: element, phase (residue of the index) and offset. The dimension of taps
        becomes two: tap and phase. A tile with both has the phase at most once. Dimensions of extent 1 are left out,
        except the first. Any other `dim` gives (dim,).
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
        """Return {"over": iterators, "at": memory coordinates} of the read or write `op` in the program over phases.

        A read that states no value out of bounds gets "otherwise": 0 too. Return {} if the tile has neither the
        result's dimension nor that of taps.
        """
        kind, before, _ = places(op)
        if {self.congruence.kept, self.congruence.summed}.isdisjoint(kind.dims):
            return {}
        index_of = dict(zip(self.dims, self.over_, strict=True)) | dict(zip(kind.dims, before, strict=True))
        over = tuple(index_of[d] for d in self.over(kind.dims))
        zero = {"otherwise": 0} if op.name == "read" and "otherwise" not in op.attrs else {}
        return {"over": over, "at": self._access_at(op), **zero}

    def _access_at(self, op: Op) -> tuple[Expr, ...]:
        """Return the memory coordinates of the read or write `op` as expressions of the new indices, with numbers for
        sizes.

        The new indices replace the two indices of the congruence: the element within a phase, the phase, the offset,
        and the tap (see `_Numbers`).
        """
        kind, over, at = places(op)
        images = Substitution({s: self.at[d] for d, s in zip(kind.dims, over, strict=True) if d in self.at})
        return tuple(images(self.values_of(e)) for e in at)


def _has_zero(op: Op, makers: Mapping[Value, Op]) -> bool:
    """True if the select `op` gives the constant 0 where its condition is false.

    `makers` is {value: the operation that computes it}.
    """
    maker = makers.get(op.operands[2])
    return maker is not None and maker.name in ("fill", "scalar") and maker.attrs["value"] == 0


def _new(name: str, used_names: set[str]) -> Symbol:
    """Return a new symbol called `name`, with underscores added while the name is in `used_names`.

    Also add the symbol's name to `used_names`.
    """
    while name in used_names:
        name += "_"
    used_names.add(name)
    return symbol(name, 0)


def _grid(extents: Mapping[Symbol, int]) -> dict[Symbol, np.ndarray]:
    """Return {symbol: array of the indices 0..extent-1} for `extents`, {symbol: extent}. The arrays broadcast to one
    grid.
    """
    return dict(zip(extents, np.ogrid[tuple(slice(0, n) for n in extents.values())], strict=True))


def _exprs(attrs: Mapping[str, object]) -> list[Expr]:
    """Return a list of the expressions among the values of `attrs`, {attribute name: value}.

    Expressions in tuples count, but not in tuples of tuples.
    """
    return [e for v in attrs.values() for e in (v if isinstance(v, tuple) else (v,)) if isinstance(e, Expr)]
