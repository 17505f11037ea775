"""Facts of tile programs: what a plan may depend on, derived once from any program.

| file      | subject                                                                             |
|-----------|-------------------------------------------------------------------------------------|
| access    | where reads and writes lie: strides, windows, the contiguous dimension, bounds       |
| values    | the values of the graph                                                             |
| loops     | loops and what they carry: plain accumulators, monoids, neither                      |
| online    | a softmax between products, which a loop can do a tile at a time                     |
| masking   | masks, and the iterations that they leave                                            |
| product   | products: M, N, K and batch as sets of dimensions                                    |
| graph     | the facts: the graph and what follows from it                                        |
| canonical | from a program to its facts, in canonical form                                       |
| signature | facts without names, to compare programs that mean the same                          |
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
