"""MMAs: M, N, K and batch as sets of dimensions, and how each operand is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.plan.facts.access import Dims
from tilewright.plan.facts.values import RENAMING, ValueFacts, behind


@dataclass(frozen=True)
class OperandFacts:
    """An operand of an MMA, as numbers of nodes.

    `value` is the operand, `reads` and `products` are the reads and MMAs that it is computed from, and `between` are
    the operations between these and the operand.
    """

    value: int
    reads: tuple[int, ...]
    products: tuple[int, ...]
    between: tuple[int, ...]

    @property
    def is_read(self) -> bool:
        """True if this operand is one read of memory, perhaps broadcast or permuted, without arithmetic or an MMA."""
        return not self.between and len(self.reads) == 1 and not self.products


@dataclass(frozen=True)
class ProductFacts:
    """An MMA. Each of M, N, K and batch is a set of dimensions, perhaps empty.

    `into` is the MMA whose accumulator it adds to; None if it starts a new one.
    """

    node: int
    name: str
    m: Dims
    n: Dims
    k: Dims
    batch: Dims
    a: OperandFacts
    b: OperandFacts
    into: int | None

    def side(self, rows_on_n: bool) -> tuple[Dims, Dims, OperandFacts, OperandFacts]:
        """Return (M, N, A, B): the dimensions of M and of N, the operand with M (A) and the operand with N (B).

        With `rows_on_n` the atom's rows run along N: the MMA is computed transposed, and the result is (N, M, B, A).
        """
        return (self.n, self.m, self.b, self.a) if rows_on_n else (self.m, self.n, self.a, self.b)


def products_of(nodes: Sequence[ValueFacts]) -> tuple[ProductFacts, ...]:
    """Return the ProductFacts (M, N, K, batch, operands) of each MMA in `nodes`, in order.

    `nodes` are the values of the program's graph. The MMAs are named as in plans: mma, mma2, mma3 and so on.
    """
    products: list[ProductFacts] = []
    for node in (n for n in nodes if n.op == "mma"):
        a, b, c = (nodes[i] for i in node.args)
        shared = a.dims & b.dims
        products.append(
            ProductFacts(
                node.id,
                f"mma{len(products) + 1 if products else ''}",
                (a.dims & node.dims) - b.dims,
                (b.dims & node.dims) - a.dims,
                shared - node.dims,
                shared & node.dims,
                _operand_facts(nodes, a.id),
                _operand_facts(nodes, b.id),
                _accumulated_mma(nodes, c.id, node.dims),
            )
        )
    return tuple(products)


def _operand_facts(nodes: Sequence[ValueFacts], value: int) -> OperandFacts:
    """Return the OperandFacts of an MMA's operand: the reads, the MMAs and the operations that it is computed from.

    `value` is the operand's node number, `nodes` are the values of the program's graph. The search goes back to the
    nearest reads and MMAs, and not beyond. Operations that only rename elements or make constants are left out.
    """
    by_kind: Mapping[str, list[int]] = {"read": [], "mma": [], "": []}
    for i in behind(nodes, value, ("read", "mma")):
        op = nodes[i].op
        by_kind[op if op in by_kind else ""].append(i)
    between = tuple(i for i in by_kind[""] if nodes[i].op not in RENAMING)
    return OperandFacts(value, tuple(by_kind["read"]), tuple(by_kind["mma"]), between)


def _accumulated_mma(nodes: Sequence[ValueFacts], start: int, dims: Dims) -> int | None:
    """Return the node number of the earlier MMA to whose result this MMA adds its products; None if there is none.

    `start` is the node number of this MMA's accumulator input, `dims` are its dimensions, `nodes` the values of the
    program's graph. The earlier result may have been rescaled before: from a node that is no MMA, the search goes on to
    its first operand that has exactly `dims`.
    """
    value: int | None = start
    while value is not None and nodes[value].op != "mma":
        value = next((i for i in nodes[value].args if nodes[i].dims == dims), None)
    return value
