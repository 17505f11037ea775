"""Contractions: products and sums over shared dimensions, recognised in a tile program by their accesses.

Whatever kernel it stands in, `acc = iterate k: mma(read a, read b, acc)` followed by elementwise work, with numbers in
it, and a write is one form: out[rows, columns] = epilogue(sum over depth of a[rows, depth] * b[columns, depth]), where
rows, columns and depth are *digits*: a flat index that an access divides is replaced by the numbers it is divided into,
the same for all accesses that use it. A convolution has rows (n, p, q) and depth (r, s, c); a matrix product has one
digit each. The depth is all that the product sums over: the loop's axis, and dimensions beside it (taps r and s in a
loop over c).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

from tilewright.algebra.access import Access
from tilewright.algebra.expr import ZERO, Const, Expr, Symbol, as_expr, index, symbol
from tilewright.algebra.expr_use import Substitution, has_division, linear_form, number_or
from tilewright.errors import ProgramError, TilewrightError
from tilewright.ir.core import MemoryType, Op, Program, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import BINARY, COMPARISONS, UNARY, Formula
from tilewright.ir.tile import accessed
from tilewright.ir.tile_functions import elementwise
from tilewright.machine import Machine
from tilewright.plan.sums import summed_in

LONGEST = 1000
"""Steps of an epilogue, at most: a value that is used twice is computed twice."""


@dataclass(frozen=True)
class Operand:
    """A tensor of a contraction: the program's argument, its extents, and its coordinates in terms of digits.

    Digits are the mixed-radix parts of flattened dimensions. `otherwise` is what a read out of bounds gives.
    """

    name: str
    dtype: DType
    shape: tuple[Any, ...]
    """Its extents: numbers, or expressions of open sizes (known only at the call)."""
    coordinates: tuple[Expr, ...]
    otherwise: float | None = None

    @cached_property
    def conditions(self) -> list[tuple[int, Expr]]:
        """[(number of the memory dimension, bounds check)] of this operand; a check that always holds is left out.

        A coordinate has up to two checks: it is at least 0, and it is below the extent.
        """
        conditions = []
        for d, (c, n) in enumerate(zip(self.coordinates, self.shape, strict=True)):
            conditions += [(d, condition) for condition in (c >= 0, c < n) if not isinstance(condition, Const)]
        return conditions

    @property
    def loose(self) -> frozenset[int]:
        """The numbers of the memory dimensions of this operand whose coordinate may be out of bounds."""
        return frozenset(d for d, _ in self.conditions)


@dataclass(frozen=True)
class Contraction:
    """A GEMM-like program: out = epilogue(start + sum over depth of a * b, extras), elementwise.

    `rows`, `columns`, `depth` and `batch` are the digits (mixed-radix parts of flattened dimensions) of M, N, K and
    batch.
    """

    name: str
    rows: tuple[Symbol, ...]
    columns: tuple[Symbol, ...]
    depth: tuple[Symbol, ...]
    a: Operand
    b: Operand
    out: Operand
    start: float
    sum_dtype: DType
    extras: tuple[Operand, ...]
    batch: tuple[Symbol, ...] = ()
    """Digits that A, B and the result share: groups, or matrices of a batch."""
    dims: tuple[tuple[str, ...], tuple[str, ...], str] = ((), (), "")
    """The program's dimensions that became rows, those that became columns, and the one that is the last of the
    depth."""
    apart: bool = False
    """True if digits must not be merged."""
    over: tuple[tuple[tuple[Expr, ...], tuple[Symbol, ...]], ...] = ()
    """(dimensions of the program, digits that stand for them together); a dimension with one element has no digits."""
    program: Program | None = None
    """The program in which the contraction was recognised."""
    accesses: tuple[Op, ...] = ()
    """The program's read of `a`, of `b`, its write, and the reads of `extras`."""

    @property
    def open(self) -> tuple[Symbol, ...]:
        """The digits (mixed-radix parts) of M whose extent is known only at the call."""
        return tuple(d for d in self.rows if _is_open(d))

    @cached_property
    def coupled(self) -> frozenset[Symbol]:
        """The digits of K, such as filter taps, that are in a bounds check of A together with the last digit of M.

        Digits are mixed-radix parts of flattened dimensions.
        """
        shared = [x.symbols for _, x in self.a.conditions if self.rows[-1] in x.symbols]
        return frozenset(d for d in self.depth if any(d in symbols for symbols in shared))

    def text(self) -> str:
        """Return this contraction in normal form as text: a line each for M, N, K, batch, tensors and accumulator.

        The lines list digits (mixed-radix parts of flattened dimensions) with extents, and the tensors' coordinates in
        terms of them; a `?` marks a coordinate with a bounds check.
        """
        kinds = {"rows": self.rows, "columns": self.columns, "depth": self.depth, "batch": self.batch}
        lines = [
            f"{kind} {', '.join(f'{d.name} {size(d)}' for d in digits)}" for kind, digits in kinds.items() if digits
        ]
        for operand in (self.a, self.b, self.out, *self.extras):
            at = ", ".join(f"{e}{' ?' if n in operand.loose else ''}" for n, e in enumerate(operand.coordinates))
            lines.append(f"{operand.name} {operand.dtype} ({', '.join(map(str, operand.shape))}) [{at}]")
        return "\n".join([*lines, f"start {self.start} in {self.sum_dtype}"]) + "\n"

    def extent(self, digits: tuple[Symbol, ...]) -> int:
        """Return the product of the extents of `digits` (mixed-radix parts of dimensions); 1 for no digits."""
        return prod(map(size, digits))

    def summed(self, name: str | None) -> Symbol:
        """Return the digit (mixed-radix part) of K with this name; there must be one."""
        return next(d for d in self.depth if d.name == name)

    @property
    def flops(self) -> int:
        """The number of floating-point operations, two per multiply-add, of the contraction without epilogue."""
        return 2 * self.extent((*self.batch, *self.rows, *self.columns, *self.depth))


def size(s: Symbol) -> int:
    """Return the extent of the digit `s` (mixed-radix part of a dimension); the largest if known only at the call."""
    return int(s.hi) + 1


def _is_open(digit: Symbol) -> bool:
    """True if the extent of a digit (mixed-radix part of a dimension) is known only at the call."""
    return not isinstance(digit.upper, Const)


def with_known_sizes(contraction: Contraction, sizes: Mapping[Symbol, int]) -> Contraction:
    """Return the contraction with numbers for sizes known only at the call, and with merging of digits forbidden.

    Digits are mixed-radix parts of flattened dimensions. `sizes` maps size symbols to numbers.
    """
    numbers = Substitution(dict(sizes))
    digits = {d: index(d.name, int(numbers(d.upper + 1))) for d in contraction.open if d.upper is not None}
    images = Substitution(digits)

    def closed_operand(operand: Operand) -> Operand:
        """Return an operand with numbers in place of its sizes that are known only at the call."""
        shape = tuple(int(numbers(as_expr(n))) for n in operand.shape)
        return replace(operand, shape=shape, coordinates=tuple(map(images, operand.coordinates)))

    rows = tuple(digits.get(d, d) for d in contraction.rows)
    extras = tuple(map(closed_operand, contraction.extras))
    return replace(
        contraction,
        rows=rows,
        a=closed_operand(contraction.a),
        b=closed_operand(contraction.b),
        out=closed_operand(contraction.out),
        extras=extras,
        apart=True,
    )


def dimension(digit: Symbol) -> Symbol:
    """Return the dimension symbol that stands for a digit in a program whose dimensions are digits.

    A digit is a mixed-radix part of a dimension. The symbol has the digit's name.
    """
    return symbol(digit.name, 0)


def merge_rows(contraction: Contraction) -> Contraction:
    """Return the contraction with all digits (mixed-radix parts, such as n, p, q) of M merged into one digit.

    A 1x1 convolution becomes a GEMM. The contraction is returned unchanged if M has one digit, if the digits are not
    contiguous in every tensor, if merging is forbidden, or if an extent of M is known only at the call.
    """
    return (
        contraction
        if len(contraction.rows) < 2 or contraction.apart or contraction.open
        else _merge_digits(contraction, contraction.rows, "rows_0")
    )


def merge_taps(contraction: Contraction) -> Contraction:
    """Return the contraction with the last two digits (mixed-radix parts: filter tap, channel) of K merged into one.

    A tap and its few channels become one run of memory: x[w, c] at C*w + c. The contraction is returned unchanged if K
    has one digit, or if the two digits are not contiguous in an operand.
    """
    return contraction if len(contraction.depth) < 2 else _merge_digits(contraction, contraction.depth[-2:], "taps_0")


def _merge_digits(contraction: Contraction, digits: tuple[Symbol, ...], name: str) -> Contraction:
    """Return the contraction with `digits` (mixed-radix parts of M or K) merged into one digit named `name`.

    The contraction is returned unchanged if the digits are not contiguous in a tensor that has them, or if one tensor,
    accessed twice, would get two shapes.
    """
    operands, merged_digit = (
        (contraction.a, contraction.b, contraction.out, *contraction.extras),
        index(name, contraction.extent(digits)),
    )
    merged = [x for x in (_merge_in_operand(x, digits, merged_digit) for x in operands) if x is not None]
    if len(merged) < len(operands):
        return contraction
    a, b, out, *extras = merged
    others = (a, out, *extras)
    if len({(x.name, x.shape) for x in others}) > len({x.name for x in others}):
        return contraction  # a tensor has one shape
    replacement = {**dict.fromkeys(digits, ()), digits[-1]: (merged_digit,)}
    rows, depth = (
        tuple(s for d in own for s in replacement.get(d, (d,))) for own in (contraction.rows, contraction.depth)
    )
    over = over_joined(contraction.over, digits, merged_digit)
    return replace(contraction, rows=rows, depth=depth, a=a, b=b, out=out, extras=tuple(extras), over=over)


def _merge_in_operand(operand: Operand, digits: tuple[Symbol, ...], merged_digit: Symbol) -> Operand | None:
    """Return the operand with its memory dimensions of `digits` merged into one, which `merged_digit` indexes.

    Digits are mixed-radix parts of a dimension. The operand is returned unchanged if it has none of them. It is None if
    the digits are not the coordinates of adjacent memory dimensions, each but the first with the digit's extent. The
    first coordinate may have an offset.
    """
    used = [d for d, e in enumerate(operand.coordinates) if e.symbols & set(digits)]
    if not used:
        return operand
    first, end = used[0], used[0] + len(digits)
    shift = operand.coordinates[first] - digits[0]
    inner = tuple(map(size, digits[1:]))
    if used != list(range(first, end)) or shift.symbols & set(digits) or operand.shape[first + 1 : end] != inner:
        return None
    if operand.coordinates[first + 1 : end] != digits[1:]:
        return None
    shape = (*operand.shape[:first], operand.shape[first] * prod(inner), *operand.shape[end:])
    coordinates = (*operand.coordinates[:first], prod(inner) * shift + merged_digit, *operand.coordinates[end:])
    return replace(operand, shape=shape, coordinates=coordinates)


def pad_k(contraction: Contraction, group: int) -> Contraction:
    """Return the contraction with K's last digit (mixed-radix part) zero-padded to a multiple of `group` in A and B.

    The contraction is returned unchanged if `group` divides that digit, if A or B has no memory dimension that this
    digit alone indexes, or if A or B is the same tensor as another operand.
    """
    last = contraction.depth[-1]
    if size(last) % group == 0:
        return contraction
    padded_digit = index(last.name, -(-size(last) // group) * group)
    operands = [_pad_operand(x, last, padded_digit) for x in (contraction.a, contraction.b)]
    others = (contraction.out, *contraction.extras)
    if (
        None in operands
        or {x.name for x in others} & {contraction.a.name, contraction.b.name}
        or contraction.a.name == contraction.b.name
    ):
        return contraction
    a, b = operands
    assert a is not None
    assert b is not None
    over = tuple((dims, tuple(padded_digit if s is last else s for s in digits)) for dims, digits in contraction.over)
    return replace(contraction, depth=(*contraction.depth[:-1], padded_digit), a=a, b=b, over=over)


def _pad_operand(operand: Operand, last: Symbol, padded_digit: Symbol) -> Operand | None:
    """Return the operand with the memory dimension of digit `last` as long as `padded_digit`; None if it has none.

    `last` is K's last digit (mixed-radix part), `padded_digit` the same digit with a larger extent. `last` must index
    exactly one memory dimension, alone and in full.
    """
    positions = [d for d, e in enumerate(operand.coordinates) if last in e.symbols]
    if (
        len(positions) != 1
        or operand.coordinates[positions[0]] is not last
        or operand.shape[positions[0]] != size(last)
    ):
        return None
    (d,) = positions
    shape = (*operand.shape[:d], size(padded_digit), *operand.shape[d + 1 :])
    coordinates = (*operand.coordinates[:d], padded_digit, *operand.coordinates[d + 1 :])
    return replace(operand, shape=shape, coordinates=coordinates)


def over_joined(
    over: tuple[tuple[tuple[Expr, ...], tuple[Symbol, ...]], ...], digits: tuple[Symbol, ...], merged_digit: Symbol
) -> tuple[tuple[tuple[Expr, ...], tuple[Symbol, ...]], ...]:
    """Return the table ((program dimensions, digits that stand for them), ...) after `digits` became `merged_digit`.

    Digits are mixed-radix parts of dimensions. `over` is the table before. Its entries with a digit in `digits` become
    one entry, at the end; the last of `digits` is replaced by `merged_digit`, the others are deleted.
    """
    merged_entries = [entry for entry in over if set(entry[1]) & set(digits)]
    dims = tuple(d for entry in merged_entries for d in entry[0])
    remaining = [s for entry in merged_entries for s in entry[1] if s not in digits or s is digits[-1]]
    merged = dims, tuple(merged_digit if s is digits[-1] else s for s in remaining)
    return (*(entry for entry in over if entry not in merged_entries), merged)


class NoContraction(Exception):
    """The reason why a program is not a single contraction; the message is one sentence."""


def recognise(
    program: Program, sizes: Mapping[Symbol, int | Expr], machine: Machine | None = None
) -> Contraction | str:
    """Return the Contraction that a tile program computes; or text: why the program is no single contraction.

    `sizes` maps size symbols to numbers, or to expressions of symbols known only at the call; only extents of M may be
    such expressions. The accumulator type is what `machine` uses for the MMA; without a machine, no atom is assumed.
    """
    try:
        return _Recogniser(program, sizes, machine).run()
    except NoContraction as why:
        return str(why)
    except TilewrightError as fault:
        return str(fault).splitlines()[0]


class _Recogniser:
    """The recognition of one program: its sizes, and the operation that makes each value."""

    def __init__(self, program: Program, sizes: Mapping[Symbol, int | Expr], machine: Machine | None):
        self.program, self.sizes, self.machine = program, sizes, machine
        self.opened = {s for e in sizes.values() if isinstance(e, Expr) for s in e.symbols}
        self.made = program.makers()
        self.images = Substitution(dict(sizes))

    def run(self) -> Contraction:
        """Return the Contraction that the program computes; raise NoContraction if it computes no single contraction.

        Raise NoContraction too if an extent of N, K or the batch is known only at the call.
        """
        ops, (kept, rows, columns, added), start, sum_dtype = self.structure()
        dims = [*kept, *rows, *columns, *added]
        indices = {d: index(name, self.size(d)) for d, name in _digit_names(dims).items()}
        accesses = {op: self.access(op, indices) for op in ops}
        digits = self.digits(indices, list(accesses.values()))

        def digits_of(dims: list[Expr]) -> tuple[Symbol, ...]:
            """Return the digits (mixed-radix parts) of `dims`, dimension by dimension, slowest digit first."""
            return tuple(s for d in dims for s in digits[indices[d]][0])

        summed = sorted(added, key=lambda d: _depth_order(indices[d], accesses[ops[0]]))
        depth = tuple(s for s in digits_of(summed) if size(s) > 1) or digits_of(summed)[-1:]
        batch = tuple(s for s in digits_of(kept) if size(s) > 1)
        if fixed := [s.name for s in (*digits_of(columns), *depth, *batch) if _is_open(s)]:
            raise NoContraction(f"the code depends on {', '.join(fixed)}, which only a call tells")
        single = Substitution({s: 0 for s in (*digits_of(kept), *digits_of(summed)) if s not in (*batch, *depth)})
        meanings = Substitution({axis: single(total) for axis, (_, total) in digits.items()})
        operands = {op: self.operand(op, access, meanings) for op, access in accesses.items()}
        a, b, out, *extras = (operands[op] for op in ops)
        return Contraction(
            self.program.name,
            digits_of(rows),
            digits_of(columns),
            depth,
            a,
            b,
            out,
            start,
            sum_dtype,
            tuple(extras),
            batch,
            (tuple(map(str, rows)), tuple(map(str, columns)), str(summed[-1])),
            over=tuple(((d,), tuple(s for s in digits[indices[d]][0] if single(s) is s)) for d in dims),
            program=self.program,
            accesses=ops,
        )

    def structure(self) -> tuple[tuple[Op, ...], tuple[list[Expr], ...], float, DType]:
        """Return (accesses, dimensions, start, accumulator type) of the program's single MMA and its loop.

        The accesses are the read of A, the read of B, the write, and the reads of the epilogue. The dimensions are four
        lists: batch, M, N and K. `start` is the number that the accumulator starts from. Raise NoContraction if the
        program is no single K loop of one MMA, with an elementwise epilogue and one write.
        """
        loops = [op for op in self.program.body.ops if op.name == "iterate"]
        products = [op for op in self.program.walk() if op.name == "mma"]
        writes = [op for op in self.program.body.ops if op.name == "write"]
        if len(loops) != 1 or len(products) != 1 or len(writes) != 1:
            raise NoContraction(
                f"it has {len(loops)} loops, {len(products)} products and {len(writes)} writes, not one"
            )
        loop, write = loops[0], writes[0]
        product = products[0]
        block = loop.blocks[0]
        if product not in block.ops or len(loop.operands) != 1 or "condition" in loop.attrs or "start" in loop.attrs:
            raise NoContraction("its loop carries more than one sum")
        if product.operands[2] is not block.args[0] or block.ops[-1].operands != product.results:
            raise NoContraction("its loop does more than add products")
        if any(op.name not in ("read", "mma", "yield") for op in block.ops):
            raise NoContraction("its loop does more than read and multiply")
        if any(op.name == "read" and op.operands[0] is write.operands[1] for op in self.program.walk()):
            raise NoContraction(f"it reads {write.operands[1].name}, which it writes")
        if product.attrs.get("blocks", 1) > 1:
            raise NoContraction("its product is one of blocks")
        left, right = (self.made.get(v) for v in product.operands[:2])
        if left is None or right is None or left.name != "read" or right.name != "read":
            raise NoContraction("an operand is not read from memory")
        result = loop.results[0]
        dims = result.type.dims
        axis = loop.attrs["axis"]
        a_dims, b_dims = (set(op.results[0].type.dims) for op in (left, right))
        batch = [d for d in dims if d in a_dims and d in b_dims]
        summed = [d for d in left.results[0].type.dims if d in b_dims and d not in batch]
        if axis not in summed:
            raise NoContraction("its product does not sum over the loop's dimension")
        rows = [d for d in dims if d in a_dims and d not in batch]
        columns = [d for d in dims if d in b_dims and d not in batch]
        if len(rows) + len(columns) + len(batch) != len(dims):
            raise NoContraction("a dimension of the result is in neither operand")
        if rows and columns and dims.index(rows[0]) > dims.index(columns[0]):
            left, right, rows, columns = right, left, columns, rows
        start = self.made.get(loop.operands[0])
        if start is None or start.name != "fill" or not isinstance(start.attrs["value"], int | float):
            raise NoContraction("its sum does not start from a number")
        ops = left, right, write, *self.extras(write, result)
        return ops, (batch, rows, columns, summed), float(start.attrs["value"]), summed_in(product, self.machine)

    def size(self, e: Expr) -> int | Expr:
        """Return the number that `e` evaluates to, or an expression of symbols that are known only at the call.

        Raise NoContraction if a symbol in `e` is neither given nor known at the call.
        """
        value = self.images(e)
        if isinstance(value, Const):
            return value.value
        if not value.symbols <= self.opened:
            raise NoContraction(f"the size {e} is not known")
        return value

    def access(self, op: Op, indices: Mapping[Expr, Symbol]) -> Access:
        """Return an Access, the memory coordinates of the read or write `op` in terms of `indices`.

        `indices` maps each dimension to its index symbol. Raise NoContraction if the coordinates depend on data, or if
        the memory or the bounds have sizes that only data give.
        """
        memory, tile, _ = accessed(op)
        kind: MemoryType = memory.type
        if kind.extents is not None or "lookups" in op.attrs or "bounds" in op.attrs:
            raise NoContraction("an access uses values that are data, or sizes of its own")
        shape = tuple(self.size(d) for d in kind.dims)
        if "at" in op.attrs:
            meanings: dict[Any, Any] = {i: indices[d] for i, d in zip(op.attrs["over"], tile.dims, strict=True)}
            images = Substitution({**self.sizes, **meanings})
            coordinates = tuple(images(e) for e in op.attrs["at"])
        else:
            coordinates = tuple(indices[d] for d in kind.dims)
        axes = tuple(indices[d] for d in tile.dims)
        return Access.of(coordinates, axes, shape)

    def digits(
        self, indices: Mapping[Expr, Symbol], accesses: list[Access]
    ) -> dict[Symbol, tuple[tuple[Symbol, ...], Expr]]:
        """Return {index: (its digits, slowest first, the index as a sum of stride * digit)}.

        A digit is a mixed-radix part: i//56 and i%56 are digits of i. An index has the same digits in all `accesses`.
        `indices` maps each dimension to its index symbol. Raise NoContraction if an access has no normal form, or if
        the numbers that divide an index cannot be ordered so that each divides the next.
        """
        steps: dict[Symbol, set[int | Expr]] = {axis: {1} for axis in indices.values()}
        for access in accesses:
            normal = access.normalise()
            if normal.general:
                raise NoContraction(f"an access has no normal form: {normal.general}")
            for axis, e in normal.indices:
                form = linear_form(e, e.symbols & set(normal.axes))
                if form is None:
                    raise NoContraction("an access has no normal form")
                steps[axis] |= {number_or(c) for c in form[0].values()}
        digits_of = {}
        for axis, radices in steps.items():
            assert axis.upper is not None
            ends = chain(radices, number_or(axis.upper + 1))
            if ends is None:
                divisors = ", ".join(sorted(map(str, radices), key=lambda text: (len(text), text)))
                raise NoContraction(f"{axis.name} is divided by {divisors}, which are no chain")
            digits_and_steps = [
                (index(f"{axis.name}_{i}", end // step), step)
                for i, (step, end) in enumerate(pairwise(ends))
                if end != step or len(ends) == 2
            ]
            total: Any = sum((s * step for s, step in digits_and_steps), start=0)
            digits_of[axis] = (tuple(s for s, _ in reversed(digits_and_steps)), total)
        return digits_of

    def operand(self, op: Op, access: Access, meanings: Substitution) -> Operand:
        """Return an Operand: the tensor that the read or write `op` accesses, with its coordinates in terms of digits.

        Digits are mixed-radix parts of dimensions; `meanings` replaces each index by an expression of its digits. Raise
        NoContraction if a coordinate still divides.
        """
        coordinates = tuple(meanings(c) for c in access.coordinates)
        if any(has_division(c) for c in coordinates):
            raise NoContraction("an access still divides after its digits are taken apart")
        memory = accessed(op)[0]
        shape = tuple(map(number_or, access.shape))
        return Operand(memory.name or "", memory.type.dtype, shape, coordinates, op.attrs.get("otherwise"))

    def extras(self, write: Op, result: Value) -> list[Op]:
        """Return the reads of the epilogue, which computes what `write` stores from the accumulator `result`.

        It is [] if the epilogue reads nothing. Raise NoContraction if the epilogue is not elementwise, has more than
        LONGEST (1000) steps, has a dimension that the accumulator lacks, or does not use the accumulator.
        """
        reads: list[Op] = []
        known: dict[Value, int] = {}

        def steps(value: Value) -> int:
            """Return the number of operations that compute a value from the accumulator, repeated ones counted again.

            Raise NoContraction if one of the operations is not elementwise.
            """
            if value is result:
                known[result] = 1
            if value not in known:
                op = self.made.get(value)
                if op is None:
                    raise NoContraction("the write takes a value that is no result")
                reads.extend([op] if op.name == "read" else ())
                self.require_elementwise(op)
                known[value] = 1 + sum(steps(v) for v in op.operands if op.name != "read")
            return known[value]

        if steps(write.operands[0]) > LONGEST:
            raise NoContraction(f"what follows the sum has more than {LONGEST} steps")
        if result not in known:
            raise NoContraction("what it writes does not depend on its sum")
        result_dims = set(result.type.dims)
        if not {d for v in (write.operands[0], *(op.results[0] for op in reads)) for d in v.type.dims} <= result_dims:
            raise NoContraction("a value after the sum has dimensions of its own")
        return reads

    def require_elementwise(self, op: Op) -> None:
        """Raise NoContraction unless the operation `op` of the epilogue is a read, elementwise, or a known constant."""
        if op.name in ("fill", "scalar"):
            value = op.attrs["value"]
            if isinstance(value, Expr) and not isinstance(self.images(value), Const):
                raise NoContraction(f"the number {value} after the sum is not known")
        elif op.name in (*UNARY, *BINARY, *COMPARISONS) and op.operands:
            try:
                elementwise(op.name, op.operands[0].type.dtype, *(Formula.operand(1) for _ in op.operands))
            except ProgramError as fault:
                raise NoContraction(fault.what) from None
        elif op.name not in ("read", "broadcast", "cast", "select"):
            raise NoContraction(f"{op.name} after the sum is not done element by element")


def _depth_order(axis: Symbol, access: Access) -> tuple[bool, int]:
    """Return the sort key of a reduction dimension within K: filter taps (which slide) first, then memory order.

    `axis` is the dimension's index, `access` the access of operand A. The key is (True if the index is alone in its
    coordinates, number of its first coordinate).
    """
    positions = [d for d, e in enumerate(access.coordinates) if axis in e.symbols]
    alone = all(access.coordinates[d].symbols == {axis} for d in positions)
    return alone, min(positions, default=-1)


def chain(radices: Collection[int | Expr], extent: int | Expr) -> list[int | Expr] | None:
    """Return [1, *radices, extent] sorted so that each number divides the next; None if there is no such order.

    Numbers of `radices` that are `extent` or larger are left out.

    >>> n, p, q = (symbol(name, 1, 99) for name in "NPQ")
    >>> chain({q, p * q, 1}, n * p * q), chain({4, 6}, 24)
    ([1, <Q>, <P*Q>, <N*P*Q>], None)
    """
    remaining, ordered = {r for r in radices if r not in (1, extent)}, list[int | Expr]([1])
    if isinstance(extent, int):
        remaining = {r for r in remaining if not isinstance(r, int) or 0 < r < extent or r == 0}
    while remaining:
        following = next(
            (r for r in remaining if r != 0 and all(as_expr(n) % r is ZERO for n in (*remaining, extent))), None
        )
        if following is None:
            return None
        ordered.append(following)
        remaining.discard(following)
    return [*ordered, extent]


def _digit_names(dims: list[Expr]) -> dict[Expr, str]:
    """Return {dimension: unique name}: the symbol's name in lower case, or `dim` for an expression.

    Digits (mixed-radix parts) get this name and a number, such as m_0. The names `rows` and `taps` are not used: they
    are names of merged digits.

    >>> from tilewright.lang import sym
    >>> list(_digit_names([sym.M, sym.m, sym.H * sym.W, sym.C * sym.R, sym.dim]).values())
    ['m', 'm2', 'dim2', 'dim3', 'dim']
    """
    used, name_of = {"rows", "taps"}, {}
    for d in sorted(dims, key=lambda d: not isinstance(d, Symbol)):  # expressions take what authors left
        base = re.sub(r"\W", "_", d.name.lower(), flags=re.ASCII) if isinstance(d, Symbol) else "dim"
        name_of[d] = next(name for name in (base, *(f"{base}{n}" for n in range(2, len(dims) + 4))) if name not in used)
        used.add(name_of[d])
    return {d: name_of[d] for d in dims}
