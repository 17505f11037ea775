"""The index space of a program's product, from the program's facts: digits of M, N, K and batch, and the operands.

A convolution has rows (n, p, q) and depth (r, s, c); a matrix product has one digit each. The facts
replace loops that only accumulate by sums, so that the depth has every reduction dimension.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from math import prod

from tilewright.algebra.expr import ZERO, Const, Expr, Symbol, as_expr, index
from tilewright.algebra.expr_use import Substitution, linear_form, number_or
from tilewright.errors import ProgramError
from tilewright.ir.core import MemoryType, Op, TileType
from tilewright.ir.formula import BINARY, COMPARISONS, UNARY, Formula
from tilewright.ir.tile import accessed
from tilewright.ir.tile_functions import elementwise
from tilewright.machine import Machine
from tilewright.plan.accumulator_type import accumulator_type
from tilewright.plan.contraction import Contraction, Operand
from tilewright.plan.facts import AccessFacts, Facts, ProductFacts, ValueFacts

LONGEST = 1000
"""The largest number of steps of an epilogue; a value that is used twice counts twice."""


def contraction_of(facts: Facts, machine: Machine | None = None) -> Contraction | str:
    """Return the program as a Contraction (one GEMM-like product, elementwise epilogue); or text: why it is none.

    `facts` is the analysed program. It must have one product of two reads, and the accumulator must start from a
    number; the epilogue after the product must be elementwise and end in one write. Only M may have an extent known
    only at the call, not N, K or batch. `machine` determines the accumulator type of the product; without a machine, no
    atom is assumed.
    """
    if len(facts.products) != 1 or len(facts.writes) != 1:
        return f"it has {len(facts.products)} products and {len(facts.writes)} writes, not one"
    (product,), (write,) = facts.products, facts.writes
    why = _why_not_plain(facts, product, write) or _why_not_elementwise(facts, product, write)
    return why or _ProductSpace(facts, product, write, machine).contraction()


def _why_not_plain(facts: Facts, product: ProductFacts, write: ValueFacts) -> str:
    """Return text: why a program is more than an MMA of two plain reads and a write; empty text if it is no more.

    `product` is the MMA, `write` the write, `facts` the analysed program. These are the reasons:

    - a loop carries values, or the MMA is block-diagonal;
    - an operand is no read, such as a permuted one, or the accumulator does not start from a number;
    - the written memory is read too;
    - an access gathers, divides an index, or has bounds of its own;
    - a tensor has gaps between its rows.
    """
    node = facts.nodes[product.node]
    start = facts.nodes[node.args[2]].source
    if facts.loops:
        return "its loop carries more than one sum"
    if node.source is None or node.source.attrs.get("blocks", 1) > 1:
        return "its product is one of blocks"
    operands = product.a.value, product.b.value
    if operands[0] == operands[1] or any(facts.nodes[value].op != "read" for value in operands):
        return "its operands are not two reads of memory"
    if start is None or start.name != "fill" or not isinstance(start.attrs["value"], int | float):
        return "its sum does not start from a number"
    if any(read.place.memory == write.place.memory for read in facts.reads):
        return f"it reads {write.place.memory}, which it writes"
    every = [(n, n.place) for n in (*facts.reads, *facts.writes)]
    if any(not place.linear or n.args[int(n.op == "write") :] for n, place in every):
        return "an access divides an index, or uses values that are data"
    if any(n.source is not None and "bounds" in n.source.attrs for n, _ in every):
        return "an access has bounds of its own"
    if any(_has_gaps(place) for _, place in every):
        return "rows of a tensor have gaps between them"
    return ""


def _has_gaps(place: AccessFacts) -> bool:
    """True if the tensor that `place` accesses has gaps: a stride is not the product of the inner extents."""
    return any(stride != prod(place.shape[n + 1 :]) for n, stride in enumerate(place.strides))


def _why_not_elementwise(facts: Facts, product: ProductFacts, write: ValueFacts) -> str:
    """Return text: why the epilogue (the operations from an MMA to a write) is not elementwise; empty text if it is.

    `product` is the MMA, `write` the write, `facts` the analysed program. The epilogue must use the MMA's result, have
    at most LONGEST (1000) steps (a value used twice counts twice), and no dimension that the result lacks.
    """
    result, steps = facts.nodes[product.node], dict[int, int]()
    for node in facts.nodes:  # operands come before what uses them
        if node.id == result.id:
            steps[node.id] = 1
        elif node.op != "write":
            steps[node.id] = 1 + sum(steps[arg] for arg in node.args)
    after = set(facts.behind(write.args[0], stop_at=("mma",))) - {result.id}
    for node in (facts.nodes[i] for i in after):
        if not node.dims <= result.dims:
            return "a value after the sum has dimensions of its own"
        why = "" if node.op == "read" else _why_not_pointwise(facts, node)
        if why:
            return why
    if result.id not in facts.behind(write.args[0]):
        return "what it writes does not depend on its sum"
    if steps[write.args[0]] > LONGEST:
        return f"what follows the sum has more than {LONGEST} steps"
    return ""


def _why_not_pointwise(facts: Facts, node: ValueFacts) -> str:
    """Return text: why the value `node` of an epilogue cannot be computed element by element; empty text if it can.

    These values can: results of broadcasts, casts, selects and of arithmetic and comparisons that exist for their type;
    and constants whose number is known. `facts` is the analysed program, whose graph has the value.
    """
    op = node.source
    if op is None or op.blocks:
        return "a loop after the sum is not done element by element"
    if op.name in ("fill", "scalar"):
        value = op.attrs["value"]
        is_known = not isinstance(value, Expr) or isinstance(Substitution(dict(facts.sizes))(value), Const)
        return "" if is_known else f"the number {value} after the sum is not known"
    if op.name in (*UNARY, *BINARY, *COMPARISONS) and op.operands:
        try:
            elementwise(op.name, op.operands[0].type.dtype, *(Formula.operand(1) for _ in op.operands))
        except ProgramError as fault:
            return fault.what
        return ""
    is_pointwise = op.name in ("broadcast", "cast", "select")
    return "" if is_pointwise else f"{op.name} after the sum is not done element by element"


class _ProductSpace:
    """The digits (mixed-radix parts of M, N, K and batch) and the operands of a program's product."""

    def __init__(self, facts: Facts, product: ProductFacts, write: ValueFacts, machine: Machine | None):
        self.facts, self.product, self.write, self.machine = facts, product, write, machine
        source = facts.nodes[self.product.node].source
        assert source is not None
        self.op: Op = source
        self.sizes = Substitution({**facts.sizes, **facts.opened})
        self.units: dict[Expr, tuple[Symbol, ...]] = {}
        """{dimension of the program: the digit of extent 1 that stands for it}, where M, N or K has one element."""

    def contraction(self) -> Contraction | str:
        """Return the Contraction of the program's product; or text: why there is none.

        Operand A is the operand whose dimensions come first in the result; if the result lacks M or N, it is the first
        operand. The text names a dimension of the result that neither operand has, or sizes known only at the call that
        the code would depend on.
        """
        facts, product = self.facts, self.product
        result: TileType = self.op.results[0].type
        left, right = (set(v.type.dims) for v in self.op.operands[:2])
        batch = [d for d in result.dims if d in left and d in right]
        rows = [d for d in result.dims if d in left and d not in batch]
        columns = [d for d in result.dims if d in right and d not in batch]
        alone = [d for d in result.dims if d not in left | right]
        if any(self.digits.get(d) for d in alone):
            return "a dimension of the result is in neither operand"
        summed = [d for d in self.op.operands[0].type.dims if d in right and d not in batch]
        a, b = facts.nodes[product.a.value], facts.nodes[product.b.value]
        if rows and columns and result.dims.index(rows[0]) > result.dims.index(columns[0]):
            a, b, rows, columns = b, a, columns, rows
        m, n, k, shared = (self._digits_of(dims) for dims in (rows, columns, summed, batch))
        m, n = m or self._unit_digit(rows), n or self._unit_digit(columns)
        k = self._in_depth_order(summed, a.place) if k else self._unit_digit(summed)
        last = next((d for d in summed if k[-1] in self.digits.get(d, ())), None)
        if known_late := [s.name for s in (*n, *k, *shared) if not isinstance(s.upper, Const)]:
            return f"the code depends on {', '.join(known_late)}, which only a call tells"
        if any(self._depends_on_call(node) for node in (*facts.reads, *facts.writes)):
            return "digits have sizes that only a call tells"
        extras = self._epilogue_reads(self.write)
        of_a, of_b, of_result = (self._operand(node) for node in (a, b, self.write))
        ordered = [*batch, *rows, *columns, *summed, *alone]
        return Contraction(
            facts.name,
            m,
            n,
            k,
            of_a,
            of_b,
            of_result,
            float(facts.nodes[facts.nodes[product.node].args[2]].source.attrs["value"]),  # type: ignore[union-attr]
            accumulator_type(self.op, self.machine),
            tuple(self._operand(node) for _, node in extras),
            shared,
            (tuple(map(str, rows)), tuple(map(str, columns)), "" if last is None else str(last)),
            over=tuple(((d,), self.digits.get(d, ())) for d in ordered),
            program=facts.program,
            accesses=tuple(
                op for op in (a.source, b.source, self.write.source, *(op for op, _ in extras)) if op is not None
            ),
        )

    def _epilogue_reads(self, write: ValueFacts) -> list[tuple[Op | None, ValueFacts]]:
        """Return [(read operation of the program, its node)] of the epilogue's reads, in program order.

        The epilogue is the operations from the MMA to `write`; a node is a value in the analysed program. Equal reads
        are each listed. At the end follow reads of memory that another kernel writes, with None as their operation.
        """
        facts = self.facts
        needed = set(facts.behind(write.args[0], ("mma",)))
        operands = {facts.nodes[value].source for value in (self.product.a.value, self.product.b.value)}
        listed = [(op, facts.nodes[n]) for op, n in facts.read_ops.items() if n in needed and op not in operands]
        between = [n for n in facts.reads if n.source is None and n.id in needed]
        return [*listed, *((None, n) for n in between)]

    @cached_property
    def digits(self) -> dict[Expr, tuple[Symbol, ...]]:
        """The digits of each dimension of the program, as {dimension: its digits, outermost first}.

        Digits are the mixed-radix parts into which accesses divide a dimension; digits of extent 1 are left out.
        """
        facts, labels = self.facts, self._labels
        digits_of_dim: dict[Expr, tuple[Symbol, ...]] = {}
        for d in facts.order:
            names = [name for name in facts.digits.get(str(d), (str(d),)) if name in facts.extents]
            extents: list[int | Expr] = [facts.extents[name] for name in names]
            if d in facts.opened and names:
                extents[0] = number_or(as_expr(facts.opened[d]) // prod(facts.extents[name] for name in names[1:]))
            digits_of_dim[d] = tuple(index(labels[name], n) for name, n in zip(names, extents, strict=True))
        return digits_of_dim

    @cached_property
    def _labels(self) -> dict[str, str]:
        """The names of digits in a plan, such as m_0: {name of a digit in the analysed program: unique name in a plan}.

        Digits are mixed-radix parts of dimensions. The names are in lower case, with a number at the end.
        """
        used, labels = {"rows_0", "columns_0", "taps_0"}, dict[str, str]()
        dims = (*self.facts.order, *(d for v in (*self.op.operands, *self.op.results) for d in v.type.dims))
        names = [name for d in dims for name in (*self.facts.digits.get(str(d), ()), str(d))]
        for name in dict.fromkeys(names):
            base = re.sub(r"\W", "_", name.lower(), flags=re.ASCII)
            base = base if re.search(r"_\d+$", base) else f"{base}_0"
            while base in used:
                base = f"other_{base}"
            labels[name] = base
            used.add(labels[name])
        return labels

    def _digits_of(self, dims: Sequence[Expr]) -> tuple[Symbol, ...]:
        """Return the digits (mixed-radix parts) of the dimensions `dims`, in order; digits of extent 1 are left out."""
        return tuple(s for d in dims for s in self.digits.get(d, ()))

    def _unit_digit(self, dims: Sequence[Expr]) -> tuple[Symbol, ...]:
        """Make a digit of extent 1 for M, N or K, which has one element, and return (digit,); () if `dims` is empty.

        Digits are mixed-radix parts of dimensions. `dims` are the program's dimensions of M, N or K. The new digit
        belongs to the last of these and has its name. It is also recorded in `self.units` and `self.digits`.
        """
        if not dims:
            return ()
        self.units[dims[-1]] = self.digits[dims[-1]] = (index(self._labels[str(dims[-1])], 1),)
        return self.units[dims[-1]]

    def _in_depth_order(self, summed: Sequence[Expr], place: AccessFacts) -> tuple[Symbol, ...]:
        """Return the digits (mixed-radix parts) of K in the order of the K loops: filter taps, then the other digits.

        `summed` are the program's dimensions of K, `place` is the access of operand A. Filter taps are digits that
        share a coordinate of A with another dimension (a sliding window). Taps, and then the other digits, are in the
        order of A's coordinates.
        """
        forms = [{name for name, _ in form} for form in place.coords]

        def key(digit: tuple[str, Symbol]) -> tuple[bool, int]:
            """Return a digit's sort key: (True if it is alone in its coordinates, position of its first coordinate).

            `digit` is (name in the analysed program, symbol). Coordinates are the memory coordinates of A; the position
            is -1 if the digit is in none.
            """
            positions = [n for n, names in enumerate(forms) if digit[0] in names]
            return all(forms[n] == {digit[0]} for n in positions), min(positions, default=-1)

        return tuple(s for _, s in sorted((x for d in summed for x in self._named_digits(d)), key=key))

    def _depends_on_call(self, node: ValueFacts) -> bool:
        """True if a memory coordinate of the read or write `node` depends on sizes that are known only at the call."""
        opened = {s for e in (*self.facts.opened, *self.facts.opened.values()) for s in e.symbols}
        at = () if node.source is None else node.source.attrs.get("at", ())
        return any(opened & e.symbols for e in at)

    def _operand(self, node: ValueFacts) -> Operand:
        """Return the Operand of the read or write `node`: its tensor, and its memory coordinates in terms of digits.

        Digits are mixed-radix parts of dimensions.
        """
        place = node.place
        names = {name: s for d in self.facts.order for name, s in self._named_digits(d)}
        offsets = place.offsets or (0,) * len(place.coords)
        coordinates = tuple(
            sum((factor * names[name] for name, factor in form), start=as_expr(offset) + self._unit_terms(node, n))
            for n, (form, offset) in enumerate(zip(place.coords, offsets, strict=True))
        )
        shape: tuple[int | Expr, ...] = place.shape
        if node.source is not None:
            kind: MemoryType = accessed(node.source)[0].type
            shape = tuple(number_or(self.sizes(d)) for d in kind.dims)
        otherwise = None if node.source is None else node.source.attrs.get("otherwise")
        constant = place.memory in self.facts.constant
        return Operand(place.memory, node.dtype, shape, coordinates, otherwise, constant)

    def _unit_terms(self, node: ValueFacts, coordinate: int) -> Expr:
        """Return an expression to add to one memory coordinate of the read or write `node`: its digits of extent 1.

        Digits are mixed-radix parts of dimensions; the analysed program leaves out digits of extent 1. They are needed
        because a register tile may extend past the end of such a digit: with the digit in it, the coordinate is then
        out of bounds, and nothing is stored. `coordinate` is the number of the memory dimension. The result is 0 if
        there is no such digit.
        """
        if node.source is None:
            return ZERO
        memory, tile, _ = accessed(node.source)
        if "at" not in node.source.attrs:
            return sum((s for s in self.units.get(memory.type.dims[coordinate], ())), start=ZERO)
        over = node.source.attrs["over"]
        at = Substitution(dict(self.facts.sizes))(node.source.attrs["at"][coordinate])
        total: Expr = ZERO
        for d, iterator in zip(tile.dims, over, strict=True):
            form = linear_form(at, [iterator]) if d in self.units and iterator in at.symbols else None
            total = total if form is None else total + form[0][iterator] * self.units[d][0]
        return total

    def _named_digits(self, dim: Expr) -> list[tuple[str, Symbol]]:
        """Return [(name in the analysed program, index symbol)] of the digits of a dimension of the program.

        Digits are the mixed-radix parts into which accesses divide the dimension `dim`. Digits of extent 1 are left
        out.
        """
        names = [name for name in self.facts.digits.get(str(dim), (str(dim),)) if name in self.facts.extents]
        return list(zip(names, self.digits.get(dim, ()), strict=False))
