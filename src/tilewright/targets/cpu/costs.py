"""Cost constants that all CPU machines share, fitted to measured times of many plans, and the rates that planners
use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.machine import Costs, LaneCosts, VectorCosts

FUNCTIONS: Mapping[str, float] = {
    "div": 12, "exp": 8, "erf": 30, "tanh": 40, "sigmoid": 40, "reciprocal": 40, "sqrt": 25, "rsqrt": 65,
    "log": 80, "log2": 80, "log10": 80, "expm1": 20, "log1p": 110, "sin": 100, "cos": 100, "powf": 115,
}  # fmt: skip
"""Instructions per f32 element of each function, counted in the generated vector code, one lane each."""

COSTS = Costs(
    vectors=VectorCosts(block=30, task=100, shown=0.2, piece=8, ahead=2),
    lanes=LaneCosts(
        product=0.5, integer_product=1.5, load=0.5, conversion=1.0, lane_store=16, parted=1.5, task=50, end=12, turn=3
    ),
    functions=FUNCTIONS,
)

VECTOR_UNITS = 2
"""Vector instructions that a core starts in a cycle."""


def lane_rates(vector_bytes: int) -> dict[str, Any]:
    """Return {"lane_rate": rate, "function_rate": rate}, two fields of `Limits`. The rate is the number of f32 elements
    that a core computes in a cycle with vectors of `vector_bytes` bytes.
    """
    rate = VECTOR_UNITS * vector_bytes // 4
    return {"lane_rate": rate, "function_rate": rate}


LIMITS: Mapping[str, Any] = {
    "copy_rate": 16.0,
    "latency": 4,
    "line_bytes": 64,
    "conflict_bytes": 1024,
    "launch_cycles": 2000,
    "following_cycles": 2000,
}
"""Fields of `Limits` that all CPU machines have in common; `launch_cycles` counts for every kernel."""
