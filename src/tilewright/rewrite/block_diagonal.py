"""Merges adjacent GEMMs with few channels (grouped convolution) into one with a block-diagonal B.

    %1 = read %x over=[g, i, c] at=[i//196, i//14%14, i%14, 16*g + c] : bf16[G, M, K]         32 groups of 16 channels
    %2 = read %w over=[g, f, c] at=[16*g + f, 0, 0, c] : bf16[G, FG, K]
    %3 = mma %1, %2, %0 : f32[G, M, FG]

Four neighbours along G become neighbours along K and FG: there are 8 groups of 64 channels. A and C stay where they
are, and so do their coordinates, 64*g + c and 64*g + f. B is copied: row f has its 16 channels from column 16*(f//16)
on, and zeros in the other columns:

    %0 = read %w over=[i] at=[i//64, 0, 0, i%64 - 16*(i//1024%4)] otherwise=0                  before, to %w_diagonal
    %1 = read %x over=[g, i, c] at=[i//196, i//14%14, i%14, 64*g + c] : bf16[G, M, K]
    %2 = read %w_diagonal over=[g, f, c] at=[64*g + f, c] : bf16[G, FG, K]
    %3 = mma %1, %2, %0 blocks=4 : f32[G, M, FG]

M itself may be the merged dimension, if a row of A begins right behind the row before, and so does a row of C: the
tensors are then viewed in a shape with longer rows. Each diagonal block is multiplied by its own columns of A only, so
that an infinite element of A does not reach other GEMMs through zeros of B. Groups with fewer channels than K of an
atom are padded with zeros, in A as well, which is then copied too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

from tilewright.algebra.expr import Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import MemoryType, Op, Program, Value, building
from tilewright.ir.tile import ELEMENTWISE
from tilewright.ir.verifier import verify
from tilewright.plan.fixed import tiles_of
from tilewright.rewrite.adjacent_gemms import Neighbours, as_run, find_groupable_gemms, has_run, is_inside
from tilewright.rewrite.operand_copies import (
    FactorCopy,
    Numbered,
    RepackedProgram,
    Shape,
    copying_program,
    digits,
    element_number,
    numbered,
    padded_extent,
    with_ops,
)
from tilewright.rewrite.rewriter import unused_name

BESIDE = frozenset(
    {
        *ELEMENTWISE,
        *("read", "write", "mma", "iterate", "yield", "fill", "scalar", "cast", "select"),
        "broadcast",
        "permute",
    }
)
"""Operations that treat all indices of a dimension alike, so that dimensions may change their sizes."""


def group_block_diagonal(
    program: Program,
    sizes: Mapping[Symbol, int],
    shapes: Mapping[Value, Shape],
    free: Collection[Op],
    count: int,
    deep: int,
    pitch: int,
) -> RepackedProgram | str:
    """Return the program with every `count` adjacent GEMMs merged into one with a block-diagonal B, as a
    RepackedProgram.

    It includes the programs that copy operands. Return text if this is impossible: why. `deep` is the padded K of one
    GEMM; if K is shorter, A is copied with zeros too. Rows of A and of the copies must be multiples of `pitch` bytes.
    `sizes` is {dimension: extent}, `shapes` is {argument: extents}. `free` holds the loops that give the same result
    for every tile size.
    """
    with building():
        groups = find_groupable_gemms(program, sizes, shapes)
        if isinstance(groups, str):
            return groups
        if count < 2 or groups.count % count:
            return f"{count} does not divide {groups.d}, which is {groups.count}"
        if (long := count * deep) * groups.a.bytes % pitch:
            return f"rows of {long} elements of {groups.a.source.name} are no multiple of {pitch} bytes"
        try:
            return _Diagonal(program, sizes, shapes, groups, count, deep).rewritten(free, pitch)
        except _Refused as why:
            return str(why)


class _Refused(Exception):
    """The reason why a program has no block-diagonal form."""


class _Diagonal:
    """Rewrites a program with a block-diagonal B: the batch dimension, N and K keep their names and change their
    sizes.
    """

    def __init__(
        self,
        program: Program,
        sizes: Mapping[Symbol, int],
        shapes: Mapping[Value, Shape],
        of: Neighbours,
        count: int,
        deep: int,
    ):
        self.program, self.of, self.count, self.deep = program, of, count, deep
        self.before, self.sizes = dict(sizes), dict(sizes)
        self.given, self.shapes = dict(shapes), dict(shapes)
        self.args: dict[Value, Value] = {}
        """{argument: its replacement}."""
        n, _ = of.size
        self.extents = {of.d: of.count // count, of.n: count * n, of.k: count * deep}

    def rewritten(self, free: Collection[Op], pitch: int) -> RepackedProgram:
        """Return the rewritten program, as a RepackedProgram with the programs that copy operands.

        One program copies B to diagonal blocks; if K is padded, another one copies A. `free` holds the loops that give
        the same result for every tile size. Rows of the copy of B are a multiple of `pitch` bytes. Raise _Refused if
        the program cannot be rewritten. Call it once: it changes sizes and arguments in self.
        """
        self._require(free)
        self.sizes |= {s: extent for d, extent in self.extents.items() for s in d.symbols}
        copy, of_copy = self._copy(pitch)
        product = self.of.product
        attrs = {**product.attrs, "blocks": self.count}
        swapped = {
            self.of.b.op: of_copy,
            product: Op(product.spec, product.operands, attrs, product.results, loc=product.loc),
        }
        copies, sources = [copy], [self.of.b.source.name or ""]
        if self.deep > self.of.size[1]:
            padded, swapped[self.of.a.op] = self._padded()
            copies.append(padded)
            sources.append(self.of.a.source.name or "")
        for op in self.program.walk():
            if op.name in ("read", "write") and op not in swapped:
                swapped[op] = self._access(op)
        for arg in (a for a in self.program.args if a in self.given and a not in self.args):
            self._argument(arg, self.given[arg], arg.name or "")
        copy_of_op: dict[Op, Op] = {}
        body = with_ops(self.program.body, swapped, {}, copy_of_op)
        args = tuple(self.args.get(a, a) for a in self.program.args)
        program = replace(self.program, body=body, args=args, bindings={})
        verify(program)
        free = tuple(copy_of_op[op] for op in free)
        return RepackedProgram(program, self.sizes, self.shapes, free, tuple(copies), tuple(sources))

    def _require(self, free: Collection[Op]) -> None:
        """Raise _Refused if the program cannot change the extents of the batch dimension, N and K.

        It cannot if a constraint names one of the three, if an operation is not in `BESIDE`, or if a number or another
        dimension depends on one of them. It cannot either if a loop is not in `free` (loops that give the same result
        for every tile size), runs over the batch dimension or N, or has a start.
        """
        of = self.of
        constrained = [d for tiles in tiles_of(self.program, self.before) for d in tiles]
        if any(str(d) in constrained for d in self.extents):
            raise _Refused(f"its constraints say how {', '.join(map(str, self.extents))} are cut")
        for op in self.program.walk():
            if op.name == "iterate" and (op not in free or op.attrs["axis"] in (of.d, of.n) or op.attrs.get("start")):
                raise _Refused(f"a loop over {op.attrs['axis']} does more than add products")
            if op.name not in BESIDE:
                raise _Refused(f"it has {op.name}, which is no function of elements alone")
            value = op.attrs.get("value")
            if isinstance(value, Expr) and value.symbols & set(self.extents):
                raise _Refused(f"{op.name} gives {value}, which is another number then")
            for kind in (v.type for v in op.results if op not in (of.a.op, of.b.op)):
                self._require_dims(kind.dims)

    def _require_dims(self, dims: tuple[Expr, ...]) -> None:
        """Raise _Refused if a tile with the dimensions `dims` prevents new extents of the batch dimension, N and K.

        A tile does so if it has the batch dimension without N, or K, or a dimension computed from one of the three.
        """
        of = self.of
        if of.d in dims and of.n not in dims:
            raise _Refused(f"a tile has {of.d}, and not {of.n}")
        refused_dims = [x for x in dims if x is of.k or (x not in self.extents and x.symbols & set(self.extents))]
        if refused_dims:
            raise _Refused(f"a tile beside its factors has {refused_dims[0]}")

    def _argument(self, source: Value, shape: Shape, name: str) -> Value:
        """Return the argument that replaces the argument `source`.

        The first call creates it with the extents `shape` and this `name`, and records its sizes in self. Raise
        _Refused if a later call has another `shape`.
        """
        replacement = self.args.get(source)
        if replacement is not None and self.shapes[replacement] != shape:
            raise _Refused(f"{name} is accessed twice, in two shapes")
        if replacement is None:
            dims = tuple(symbol(f"{name}_{n}", 1) for n in range(len(shape)))
            kind: MemoryType = source.type
            replacement = self.args[source] = Value(MemoryType(kind.dtype, dims, strides=kind.strides), name)
            self.sizes |= dict(zip(dims, shape, strict=True))
            self.shapes[replacement] = shape
        return replacement

    def _over(self, access: Numbered) -> dict[Expr, Symbol]:
        """Return {dimension: iterator} of the read or write `access` for the new program.

        Iterators of the batch dimension, N and K get the bounds of the new extents.
        """
        return {d: symbol(s.name, 0, self.extents[d] - 1) if d in self.extents else s for d, s in access.over.items()}

    def _swapped(self, access: Numbered, shape: Shape, at: tuple[Expr, ...], name: str) -> Op:
        """Return a copy of the read or write `access` with the memory coordinates `at` in a new argument.

        The new argument replaces the one that `access` uses; it has the extents `shape` and this `name`. Raise _Refused
        if another access needs it in another shape.
        """
        op, argument = access.op, self._argument(access.source, shape, name)
        attrs = {**op.attrs, "over": tuple(self._over(access).values()), "at": at}
        operands = tuple(argument if v is access.source else v for v in op.operands)
        return Op(op.spec, operands, attrs, op.results, loc=op.loc)

    def _numbered(self, op: Op, bounded: Collection[Expr] | None = None) -> Numbered:
        """Return the read or write `op` as a Numbered, with numbers in place of sizes; raise _Refused if that is not
        possible.

        Iterators of the dimensions in `bounded` get bounds; None: all iterators.
        """
        access = numbered(op, self.before, self.given, bounded)
        if isinstance(access, str):
            raise _Refused(access)
        return access

    def _access(self, op: Op) -> Op:
        """Return the read or write `op` with iterators and coordinates for the new extents. It accesses the same
        elements.

        Raise _Refused for a write with elements of adjacent GEMMs that are not contiguous.
        """
        of, access = self.of, self._numbered(op, self.extents)
        over, name = self._over(access), access.source.name or ""
        inner = of.k if op is of.a.op else of.n
        if of.d in over and has_run(access, of.d, inner):
            images = Substitution({access.over[of.d]: self.count * over[of.d], access.over[inner]: over[inner]})
            return self._swapped(access, access.shape, tuple(map(images, access.at)), name)
        every = self._numbered(op)
        row = as_run(every, of.d, inner) if of.d in over else None
        if row is not None:
            iterators, dims = self._over(every), {s: d for d, s in every.over.items()}
            at = tuple(iterators[dims[s]] for s in row)
            return self._swapped(every, tuple(int(s.hi) + 1 for s in at), at, name)
        if op.name == "write" and (of.d in over or of.n in over):
            raise _Refused(f"neighbours of {name} along {of.d} do not lie behind each other")
        columns_of_one, parts = of.size[0], {}
        if of.n in over:
            parts[access.over[of.n]] = over[of.n] % columns_of_one
        if of.d in over:
            parts[access.over[of.d]] = self.count * over[of.d] + over[of.n] // columns_of_one
        return self._swapped(access, access.shape, tuple(map(Substitution(parts), access.at)), name)

    def _padded(self) -> tuple[FactorCopy, Op]:
        """Return (program that copies A with zeros behind the K elements of each GEMM, read of the copy).

        Raise _Refused unless the last dimension of A consists of the K elements of all GEMMs, one GEMM after the other.
        """
        of, deep, access = self.of, self.deep, self._numbered(self.of.a.op, self.extents)
        k, last, name = of.size[1], access.shape[-1], access.source.name
        if not has_run(access, of.d, of.k) or last != of.count * k:
            raise _Refused(f"neighbours of {name} along {of.d} are not all of its last dimension")
        outer, wide = prod(access.shape[:-1]), of.count * deep
        row, along = digits(element_number(outer * wide), (outer, wide))
        place = k * (along // deep) + along % deep + last * (along % deep // k)  # outside, behind a product's own
        copied = unused_name(self.program, f"{name}_rows")
        words = f"{name} is copied with zeros to {deep} elements for each {k} along {of.d}, from {access.shape}"
        copy = copying_program(self.program, access.source, copied, (outer, last), outer * wide, (row, place), words)
        over = self._over(access)
        at = (*access.at[:-1], self.count * deep * over[of.d] + over[of.k])
        return copy, self._swapped(access, (*access.shape[:-1], wide), at, copied)

    def _copy(self, pitch: int) -> tuple[FactorCopy, Op]:
        """Return (program that copies B to diagonal blocks with zeros around them, read of the copy).

        Rows of the copy are a multiple of `pitch` bytes. Raise _Refused if B may be read out of bounds in every
        coordinate, or if K is padded and is not all of a dimension of B.
        """
        of, b, count, deep = self.of, self.of.b, self.count, self.deep
        n, k = of.size
        other_result_dims = [d for d in b.over if d not in self.extents and d in of.product.result.type.dims]
        taps = [d for d in b.over if d not in self.extents and d not in other_result_dims]
        rows = count * n * (self.extents[of.d] if of.d in b.over else 1)
        shape = (
            *map(b.extent, other_result_dims),
            rows,
            *map(b.extent, taps),
            padded_extent(count * deep, pitch, b.bytes),
        )
        *places, along = digits(element_number(prod(shape)), shape)
        row = places.pop(len(other_result_dims))
        images = {b.over[d]: e for d, e in zip((*other_result_dims, *taps), places, strict=True)}
        images |= {b.over[of.n]: row % n, b.over[of.k]: along % deep}
        if of.d in b.over:
            images[b.over[of.d]] = row // n
        at = list(map(Substitution(images), b.at))
        inside = [place for place, e in enumerate(b.at) if is_inside(e, b.shape[place])]
        if not inside:
            raise _Refused(f"{b.source.name} may be read outside its tensor")
        guard = max(inside, key=lambda place: (b.over[of.k] in b.at[place].symbols, place))
        if deep > k and (b.at[guard] is not b.over[of.k] or b.shape[guard] != k):
            raise _Refused(f"{of.k} is not all of a dimension of {b.source.name}")
        beyond = max(b.shape[guard], deep)  # outside, where both are not of one block, or behind it
        at[guard] += beyond * (along // deep - row // n % count)
        name = unused_name(self.program, f"{b.source.name}_diagonal")
        words = (
            f"{b.source.name} is copied to {count} blocks on a diagonal, {n}x{k} each, with zeros beside them, in "
            f"{shape}, so that {count} neighbours along {of.d} are one product"
        )
        copy = copying_program(self.program, b.source, name, b.shape, prod(shape), tuple(at), words)
        over = self._over(b)
        first_row = count * n * over[of.d] if of.d in over else as_expr(0)
        coordinates = (
            *(over[d] for d in other_result_dims),
            first_row + over[of.n],
            *(over[d] for d in taps),
            over[of.k],
        )
        return copy, self._swapped(b, shape, coordinates, name)
