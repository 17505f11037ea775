"""What the programs of this folder are checked against: small integers, whose sums are exact, and plain numpy."""

import numpy as np

NUMPY = {"f16": np.float16, "f32": np.float32, "i8": np.int8, "i32": np.int32}


def integers(kind: str, *shape: int) -> np.ndarray:
    """Integers from -3 to 3."""
    return np.random.default_rng(shape).integers(-3, 4, shape).astype(NUMPY[kind])


def check_product(run, m: int, n: int, k: int, kind: str, result: str) -> None:
    """That `run(a, b)` is a * b^T, to the last bit."""
    a, b = integers(kind, m, k), integers(kind, n, k)
    wanted = (a.astype(np.int64) @ b.astype(np.int64).T).astype(NUMPY[result])
    np.testing.assert_array_equal(run(a, b), wanted)
