"""Signatures: facts without names, so that programs that mean the same can be compared.

Dimensions that lie behind each other wherever they occur are one. Dimensions are numbered by where results lie along
them, and by their extents and strides where results do not have them; operands of products have no order.
"""

from __future__ import annotations

from tilewright.plan.facts.graph import Facts
from tilewright.plan.facts.values import ValueFacts

Signature = tuple[object, ...]
PASSED_OVER = frozenset({"broadcast", "permute", "reshape"})
"""Operations that only rename elements."""


def signature(facts: Facts) -> Signature:
    """Return the signature of an analysed program: nested tuples without names, equal for programs that mean the same.

    The tuples have extents, strides and operations; the names of dimensions and tensors do not occur.
    """
    return _Signing(facts).build()


class _Signing:
    """Builds the signature of a program's facts; dimensions that form one flat index share a number in it."""

    def __init__(self, facts: Facts):
        self.facts = facts
        self.runs = _mergeable_groups(facts)
        self.inner = {dim: run[-1] for run in self.runs for dim in run}
        self.dim_number = {run[-1]: n for n, run in enumerate(sorted(self.runs, key=self._sort_key))}

    def build(self) -> Signature:
        """Return the signature: (extents, dimensions that the grid may split, loops, a tree for each write).

        A dimension is a number in it; dimensions that form one flat index share a number. Extents are pairs (dimension,
        extent), loops are pairs (dimension, how partial results merge), and trees say how the written value is
        computed.
        """
        facts = self.facts
        extents = sorted((self.dim_number[run[-1]], facts.size(run)) for run in self.runs)
        loops = sorted((self.dim_number[self.inner[axis]], loop.merge or "") for axis, loop in facts.loops.items())
        parallel = sorted({self.dim_number[self.inner[d]] for d in facts.parallel})
        return (tuple(extents), tuple(parallel), tuple(loops), tuple(self._value_tree(w.id) for w in facts.writes))

    def _sort_key(self, run: tuple[str, ...]) -> tuple[object, ...]:
        """Return the key by which groups of dimensions are sorted, and so numbered. It contains no names.

        `run` is the group: dimensions that form one flat index, outermost first. The key has, in this order: whether no
        write has the group; the negated stride of its innermost dimension in each write; its extent; and (element
        bytes, stride) of each read that has it.
        """
        facts, inner = self.facts, run[-1]
        written = [-w.place.steps.get(inner, 0) for w in facts.writes]
        read = sorted((r.place.bytes, r.place.steps[inner]) for r in facts.reads if inner in r.place.dims)
        return (not any(written), *written, facts.size(run), tuple(read))

    def _dim_numbers(self, dims: frozenset[str]) -> tuple[int, ...]:
        """Return the numbers that stand for the dimensions `dims` in the signature, sorted, each once.

        Dimensions that form one flat index share a number.
        """
        return tuple(sorted({self.dim_number[self.inner[d]] for d in dims}))

    def _value_tree(self, value: int) -> Signature:
        """Return a tree of nested tuples, without names, that says how a node (value of the graph) is computed.

        `value` is the node's number. Each level has the operation, the type, the dimensions as numbers, the memory
        access, and the trees of the operands. A and B of an MMA are sorted, so that their order does not matter.
        Operations that only rename elements (such as a broadcast) are left out.
        """
        n = self.facts.nodes[value]
        if n.op in PASSED_OVER and n.args:
            return self._value_tree(n.args[0])
        args = [self._value_tree(arg) for arg in n.args]
        if n.op == "mma":
            args = [*sorted(args[:2], key=repr), *args[2:]]
        return (
            n.op,
            str(n.dtype),
            self._dim_numbers(n.dims),
            self._dim_numbers(n.reduces),
            self._access_tuple(n),
            *args,
        )

    def _access_tuple(self, n: ValueFacts) -> Signature:
        """Return the memory access of the value `n` as a tuple without names; () if `n` is no read or write.

        The tuple is (bytes of an element, ((dimension number, stride in elements), ...), number of elements that the
        memory spans, True if it may be out of bounds, True if its coordinates are linear).
        """
        if n.access is None:
            return ()
        steps = {self.dim_number[self.inner[d]]: n.access.steps[self.inner[d]] for d in n.access.dims}
        return (n.access.bytes, tuple(sorted(steps.items())), n.access.elements, n.access.can_leave, n.access.linear)


def _mergeable_groups(facts: Facts) -> list[tuple[str, ...]]:
    """Return all dimensions of a program in groups; the dimensions of a group form one flat index wherever they occur.

    A group is a tuple of dimension names, outermost first; most groups have one dimension. `facts` is the analysed
    program.
    """
    runs: list[tuple[str, ...]] = [(d,) for d in facts.extents]
    while True:
        pair = next(((a, b) for a in runs for b in runs if a != b and _can_merge(facts, a, b)), None)
        if pair is None:
            return runs
        runs = [run for run in runs if run not in pair] + [(*pair[0], *pair[1])]


def _can_merge(facts: Facts, outer: tuple[str, ...], inner: tuple[str, ...]) -> bool:
    """True if two groups of dimensions form one flat index in every value and access that has them.

    `outer` and `inner` are the groups, each outermost dimension first; the flat index is outer * (elements of `inner`)
    + inner. `facts` is the analysed program. Also False in these cases: one of them is a loop's axis, is scanned or is
    masked; the grid may split only one of them; an access has them in a sliding window with a third dimension; or no
    value has them.
    """
    a, b = outer[-1], inner[-1]
    special = set(facts.loops) | facts.scanned | facts.masked_dims
    if {a, b} & special or (a in facts.parallel) != (b in facts.parallel):
        return False
    for n in facts.nodes:
        if any((a in dims) != (b in dims) for dims in (n.dims, n.reduces, n.carried)):
            return False
        place = n.access
        if place is not None and a in place.dims:
            in_windows = any({a, b} & window and not window <= {*outer, *inner} for window in place.windows)
            if in_windows or not place.linear or place.steps[a] != place.steps[b] * facts.size(inner):
                return False
    return any(a in n.dims for n in facts.nodes)
