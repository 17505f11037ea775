"""A contraction by its definition: every digit walked, one product after another."""

from __future__ import annotations

from functools import cached_property
from itertools import product

import numpy as np

from tilewright.algebra.expr import Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.cli.workload import Workload
from tilewright.compiler.kernels import resolve
from tilewright.interpret.loops import accumulates_only
from tilewright.plan.contracted import contraction_of
from tilewright.plan.contraction import size
from tilewright.plan.facts import facts_of


def space_of(program, sizes):
    """The index space of a program's product, or why it has none."""
    free = [op for op in program.walk() if op.name == "iterate" and accumulates_only(op)]
    return contraction_of(facts_of(program, sizes, free))


def recognised(kernel, sizes):
    """The index space of a kernel's product for sizes by name, or why it has none."""
    program = kernel.trace()
    known = dict(program.bindings)
    named = {s.name: s for a in program.args for d in a.type.dims for s in d.symbols if isinstance(s, Symbol)}
    known |= {named[name]: value for name, value in sizes.items() if name in named}
    return space_of(program, {s: int(e) for s, e in resolve(known).items()})


class Problem(Workload):
    """A problem with the contraction that its kernel is."""

    @cached_property
    def contraction(self):
        return recognised(*self.kernel)


def sums_by_definition(c, arrays):
    """(coordinates of the result, the sum) for all of them; a factor outside its tensor counts as 0."""
    kept = (*c.batch, *c.rows, *c.columns)
    found = np.full(c.out.shape, np.nan)
    for place in product(*(range(size(d)) for d in kept)):
        total = c.start
        for inner in product(*(range(size(d)) for d in c.depth)):
            at = Substitution(dict(zip((*kept, *c.depth), (*place, *inner), strict=True)))
            total += element(c.a, arrays, at) * element(c.b, arrays, at)
        at = Substitution(dict(zip(kept, place, strict=True)))
        goal = tuple(int(at(e)) for e in c.out.coordinates)
        assert np.isnan(found[goal]), "an element of the result has two sums"
        found[goal] = total
    return found


def element(operand, arrays, at):
    coordinates = tuple(int(at(e)) for e in operand.coordinates)
    if any(not 0 <= c < n for c, n in zip(coordinates, operand.shape, strict=True)):
        return 0.0
    return float(arrays[operand.name].reshape(operand.shape)[coordinates])
