"""Facts of tile programs: a dataflow graph with dimensions, accesses, products, loops and masks, for the planner.

| file           | subject                                                                        |
|----------------|--------------------------------------------------------------------------------|
| access         | memory accesses: strides, windows, the contiguous dimension, bounds            |
| values         | the nodes of the graph: tile values                                            |
| loops          | loops and the values that they carry: accumulators, monoids, neither           |
| online_softmax | a softmax between products that a loop can compute one tile at a time (online) |
| masking        | masks, and the iterations that are not fully masked                            |
| product        | products: M, N, K and batch as sets of dimensions                              |
| graph          | the graph with everything that is derived from it                              |
| canonical      | from a program to its facts, in canonical form                                 |
| signature      | facts without names, to compare programs that mean the same                    |
"""

from tilewright.plan.facts.access import AccessFacts, Dims
from tilewright.plan.facts.canonical import facts_of
from tilewright.plan.facts.graph import Facts
from tilewright.plan.facts.loops import LoopFacts
from tilewright.plan.facts.product import OperandFacts, ProductFacts
from tilewright.plan.facts.signature import signature
from tilewright.plan.facts.values import ValueFacts

__all__ = [
    "AccessFacts",
    "Dims",
    "Facts",
    "LoopFacts",
    "OperandFacts",
    "ProductFacts",
    "ValueFacts",
    "facts_of",
    "signature",
]
